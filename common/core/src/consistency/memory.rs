//! What policies remember, in a form that is kept and sent: a copy that takes over decides as the first would have.

use bincode::{Decode, Encode};

use crate::ids::{Clock, Moment, WorkerId};

/// The memory of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Memory {
    /// It has none.
    Nothing,
    /// Of [`dssp`](super::dssp): the pace of each worker, in ascending order of workers.
    Paces(Vec<(WorkerId, Pace)>),
    /// Of [`quorum`](super::quorum).
    Rounds {
        /// The round of the last push, and when the first push of it came.
        round: Option<(Clock, Moment)>,
        /// From the first push of a round to that of the next, usually, in nanoseconds.
        usual_ns: Option<u64>,
    },
}

/// What [`dssp`](super::dssp) knows of one worker's pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Pace {
    /// Its last push.
    pub last: Option<Moment>,
    /// Nanoseconds between its last two pushes.
    pub interval: Option<u64>,
    /// The clock at which it was last looked at, with the minimum clock then.
    pub looked_at: Option<(Clock, Clock)>,
    /// The highest clock at which it may read, by what was granted.
    pub granted: Clock,
}
