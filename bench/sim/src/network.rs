//! Connections, and what goes over them. Control messages of one connection keep their order; transfers go beside them.

use slackline_core::codec::Payload;
use slackline_core::ids::{Moment, ServerId, SessionId, ShardId};
use slackline_core::wire::{Pull, Served, ToPeer, ToServer, TransferHeader};
use slackline_server_core::ControlEvent;
use slackline_server_core::shard::Snapshot;
use slackline_worker_core::{Event, Obstacle};

use crate::hosts::At;
use crate::links::Passage;
use crate::world::{Happening, Plan, World};

/// What reaches a server.
#[derive(Debug)]
pub(crate) enum Inward {
    /// A worker connects.
    Dial,
    /// A pull, the most frequent of the messages and a small one.
    Pull(Pull),
    /// Another control message.
    Message(Box<ToServer>),
    /// The connection is over.
    Gone,
}

/// What reaches a worker.
#[derive(Debug)]
pub(crate) enum Outward {
    /// The connection stands.
    Connected,
    /// It could not be made.
    Failed,
    /// A control message.
    Message(ToPeer),
    /// The connection is over.
    Lost,
}

/// What a transfer brings.
#[derive(Debug)]
pub(crate) enum Cargo {
    /// A gradient.
    Push { header: TransferHeader, gradient: Payload },
    /// The initial values of a shard, which lie with the engine.
    Initial { shard: ShardId },
    /// The answer to a pull.
    Values { shard: ShardId, request: u64, served: Served, values: Snapshot },
}

impl Cargo {
    pub(crate) const fn is_inward(&self) -> bool {
        matches!(self, Self::Push { .. } | Self::Initial { .. })
    }

    pub(crate) const fn shard(&self) -> ShardId {
        match self {
            Self::Push { header, .. } => header.shard,
            Self::Initial { shard } | Self::Values { shard, .. } => *shard,
        }
    }

    /// Bytes of its values, by the true size of the shard.
    fn bytes(&self, plan: &Plan) -> u64 {
        match self {
            Self::Push { header, .. } => plan.pushed_bytes(header),
            Self::Initial { shard } => plan.shard_bytes[shard.0 as usize],
            Self::Values { shard, values, .. } => plan.pulled_bytes(*shard, values),
        }
    }
}

/// One transfer on its way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) connection: usize,
    passage: Passage,
    pub(crate) cargo: Cargo,
}

/// One connection between a process and a server, with what each end knows.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) process: usize,
    pub(crate) server: usize,
    pub(crate) session: Option<SessionId>,
    /// The worker's end is there.
    pub(crate) worker_end: bool,
    /// The server's end is there.
    pub(crate) server_end: bool,
    /// The server sends nothing more.
    closing: bool,
    /// What reaches the server later than this was never sent.
    inward_cut: Moment,
}

const NEVER: Moment = Moment(u64::MAX);

impl World {
    /// A worker's shell connects.
    pub(crate) fn dial(&mut self, process: usize, server: ServerId) {
        let server = server.0 as usize;
        let connection = self.connections.len();
        self.connections.push(Connection {
            process,
            server,
            session: None,
            worker_end: true,
            server_end: false,
            closing: false,
            inward_cut: NEVER,
        });
        let former = self.processes[process].links[server].replace(connection);
        if let Some(former) = former {
            self.hang_up(former);
        }
        self.send_inward(connection, Inward::Dial);
    }

    /// A worker's shell closes.
    pub(crate) fn hang_up(&mut self, connection: usize) {
        if std::mem::take(&mut self.connections[connection].worker_end) {
            self.send_inward(connection, Inward::Gone);
        }
    }

    /// A server's shell closes: its last words are read first.
    pub(crate) fn turn_out(&mut self, connection: usize) {
        if self.connections[connection].closing {
            return;
        }
        self.send_outward(connection, Outward::Lost);
        self.connections[connection].closing = true;
        let when = self.now().after(2 * self.links.latency());
        self.agenda.at(when, Happening::AtServer { connection, what: Inward::Gone });
    }

    /// A worker's process is gone without a word: the server learns it when the connection has been idle for a lease.
    pub(crate) fn fall_silent(&mut self, connection: usize) {
        let (last, idle) = (self.now().after(self.links.latency()), self.now().after(self.plan.lease));
        let link = &mut self.connections[connection];
        link.worker_end = false;
        link.inward_cut = last;
        self.agenda.at(idle, Happening::AtServer { connection, what: Inward::Gone });
    }

    /// A server's process is gone without a word. The worker, if it is there, learns it after a lease without a sign of life.
    pub(crate) fn fall_dead(&mut self, connection: usize) {
        let idle = self.now().after(self.plan.lease);
        let link = &mut self.connections[connection];
        (link.server_end, link.closing) = (false, true);
        if link.worker_end {
            self.agenda.at(idle, Happening::AtWorker { connection, what: Outward::Lost });
        }
    }

    pub(crate) fn send_inward(&mut self, connection: usize, what: Inward) {
        let when = self.now().after(self.links.latency());
        self.agenda.at(when, Happening::AtServer { connection, what });
    }

    pub(crate) fn send_outward(&mut self, connection: usize, what: Outward) {
        if !self.connections[connection].closing {
            let when = self.now().after(self.links.latency());
            self.agenda.at(when, Happening::AtWorker { connection, what });
        }
    }

    /// Something reaches a server.
    pub(crate) fn at_server(&mut self, connection: usize, what: Inward) {
        let link = &self.connections[connection];
        let is_lost = self.now() > link.inward_cut && !matches!(what, Inward::Gone);
        if is_lost {
            return;
        }
        let (server, session) = (link.server, link.session.filter(|_| link.server_end));
        let event = match (what, session) {
            (Inward::Dial, _) => return self.accept(connection),
            (_, None) => return,
            (Inward::Pull(pull), Some(session)) => {
                ControlEvent::Message { session, message: ToServer::Pull(pull) }
            }
            (Inward::Message(message), Some(session)) => ControlEvent::Message { session, message: *message },
            (Inward::Gone, Some(session)) => {
                let link = &mut self.connections[connection];
                (link.server_end, link.closing) = (false, true);
                ControlEvent::Closed { session }
            }
        };
        self.control_event(server, event);
    }

    /// Something reaches a worker.
    pub(crate) fn at_worker(&mut self, connection: usize, what: Outward) {
        let link = &self.connections[connection];
        if !link.worker_end {
            return;
        }
        let (process, server) = (link.process, ServerId(link.server as u32));
        let event = match what {
            Outward::Connected => Event::Connected { server },
            Outward::Message(message) => return self.worker_reads(process, server, message),
            Outward::Failed => {
                Event::ConnectFailed { server, reason: "no answer".to_owned(), obstacle: Obstacle::Passing }
            }
            Outward::Lost => Event::Lost { server },
        };
        if !matches!(event, Event::Connected { .. }) {
            self.connections[connection].worker_end = false;
            self.processes[process].links[server.0 as usize] = None;
        }
        self.worker_event(process, event);
    }

    /// Puts a transfer on its way.
    pub(crate) fn carry(&mut self, connection: usize, cargo: Cargo) {
        let link = &self.connections[connection];
        let worker = self.processes[link.process].slot;
        let from = if cargo.is_inward() { worker } else { self.machine_of_server(link.server) };
        if self.uplinks.have_ranks() && self.links.have_queues() {
            self.queue_up(from, cargo.shard(), connection, cargo);
        } else {
            self.set_off(from, connection, cargo);
        }
    }

    /// A transfer takes its time on a machine's uplink; returns when that is over.
    pub(crate) fn set_off(&mut self, machine: usize, connection: usize, cargo: Cargo) -> Moment {
        let bytes = cargo.bytes(&self.plan);
        let passage = self.links.leave(self.now(), machine, bytes);
        let transfer = self.transfers.insert(Transfer { connection, passage, cargo });
        if self.links.have_queues() {
            self.agenda.at(passage.reaches, Happening::Reaches { transfer });
        } else {
            self.agenda.at(passage.ends(), Happening::Complete { transfer });
        }
        self.links.free_from(machine)
    }

    /// The first byte of a transfer is there.
    pub(crate) fn reaches(&mut self, place: u32) {
        let Some(transfer) = self.transfers.get(place) else { return };
        let link = &self.connections[transfer.connection];
        let to = if transfer.cargo.is_inward() {
            self.machine_of_server(link.server)
        } else {
            self.processes[link.process].slot
        };
        let when = self.links.arrive(self.agenda.now(), to, &transfer.passage);
        self.agenda.at(when, Happening::Complete { transfer: place });
    }

    /// A transfer is complete.
    pub(crate) fn complete(&mut self, place: u32) {
        let Some(Transfer { connection, cargo, .. }) = self.transfers.remove(place) else { return };
        let link = &self.connections[connection];
        let (process, server, session) = (link.process, link.server, link.session);
        let arrives = if cargo.is_inward() {
            link.server_end && self.servers[server].up && self.now() <= link.inward_cut
        } else {
            link.worker_end
        };
        if !arrives {
            return;
        }
        match (cargo, session) {
            (Cargo::Push { header, gradient }, Some(session)) => {
                self.push_arrives(server, session, &header, gradient)
            }
            (Cargo::Initial { shard }, _) => self.initial_arrives(At::new(server, shard)),
            (Cargo::Values { shard, request, served, values }, _) => {
                self.values_arrive(process, server, (shard, request), served, values);
            }
            (Cargo::Push { .. }, None) => {}
        }
    }
}
