//! The staleness of a gradient is counted rightly, and while nobody comes or goes it is at most (P - 1)(2s + 1) versions (0 under bsp and backup),
//! and where values are pulled ahead one more for the worker's own push that they lack: the design brief, section 4, after Ho et al. 2013. A newcomer gates nobody before its first push, so that one can lie between too.

use std::collections::BTreeMap;

use slackline_core::consistency::Standing;
use slackline_core::ids::{Incarnation, Sequence, ShardId, Version, WorkerId};
use slackline_core::wire::PushOutcome;
use slackline_server_core::ShardEvent;

use crate::simulation::Scenario;
use crate::simulation::sight::{Law, Sight, Verdict, holds};

const LAW: &str = "version staleness";

/// See the module.
#[derive(Debug)]
pub(crate) struct VersionStaleness {
    bound: Option<u64>,
    /// The run can begin before all its workers are there: the others are newcomers then.
    begins_early: bool,
    pulled: BTreeMap<(ShardId, WorkerId, Incarnation, Sequence), Version>,
}

impl VersionStaleness {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let (workers, prefetch) = (u64::from(scenario.workers), u64::from(scenario.prefetch));
        let bound = scenario.policy.version_bound(workers, prefetch);
        let begins_early = scenario.min_workers.is_some_and(|least| least < scenario.workers);
        Self { bound, begins_early, pulled: BTreeMap::new() }
    }
}

impl Law for VersionStaleness {
    fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        match sight {
            Sight::Disturbed | Sight::Changed => self.bound = None,
            Sight::Restored { .. } => self.bound = None,
            Sight::Before {
                shard,
                event: ShardEvent::Enter { worker, incarnation, standing: Standing::Joining, .. },
                ..
            } if self.begins_early && shard.members().all(|member| member != (*worker, *incarnation)) => {
                self.bound = None;
            }
            Sight::Sent { key, computed_on, claimed } => {
                return holds(LAW, computed_on == claimed, || {
                    format!("{key:?} was computed on {computed_on} and says {claimed}")
                });
            }
            Sight::Before { shard, event: ShardEvent::Push(push), .. } => {
                let name = (shard.id(), push.worker, push.incarnation, push.sequence);
                self.pulled.entry(name).or_insert(push.pulled);
            }
            Sight::Answered { shard, speaker, pushed } => {
                let PushOutcome::Applied { version, staleness, .. } = pushed.outcome else { return Ok(()) };
                let name = (shard.id(), speaker.0, speaker.1, pushed.sequence);
                let pulled = self.pulled.get(&name).copied().unwrap_or_default();
                // The version it made is one above the one it met.
                let passed = (version.0 - 1).saturating_sub(pulled.0);
                holds(LAW, passed == staleness, || {
                    format!("{name:?} passed {passed}, was told {staleness}")
                })?;
                let bound = self.bound.unwrap_or(u64::MAX);
                return holds(LAW, staleness <= bound, || {
                    format!("{name:?} is {staleness} stale, over {bound}")
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn forget(&mut self, shard: ShardId) {
        self.pulled.retain(|(of, ..), _| *of != shard);
    }
}
