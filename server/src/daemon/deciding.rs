//! From events to effects: what control decides is done when the events that it follows from are kept, and not before.

use slackline_core::ids::Moment;
use slackline_core::wire::{ServerOrder, ToServer};
use slackline_server_core::{ControlEffect, ControlEvent};

use super::Daemon;
use crate::ledger::{Keep, Ledger};

/// Control events that are handled, and kept, together at most.
const TOGETHER_MAX: usize = 1024;

impl Daemon {
    /// Events that are handled together at most: one write keeps them all. Where nothing is kept, each by itself.
    pub(super) const fn together(&self) -> usize {
        if self.memory.ledger.is_some() { TOGETHER_MAX } else { 1 }
    }

    /// All events that are to be handled. What follows from them is done when they are kept, and not before.
    pub(super) async fn handle_next(&mut self) {
        if let Some((event, count)) = self.shared().unheard.take() {
            self.refusals.leave_out(count);
            self.next.push_front(event);
        }
        while !self.next.is_empty() && !self.is_deposed {
            self.cut_memory().await;
            let (kept, effects) = self.decide();
            if !self.until_kept(Keep::Events(&kept)).await {
                return;
            }
            for effect in effects {
                self.perform(effect).await;
            }
        }
    }

    /// Lets control handle the next events: those that are to be kept, and what follows from all of them.
    fn decide(&mut self) -> (Vec<(Moment, ControlEvent)>, Vec<ControlEffect>) {
        let is_shared = self.memory.ledger.as_ref().is_some_and(Ledger::is_shared);
        let (mut kept, mut effects) = (Vec::new(), Vec::new());
        for _ in 0..self.together() {
            let Some(event) = self.next.pop_front() else { break };
            let now = self.now();
            if let (Some(saver), ControlEvent::Ordered(ServerOrder::Places { run, from, .. })) =
                (&self.home.surroundings.saver, &event)
            {
                saver.belongs_to(*run, *from);
            }
            let registers = match &event {
                ControlEvent::Message { session, message: ToServer::Register(_) } => Some(*session),
                _ => None,
            };
            let is_kept = self.control.is_kept(now, &event);
            let may_be_kept = self.memory.ledger.is_some() && (is_shared || is_kept);
            let record = may_be_kept.then(|| (self.control.moment(now), event.clone()));
            let before = effects.len();
            self.control.handle(now, event, &mut effects);
            if let Some(session) = registers {
                self.shared().directory.bind(session, self.control.worker_of(session));
            }
            // A deposed candidate must not say anything: whatever is said is written before, even if a restart does not need it.
            let says = |effect: &ControlEffect| is_shared && !matches!(effect, ControlEffect::Status { .. });
            kept.extend(record.filter(|_| is_kept || effects[before..].iter().any(says)));
            // These look at what control knows when they are done.
            let looks =
                |effect: &ControlEffect| matches!(effect, ControlEffect::Evaluated | ControlEffect::End(_));
            if effects[before..].iter().any(looks) {
                break;
            }
        }
        if is_shared {
            let now = self.now();
            kept = self.memory.due(kept, !effects.is_empty(), now);
        }
        (kept, effects)
    }
}
