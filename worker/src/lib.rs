//! The worker daemon: models, datasets, the training loop.
//!
//! The numeric half knows nothing of servers: [`dataset`] reads examples, [`loader`] gathers them into
//! batches on a thread of its own, [`model`] turns values and a batch into a gradient, [`local`] several of them into what a worker
//! with local steps pushes. Around it, `daemon` is the loop that drives
//! [`slackline_worker_core::Worker`], `link` its connections, `compute` its computing threads, `pace` how long they take on purpose.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod buffers;
mod compute;
mod daemon;
pub mod dataset;
mod inbox;
mod link;
pub mod loader;
pub mod local;
pub mod model;
mod pace;

pub use daemon::{WorkerFailure, WorkerOptions, run};
