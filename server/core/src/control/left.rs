//! A run whose workers have all gone with the work done, and the final evaluation not made: whoever comes makes it, and meanwhile the values
//! are kept in a checkpoint, where there are any, so that whoever does not wait for that loses nothing.

use slackline_core::wire::FinalValues;

use super::{Cluster, Control, Coordinator};

impl Control {
    /// Whether all samples are used, and nobody is there to evaluate the final values. (In an allreduce the values go with the workers, and whose
    /// loss it does not survive is decided there.)
    pub(super) fn is_left(&self) -> bool {
        let awaits_evaluation = |coordinator: &Coordinator| {
            coordinator.groups.is_none() && coordinator.is_at_the_end() && !coordinator.is_over()
        };
        self.started
            && self.ended.is_none()
            && self.members.is_empty()
            && self.coordinator.as_ref().is_some_and(awaits_evaluation)
    }

    /// Where the final values are.
    pub(super) fn final_values(&self) -> FinalValues {
        self.cluster().map_or(FinalValues::Unkept, Cluster::final_values)
    }
}
