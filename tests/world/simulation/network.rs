//! What a link does. Control messages of one connection keep their order; transfers go beside them and may overtake. Nothing is lost
//! while a connection lives; with it, everything that has not arrived is, though some of it may still arrive late.

use std::sync::Arc;

use slackline_core::ids::{Moment, ServerId, SessionId};
use slackline_core::wire::{Pull, PullKind, ToPeer, ToServer, TransferHeader, TransferKind};
use slackline_worker_core::{Event, Obstacle};

use super::agenda::Happening;
use super::scenario::Tamper;
use super::sight::PushKey;
use super::world::World;

/// What reaches a server.
#[derive(Clone, Debug)]
pub(crate) enum Inward {
    /// A worker connects.
    Dial,
    /// A control message.
    Message(ToServer),
    /// A gradient or initial values.
    Transfer { header: TransferHeader, values: Vec<f32>, origin: Option<PushKey> },
    /// The connection is over.
    Gone,
}

/// What reaches a worker.
#[derive(Clone, Debug)]
pub(crate) enum Outward {
    /// The connection stands.
    Connected,
    /// It could not be made.
    Failed,
    /// A control message.
    Message(ToPeer),
    /// The answer to a pull.
    Values { header: TransferHeader, values: Arc<Vec<f32>> },
    /// The connection is over.
    Lost,
}

/// Who made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// A worker's process.
    Process(usize),
    /// Another server, in the process with this boot number: it speaks to the coordinator.
    Server(usize, u64),
}

/// One connection to a server, with what each end knows.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    pub(crate) server: usize,
    /// The boot number of the server's process that took it.
    pub(crate) boot: u64,
    pub(crate) session: Option<SessionId>,
    /// The end of whoever made it is there.
    pub(crate) worker_end: bool,
    /// The server's end is there.
    pub(crate) server_end: bool,
    /// The server sends nothing more.
    pub(crate) closing: bool,
    inward_last: Moment,
    /// When the last of the transfers arrives that were sent so far.
    transfer_last: Moment,
    outward_last: Moment,
    inward_cut: Moment,
    outward_cut: Moment,
}

const NEVER: Moment = Moment(u64::MAX);

impl World {
    pub(crate) fn delay(&mut self, is_transfer: bool) -> std::time::Duration {
        let weather = self.weather;
        let longest = if is_transfer { weather.transfer_delay } else { weather.delay };
        let usual = self.chance.micros(100, longest);
        let spike = self.chance.happens(weather.spike);
        if spike { usual + self.chance.micros(0, weather.spike_delay) } else { usual }
    }

    /// A worker's shell connects.
    pub(crate) fn dial(&mut self, process: usize, server: ServerId) {
        let server = server.0 as usize;
        let connection = self.connect(Peer::Process(process), server);
        if let Some(former) = self.processes[process].links.insert(server, connection) {
            self.hang_up(former);
        }
        self.processes[process].expected.retain(|_, (owner, ..)| *owner != server);
    }

    /// Somebody connects to a server.
    pub(crate) fn connect(&mut self, peer: Peer, server: usize) -> usize {
        let connection = self.connections.len();
        self.connections.push(Connection {
            peer,
            server,
            boot: 0,
            session: None,
            worker_end: true,
            server_end: false,
            closing: false,
            inward_last: self.now,
            transfer_last: self.now,
            outward_last: self.now,
            inward_cut: NEVER,
            outward_cut: NEVER,
        });
        if self.is_parted(peer, server) || self.chance.happens(self.weather.connect_fails) {
            let when = self.now.after(self.chance.micros(1_000, 1_500_000));
            self.agenda.at(when, Happening::AtWorker { connection, what: Outward::Failed });
        } else {
            self.send_inward(connection, Inward::Dial);
        }
        connection
    }

    /// Whether there is no way between the two at present.
    pub(crate) fn is_parted(&self, peer: Peer, server: usize) -> bool {
        self.parted.iter().any(|(left, right, until)| {
            *until > self.now
                && match peer {
                    Peer::Process(_) => (*left, *right) == (peer, server),
                    Peer::Server(other, _) => {
                        matches!(left, Peer::Server(one, _) if (*one, *right) == (other, server) || (*one, *right) == (server, other))
                    }
                }
        })
    }

    /// A worker's shell closes; what it sent before may be lost with the connection or not.
    pub(crate) fn hang_up(&mut self, connection: usize) {
        let way = self.delay(false);
        let is_discarded = self.chance.happens(500);
        let idle = if self.chance.happens(100) { self.scenario.lease } else { way };
        let now = self.now;
        let link = &mut self.connections[connection];
        if !link.worker_end {
            return;
        }
        link.worker_end = false;
        if is_discarded {
            link.inward_cut = link.inward_cut.min(now);
        }
        let when = link.inward_last.max(now.after(idle));
        self.agenda.at(when, Happening::AtServer { connection, what: Inward::Gone });
    }

    /// A server's shell closes: its last words are read first, usually, and it reads on for a while.
    pub(crate) fn turn_out(&mut self, connection: usize) {
        let (way, reads_on) = (self.delay(false), self.chance.micros(0, 1_000_000));
        let is_cut_short = self.weather.connect_fails > 0 && self.chance.happens(100);
        let now = self.now;
        let link = &mut self.connections[connection];
        if link.closing {
            return;
        }
        link.closing = true;
        if is_cut_short {
            link.outward_cut = link.outward_cut.min(now);
        }
        link.outward_last = Moment(link.outward_last.0 + 1).max(now.after(way));
        self.agenda.at(link.outward_last, Happening::AtWorker { connection, what: Outward::Lost });
        self.agenda.at(now.after(reads_on), Happening::AtServer { connection, what: Inward::Gone });
    }

    /// The way between the two breaks: each end learns it some time later, and what was under way arrives late or never.
    pub(crate) fn cut(&mut self, connection: usize) {
        let idle = self.scenario.lease.as_micros() as u64;
        let (inward, outward) = (self.chance.micros(0, 600_000), self.chance.micros(0, 100_000));
        let worker_learns = self.now.after(self.chance.micros(0, idle));
        let server_learns = self.now.after(self.chance.micros(0, idle));
        let now = self.now;
        let link = &mut self.connections[connection];
        link.inward_cut = link.inward_cut.min(now.after(inward));
        link.outward_cut = link.outward_cut.min(now.after(outward));
        self.agenda.at(worker_learns, Happening::AtWorker { connection, what: Outward::Lost });
        self.agenda.at(server_learns, Happening::AtServer { connection, what: Inward::Gone });
    }

    /// A worker's process is gone without a word.
    pub(crate) fn fall_silent(&mut self, connection: usize) {
        let idle = self.scenario.lease.as_micros() as u64;
        let last = self.now.after(self.chance.micros(0, 50_000));
        let when = self.now.after(self.chance.micros(0, idle));
        let link = &mut self.connections[connection];
        link.worker_end = false;
        link.inward_cut = link.inward_cut.min(last);
        self.agenda.at(when, Happening::AtServer { connection, what: Inward::Gone });
    }

    /// Puts something on its way to a server.
    pub(crate) fn send_inward(&mut self, connection: usize, what: Inward) {
        let what = self.tampered_push(connection, what);
        let is_transfer = matches!(what, Inward::Transfer { .. });
        let mut when = self.now.after(self.delay(is_transfer));
        if let Inward::Transfer { header, values, origin: Some(origin) } = &what
            && self.chance.happens(self.weather.duplicate)
        {
            let mut header = *header;
            if self.scenario.tamper == Some(Tamper::Renumber) {
                header.sequence = header.sequence.next();
            }
            let (values, origin) = (values.clone(), Some(*origin));
            let again = self.now.after(self.delay(true));
            let what = Inward::Transfer { header, values, origin };
            self.counts.duplicates += 1;
            self.agenda.at(again, Happening::AtServer { connection, what });
        }
        let link = &mut self.connections[connection];
        if is_transfer {
            self.counts.overtakings += u64::from(when < link.transfer_last);
            link.transfer_last = link.transfer_last.max(when);
        } else {
            when = when.max(Moment(link.inward_last.0 + 1));
            link.inward_last = when;
        }
        self.agenda.at(when, Happening::AtServer { connection, what });
    }

    /// Puts something on its way to a worker.
    pub(crate) fn send_outward(&mut self, connection: usize, what: Outward) {
        let is_answer = matches!(what, Outward::Message(ToPeer::Pushed(_)));
        if is_answer && self.scenario.tamper == Some(Tamper::LoseAnswer) && self.chance.happens(100) {
            return;
        }
        let is_transfer = matches!(what, Outward::Values { .. });
        let mut when = self.now.after(self.delay(is_transfer));
        let link = &mut self.connections[connection];
        if link.closing {
            return;
        }
        if !is_transfer {
            when = when.max(Moment(link.outward_last.0 + 1));
            link.outward_last = when;
        }
        self.agenda.at(when, Happening::AtWorker { connection, what });
    }

    /// Something reaches a server, unless it was lost.
    pub(crate) fn at_server(&mut self, connection: usize, what: Inward) -> super::sight::Verdict {
        let link = &self.connections[connection];
        // What a process that is gone was reading is gone with it.
        let is_former = link.server_end && link.boot != self.servers[link.server].boot;
        let is_lost = is_former || (self.now >= link.inward_cut && !matches!(what, Inward::Gone));
        match what {
            _ if is_lost => Ok(()),
            Inward::Dial => self.accept(connection),
            Inward::Message(message) if link.server_end => {
                self.control_message(connection, self.tampered_message(message))
            }
            Inward::Transfer { header, values, origin } => {
                // A stripe whose reading had begun can outlive its connection.
                let arrives = link.server_end || self.chance.happens(500);
                if arrives { self.take_transfer(connection, header, values, origin) } else { Ok(()) }
            }
            Inward::Gone if link.server_end => self.session_over(connection),
            Inward::Message(_) | Inward::Gone => Ok(()),
        }
    }

    /// Something reaches a worker, unless it was lost.
    pub(crate) fn at_worker(&mut self, connection: usize, what: Outward) -> super::sight::Verdict {
        let link = &self.connections[connection];
        let server = link.server;
        let is_over = matches!(what, Outward::Lost | Outward::Failed);
        if !link.worker_end || (self.now >= link.outward_cut && !is_over) {
            return Ok(());
        }
        if is_over {
            self.connections[connection].worker_end = false;
        }
        let process = match self.connections[connection].peer {
            Peer::Process(process) => process,
            Peer::Server(from, boot) => return self.at_follower(connection, (from, boot), what),
        };
        let id = ServerId(server as u32);
        let event = match what {
            Outward::Connected => Event::Connected { server: id },
            Outward::Failed => Event::ConnectFailed {
                server: id,
                reason: "no answer".to_owned(),
                obstacle: Obstacle::Passing,
            },
            Outward::Message(message) => {
                self.told(process, &message)?;
                Event::Message { server: id, message }
            }
            Outward::Values { header, values } => {
                return self.values_arrive(process, server, &header, &values);
            }
            Outward::Lost => Event::Lost { server: id },
        };
        if is_over && self.processes[process].links.get(&server) == Some(&connection) {
            self.processes[process].links.remove(&server);
        }
        self.worker_event(process, event)
    }

    /// Where pulls claim to be of clock 0, so does one that a push brings: it goes by a message then.
    fn tampered_push(&mut self, connection: usize, what: Inward) -> Inward {
        match what {
            Inward::Transfer { mut header, values, origin }
                if self.scenario.tamper == Some(Tamper::ServeEarly) && header.reply > 0 =>
            {
                let kind = PullKind::Gated { clock: header.clock.next(), after: header.sequence, ahead: 0 };
                let pull = Pull { shard: header.shard, request: header.reply, have: header.have, kind };
                self.send_inward(connection, Inward::Message(ToServer::Pull(pull)));
                header.reply = 0;
                Inward::Transfer { header, values, origin }
            }
            what => what,
        }
    }

    fn tampered_message(&self, message: ToServer) -> ToServer {
        match message {
            ToServer::Pull(mut pull) if self.scenario.tamper == Some(Tamper::ServeEarly) => {
                if let PullKind::Gated { clock, .. } = &mut pull.kind {
                    clock.0 = 0;
                }
                ToServer::Pull(pull)
            }
            message => message,
        }
    }

    /// Whether a header is that of a push.
    pub(crate) const fn is_push(header: &TransferHeader) -> bool {
        matches!(header.kind, TransferKind::Push)
    }
}
