//! The end of a server: what is told to those who go on, to peers, and what stays.

use std::time::Duration;

use slackline_core::config::Durability;
use slackline_core::ids::ServerId;
use slackline_net::CloseCode;
use slackline_server_core::ControlEvent;
use slackline_server_core::control::End;
use tokio::sync::mpsc;

use super::Daemon;
use crate::directory::Outgoing;
use crate::ledger::{FAILED, LedgerError};
use crate::{journal, peers};

/// How long the end waits for peers to read what they were told.
const FAREWELL: Duration = Duration::from_secs(2);

impl Daemon {
    /// What every peer is told last.
    pub(super) const fn last_word(&self) -> (CloseCode, &'static str) {
        if self.is_deposed || self.memory.lost.is_some() && self.end.is_none() {
            (CloseCode::StandsBy, "this process coordinates no more")
        } else {
            (CloseCode::Done, "the server ends")
        }
    }

    /// Says how the run ended, where it did, so that whoever stands by ends too, and forgets it where nobody can go on. Where it goes on,
    /// another one may lead from now on.
    pub(super) async fn hand_over(&mut self) {
        let over = self.end.as_ref().map(|end| match end {
            End::Complete => "the run is complete".to_owned(),
            End::Stopped(reason) => format!("the run was stopped: {reason}"),
            End::Failed(reason) | End::Refused(reason) => format!("{FAILED}{reason}"),
        });
        let Some(mut ledger) = self.memory.ledger.take().filter(|_| !self.is_deposed) else { return };
        let Some(over) = over else {
            tokio::select! {
                () = ledger.close() => {}
                _ = self.signals.recv() => self.is_interrupted = true,
            }
            return;
        };
        let forget = self.is_of_no_use();
        let outcome = tokio::select! {
            outcome = ledger.end(&over, forget) => outcome,
            _ = self.signals.recv() => {
                self.is_interrupted = true;
                return tracing::warn!("ends at once; candidates that stand by may not be told that the run is over");
            }
        };
        match outcome {
            // It leads until the servers are told: who takes its place before that tells them.
            Ok(()) => self.memory.ledger = Some(ledger),
            Err(error) => {
                // Whoever leads now finds the same end in what was kept, and says it.
                self.is_deposed = matches!(error, LedgerError::Deposed);
                tracing::warn!("{error}; candidates that stand by are not told that the run is over");
                ledger.close().await;
            }
        }
    }

    /// All servers are told that the run is over, as far as they can be: nobody has to do it again, and whoever stands by ends.
    pub(super) async fn let_go(&mut self) {
        let Some(mut ledger) = self.memory.ledger.take() else { return };
        let told = async {
            if let Err(error) = ledger.say_told().await {
                tracing::warn!(
                    "{error}; a candidate that stands by tells the servers once more that the run is over"
                );
            }
            ledger.close().await;
        };
        tokio::select! {
            () = told => {}
            _ = self.signals.recv() => self.is_interrupted = true,
        }
    }

    /// Whether no other process can go on with what this one has.
    fn is_of_no_use(&self) -> bool {
        let config = &self.resolved.config;
        let can_go_on = config.cluster.durability == Durability::Disk || config.checkpoint.every.is_some();
        // A run that failed or was stopped goes on when it is started again; only a complete one stays over.
        self.end == Some(End::Complete) || !can_go_on
    }

    /// Ends all sessions after what they were told; the coordinator ends the other servers.
    pub(super) async fn farewell(
        &self,
        code: CloseCode,
        why: &'static str,
        events: &mut mpsc::Receiver<ControlEvent>,
    ) {
        for session in self.shared().directory.sessions() {
            self.shared().directory.send(session, Outgoing::Close(code, why.to_owned()));
        }
        let config = &self.resolved.config;
        let is_over = matches!(self.end, Some(End::Complete | End::Failed(_)));
        let ends_all = is_over || (self.is_interrupted && self.memory.lost.is_none());
        if ends_all && !self.is_deposed && self.results.is_some() {
            let own = usize::from(config.coordinator() == ServerId(0));
            let others = config.cluster.addresses.iter().skip(own).cloned().collect::<Vec<_>>();
            let reason = if is_over { "the run is over" } else { "server 0 was interrupted" };
            peers::stop(&others, &self.identity, &self.shared().network, reason).await;
        }
        let shared = self.shared().clone();
        let all_gone = async { while !shared.directory.is_empty() && events.recv().await.is_some() {} };
        let _ = tokio::time::timeout(FAREWELL, all_gone).await;
    }

    /// Removes what no other process can go on with.
    pub(super) fn forget(&self) {
        let folder = &self.home.surroundings.journals;
        if !self.is_of_no_use() || self.is_deposed {
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
