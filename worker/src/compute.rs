//! The computing threads: gradients on one, evaluations on another, so that neither holds up the network or the heartbeat.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use slackline_core::aggregate::first_not_finite;
use slackline_core::config::Config;
use slackline_core::ids::Sequence;
use tokio::sync::mpsc::Sender;

use crate::dataset::Dataset;
use crate::model::parallel::ParallelGradient;
use crate::model::pieces::PairwiseGradient;
use crate::model::{self, Batch};

/// Examples evaluated at once: enough to fill the cache, too few to notice in memory.
const EVALUATION_CHUNK: usize = 256;

/// A gradient to compute; the buffers go with it and come back.
#[derive(Debug)]
pub(crate) struct GradientJob {
    pub(crate) sequence: Sequence,
    pub(crate) batch: Batch,
    pub(crate) values: Vec<f32>,
    pub(crate) gradient: Vec<f32>,
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
    threads: Vec<JoinHandle<()>>,
}

impl Compute {
    pub(crate) fn start(
        config: &Config,
        dataset: &Arc<Dataset>,
        done: Sender<Done>,
    ) -> std::io::Result<Self> {
        // One gradient and one evaluation are under way at most: a place for each is enough that nobody waits.
        let (gradients, gradient_jobs) = sync_channel(2);
        let (evaluations, evaluation_jobs) = sync_channel(2);
        let largest = config.train.batch as usize;
        let (inputs, classes) = (dataset.input_count, dataset.class_count);
        let spec = config.model.clone();
        let threads = config.train.threads as usize;
        let piece = match config.train.microbatch as usize {
            0 => largest.div_ceil(threads),
            microbatch => microbatch,
        };
        let first = {
            let done = done.clone();
            let spec = spec.clone();
            let thread = std::thread::Builder::new().name("gradient".to_owned());
            let mut gradients = Gradients::new(threads, piece, largest, move |samples| {
                model::build(&spec, inputs, classes, samples)
            })?;
            thread.spawn(move || compute_gradients(&mut gradients, &gradient_jobs, &Ending(done)))?
        };
        let second = {
            let dataset = dataset.clone();
            let thread = std::thread::Builder::new().name("evaluation".to_owned());
            thread.spawn(move || {
                let ending = Ending(done);
                let model = model::build(&spec, inputs, classes, EVALUATION_CHUNK);
                evaluate(model, &dataset, &evaluation_jobs, &ending);
            })?
        };
        Ok(Self { gradients: Some(gradients), evaluations: Some(evaluations), threads: vec![first, second] })
    }

    /// Hands a gradient over; false when the thread is gone.
    pub(crate) fn gradient(&self, job: GradientJob) -> bool {
        self.gradients.as_ref().is_some_and(|jobs| jobs.try_send(Box::new(job)).is_ok())
    }

    /// Hands an evaluation over; false when the thread is gone.
    pub(crate) fn evaluation(&self, job: EvaluationJob) -> bool {
        self.evaluations.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        (self.gradients, self.evaluations) = (None, None);
        for thread in self.threads.drain(..) {
            // A panic there was told as [`Done::Ended`].
            let _ = thread.join();
        }
    }
}

/// One thread with its pieces one after another, or several with theirs side by side.
enum Gradients {
    Alone(Box<dyn model::Model>, PairwiseGradient),
    Together(ParallelGradient),
}

impl Gradients {
    fn new(
        threads: usize,
        piece: usize,
        largest: usize,
        build: impl Fn(usize) -> Box<dyn model::Model> + Send + 'static,
    ) -> std::io::Result<Self> {
        if threads > 1 {
            let parallel = ParallelGradient::new(threads, piece, move || build(piece));
            return parallel.map(Self::Together).map_err(std::io::Error::other);
        }
        let model = build(piece);
        let pieces = PairwiseGradient::new(piece, model.layout().len() as usize, largest);
        Ok(Self::Alone(model, pieces))
    }

    fn compute(&mut self, job: &mut GradientJob) -> f32 {
        let (values, examples) = (&job.values, job.batch.examples());
        match self {
            Self::Alone(model, pieces) => {
                pieces.gradient(model.as_mut(), values, examples, &mut job.gradient)
            }
            Self::Together(parallel) => parallel.gradient(values, examples, &mut job.gradient),
        }
    }
}

fn compute_gradients(gradients: &mut Gradients, jobs: &Receiver<Box<GradientJob>>, done: &Ending) {
    while let Ok(mut job) = jobs.recv() {
        let loss = gradients.compute(&mut job);
        let bad_key = first_not_finite(&job.gradient).map(|key| key as u64);
        if done.0.blocking_send(Done::Gradient { job, loss: f64::from(loss), bad_key }).is_err() {
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
mod tests {
    use super::*;
    use crate::dataset::Split;
    use slackline_core::config::{Layer, Value};
    use tokio::sync::mpsc::{Receiver, channel};

    fn start() -> (Compute, Receiver<Done>) {
        let keys = [
            ("data.dataset", "\"digits\""),
            ("model.kind", "\"softmax\""),
            ("train.epochs", "1"),
            ("train.batch", "2"),
            ("optimizer.rate", "0.1"),
        ];
        let values = keys
            .map(|(key, value)| (key.to_owned(), Value::from_literal(value).unwrap()))
            .into_iter()
            .collect();
        let config = Config::resolve(&[Layer { name: "test".to_owned(), values }]).unwrap().config;
        let split = || Split { inputs: vec![0.5; 8], labels: vec![0, 1] };
        let dataset = Dataset { train: split(), test: split(), input_count: 4, class_count: 2 };
        let (done, jobs_done) = channel(4);
        (Compute::start(&config, &Arc::new(dataset), done).unwrap(), jobs_done)
    }

    #[test]
    fn a_panic_in_the_gradient_thread_is_told() {
        let (compute, mut done) = start();
        let mut batch = Batch::with_capacity(1, 4);
        batch.push(&[0.5; 4], 1);
        // Values that the model cannot be made of.
        let job = GradientJob { sequence: Sequence(1), batch, values: Vec::new(), gradient: Vec::new() };
        assert!(compute.gradient(job));
        assert!(matches!(done.blocking_recv(), Some(Done::Ended)));
        // The other thread goes on.
        assert!(compute.evaluation(EvaluationJob { at_samples: 0, values: Vec::new() }));
        assert!(matches!(done.blocking_recv(), Some(Done::Ended)));
        assert!(done.blocking_recv().is_none(), "nothing else keeps the channel open");
    }

    #[test]
    fn an_end_that_is_wanted_is_not_told() {
        let (compute, mut done) = start();
        drop(compute);
        assert!(done.blocking_recv().is_none());
    }
}
