//! A server that was told to go (a signal, a rolling restart): it goes on until the coordinator says that others answer for its shards.
//!
//! Then it ends without a word to its workers: they have heard where its shards are, or find its sessions closed as if it had died, and
//! wait for it by name. Only where nothing else has what it has do they hear that the run ends.

use slackline_core::ids::Moment;
use slackline_core::wire::ServerWord;

use super::{Control, ControlEffect, End};

/// Leases that an answer of the coordinator is waited for: it waits for copies for one.
const ANSWER_LEASES: u32 = 2;

/// What a server that goes knows of that.
#[derive(Clone, Debug)]
pub(super) struct Going {
    since: Moment,
    reason: String,
}

impl Control {
    /// Whether it waits to be let go.
    #[must_use]
    pub const fn is_going(&self) -> bool {
        self.going.is_some()
    }

    /// The process was asked to end.
    pub(super) fn told_to_go(&mut self, now: Moment, reason: String, effects: &mut Vec<ControlEffect>) {
        if self.settings.coordinator.is_some() || self.ended.is_some() {
            return self.end(End::Stopped(reason), effects);
        }
        let is_again = self.going.replace(Going { since: now, reason }).is_some();
        if is_again || !self.places.is_linked {
            return self.go_unanswered(effects);
        }
        self.say(now, ServerWord::Going, effects);
    }

    /// The coordinator's answer.
    pub(super) fn go(&mut self, is_missed: bool, effects: &mut Vec<ControlEffect>) {
        // An order that nobody has asked for is none.
        let Some(Going { reason, .. }) = self.going.take() else { return };
        if is_missed {
            return self.end(End::Stopped(reason), effects);
        }
        let end = End::Stopped(reason);
        self.ended = Some(end.clone());
        effects.push(ControlEffect::End(end));
    }

    /// There is no answer, and none will come in time: what was last known of the copies decides.
    pub(super) fn go_unanswered(&mut self, effects: &mut Vec<ControlEffect>) {
        // A server that the coordinator has told nothing has nothing yet.
        let has_values = self.places.is_ordered();
        let is_missed = has_values && !self.settings.on_disk && !self.places.has_copies();
        self.go(is_missed, effects);
    }

    pub(super) fn tick_going(&mut self, now: Moment, effects: &mut Vec<ControlEffect>) {
        let patience = self.settings.lease * ANSWER_LEASES;
        if self.going.as_ref().is_some_and(|going| now.since(going.since) > patience) {
            self.go_unanswered(effects);
        }
    }
}
