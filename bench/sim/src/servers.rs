//! The shell of a server: its control, its sessions, its clock.

use std::sync::Arc;

use slackline_core::ids::{Moment, ServerId, SessionId, ShardId};
use slackline_core::role::Role;
use slackline_core::wire::ToPeer;
use slackline_server::parts;
use slackline_server_core::{Control, ControlEffect, ControlEvent};

use crate::failure::SimFailure;
use crate::network::{Inward, Outward};
use crate::shards::ShardSlot;
use crate::world::{Happening, World};

/// Leases without anything but the passing of time, with nothing being computed and nothing on its way, after which a run is called
/// stuck. Longer than any wait that ends by itself.
const STUCK_LEASES: u32 = 100;

/// One server process.
pub(crate) struct Server {
    /// Another number is another process.
    pub(crate) boot: u64,
    pub(crate) up: bool,
    pub(crate) control: Control,
    pub(crate) shards: Vec<ShardId>,
    /// The connection of each session, by its number.
    sessions: Vec<Option<usize>>,
    pub(crate) paused_until: Moment,
}

impl World {
    /// A server process starts, without any state.
    pub(crate) fn boot(&mut self, server: usize, boot: u64) {
        let id = ServerId(server as u32);
        // The coordinator of an allreduce holds no values.
        let has_shards = self.plan.group.is_none();
        let shards = self.plan.partition.shards_on(id).filter(|_| has_shards);
        let ids: Vec<ShardId> = shards.map(|(shard, _)| shard).collect();
        let mut settings = parts::control_settings(id, &self.plan.resolved, ids.clone(), boot);
        (settings.layout_hash, settings.layout_text) =
            (self.plan.layout.hash(), self.plan.layout.to_string());
        settings.wait_report = crate::plan::NEVER_REPORTED;
        for mut shard in parts::shards(id, self.plan.config()).into_iter().filter(|_| has_shards) {
            shard.keys = self.plan.partition.range(shard.id);
            shard.layout = Arc::clone(&self.plan.layout);
            let place = shard.id.0 as usize;
            self.shards[place] = Some(ShardSlot::new(shard, boot));
        }
        let now = self.now();
        let new = Server {
            boot,
            up: true,
            control: Control::new(settings, now),
            shards: ids,
            sessions: vec![None],
            paused_until: now,
        };
        if server < self.servers.len() {
            self.servers[server] = new;
        } else {
            self.servers.push(new);
        }
        let due = now.after(self.plan.tick);
        self.agenda.at(due, Happening::ServerTick { server, boot, due });
    }

    /// The server's loop looks at the time.
    pub(crate) fn server_tick(&mut self, server: usize, boot: u64, due: Moment) -> Result<(), SimFailure> {
        if !self.servers[server].up || self.servers[server].boot != boot {
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
        if is_still && now.since(self.stirred) > STUCK_LEASES * self.plan.lease {
            if !self.servers[0].control.is_started() {
                let text = "the run never began: a worker that it waits for is gone, and none comes any more";
                self.over = Some(crate::world::Over::Failed(text.to_owned()));
                return Ok(());
            }
            return Err(SimFailure::Stuck { virtual_s: self.stirred.0 as f64 / 1e9 });
        }
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
        let sessions = &mut self.servers[server].sessions;
        let session = SessionId(sessions.len() as u64);
        sessions.push(Some(connection));
        let link = &mut self.connections[connection];
        (link.session, link.server_end) = (Some(session), true);
        let address = format!("process {}", link.process);
        self.send_outward(connection, Outward::Connected);
        self.control_event(server, ControlEvent::Opened { session, role: Role::Worker, address });
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
            ControlEffect::Close { session } => {
                if let Some(connection) = self.connection_of(server, session) {
                    self.turn_out(connection);
                }
            }
            ControlEffect::Shards(event) => {
                for index in 0..self.servers[server].shards.len() {
                    let shard = self.servers[server].shards[index];
                    self.put_before(shard, event.clone());
                }
            }
            ControlEffect::Shard { shard, event } => self.put_before(shard, event),
            ControlEffect::Evaluated => self.write_evaluation(),
            ControlEffect::End(end) => self.server_ends(server, end),
            // Nobody asks for a status, and nobody reads a log.
            ControlEffect::Status { .. } | ControlEffect::Notice(_) => {}
        }
    }

    /// The connection of a session, while it is there.
    pub(crate) fn connection_of(&self, server: usize, session: SessionId) -> Option<usize> {
        self.servers[server].sessions.get(session.0 as usize).copied().flatten()
    }

    pub(crate) fn say(&mut self, server: usize, session: SessionId, message: ToPeer) {
        if let Some(connection) = self.connection_of(server, session) {
            self.send_outward(connection, Outward::Message(message));
        }
    }

    /// A server's process is gone.
    pub(crate) fn crash_server(&mut self, server: usize) {
        self.servers[server].up = false;
        for connection in 0..self.connections.len() {
            if self.connections[connection].server == server && self.connections[connection].worker_end {
                self.fall_dead(connection);
            }
        }
    }

    /// A server that crashed is back as another process. Whoever still thinks that it is connected learns better with its next word.
    pub(crate) fn reboot(&mut self, server: usize) {
        self.pending -= 1;
        let boot = self.servers[server].boot + self.servers.len() as u64;
        self.boot(server, boot);
        self.links.reset(self.machine_of_server(server));
        let when = self.now().after(2 * self.links.latency());
        for connection in 0..self.connections.len() {
            let link = &self.connections[connection];
            if link.server == server && link.worker_end && link.session.is_some() && !link.server_end {
                self.agenda.at(when, Happening::AtWorker { connection, what: Outward::Lost });
            }
        }
    }
}

const _: () = {
    // A message that is often sent must stay small: it is moved through queues.
    assert!(size_of::<Inward>() <= 64);
};
