//! Gradients and evaluations: computed on a pool of threads, or left out.
//!
//! A gradient is a pure function of values and batch. It is started when its virtual time begins and taken when that is over, so that
//! workers that compute at the same virtual time compute at the same real time too; what comes out does not depend on how many threads
//! there are or which of them did it. With one thread there is no pool: a gradient is computed where it begins, and nobody waits.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use slackline_core::aggregate::first_not_finite;
use slackline_core::codec::{CodecKind, Factors};
use slackline_core::config::Config;
use slackline_core::ids::{BatchIndex, Clock, Incarnation, KeyRange, ShardId};
use slackline_core::partition::Partition;
use slackline_core::schedule::DataOrder;
use slackline_worker::dataset::Dataset;
use slackline_worker::local::{LocalIteration, LocalSolver};
use slackline_worker::model::pieces::PairwiseGradient;
use slackline_worker::model::{self, Batch, Evaluation, Examples, Model};

use crate::failure::SimFailure;

/// Examples evaluated at once, as in the worker: the sums are added chunk by chunk.
const EVALUATION_CHUNK: usize = 256;

/// Flat gradients kept for reuse.
const SPARE_MAX: usize = 64;

/// The values of some shards.
pub(crate) type Snapshot = Vec<(ShardId, Arc<Vec<f32>>)>;

/// What a gradient is computed from.
pub(crate) struct Assignment {
    pub(crate) snapshot: Snapshot,
    pub(crate) batch: BatchIndex,
    pub(crate) units: u32,
    pub(crate) clock: Clock,
    /// Shards whose values are newer than in the iteration before.
    pub(crate) adopted: Vec<ShardId>,
    pub(crate) local: Option<Box<Local>>,
}

/// What became of it.
pub(crate) struct Gradient {
    /// Flat; empty where nothing is computed.
    pub(crate) values: Arc<Vec<f32>>,
    pub(crate) loss: f64,
    pub(crate) bad_key: Option<u64>,
    /// What it was made of, where that is looked at.
    pub(crate) factors: Vec<OwnFactors>,
    pub(crate) local: Option<Box<Local>>,
}

/// What the gradient of one matrix was made of, copied from the model that computed it: the next gradient is that of another worker.
pub(crate) struct OwnFactors {
    tensor: usize,
    samples: usize,
    activations: Vec<f32>,
    errors: Vec<f32>,
}

impl OwnFactors {
    fn of(factors: &Factors<'_>) -> Self {
        let Factors { tensor, samples, activations, errors } = *factors;
        Self { tensor, samples, activations: activations.to_vec(), errors: errors.to_vec() }
    }

    /// The same, lent.
    pub(crate) fn lend(&self) -> Factors<'_> {
        let Self { tensor, samples, activations, errors } = self;
        Factors { tensor: *tensor, samples: *samples, activations, errors }
    }
}

/// What a worker with local steps keeps between its iterations.
pub(crate) struct Local {
    solver: LocalSolver,
    /// The life of the worker that it belongs to.
    life: Option<Incarnation>,
    /// The last iteration was not pushed.
    is_abandoned: bool,
}

impl Local {
    /// An iteration begins, in this life of the worker.
    pub(crate) fn begins(&mut self, life: Option<Incarnation>) {
        if std::mem::take(&mut self.is_abandoned) {
            self.solver.abandon();
        }
        if std::mem::replace(&mut self.life, life) != life {
            self.solver.forget();
        }
    }
}

/// A gradient that may still be under way.
pub(crate) enum Job {
    /// None is computed.
    Nothing,
    /// It is there.
    Done(Gradient),
    /// It comes from the pool.
    Pending(Receiver<Gradient>),
}

/// Where gradients come from.
pub(crate) enum Engine {
    /// From nowhere: only time passes. Holds initial values of the shards that the cores see.
    Timing { initial: Vec<f32>, nothing: Arc<Vec<f32>> },
    /// From the models, on the data.
    Real(Box<Real>),
}

/// The real models on the real data.
pub(crate) struct Real {
    /// None where the one thread is the simulator's.
    pool: Option<ThreadPool>,
    shared: Arc<Shared>,
    order: DataOrder,
    initial: Vec<f32>,
    /// A worker's local state before its first iteration.
    local: Option<LocalSolver>,
}

/// What the threads share.
struct Shared {
    dataset: Arc<Dataset>,
    batch_count: u64,
    partition: Partition,
    /// Whether it is looked at what gradients are made of. As in the worker: not where they are sums of several, be it of several steps or
    /// of several threads.
    takes_factors: bool,
    /// One for each thread of the pool.
    kits: Vec<Mutex<Kit>>,
    spare: Mutex<Vec<Vec<f32>>>,
}

/// What one thread computes with.
struct Kit {
    model: Box<dyn Model>,
    pieces: PairwiseGradient,
    evaluator: Box<dyn Model>,
    batch: Batch,
    values: Vec<f32>,
}

impl Engine {
    /// Without gradients, for shards of so many values together.
    pub(crate) fn timing(keys: u64) -> Self {
        Self::Timing { initial: vec![0.0; keys as usize], nothing: Arc::new(Vec::new()) }
    }

    /// With gradients, on so many threads.
    pub(crate) fn real(
        config: &Config,
        dataset: Arc<Dataset>,
        order: DataOrder,
        threads: usize,
    ) -> Result<Self, SimFailure> {
        let (inputs, classes) = (dataset.input_count, dataset.class_count);
        let size = config.layout().len() as usize;
        // As in the worker: with local steps, what is computed at once is one step and not the whole iteration.
        let largest = if config.local.is_some() { config.train.batch } else { config.cut().samples_max() };
        let largest = largest as usize;
        let piece = match config.train.microbatch as usize {
            0 => largest.div_ceil(config.train.threads as usize),
            microbatch => microbatch,
        };
        let kit = || Kit {
            model: model::build(&config.model, inputs, classes, piece),
            pieces: PairwiseGradient::new(piece, size, largest),
            evaluator: model::build(&config.model, inputs, classes, EVALUATION_CHUNK),
            batch: Batch::with_capacity(largest, inputs as usize),
            values: Vec::new(),
        };
        let kits: Vec<Mutex<Kit>> = (0..threads).map(|_| Mutex::new(kit())).collect();
        let mut initial = vec![0.0; size];
        kit().model.initialize(config.seed, &mut initial);
        // A job that panics drops its end of the channel, which is told when its gradient is due.
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("gradient {index}"))
            .panic_handler(|_| {});
        let pool = if threads > 1 { Some(pool.build()?) } else { None };
        let spare = Mutex::new(Vec::new());
        let (partition, batch_count) = (config.partition(), order.batch_count());
        let local = LocalSolver::of(config);
        let takes_factors = config.codec.push.kind == CodecKind::SufficientFactor
            && config.train.threads == 1
            && local.is_none();
        let shared = Arc::new(Shared { dataset, batch_count, partition, takes_factors, kits, spare });
        Ok(Self::Real(Box::new(Real { pool, shared, order, initial, local })))
    }

    /// The initial values of some keys.
    pub(crate) fn initial(&self, keys: KeyRange) -> &[f32] {
        let initial = match self {
            Self::Timing { initial, .. } => initial,
            Self::Real(real) => &real.initial,
        };
        &initial[keys.as_indices()]
    }

    /// The local state of a new worker, where there is any.
    pub(crate) fn local(&self) -> Option<Box<Local>> {
        let Self::Real(real) = self else { return None };
        let solver = real.local.clone()?;
        Some(Box::new(Local { solver, life: None, is_abandoned: false }))
    }

    /// Starts a gradient.
    pub(crate) fn start(&mut self, assignment: Assignment) -> Job {
        match self {
            Self::Timing { .. } => Job::Nothing,
            Self::Real(real) => real.start(assignment),
        }
    }

    /// Waits for a gradient. One that was abandoned is not waited for, unless the worker needs what it made of itself.
    pub(crate) fn finish(&self, job: Job, is_abandoned: bool) -> Result<Gradient, SimFailure> {
        let nothing = |values: Arc<Vec<f32>>| {
            let (loss, bad_key, factors, local) = (0.0, None, Vec::new(), None);
            Gradient { values, loss, bad_key, factors, local }
        };
        match (self, job) {
            (Self::Timing { nothing: values, .. }, _) => Ok(nothing(Arc::clone(values))),
            (Self::Real(real), _) if is_abandoned && real.local.is_none() => Ok(nothing(Arc::default())),
            (Self::Real(_), job) => {
                let mut gradient = match job {
                    Job::Done(gradient) => gradient,
                    Job::Pending(result) => result.recv().map_err(|_| SimFailure::ComputeEnded)?,
                    Job::Nothing => return Err(SimFailure::ComputeEnded),
                };
                if let Some(local) = &mut gradient.local {
                    local.is_abandoned = is_abandoned;
                }
                Ok(gradient)
            }
        }
    }

    /// A gradient is not needed any more.
    pub(crate) fn recycle(&self, gradient: Arc<Vec<f32>>) {
        if let (Self::Real(real), Ok(buffer)) = (self, Arc::try_unwrap(gradient))
            && buffer.len() == real.initial.len()
        {
            let mut spare = real.shared.spare.lock().unwrap_or_else(PoisonError::into_inner);
            if spare.len() < SPARE_MAX {
                spare.push(buffer);
            }
        }
    }

    /// Mean loss and accuracy on the held-out examples; no numbers where nothing is computed.
    pub(crate) fn evaluate(&self, snapshot: &Snapshot) -> (f64, f64) {
        match self {
            Self::Timing { .. } => (f64::NAN, f64::NAN),
            Self::Real(real) => real.evaluate(snapshot),
        }
    }
}

impl Real {
    fn start(&mut self, assignment: Assignment) -> Job {
        let mut samples = Vec::new();
        self.order.samples(assignment.batch, u64::from(assignment.units), &mut samples);
        let Some(pool) = &self.pool else { return Job::Done(self.shared.gradient(assignment, &samples)) };
        let (done, result) = sync_channel(1);
        let shared = Arc::clone(&self.shared);
        pool.spawn(move || {
            let gradient = shared.gradient(assignment, &samples);
            // Nobody waits for it any more when its worker has crashed.
            let _ = done.send(gradient);
        });
        Job::Pending(result)
    }

    fn evaluate(&self, snapshot: &Snapshot) -> (f64, f64) {
        let shared = &self.shared;
        let put_together;
        let values = match snapshot.as_slice() {
            [(_, all)] if all.len() as u64 == shared.partition.key_count() => all.as_slice(),
            _ => {
                put_together = shared.flat(snapshot, Vec::new());
                &put_together
            }
        };
        let chunks: Vec<_> = shared.dataset.test_examples().pieces(EVALUATION_CHUNK).collect();
        let measure = |chunk| shared.with_kit(|kit| kit.evaluator.evaluate(values, chunk));
        let parts: Vec<Evaluation> = match &self.pool {
            Some(pool) => pool.install(|| chunks.into_par_iter().map(measure).collect()),
            None => chunks.into_iter().map(measure).collect(),
        };
        let mut total = Evaluation::default();
        parts.into_iter().for_each(|part| total.add(part));
        (total.loss(), total.accuracy())
    }
}

impl Shared {
    /// Lends the present thread's kit.
    fn with_kit<T>(&self, work: impl FnOnce(&mut Kit) -> T) -> T {
        // The simulator may itself run on a thread of somebody else's pool.
        let thread = if self.kits.len() > 1 { rayon::current_thread_index().unwrap_or(0) } else { 0 };
        let mut kit = self.kits[thread].lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut kit)
    }

    /// Puts the values of all shards together.
    fn flat(&self, snapshot: &Snapshot, mut values: Vec<f32>) -> Vec<f32> {
        values.resize(self.partition.key_count() as usize, 0.0);
        for (shard, part) in snapshot {
            values[self.partition.range(*shard).as_indices()].copy_from_slice(part);
        }
        values
    }

    fn gradient(&self, assignment: Assignment, samples: &[u32]) -> Gradient {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let size = self.partition.key_count() as usize;
        let mut gradient = spare.unwrap_or_else(|| vec![0.0; size]);
        let Assignment { snapshot, batch, clock, adopted, mut local, .. } = assignment;
        let mut factors = Vec::new();
        let loss = self.with_kit(|kit| {
            kit.batch.clear();
            for (inputs, label) in samples.iter().filter_map(|sample| self.dataset.train_sample(*sample)) {
                kit.batch.push(inputs, label);
            }
            let Kit { model, pieces, batch: examples, values, .. } = kit;
            let pulled = match snapshot.as_slice() {
                [(_, all)] if all.len() == size => all.as_slice(),
                _ => {
                    *values = self.flat(&snapshot, std::mem::take(values));
                    values
                }
            };
            let mut gradient_of = |values: &[f32], examples: Examples<'_>, out: &mut [f32]| {
                pieces.gradient(model.as_mut(), values, examples, out)
            };
            let examples = examples.examples();
            let Some(local) = &mut local else {
                let loss = gradient_of(pulled, examples, &mut gradient);
                if self.takes_factors && pieces.is_one_piece(examples.samples()) {
                    factors = model.factors(examples).iter().map(OwnFactors::of).collect();
                }
                return f64::from(loss);
            };
            let batch_count = self.batch_count;
            let iteration = LocalIteration { pulled, adopted: &adopted, clock, examples, batch, batch_count };
            let loss = local.solver.iterate(&iteration, &mut gradient_of, &|| true, &mut gradient);
            loss.unwrap_or(0.0)
        });
        let bad_key = first_not_finite(&gradient).map(|key| key as u64);
        Gradient { values: Arc::new(gradient), loss, bad_key, factors, local }
    }
}
