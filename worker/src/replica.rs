//! A worker's own copy of the model, for an allreduce: one thread that computes gradients on it and applies the sums.
//!
//! The driver sends jobs ([`ReplicaJob`]), which are done one after another: a step after an application computes on the applied values,
//! and a snapshot after it sees them. A step hands out its gradient bucket by bucket ([`ReplicaDone::Bucket`]), each as soon as its last
//! key is final, while backward goes on. How the sums of a step come about is not this thread's business.

mod handout;
#[cfg(test)]
mod tests;
mod thread;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use slackline_core::config::Config;
use slackline_core::ids::{Clock, Generation, Sequence, WorkerId};
use slackline_net::SharedValues;
use tokio::sync::mpsc::Sender;

use crate::dataset::Dataset;
use crate::model::Batch;
use crate::pace::Watch;

pub(crate) use handout::Handout;

/// Jobs that may wait. A driver has a step, an application and a snapshot under way, and a state for each member of a new group.
const JOBS_MAX: usize = 1024;

/// What the thread is to do.
#[derive(Debug)]
pub(crate) enum ReplicaJob {
    /// A new group: how many parts its schedule has. A step of a former group is not wanted any more.
    Form {
        /// See [`Packing`](slackline_core::collective::Packing).
        parts: u32,
    },
    /// Compute a gradient and hand out its buckets. Answered by [`ReplicaDone::Bucket`] for each bucket, in their order, and then
    /// [`ReplicaDone::Step`]; one that is not wanted any more by the latter alone.
    Step {
        generation: Generation,
        clock: Clock,
        /// Without a batch, zeros are handed out.
        batch: Option<Batch>,
        /// For the pace.
        worker: WorkerId,
        /// What the gradient is multiplied by.
        share: f32,
    },
    /// Apply the sums of a step. Answered by [`ReplicaDone::Spare`].
    Apply {
        clock: Clock,
        progress: f64,
        /// By bucket, then by part.
        sums: Vec<Vec<SharedValues>>,
    },
    /// The sums of a step are not used. Not answered.
    Skip { clock: Clock },
    /// Answered by [`ReplicaDone::Snapshot`].
    Snapshot { at_samples: u64 },
    /// Answered by [`ReplicaDone::State`].
    State {
        generation: Generation,
        /// Iterations that are to be in it.
        clock: Clock,
        /// Who asked: comes back with the answer.
        reply: WorkerId,
    },
    /// Go on from another member's values and optimizer state. Answered by [`ReplicaDone::Restored`].
    Restore {
        generation: Generation,
        /// Iterations that are in them.
        clock: Clock,
        values: Vec<f32>,
        slots: Vec<f32>,
    },
}

/// What the thread has done.
#[derive(Debug)]
pub(crate) enum ReplicaDone {
    /// A bucket of a gradient is final.
    Bucket {
        generation: Generation,
        clock: Clock,
        bucket: u32,
        /// Part by part, multiplied by the share. The thread writes to it again once nobody else holds it.
        packed: SharedValues,
    },
    /// A step is computed, and all its buckets are handed out.
    Step {
        generation: Generation,
        clock: Clock,
        /// Goes back to the loader.
        batch: Option<Batch>,
        loss: f64,
        samples: u32,
        /// The first value of the gradient, before its share, that is not finite.
        bad_key: Option<u64>,
    },
    /// A copy of the values.
    Snapshot { at_samples: u64, values: Vec<f32> },
    /// A copy of values and optimizer state.
    State {
        generation: Generation,
        clock: Clock,
        reply: WorkerId,
        values: Vec<f32>,
        slots: Vec<f32>,
        /// Exactly as many iterations are in it as was asked for. Else both are empty.
        is_right: bool,
    },
    /// Whether what was to be restored fits this model and optimizer. If not, nothing has changed.
    Restored { generation: Generation, is_right: bool },
    /// Sums that have been applied: their memory can be used again as soon as nobody else holds it.
    Spare(Vec<SharedValues>),
    /// The thread is gone; what it was given last is not done.
    Ended,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Replica {
    /// None only while dropping: closing it ends the thread.
    jobs: Option<SyncSender<ReplicaJob>>,
    watch: Arc<Watch>,
    /// Steps handed over.
    steps: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl Replica {
    /// Starts the thread, with the initial values of the configuration's seed and nothing applied. `config.sync` says how the gradient is
    /// cut into buckets.
    ///
    /// # Errors
    /// The system gives no threads.
    pub(crate) fn start(
        config: &Config,
        dataset: &Arc<Dataset>,
        done: Sender<ReplicaDone>,
    ) -> io::Result<Self> {
        let watch = Arc::new(Watch::default());
        let (jobs, to_do) = sync_channel(JOBS_MAX);
        let own = thread::Own::new(config, dataset, watch.clone(), done)?;
        let thread =
            std::thread::Builder::new().name("gradient".to_owned()).spawn(move || own.run(&to_do))?;
        Ok(Self { jobs: Some(jobs), watch, steps: AtomicU64::new(0), thread: Some(thread) })
    }

    /// Hands a job over; false when the thread is gone, or so far behind that it might as well be.
    pub(crate) fn send(&self, job: ReplicaJob) -> bool {
        match job {
            ReplicaJob::Form { .. } => self.watch.abandon_all(),
            ReplicaJob::Step { .. } => {
                self.watch.begin(Sequence(self.steps.fetch_add(1, Ordering::Relaxed) + 1));
            }
            _ => {}
        }
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }

    /// Nobody wants the step that was handed over last: if it is under way, it ends as soon as can be.
    pub(crate) fn abandon(&self) {
        self.watch.abandon_all();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.watch.end();
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was told as [`ReplicaDone::Ended`].
            let _ = thread.join();
        }
    }
}
