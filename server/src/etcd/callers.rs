//! Those who reach a candidate that does not lead: they are turned away, to try the next one, or hear that the run is over.

use std::sync::Arc;
use std::time::Duration;

use slackline_core::ids::ServerId;
use slackline_core::wire::{PROTOCOL, Refusal, RefusalCode, Text, ToPeer};
use slackline_net::{CloseCode, Connection, ConnectionError, Handshake, Listener};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Peers that are answered at once; more are refused, and come again.
const ANSWERED_AT_ONCE: usize = 64;

/// How long a peer may take to read what it is told.
const READING: Duration = Duration::from_secs(1);

/// What whoever calls is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// This candidate does not lead, with who does or why it cannot: the next one is tried at once.
    StandsBy(String),
    /// The run is over, with how it ended. `server` is who the coordinator is in the count.
    Over {
        /// The coordinator.
        server: ServerId,
        /// How it ended.
        how: String,
    },
}

impl Default for Answer {
    fn default() -> Self {
        Self::StandsBy(String::new())
    }
}

/// Answers whoever connects, until the listener is closed.
pub(super) async fn answer(listener: Arc<Listener>, answer: watch::Receiver<Answer>) {
    let places = Arc::new(Semaphore::new(ANSWERED_AT_ONCE));
    while let Some(handshake) = listener.accept().await {
        let Ok(place) = places.clone().try_acquire_owned() else {
            handshake.refuse();
            continue;
        };
        let answer = answer.borrow().clone();
        tokio::spawn(async move {
            answer_one(handshake, answer).await;
            drop(place);
        });
    }
}

async fn answer_one(handshake: Handshake, answer: Answer) {
    // Whoever has no certificate of this cluster learns nothing.
    let Ok(connection) = handshake.complete().await else { return };
    match answer {
        Answer::StandsBy(why) => {
            let why = if why.is_empty() { "this candidate for the coordinator stands by" } else { &why };
            connection.close(CloseCode::StandsBy, why);
        }
        Answer::Over { server, how } => {
            // One that does not read it calls again.
            let _ = timeout(READING, say_over(&connection, server, how)).await;
            connection.close(CloseCode::Done, "the run is over");
        }
    }
}

/// As the coordinator of a run that is over says it to a worker that comes late, and to a server that nobody has told.
async fn say_over(connection: &Connection, server: ServerId, how: String) -> Result<(), ConnectionError> {
    let (mut sender, _receiver) = connection.open_control().await?;
    // It remembers nothing of anybody, as a process that has just begun.
    sender.send(&ToPeer::Welcome { protocol: PROTOCOL, server, boot: 0 }).await?;
    let refusal = Refusal { code: RefusalCode::RunOver, text: Text::new(how) };
    sender.send(&ToPeer::Refused(refusal)).await?;
    sender.finish().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use slackline_net::{ConnectError, Connector, Identity, Role, Settings};

    use super::*;
    use crate::pair;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn whoever_calls_is_sent_on_and_once_the_run_is_over_hears_that() {
        let folder = pair::key_folder();
        let listener = Arc::new(pair::listener(&folder));
        let said = watch::Sender::new(Answer::StandsBy("candidate 1 leads".to_owned()));
        let answering = tokio::spawn(answer(listener.clone(), said.subscribe()));
        let address = listener.local_address().to_string();
        for role in [Role::Worker, Role::Server, Role::Observer] {
            let identity = Identity::load(folder.path(), role).unwrap();
            let connector = Connector::new(&identity, &Settings::default()).unwrap();
            said.send_replace(Answer::StandsBy("candidate 1 leads".to_owned()));
            let error: ConnectError = connector.connect(&address, PATIENCE).await.unwrap_err();
            assert!(error.is_retryable() && error.to_string().contains("candidate 1 leads"), "{error}");
            let (server, how) = (ServerId(2), "the run is complete".to_owned());
            said.send_replace(Answer::Over { server, how });
            let connection = connector.connect(&address, PATIENCE).await.unwrap();
            let (_sender, mut receiver) = connection.accept_control().await.unwrap();
            let welcome = receiver.receive::<ToPeer>().await.unwrap();
            assert_eq!(welcome, Some(ToPeer::Welcome { protocol: PROTOCOL, server, boot: 0 }));
            let refusal = Refusal { code: RefusalCode::RunOver, text: Text::new("the run is complete") };
            assert_eq!(receiver.receive::<ToPeer>().await.unwrap(), Some(ToPeer::Refused(refusal)));
            assert_eq!(receiver.receive::<ToPeer>().await.unwrap(), None, "and nothing more");
        }
        answering.abort();
    }
}
