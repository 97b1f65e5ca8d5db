//! The worker daemon: models, datasets, the training loop.
//!
//! The numeric half knows nothing of servers: [`dataset`] reads examples, [`loader`] gathers them into
//! batches on a thread of its own, [`model`] turns values and a batch into a gradient, [`local`] several of them into what a worker
//! with local steps pushes. Around it, `daemon` puts a worker together and `driver` is the loop that drives
//! [`slackline_worker_core::Worker`]; `link` are its connections to servers, `compute` its computing threads, `pace` how long they take
//! on purpose; [`push_log`] records what is pushed, for whoever replays a run. What becomes of gradients is in `servers` (pushed and pulled) or in `allreduce`, with `replica` (the worker's own copy of
//! the model) and `peers` (the other workers).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod allreduce;
mod buffers;
mod coming;
mod compute;
mod daemon;
pub mod dataset;
mod driver;
pub mod exchange;
mod inbox;
mod link;
pub mod loader;
pub mod local;
pub mod model;
mod pace;
pub mod packing;
mod parts;
mod peers;
pub mod push_log;
mod replica;
mod servers;
mod streams;

pub use daemon::{WorkerFailure, WorkerOptions, run};
pub use peers::ListenError;
