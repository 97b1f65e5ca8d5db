//! Why a simulation came to no result.

use std::path::PathBuf;

use slackline_server::files::FileError;
use slackline_worker::dataset::DatasetError;

/// Why a simulation came to no result. A run that diverges is none of these.
#[derive(Debug, thiserror::Error)]
pub enum SimFailure {
    /// The data.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The recorded times.
    #[error("{}: {reason}; stragglers.file wants a file of recorded times", .file.display())]
    Recorded {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The folder of the results.
    #[error(transparent)]
    File(#[from] FileError),
    /// The machine gives no threads.
    #[error("the system gives no threads to compute with: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A computing thread panicked.
    #[error("a gradient was not computed: its thread panicked, see above")]
    ComputeEnded,
    /// The run failed, as the real one would have.
    #[error("the run failed after {virtual_s:.1} s of virtual time: {text}")]
    Run {
        /// When.
        virtual_s: f64,
        /// What the one who failed said.
        text: String,
    },
    /// Nobody does anything any more.
    #[error(
        "nothing has moved since {virtual_s:.1} s of virtual time, and the run is not over: a fault of this program"
    )]
    Stuck {
        /// When something last moved.
        virtual_s: f64,
    },
}

impl SimFailure {
    /// Whether the one who started it can mend it (exit code 2), and not the world (1).
    #[must_use]
    pub fn is_users(&self) -> bool {
        match self {
            Self::Dataset(_) | Self::Recorded { .. } => true,
            Self::File(error) => error.is_users(),
            Self::Threads(_) | Self::ComputeEnded | Self::Run { .. } | Self::Stuck { .. } => false,
        }
    }
}
