//! The coordinator's memory in etcd, for several candidates of which one leads.
//!
//! Nothing here decides by itself who leads: a candidate leads as long as the row `leader`, which it has made under a lease of etcd, is there.
//! That row is the fence as well: **every write is a transaction that compares its creation revision**, which no other candidate's row and no
//! later row of the same candidate ever has. Whoever was deposed, by a freeze or a torn network, can write nothing, and since nothing that
//! follows from an event leaves the process before the event is written, nobody hears of it either.
//!
//! ```text
//! PREFIX/RUN/leader                 who leads, in words; bound to the leader's lease
//! PREFIX/RUN/head                   writes so far: each write compares it too, so that one whose answer was lost is not done twice
//! PREFIX/RUN/cluster                where the candidates are of the cluster whose run it is, a line each
//! PREFIX/RUN/snapshot               number and pieces of the snapshot that counts, and the first event after it
//! PREFIX/RUN/pieces/NUMBER/PIECE    a snapshot, in pieces that etcd takes
//! PREFIX/RUN/events/NUMBER          events that were written together, as frames
//! PREFIX/RUN/over                   how the run ended, for candidates that stand by
//! PREFIX/RUN/told                   written after it, when all servers were told of it
//! ```
//!
//! RUN is the fingerprint of the configuration. `protocol` is what etcd's messages look like, `caller` speaks with its members, `leadership`
//! campaigns and renews, `store` reads and writes, `candidate` is the process, and `callers` are those who reach one that does not lead.
//!
//! A leader writes `over` before it tells anybody but workers that the run is over, and `told` when it has. One that is killed in between has
//! left servers that wait for a coordinator: whoever finds `over` without a later `told` becomes the leader for that alone, and tells them.

mod caller;
mod callers;
mod candidate;
mod leadership;
mod protocol;
mod store;
#[cfg(test)]
mod tests;

use crate::error::ServerError;

pub use candidate::{CandidateOptions, coordinate};
pub(crate) use leadership::Leadership;
pub(crate) use store::Store;

/// The names of a run's rows.
#[derive(Clone, Debug)]
pub(crate) struct Rows(String);

impl Rows {
    pub(crate) fn new(prefix: &str, run: u64) -> Self {
        Self(format!("{prefix}/{run:016x}/"))
    }

    fn all(&self) -> &str {
        &self.0
    }

    fn leader(&self) -> String {
        format!("{}leader", self.0)
    }

    fn head(&self) -> String {
        format!("{}head", self.0)
    }

    fn cluster(&self) -> String {
        format!("{}cluster", self.0)
    }

    fn snapshot(&self) -> String {
        format!("{}snapshot", self.0)
    }

    fn over(&self) -> String {
        format!("{}over", self.0)
    }

    fn told(&self) -> String {
        format!("{}told", self.0)
    }

    fn pieces(&self, number: u64) -> String {
        format!("{}pieces/{number:010}/", self.0)
    }

    fn piece(&self, number: u64, piece: u64) -> String {
        format!("{}pieces/{number:010}/{piece:06}", self.0)
    }

    fn events(&self) -> String {
        format!("{}events/", self.0)
    }

    fn event(&self, number: u64) -> String {
        format!("{}events/{number:010}", self.0)
    }
}

/// etcd does not do what it is asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EtcdError {
    /// None of its members answers, or one says no.
    #[error("etcd at {endpoint}: {reason}")]
    Call {
        /// The member that was asked last.
        endpoint: String,
        /// What it or the network said.
        reason: String,
    },
    /// The keys or the addresses do not serve.
    #[error("{0}")]
    Setting(String),
}

impl From<EtcdError> for ServerError {
    fn from(error: EtcdError) -> Self {
        Self::Etcd(error.to_string())
    }
}
