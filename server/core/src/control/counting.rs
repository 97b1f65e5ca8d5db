//! Which events count: what a coordinator that is started again must hear once more to be the same to the last lease.
//!
//! A training run is made of events that decide nothing here (pulls, pushes, looks at the status). To keep each would cost a write for it;
//! so time passes for the coordinator, and leases are renewed, only by those that are kept.

use slackline_core::ids::{Moment, SessionId};
use slackline_core::role::Role;

use super::{Control, ControlEvent};

/// A lease is renewed so often at most by messages that decide nothing.
const RENEWALS: u32 = 16;

impl Control {
    /// Whether a coordinator that is started again has need of this event. The others (pulls, empty pushes, looks at the status, observers that
    /// come and go, strangers) change nothing here, not even by the time that has passed: so the events that are kept make the same control
    /// again, to the last lease, and nobody who only looks on makes anything be written or happen sooner.
    #[must_use]
    pub fn is_kept(&self, now: Moment, event: &ControlEvent) -> bool {
        self.counts(self.moment(now), event)
    }

    /// The same at a moment of the run. A message that decides nothing still renews its worker's lease, now and then.
    pub(super) fn counts(&self, now: Moment, event: &ControlEvent) -> bool {
        if !event.is_passing() {
            return match event {
                ControlEvent::Opened { role, .. } => *role != Role::Observer,
                ControlEvent::Closed { session } => !self.looks_on(*session),
                _ => true,
            };
        }
        let ControlEvent::Message { session, .. } = event else { return false };
        let worker = self.worker_of(*session);
        let heard = worker.and_then(|(worker, _)| self.members.heard(worker, *session));
        heard.is_some_and(|heard| now.since(heard) >= self.settings.lease / RENEWALS)
    }

    /// Whether a session is that of somebody who only looks on.
    pub(super) fn looks_on(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|peer| peer.role == Role::Observer)
    }

    /// A word of a worker renews its lease.
    pub(super) fn heard(&mut self, now: Moment, session: SessionId) {
        if let Some((worker, _)) = self.sessions.get(&session).and_then(|session| session.worker) {
            self.members.renew(worker, session, now);
        }
    }
}
