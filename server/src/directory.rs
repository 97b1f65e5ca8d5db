//! Who is connected: shared by the network's thread, which adds and removes sessions, and the shards' threads, which answer them.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use slackline_core::ids::{Incarnation, SessionId, WorkerId};
use slackline_core::limits::SHARDS_PER_SERVER_MAX;
use slackline_core::wire::{Status, ToPeer, TransferHeader};
use slackline_net::{CloseCode, Connection, SharedValues};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::budget::{Budget, Room};

/// What a session is to send.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A control message.
    Message(ToPeer),
    /// A status, and how many wishes it answers. There is one at most: it is large, and peers ask for it as often as they like.
    Status(Box<Status>, usize),
    /// Values.
    Values(Box<Values>),
    /// Nothing more: close when all before was sent.
    Close(CloseCode, String),
}

/// Values on their way to one peer.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) header: TransferHeader,
    /// One buffer for all who pull the same version.
    pub(crate) values: SharedValues,
    pub(crate) _place: Place,
}

/// The place of values among the transfers of a session; given back when QUIC has taken all of them.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

/// What values need to be handed to a session.
#[derive(Debug)]
pub(crate) struct Leave {
    pub(crate) place: Place,
    /// Room in its memory, for as long as the values are in use.
    pub(crate) room: Room,
}

/// What a session answers to the wish to hand it values.
pub(crate) enum Asked {
    /// They may go.
    Leave(Leave),
    /// There is a place, and no room yet.
    Wait(Wait),
    /// It is gone.
    Gone,
}

/// Values wait for room in the memory of a session, where nobody keeps them meanwhile.
pub(crate) struct Wait {
    place: Place,
    budget: Budget,
    bytes: u64,
}

impl Wait {
    /// Once there is room; none when the session has ended.
    pub(crate) async fn leave(self) -> Option<Leave> {
        let Self { place, budget, bytes } = self;
        Some(Leave { place, room: budget.take(bytes).await? })
    }
}

/// Messages that one session may have waiting; a peer that does not read them is cut off. One step of a worker is at most three a
/// shard (the answer to its push, the values of its next pull, those of an evaluation) and a few of control.
pub(crate) const OUTGOING_MAX: usize = 4 * SHARDS_PER_SERVER_MAX as usize;

/// Transfers of values that one session may have waiting or under way: those of one step, and some that QUIC has not quite taken
/// when the peer asks for the next. Those that have room, too, keep one version of a shard in memory each.
const fn values_max(shards: usize) -> usize {
    8 + 2 * shards
}

#[derive(Debug)]
struct Peer {
    outgoing: Sender<Outgoing>,
    /// To end it at once, whatever its writer waits for.
    connection: Connection,
    worker: Option<(WorkerId, Incarnation)>,
    /// Places for transfers of values.
    places: Arc<Semaphore>,
    /// Room for them.
    leaving: Budget,
    /// Times that a status was asked for and that no status answers yet.
    wishes: usize,
    /// A status is being made, or waits, or is on its way.
    has_status: bool,
}

/// The sessions of this server. Entries are looked at and let go at once; no guard lives across another call or an await.
#[derive(Debug)]
pub(crate) struct Directory {
    peers: DashMap<SessionId, Peer>,
    values_max: usize,
}

impl Directory {
    /// An empty directory of a server with so many shards.
    pub(crate) fn new(shards: usize) -> Self {
        Self { peers: DashMap::new(), values_max: values_max(shards) }
    }

    /// `leaving` is the room for values on their way to it.
    pub(crate) fn insert(
        &self,
        session: SessionId,
        outgoing: Sender<Outgoing>,
        connection: Connection,
        leaving: Budget,
    ) {
        let places = Arc::new(Semaphore::new(self.values_max));
        let (worker, wishes, has_status) = (None, 0, false);
        let peer = Peer { outgoing, connection, worker, places, leaving, wishes, has_status };
        self.peers.insert(session, peer);
    }

    /// The round trips to the workers, by name; for a status and the log.
    pub(crate) fn round_trips(&self) -> Vec<(String, Duration)> {
        let row = |peer: &Peer| Some((peer.worker?.0.to_string(), peer.connection.round_trip()));
        let mut rows: Vec<_> = self.peers.iter().filter_map(|peer| row(&peer)).collect();
        rows.sort();
        rows
    }

    pub(crate) fn remove(&self, session: SessionId) {
        if let Some((_, peer)) = self.peers.remove(&session) {
            peer.leaving.close();
        }
    }

    /// From now on the session speaks for this worker.
    pub(crate) fn bind(&self, session: SessionId, worker: Option<(WorkerId, Incarnation)>) {
        if let Some(mut peer) = self.peers.get_mut(&session) {
            peer.worker = worker;
        }
    }

    /// Whether there is such a session.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.peers.contains_key(&session)
    }

    pub(crate) fn worker_of(&self, session: SessionId) -> Option<(WorkerId, Incarnation)> {
        self.peers.get(&session)?.worker
    }

    /// Counts a wish for a status; true when that session has none, so that one must be made. Whoever wishes for more than may wait without
    /// taking any loses its session.
    pub(crate) fn begin_status(&self, session: SessionId) -> bool {
        let Some((wishes, begins)) = self.peers.get_mut(&session).map(|mut peer| {
            peer.wishes += 1;
            (peer.wishes, !std::mem::replace(&mut peer.has_status, true))
        }) else {
            return false;
        };
        if wishes > OUTGOING_MAX {
            self.cut(session, "the peer asks for statuses and does not take them");
            return false;
        }
        begins
    }

    /// Sends the status that was made to all who have asked on that session by now.
    pub(crate) fn end_status(&self, session: SessionId, status: Status) {
        let wishes = self.peers.get_mut(&session).map(|mut peer| std::mem::take(&mut peer.wishes));
        if let Some(wishes) = wishes {
            self.send(session, Outgoing::Status(Box::new(status), wishes));
        }
    }

    /// The status has gone out. True where others have asked meanwhile: one of their wishes is to be asked again, and is counted then.
    pub(crate) fn status_is_out(&self, session: SessionId) -> bool {
        self.peers.get_mut(&session).is_some_and(|mut peer| {
            peer.has_status = false;
            let asked = peer.wishes > 0;
            peer.wishes -= usize::from(asked);
            asked
        })
    }

    /// Hands something to a session. Never waits: whoever does not take its messages loses its session, not the others' time.
    pub(crate) fn send(&self, session: SessionId, outgoing: Outgoing) {
        let Some(sender) = self.peers.get(&session).map(|peer| peer.outgoing.clone()) else {
            return;
        };
        if let Err(TrySendError::Full(_)) = sender.try_send(outgoing) {
            self.cut(session, "the peer does not take its messages");
        }
    }

    /// Whether a session takes so many bytes of values. One that has no place left for them is cut, by the same rule.
    pub(crate) fn ask(&self, session: SessionId, bytes: u64) -> Asked {
        let found = self.peers.get(&session).map(|peer| (peer.places.clone(), peer.leaving.clone()));
        let Some((places, budget)) = found else { return Asked::Gone };
        let Ok(permit) = places.try_acquire_owned() else {
            self.cut(session, "the peer pulls values and does not take them");
            return Asked::Gone;
        };
        let place = Place { _permit: permit };
        match budget.try_take(bytes) {
            Some(room) => Asked::Leave(Leave { place, room }),
            None => Asked::Wait(Wait { place, budget, bytes }),
        }
    }

    /// Hands values to a session that has a place for them.
    pub(crate) fn send_values(
        &self,
        session: SessionId,
        header: TransferHeader,
        values: SharedValues,
        place: Place,
    ) {
        self.send(session, Outgoing::Values(Box::new(Values { header, values, _place: place })));
    }

    /// Ends a session. Its writer may be waiting for the peer, so the connection itself is closed: that ends every wait.
    fn cut(&self, session: SessionId, reason: &str) {
        if let Some((_, peer)) = self.peers.remove(&session) {
            tracing::warn!(session = session.0, address = %peer.connection.remote(), "{reason}; its session is cut");
            peer.leaving.close();
            peer.connection.close(CloseCode::Refused, reason);
        }
    }

    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.peers.iter().map(|entry| *entry.key()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::pair::{self, Pair, values_header};

    const SESSION: SessionId = SessionId(1);

    /// A session whose writer never takes anything, with room for so many bytes.
    async fn stuck(room: u64) -> (Directory, mpsc::Receiver<Outgoing>, Pair) {
        let pair = Pair::meet().await;
        let directory = Directory::new(3);
        let (outgoing, waiting) = mpsc::channel(OUTGOING_MAX);
        directory.insert(SESSION, outgoing, pair.server.clone(), Budget::new(room, 1));
        (directory, waiting, pair)
    }

    /// Values of four keys for the session, if it takes them at once.
    fn sent(directory: &Directory, values: &Arc<Vec<f32>>) -> bool {
        match directory.ask(SESSION, 1024) {
            Asked::Leave(Leave { place, room }) => {
                let values = SharedValues::from(values.clone()).with_end(room);
                directory.send_values(SESSION, values_header(4), values, place);
                true
            }
            Asked::Wait(_) | Asked::Gone => false,
        }
    }

    // The session was forgotten, and its writer waited for the peer for as long as that stayed connected.
    #[tokio::test]
    async fn a_peer_that_reads_nothing_loses_its_connection() {
        let (directory, _waiting, pair) = stuck(1 << 20).await;
        for _ in 0..OUTGOING_MAX {
            directory.send(SESSION, Outgoing::Message(ToPeer::Goodbye));
        }
        assert!(pair.server.is_open());
        directory.send(SESSION, Outgoing::Message(ToPeer::Goodbye));
        assert!(!pair.server.is_open() && directory.is_empty());
        assert!(pair.peer.closed().await.to_string().contains("does not take its messages"));
    }

    #[tokio::test]
    async fn a_peer_that_takes_no_values_keeps_a_bounded_number_of_versions() {
        let (directory, mut waiting, pair) = stuck(1 << 20).await;
        let versions: Vec<_> = (0..100).map(|version| Arc::new(vec![version as f32; 4])).collect();
        let kept = || versions.iter().filter(|version| Arc::strong_count(version) > 1).count();
        assert!(versions[..values_max(3)].iter().all(|values| sent(&directory, values)));
        assert!(pair.server.is_open());
        // A place is free again once a transfer is through.
        drop(waiting.recv().await);
        assert!(sent(&directory, &versions[values_max(3)]));
        assert!(versions[values_max(3) + 1..].iter().all(|values| !sent(&directory, values)));
        assert!(!pair.server.is_open());
        assert_eq!(kept(), values_max(3));
    }

    #[tokio::test]
    async fn values_beyond_the_room_of_a_session_wait_for_those_before_them() {
        let (directory, mut waiting, _pair) = stuck(3 * 1024).await;
        let values = Arc::new(vec![0.0; 4]);
        assert_eq!((0..3).filter(|_| sent(&directory, &values)).count(), 3);
        let Asked::Wait(wait) = directory.ask(SESSION, 1024) else { panic!("there is no room") };
        let leave = tokio::spawn(wait.leave());
        tokio::task::yield_now().await;
        assert!(!leave.is_finished());
        // Quinn has the values until they are acknowledged, whatever else has let them go.
        let Some(Outgoing::Values(first)) = waiting.recv().await else { panic!("values were sent") };
        let Values { values: unacknowledged, _place, .. } = *first;
        drop(_place);
        tokio::task::yield_now().await;
        assert!(!leave.is_finished());
        drop(unacknowledged);
        assert!(leave.await.unwrap().is_some());
        directory.remove(SESSION);
        assert!(matches!(directory.ask(SESSION, 1), Asked::Gone));
    }

    // Found by reading: an observer that read nothing had a whole status waiting for each time that it asked.
    #[tokio::test]
    async fn a_session_has_one_status_at_most_and_all_its_wishes_are_answered() {
        let (directory, mut waiting, pair) = stuck(1 << 20).await;
        let status = || pair::status(1);
        let begin = |wishes| (0..wishes).filter(|_| directory.begin_status(SESSION)).count();
        assert_eq!(begin(3), 1);
        directory.end_status(SESSION, status());
        assert_eq!(begin(5), 0, "one waits already");
        let Some(Outgoing::Status(_, 3)) = waiting.recv().await else { panic!("three have asked") };
        assert!(waiting.try_recv().is_err());
        assert_eq!(begin(2), 0, "it is on its way");
        assert!(directory.status_is_out(SESSION), "others have asked");
        assert_eq!(begin(1), 1, "one of them asks again");
        directory.end_status(SESSION, status());
        assert!(matches!(waiting.recv().await, Some(Outgoing::Status(_, 7))));
        assert!(!directory.status_is_out(SESSION));
        assert!(!directory.begin_status(SessionId(9)), "nobody is there to ask");
        assert_eq!(begin(OUTGOING_MAX), 1);
        assert!(pair.server.is_open());
        assert_eq!(begin(1), 0);
        assert!(!pair.server.is_open() && directory.is_empty());
    }
}
