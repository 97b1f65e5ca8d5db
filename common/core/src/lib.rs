//! The pure words and rules of Slackline. Nothing here knows a socket, a thread, a file or the wall clock.
//!
//! Read in this order: [`ids`], [`limits`], [`layout`], [`partition`].

pub mod ids;
pub mod layout;
pub mod limits;
pub mod model;
pub mod partition;
