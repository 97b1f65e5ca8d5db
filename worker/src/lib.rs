//! The worker daemon: models, datasets, the training loop.
//!
//! The numeric half knows nothing of servers: [`dataset`] reads examples, [`loader`] gathers them into
//! batches on a thread of its own, [`model`] turns values and a batch into a gradient. Around it, `daemon` is the loop that drives
//! [`slackline_worker_core::Worker`], `link` its connections, `compute` its computing threads.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod compute;
mod daemon;
pub mod dataset;
mod link;
pub mod loader;
pub mod model;

pub use daemon::{WorkerFailure, WorkerOptions, run};
