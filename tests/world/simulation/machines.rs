//! The machines that servers run on: a clock of their own, a disk, and times at which nothing moves.

use slackline_core::ids::Moment;

use super::agenda::Happening;
use super::disk::Disk;
use super::world::World;

/// One machine. A server's process comes and goes; this stays.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// How far its clock is ahead of the world's, in nanoseconds. It grows by jumps, and is drawn anew for each process: every process counts
    /// from a beginning of its own.
    pub(crate) ahead: u64,
    pub(crate) frozen_until: Moment,
    pub(crate) disk: Disk,
}

impl World {
    /// What a server's clock shows.
    pub(crate) fn time_of(&self, server: usize) -> Moment {
        Moment(self.now.0 + self.machines[server].ahead)
    }

    /// When a server's clock will show something; not before the next nanosecond.
    pub(crate) fn when_it_is(&self, server: usize, moment: Moment) -> Moment {
        Moment(moment.0.saturating_sub(self.machines[server].ahead).max(self.now.0 + 1))
    }

    /// What a worker's clock shows.
    pub(crate) fn time_at(&self, process: usize) -> Moment {
        Moment(self.now.0 + self.processes[process].ahead)
    }

    /// Whether what happens to a server must wait, since it is frozen; it is then put off.
    pub(crate) fn is_server_put_off(&mut self, server: usize, what: &Happening) -> bool {
        let until = self.machines[server].frozen_until;
        let is_frozen = until > self.now && self.servers[server].up;
        if is_frozen {
            self.agenda.at(until, what.clone());
        }
        is_frozen
    }
}
