//! Servers that cannot or may not be connected to, or will not have this worker: whose end that is.
//!
//! Without the coordinator a worker is none, and without a server that it needs and has never been registered with it cannot begin: it ends
//! at once, with the reason. Any other server may be lost for good without an end of the worker. Whether its shards have copies, or come
//! back, is known to the coordinator, which says where they are; until then they are waited for by name.

use slackline_core::ids::ServerId;
use slackline_core::wire::RefusalCode;

use crate::effect::Effect;
use crate::error::WorkerError;
use crate::event::Obstacle;
use crate::session::Session;
use crate::worker::Worker;

impl Worker {
    /// A connection could not be made.
    pub(crate) fn on_connect_failed(
        &mut self,
        server: ServerId,
        reason: String,
        obstacle: Obstacle,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        if obstacle != Obstacle::Passing && self.is_indispensable(server) {
            return Err(WorkerError::Connect { server, reason });
        }
        let is_needed = self.needs(server);
        if let Some(session) = self.sessions.get_mut(&server) {
            session.failed((reason, is_needed), &self.settings, self.now, effects);
        }
        if obstacle == Obstacle::Own && is_needed {
            self.ask_who_is_wrong(server, effects);
        }
        Ok(())
    }

    /// A server answers, and will not have this worker as things are. It is asked again, since it can be replaced by another process, or by
    /// the one with the copies.
    pub(crate) fn turned_away(&mut self, server: ServerId, reason: String, effects: &mut Vec<Effect>) {
        let is_needed = self.needs(server);
        if let Some(session) = self.sessions.get_mut(&server) {
            session.turned_away((reason, is_needed), &self.settings, self.now, effects);
        }
    }

    /// Whether the worker ends with a server that cannot have it.
    pub(crate) fn is_indispensable(&self, server: ServerId) -> bool {
        let Some(session) = self.sessions.get(&server) else { return false };
        server == self.settings.coordinator
            || (self.needs(server) && !session.was_registered() && self.knows_places(session))
    }

    /// Whether the worker ends with such a refusal. What was said over a session that stands is said again over the next one, and refused
    /// again; and a server says that the run ends only where nothing else has what it has.
    pub(crate) fn is_final(&self, server: ServerId, code: RefusalCode) -> bool {
        let is_about_all = code == RefusalCode::Stopped || self.is_registered(server);
        self.is_indispensable(server) || (self.needs(server) && is_about_all)
    }

    /// Whether the coordinator had said where shards are when the last attempt to reach this server began: the partition, which holds until
    /// then, can name a server that was replaced long ago. A coordinator that is not ready itself may wait for that very server.
    fn knows_places(&self, session: &Session) -> bool {
        let coordinator = self.sessions.get(&self.settings.coordinator);
        coordinator.is_some_and(|coordinator| {
            let has_said = coordinator.is_registered() && coordinator.since <= session.tried;
            has_said || coordinator.unready.is_some()
        })
    }

    /// A server does not accept this worker's certificate, and the coordinator did when it last looked. It looks again: if it refuses too,
    /// the worker ends, and holds nobody up who waits for its steps; else the fault is the server's.
    fn ask_who_is_wrong(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        let is_new = self.sessions.get_mut(&server).is_some_and(Session::doubt);
        if let Some(coordinator) = self.sessions.get_mut(&self.settings.coordinator).filter(|_| is_new) {
            coordinator.reconnect(&self.settings, self.now, effects);
        }
    }
}
