//! What a session is given to say, in order.

use std::sync::Arc;
use std::time::Duration;

use slackline_core::wire::{Status, ToPeer};
use slackline_net::{CloseCode, ConnectionError, ControlSender, transfer};
use tokio::sync::mpsc;

use super::Session;
use crate::directory::{Outgoing, Values};

impl Session {
    /// Sends it; values of different shards go side by side. The connection ends with it in any case: a session that can say nothing more
    /// must not look alive to a peer that waits for its answers.
    pub(super) async fn write(
        self: Arc<Self>,
        mut sender: ControlSender,
        mut waiting: mpsc::Receiver<Outgoing>,
    ) {
        while let Some(outgoing) = waiting.recv().await {
            let outcome = match outgoing {
                Outgoing::Message(message) => sender.send(&message).await,
                Outgoing::Status(status, times) => self.write_status(&mut sender, status, times).await,
                Outgoing::Values(values) => {
                    self.write_values(values);
                    Ok(())
                }
                Outgoing::Close(code, reason) => {
                    // The peer is to read what was said before it sees the end.
                    let _ = tokio::time::timeout(Duration::from_secs(1), sender.finish()).await;
                    return self.connection.close(code, &reason);
                }
            };
            if let Err(error) = outcome {
                return self.end_mute(&error);
            }
        }
        self.connection.close(CloseCode::Done, "");
    }

    /// As many tasks at most as the session has places for values.
    fn write_values(&self, outgoing: Box<Values>) {
        let (connection, network) = (self.connection.clone(), self.shared.network);
        tokio::spawn(async move {
            let Values { header, values, _place } = *outgoing;
            if let Err(error) = transfer::send(&connection, header, &values, &network).await {
                tracing::debug!(%error, "values did not go out");
            }
        });
    }

    /// Answers so many wishes with one status. Those that have come meanwhile are answered with a new one.
    async fn write_status(
        self: &Arc<Self>,
        sender: &mut ControlSender,
        status: Box<Status>,
        times: usize,
    ) -> Result<(), ConnectionError> {
        let message = ToPeer::Status(status);
        for _ in 0..times {
            sender.send(&message).await?;
        }
        if self.shared.directory.status_is_out(self.id) {
            let session = self.clone();
            // Control may have no room for it at present, and what else is said here does not wait for that.
            tokio::spawn(async move { session.status().await });
        }
        Ok(())
    }

    fn end_mute(&self, error: &ConnectionError) {
        if self.connection.is_open() {
            // The peer is not to blame: it was to be sent what cannot be sent.
            let address = self.connection.remote();
            tracing::error!(
                session = self.id.0,
                "{address} cannot be told something: {error}; its session is cut"
            );
        } else {
            tracing::debug!(session = self.id.0, %error, "a message did not go out");
        }
        self.connection.close(CloseCode::Refused, &format!("the server cannot tell its answer: {error}"));
    }
}
