//! The session of this server with the coordinator: its words there, the orders back, for as long as the process lives.
//!
//! A word that is said while there is no session is dropped: control says how things are whenever a session begins.

use std::sync::{Arc, Mutex, PoisonError};

use slackline_core::ids::ServerId;
use slackline_core::wire::{ServerWord, ToPeer, ToServer};
use slackline_net::{CloseCode, ConnectionError, ControlReceiver, ControlSender};
use slackline_server_core::ControlEvent;
use tokio::sync::mpsc;

use crate::links::{FIRST_PAUSE, Links, Reached};

/// Words that may wait for the coordinator to take them. When it takes none for so many, the session is begun anew.
const WORDS_MAX: usize = 4096;

/// The way for words to the coordinator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    /// None while there is no session. A lock, since the task that keeps the session is not the loop that speaks; both run on one thread.
    open: Arc<Mutex<Option<mpsc::Sender<ServerWord>>>>,
}

impl Words {
    /// Says a word, if there is a session.
    pub(crate) fn say(&self, word: ServerWord) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.as_ref().is_some_and(|sender| sender.try_send(word).is_err()) {
            // Its end is seen by the task, which begins anew.
            *open = None;
        }
    }

    fn set(&self, sender: Option<mpsc::Sender<ServerWord>>) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = sender;
    }
}

/// Keeps a session with the coordinator until the control loop is gone. Where a session brought no order, the next one is waited for longer
/// each time: a coordinator that refuses is not asked without end.
pub(crate) async fn keep(
    coordinator: ServerId,
    links: Arc<Links>,
    words: Words,
    control: mpsc::Sender<ControlEvent>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let Reached { connection, sender, receiver } = links.reach(coordinator).await;
        let (said, waiting) = mpsc::channel(WORDS_MAX);
        words.set(Some(said));
        if control.send(ControlEvent::CoordinatorOpened).await.is_err() {
            return;
        }
        let mut is_taken_in = false;
        let ended = tokio::select! {
            // First: what the coordinator said last is worth more than that nothing can be said to it any more.
            biased;
            ended = hear(receiver, &control, &mut is_taken_in) => ended,
            ended = speak(sender, waiting) => ended,
        };
        words.set(None);
        connection.close(CloseCode::Done, "the session begins anew");
        if let Err(error) = ended {
            tracing::debug!(%error, "the session with the coordinator has ended");
        }
        if control.send(ControlEvent::CoordinatorLost).await.is_err() {
            return;
        }
        if is_taken_in {
            pause = FIRST_PAUSE;
        } else {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(links.longest_pause());
        }
    }
}

async fn speak(
    mut sender: ControlSender,
    mut waiting: mpsc::Receiver<ServerWord>,
) -> Result<(), ConnectionError> {
    while let Some(word) = waiting.recv().await {
        sender.send(&ToServer::Cluster(word)).await?;
    }
    Ok(())
}

async fn hear(
    mut receiver: ControlReceiver,
    control: &mpsc::Sender<ControlEvent>,
    is_taken_in: &mut bool,
) -> Result<(), ConnectionError> {
    while let Some(message) = receiver.receive::<ToPeer>().await? {
        let event = match message {
            ToPeer::Cluster(order) => {
                *is_taken_in = true;
                ControlEvent::Ordered(order)
            }
            ToPeer::Refused(refusal) => ControlEvent::CoordinatorRefused(refusal),
            other => {
                tracing::debug!("the coordinator says what is none of a server's business: {other:?}");
                continue;
            }
        };
        if control.send(event).await.is_err() {
            break;
        }
    }
    Ok(())
}
