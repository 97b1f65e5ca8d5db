//! The pure worker: the pull-compute-push cycle as a state machine.
//!
//! A shell feeds [`Event`]s to a [`Worker`] and performs the [`Effect`]s that come back; the simulator does
//! the same with virtual time. Nothing here knows a socket, a thread or the wall clock.
//!
//! ```text
//! Connect -> Welcome -> Join (server 0) -> Register (all) -> Ask -> Work
//!                                             +------------------------+
//!                                             v
//!                 pull all shards -> compute (and ask for the next work) -> push all shards
//! ```
//!
//! Where it prefetches, it pulls for the next iteration while it computes this one.
//!
//! In an allreduce ([`GroupSettings`]) there is no work to ask for and nothing to push: see `group`.
//!
//! Read in this order: [`Event`], [`Effect`], `worker` (routing), `session`, `join`, `work`, `iteration`, `prefetch`,
//! `buffers`, `overtaken`, `push`, `steps`, `place`, `unserved`, `evaluation`, `group`, `leave`, `waits`, and `ledger` and `record` for what is measured.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod beginning;
mod buffers;
mod early;
mod effect;
mod error;
mod evaluation;
mod event;
mod forgotten;
mod group;
mod invariants;
mod iteration;
mod join;
mod leave;
mod ledger;
mod notice;
mod overtaken;
mod place;
mod prefetch;
mod push;
mod record;
mod session;
mod settings;
mod steps;
mod unserved;
mod waits;
mod work;
mod worker;

pub use buffers::Buffer;
pub use effect::Effect;
pub use error::WorkerError;
pub use event::{Event, Obstacle, Packed};
pub use notice::{Notice, PeerWait, WaitKind};
pub use settings::{GroupSettings, Settings};
pub use worker::Worker;

#[cfg(test)]
mod tests;
