//! The shell of a server in the simulated world: its control, its hosts, its session with the coordinator.

use std::collections::{BTreeMap, VecDeque};

use slackline_core::codec::CodecKind;
use slackline_core::config::Guard;
use slackline_core::ids::{Generation, Moment, ServerId, SessionId, ShardId};
use slackline_core::role::Role;
use slackline_core::wire::{Holding, Place, ServerOrder, Text, ToPeer, ToServer, TransferHeader};
use slackline_server_core::control::{ClusterNotice, End};
use slackline_server_core::shard::Push;
use slackline_server_core::waits::Wait;
use slackline_server_core::{
    Control, ControlEffect, ControlEvent, Host, HostEvent, HostSettings, Notice, ShardEvent, ShardSettings,
};

use super::agenda::Happening;
use super::faults::TOLD_TO_GO;
use super::network::{Inward, Outward, Peer};
use super::scenario::Tamper;
use super::sight::{PushKey, Sight, Verdict, holds};
use super::world::World;

/// What waits at a shard, in order, each with the push that it is.
type Waiting = VecDeque<(ShardEvent, Option<PushKey>)>;

/// One server process.
pub(crate) struct Server {
    pub(crate) boot: u64,
    pub(crate) control: Control,
    pub(crate) hosts: BTreeMap<ShardId, Host>,
    /// When the last order and the last push of each shard's inbox are taken.
    pub(crate) inbox: BTreeMap<(ShardId, bool), Moment>,
    /// What waits for hosts that take nothing: orders, and pushes.
    pub(crate) waiting: BTreeMap<(ShardId, bool), Waiting>,
    /// The stream to each shard's backup.
    pub(crate) feeds: BTreeMap<ShardId, usize>,
    /// The last stream that was opened to each shard that has its backup here.
    pub(crate) fed_by: BTreeMap<ShardId, usize>,
    /// Where each shard is, as control has told.
    pub(crate) places: BTreeMap<ShardId, Place>,
    /// The generation in which each shard is led here, as the host was told last.
    pub(crate) terms: BTreeMap<ShardId, Generation>,
    /// In which generation this process began to lead each shard, other than from its disk: a journal that is older is not whole.
    pub(crate) since: BTreeMap<ShardId, Generation>,
    /// The connection of each session that is there.
    pub(crate) sessions: BTreeMap<SessionId, usize>,
    session_last: SessionId,
    /// What observers pulled while a host took nothing: of each session the last.
    pub(crate) looks: BTreeMap<ShardId, BTreeMap<SessionId, ShardEvent>>,
    /// The checkpoint that the run went on from, as the coordinator has told.
    pub(crate) resumed: Option<u64>,
    /// The connection to the coordinator.
    link: Option<usize>,
    /// When the last tick was due.
    tick_due: Moment,
    /// What control does first.
    first: Vec<ControlEffect>,
    /// At the coordinator: what follows from each event, until that is on the disk, after so many whose effects have left.
    pub(crate) withheld: VecDeque<Vec<ControlEffect>>,
    pub(crate) let_out: usize,
    /// So many of these are in what the journal begins with.
    pub(crate) imaged: usize,
    pub(crate) is_syncing: bool,
    pub(crate) up: bool,
}

impl Server {
    pub(crate) fn next_session(&mut self) -> SessionId {
        self.session_last = self.session_last.next();
        self.session_last
    }
}

impl World {
    /// What a shard is made from.
    pub(crate) fn shard_settings(&self, id: ShardId) -> ShardSettings {
        let scenario = &self.scenario;
        ShardSettings {
            id,
            keys: self.partition.range(id),
            layout: self.layout.clone(),
            policy: scenario.policy,
            delay: scenario.delay,
            optimizer: scenario.optimizer,
            workers: scenario.workers,
            batch: scenario.proportional.then_some(scenario.batch),
            steps: scenario.steps,
            guard: Guard::default(),
            pull: CodecKind::F32,
            buffers: Default::default(),
        }
    }

    /// A server process that has just started.
    pub(crate) fn new_server(&mut self, index: usize, boot: u64) -> Server {
        let id = ServerId(index as u32);
        let layout = self.layout.clone();
        let mut hosts = BTreeMap::new();
        // Any shard can come to any server.
        for (shard, _) in self.partition.shards() {
            let (durability, replicas) = (self.scenario.durability, self.scenario.replicas);
            let settings = self.shard_settings(shard);
            hosts
                .insert(shard, Host::new(HostSettings { server: id, shard: settings, durability, replicas }));
        }
        let holding = |(shard, generation)| Holding { shard, generation, is_whole: true, on_disk: true };
        let disk: Vec<Holding> = self.machines[index].disk.holds().map(holding).collect();
        let settings = self.control_settings(index, boot, &layout, disk);
        let (control, first) = self.begin_control(index, settings);
        let resumed = control.resumed();
        Server {
            boot,
            control,
            hosts,
            inbox: BTreeMap::new(),
            waiting: BTreeMap::new(),
            feeds: BTreeMap::new(),
            fed_by: BTreeMap::new(),
            places: BTreeMap::new(),
            terms: BTreeMap::new(),
            since: BTreeMap::new(),
            sessions: BTreeMap::new(),
            session_last: SessionId(0),
            looks: BTreeMap::new(),
            resumed,
            link: None,
            tick_due: self.now,
            first,
            withheld: VecDeque::new(),
            let_out: 0,
            imaged: 0,
            is_syncing: false,
            up: true,
        }
    }

    /// A server's process begins.
    pub(crate) fn begin_server(&mut self, server: usize, boot: u64) -> Verdict {
        let first = std::mem::take(&mut self.servers[server].first);
        self.perform_all(server, first)?;
        if self.ends[server].is_some() {
            return Ok(());
        }
        self.server_tick(server, boot)?;
        self.report_to_coordinator(server, boot)
    }

    /// The server's loop looks at the time.
    pub(crate) fn server_tick(&mut self, server: usize, boot: u64) -> Verdict {
        let late = self.now.since(self.servers[server].tick_due);
        let next = self.now.after(self.scenario.lease / 20);
        self.servers[server].tick_due = next;
        self.agenda.at(next, Happening::ServerTick { server, boot });
        if late > self.scenario.lease / 2 {
            self.control_event(server, ControlEvent::Late { by: late })?;
        }
        self.control_event(server, ControlEvent::Tick)?;
        if server == 0 && self.scenario.min_workers.is_some() {
            let control = &self.servers[0].control;
            let is_paused = control.is_started()
                && control.waits(self.now).iter().any(|waiting| matches!(waiting.wait, Wait::Workers { .. }));
            self.counts.too_few += u64::from(is_paused);
        }
        Ok(())
    }

    /// A server connects to the coordinator's.
    pub(crate) fn report_to_coordinator(&mut self, server: usize, boot: u64) -> Verdict {
        if server != 0 {
            let link = self.connect(Peer::Server(server, boot), 0);
            self.servers[server].link = Some(link);
        }
        Ok(())
    }

    /// Something reaches the end of the connection that a server made to the coordinator's.
    pub(crate) fn at_follower(
        &mut self,
        connection: usize,
        (server, boot): (usize, u64),
        what: Outward,
    ) -> Verdict {
        let state = &self.servers[server];
        if !state.up || state.boot != boot || state.link != Some(connection) {
            return Ok(());
        }
        let event = match what {
            Outward::Connected => ControlEvent::CoordinatorOpened,
            Outward::Message(ToPeer::Cluster(order)) => ControlEvent::Ordered(order),
            Outward::Message(ToPeer::Refused(refusal)) => ControlEvent::CoordinatorRefused(refusal),
            Outward::Failed | Outward::Lost => {
                self.servers[server].link = None;
                let when = self.now.after(self.chance.micros(10_000, 300_000));
                self.agenda.at(when, Happening::Report { server, boot });
                if matches!(what, Outward::Failed) {
                    return Ok(());
                }
                ControlEvent::CoordinatorLost
            }
            Outward::Message(_) | Outward::Values { .. } => return Ok(()),
        };
        self.control_event(server, event)
    }

    /// The coordinator tells another server that the run is over; one that is away is not waited for.
    pub(crate) fn stop_server(&mut self, server: usize) -> Verdict {
        if !self.servers[server].up || self.ends[server].is_some() {
            self.ends[server].get_or_insert(End::Stopped("the run is over".to_owned()));
            return Ok(());
        }
        let session = self.servers[server].next_session();
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
        let session = self.servers[server].next_session();
        let boot = self.servers[server].boot;
        self.servers[server].sessions.insert(session, connection);
        let link = &mut self.connections[connection];
        (link.session, link.server_end, link.boot) = (Some(session), true, boot);
        let (role, address) = match link.peer {
            Peer::Process(process) => {
                self.session_of.insert((server, boot, session), process);
                (Role::Worker, format!("process {process}"))
            }
            Peer::Server(from, _) => (Role::Server, format!("server {from}")),
        };
        self.send_outward(connection, Outward::Connected);
        self.control_event(server, ControlEvent::Opened { session, role, address })
    }

    pub(crate) fn control_message(&mut self, connection: usize, message: ToServer) -> Verdict {
        let link = &self.connections[connection];
        let (server, Some(session)) = (link.server, link.session) else { return Ok(()) };
        let registers = matches!(message, ToServer::Register(_));
        self.control_event(server, ControlEvent::Message { session, message })?;
        let boot = self.servers[server].boot;
        if registers && let Some(speaker) = self.servers[server].control.worker_of(session) {
            self.speakers.insert((server, boot, session), speaker);
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
        let (server, boot, Some(session)) = (link.server, link.boot, link.session) else { return Ok(()) };
        if !self.servers[server].up || self.servers[server].boot != boot {
            return Ok(());
        }
        let speaker = self.speakers.get(&(server, boot, session)).copied();
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
                reply: header.reply,
                have: header.have,
                gradient: Some(values.into()),
            })
        } else {
            ShardEvent::Initialize(values)
        };
        self.put_push(server, header.shard, HostEvent::Shard(event), origin);
        Ok(())
    }

    /// Control takes an event.
    pub(crate) fn control_event(&mut self, server: usize, event: ControlEvent) -> Verdict {
        let now = self.time_of(server);
        if self.trace.is_on() && event != ControlEvent::Tick {
            self.trace.line(self.now, format_args!("server {server} < {event:?}"));
        }
        // Whoever is to load something must know which checkpoint has other workers.
        if let ControlEvent::Ordered(ServerOrder::Places { from, .. }) = &event {
            self.servers[server].resumed = *from;
        }
        let mut effects = Vec::new();
        let control = &mut self.servers[server].control;
        let moment = control.moment(now);
        let kept = (server == 0 && control.is_kept(now, &event)).then(|| event.clone());
        control.handle(now, event, &mut effects);
        control.check_invariants();
        if server == 0 {
            self.hear(moment, kept, effects);
            return Ok(());
        }
        self.perform_all(server, effects)
    }

    /// What control asks for, in order.
    pub(crate) fn perform_all(&mut self, server: usize, effects: Vec<ControlEffect>) -> Verdict {
        for effect in effects {
            if self.trace.is_on() {
                self.trace.line(self.now, format_args!("server {server} > {effect:?}"));
            }
            self.perform_control(server, effect)?;
        }
        Ok(())
    }

    fn perform_control(&mut self, server: usize, effect: ControlEffect) -> Verdict {
        match effect {
            ControlEffect::Send { session, message } => self.say(server, session, Outward::Message(message)),
            ControlEffect::Close { session } => match self.servers[server].sessions.get(&session).copied() {
                Some(connection) => self.turn_out(connection),
                None => self.turn_observer_out(server, session),
            },
            ControlEffect::Shards(event) => {
                let shards: Vec<ShardId> = self.servers[server].hosts.keys().copied().collect();
                for shard in shards {
                    self.put_host(server, shard, HostEvent::Shard(event.clone()));
                }
            }
            ControlEffect::Shard { shard, event } if !event.changes() => self.put_look(server, shard, event),
            ControlEffect::Shard { shard, event } => self.put_host(server, shard, HostEvent::Shard(event)),
            ControlEffect::Place { shard, place, members, started } => {
                let places = &mut self.servers[server].places;
                match place {
                    Some(place) => drop(places.insert(shard, place)),
                    None => drop(places.remove(&shard)),
                }
                self.put_host(server, shard, HostEvent::Place { place, members, started });
            }
            ControlEffect::Coordinator(word) => {
                if let Some(link) = self.servers[server].link {
                    self.send_inward(link, Inward::Message(ToServer::Cluster(word)));
                }
            }
            ControlEffect::Persist(record) => self.persist(server, &record),
            ControlEffect::Commit(commit) => self.commit(server, &commit),
            ControlEffect::Status { .. } => return self.show_status(server),
            ControlEffect::Evaluated => {}
            ControlEffect::Notice(Notice::Expired { .. }) => self.see(&Sight::Disturbed)?,
            // With fewer workers than all a run begins without those that come late.
            ControlEffect::Notice(Notice::Joined { .. })
                if server == 0 && self.servers[0].control.is_started() =>
            {
                self.see(&Sight::Changed)?;
            }
            ControlEffect::Notice(Notice::WentBack { checkpoint, .. }) => {
                self.counts.went_back += 1;
                self.see(&Sight::WentBack { checkpoint })?;
            }
            ControlEffect::Notice(Notice::Cluster(ClusterNotice::WaitsForCopy { .. })) => {
                self.counts.copies_awaited += 1;
            }
            ControlEffect::Notice(_) => {}
            ControlEffect::End(End::Stopped(reason)) if reason == TOLD_TO_GO => self.crash_server(server)?,
            ControlEffect::End(end) => {
                // No other process of its index lives, and all have one configuration.
                let is_welcome = !matches!(end, End::Refused(_));
                holds("whoever belongs to the run is taken in", is_welcome, || {
                    format!("server {server}: {end:?}")
                })?;
                self.server_ends(server, end);
            }
        }
        Ok(())
    }

    fn server_ends(&mut self, server: usize, end: End) {
        let state = &mut self.servers[server];
        state.up = false;
        self.ends[server] = Some(end);
        let connections: Vec<usize> = state.sessions.values().copied().collect();
        let link = state.link.take();
        for connection in connections {
            self.turn_out(connection);
        }
        if let Some(link) = link {
            self.hang_up(link);
        }
        if server == 0 {
            for other in 1..self.servers.len() {
                let when = self.now.after(self.chance.micros(1_000, 3_000_000));
                self.agenda.at(when, Happening::Stop { server: other });
            }
        }
    }

    pub(crate) fn say(&mut self, server: usize, session: SessionId, what: Outward) {
        if let Some(connection) = self.servers[server].sessions.get(&session).copied() {
            self.send_outward(connection, what);
        }
    }
}
