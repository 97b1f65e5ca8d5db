//! What must hold in every run, one law a file. The laws keep books of their own; they do not ask the cores whether they were right.

pub(crate) mod bounded_queues;
pub(crate) mod counted_once;
pub(crate) mod last_evaluation;
pub(crate) mod liveness;
pub(crate) mod read_rule;
pub(crate) mod resumed;
pub(crate) mod sample_use;
pub(crate) mod version_staleness;
pub(crate) mod whole_steps;

use crate::simulation::sight::Law;
use crate::simulation::{Problem, Scenario};

/// All laws, for one run. That a worker leads by s + 1 at most, and what else each core promises of itself, is checked by the cores'
/// own `check_invariants` after every event.
pub(crate) fn all(scenario: &Scenario, problem: &dyn Problem) -> Vec<Box<dyn Law>> {
    vec![
        Box::new(bounded_queues::BoundedQueues::default()),
        Box::new(counted_once::CountedOnce::new(scenario, problem)),
        Box::new(read_rule::ReadRule::new(scenario)),
        Box::new(version_staleness::VersionStaleness::new(scenario)),
        Box::new(resumed::Resumed::default()),
        Box::new(sample_use::SampleUse::new(scenario)),
        Box::new(whole_steps::WholeSteps::new(scenario)),
        Box::new(last_evaluation::LastEvaluation::default()),
    ]
}
