//! A server that cannot be one of the run: the coordinator refuses it, it cannot do what it is ordered, or its process is broken.
//!
//! Its process ends with the reason (or comes again, after a pause that its shell makes, where that can help). But one server ends no worker:
//! each finds its session closed, and hears of the coordinator where the shards are. Only with the coordinator itself the run ends.

use slackline_core::wire::{Refusal, RefusalCode};

use super::{Control, ControlEffect, End};
use crate::notice::Notice;

/// Whether coming again cannot help: whoever started the process must act.
const fn is_final(code: RefusalCode) -> bool {
    matches!(code, RefusalCode::Role | RefusalCode::Mismatch | RefusalCode::OutOfPlace)
}

impl Control {
    /// The coordinator does not take this server in.
    pub(super) fn refused_by(&mut self, refusal: &Refusal, effects: &mut Vec<ControlEffect>) {
        let at = self.settings.coordinator_at;
        if refusal.code == RefusalCode::RunOver {
            // It was not there, or could not be reached, when the coordinator told the others.
            return self.end(End::Stopped(format!("{at} says: {}", refusal.text.shown())), effects);
        }
        let text = format!("{at} refuses this process: {}", refusal.text.shown());
        if is_final(refusal.code) && self.ended.is_none() {
            self.drop_out(End::Refused(text), effects);
        } else if self.refusal.as_ref() != Some(&text) {
            effects.push(ControlEffect::Notice(Notice::NotTaken { text: text.clone() }));
            self.refusal = Some(text);
        }
    }

    /// This process cannot go on.
    pub(super) fn drop_out(&mut self, end: End, effects: &mut Vec<ControlEffect>) {
        if self.settings.coordinator.is_some() {
            return self.end(end, effects);
        }
        if self.ended.is_none() {
            self.going = None;
            self.ended = Some(end.clone());
            effects.push(ControlEffect::End(end));
        }
    }
}
