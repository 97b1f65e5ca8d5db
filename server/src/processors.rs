//! Which processors the threads of shards run on.

use slackline_core::ids::ShardId;

/// The processors that shards are dealt out to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processors(Vec<usize>);

impl Processors {
    /// Those that this process may use; none, with a word in the log, where the system does not say.
    pub(crate) fn of_this_process() -> Self {
        let processors = system::usable().unwrap_or_else(|error| {
            tracing::warn!("no thread is kept on a processor: {error}");
            Vec::new()
        });
        Self(processors)
    }

    /// The processor of a shard. The servers of one machine have shards of different numbers, so that they do not all take the first.
    fn of(&self, shard: ShardId) -> Option<usize> {
        let place = (shard.0 as usize).checked_rem(self.0.len())?;
        self.0.get(place).copied()
    }

    /// Keeps the thread that calls it on the processor of its shard.
    pub(crate) fn keep(&self, shard: ShardId) {
        let Some(processor) = self.of(shard) else { return };
        match system::stay_on(processor) {
            Ok(()) => tracing::debug!("the thread of {shard} stays on processor {processor}"),
            Err(error) => {
                tracing::warn!("the thread of {shard} cannot be kept on processor {processor}: {error}")
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    /// What the system calls the thread that asks.
    const THIS: Pid = Pid::from_raw(0);

    pub(super) fn usable() -> nix::Result<Vec<usize>> {
        let set = sched_getaffinity(THIS)?;
        Ok((0..CpuSet::count()).filter(|processor| set.is_set(*processor) == Ok(true)).collect())
    }

    pub(super) fn stay_on(processor: usize) -> nix::Result<()> {
        let mut set = CpuSet::new();
        set.set(processor)?;
        sched_setaffinity(THIS, &set)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io::{Error, ErrorKind, Result};

    pub(super) fn usable() -> Result<Vec<usize>> {
        Err(Error::new(ErrorKind::Unsupported, "only Linux is asked for that"))
    }

    pub(super) fn stay_on(_processor: usize) -> Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_dealt_out_in_turns() {
        let processors = Processors(vec![1, 4, 6]);
        let of = |shard| processors.of(ShardId(shard));
        assert_eq!([0, 1, 2, 3, 7].map(of), [1, 4, 6, 1, 4].map(Some));
        assert_eq!(Processors::default().of(ShardId(3)), None);
    }
}
