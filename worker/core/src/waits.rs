//! Every wait has a name: what the worker waits for, from which server, since when.

use std::collections::BTreeMap;

use slackline_core::ids::{Moment, ServerId, ShardId};

use crate::effect::Effect;
use crate::evaluation::Evaluation;
use crate::iteration::OpenPull;
use crate::notice::{Notice, WaitKind};
use crate::session::State;
use crate::worker::{COORDINATOR, Worker};

type Waits = BTreeMap<(ServerId, WaitKind), Wait>;

#[derive(Clone, Debug)]
struct Wait {
    since: Moment,
    shards: Vec<ShardId>,
}

/// When each wait was last reported.
pub(crate) type Reported = BTreeMap<(ServerId, WaitKind), Moment>;

fn add(waits: &mut Waits, key: (ServerId, WaitKind), since: Moment, shard: Option<ShardId>) {
    let wait = waits.entry(key).or_insert(Wait { since, shards: Vec::new() });
    wait.since = wait.since.min(since);
    wait.shards.extend(shard);
}

impl Worker {
    /// Reports the waits that have lasted, each once an interval.
    pub(crate) fn report_waits(&mut self, effects: &mut Vec<Effect>) {
        let waits = self.waits();
        self.waits_reported.retain(|key, _| waits.contains_key(key));
        for ((server, what), Wait { since, shards }) in waits {
            let last = self.waits_reported.get(&(server, what)).copied().unwrap_or(since).max(since);
            if self.now.since(last) >= self.settings.wait_report {
                self.waits_reported.insert((server, what), self.now);
                let waited = self.now.since(since);
                effects.push(Effect::Notice(Notice::Waiting { what, server, shards, waited }));
            }
        }
    }

    /// When the next wait is to be reported.
    pub(crate) fn wait_deadline(&self) -> Option<Moment> {
        let next = |(key, wait): (&(ServerId, WaitKind), &Wait)| {
            let last = self.waits_reported.get(key).copied().unwrap_or(wait.since).max(wait.since);
            last.after(self.settings.wait_report)
        };
        self.waits().iter().map(next).min()
    }

    fn waits(&self) -> Waits {
        let mut waits = Waits::new();
        if self.leaving.is_some() {
            return waits;
        }
        for (server, session) in &self.sessions {
            let kind = match session.state {
                State::Backoff { .. } | State::Connecting | State::Greeting => WaitKind::Connection,
                State::Joining => WaitKind::Join,
                State::Registering => WaitKind::Registration,
                State::Closed | State::Registered => continue,
            };
            add(&mut waits, (*server, kind), session.since, None);
        }
        if let Some(iteration) = &self.cycle.iteration {
            self.add_pulls(&mut waits, WaitKind::Pulls, &iteration.pulls);
        }
        if let Evaluation::Pulling { pulls, .. } = &self.evaluation {
            self.add_pulls(&mut waits, WaitKind::Snapshots, pulls);
        }
        if let Some(pushing) = &self.cycle.pushing {
            for shard in pushing.unanswered.keys() {
                self.add_shard(&mut waits, WaitKind::Answers, *shard, pushing.since);
            }
        }
        if let Some(since) = self.asking.quiet_since
            && self.is_registered(COORDINATOR)
        {
            add(&mut waits, (COORDINATOR, WaitKind::Work), since, None);
        }
        waits
    }

    fn add_pulls(&self, waits: &mut Waits, kind: WaitKind, pulls: &BTreeMap<ShardId, OpenPull>) {
        for (shard, pull) in pulls {
            if pull.served.is_none() {
                self.add_shard(waits, kind, *shard, pull.since);
            }
        }
    }

    /// A shard is only named when its server can be asked; otherwise the connection is what is waited for.
    fn add_shard(&self, waits: &mut Waits, kind: WaitKind, shard: ShardId, since: Moment) {
        if let Some((server, _)) = self.shards.get(&shard)
            && self.is_registered(*server)
        {
            add(waits, (*server, kind), since, Some(shard));
        }
    }
}
