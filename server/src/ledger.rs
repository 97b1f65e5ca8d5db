//! What the coordinator keeps of the run, so that another process goes on with it: on its own disk ([`local`]), or in etcd.
//!
//! Both keep the same: a snapshot of control, and every event after it that changes something, before anything that follows from it leaves.

pub(crate) mod local;

use std::path::PathBuf;

use slackline_core::ids::Moment;
use slackline_core::wire::ToServer;
use slackline_server_core::ControlEvent;

use local::Local;

/// How the last word of a run that failed begins; those who stand by end as it did.
pub(crate) const FAILED: &str = "the run failed: ";

/// The coordinator's memory cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A file cannot be read or written.
    #[error("{} cannot be kept: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The store says no.
    #[error("{} cannot be used: {source}; if it is damaged, start anew with --fresh, or go on from a checkpoint with --resume", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// Events that were durable are not what was written.
    #[error("{} is damaged at byte {at}, before its end: the disk has lost what it had; start anew with --fresh, or go on from a checkpoint with --resume", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
    },
    /// It is of another run.
    #[error(
        "{} holds the state of another run (its configuration was another one): choose another folder with --out, or start anew with --fresh",
        path.display()
    )]
    OtherRun {
        /// The folder.
        path: PathBuf,
    },
    /// etcd does not do what it is asked, or cannot be asked.
    #[error("the coordinator's memory cannot be kept: {0}")]
    Etcd(String),
    /// What etcd has cannot be read.
    #[error(
        "the row {row} in etcd is damaged, or was written by another program or another version of this one: use the version that wrote it, or start \
         anew with --fresh"
    )]
    Unreadable {
        /// Its whole name.
        row: String,
    },
    /// Somebody leads, or has left a run to go on with, who is no candidate of this cluster.
    #[error(
        "another cluster of the same configuration keeps its run at {rows} in etcd (its coordinator is at {at}, which is not in cluster.coordinators): \
         give each cluster a prefix of its own, etcd://HOST:PORT/PREFIX; if it is this cluster, and all its candidates have moved at once, leave one \
         of the former addresses in the list"
    )]
    OtherCluster {
        /// What the names of its rows begin with.
        rows: String,
        /// Where it is reached.
        at: String,
    },
    /// Another candidate leads, so nothing of this one counts any more.
    #[error("this coordinator leads no more")]
    Deposed,
}

impl LedgerError {
    /// Whether the one who started the server can mend it.
    pub(crate) const fn is_users(&self) -> bool {
        matches!(self, Self::OtherRun { .. } | Self::OtherCluster { .. })
    }
}

/// What was kept.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The last snapshot of control; none before the first.
    pub(crate) snapshot: Option<Vec<u8>>,
    /// What happened after it.
    pub(crate) events: Vec<(Moment, ControlEvent)>,
}

impl Kept {
    /// Whether anybody was told anything: before the first snapshot, nobody was.
    pub(crate) const fn is_begun(&self) -> bool {
        self.snapshot.is_some()
    }
}

/// What is to be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep<'a> {
    /// Events, in their order.
    Events(&'a [(Moment, ControlEvent)]),
    /// A snapshot, which stands for all events so far.
    Snapshot(&'a [u8]),
    /// A map of shards.
    Map(&'a [u8]),
}

/// See the module.
#[derive(Debug)]
pub(crate) enum Ledger {
    /// On the disk.
    Local(Local),
    /// In etcd.
    #[cfg(feature = "etcd")]
    Etcd(Box<crate::etcd::Store>),
}

impl Ledger {
    /// Keeps it. After an error, the same must be tried again before anything else is: the part that was kept is not kept twice.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub(crate) async fn keep(&mut self, keep: Keep<'_>) -> Result<(), LedgerError> {
        match self {
            Self::Local(local) => match keep {
                Keep::Events(events) => {
                    local.append(events, events.iter().any(|(_, event)| is_lasting(event)))
                }
                Keep::Snapshot(snapshot) => local.snapshot(snapshot),
                Keep::Map(map) => local.map(map),
            },
            #[cfg(feature = "etcd")]
            Self::Etcd(store) => store.keep(keep).await,
        }
    }

    /// Says how the run ended, to those who stand by: each ends with it once all servers are told. Whether nobody can go on with the run, so
    /// that what was kept may be removed, is `forget`.
    ///
    /// # Errors
    /// [`LedgerError`]; nothing can be done about it any more.
    pub(crate) async fn end(&mut self, over: &str, forget: bool) -> Result<(), LedgerError> {
        match self {
            Self::Local(_) => {
                // Nobody stands by, and its files go with the folder.
                let _ = (over, forget);
                Ok(())
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(store) => store.end(over, forget).await,
        }
    }

    /// Says that all servers have heard how the run ended.
    ///
    /// # Errors
    /// [`LedgerError`]; then whoever stands by tells them once more.
    pub(crate) async fn say_told(&mut self) -> Result<(), LedgerError> {
        match self {
            Self::Local(_) => Ok(()),
            #[cfg(feature = "etcd")]
            Self::Etcd(store) => store.say_told().await,
        }
    }

    /// Lets it go: whoever stands by may take it up.
    pub(crate) async fn close(self) {
        match self {
            Self::Local(_) => {}
            #[cfg(feature = "etcd")]
            Self::Etcd(store) => store.close().await,
        }
    }

    /// Whether a snapshot is due.
    pub(crate) fn is_long(&self) -> bool {
        match self {
            Self::Local(local) => local.is_long(),
            #[cfg(feature = "etcd")]
            Self::Etcd(store) => store.is_long(),
        }
    }

    /// Whether other processes can write to it, so that nothing may leave this one that was not written before.
    pub(crate) const fn is_shared(&self) -> bool {
        match self {
            Self::Local(_) => false,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => true,
        }
    }
}

/// What no power cut may take back: an incarnation is never given twice.
const fn is_lasting(event: &ControlEvent) -> bool {
    matches!(event, ControlEvent::Message { message: ToServer::Join(_), .. })
}
