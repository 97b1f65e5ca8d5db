//! The way in: who may begin a handshake, how many may be here at once, and what is said about those who were turned away.
//!
//! Everything before authentication is bounded: a stranger costs a datagram, not memory, and the log a line a second.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use slackline_core::ids::SessionId;
use slackline_core::limits::WORKER_COUNT_MAX;
use slackline_net::{CloseCode, Connection, Handshake, Listener};
use slackline_server_core::ControlEvent;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::session::{self, Shared};

/// Handshakes under way at once. One takes two round trips and a signature each way; a run of thousands of workers is in within
/// seconds, as those that are refused try again.
const HANDSHAKES_MAX: usize = 256;

/// From here on a peer must show that its address is its own, so that made-up addresses cannot take the places of real peers.
const PROOF_FROM: usize = HANDSHAKES_MAX / 2;

/// Sessions at once: every worker a run may have, and room for those that come back before their former session is known to be
/// lost, observers and admins.
pub(crate) const SESSIONS_MAX: usize = WORKER_COUNT_MAX as usize + 1024;

/// Takes peers in until the listener is closed.
pub(crate) async fn accept(listener: Arc<Listener>, shared: Arc<Shared>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let sessions = Arc::new(Semaphore::new(SESSIONS_MAX));
    let mut last = SessionId(0);
    while let Some(handshake) = listener.accept().await {
        if handshakes.available_permits() <= HANDSHAKES_MAX - PROOF_FROM && !handshake.address_is_proven() {
            handshake.ask_for_proof();
            continue;
        }
        let Ok(place) = handshakes.clone().try_acquire_owned() else {
            let address = handshake.remote().to_string();
            handshake.refuse();
            turned_away(&shared, address, format!("{HANDSHAKES_MAX} handshakes are under way"), true);
            continue;
        };
        last = last.next();
        tokio::spawn(take_in(last, handshake, place, sessions.clone(), shared.clone()));
    }
}

async fn take_in(
    session: SessionId,
    handshake: Handshake,
    place: OwnedSemaphorePermit,
    sessions: Arc<Semaphore>,
    shared: Arc<Shared>,
) {
    let outcome = handshake.complete().await;
    drop(place);
    match outcome {
        Ok(connection) => match sessions.try_acquire_owned() {
            Ok(_place) => session::serve(session, connection, shared).await,
            Err(_) => turn_back(&connection, &shared),
        },
        Err(error) => {
            let text = format!("{} ({})", error.failure, error.reason);
            turned_away(&shared, error.remote.to_string(), text, true);
        }
    }
}

fn turn_back(connection: &Connection, shared: &Shared) {
    let text = format!("the server has its {SESSIONS_MAX} sessions");
    connection.close(CloseCode::Refused, &text);
    turned_away(shared, connection.remote().to_string(), text, true);
}

/// For the count and the log. Never waits: whoever is turned away keeps nothing here, also where the control loop hears nobody for as long
/// as its disk is full.
pub(crate) fn turned_away(shared: &Shared, address: String, text: String, handshake: bool) {
    let event = ControlEvent::TurnedAway { address, text, handshake };
    // The control loop is gone only when the process ends.
    if let Err(TrySendError::Full(_)) = shared.control.try_send(event) {
        shared.unheard.count(handshake);
    }
}

/// Those who were turned away while control's queue had no room for a word of each.
#[derive(Debug, Default)]
pub(crate) struct Unheard {
    handshakes: AtomicU64,
    malformed: AtomicU64,
}

impl Unheard {
    fn count(&self, handshake: bool) {
        let counter = if handshake { &self.handshakes } else { &self.malformed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// What control is to hear of them, once, and how many they are.
    pub(crate) fn take(&self) -> Option<(ControlEvent, u64)> {
        let [handshakes, malformed] =
            [&self.handshakes, &self.malformed].map(|counter| counter.swap(0, Ordering::Relaxed));
        let all = handshakes.saturating_add(malformed);
        (all > 0).then_some((ControlEvent::TurnedAwayUnheard { handshakes, malformed }, all))
    }
}

/// Kinds of lines that are told apart; peers have a part in the words, so there is a bound on them.
const KINDS_MAX: usize = 64;

/// How often a line may be said again.
const AGAIN: Duration = Duration::from_secs(1);

/// Which of many lines of the same kinds are said: the first of each kind, then at most one a second with the number of those
/// that were not. What is counted elsewhere is counted exactly.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    kinds: BTreeSet<String>,
    said: Option<Instant>,
    unsaid: u64,
}

impl Repeats {
    /// Whether a line of `kind` is said now, and then how many were left out before it.
    pub(crate) fn may_say(&mut self, kind: &str, now: Instant) -> Option<u64> {
        let is_first = self.kinds.len() < KINDS_MAX && self.kinds.insert(kind.to_owned());
        let is_due = self.said.is_none_or(|said| now.duration_since(said) >= AGAIN);
        if !is_first && !is_due {
            self.unsaid += 1;
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }

    /// So many more were left out.
    pub(crate) const fn leave_out(&mut self, lines: u64) {
        self.unsaid = self.unsaid.saturating_add(lines);
    }

    /// Lines left out that no later line has said the number of, once a second has passed.
    pub(crate) fn take_unsaid(&mut self, now: Instant) -> Option<u64> {
        let is_due = self.said.is_none_or(|said| now.duration_since(said) >= AGAIN);
        if self.unsaid == 0 || !is_due {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use slackline_net::{Connector, Identity, Role, Settings};
    use tokio::sync::mpsc;

    use super::*;
    use crate::pair;

    // Found by reading: while control heard nobody, each handshake that failed kept a task and its words.
    #[tokio::test]
    async fn strangers_keep_nothing_here_while_control_hears_nobody_and_are_counted() {
        let (folder, other) = (pair::key_folder(), pair::key_folder());
        let (control, mut events) = mpsc::channel(1);
        let (words, _heard) = mpsc::unbounded_channel();
        let shared = Arc::new(pair::shared(control.clone(), &pair::surroundings(&folder, words)));
        control.try_send(ControlEvent::Tick).unwrap();
        let listener = Arc::new(pair::listener(&folder));
        let accepting = tokio::spawn(accept(listener.clone(), shared.clone()));
        let identity = Identity::load(other.path(), Role::Observer).unwrap();
        let connector = Connector::new(&identity, &Settings::default()).unwrap();
        let address = listener.local_address().to_string();
        for _ in 0..3 {
            assert!(connector.connect(&address, Duration::from_secs(20)).await.is_err());
        }
        let mut counted = 0;
        while counted < 3 {
            counted += shared.unheard.take().map_or(0, |(_, count)| count);
            tokio::task::yield_now().await;
        }
        assert_eq!(counted, 3);
        // Nobody waits for control's queue, which hears each of them again when it has room.
        assert_eq!(events.recv().await, Some(ControlEvent::Tick));
        assert!(events.try_recv().is_err());
        assert!(connector.connect(&address, Duration::from_secs(20)).await.is_err());
        let told = events.recv().await;
        assert!(matches!(told, Some(ControlEvent::TurnedAway { handshake: true, .. })), "{told:?}");
        accepting.abort();
    }

    // Every handshake of a stranger was a line of the log: a disk could be filled from outside.
    #[test]
    fn a_flood_of_one_kind_is_a_line_a_second_with_its_number() {
        let mut repeats = Repeats::default();
        let began = Instant::now();
        let mut said = Vec::new();
        for millisecond in 0..3000 {
            let now = began + Duration::from_millis(millisecond);
            said.extend(repeats.may_say("no certificate", now));
        }
        assert_eq!(said, [0, 999, 999]);
        assert_eq!(repeats.may_say("another protocol", began + Duration::from_millis(3000)), Some(999));
        assert_eq!(repeats.may_say("no certificate", began + Duration::from_millis(3100)), None);
        assert_eq!(repeats.take_unsaid(began + Duration::from_millis(3200)), None);
        assert_eq!(repeats.take_unsaid(began + Duration::from_millis(4000)), Some(1));
        assert_eq!(repeats.take_unsaid(began + Duration::from_millis(9000)), None);
    }

    #[test]
    fn made_up_kinds_are_bounded() {
        let mut repeats = Repeats::default();
        let now = Instant::now();
        let said = (0..10_000).filter(|kind| repeats.may_say(&kind.to_string(), now).is_some()).count();
        assert_eq!(said, KINDS_MAX);
    }
}
