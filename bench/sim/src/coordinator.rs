//! The session of each server with the coordinator: its words there, the orders back. Both take the latency of a control message.

use std::time::Duration;

use slackline_core::ids::{Moment, SessionId};
use slackline_core::role::Role;
use slackline_core::wire::{ServerOrder, ServerWord, ToPeer, ToServer};
use slackline_server_core::ControlEvent;

use crate::servers::Peer;
use crate::world::{Happening, World};

/// Until a server looks for the coordinator again.
const REDIAL_PAUSE: Duration = Duration::from_millis(100);

/// A server's session with the coordinator, with what each end knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// Counts the sessions.
    number: u64,
    is_open: bool,
    /// The coordinator's end.
    session: Option<SessionId>,
}

impl Link {
    /// The link of the next process of the same server.
    pub(crate) const fn anew(self) -> Self {
        Self { number: self.number + 1, is_open: false, session: self.session }
    }
}

/// What passes between a server and the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum Linked {
    /// At the coordinator: a server connects.
    Dials,
    /// At the coordinator: a word.
    Says(Box<ServerWord>),
    /// At the coordinator: the session is over.
    Leaves,
    /// At the server: the session stands.
    Connects,
    /// At the server: nobody answered.
    Fails,
    /// At the server: an order.
    Hears(Box<ServerOrder>),
    /// At the server: the session is over.
    Loses,
    /// At the server: time to connect again.
    Redials,
}

impl Linked {
    /// Whether it happens at the coordinator.
    pub(crate) const fn is_at_coordinator(&self) -> bool {
        matches!(self, Self::Dials | Self::Says(_) | Self::Leaves)
    }
}

impl World {
    fn pass(&mut self, server: usize, number: u64, what: Linked) {
        let when = self.now().after(self.way());
        self.agenda.at(when, Happening::Linked { server, number, what });
    }

    /// A server connects to the coordinator.
    pub(crate) fn dial_coordinator(&mut self, server: usize) {
        let link = &mut self.servers[server].link;
        (link.number, link.is_open) = (link.number + 1, false);
        let number = link.number;
        self.pass(server, number, Linked::Dials);
    }

    /// A server says something to the coordinator; without a session it is not heard.
    pub(crate) fn tell_coordinator(&mut self, server: usize, word: ServerWord) {
        let Link { number, is_open, .. } = self.servers[server].link;
        if is_open {
            self.pass(server, number, Linked::Says(Box::new(word)));
        }
    }

    /// The coordinator says something to a server.
    pub(crate) fn order(&mut self, server: usize, number: u64, message: ToPeer) {
        if let ToPeer::Cluster(order) = message {
            self.pass(server, number, Linked::Hears(Box::new(order)));
        }
    }

    /// The coordinator closes a server's session.
    pub(crate) fn end_link(&mut self, server: usize, number: u64) {
        self.pass(server, number, Linked::Loses);
        self.leaves(server, number);
    }

    fn leaves(&mut self, server: usize, number: u64) {
        let is_it = |peer: &Option<Peer>| *peer == Some(Peer::Server(server, number));
        if let Some(session) = self.servers[0].sessions.iter().position(is_it) {
            if self.servers[server].link.session == Some(SessionId(session as u64)) {
                self.servers[server].link.session = None;
            }
            self.control_event(0, ControlEvent::Closed { session: SessionId(session as u64) });
        }
    }

    /// A server's process is gone without a word: whoever had a session with it learns it after a lease.
    pub(crate) fn crash_link(&mut self, server: usize) {
        let idle = self.now().after(self.plan.lease);
        if server == 0 {
            return self.lose_links_to(0, idle);
        }
        let number = self.servers[server].link.number;
        self.agenda.at(idle, Happening::Linked { server, number, what: Linked::Leaves });
    }

    /// All servers learn at this moment that the coordinator's process is another one.
    pub(crate) fn lose_links_to(&mut self, server: usize, when: Moment) {
        if server != 0 {
            return;
        }
        for (server, state) in self.servers.iter().enumerate().skip(1) {
            let Link { number, is_open, .. } = state.link;
            if is_open {
                self.agenda.at(when, Happening::Linked { server, number, what: Linked::Loses });
            }
        }
    }

    /// Something passes between a server and the coordinator.
    pub(crate) fn linked(&mut self, server: usize, number: u64, what: Linked) {
        let end = if what.is_at_coordinator() { 0 } else { server };
        let is_present = self.servers[server].link.number == number;
        if !self.servers[end].up {
            if matches!(what, Linked::Dials) {
                self.pass(server, number, Linked::Fails);
            }
            return;
        }
        match what {
            Linked::Dials => {
                let session = self.new_session(0, Peer::Server(server, number));
                self.servers[server].link.session = Some(session);
                self.pass(server, number, Linked::Connects);
                let address = format!("server {server}");
                self.control_event(0, ControlEvent::Opened { session, role: Role::Server, address });
            }
            Linked::Says(word) => {
                let session = self.servers[server].link.session;
                let is_of = |session: &SessionId| {
                    let peer = self.servers[0].sessions.get(session.0 as usize).copied().flatten();
                    peer == Some(Peer::Server(server, number))
                };
                if let Some(session) = session.filter(is_of) {
                    let message = ToServer::Cluster(*word);
                    self.control_event(0, ControlEvent::Message { session, message });
                }
            }
            Linked::Leaves => self.leaves(server, number),
            _ if !is_present => {}
            Linked::Connects => {
                self.servers[server].link.is_open = true;
                self.control_event(server, ControlEvent::CoordinatorOpened);
            }
            Linked::Fails => self.redial(server, number),
            Linked::Hears(order) => {
                if self.servers[server].link.is_open {
                    self.control_event(server, ControlEvent::Ordered(*order));
                }
            }
            Linked::Loses => {
                if std::mem::take(&mut self.servers[server].link.is_open) {
                    self.control_event(server, ControlEvent::CoordinatorLost);
                    self.redial(server, number);
                }
            }
            Linked::Redials => self.dial_coordinator(server),
        }
    }

    fn redial(&mut self, server: usize, number: u64) {
        let when = self.now().after(REDIAL_PAUSE);
        self.agenda.at(when, Happening::Linked { server, number, what: Linked::Redials });
    }
}
