//! The shell of a server: its control, its sessions, its clock, and what is left of it when its process is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use slackline_core::codec::CodecKind;
use slackline_core::config::Durability;
use slackline_core::ids::{Moment, ServerId, SessionId};
use slackline_core::role::Role;
use slackline_core::wire::ToPeer;
use slackline_server::parts;
use slackline_server_core::assign::Position;
use slackline_server_core::{Control, ControlEffect, ControlEvent, ControlSettings, HostSettings, Notice};

use crate::coordinator::Link;
use crate::failure::SimFailure;
use crate::hosts::{At, HostSlot};
use crate::network::{Inward, Outward};
use crate::store::Saver;
use crate::world::{Happening, Over, Plan, World};

/// Leases without anything but the passing of time, with nothing being computed and nothing on its way, after which a run is called
/// stuck. Longer than any wait that ends by itself.
const STUCK_LEASES: u32 = 100;

/// The same without any gradient, whatever else happens: processes that come and go and never get to work.
const IDLE_LEASES: u32 = 1000;

/// Who is at the other end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A worker, by its connection.
    Worker(usize),
    /// A server, by the number of its session with the coordinator.
    Server(usize, u64),
}

/// One server process.
pub(crate) struct Server {
    /// Another number is another process.
    pub(crate) boot: u64,
    pub(crate) up: bool,
    pub(crate) control: Control,
    /// The shards that concern it, by their numbers.
    pub(crate) hosts: Vec<HostSlot>,
    /// Its part in checkpoints.
    pub(crate) saver: Saver,
    /// The other end of each session, by its number.
    pub(crate) sessions: Vec<Option<Peer>>,
    pub(crate) paused_until: Moment,
    /// Its session with the coordinator.
    pub(crate) link: Link,
}

/// What a new process of the coordinator's server goes on from.
#[derive(Clone, Debug)]
pub(crate) enum Former {
    /// Nothing.
    None,
    /// All that the process before had kept.
    Ledger(Vec<u8>),
    /// A checkpoint.
    Position(Box<Position>),
}

impl Plan {
    fn control_settings(&self, server: usize, boot: u64) -> ControlSettings {
        let mut settings = parts::control_settings(ServerId(server as u32), &self.resolved, boot);
        (settings.layout_hash, settings.layout_text) = (self.layout.hash(), self.layout.to_string());
        if let Some(coordinator) = &mut settings.coordinator {
            coordinator.keeps_map = self.group.is_none();
        }
        settings
    }

    /// What the host of a shard on a server is made from.
    pub(crate) fn host_settings(&self, at: At) -> Option<HostSettings> {
        let shard = self.shards.get(&at.shard)?.clone();
        let cluster = &self.config().cluster;
        let (durability, replicas) = (cluster.durability, cluster.replicas);
        Some(HostSettings { server: ServerId(at.server), shard, durability, replicas })
    }

    /// The settings of all shards, as the cores see them.
    pub(crate) fn shard_settings(
        &self,
    ) -> BTreeMap<slackline_core::ids::ShardId, slackline_server_core::ShardSettings> {
        let mut shards = parts::all_shards(self.config());
        for (shard, settings) in &mut shards {
            settings.keys = self.partition.range(*shard);
            settings.layout = std::sync::Arc::clone(&self.layout);
            if self.sizes.is_some() {
                settings.pull = CodecKind::F32;
            }
        }
        shards
    }
}

impl World {
    /// A server process starts with nothing in its memory.
    pub(crate) fn boot(&mut self, server: usize, boot: u64, former: Former) {
        let now = self.now();
        let mut settings = self.plan.control_settings(server, boot);
        settings.disk = self.disks[server].holds();
        let mut effects = Vec::new();
        let control = match former {
            Former::Ledger(bytes) => Control::restore(settings, &bytes, [], now, &mut effects),
            Former::None => Ok(Control::new(settings, now)),
            Former::Position(position) => {
                if let Some(coordinator) = &mut settings.coordinator {
                    coordinator.resume = Some(*position);
                }
                Ok(Control::new(settings, now))
            }
        };
        let control = match control {
            Ok(control) => control,
            Err(error) => {
                self.over.get_or_insert(Over::Failed(error.to_string()));
                return;
            }
        };
        let link = self.servers.get(server).map_or_else(Link::default, |former| former.link.anew());
        let (hosts, saver, sessions) = (Vec::new(), Saver::default(), vec![None]);
        let new = Server { boot, up: true, control, hosts, saver, sessions, paused_until: now, link };
        if server < self.servers.len() {
            self.servers[server] = new;
        } else {
            self.servers.push(new);
        }
        let due = now.after(self.plan.tick);
        self.agenda.at(due, Happening::ServerTick { server, boot, due });
        for effect in effects {
            self.perform_control(server, effect);
        }
        if server == 0 {
            self.control_event(0, ControlEvent::Tick);
        } else {
            self.dial_coordinator(server);
        }
    }

    /// The server's loop looks at the time.
    pub(crate) fn server_tick(&mut self, server: usize, boot: u64, due: Moment) -> Result<(), SimFailure> {
        if !self.is_process(server, boot) {
            return Ok(());
        }
        let now = self.now();
        let late = now.since(due);
        if late > self.plan.lease / 2 {
            self.control_event(server, ControlEvent::Late { by: late });
        }
        let next = now.after(self.plan.tick);
        self.agenda.at(next, Happening::ServerTick { server, boot, due: next });
        self.control_event(server, ControlEvent::Tick);
        if server != 0 {
            return Ok(());
        }
        self.write_progress()?;
        let is_still =
            self.counts.computing == 0 && self.transfers.len() + self.parcels.len() == 0 && self.pending == 0;
        let is_idle = self.counts.computing == 0
            && self.pending == 0
            && now.since(self.worked) > IDLE_LEASES * self.plan.lease;
        if is_idle || (is_still && now.since(self.stirred) > STUCK_LEASES * self.plan.lease) {
            return self.is_stuck();
        }
        Ok(())
    }

    /// Nothing moves any more: what the run waits for, if that is known.
    fn is_stuck(&mut self) -> Result<(), SimFailure> {
        let gone = self.servers.iter().position(|server| !server.up);
        let text = if let Some(server) = gone {
            let shards = "its shards have no other copy";
            format!(
                "{} is gone and none comes back, and {shards}: the workers wait for it",
                ServerId(server as u32)
            )
        } else if !self.servers[0].control.is_started() {
            "the run never began: a worker that it waits for is gone, and none comes any more".to_owned()
        } else {
            return Err(SimFailure::Stuck { virtual_s: self.stirred.0 as f64 / 1e9 });
        };
        self.over = Some(Over::Failed(text));
        Ok(())
    }

    /// A worker has connected.
    pub(crate) fn accept(&mut self, connection: usize) {
        let server = self.connections[connection].server;
        if !self.servers[server].up {
            // Nobody answers; the one who connects gives up after a while and tries again.
            let when = self.now().after(2 * self.links.latency());
            self.agenda.at(when, Happening::AtWorker { connection, what: Outward::Failed });
            return;
        }
        let session = self.new_session(server, Peer::Worker(connection));
        let link = &mut self.connections[connection];
        (link.session, link.server_end) = (Some(session), true);
        let address = format!("process {}", link.process);
        self.send_outward(connection, Outward::Connected);
        self.control_event(server, ControlEvent::Opened { session, role: Role::Worker, address });
    }

    pub(crate) fn new_session(&mut self, server: usize, peer: Peer) -> SessionId {
        let sessions = &mut self.servers[server].sessions;
        sessions.push(Some(peer));
        SessionId(sessions.len() as u64 - 1)
    }

    /// Control takes an event.
    pub(crate) fn control_event(&mut self, server: usize, event: ControlEvent) {
        if let ControlEvent::Closed { session } = event {
            self.servers[server].sessions[session.0 as usize] = None;
        }
        self.counts.events += 1;
        let mut effects = std::mem::take(&mut self.scratch.control);
        let now = self.now();
        self.servers[server].control.handle(now, event, &mut effects);
        for effect in effects.drain(..) {
            self.perform_control(server, effect);
        }
        self.scratch.control = effects;
    }

    fn perform_control(&mut self, server: usize, effect: ControlEffect) {
        match effect {
            ControlEffect::Send { session, message } => self.say(server, session, message),
            ControlEffect::Close { session } => match self.peer(server, session) {
                Some(Peer::Worker(connection)) => self.turn_out(connection),
                Some(Peer::Server(of, number)) => self.end_link(of, number),
                None => {}
            },
            ControlEffect::Shards(event) => {
                for index in 0..self.servers[server].hosts.len() {
                    let shard = self.servers[server].hosts[index].shard;
                    self.put_before(At::new(server, shard), event.clone());
                }
            }
            ControlEffect::Shard { shard, event } => self.put_before(At::new(server, shard), event),
            ControlEffect::Place { shard, place, members, started } => {
                self.place(At::new(server, shard), place, members, started);
            }
            ControlEffect::Coordinator(word) => self.tell_coordinator(server, word),
            // What the coordinator keeps is written at once.
            ControlEffect::Persist(map) => self.tell(server, ControlEvent::Persisted { number: map.number }),
            ControlEffect::Commit(commit) => self.commit(server, *commit),
            ControlEffect::Evaluated => self.write_evaluation(),
            ControlEffect::End(end) => self.server_ends(server, end),
            ControlEffect::Notice(Notice::Cluster(notice)) => self.chronicle(&notice),
            // Nobody asks for a status, and nobody reads a log.
            ControlEffect::Status { .. } | ControlEffect::Notice(_) => {}
        }
    }

    fn peer(&self, server: usize, session: SessionId) -> Option<Peer> {
        self.servers[server].sessions.get(session.0 as usize).copied().flatten()
    }

    /// The connection of a worker's session, while it is there.
    pub(crate) fn connection_of(&self, server: usize, session: SessionId) -> Option<usize> {
        match self.peer(server, session)? {
            Peer::Worker(connection) => Some(connection),
            Peer::Server(..) => None,
        }
    }

    pub(crate) fn say(&mut self, server: usize, session: SessionId, message: ToPeer) {
        match self.peer(server, session) {
            Some(Peer::Worker(connection)) => self.send_outward(connection, Outward::Message(message)),
            Some(Peer::Server(of, number)) => self.order(of, number, message),
            None => {}
        }
    }

    /// A server's process is gone.
    pub(crate) fn crash_server(&mut self, server: usize) {
        if server == 0 && self.plan.group.is_none() {
            // Control is deterministic: what it is now is what its state and the events after it would make again.
            self.ledger = self.servers[0].control.state().ok();
        }
        self.servers[server].up = false;
        self.servers[server].hosts.clear();
        self.servers[server].saver = Saver::default();
        for connection in 0..self.connections.len() {
            if self.connections[connection].server == server {
                self.fall_dead(connection);
            }
        }
        self.crash_link(server);
        self.crash_feeds(server);
    }

    /// A server that crashed is back as another process. Whoever still thinks that it is connected learns better with its next word.
    pub(crate) fn reboot(&mut self, server: usize) {
        self.pending -= 1;
        if self.servers[server].up {
            // All processes were started again meanwhile.
            return;
        }
        let former = match self.ledger.take_if(|_| server == 0) {
            Some(ledger) => Former::Ledger(ledger),
            None => Former::None,
        };
        self.start_anew(server, former);
        let when = self.now().after(2 * self.links.latency());
        for connection in 0..self.connections.len() {
            let link = &self.connections[connection];
            if link.server == server && link.worker_end && link.session.is_some() && !link.server_end {
                self.agenda.at(when, Happening::AtWorker { connection, what: Outward::Lost });
            }
        }
        self.lose_feeds_to(server, when);
        self.lose_links_to(server, when);
    }

    fn start_anew(&mut self, server: usize, former: Former) {
        self.reset_links(self.machine_of_server(server));
        let boot = self.servers[server].boot + self.servers.len() as u64;
        self.boot(server, boot, former);
    }

    /// All processes are gone at once.
    pub(crate) fn crash_all(&mut self) {
        for process in 0..self.processes.len() {
            self.crash_process(process);
        }
        for server in 0..self.servers.len() {
            if self.servers[server].up {
                self.crash_server(server);
            }
        }
    }

    /// All processes start again: from their disks, else from the newest checkpoint, else from the beginning.
    pub(crate) fn restart(&mut self) {
        self.pending -= 1;
        let ledger = self.ledger.take();
        let before = self.wall_before.unwrap_or_default();
        let former = match (self.plan.config().cluster.durability, ledger, self.store.position()) {
            (Durability::Disk, Some(ledger), _) => Former::Ledger(ledger),
            (_, _, Some(position)) => {
                // What the run has taken so far is not what it had taken at the checkpoint.
                let wall_ns = before.as_nanos() as u64;
                Former::Position(Box::new(Position { wall_ns, ..position.clone() }))
            }
            _ => Former::None,
        };
        self.wall_unknown = if matches!(former, Former::None) { before } else { Duration::ZERO };
        if !matches!(former, Former::Ledger(_)) {
            self.disks.iter_mut().for_each(crate::disks::Disk::clear);
        }
        for server in 0..self.servers.len() {
            let former = if server == 0 { former.clone() } else { Former::None };
            self.start_anew(server, former);
        }
        for slot in 0..self.slots.len() {
            self.reset_links(slot);
            let now = self.now();
            self.agenda.at(now, Happening::Start { slot });
        }
    }
}

const _: () = {
    // A message that is often sent must stay small: it is moved through queues.
    assert!(size_of::<Inward>() <= 64);
    assert!(size_of::<Happening>() <= 96);
};
