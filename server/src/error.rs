//! Why a server cannot go on, and who can mend it.

use slackline_net::{BindError, KeysError, NetworkStopped};

use crate::files::FileError;
use crate::journal::JournalError;
use crate::ledger::LedgerError;

/// Why a server cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The folder of the results.
    #[error(transparent)]
    File(#[from] FileError),
    /// The machine gives no thread.
    #[error("the system gives no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The network thread is gone.
    #[error(transparent)]
    Stopped(#[from] NetworkStopped),
    /// A trace was asked for where there is nothing to trace.
    #[error(
        "--trace records the pulls and pushes of shards, and an allreduce (sync.method = \"allreduce\") has none: leave --trace out"
    )]
    NothingToTrace,
    /// What an earlier process has left on the disk.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A journal of an earlier process.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The checkpoint that the run is to go on from.
    #[error("the run cannot go on: {0}")]
    Resume(String),
    /// The servers of a run must find each other.
    #[error(
        "the run has {0} servers, which speak with each other: say in cluster.addresses where all of them are, for each of them"
    )]
    NoAddresses(u32),
    /// A candidate for the coordinator cannot do with what it was given for etcd.
    #[error("{0}")]
    Etcd(String),
    /// The run failed.
    #[error("{0}")]
    Run(String),
    /// The coordinator says that this process cannot be one of the run.
    #[error("{0}")]
    Refused(String),
}

impl ServerError {
    /// Whether the one who started it can mend it (exit code 2), and not the world (1).
    #[must_use]
    pub fn is_users(&self) -> bool {
        match self {
            Self::Keys(_)
            | Self::Bind(_)
            | Self::NothingToTrace
            | Self::NoAddresses(_)
            | Self::Resume(_)
            | Self::Etcd(_)
            | Self::Refused(_) => true,
            Self::Ledger(error) => error.is_users(),
            Self::File(error) => error.is_users(),
            Self::Thread(_) | Self::Stopped(_) | Self::Journal(_) | Self::Run(_) => false,
        }
    }
}
