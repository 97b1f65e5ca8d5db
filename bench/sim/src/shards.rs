//! The shell of a shard: its owner's queue, and what its answers become.

use std::sync::Arc;

use slackline_core::ids::{Moment, SessionId, ShardId};
use slackline_core::wire::{PushOutcome, Served, ToPeer, TransferHeader};
use slackline_server_core::shard::Push;
use slackline_server_core::{Shard, ShardEffect, ShardEvent, ShardSettings};

use crate::links::duration;
use crate::network::Cargo;
use crate::world::{Happening, World};

/// Buffers for gradients that a shard keeps for reuse.
const SPARE_MAX: usize = 64;

/// One shard with its owner.
pub(crate) struct ShardSlot {
    shard: Shard,
    /// The boot of its server: what was meant for a former process is void.
    boot: u64,
    /// Until when its owner works on what it has taken.
    busy_until: Moment,
    spare: Vec<Vec<f32>>,
    /// Gated pulls served whose pushes are not answered.
    in_flight: u64,
    /// The tick that was asked for last.
    tick: Option<Moment>,
}

impl ShardSlot {
    pub(crate) fn new(settings: ShardSettings, boot: u64) -> Self {
        let shard = Shard::new(settings);
        Self { shard, boot, busy_until: Moment(0), spare: Vec::new(), in_flight: 0, tick: None }
    }

    /// A buffer of the shard's length; what is in it has no meaning.
    pub(crate) fn buffer(&mut self) -> Vec<f32> {
        self.spare.pop().unwrap_or_else(|| vec![0.0; self.shard.keys().len as usize])
    }
}

impl World {
    /// Puts an event before a shard. Its owner takes one after another, and a gradient takes it time.
    pub(crate) fn put_before(&mut self, id: ShardId, event: ShardEvent) {
        let now = self.now();
        let Some(slot) = &mut self.shards[id.0 as usize] else { return };
        let boot = slot.boot;
        if self.plan.apply_s > 0.0 {
            let has_gradient = matches!(&event, ShardEvent::Push(push) if push.gradient.is_some());
            let seconds = self.plan.apply_s * self.plan.shard_bytes[id.0 as usize] as f64;
            let begins = slot.busy_until.max(now);
            let ends = if has_gradient { begins.after(duration(seconds)) } else { begins };
            slot.busy_until = ends;
            if ends > now {
                self.agenda.at(ends, Happening::AtShard { shard: id, boot, event: Box::new(event) });
                return;
            }
        }
        self.at_shard(id, boot, event);
    }

    /// A shard takes an event.
    pub(crate) fn at_shard(&mut self, id: ShardId, boot: u64, event: ShardEvent) {
        let now = self.now();
        let Some(slot) = self.shards[id.0 as usize].as_mut().filter(|slot| slot.boot == boot) else { return };
        self.counts.events += 1;
        let mut effects = std::mem::take(&mut self.scratch.shard);
        slot.shard.handle(now, event, &mut effects);
        let deadline = slot.shard.next_deadline().filter(|deadline| slot.tick != Some(*deadline));
        if let Some(deadline) = deadline {
            slot.tick = Some(deadline);
            self.agenda.at(deadline, Happening::ShardTick { shard: id, boot, due: deadline });
        }
        for effect in effects.drain(..) {
            self.perform_shard(id, boot, effect);
        }
        self.scratch.shard = effects;
    }

    /// The clock of a shard. One that is not due any more is void.
    pub(crate) fn shard_tick(&mut self, id: ShardId, boot: u64, due: Moment) {
        let Some(slot) = self.shards[id.0 as usize].as_mut().filter(|slot| slot.tick == Some(due)) else {
            return;
        };
        slot.tick = None;
        if slot.shard.next_deadline() == Some(due) {
            self.at_shard(id, boot, ShardEvent::Tick);
        }
    }

    fn perform_shard(&mut self, id: ShardId, boot: u64, effect: ShardEffect) {
        let server = self.plan.server_of(id);
        match effect {
            ShardEffect::Answer { session, pushed } => {
                if let Some(slot) = self.shards[id.0 as usize].as_mut().filter(|_| !pushed.duplicate) {
                    slot.in_flight = slot.in_flight.saturating_sub(1);
                    let is_applied = matches!(pushed.outcome, PushOutcome::Applied { .. });
                    self.counts.in_flight += if is_applied { slot.in_flight } else { 0 };
                }
                self.say(server, session, ToPeer::Pushed(pushed));
            }
            ShardEffect::Serve { session, request, values, served, .. } => {
                self.serve(server, (id, session, request), served, values);
            }
            ShardEffect::Overtaken { session, open } => self.say(server, session, ToPeer::Overtaken { open }),
            ShardEffect::HasValues => {
                let now = self.now();
                self.agenda.at(now, Happening::HasValues { shard: id, boot });
            }
            ShardEffect::Recycle(buffer) => {
                if let Some(slot) = &mut self.shards[id.0 as usize]
                    && slot.spare.len() < SPARE_MAX
                {
                    slot.spare.push(buffer);
                }
            }
            ShardEffect::Notice(_) => {}
        }
    }

    fn serve(
        &mut self,
        server: usize,
        (shard, session, request): (ShardId, SessionId, u64),
        served: Served,
        values: Arc<Vec<f32>>,
    ) {
        let Some(connection) = self.connection_of(server, session) else { return };
        let process = &self.processes[self.connections[connection].process];
        if let Some(slot) = &mut self.shards[shard.0 as usize]
            && process.expects(shard, request)
        {
            slot.in_flight += 1;
        }
        self.carry(connection, Cargo::Values { shard, request, served, values });
    }

    /// A gradient is here: straight to the shard, past control.
    pub(crate) fn push_arrives(&mut self, session: SessionId, header: &TransferHeader, gradient: Vec<f32>) {
        let push = Push {
            session,
            worker: header.worker,
            incarnation: header.incarnation,
            sequence: header.sequence,
            clock: header.clock,
            pulled: header.version,
            batch: header.batch,
            samples: header.samples,
            gradient: Some(gradient),
        };
        self.put_before(header.shard, ShardEvent::Push(push));
    }

    /// Initial values are here. Every worker brings them, and all but the first are thrown away unseen.
    pub(crate) fn initial_arrives(&mut self, shard: ShardId) {
        let is_first =
            self.shards[shard.0 as usize].as_ref().is_some_and(|slot| slot.shard.values().is_none());
        if is_first {
            let values = self.engine.initial(self.plan.partition.range(shard)).to_vec();
            self.put_before(shard, ShardEvent::Initialize(values));
        }
    }
}
