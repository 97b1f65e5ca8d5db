//! The server daemon: the shell around the pure server.
//!
//! One thread runs the network and [`slackline_server_core::Control`]; each shard that the server leads or backs has a thread of its own.
//! Read in this order: [`serve`] (`start`: what it begins with), `daemon` (the loop), `ticks` (when it looks at the time), `door` (who comes
//! in), `session` (one peer), `home` and `owner` (the shards' threads), `processors` (where these run), `performer` (what they do), `directory` (who is connected), `links`
//! and `coordinator_link` (the ways to other servers), `feeds` and `frames` (what a backup is given), `journal` (what the disk is given),
//! `saver` (checkpoints), `ledger` and `etcd` (what a coordinator goes on with, in its own place or another's), `looks` (what the shards answer about themselves), `files`
//! (what is left among the results), `signals` (what ends the process), [`tracer`] (what is traced). `parts` is what they are made from.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod budget;
mod coordinator_link;
mod daemon;
mod directory;
mod door;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod feeds;
pub mod files;
mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod home;
mod journal;
mod ledger;
mod links;
mod looks;
mod owner;
#[cfg(test)]
mod pair;
pub mod parts;
mod peers;
mod performer;
mod processors;
mod saver;
mod session;
mod signals;
mod start;
mod ticks;
pub mod tracer;
mod words;

pub use error::ServerError;
#[cfg(feature = "etcd")]
pub use etcd::{CandidateOptions, coordinate};
pub use links::{Addresses, AddressesToCome};
pub use saver::{FOLDER as CHECKPOINTS, resume};
pub use start::{Ended, Keeps, ServerOptions, forget, serve, stands};
