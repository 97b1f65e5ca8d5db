//! Those who only look on: observers that come and go, ask how things stand and pull snapshots, when they like.
//!
//! Nothing that they do may change anything. So the harness gives them what no other can feel either: chance of their own, and places beside
//! those in which the others wait; and a run with them must be, to the last bit and moment, the run without them.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::ids::{Generation, SessionId, ShardId};
use slackline_core::role::Role;
use slackline_core::wire::{Pull, PullKind, Served, ToPeer, ToServer, encode};
use slackline_server_core::{ControlEffect, ControlEvent, HostEvent, ShardEvent};

use super::agenda::Happening;
use super::chance::Chance;
use super::sight::{Verdict, holds};
use super::world::World;

const LAW: &str = "observers change nothing";

/// Longest pause between two things that an observer does, in microseconds.
const PAUSE_MAX: u64 = 300_000;

/// An observer's session with a server.
#[derive(Clone, Copy, Debug)]
struct Session {
    /// Of the server's process.
    boot: u64,
    id: SessionId,
    /// The server has ended it.
    is_over: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Observers {
    chance: Chance,
    /// By observer and server.
    sessions: BTreeMap<(usize, usize), Session>,
    requests: u64,
}

impl Observers {
    pub(crate) fn new(seed: u64) -> Self {
        let chance = Chance::new(seed.wrapping_mul(0xD1B5_4A32_D192_ED03));
        Self { chance, sessions: BTreeMap::new(), requests: 0 }
    }
}

impl World {
    /// Observers begin to look.
    pub(crate) fn open_observers(&mut self) {
        for observer in 0..self.scenario.observers as usize {
            self.look_again(observer);
        }
    }

    fn look_again(&mut self, observer: usize) {
        let chance = &mut self.observers.chance;
        let when = self.now.after(chance.micros(1_000, PAUSE_MAX));
        let server = chance.between(0, self.servers.len() as u64 - 1) as usize;
        self.agenda.at(when, Happening::Look { observer, server });
    }

    /// An observer does something at a server.
    pub(crate) fn look(&mut self, observer: usize, server: usize) -> Verdict {
        if self.ends.iter().all(Option::is_some) {
            return Ok(());
        }
        self.look_again(observer);
        if !self.servers[server].up || self.ends[server].is_some() {
            return Ok(());
        }
        let boot = self.servers[server].boot;
        let session = self.observers.sessions.get(&(observer, server)).copied();
        let Some(Session { id: session, is_over, .. }) = session.filter(|session| session.boot == boot)
        else {
            let id = self.servers[server].next_session();
            let (role, address) = (Role::Observer, format!("observer {observer}"));
            self.observers.sessions.insert((observer, server), Session { boot, id, is_over: false });
            return self.observer_event(server, ControlEvent::Opened { session: id, role, address });
        };
        let message = match self.observers.chance.between(0, 9) {
            _ if is_over => None,
            0 => None,
            1..=3 => Some(ToServer::Status),
            _ => {
                self.observers.requests += 1;
                // Of what an observer says it has, nothing is known.
                let (request, kind) = (self.observers.requests, PullKind::Snapshot);
                let have = request - 1;
                let shard = self.shard_to_look_at(server);
                Some(ToServer::Pull(Pull { shard, request, have, kind }))
            }
        };
        match message {
            Some(message) => self.observer_event(server, ControlEvent::Message { session, message }),
            None => {
                self.observers.sessions.remove(&(observer, server));
                self.observer_event(server, ControlEvent::Closed { session })
            }
        }
    }

    /// Mostly one that the server answers for, as it was told; seldom any, or one of no run.
    fn shard_to_look_at(&mut self, server: usize) -> ShardId {
        let places = self.servers[server].places.values();
        let led: Vec<ShardId> =
            places.filter(|place| place.primary.0 as usize == server).map(|place| place.shard).collect();
        let chance = &mut self.observers.chance;
        let of_all = ShardId(chance.between(0, self.partition.shards().count() as u64) as u32);
        if chance.happens(100) { of_all } else { chance.pick(&led).unwrap_or(of_all) }
    }

    /// Control takes an event of an observer, of which nothing is kept and from which nothing follows but answers.
    fn observer_event(&mut self, server: usize, event: ControlEvent) -> Verdict {
        let now = self.time_of(server);
        if self.trace.is_on() {
            self.trace.line(self.now, format_args!("server {server} < {event:?}"));
        }
        let mut effects = Vec::new();
        let control = &mut self.servers[server].control;
        let is_kept = control.is_kept(now, &event);
        holds(LAW, !is_kept, || format!("server {server} keeps {event:?}"))?;
        let (ControlEvent::Opened { session, .. }
        | ControlEvent::Message { session, .. }
        | ControlEvent::Closed { session }) = event
        else {
            return Ok(());
        };
        control.handle(now, event, &mut effects);
        control.check_invariants();
        let odd = effects.iter().find(|effect| !is_answer(effect, session));
        holds(LAW, odd.is_none(), || format!("server {server} does {odd:?} for {session}"))?;
        // What is answered leaves when everything has that was decided before.
        if let Some(last) = self.servers[server].withheld.back_mut() {
            last.extend(effects);
            return Ok(());
        }
        self.perform_all(server, effects)
    }

    /// How things stand, as control sees it.
    pub(crate) fn show_status(&mut self, server: usize) -> Verdict {
        let control = &self.servers[server].control;
        let status = control.status(control.moment(self.time_of(server)));
        self.counts.statuses += 1;
        let message = encode(&ToPeer::Status(Box::new(status)));
        holds("a status can be sent", message.is_ok(), || format!("server {server}: {:?}", message.err()))
    }

    /// A server ends a session; if it is an observer's, that one closes it when it comes by again.
    pub(crate) fn turn_observer_out(&mut self, server: usize, session: SessionId) {
        let boot = self.servers[server].boot;
        let of_it = |((_, at), known): &(&(usize, usize), &mut Session)| {
            *at == server && (known.boot, known.id) == (boot, session)
        };
        if let Some((_, known)) = self.observers.sessions.iter_mut().find(of_it) {
            known.is_over = true;
        }
    }

    /// Puts an observer's pull into a shard's inbox, at whatever place.
    pub(crate) fn put_look(&mut self, server: usize, shard: ShardId, event: ShardEvent) {
        let when = self.now.after(self.observers.chance.micros(1, 300));
        let (boot, event) = (self.servers[server].boot, HostEvent::Shard(event));
        self.agenda.at(when, Happening::AtHost { server, boot, shard, event, origin: None });
    }

    /// An observer's pull comes to a host. While that takes nothing, the last of each session waits beside what the workers want.
    pub(crate) fn look_at_host(&mut self, server: usize, shard: ShardId, event: ShardEvent) -> Verdict {
        let state = &mut self.servers[server];
        let takes = state.hosts.get(&shard).is_some_and(slackline_server_core::Host::takes_events);
        if takes {
            return self.host_takes(server, shard, HostEvent::Shard(event), None);
        }
        if let ShardEvent::Pull { session, .. } = event {
            state.looks.entry(shard).or_default().insert(session, event);
        }
        Ok(())
    }

    /// The host of a shard takes events again: also what observers want.
    pub(crate) fn take_looks(&mut self, server: usize, shard: ShardId) -> Verdict {
        let waiting = self.servers[server].looks.remove(&shard).unwrap_or_default();
        waiting
            .into_values()
            .try_for_each(|event| self.host_takes(server, shard, HostEvent::Shard(event), None))
    }

    /// An observer is served: by whoever answers for the shard, what is there.
    pub(crate) fn observer_served(
        &mut self,
        (server, shard, generation): (usize, ShardId, Generation),
        values: &Arc<Vec<f32>>,
        served: &Served,
    ) -> Verdict {
        self.counts.looks += 1;
        let boot = self.servers[server].boot;
        let Some(lineage) = self.lineages.get(&shard) else { return Ok(()) };
        let is_present =
            lineage.leader == Some((server, boot, generation)) && lineage.twin.version() == served.version;
        let same = lineage.twin.values() == Some(values.as_slice());
        holds("observers see what is there", same || !is_present, || {
            format!("server {server} shows {shard} at {} as {values:?}", served.version)
        })
    }
}

/// Whether an effect is an answer to somebody who looks on over this session.
fn is_answer(effect: &ControlEffect, session: SessionId) -> bool {
    match effect {
        ControlEffect::Send { session: to, .. }
        | ControlEffect::Close { session: to }
        | ControlEffect::Status { session: to } => *to == session,
        ControlEffect::Shard { event, .. } => !event.changes(),
        ControlEffect::Notice(_) => true,
        _ => false,
    }
}
