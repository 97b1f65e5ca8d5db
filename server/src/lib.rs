//! The server daemon: the shell around the pure server.
//!
//! One thread runs the network and [`slackline_server_core::Control`]; each shard has a thread of its own that owns it. Read in this
//! order: [`daemon`](crate::serve) (the loop), `session` (one peer), `owner` (one shard), `directory` (who is connected), `files`
//! (what is left on disk).
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod daemon;
mod directory;
mod files;
mod owner;
mod peers;
mod session;

pub use daemon::{Ended, ServerError, ServerOptions, serve};
