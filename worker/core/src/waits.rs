//! Every wait has a name: what the worker waits for, from which server, since when.

use std::collections::BTreeMap;

use slackline_core::ids::{BatchIndex, Generation, Moment, ServerId, ShardId};

use crate::effect::Effect;
use crate::evaluation::Evaluation;
use crate::iteration::OpenPull;
use crate::notice::{Notice, PeerWait, WaitKind};
use crate::session::{Session, State};
use crate::worker::Worker;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// A server.
    Server(ServerId, WaitKind),
    /// The gradient of a batch, which the shell computes.
    Gradient(BatchIndex),
    /// Other workers of an allreduce.
    Peers(Generation, PeerWait),
}

type Waits = BTreeMap<Subject, Wait>;

#[derive(Clone, Debug)]
struct Wait {
    since: Moment,
    shards: Vec<ShardId>,
}

/// When each wait was last reported.
pub(crate) type Reported = BTreeMap<Subject, Moment>;

fn add(waits: &mut Waits, subject: Subject, since: Moment, shard: Option<ShardId>) {
    let wait = waits.entry(subject).or_insert(Wait { since, shards: Vec::new() });
    wait.since = wait.since.min(since);
    wait.shards.extend(shard);
}

/// What a session waits for before it speaks for the worker, and since when.
fn waited_for(session: &Session) -> Option<(WaitKind, Moment)> {
    let kind = match session.state {
        State::Closed | State::Registered => return None,
        _ if session.unready.is_some() => WaitKind::Readiness,
        State::Backoff { .. } | State::Connecting | State::Greeting => WaitKind::Connection,
        State::Joining => WaitKind::Join,
        State::Registering => WaitKind::Registration,
    };
    Some((kind, session.unready.unwrap_or(session.since)))
}

impl Worker {
    /// Reports the waits that have lasted, each once an interval.
    pub(crate) fn report_waits(&mut self, effects: &mut Vec<Effect>) {
        let waits = self.waits();
        self.waits_reported.retain(|key, _| waits.contains_key(key));
        for (subject, Wait { since, shards }) in waits {
            let last = self.waits_reported.get(&subject).copied().unwrap_or(since).max(since);
            if self.now.since(last) >= self.settings.wait_report {
                self.waits_reported.insert(subject, self.now);
                let waited = self.now.since(since);
                effects.push(Effect::Notice(match subject {
                    Subject::Server(server, what) => {
                        let heard = self.sessions.get(&server).filter(|session| session.is_registered());
                        let heard = heard.map(|session| session.silence(self.now));
                        Notice::Waiting { what, server, shards, waited, heard }
                    }
                    Subject::Gradient(batch) => Notice::Computing { batch, lasted: waited },
                    Subject::Peers(generation, what) => Notice::WaitingForPeers { what, generation, waited },
                }));
            }
        }
    }

    /// When the next wait is to be reported.
    pub(crate) fn wait_deadline(&self) -> Option<Moment> {
        let next = |(subject, wait): (&Subject, &Wait)| {
            let last = self.waits_reported.get(subject).copied().unwrap_or(wait.since).max(wait.since);
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
            let Some((kind, since)) = waited_for(session).filter(|_| self.needs(*server)) else { continue };
            add(&mut waits, Subject::Server(*server, kind), since, None);
            // All of them wait, whatever they are wanted for.
            for shard in self.shards_on(*server) {
                add(&mut waits, Subject::Server(*server, kind), since, Some(shard));
            }
        }
        if let Some((batch, since)) = self.cycle.computing() {
            add(&mut waits, Subject::Gradient(batch), since, None);
        }
        if let Some(iteration) = &self.cycle.iteration {
            self.add_pulls(&mut waits, WaitKind::Pulls, &iteration.pulls);
        }
        if let Evaluation::Pulling { pulls, .. } = &self.evaluation {
            self.add_pulls(&mut waits, WaitKind::Snapshots, pulls);
        }
        if let Some(pushing) = &self.cycle.pushing {
            for shard in &pushing.unanswered {
                let is_staged = pushing.staged.contains(shard) && !pushing.is_committed;
                let kind = if is_staged { WaitKind::Steps } else { WaitKind::Answers };
                self.add_shard(&mut waits, kind, *shard, pushing.since);
            }
        }
        self.add_group(&mut waits);
        if let Some(since) = self.asking.quiet_since
            && self.is_registered(self.settings.coordinator)
        {
            add(&mut waits, Subject::Server(self.settings.coordinator, WaitKind::Work), since, None);
        }
        waits
    }

    fn add_group(&self, waits: &mut Waits) {
        if let Some((unit, since)) = self.group.computing() {
            add(waits, Subject::Gradient(BatchIndex(unit)), since, None);
        }
        if let Some((generation, what, since)) = self.group.waits_for_peers() {
            add(waits, Subject::Peers(generation, what), since, None);
        }
        if let Some(since) = self.group.waits_for_group()
            && self.is_registered(self.settings.coordinator)
        {
            add(waits, Subject::Server(self.settings.coordinator, WaitKind::Group), since, None);
        }
    }

    fn add_pulls(&self, waits: &mut Waits, kind: WaitKind, pulls: &BTreeMap<ShardId, OpenPull>) {
        for (shard, pull) in pulls {
            if pull.served.is_none() {
                let since = if kind == WaitKind::Pulls { self.waits_since(pull) } else { pull.since };
                self.add_shard(waits, kind, *shard, since);
            }
        }
    }

    /// A shard is only named when its server can be asked; otherwise the connection is what is waited for.
    fn add_shard(&self, waits: &mut Waits, kind: WaitKind, shard: ShardId, since: Moment) {
        if let Some(server) = self.ready_server_of(shard) {
            add(waits, Subject::Server(server, kind), since, Some(shard));
        }
    }
}
