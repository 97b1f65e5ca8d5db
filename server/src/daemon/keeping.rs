//! What the coordinator keeps for a process that goes on in its place, and when that is of no use any more.

use std::time::{Duration, Instant};

use slackline_core::config::Durability;
use slackline_core::wire::{ToServer, WaitRow};
use slackline_server_core::ControlEvent;
use slackline_server_core::control::{End, MapRecord};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::Daemon;
use super::troubles::Place;
use crate::journal;
use crate::ledger::{Keep, Ledger, LedgerError};

/// How long a disk, or an etcd, that takes nothing is left alone.
const AGAIN: Duration = Duration::from_secs(1);

/// What is kept for a process that coordinates after this one.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Only where this server coordinates.
    pub(crate) ledger: Option<Ledger>,
    /// Turns true when this process may coordinate no more; none where nobody else could.
    pub(crate) lost: Option<watch::Receiver<bool>>,
}

impl Memory {
    /// Waits until this process may coordinate no more.
    pub(super) async fn lost(lost: &mut Option<watch::Receiver<bool>>) {
        match lost {
            // Whoever told it is gone means the same.
            Some(lost) => drop(lost.wait_for(|lost| *lost).await),
            None => std::future::pending().await,
        }
    }
}

/// The signals that end a process, for whoever waits for a disk: the loop that hears them otherwise does not run meanwhile.
#[derive(Default)]
struct Signals(Option<(Signal, Signal)>);

impl Signals {
    async fn recv(&mut self) {
        if self.0.is_none() {
            let both =
                signal(SignalKind::interrupt()).and_then(|one| Ok((one, signal(SignalKind::terminate())?)));
            self.0 = both.ok();
        }
        match &mut self.0 {
            Some((interrupt, terminate)) => {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            }
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
        self.until_kept(Keep::Snapshot(&snapshot)).await;
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
        let mut signals = Signals::default();
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
                match &told {
                    Some(text) => tracing::warn!("{text}; nothing goes on before it can be"),
                    None => tracing::info!("the coordinator's memory can be kept again"),
                }
                self.next.push_back(ControlEvent::Trouble(told));
            }
            if is_done {
                self.shared().stand_still(None);
                return true;
            }
            self.stand_still(*since.get_or_insert_with(Instant::now), said);
            tokio::select! {
                () = signals.recv() => {
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
        let mut status = self.control.status(self.now());
        status
            .waits
            .insert(0, WaitRow::new(since.elapsed(), format!("{why}; nothing goes on before it can be")));
        self.shared().stand_still(Some(status));
    }

    /// At the end: removes what no other process can go on with.
    pub(super) async fn forget(&mut self) {
        let config = &self.resolved.config;
        let can_go_on = config.cluster.durability == Durability::Disk || config.checkpoint.every.is_some();
        // A run that failed or was stopped goes on when it is started again; only a complete one stays over.
        let forget = self.end == Some(End::Complete) || !can_go_on;
        let over = self.end.as_ref().map(|end| match end {
            End::Complete => "the run is complete",
            End::Stopped(reason) | End::Failed(reason) | End::Refused(reason) => reason.as_str(),
        });
        if let Some(ledger) = self.memory.ledger.take().filter(|_| !self.is_deposed)
            && let Err(error) = ledger.close(over, forget).await
        {
            tracing::warn!("{error}; candidates that stand by are not told that the run is over");
        }
        let folder = &self.home.surroundings.journals;
        if !forget || self.is_deposed {
            if matches!(self.end, Some(End::Failed(_))) && !self.is_deposed {
                tracing::warn!(
                    "what this server has of the run stays in {}: started again it goes on with that, or anew with --fresh",
                    folder.display()
                );
            }
            return;
        }
        if let Err(error) = journal::forget(folder) {
            tracing::warn!("{} cannot be removed: {error}", folder.display());
        }
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
