//! What the coordinator's server keeps for a restart of its process, and when that is of no use any more.

use std::time::Duration;

use slackline_core::config::Durability;
use slackline_core::ids::Moment;
use slackline_core::wire::ToServer;
use slackline_server_core::ControlEvent;
use slackline_server_core::control::{End, MapRecord};

use super::Daemon;
use super::troubles::Place;
use crate::journal;
use crate::ledger::{Ledger, LedgerError};

/// How long a disk that takes nothing is left alone.
const AGAIN: Duration = Duration::from_secs(1);

impl Daemon {
    /// Keeps an event before anything follows from it.
    pub(super) async fn keep(&mut self, now: Moment, event: &ControlEvent) {
        if self.ledger.is_none() || is_passing(event) {
            return;
        }
        let now = self.control.moment(now);
        self.until_kept(|ledger| ledger.append(now, event, is_lasting(event))).await;
        if self.ledger.as_ref().is_some_and(Ledger::is_long) {
            // Without the event, which is to be handled yet.
            let snapshot = match self.control.state() {
                Ok(snapshot) => snapshot,
                // It can only be too large, and is tried again with the next event; until then the events go on.
                Err(error) => return tracing::warn!("the coordinator's memory is not cut: {error}"),
            };
            self.until_kept(|ledger| {
                ledger.snapshot(&snapshot)?;
                ledger.append(now, event, is_lasting(event))
            })
            .await;
        }
    }

    /// Keeps a map of shards before any server is told of it.
    pub(super) async fn keep_map(&mut self, map: &MapRecord) {
        let bytes = slackline_core::wire::encode_state(map).unwrap_or_default();
        self.until_kept(|ledger| ledger.map(&bytes)).await;
    }

    /// Tries until it is done. Nothing that follows may leave before, so nothing else is done meanwhile; the network goes on.
    async fn until_kept(&mut self, mut attempt: impl FnMut(&mut Ledger) -> Result<(), LedgerError>) {
        loop {
            let Some(ledger) = &mut self.ledger else { return };
            let text = attempt(ledger).err().map(|error| error.to_string());
            let is_done = text.is_none();
            let text = text.map(|text| format!("{}: {text}", self.home.surroundings.server));
            if let Some(told) = self.troubles.note(Place::Ledger, text) {
                match &told {
                    Some(text) => tracing::warn!("{text}; nothing goes on before it can be"),
                    None => tracing::info!("the coordinator's memory can be kept again"),
                }
                self.next.push_back(ControlEvent::Trouble(told));
            }
            if is_done {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// At the end: removes what no other process can go on with.
    pub(super) fn forget(&mut self) {
        let config = &self.resolved.config;
        let can_go_on = config.cluster.durability == Durability::Disk || config.checkpoint.every.is_some();
        let folder = &self.home.surroundings.journals;
        if self.end != Some(End::Complete) && can_go_on {
            if matches!(self.end, Some(End::Failed(_))) {
                tracing::warn!(
                    "what this server has of the run stays in {}: started again it goes on with that, or anew with --fresh",
                    folder.display()
                );
            }
            return;
        }
        drop(self.ledger.take());
        if let Err(error) = journal::forget(folder) {
            tracing::warn!("{} cannot be removed: {error}", folder.display());
        }
    }
}

/// What no power cut may take back: an incarnation is never given twice.
const fn is_lasting(event: &ControlEvent) -> bool {
    matches!(event, ControlEvent::Message { message: ToServer::Join(_), .. })
}

/// What changes nothing that a restarted coordinator needs: most events of a training run, and what strangers can do.
fn is_passing(event: &ControlEvent) -> bool {
    if matches!(event, ControlEvent::TurnedAway { .. }) {
        return true;
    }
    let ControlEvent::Message { message, .. } = event else { return false };
    matches!(
        message,
        ToServer::Pull(_) | ToServer::PushNothing { .. } | ToServer::Status | ToServer::Commit { .. }
    )
}
