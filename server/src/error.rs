//! Why a server cannot go on, and who can mend it.

use slackline_net::{BindError, KeysError, NetworkStopped};

use crate::files::FileError;

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
    /// The run failed.
    #[error("{0}")]
    Run(String),
}

impl ServerError {
    /// Whether the one who started it can mend it (exit code 2), and not the world (1).
    #[must_use]
    pub fn is_users(&self) -> bool {
        match self {
            Self::Keys(_) | Self::Bind(_) | Self::NothingToTrace => true,
            Self::File(error) => error.is_users(),
            Self::Thread(_) | Self::Stopped(_) | Self::Run(_) => false,
        }
    }
}
