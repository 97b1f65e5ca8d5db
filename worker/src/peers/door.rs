//! The ways in and out: who may begin a handshake, how many at once, and how others are called until they answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use slackline_core::config::timers::CALLS;
use slackline_core::ids::Generation;
use slackline_core::limits::GROUP_COUNT_MAX;
use slackline_core::wire::{Hello, Stranger};
use slackline_net::{CloseCode, ConnectError, Connector, Handshake, Listener, Role};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::News;
use super::meeting::{Acquaintance, Meeting, Present, Unmet, answer, call};
use super::news::Gravity;

/// Handshakes under way at once; those that are refused try again.
const HANDSHAKES_MAX: usize = 64;

/// From here on a peer must show that its address is its own.
const PROOF_FROM: usize = HANDSHAKES_MAX / 2;

/// Workers that are let in and have not been met: all of a group, and some that come again.
const UNMET_MAX: usize = GROUP_COUNT_MAX as usize + 64;

/// Time between two attempts to call somebody: the first, and the longest. Each is twice the one before.
const AGAIN: Duration = Duration::from_millis(10);
const AGAIN_MAX: Duration = Duration::from_millis(500);

/// How long one attempt to connect lasts: longer than what holds up a machine for a moment.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Time between two lines about those who were turned away.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Counts those who were turned away, and says so, once a second at most: a stranger fills no log.
#[derive(Debug, Default)]
pub(crate) struct Count {
    total: AtomicU64,
    said: std::sync::Mutex<Option<Instant>>,
}

impl Count {
    /// Counts one, with what is wrong with it.
    pub(crate) fn turned_away(&self, who: &str, why: &str) {
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        let mut said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        if said.is_none_or(|said| now.duration_since(said) >= SAY_EVERY) {
            *said = Some(now);
            tracing::warn!("turned away {who}: {why} ({total} so far)");
        }
    }

    /// How many there were.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

/// What those who are let in are met with.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) present: Present,
    pub(crate) news: mpsc::UnboundedSender<News>,
    pub(crate) count: Arc<Count>,
    pub(crate) lease: Duration,
}

/// Lets workers in until the listener is closed.
pub(crate) async fn accept(listener: Arc<Listener>, door: Door) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let unmet = Arc::new(Semaphore::new(UNMET_MAX));
    while let Some(handshake) = listener.accept().await {
        if handshakes.available_permits() <= HANDSHAKES_MAX - PROOF_FROM && !handshake.address_is_proven() {
            handshake.ask_for_proof();
            continue;
        }
        let Ok(place) = handshakes.clone().try_acquire_owned() else {
            door.count.turned_away(&handshake.remote().to_string(), "too many handshakes are under way");
            handshake.refuse();
            continue;
        };
        tokio::spawn(take_in(handshake, place, unmet.clone(), door.clone()));
    }
}

async fn take_in(handshake: Handshake, place: OwnedSemaphorePermit, unmet: Arc<Semaphore>, door: Door) {
    let remote = handshake.remote().to_string();
    let outcome = handshake.complete().await;
    drop(place);
    let connection = match outcome {
        Ok(connection) => connection,
        Err(error) => {
            door.count.turned_away(&remote, &format!("{} ({})", error.failure, error.reason));
            return;
        }
    };
    if connection.role() != Role::Worker {
        door.count.turned_away(&remote, "only workers are let in");
        connection.close(CloseCode::Refused, "only workers are let in");
        return;
    }
    let Ok(place) = unmet.try_acquire_owned() else {
        door.count.turned_away(&remote, "too many workers wait to be met");
        connection.close(CloseCode::Refused, "too many workers wait to be met");
        return;
    };
    let met = tokio::time::timeout(door.lease, answer(connection.clone(), door.present.clone())).await;
    match met {
        // The driver is gone only when the process ends.
        Ok(Ok(mut acquaintance)) => {
            acquaintance.place = Some(place);
            drop(door.news.send(News::Met(Box::new(acquaintance))));
        }
        Ok(Err((unmet, heard))) => door.tell(&remote, &unmet, heard, place),
        Err(_) => {
            let unmet = Unmet::Silent(door.lease);
            connection.close(CloseCode::Refused, &unmet.to_string());
            door.tell(&remote, &unmet, None, place);
        }
    }
}

impl Door {
    /// One that came and was not met. It keeps its place until the driver knows.
    fn tell(&self, remote: &str, unmet: &Unmet, heard: Option<Hello>, place: OwnedSemaphorePermit) {
        if unmet.is_passing() {
            tracing::debug!("{remote} was not met: {unmet}");
        } else {
            self.count.turned_away(remote, &unmet.to_string());
        }
        let Some(hello) = heard else { return };
        let present = self.present.borrow();
        let Some(meeting) = present.as_ref() else { return };
        // One of another run, or of another version, may have any number: only the address could lead it here.
        let is_of_this_run = hello.run == meeting.hello.run
            && !matches!(
                unmet,
                Unmet::Stranger(Stranger::Protocol { .. } | Stranger::Other { .. }) | Unmet::Ended(_)
            );
        let Some(position) = meeting.group.position_of(hello.worker) else { return };
        let generation = meeting.hello.generation;
        let is_fatal = is_of_this_run && !unmet.is_passing() && !matches!(unmet, Unmet::Uncalled { .. });
        let gravity = if is_fatal { Gravity::Fatal } else { Gravity::Passing };
        let (text, place) = (format!("{unmet} (it called from {remote})"), Some(place));
        let _ = self.news.send(News::Unmet { generation, position, text, gravity, place });
    }
}

/// Calls the member at a position until it is met or does not belong here, telling of each attempt that failed.
pub(crate) async fn dial(
    connector: Arc<Connector>,
    meeting: Arc<Meeting>,
    position: u32,
    news: mpsc::UnboundedSender<News>,
    lease: Duration,
) {
    let mut wait = AGAIN;
    loop {
        let (text, gravity) = match attempt(&connector, &meeting, position, lease).await {
            Ok(acquaintance) => {
                let _ = news.send(News::Met(Box::new(acquaintance)));
                return;
            }
            Err(failure) => failure,
        };
        let (generation, place): (Generation, _) = (meeting.hello.generation, None);
        let unmet = News::Unmet { generation, position, text, gravity, place };
        if news.send(unmet).is_err() || gravity != Gravity::Passing {
            return;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(AGAIN_MAX);
    }
}

/// One attempt; if it fails, why, and what follows.
async fn attempt(
    connector: &Connector,
    meeting: &Meeting,
    position: u32,
    lease: Duration,
) -> Result<Acquaintance, (String, Gravity)> {
    let named = meeting.named(position);
    let member = meeting.group.members.get(position as usize);
    let address = member.map_or_else(String::new, |member| member.address.shown());
    // Something is known of the last attempt when the time for calling is over.
    let within = lease / CALLS;
    let connection = connector.connect(&address, ATTEMPT.min(within)).await.map_err(|error| {
        // One that was let in and closed again has met somebody without a place or a group. Whatever else will not have this worker is
        // no worker of this run, for the coordinator has had both.
        let is_passing = error.is_retryable() || matches!(error, ConnectError::Broke { .. });
        let gravity = if is_passing { Gravity::Passing } else { Gravity::Misled };
        (format!("{named} cannot be connected to: {error}"), gravity)
    })?;
    let met = tokio::time::timeout(within, call(connection, meeting, position)).await;
    let unmet = match met {
        Ok(Ok(acquaintance)) => return Ok(acquaintance),
        Ok(Err(unmet)) => unmet,
        Err(_) => Unmet::Silent(within),
    };
    let text = match &unmet {
        Unmet::Refused(text) => format!("{named} refused this worker: {text}"),
        unmet => format!("{named} was called: {unmet}"),
    };
    Err((text, unmet.gravity()))
}
