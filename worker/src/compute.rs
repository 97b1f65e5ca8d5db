//! The computing threads: gradients on one, evaluations on another, so that neither holds up the network or the heartbeat.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slackline_core::aggregate::first_not_finite;
use slackline_core::codec::{Factors, Payload};
use slackline_core::config::Config;
use slackline_core::ids::{BatchIndex, Clock, Incarnation, Sequence, ShardId, WorkerId};
use slackline_core::partition::Partition;
use slackline_core::stragglers::ready_share;
use slackline_worker_core::Buffer;
use tokio::sync::mpsc::Sender;

use crate::coming::{ByShard, Coming};
use crate::dataset::Dataset;
use crate::local::{LocalIteration, LocalSolver};
use crate::model::parallel::ParallelGradient;
use crate::model::pieces::PairwiseGradient;
use crate::model::{self, Batch, Examples, Incoming, Ready};
use crate::pace::{Pace, Watch, share_of};
use crate::packing::{Packer, Part, Unused};
use crate::parts::Parts;

/// Examples evaluated at once: enough to fill the cache, too few to notice in memory.
const EVALUATION_CHUNK: usize = 256;

/// A gradient to compute; the buffers go with it and come back.
#[derive(Debug)]
pub(crate) struct GradientJob {
    pub(crate) sequence: Sequence,
    pub(crate) place: Place,
    pub(crate) batch: Batch,
    /// The buffer that the values are lent from.
    pub(crate) buffer: Buffer,
    pub(crate) values: Vec<f32>,
    /// Values that lie apart from those, and the shards of which such are still to come.
    pub(crate) here: ByShard,
    pub(crate) missing: Vec<ShardId>,
    /// For how long nothing was computed for want of them.
    pub(crate) waited: Duration,
    pub(crate) gradient: Vec<f32>,
    /// Parts of earlier gradients that are in no values.
    pub(crate) unused: Vec<Unused>,
    /// Buffers for parts that are written otherwise than plainly, and those parts.
    pub(crate) spare: Vec<Vec<f32>>,
    pub(crate) packed: Vec<(ShardId, Payload)>,
    /// The shards whose parts have been handed over before the rest.
    pub(crate) told: Vec<ShardId>,
}

/// Whose gradient it is, and where it stands in the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: Incarnation,
    pub(crate) clock: Clock,
    /// First unit of the batch.
    pub(crate) batch: BatchIndex,
    /// Shards whose values are newer than before.
    pub(crate) adopted: Vec<ShardId>,
    /// Shards that are sent their parts.
    pub(crate) pushed: Vec<ShardId>,
    /// The gradient before this one was not sent to any server.
    pub(crate) is_after_unsent: bool,
}

/// An evaluation to do.
#[derive(Debug)]
pub(crate) struct EvaluationJob {
    pub(crate) at_samples: u64,
    pub(crate) values: Vec<f32>,
}

/// What a computing thread has done.
#[derive(Debug)]
pub(crate) enum Done {
    /// A shard's part of the gradient under way is final, and finite. It comes before the gradient.
    Part {
        sequence: Sequence,
        shard: ShardId,
        payload: Payload,
        samples: u32,
    },
    Gradient {
        job: Box<GradientJob>,
        loss: f64,
        bad_key: Option<u64>,
    },
    Evaluation {
        job: EvaluationJob,
        loss: f64,
        accuracy: f64,
    },
    /// The thread is gone; what it was given last is not done.
    Ended,
}

/// Tells of the end of its thread when that is a panic: the other thread keeps the channel open.
struct Ending(Sender<Done>);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // There is room: each thread has at most one result and one end under way. It fails only when nobody listens.
            let _ = self.0.try_send(Done::Ended);
        }
    }
}

/// The two threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Compute {
    gradients: Option<SyncSender<Box<GradientJob>>>,
    evaluations: Option<SyncSender<EvaluationJob>>,
    watch: Arc<Watch>,
    threads: Vec<JoinHandle<()>>,
}

impl Compute {
    /// For a run of `batch_count` units (`train.batch` samples with local steps). Without the thread for gradients in an allreduce, whose
    /// [replicas](crate::replica) have their own.
    pub(crate) fn start(
        config: &Config,
        dataset: &Arc<Dataset>,
        batch_count: u64,
        done: Sender<Done>,
    ) -> std::io::Result<Self> {
        // One gradient and one evaluation are under way at most: a place for each is enough that nobody waits.
        let (gradients, gradient_jobs) = sync_channel(2);
        let (evaluations, evaluation_jobs) = sync_channel(2);
        let watch = Arc::new(Watch::default());
        let (inputs, classes) = (dataset.input_count, dataset.class_count);
        let mut threads = Vec::new();
        // In an allreduce gradients are computed where the values are.
        if config.sync.is_none() {
            let mut solver = Solver {
                gradients: Gradients::of(config, dataset)?,
                local: LocalSolver::of(config),
                life: None,
                packer: Packer::of(config),
                parts: config.train.overlap.then(|| Parts::new(config.partition())),
                partition: config.partition(),
                done: done.clone(),
                batch_count,
                pace: Pace::of(config),
                watch: watch.clone(),
            };
            let ending = Ending(done.clone());
            let thread = std::thread::Builder::new().name("gradient".to_owned());
            threads.push(thread.spawn(move || compute_gradients(&mut solver, &gradient_jobs, &ending))?);
        }
        threads.push({
            let dataset = dataset.clone();
            let spec = config.model.clone();
            let thread = std::thread::Builder::new().name("evaluation".to_owned());
            thread.spawn(move || {
                let ending = Ending(done);
                let model = model::build(&spec, inputs, classes, EVALUATION_CHUNK);
                evaluate(model, &dataset, &evaluation_jobs, &ending);
            })?
        });
        Ok(Self { gradients: Some(gradients), evaluations: Some(evaluations), watch, threads })
    }

    /// Hands a gradient over; false when the thread is gone.
    pub(crate) fn gradient(&self, job: GradientJob) -> bool {
        self.watch.begin(job.sequence);
        self.gradients.as_ref().is_some_and(|jobs| jobs.try_send(Box::new(job)).is_ok())
    }

    /// Nobody wants this gradient any more: if it is under way, it comes as soon as can be.
    pub(crate) fn abandon(&self, sequence: Sequence) {
        self.watch.abandon(sequence);
    }

    /// Values have come that the gradient under way is computed on.
    pub(crate) fn deliver(&self, shard: ShardId, values: Vec<f32>) {
        self.watch.deliver(shard, values);
    }

    /// Those that came for a gradient that is done and were not used.
    pub(crate) fn leftover(&self) -> ByShard {
        self.watch.leftover()
    }

    /// Hands an evaluation over; false when the thread is gone.
    pub(crate) fn evaluation(&self, job: EvaluationJob) -> bool {
        self.evaluations.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        self.watch.end();
        (self.gradients, self.evaluations) = (None, None);
        for thread in self.threads.drain(..) {
            // A panic there was told as [`Done::Ended`].
            let _ = thread.join();
        }
    }
}

/// One thread with its pieces one after another, or several with theirs side by side.
pub(crate) enum Gradients {
    Alone(Box<dyn model::Model>, PairwiseGradient),
    Together(ParallelGradient),
}

impl Gradients {
    pub(crate) fn of(config: &Config, dataset: &Dataset) -> std::io::Result<Self> {
        let (inputs, classes, spec) = (dataset.input_count, dataset.class_count, config.model.clone());
        let build = move |samples| model::build(&spec, inputs, classes, samples);
        let (batch, threads) = (config.train.batch as usize, config.train.threads as usize);
        let piece = match config.train.microbatch as usize {
            0 => batch.div_ceil(threads),
            microbatch => microbatch,
        };
        // With local steps it is one step that is computed at once, not the whole iteration.
        let largest = if config.local.is_some() { batch } else { config.cut().samples_max() as usize };
        if threads > 1 {
            let parallel = ParallelGradient::new(threads, piece, move || build(piece));
            return parallel.map(Self::Together).map_err(std::io::Error::other);
        }
        let model = build(piece);
        let pieces = PairwiseGradient::new(piece, model.layout().len() as usize, largest);
        Ok(Self::Alone(model, pieces))
    }

    /// What the last gradient of these examples was made of; none where it is a sum of several.
    fn factors<'a>(&'a self, examples: Examples<'a>) -> Vec<Factors<'a>> {
        match self {
            Self::Alone(model, pieces) if pieces.is_one_piece(examples.samples()) => model.factors(examples),
            Self::Alone(..) | Self::Together(_) => Vec::new(),
        }
    }

    pub(crate) fn compute(&mut self, values: &[f32], examples: Examples<'_>, gradient: &mut [f32]) -> f32 {
        match self {
            Self::Alone(model, pieces) => pieces.gradient(model.as_mut(), values, examples, gradient),
            Self::Together(parallel) => parallel.gradient(values, examples, gradient),
        }
    }

    /// As [`model::Model::gradient_of`]; several threads begin when all values are here.
    pub(crate) fn compute_of(
        &mut self,
        values: &mut dyn Incoming,
        examples: Examples<'_>,
        gradient: &mut [f32],
        ready: &mut Ready<'_>,
    ) -> f32 {
        match self {
            Self::Alone(model, pieces) => {
                pieces.gradient_of(model.as_mut(), values, examples, gradient, ready)
            }
            Self::Together(parallel) => {
                let values = values.until(0..gradient.len());
                parallel.gradient_with(values, examples, gradient, ready)
            }
        }
    }
}

/// What the gradient thread computes with.
struct Solver {
    gradients: Gradients,
    local: Option<LocalSolver>,
    /// None where gradients are sent as they are.
    packer: Option<Packer>,
    /// None where no part leaves before the gradient is whole.
    parts: Option<Parts>,
    partition: Partition,
    done: Sender<Done>,
    /// The life of the worker that the local values belong to.
    life: Option<Incarnation>,
    batch_count: u64,
    pace: Option<Pace>,
    watch: Arc<Watch>,
}

impl Solver {
    /// Fills the job's gradient; returns the mean loss. An abandoned one may be all zeros, without a loss.
    fn compute(&mut self, job: &mut GradientJob) -> f64 {
        let began = Instant::now();
        if self.parts.is_some() {
            return self.compute_in_parts(job, began);
        }
        let (place, examples) = (&job.place, job.batch.examples());
        let loss = match &mut self.local {
            None => f64::from(self.gradients.compute(&job.values, examples, &mut job.gradient)),
            Some(local) => {
                if place.is_after_unsent {
                    local.abandon();
                }
                if self.life.replace(place.incarnation) != Some(place.incarnation) {
                    local.forget();
                }
                let iteration = LocalIteration {
                    pulled: &job.values,
                    adopted: &place.adopted,
                    clock: place.clock,
                    examples,
                    batch: place.batch,
                    batch_count: self.batch_count,
                };
                let gradients = &mut self.gradients;
                let mut gradient_of = |values: &[f32], examples: Examples<'_>, out: &mut [f32]| {
                    gradients.compute(values, examples, out)
                };
                let is_wanted = || self.watch.is_wanted(job.sequence);
                local.iterate(&iteration, &mut gradient_of, &is_wanted, &mut job.gradient).unwrap_or(0.0)
            }
        };
        if let Some(pace) = &self.pace {
            self.watch.wait(job.sequence, began, pace.time(place.worker, place.clock, examples.samples()));
        }
        loss
    }
}

impl Solver {
    /// The same, begun with what values there are, and tells of each part as soon as it is final.
    fn compute_in_parts(&mut self, job: &mut GradientJob, began: Instant) -> f64 {
        let Self { gradients, packer, parts: Some(parts), partition, done, pace, watch, .. } = self else {
            return 0.0;
        };
        let GradientJob { sequence, place, batch, values, here, missing, gradient, spare, told, .. } = job;
        let (sequence, samples) = (*sequence, batch.samples());
        let time = pace.as_ref().map(|pace| pace.time(place.worker, place.clock, samples));
        let waited = Cell::new(Duration::ZERO);
        let sit_out = |share| {
            if let Some(time) = time {
                watch.wait(sequence, began + waited.get(), share_of(time, share));
            }
        };
        let absent = here.keys().chain(missing.iter()).copied().collect::<BTreeSet<_>>();
        let apart = RefCell::new(std::mem::take(here));
        let (mut all, mut coming);
        let (incoming, all): (&mut dyn Incoming, Option<&[f32]>) = if absent.is_empty() {
            all = values.as_slice();
            (&mut all, Some(values))
        } else {
            let (here, pace, waited) = (&apart, &sit_out, &waited);
            coming = Coming { sequence, values, partition, absent, here, watch, pace, waited };
            (&mut coming, None)
        };
        parts.begin(&place.pushed);
        let mut ready = |gradient: &mut [f32], keys: Range<usize>| {
            for shard in parts.complete(&keys) {
                let (done_keys, total) = parts.progress();
                sit_out(ready_share(done_keys, total));
                let keys = parts.keys(shard);
                let apart = apart.borrow();
                let own = apart.get(&shard).map(Vec::as_slice).or_else(|| all?.get(keys.clone()));
                let part = Part { gradient: &gradient[keys], values: own, factors: &[] };
                // What is not finite waits until the whole gradient says so.
                if !watch.is_wanted(sequence) || first_not_finite(part.gradient).is_some() {
                    continue;
                }
                let words = spare.pop().unwrap_or_default();
                let payload = write(packer.as_mut(), place.worker, shard, part, words);
                told.push(shard);
                let _ = done.blocking_send(Done::Part { sequence, shard, payload, samples: samples as u32 });
            }
        };
        let loss = gradients.compute_of(incoming, batch.examples(), gradient, &mut ready);
        // A gradient is ready when all of its values have come, also such as its model did not ask for.
        incoming.until(0..gradient.len());
        sit_out(1.0);
        (*here, job.waited) = (apart.into_inner(), waited.get());
        f64::from(loss)
    }
}

/// A part as it is sent.
fn write(
    packer: Option<&mut Packer>,
    worker: WorkerId,
    shard: ShardId,
    part: Part<'_>,
    mut words: Vec<f32>,
) -> Payload {
    if let Some(packer) = packer {
        return packer.pack(worker, shard, part, words);
    }
    words.clear();
    words.extend_from_slice(part.gradient);
    Payload::plain(words)
}

fn compute_gradients(solver: &mut Solver, jobs: &Receiver<Box<GradientJob>>, done: &Ending) {
    while let Ok(mut job) = jobs.recv() {
        let unused = std::mem::take(&mut job.unused);
        solver.packer.iter_mut().for_each(|packer| packer.undo_all(&unused));
        drop(unused);
        let loss = solver.compute(&mut job);
        let bad_key = first_not_finite(&job.gradient).map(|key| key as u64);
        // What is not finite is not sent, and must not get into what is kept.
        if let (Some(packer), None) = (&mut solver.packer, bad_key) {
            let GradientJob { place, batch, values, gradient, spare, packed, told, .. } = job.as_mut();
            let has_factors = packer.takes_factors() && solver.local.is_none();
            let factors = if has_factors { solver.gradients.factors(batch.examples()) } else { Vec::new() };
            let mut pack = |shard: &ShardId| {
                let words = spare.pop().unwrap_or_default();
                let keys = packer.keys(*shard);
                let part =
                    Part { gradient: &gradient[keys.clone()], values: values.get(keys), factors: &factors };
                (*shard, packer.pack(place.worker, *shard, part, words))
            };
            packed.extend(place.pushed.iter().filter(|shard| !told.contains(shard)).map(&mut pack));
        }
        if done.0.blocking_send(Done::Gradient { job, loss, bad_key }).is_err() {
            return;
        }
    }
}

fn evaluate(
    mut model: Box<dyn model::Model>,
    dataset: &Dataset,
    jobs: &Receiver<EvaluationJob>,
    done: &Ending,
) {
    while let Ok(job) = jobs.recv() {
        let result =
            model::evaluate_all(model.as_mut(), &job.values, dataset.test_examples(), EVALUATION_CHUNK);
        let done_job = Done::Evaluation { job, loss: result.loss(), accuracy: result.accuracy() };
        if done.0.blocking_send(done_job).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
