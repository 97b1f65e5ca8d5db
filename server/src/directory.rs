//! Who is connected: shared by the network's thread, which adds and removes sessions, and the shards' threads, which answer them.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use slackline_core::ids::{Incarnation, SessionId, WorkerId};
use slackline_core::wire::{ToPeer, TransferHeader};
use slackline_net::{CloseCode, Connection};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a session is to send.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A control message.
    Message(ToPeer),
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
    pub(crate) values: Arc<Vec<f32>>,
    /// Its place among the transfers of the session; given back when QUIC has taken all.
    pub(crate) _place: OwnedSemaphorePermit,
}

/// Shards of one server at most, by the bound of `cluster.shards_per_server`.
const SHARDS_MAX: usize = 256;

/// Messages that one session may have waiting; a peer that does not read them is cut off. One step of a worker is at most three a
/// shard (the answer to its push, the values of its next pull, those of an evaluation) and a few of control.
pub(crate) const OUTGOING_MAX: usize = 4 * SHARDS_MAX;

/// Transfers of values that one session may have waiting or under way: those of one step, and some that QUIC has not quite taken
/// when the peer asks for the next. Each keeps one version of a shard in memory.
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
    /// Times that a status was asked for and not sent yet.
    statuses: u32,
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

    pub(crate) fn insert(&self, session: SessionId, outgoing: Sender<Outgoing>, connection: Connection) {
        let places = Arc::new(Semaphore::new(self.values_max));
        self.peers.insert(session, Peer { outgoing, connection, worker: None, places, statuses: 0 });
    }

    /// The round trips to the workers, by name; for a status and the log.
    pub(crate) fn round_trips(&self) -> Vec<(String, Duration)> {
        let row = |peer: &Peer| Some((peer.worker?.0.to_string(), peer.connection.round_trip()));
        let mut rows: Vec<_> = self.peers.iter().filter_map(|peer| row(&peer)).collect();
        rows.sort();
        rows
    }

    pub(crate) fn remove(&self, session: SessionId) {
        self.peers.remove(&session);
    }

    /// From now on the session speaks for this worker.
    pub(crate) fn bind(&self, session: SessionId, worker: Option<(WorkerId, Incarnation)>) {
        if let Some(mut peer) = self.peers.get_mut(&session) {
            peer.worker = worker;
        }
    }

    pub(crate) fn worker_of(&self, session: SessionId) -> Option<(WorkerId, Incarnation)> {
        self.peers.get(&session)?.worker
    }

    /// Counts a wish for a status; true when none is being made for that session, so that one must be.
    pub(crate) fn begin_status(&self, session: SessionId) -> bool {
        self.peers.get_mut(&session).is_some_and(|mut peer| {
            peer.statuses = peer.statuses.saturating_add(1);
            peer.statuses == 1
        })
    }

    /// How many wishes the status that was made answers. More than may wait are of a peer that is cut for it.
    pub(crate) fn end_status(&self, session: SessionId) -> usize {
        let wishes = self.peers.get_mut(&session).map_or(0, |mut peer| std::mem::take(&mut peer.statuses));
        (wishes as usize).min(OUTGOING_MAX + 1)
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

    /// Hands values to a session, with the same rule.
    pub(crate) fn send_values(&self, session: SessionId, header: TransferHeader, values: Arc<Vec<f32>>) {
        let Some(places) = self.peers.get(&session).map(|peer| peer.places.clone()) else {
            return;
        };
        match places.try_acquire_owned() {
            Ok(place) => {
                self.send(session, Outgoing::Values(Box::new(Values { header, values, _place: place })))
            }
            Err(_) => self.cut(session, "the peer pulls values and does not take them"),
        }
    }

    /// Ends a session. Its writer may be waiting for the peer, so the connection itself is closed: that ends every wait.
    fn cut(&self, session: SessionId, reason: &str) {
        if let Some((_, peer)) = self.peers.remove(&session) {
            tracing::warn!(session = session.0, address = %peer.connection.remote(), "{reason}; its session is cut");
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
    use crate::pair::{Pair, values_header};

    const SESSION: SessionId = SessionId(1);

    /// A session whose writer never takes anything.
    async fn stuck() -> (Directory, mpsc::Receiver<Outgoing>, Pair) {
        let pair = Pair::meet().await;
        let directory = Directory::new(3);
        let (outgoing, waiting) = mpsc::channel(OUTGOING_MAX);
        directory.insert(SESSION, outgoing, pair.server.clone());
        (directory, waiting, pair)
    }

    // The session was forgotten, and its writer waited for the peer for as long as that stayed connected.
    #[tokio::test]
    async fn a_peer_that_reads_nothing_loses_its_connection() {
        let (directory, _waiting, pair) = stuck().await;
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
        let (directory, mut waiting, pair) = stuck().await;
        let versions: Vec<_> = (0..100).map(|version| Arc::new(vec![version as f32; 4])).collect();
        let kept = || versions.iter().filter(|version| Arc::strong_count(version) > 1).count();
        for values in &versions[..values_max(3)] {
            directory.send_values(SESSION, values_header(4), values.clone());
        }
        assert!(pair.server.is_open());
        // A place is free again once a transfer is through.
        drop(waiting.recv().await);
        for values in &versions[values_max(3)..] {
            directory.send_values(SESSION, values_header(4), values.clone());
        }
        assert!(!pair.server.is_open());
        assert_eq!(kept(), values_max(3));
    }

    #[tokio::test]
    async fn wishes_for_a_status_while_one_is_made_are_answered_together() {
        let (directory, _waiting, _pair) = stuck().await;
        let began: Vec<_> = (0..3).map(|_| directory.begin_status(SESSION)).collect();
        assert_eq!(began, [true, false, false]);
        assert_eq!(directory.end_status(SESSION), 3);
        assert!(directory.begin_status(SESSION));
        assert!(!directory.begin_status(SessionId(9)), "nobody is there to ask");
    }
}
