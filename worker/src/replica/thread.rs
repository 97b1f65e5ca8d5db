//! What the thread owns, and how it does each job.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use slackline_core::aggregate::first_not_finite;
use slackline_core::collective::{Order, buckets};
use slackline_core::config::Config;
use slackline_core::ids::{Clock, Generation, KeyRange, Sequence, WorkerId};
use slackline_core::optimizer::{Optimizer, Step};
use slackline_core::stragglers::ready_share;
use slackline_net::SharedValues;
use tokio::sync::mpsc::Sender;

use super::handout::Handout;
use super::{ReplicaDone, ReplicaJob};
use crate::compute::Gradients;
use crate::dataset::Dataset;
use crate::model::{self, Batch};
use crate::pace::{Pace, Watch, share_of};

/// The driver has gone: there is nobody to work for.
struct Unheard;

/// Tells what is done, and of the end of the thread when that is a panic.
struct Answers(Sender<ReplicaDone>);

impl Answers {
    fn tell(&self, done: ReplicaDone) -> Result<(), Unheard> {
        self.0.blocking_send(done).map_err(|_| Unheard)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // It fails only when nobody listens.
            let _ = self.0.blocking_send(ReplicaDone::Ended);
        }
    }
}

/// A step as the driver asked for it.
struct Asked {
    generation: Generation,
    clock: Clock,
    batch: Option<Batch>,
    worker: WorkerId,
    share: f32,
}

/// Everything of the thread.
pub(super) struct Own {
    gradients: Gradients,
    values: Vec<f32>,
    optimizer: Optimizer,
    /// Iterations that are in the values.
    clock: Clock,
    /// This worker's gradient, then the sum of all: never both at once.
    gradient: Vec<f32>,
    handout: Handout,
    pace: Option<Pace>,
    watch: Arc<Watch>,
    /// Steps begun, as the driver counts them.
    steps: Sequence,
    answers: Answers,
}

impl Own {
    pub(super) fn new(
        config: &Config,
        dataset: &Dataset,
        watch: Arc<Watch>,
        done: Sender<ReplicaDone>,
    ) -> std::io::Result<Self> {
        let model = model::build(&config.model, dataset.input_count, dataset.class_count, 1);
        let layout = model.layout();
        let mut values = vec![0.0; layout.len() as usize];
        model.initialize(config.seed, &mut values);
        let (bucket_bytes, order) =
            config.sync.as_ref().map_or((0, Order::Backward), |sync| (sync.bucket_bytes, sync.order));
        Ok(Self {
            gradients: Gradients::of(config, dataset)?,
            // A clock is one step here: what is applied is its mean.
            optimizer: Optimizer::new(config.optimizer, layout, KeyRange::new(0, layout.len()), 1),
            clock: Clock::default(),
            gradient: vec![0.0; values.len()],
            handout: Handout::new(buckets(layout, bucket_bytes, order)),
            values,
            pace: Pace::of(config),
            watch,
            steps: Sequence::default(),
            answers: Answers(done),
        })
    }

    /// Does jobs until there are no more, or nobody listens.
    pub(super) fn run(mut self, jobs: &Receiver<ReplicaJob>) {
        while let Ok(job) = jobs.recv() {
            if self.perform(job).is_err() {
                return;
            }
        }
    }

    fn perform(&mut self, job: ReplicaJob) -> Result<(), Unheard> {
        match job {
            ReplicaJob::Form { parts } => {
                self.handout.set_parts(parts);
                Ok(())
            }
            ReplicaJob::Step { generation, clock, batch, worker, share } => {
                self.step(Asked { generation, clock, batch, worker, share })
            }
            ReplicaJob::Apply { clock, progress, sums } => self.apply(clock, progress, sums),
            ReplicaJob::Skip { clock } => {
                self.clock = clock.next();
                Ok(())
            }
            ReplicaJob::Snapshot { at_samples } => {
                self.answers.tell(ReplicaDone::Snapshot { at_samples, values: self.values.clone() })
            }
            ReplicaJob::State { generation, clock, reply } => {
                let is_right = clock == self.clock;
                let copy = |values: &[f32]| if is_right { values.to_vec() } else { Vec::new() };
                let (values, slots) = (copy(&self.values), copy(self.optimizer.slots()));
                self.answers.tell(ReplicaDone::State { generation, clock, reply, values, slots, is_right })
            }
            ReplicaJob::Restore { generation, clock, values, slots } => {
                let is_right = values.len() == self.values.len() && self.optimizer.restore(&slots);
                if is_right {
                    (self.values, self.clock) = (values, clock);
                }
                self.answers.tell(ReplicaDone::Restored { generation, is_right })
            }
        }
    }

    fn step(&mut self, asked: Asked) -> Result<(), Unheard> {
        self.steps = self.steps.next();
        let Asked { generation, clock, .. } = asked;
        let samples = asked.batch.as_ref().map_or(0, Batch::samples);
        // A step that was given up before it began costs nothing.
        let (loss, bad_key) = if self.watch.is_wanted(self.steps) {
            (self.compute(&asked)?, first_not_finite(&self.gradient).map(|key| key as u64))
        } else {
            (0.0, None)
        };
        let samples = samples as u32;
        self.answers.tell(ReplicaDone::Step { generation, clock, batch: asked.batch, loss, samples, bad_key })
    }

    /// Computes the gradient and hands it out; returns the mean loss.
    fn compute(&mut self, asked: &Asked) -> Result<f64, Unheard> {
        let began = Instant::now();
        let Self { gradients, values, gradient, handout, pace, watch, steps, answers, .. } = self;
        let samples = asked.batch.as_ref().map_or(0, Batch::samples);
        let time = pace.as_ref().map(|pace| pace.time(asked.worker, asked.clock, samples));
        let total = handout.keys().len;
        handout.begin();
        let mut outcome = Ok(());
        let mut ready = |gradient: &mut [f32], keys: std::ops::Range<usize>| {
            handout.complete(&keys);
            while outcome.is_ok() && handout.is_ready() {
                if let Some(time) = time {
                    watch.wait(*steps, began, share_of(time, ready_share(handout.keys_final(), total)));
                }
                if !watch.is_wanted(*steps) {
                    break;
                }
                let Some((bucket, packed)) = handout.pack(gradient, asked.share) else { break };
                let Asked { generation, clock, .. } = *asked;
                outcome = answers.tell(ReplicaDone::Bucket { generation, clock, bucket, packed });
            }
        };
        let loss = match &asked.batch {
            Some(batch) => {
                gradients.compute_of(&mut values.as_slice(), batch.examples(), gradient, &mut ready)
            }
            None => {
                gradient.fill(0.0);
                ready(gradient, 0..total as usize);
                0.0
            }
        };
        outcome.map(|()| f64::from(loss))
    }

    fn apply(&mut self, clock: Clock, progress: f64, sums: Vec<Vec<SharedValues>>) -> Result<(), Unheard> {
        self.handout.unpack(&sums, &mut self.gradient);
        self.optimizer.apply(&mut self.values, &self.gradient, &Step::fresh(progress, clock.0));
        self.clock = clock.next();
        let spare = self.handout.not_lent(sums.into_iter().flatten());
        if spare.is_empty() { Ok(()) } else { self.answers.tell(ReplicaDone::Spare(spare)) }
    }
}
