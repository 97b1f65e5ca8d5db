//! What another worker can do wrong, in words that name it.

use slackline_core::collective::ReductionError;
use slackline_core::ids::{Clock, Generation, WorkerId};
use slackline_net::{ConnectionError, TransferError};

/// Why a transfer of another worker is not taken. The connection is closed with this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// Of an iteration that is over, or too far ahead.
    #[error("{worker} sent a part of {clock}, bucket {bucket}, that has no place (this worker is at {at})")]
    Clock { worker: WorkerId, clock: Clock, bucket: u32, at: Clock },
    /// Of a bucket that does not exist.
    #[error("{worker} sent a part of bucket {bucket} at {clock}, and there are {buckets}")]
    Bucket { worker: WorkerId, clock: Clock, bucket: u32, buckets: u32 },
    /// Not what the schedule lets this worker send to this one, or for the second time.
    #[error(
        "{worker} sent transfer {number} of {clock}, bucket {bucket}, which is none that it still has to send here"
    )]
    Number { worker: WorkerId, clock: Clock, bucket: u32, number: u64 },
    /// Too long or too short.
    #[error(
        "{worker} sent {values} values as transfer {number} of {clock}, bucket {bucket}, which has {expected}"
    )]
    Length { worker: WorkerId, clock: Clock, bucket: u32, number: u64, values: u64, expected: u64 },
    /// In the name of another worker.
    #[error("{worker} sent a transfer in the name of {said}")]
    Name { worker: WorkerId, said: WorkerId },
    /// For another group.
    #[error("{worker} sent a transfer of {said} over a connection of {ours}")]
    Generation { worker: WorkerId, said: Generation, ours: Generation },
    /// Values that nobody asked for.
    #[error("{worker} sent {what}, which nobody waits for")]
    Unasked { worker: WorkerId, what: &'static str },
    /// Values or optimizer state of another length or iteration.
    #[error("{worker} sent {values} values of {what} at {clock}; {expected} at {at} were asked for")]
    State { worker: WorkerId, what: &'static str, values: u64, clock: Clock, expected: u64, at: Clock },
    /// The reduction itself found it wrong.
    #[error("{worker} sent what does not fit the reduction: {error}")]
    Reduction { worker: WorkerId, error: ReductionError },
    /// The bytes of a transfer do not belong together.
    #[error("{worker} sent a transfer that cannot be read: {error}")]
    Transfer { worker: WorkerId, error: TransferError },
    /// The bytes have no meaning.
    #[error("{worker} sent what is no message: {error}")]
    Control { worker: WorkerId, error: ConnectionError },
}

/// How the connection to another worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It said that it needs nothing more, or that the group is over for it.
    Left,
    /// It does not want this worker, and says why.
    Refused(String),
    /// The path or the other process is gone.
    Lost(ConnectionError),
    /// It did what it must not do.
    Fault(Fault),
    /// This side did not get rid of what was to be sent.
    Stuck,
}

impl End {
    /// What an error of the connection means, when it comes from `worker`.
    pub(crate) fn of(worker: WorkerId, error: ConnectionError) -> Self {
        use slackline_net::CloseCode;
        match error {
            ConnectionError::Closed { code: CloseCode::Done, .. } | ConnectionError::ClosedHere => Self::Left,
            ConnectionError::Closed { code: CloseCode::Refused | CloseCode::Malformed, reason } => {
                Self::Refused(reason)
            }
            ConnectionError::Wire(_) | ConnectionError::Torn => Self::Fault(Fault::Control { worker, error }),
            error => Self::Lost(error),
        }
    }

    /// What an error of a transfer means.
    pub(crate) fn of_transfer(worker: WorkerId, error: TransferError) -> Self {
        match error {
            TransferError::Connection(error) => Self::of(worker, error),
            error => Self::Fault(Fault::Transfer { worker, error }),
        }
    }
}
