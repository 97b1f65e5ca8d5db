//! The server daemon: the shell around the pure server.
//!
//! One thread runs the network and [`slackline_server_core::Control`]; each shard has a thread of its own that owns it. Read in this
//! order: [`daemon`](crate::serve) (the loop), `ticks` (when it looks at the time), `door` (who comes in), `session` (one peer), `owner` (one shard), `directory` (who is
//! connected), `looks` (what the shards answer about themselves), `files` (what is left on disk), `peers` (the other servers), [`tracer`]
//! (what is traced).
//! `parts` is what they are made from.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod daemon;
mod directory;
mod door;
mod error;
pub mod files;
mod looks;
mod owner;
#[cfg(test)]
mod pair;
pub mod parts;
mod peers;
mod session;
mod ticks;
pub mod tracer;

pub use daemon::{Ended, ServerOptions, serve};
pub use error::ServerError;
