//! The shell of the shards: on each server a host for every shard that concerns it, its owner's queue, and what its effects become.

use std::collections::VecDeque;

use slackline_core::codec::Payload;
use slackline_core::ids::{Clock, Generation, Incarnation, Moment, SessionId, ShardId, WorkerId};
use slackline_core::wire::{Place, PushOutcome, Served, ToPeer, TransferHeader};
use slackline_server_core::replica::Role;
use slackline_server_core::shard::{Push, Snapshot};
use slackline_server_core::{
    ControlEvent, Host, HostEffect, HostEvent, HostSettings, ShardEffect, ShardEvent,
};

use crate::links::duration;
use crate::network::Cargo;
use crate::world::{Happening, Over, World};

/// Buffers for gradients that a host keeps for reuse.
const SPARE_MAX: usize = 64;

/// A shard on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) server: u32,
    pub(crate) shard: ShardId,
}

impl At {
    pub(crate) const fn new(server: usize, shard: ShardId) -> Self {
        Self { server: server as u32, shard }
    }

    pub(crate) const fn server(self) -> usize {
        self.server as usize
    }
}

/// One host with its owner.
pub(crate) struct HostSlot {
    pub(crate) shard: ShardId,
    host: Host,
    /// As control has told it last.
    pub(crate) place: Option<Place>,
    /// Until when its owner works on what it has taken.
    busy_until: Moment,
    /// What it could not take yet.
    waiting: VecDeque<ShardEvent>,
    spare: Vec<Vec<f32>>,
    /// Gated pulls served whose pushes are not answered.
    in_flight: u64,
    /// The tick that was asked for last.
    tick: Option<Moment>,
    /// The feed to its backup, and the last one of its primary.
    pub(crate) feed: Option<usize>,
    pub(crate) fed_by: Option<usize>,
}

impl HostSlot {
    fn new(settings: HostSettings) -> Self {
        Self {
            shard: settings.shard.id,
            host: Host::new(settings),
            place: None,
            busy_until: Moment(0),
            waiting: VecDeque::new(),
            spare: Vec::new(),
            in_flight: 0,
            tick: None,
            feed: None,
            fed_by: None,
        }
    }

    /// The generation in which it leads, as it was told.
    pub(crate) fn leads(&self, server: usize) -> Option<Generation> {
        self.place.filter(|place| place.primary.0 as usize == server).map(|place| place.generation)
    }
}

impl World {
    /// The host of a shard on a server.
    pub(crate) fn slot(&mut self, at: At) -> Option<&mut HostSlot> {
        let hosts = &mut self.servers[at.server()].hosts;
        let place = hosts.binary_search_by_key(&at.shard, |slot| slot.shard).ok()?;
        hosts.get_mut(place)
    }

    /// Tells a host its place, and sets it up when it is the first.
    pub(crate) fn place(
        &mut self,
        at: At,
        place: Option<Place>,
        members: Vec<(WorkerId, Incarnation, Clock)>,
        started: bool,
    ) {
        let hosts = &mut self.servers[at.server()].hosts;
        if let (Err(free), Some(_)) = (hosts.binary_search_by_key(&at.shard, |slot| slot.shard), place) {
            let Some(settings) = self.plan.host_settings(at) else { return };
            hosts.insert(free, HostSlot::new(settings));
        }
        let Some(slot) = self.slot(at) else { return };
        let before = slot.leads(at.server());
        slot.place = place;
        let after = slot.leads(at.server()).filter(|generation| Some(*generation) != before);
        // Elsewhere the state that it begins with says it.
        let goes_on = slot.host.role() == Role::Leading && place.is_some_and(|place| !place.is_loaded());
        if let Some(generation) = after.filter(|_| goes_on) {
            self.note_term(at, generation);
        }
        self.host_event(at, HostEvent::Place { place, members, started });
    }

    /// A buffer of a shard's length; what is in it has no meaning.
    pub(crate) fn buffer(&mut self, at: At) -> Vec<f32> {
        let keys = self.plan.partition.range(at.shard).len as usize;
        let spare = self.slot(at).and_then(|slot| slot.spare.pop());
        spare.unwrap_or_else(|| vec![0.0; keys])
    }

    /// Puts an event before a shard. Its owner takes one after another, and a gradient takes it time.
    pub(crate) fn put_before(&mut self, at: At, event: ShardEvent) {
        let now = self.now();
        let boot = self.servers[at.server()].boot;
        if self.plan.apply_s > 0.0 {
            let has_gradient = matches!(&event, ShardEvent::Push(push) if push.gradient.is_some());
            let seconds = self.plan.apply_s * self.plan.shard_bytes[at.shard.0 as usize] as f64;
            let Some(slot) = self.slot(at) else { return };
            let begins = slot.busy_until.max(now);
            let ends = if has_gradient { begins.after(duration(seconds)) } else { begins };
            slot.busy_until = ends;
            if ends > now {
                self.agenda.at(ends, Happening::AtShard { at, boot, event: Box::new(event) });
                return;
            }
        }
        self.at_shard(at, event);
    }

    /// Whether a server is still the process that something was meant for.
    pub(crate) fn is_process(&self, server: usize, boot: u64) -> bool {
        self.servers[server].up && self.servers[server].boot == boot
    }

    /// A shard takes an event, as soon as it can.
    pub(crate) fn at_shard(&mut self, at: At, event: ShardEvent) {
        let Some(slot) = self.slot(at) else { return };
        if slot.waiting.is_empty() && slot.host.takes_events() {
            self.host_event(at, HostEvent::Shard(event));
        } else {
            slot.waiting.push_back(event);
        }
    }

    /// A host takes an event, and then what it could not take before.
    pub(crate) fn host_event(&mut self, at: At, event: HostEvent) {
        self.host_takes(at, event);
        loop {
            let Some(slot) = self.slot(at).filter(|slot| !slot.waiting.is_empty()) else { return };
            let next = if slot.host.takes_events() { slot.waiting.pop_front() } else { None };
            let Some(next) = next else { return };
            self.host_takes(at, HostEvent::Shard(next));
        }
    }

    fn host_takes(&mut self, at: At, event: HostEvent) {
        let now = self.now();
        let boot = self.servers[at.server()].boot;
        let mut effects = std::mem::take(&mut self.scratch.host);
        let Some(slot) = self.slot(at) else { return };
        slot.host.handle(now, event, &mut effects);
        let deadline = slot.host.next_deadline().filter(|deadline| slot.tick != Some(*deadline));
        if let Some(deadline) = deadline {
            slot.tick = Some(deadline);
            self.agenda.at(deadline, Happening::ShardTick { at, boot, due: deadline });
        }
        self.counts.events += 1;
        for effect in effects.drain(..) {
            self.perform_host(at, effect);
        }
        self.scratch.host = effects;
    }

    /// The clock of a shard. One that is not due any more is void.
    pub(crate) fn shard_tick(&mut self, at: At, due: Moment) {
        let Some(slot) = self.slot(at).filter(|slot| slot.tick == Some(due)) else { return };
        slot.tick = None;
        if slot.host.next_deadline() == Some(due) {
            self.host_event(at, HostEvent::Tick);
        }
    }

    fn perform_host(&mut self, at: At, effect: HostEffect) {
        let shard = at.shard;
        match effect {
            HostEffect::Shard(effect) => self.perform_shard(at, effect),
            HostEffect::OpenFeed { backup, generation } => self.open_feed(at, backup.0 as usize, generation),
            HostEffect::CloseFeed => self.close_feed(at),
            HostEffect::Feed(frame) => self.feed(at, frame),
            HostEffect::Hold { generation, index, hash } => self.hold(at, generation, index, hash),
            HostEffect::Write(frame) => self.write(at, frame),
            HostEffect::Load { place } => self.load_state(at, place),
            HostEffect::InStep { generation, backup } => {
                self.tell(at.server(), ControlEvent::InStep { shard, generation, backup });
            }
            HostEffect::Leads { generation, has_values, members } => {
                self.tell(at.server(), ControlEvent::Leads { shard, generation, has_values, members });
            }
            HostEffect::Restored { generation, version, clock } => {
                self.tell(at.server(), ControlEvent::Restored { shard, generation, version, clock });
            }
            HostEffect::NotRestored { generation, why } => {
                self.tell(at.server(), ControlEvent::NotRestored { shard, generation, why });
            }
            HostEffect::Differs { shard, index } => {
                let text =
                    format!("the copies of {shard} differ at entry {}: a fault of the program", index.0);
                self.over.get_or_insert(Over::Failed(text));
            }
        }
    }

    /// Control of a server hears something of its own parts, at this moment.
    pub(crate) fn tell(&mut self, server: usize, event: ControlEvent) {
        let (now, boot) = (self.now(), self.servers[server].boot);
        self.agenda.at(now, Happening::Told { server, boot, event: Box::new(event) });
    }

    fn perform_shard(&mut self, at: At, effect: ShardEffect) {
        let (server, shard) = (at.server(), at.shard);
        match effect {
            ShardEffect::Answer { session, pushed } => {
                if let Some(slot) = self.slot(at).filter(|_| !pushed.duplicate) {
                    slot.in_flight = slot.in_flight.saturating_sub(1);
                    let is_applied = matches!(pushed.outcome, PushOutcome::Applied { .. });
                    let in_flight = if is_applied { slot.in_flight } else { 0 };
                    self.counts.in_flight += in_flight;
                }
                self.say(server, session, ToPeer::Pushed(pushed));
            }
            ShardEffect::Serve { session, request, values, served, .. } => {
                self.serve(at, (session, request), served, values);
            }
            ShardEffect::Overtaken { session, open } => self.say(server, session, ToPeer::Overtaken { open }),
            ShardEffect::Staged { session, sequence } => {
                self.say(server, session, ToPeer::Staged { shard, sequence });
            }
            ShardEffect::Doubt(doubt) => self.tell(server, ControlEvent::Doubt(doubt)),
            ShardEffect::Cut { number, state } => self.save(at, number, *state),
            ShardEffect::CutMissed { number } => self.tell(server, ControlEvent::CutMissed { number, shard }),
            ShardEffect::HasValues => self.tell(server, ControlEvent::HasValues { shard }),
            ShardEffect::Recycle(buffer) => {
                let keys = self.plan.partition.range(shard).len;
                if let Some(slot) = self.slot(at)
                    && slot.spare.len() < SPARE_MAX
                    && buffer.len() as u64 == keys
                {
                    slot.spare.push(buffer);
                }
            }
            ShardEffect::Notice(_) => {}
        }
    }

    fn serve(&mut self, at: At, (session, request): (SessionId, u64), served: Served, values: Snapshot) {
        let Some(connection) = self.connection_of(at.server(), session) else { return };
        let process = &self.processes[self.connections[connection].process];
        if process.expects(at.shard, request)
            && let Some(slot) = self.slot(at)
        {
            slot.in_flight += 1;
        }
        self.carry(connection, Cargo::Values { shard: at.shard, request, served, values });
    }

    /// A gradient is here: straight to the shard, past control.
    pub(crate) fn push_arrives(
        &mut self,
        server: usize,
        session: SessionId,
        header: &TransferHeader,
        gradient: Payload,
    ) {
        let push = Push {
            session,
            worker: header.worker,
            incarnation: header.incarnation,
            sequence: header.sequence,
            clock: header.clock,
            pulled: header.version,
            batch: header.batch,
            samples: header.samples,
            reply: header.reply,
            have: header.have,
            gradient: Some(gradient),
        };
        self.put_before(At::new(server, header.shard), ShardEvent::Push(push));
    }

    /// Initial values are here. Every worker brings them, and all but the first are thrown away unseen.
    pub(crate) fn initial_arrives(&mut self, at: At) {
        let is_first =
            self.slot(at).and_then(|slot| slot.host.shard()).is_some_and(|shard| shard.values().is_none());
        if is_first {
            let values = self.engine.initial(self.plan.partition.range(at.shard)).to_vec();
            self.put_before(at, ShardEvent::Initialize(values));
        }
    }
}
