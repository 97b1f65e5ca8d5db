//! Who is connected: shared by the network's thread, which adds and removes sessions, and the shards' threads, which answer them.

use std::sync::Arc;

use dashmap::DashMap;
use slackline_core::ids::{Incarnation, SessionId, WorkerId};
use slackline_core::wire::{ToPeer, TransferHeader};
use slackline_net::CloseCode;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

/// What a session is to send.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A control message.
    Message(ToPeer),
    /// Values: one buffer for all who pull the same version.
    Values(Box<TransferHeader>, Arc<Vec<f32>>),
    /// Nothing more: close when all before was sent.
    Close(CloseCode, String),
}

/// Messages that one session may have waiting. A worker has a handful; a peer that does not read them is cut off.
pub(crate) const OUTGOING_MAX: usize = 1024;

#[derive(Debug)]
struct Peer {
    outgoing: Sender<Outgoing>,
    worker: Option<(WorkerId, Incarnation)>,
}

/// The sessions of this server. Entries are looked at and let go at once; no guard lives across another call or an await.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    peers: DashMap<SessionId, Peer>,
}

impl Directory {
    pub(crate) fn insert(&self, session: SessionId, outgoing: Sender<Outgoing>) {
        self.peers.insert(session, Peer { outgoing, worker: None });
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

    /// Hands something to a session. Never waits: whoever does not take its messages loses its session, not the others' time.
    pub(crate) fn send(&self, session: SessionId, outgoing: Outgoing) {
        let Some(sender) = self.peers.get(&session).map(|peer| peer.outgoing.clone()) else {
            return;
        };
        if let Err(TrySendError::Full(_)) = sender.try_send(outgoing) {
            tracing::warn!(session = session.0, "a peer does not take its messages; its session is cut");
            // Dropping the last sender ends the session's writer, and with it the connection.
            self.remove(session);
        }
    }

    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.peers.iter().map(|entry| *entry.key()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }
}
