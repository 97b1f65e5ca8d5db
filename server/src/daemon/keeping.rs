//! What the coordinator keeps for a process that goes on in its place, and when that is of no use any more.

use std::time::{Duration, Instant};

use slackline_core::ids::Moment;
use slackline_core::wire::{ServerWord, ToServer, WaitRow};
use slackline_server_core::ControlEvent;
use slackline_server_core::control::MapRecord;
use tokio::sync::watch;

use super::Daemon;
use super::troubles::Place;
use crate::ledger::{Keep, Ledger, LedgerError};
use crate::session::Standstill;

/// How long a disk, or an etcd, that takes nothing is left alone.
const AGAIN: Duration = Duration::from_secs(1);

/// How long events from which nothing followed wait for one from which something does, and how many do.
const HOLD: Duration = Duration::from_secs(1);
const HELD_MAX: usize = 1024;

/// What is kept for a process that coordinates after this one.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Only where this server coordinates.
    pub(crate) ledger: Option<Ledger>,
    /// Turns true when this process may coordinate no more; none where nobody else could.
    pub(crate) lost: Option<watch::Receiver<bool>>,
    /// Events from which nothing has followed, which are written with the next one from which something does.
    held: Vec<(Moment, ControlEvent)>,
    /// When the first of them came.
    held_since: Option<Moment>,
}

impl Memory {
    pub(crate) fn new(ledger: Option<Ledger>, lost: Option<watch::Receiver<bool>>) -> Self {
        Self { ledger, lost, ..Self::default() }
    }

    /// What of all that was not written yet is to be written now. Whoever goes on in this one's place does not miss time that passed and words
    /// that only renewed a lease, as long as nothing has followed from them: it begins all leases anew. In a store that keeps the history of
    /// its rows each would cost a transaction for nothing.
    pub(super) fn due(
        &mut self,
        events: Vec<(Moment, ControlEvent)>,
        has_effects: bool,
        now: Moment,
    ) -> Vec<(Moment, ControlEvent)> {
        let all_wait = !has_effects && events.iter().all(|(_, event)| may_wait(event));
        self.held.extend(events);
        if self.held.is_empty() {
            return Vec::new();
        }
        let since = *self.held_since.get_or_insert(now);
        if all_wait && self.held.len() < HELD_MAX && now.since(since) < HOLD {
            return Vec::new();
        }
        self.held_since = None;
        std::mem::take(&mut self.held)
    }

    /// Waits until this process may coordinate no more.
    pub(super) async fn lost(lost: &mut Option<watch::Receiver<bool>>) {
        match lost {
            // Whoever told it is gone means the same.
            Some(lost) => drop(lost.wait_for(|lost| *lost).await),
            None => std::future::pending().await,
        }
    }
}

impl Daemon {
    /// Cuts the memory where it has become long: a snapshot in the place of all events.
    pub(super) async fn cut_memory(&mut self) {
        if self.memory.ledger.as_ref().is_none_or(|ledger| !ledger.is_long()) {
            return;
        }
        let snapshot = match self.control.state() {
            Ok(snapshot) => snapshot,
            // It can only be too large, and is tried again with the next event; until then the events go on.
            Err(error) => return tracing::warn!("the coordinator's memory is not cut: {error}"),
        };
        if self.until_kept(Keep::Snapshot(&snapshot)).await {
            // They are in it.
            (self.memory.held, self.memory.held_since) = (Vec::new(), None);
        }
    }

    /// Keeps a map of shards before any server is told of it. False when it cannot be any more.
    pub(super) async fn keep_map(&mut self, map: &MapRecord) -> bool {
        let bytes = slackline_core::wire::encode_state(map).unwrap_or_default();
        self.until_kept(Keep::Map(&bytes)).await
    }

    /// Tries until it is done. Nothing that follows may leave before, so nothing else is done meanwhile; the network goes on. False when
    /// this process leads no more, and whatever it meant to do is another one's.
    pub(super) async fn until_kept(&mut self, keep: Keep<'_>) -> bool {
        if matches!(keep, Keep::Events(events) if events.is_empty()) {
            return !self.is_deposed;
        }
        let mut since = None;
        while !self.is_deposed {
            let Some(ledger) = &mut self.memory.ledger else { return true };
            let lost = &mut self.memory.lost;
            let outcome = tokio::select! {
                biased;
                outcome = ledger.keep(keep) => outcome,
                () = Memory::lost(lost) => Err(LedgerError::Deposed),
            };
            if matches!(outcome, Err(LedgerError::Deposed)) {
                self.is_deposed = true;
                return false;
            }
            let is_done = outcome.is_ok();
            let text = outcome.err().map(|error| format!("{}: {error}", self.home.surroundings.server));
            let said = text.clone().unwrap_or_default();
            if let Some(told) = self.troubles.note(Place::Ledger, text) {
                self.next.push_back(ControlEvent::Trouble(told));
            }
            if is_done {
                self.shared().stand_still(None);
                return true;
            }
            self.stand_still(*since.get_or_insert_with(Instant::now), said);
            tokio::select! {
                _ = self.signals.recv() => {
                    tracing::warn!("ends without what could not be kept; started again it goes on with what was");
                    (self.is_deposed, self.is_interrupted) = (true, true);
                }
                () = tokio::time::sleep(AGAIN) => {}
                () = Memory::lost(&mut self.memory.lost) => self.is_deposed = true,
            }
        }
        false
    }

    /// Whoever asks for a status meanwhile is told why nothing goes on, and how things stood.
    fn stand_still(&self, since: Instant, why: String) {
        let mut status = self.control.status(self.moment());
        status
            .waits
            .insert(0, WaitRow::new(since.elapsed(), format!("{why}; nothing goes on before it can be")));
        self.shared().stand_still(Some(Standstill { welcome: self.control.welcome(), status }));
    }
}

/// What changes nothing that a restarted coordinator needs: most events of a training run, and what strangers can do.
pub(super) fn is_passing(event: &ControlEvent) -> bool {
    if matches!(event, ControlEvent::TurnedAway { .. }) {
        return true;
    }
    let ControlEvent::Message { message, .. } = event else { return false };
    matches!(
        message,
        ToServer::Pull(_) | ToServer::PushNothing { .. } | ToServer::Status | ToServer::Commit { .. }
    )
}

/// What changes nothing but what is known of the time.
const fn may_wait(event: &ControlEvent) -> bool {
    matches!(
        event,
        ControlEvent::Tick
            | ControlEvent::Message { message: ToServer::Renew | ToServer::Cluster(ServerWord::Alive), .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_passed_is_written_with_what_follows_and_within_a_second() {
        let mut memory = Memory::default();
        let at = |milliseconds: u64| Moment(milliseconds * 1_000_000);
        let tick = |milliseconds| (at(milliseconds), ControlEvent::Tick);
        let none: Vec<(Moment, ControlEvent)> = Vec::new();
        assert_eq!(memory.due(vec![tick(0)], false, at(0)), none);
        assert_eq!(memory.due(vec![tick(250)], false, at(250)), none);
        let persisted = (at(300), ControlEvent::Persisted { number: 1 });
        let all = vec![tick(0), tick(250), persisted.clone()];
        assert_eq!(memory.due(vec![persisted], false, at(300)), all, "in their order");
        assert_eq!(memory.due(vec![tick(400)], true, at(400)), vec![tick(400)], "something followed from it");
        assert_eq!(memory.due(vec![tick(500)], false, at(500)), none);
        assert_eq!(memory.due(Vec::new(), false, at(600)), none);
        assert_eq!(memory.due(vec![tick(1500)], false, at(1500)), vec![tick(500), tick(1500)]);
        assert_eq!(memory.due(Vec::new(), true, at(1600)), none, "a look at the status is not written");
    }
}
