//! The shell of a server in the simulated world: its control, and its shards behind inboxes that keep their order.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, Moment, Sequence, ServerId, SessionId, ShardId, WorkerId,
};
use slackline_core::role::Role;
use slackline_core::wire::{Dtype, Served, Text, ToPeer, ToServer, TransferHeader, TransferKind};
use slackline_server_core::control::{CoordinatorSettings, End};
use slackline_server_core::shard::Push;
use slackline_server_core::{
    Control, ControlEffect, ControlEvent, ControlSettings, Notice, Shard, ShardEffect, ShardEvent,
    ShardSettings,
};

use super::agenda::Happening;
use super::network::Outward;
use super::scenario::Tamper;
use super::sight::{PushKey, Sight, Verdict, holds};
use super::world::World;

/// One server process.
pub(crate) struct Server {
    pub(crate) boot: u64,
    pub(crate) control: Control,
    pub(crate) shards: BTreeMap<ShardId, Shard>,
    /// When the last event of each shard's inbox is taken.
    inbox: BTreeMap<ShardId, Moment>,
    /// The connection of each session that is there.
    pub(crate) sessions: BTreeMap<SessionId, usize>,
    /// Whom each session spoke for.
    speakers: BTreeMap<SessionId, (WorkerId, Incarnation)>,
    session_last: SessionId,
    pub(crate) up: bool,
    pub(crate) end: Option<End>,
}

impl World {
    /// A server process that has just started.
    pub(crate) fn new_server(&self, index: usize, boot: u64) -> Server {
        let (scenario, id) = (&self.scenario, ServerId(index as u32));
        let layout = Arc::new(self.problem.layout().clone());
        let mut shards = BTreeMap::new();
        for (shard, keys) in self.partition.shards_on(id) {
            let settings = ShardSettings {
                id: shard,
                keys,
                layout: layout.clone(),
                policy: scenario.policy,
                delay: scenario.delay,
                optimizer: scenario.optimizer,
                workers: scenario.workers,
                batch: scenario.proportional.then_some(scenario.batch),
            };
            shards.insert(shard, Shard::new(settings));
        }
        let settings = ControlSettings {
            server: id,
            workers: scenario.workers,
            lease: scenario.lease,
            wait_report: scenario.lease * 5,
            layout_hash: layout.hash(),
            layout_text: layout.to_string(),
            config_hash: 1,
            boot,
            shards: shards.keys().copied().collect(),
            stop_on_bad_gradient: true,
            coordinator: (index == 0).then_some(CoordinatorSettings {
                sync: None,
                policy: scenario.policy,
                cut: scenario.cut(),
                blind_loss: 1.0,
                epochs: scenario.epochs,
                evaluate_every_epochs: scenario.evaluate_every_epochs,
            }),
        };
        Server {
            boot,
            control: Control::new(settings, self.now),
            shards,
            inbox: BTreeMap::new(),
            sessions: BTreeMap::new(),
            speakers: BTreeMap::new(),
            session_last: SessionId(0),
            up: true,
            end: None,
        }
    }

    /// The server's loop looks at the time.
    pub(crate) fn server_tick(&mut self, server: usize, boot: u64) -> Verdict {
        if !self.servers[server].up || self.servers[server].boot != boot {
            return Ok(());
        }
        let when = self.now.after(self.scenario.lease / 20);
        self.agenda.at(when, Happening::ServerTick { server, boot });
        self.control_event(server, ControlEvent::Tick)
    }

    /// The coordinator tells another server that the run is over.
    pub(crate) fn stop_server(&mut self, server: usize) -> Verdict {
        if !self.servers[server].up {
            return Ok(());
        }
        self.servers[server].session_last = self.servers[server].session_last.next();
        let session = self.servers[server].session_last;
        let opened = ControlEvent::Opened { session, role: Role::Server, address: "server 0".to_owned() };
        self.control_event(server, opened)?;
        let message = ToServer::Stop { reason: Text::new("the run is over") };
        self.control_event(server, ControlEvent::Message { session, message })
    }

    pub(crate) fn accept(&mut self, connection: usize) -> Verdict {
        let server = self.connections[connection].server;
        if !self.servers[server].up {
            self.send_outward(connection, Outward::Failed);
            return Ok(());
        }
        let process = self.servers[server].session_last.next();
        self.servers[server].session_last = process;
        self.servers[server].sessions.insert(process, connection);
        let link = &mut self.connections[connection];
        (link.session, link.server_end) = (Some(process), true);
        let address = format!("process {}", link.process);
        self.send_outward(connection, Outward::Connected);
        self.control_event(server, ControlEvent::Opened { session: process, role: Role::Worker, address })
    }

    pub(crate) fn control_message(&mut self, connection: usize, message: ToServer) -> Verdict {
        let link = &self.connections[connection];
        let (server, Some(session)) = (link.server, link.session) else { return Ok(()) };
        let registers = matches!(message, ToServer::Register(_));
        self.control_event(server, ControlEvent::Message { session, message })?;
        let server = &mut self.servers[server];
        if registers && let Some(speaker) = server.control.worker_of(session) {
            server.speakers.insert(session, speaker);
        }
        Ok(())
    }

    pub(crate) fn session_over(&mut self, connection: usize) -> Verdict {
        let link = &mut self.connections[connection];
        link.server_end = false;
        link.closing = true;
        let (server, Some(session)) = (link.server, link.session) else { return Ok(()) };
        self.servers[server].sessions.remove(&session);
        self.control_event(server, ControlEvent::Closed { session })
    }

    /// A gradient or initial values have arrived: straight to the shard, past control.
    pub(crate) fn take_transfer(
        &mut self,
        connection: usize,
        header: TransferHeader,
        mut values: Vec<f32>,
        origin: Option<PushKey>,
    ) -> Verdict {
        let link = &self.connections[connection];
        let (server, Some(session)) = (link.server, link.session) else { return Ok(()) };
        let speaker = self.servers[server].speakers.get(&session).copied();
        if speaker.is_none() && self.scenario.reboot.is_some() {
            // What the process before was reading is gone with it.
            return Ok(());
        }
        let is_his = speaker == Some((header.worker, header.incarnation));
        holds("honesty", is_his, || format!("{session} sent what is not of {speaker:?}: {header:?}"))?;
        if self.scenario.tamper == Some(Tamper::FlipBit) && self.chance.happens(100) {
            values[0] = f32::from_bits(values[0].to_bits() ^ (1 << 20));
        }
        let event = if Self::is_push(&header) {
            ShardEvent::Push(Push {
                session,
                worker: header.worker,
                incarnation: header.incarnation,
                sequence: header.sequence,
                clock: header.clock,
                pulled: header.version,
                batch: header.batch,
                samples: header.samples,
                gradient: Some(values),
            })
        } else {
            ShardEvent::Initialize(values)
        };
        self.put_before(server, header.shard, event, origin);
        Ok(())
    }

    fn put_before(&mut self, server: usize, shard: ShardId, event: ShardEvent, origin: Option<PushKey>) {
        let wait = self.chance.micros(1, 300);
        let last = self.servers[server].inbox.get(&shard).copied().unwrap_or_default();
        let when = self.now.after(wait).max(Moment(last.0 + 1));
        self.servers[server].inbox.insert(shard, when);
        let boot = self.servers[server].boot;
        self.agenda.at(when, Happening::AtShard { server, boot, shard, event, origin });
    }

    /// Control takes an event.
    pub(crate) fn control_event(&mut self, server: usize, event: ControlEvent) -> Verdict {
        let now = self.now;
        if event != ControlEvent::Tick {
            self.trace.line(now, format_args!("server {server} < {event:?}"));
        }
        let mut effects = Vec::new();
        self.servers[server].control.handle(now, event, &mut effects);
        self.servers[server].control.check_invariants();
        for effect in effects {
            self.trace.line(now, format_args!("server {server} > {effect:?}"));
            self.perform_control(server, effect)?;
        }
        Ok(())
    }

    fn perform_control(&mut self, server: usize, effect: ControlEffect) -> Verdict {
        match effect {
            ControlEffect::Send { session, message } => self.say(server, session, Outward::Message(message)),
            ControlEffect::Close { session } => {
                if let Some(connection) = self.servers[server].sessions.get(&session).copied() {
                    self.turn_out(connection);
                }
            }
            ControlEffect::Shards(event) => {
                let shards: Vec<ShardId> = self.servers[server].shards.keys().copied().collect();
                for shard in shards {
                    self.put_before(server, shard, event.clone(), None);
                }
            }
            ControlEffect::Shard { shard, event } => {
                // A push of nothing comes as a message; the run has none that is not finite, so there are none.
                self.put_before(server, shard, event, None);
            }
            ControlEffect::Status { .. } | ControlEffect::Evaluated => {}
            ControlEffect::Notice(Notice::Expired { .. }) => self.see(&Sight::Disturbed)?,
            ControlEffect::Notice(_) => {}
            ControlEffect::End(end) => self.server_ends(server, end),
        }
        Ok(())
    }

    fn server_ends(&mut self, server: usize, end: End) {
        let state = &mut self.servers[server];
        (state.up, state.end) = (false, Some(end.clone()));
        let connections: Vec<usize> = state.sessions.values().copied().collect();
        for connection in connections {
            self.turn_out(connection);
        }
        if server == 0 && end == End::Complete {
            for other in 1..self.servers.len() {
                let when = self.now.after(self.chance.micros(1_000, 3_000_000));
                self.agenda.at(when, Happening::Stop { server: other });
            }
        }
    }

    fn say(&mut self, server: usize, session: SessionId, what: Outward) {
        if let Some(connection) = self.servers[server].sessions.get(&session).copied() {
            self.send_outward(connection, what);
        }
    }

    /// A shard takes an event.
    pub(crate) fn at_shard(
        &mut self,
        server: usize,
        id: ShardId,
        event: ShardEvent,
        origin: Option<PushKey>,
    ) -> Verdict {
        let now = self.now;
        self.trace.line(now, format_args!("{id} < {event:?}"));
        let Some(mut shard) = self.servers[server].shards.remove(&id) else { return Ok(()) };
        let sent = origin.and_then(|key| self.sent.get(&(key, id))).cloned();
        self.see(&Sight::Before { shard: &shard, event: &event, origin, sent: sent.as_deref() })?;
        let mut effects = Vec::new();
        shard.handle(now, event, &mut effects);
        let outcome = effects.into_iter().try_for_each(|effect| {
            self.trace.line(now, format_args!("{id} > {effect:?}"));
            self.perform_shard(server, &shard, effect)
        });
        let after = outcome.and_then(|()| self.see(&Sight::After { shard: &shard }));
        shard.check_invariants();
        if let Some(deadline) = shard.next_deadline() {
            let (boot, shard, event) = (self.servers[server].boot, id, ShardEvent::Tick);
            let when = deadline.max(Moment(now.0 + 1));
            self.agenda.at(when, Happening::AtShard { server, boot, shard, event, origin: None });
        }
        self.servers[server].shards.insert(id, shard);
        after
    }

    fn perform_shard(&mut self, server: usize, shard: &Shard, effect: ShardEffect) -> Verdict {
        match effect {
            ShardEffect::Answer { session, pushed } => {
                if let Some(speaker) = self.servers[server].speakers.get(&session).copied() {
                    self.see(&Sight::Answered { shard, speaker, pushed: &pushed })?;
                }
                self.say(server, session, Outward::Message(ToPeer::Pushed(pushed)));
            }
            ShardEffect::Serve { session, reader, request, values, served } => {
                let connection = self.servers[server].sessions.get(&session).copied();
                let process = connection.map(|connection| self.connections[connection].process);
                let asked = process.and_then(|process| self.processes[process].asked.get(&request).copied());
                if let (Some(reader), Some(asked)) = (reader, asked) {
                    self.see(&Sight::Served { shard, reader, asked, values: &values })?;
                }
                let header = values_header(shard, reader.unwrap_or_default(), request, served);
                self.say(server, session, Outward::Values { header, values });
            }
            ShardEffect::HasValues => {
                let when = self.now.after(self.chance.micros(1, 2_000));
                let boot = self.servers[server].boot;
                self.agenda.at(when, Happening::HasValues { server, boot, shard: shard.id() });
            }
            ShardEffect::Overtaken { session, open } => {
                self.say(server, session, Outward::Message(ToPeer::Overtaken { open }));
            }
            ShardEffect::Recycle(_) | ShardEffect::Notice(_) => {}
        }
        Ok(())
    }
}

fn values_header(
    shard: &Shard,
    (worker, incarnation): (WorkerId, Incarnation),
    request: u64,
    served: Served,
) -> TransferHeader {
    TransferHeader {
        kind: TransferKind::Values,
        dtype: Dtype::F32,
        shard: shard.id(),
        worker,
        incarnation,
        sequence: Sequence(request),
        clock: Clock(served.minimum.0),
        version: served.version,
        batch: BatchIndex(0),
        lead: served.lead,
        samples: 0,
        stripe_count: 1,
        keys: shard.keys(),
        stripe: shard.keys(),
        held_us: served.held_us,
    }
}
