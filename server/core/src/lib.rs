//! The pure server. The daemon and the simulated world drive the same machines:
//!
//! - [`shard`]: one range of keys with its values, its clock table and the pulls it holds. One owner each.
//! - [`replica`]: the copies of a shard: who leads, who follows, what may be told to others.
//! - [`control`]: sessions, leases, who is a member; on server 0 also who computes what ([`assign`]) and the record of the run
//!   ([`record`]).
//! - [`buffers`]: what gradients and values lie in, used again.
//! - [`turns`]: whose push is next.
//!
//! Each is told the time and what happened, and answers with effects. Nothing here waits, sends or writes.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod assign;
pub mod buffers;
pub mod control;
pub mod dedup;
pub mod guard;
pub mod notice;
pub mod record;
pub mod replica;
pub mod shard;
pub mod turns;
pub mod waits;

pub use buffers::Buffers;
pub use control::{Control, ControlEffect, ControlEvent, ControlSettings};
pub use notice::Notice;
pub use replica::{Host, HostEffect, HostEvent, HostSettings};
pub use shard::{Shard, ShardEffect, ShardEvent, ShardSettings, ShardState};
pub use turns::Turns;
