//! The pure words and rules of Slackline. Nothing here knows a socket, a thread, a file or the wall clock.
//!
//! Read in this order: [`ids`], [`limits`], [`layout`], [`model`], [`partition`], [`schedule`], [`consistency`], [`aggregate`],
//! [`collective`], [`wide`], [`optimizer`], [`codec`], [`wire`], [`histogram`], [`trace`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(target_endian = "big")]
compile_error!("values travel as raw little-endian bytes; a big-endian host would need to swap them");

pub mod aggregate;
pub mod codec;
pub mod collective;
pub mod config;
pub mod consistency;
pub mod histogram;
pub mod ids;
pub mod layout;
pub mod limits;
pub mod local;
pub mod model;
pub mod optimizer;
pub mod order;
pub mod partition;
pub mod role;
pub mod schedule;
pub mod stragglers;
pub mod trace;
pub mod wide;
pub mod wire;
