//! What the run waits for, as control knows it: workers before the start and while too few are there, servers that are silent, shards that
//! are not whole, checkpoints that are not written.

use std::collections::BTreeMap;
use std::time::Duration;

use slackline_core::config::timers::quiet;
use slackline_core::ids::{Clock, Incarnation, Moment, ShardId, WorkerId};
use slackline_core::limits::{ADDRESS_BYTES_MAX, PLACE_ROWS_MAX, SERVER_ROWS_MAX, STATUS_ROWS_MAX};
use slackline_core::wire::{Lack, Status, cut, milliseconds};

use super::cluster::{Cluster, PlaceLack, ServerView};
use super::group::Gone;
use super::{Control, ControlEffect};
use crate::assign::{Repeats, Why};
use crate::notice::Notice;
use crate::waits::{Wait, Waiting, merged, of_cluster, rows};

/// Ids of workers that one wait carries.
const IDS_MAX: usize = 16;

/// Since when shards lack what they lack.
#[derive(Clone, Debug, Default)]
pub(super) struct Lacks(BTreeMap<ShardId, (Lack, Moment)>);

impl Lacks {
    /// Takes what is lacking now.
    fn see(&mut self, now: Moment, lacks: &[PlaceLack]) {
        let since = |lack: &PlaceLack| match self.0.get(&lack.place.shard) {
            Some((before, since)) if *before == lack.lack => *since,
            _ => now,
        };
        self.0 = lacks.iter().map(|lack| (lack.place.shard, (lack.lack, since(lack)))).collect();
    }
}

impl Control {
    /// Workers without which the run does not begin.
    pub(super) fn least(&self) -> u32 {
        self.settings.min_workers.unwrap_or(self.settings.workers)
    }

    /// Whether the run can begin: all workers have asked for work, or the least number has and nobody else came for a lease. A worker
    /// asks once it is registered with every server, so all servers know those that ask. But one that has died since would come back
    /// without what the run begins with. So would one that dies before its copies are equal: they are waited for, for a lease.
    pub(super) fn may_begin(&self, now: Moment) -> bool {
        let Some(coordinator) = self.coordinator.as_ref().filter(|_| !self.started) else { return false };
        if self.cluster().is_some_and(|cluster| !cluster.has_primaries()) {
            return false;
        }
        if self.cluster().is_some_and(|cluster| !cluster.has_copies()) && !self.gathers_for(now).is_zero() {
            return false;
        }
        let asking = coordinator.asking();
        asking >= self.settings.workers || (asking >= self.least() && self.gathers_for(now).is_zero())
    }

    /// How long others may still come before the run begins with the least number of workers.
    fn gathers_for(&self, now: Moment) -> Duration {
        let newest = self.members.newest().unwrap_or(self.began);
        self.settings.lease.saturating_sub(now.since(newest))
    }

    /// Whether fewer workers are there than the run needs to go on.
    fn has_too_few(&self) -> bool {
        self.started && self.settings.min_workers.is_some_and(|least| self.members.registered() < least)
    }

    /// Whether fewer workers are there than the run needs to go on; takes note of since when.
    pub(super) fn pauses(&mut self, now: Moment) -> bool {
        self.too_few_since = self.has_too_few().then(|| self.too_few_since.unwrap_or(now));
        self.too_few_since.is_some()
    }

    /// Takes note of since when shards lack something.
    pub(super) fn watch(&mut self, now: Moment) {
        let lacks = self.cluster().map(Cluster::lacks).unwrap_or_default();
        self.lacks.see(now, &lacks);
    }

    /// A worker is no member any more: what it had is noted, and the log told.
    pub(super) fn note_gone(
        &mut self,
        worker: WorkerId,
        incarnation: Option<Incarnation>,
        gone: &Gone,
        effects: &mut Vec<ControlEffect>,
    ) {
        let (Some(coordinator), Some(incarnation)) = (&mut self.coordinator, incarnation) else { return };
        let why = match gone {
            Gone::Silent(_) | Gone::Replaced => Why::Lost { worker, incarnation },
            Gone::Left(_) | Gone::TurnedAway(_) => Why::Left { worker, incarnation },
        };
        let repeats = coordinator.note_gone(worker, why);
        effects.extend(repeats.into_iter().map(|repeat| ControlEffect::Notice(Notice::Repeated(repeat))));
    }

    /// Samples that were given out again; only at the coordinator of a run with shards.
    #[must_use]
    pub fn repeats(&self) -> Option<&Repeats> {
        self.coordinator.as_ref()?.repeats()
    }

    /// How long ago each member was heard here.
    #[must_use]
    pub fn heard_ago(&self, now: Moment) -> BTreeMap<WorkerId, Duration> {
        self.members.heard_ago(now)
    }

    /// What the run waits for, as control knows it, the longest first; the pulls that shards hold are theirs to tell.
    #[must_use]
    pub fn waits(&self, now: Moment) -> Vec<Waiting> {
        if self.ended.is_some() {
            return Vec::new();
        }
        let (servers, places) = (self.server_rows(now).0, self.place_rows(now));
        let quiet = quiet(self.settings.lease);
        let workers = self.workers_at_work();
        let of_cluster = of_cluster(&servers, &places, &workers, quiet);
        let of_run = self.wait_for_workers(now).into_iter().chain(self.wait_for_checkpoint(now, quiet));
        merged(of_run.chain(self.wait_for_coordinator(now)).chain(of_cluster))
    }

    /// The workers that train, with their clocks: each needs every shard for its next step.
    fn workers_at_work(&self) -> Vec<(WorkerId, Clock)> {
        let Some(coordinator) = self.coordinator.as_ref().filter(|_| self.started) else { return Vec::new() };
        let here = self.members.ever_ids().filter(|worker| self.members.is_registered(*worker));
        here.filter_map(|worker| Some((worker, coordinator.clock_of(worker)?))).collect()
    }

    /// The coordinator of another server, when it has answered nothing for longer than it may be quiet.
    fn wait_for_coordinator(&self, now: Moment) -> Option<Waiting> {
        let silent = now.since(self.coordinator_heard);
        let is_silent = self.coordinator.is_none() && silent >= quiet(self.settings.lease);
        let server = self.settings.coordinator_at;
        let address = self.addresses.get(server.0 as usize).cloned().unwrap_or_default();
        is_silent.then_some(Waiting { wait: Wait::Coordinator { server, address, silent }, since: silent })
    }

    /// A store that hangs says nothing: without these the run would have no end and no reason.
    fn wait_for_checkpoint(&self, now: Moment, quiet: Duration) -> Vec<Waiting> {
        let (Some(cluster), Some(coordinator)) = (self.cluster(), &self.coordinator) else {
            return Vec::new();
        };
        cluster.checkpoint_waits(now, quiet, coordinator.behind(), || coordinator.is_reported())
    }

    fn wait_for_workers(&self, now: Moment) -> Option<Waiting> {
        let coordinator = self.coordinator.as_ref()?;
        if !self.started {
            let since = now.since(self.began);
            let are_all_here = coordinator.asking() >= self.settings.workers;
            if are_all_here && self.cluster().is_some_and(|cluster| !cluster.has_copies()) {
                // The rows of the shards say what is waited for.
                return None;
            }
            let here = self.members.registered();
            let gathers = here >= self.least() && here < self.settings.workers;
            let wait = if gathers && coordinator.asking() >= self.least() {
                Wait::Gathering { here, wanted: self.settings.workers, left: self.gathers_for(now) }
            } else {
                self.too_few(self.least(), (0..self.settings.workers).map(WorkerId))
            };
            return Some(Waiting { wait, since });
        }
        if coordinator.is_at_the_end() {
            let wait = Wait::NobodyLeft { batches: 0 };
            return self.is_left().then_some(Waiting { wait, since: Duration::ZERO });
        }
        if let Some((generation, missing, since)) =
            coordinator.groups.as_ref().and_then(|groups| groups.wait(now))
        {
            return Some(Waiting { wait: Wait::Regrouping { generation, missing }, since });
        }
        if let (Some(since), Some(least)) = (self.too_few_since, self.settings.min_workers) {
            let wait = self.too_few(least, self.members.ever_ids());
            return Some(Waiting { wait, since: now.since(since) });
        }
        let wait = Wait::NobodyLeft { batches: coordinator.batches_left() };
        self.members.is_empty().then_some(Waiting { wait, since: Duration::ZERO })
    }

    fn too_few(&self, needs: u32, ids: impl Iterator<Item = WorkerId>) -> Wait {
        let (here, missing): (Vec<_>, Vec<_>) = ids.partition(|worker| self.members.is_registered(*worker));
        let count = (needs as usize).saturating_sub(here.len()).min(IDS_MAX);
        let is_least = self.settings.min_workers.is_some();
        Wait::Workers { here, needs, is_least, missing: missing.into_iter().take(count).collect() }
    }

    /// The servers, those with trouble first, and how many there are beyond them.
    fn server_rows(&self, now: Moment) -> (Vec<slackline_core::wire::ServerRow>, u32) {
        let Some(cluster) = self.cluster() else { return (Vec::new(), 0) };
        let row = |view: ServerView| {
            let address = self.addresses.get(view.server.0 as usize).cloned().or_else(|| {
                let session = self.sessions.values().find(|peer| peer.server == Some(view.server));
                session.map(|peer| peer.address.clone())
            });
            slackline_core::wire::ServerRow {
                server: view.server,
                address: cut(address.unwrap_or_default(), ADDRESS_BYTES_MAX),
                boot: view.boot,
                // This server has heard itself just now.
                heard_ms: if view.server == self.settings.server {
                    Some(0)
                } else {
                    view.heard.map(|heard| milliseconds(now.since(heard)))
                },
                is_alive: view.is_live,
                primaries: view.primaries,
                backups: view.backups,
                trouble: cut(view.trouble.unwrap_or_default(), slackline_core::limits::TROUBLE_BYTES_MAX),
            }
        };
        let mut all: Vec<_> = cluster.server_views().into_iter().map(row).collect();
        let hidden = all.len().saturating_sub(SERVER_ROWS_MAX) as u32;
        all.sort_by_key(|row| (row.is_alive && row.trouble.shown().is_empty(), row.server));
        all.truncate(SERVER_ROWS_MAX);
        all.sort_by_key(|row| row.server);
        (all, hidden)
    }

    /// The shards that lack something, the longest first.
    fn place_rows(&self, now: Moment) -> Vec<slackline_core::wire::PlaceRow> {
        let lacks = self.cluster().map(Cluster::lacks).unwrap_or_default();
        let row = |PlaceLack { place, lack }: PlaceLack| {
            let known = self.lacks.0.get(&place.shard).filter(|(before, _)| *before == lack);
            slackline_core::wire::PlaceRow {
                shard: place.shard,
                generation: place.generation,
                primary: place.primary,
                lack,
                since_ms: known.map_or(0, |(_, since)| milliseconds(now.since(*since))),
            }
        };
        let mut all: Vec<_> = lacks.into_iter().map(row).collect();
        all.sort_by_key(|row| (std::cmp::Reverse(row.since_ms), row.shard));
        all.truncate(PLACE_ROWS_MAX);
        all
    }

    /// The status without the shards' rows and the pulls that they hold; those are filled in by whoever owns the shards.
    #[must_use]
    pub fn status(&self, now: Moment) -> Status {
        let clock = |worker| self.coordinator.as_ref().and_then(|coordinator| coordinator.clock_of(worker));
        let (members, members_hidden) = self.members.rows(now, STATUS_ROWS_MAX, clock, |session| {
            self.sessions.get(&session).map_or_else(String::new, |peer| peer.address.clone())
        });
        let (servers, servers_hidden) = self.server_rows(now);
        Status {
            server: self.settings.server,
            phase: self.phase(now),
            progress: self.record().map(|record| record.progress(now)),
            members,
            members_hidden,
            held: Vec::new(),
            shards: Vec::new(),
            refused: self.refused,
            servers,
            servers_hidden,
            places: self.place_rows(now),
            waits: rows(&self.waits(now)),
        }
    }
}
