//! What happens among workers, and what of it the driver is told.

use slackline_core::ids::{Clock, Generation, WorkerId};
use slackline_net::SharedValues;
use slackline_worker_core::Event;

use super::fault::End;
use super::meeting::Acquaintance;

/// What happens among workers, for the driver. The queue has no number for a bound, but what others can put there has:
///
/// - Who calls holds one of the door's places until the driver has taken what is told of it ([`Met`](Self::Met), [`Unmet`](Self::Unmet)).
/// - A connection becomes a link only by the driver's taking it, and tells of its end once, and of a wish for values once.
/// - What comes of parts is bounded by what the schedule lets come in two iterations, values of another by the one fetch.
///
/// The rest comes of this worker's own steps, calls and clocks.
#[derive(Debug)]
pub(crate) enum News {
    /// Another worker's hello is right.
    Met(Box<Acquaintance>),
    /// An attempt to meet the worker at a position failed.
    Unmet { generation: Generation, position: u32, text: String, gravity: Gravity, place: Place },
    /// The time for meeting is over: for those that this worker calls, or for all.
    Overdue { generation: Generation, whom: Whom },
    /// A connection has ended.
    Ended { generation: Generation, position: u32, end: End },
    /// Something for the pure worker.
    Event(Generation, Event),
    /// Another worker wants this one's values.
    WantState { generation: Generation, worker: WorkerId, clock: Clock },
    /// Values and optimizer state of another worker.
    State { generation: Generation, clock: Clock, values: Vec<f32>, slots: Vec<f32> },
    /// All sums of a bucket are here.
    Summed { generation: Generation, bucket: u32, parts: Vec<SharedValues> },
}

/// What follows when two workers have not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gravity {
    /// It may be otherwise the next time.
    Passing,
    /// Somebody else is where the other should be: with that one no group can be.
    Misled,
    /// This worker itself does not belong here.
    Fatal,
}

/// Who is to be here by a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    /// Those that this worker calls.
    Called,
    /// Those that call, too.
    All,
}

/// One of the door's places, held by somebody who has called; none where this side did.
pub(crate) type Place = Option<tokio::sync::OwnedSemaphorePermit>;

/// What of it is for the driver to act on.
#[derive(Debug)]
pub(crate) enum Told {
    Event(Event),
    WantState { generation: Generation, worker: WorkerId, clock: Clock },
    State { generation: Generation, clock: Clock, values: Vec<f32>, slots: Vec<f32> },
    Summed { bucket: u32, parts: Vec<SharedValues> },
}
