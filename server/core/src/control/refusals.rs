//! A server that the coordinator refuses. Where it can never be one of the run its process ends, with the coordinator's reason; else it
//! comes again, after a pause that its shell makes.

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
            // The run is not over, so no worker hears that it is: each finds its session closed, and hears of the coordinator where the
            // shards are.
            self.going = None;
            let end = End::Refused(text);
            self.ended = Some(end.clone());
            effects.push(ControlEffect::End(end));
        } else if self.refusal.as_ref() != Some(&text) {
            effects.push(ControlEffect::Notice(Notice::NotTaken { text: text.clone() }));
            self.refusal = Some(text);
        }
    }
}
