//! Batches gathered ahead of their use, on a thread of their own.
//!
//! A batch is asked for by its first unit and their number; the thread looks up which samples that is ([`DataOrder`]) and copies
//! their rows into one of a few buffers that go round: asked for, filled, taken, given back. Once each buffer
//! has been used there is no allocation, apart from the data order's own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use slackline_core::ids::BatchIndex;
use slackline_core::schedule::DataOrder;

use crate::dataset::Dataset;
use crate::model::Batch;

/// Batches that may be asked for and not yet taken.
pub const REQUESTS_MAX: usize = 16;

/// Why there is no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoaderError {
    /// The run has no such batch.
    #[error("{index} does not exist: the run has {count} batches")]
    NoSuchBatch {
        /// What was asked for.
        index: BatchIndex,
        /// Batches of the run.
        count: u64,
    },
    /// The data order speaks of a sample that the dataset does not have.
    #[error(
        "{index} holds sample {sample}, and the dataset {count}: order and dataset do not belong together"
    )]
    NoSuchSample {
        /// The batch.
        index: BatchIndex,
        /// The sample.
        sample: u32,
        /// Samples of the training split.
        count: u64,
    },
    /// More batches were asked for than are ever kept ready.
    #[error("{index} is one batch too many: {REQUESTS_MAX} are asked for and not yet taken")]
    TooManyRequested {
        /// What was asked for.
        index: BatchIndex,
    },
    /// The loader's thread has ended or could not be started.
    #[error("the thread that loads batches ended or could not be started: a fault of the program or machine")]
    ThreadEnded,
}

/// What a batch is asked for by: its first unit and their number.
type Asked = (BatchIndex, u64);

type Filled = (Asked, Result<Batch, LoaderError>);

/// Gathers batches on a thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Loader {
    batch_count: u64,
    input_count: usize,
    /// `None` only while dropping: closing it ends the thread.
    requests: Option<SyncSender<(Asked, Batch)>>,
    filled: Receiver<Filled>,
    thread: Option<JoinHandle<()>>,
    /// Asked for and still with the thread, in order.
    pending: VecDeque<Asked>,
    /// Filled and not yet taken, since another batch was waited for.
    ready: Vec<Filled>,
    /// Buffers at rest.
    spare: Vec<Batch>,
}

impl Loader {
    /// Starts the thread, for batches of `dataset` in `order`. It calls `ready` with each batch, and its number of units, that can be
    /// taken without waiting.
    ///
    /// # Errors
    ///
    /// [`LoaderError::ThreadEnded`] when the system gives no thread.
    pub fn start(
        dataset: Arc<Dataset>,
        order: DataOrder,
        ready: impl Fn(BatchIndex, u64) + Send + 'static,
    ) -> Result<Self, LoaderError> {
        let batch_count = order.batch_count();
        let input_count = dataset.input_count as usize;
        // Both channels have room for every request there can be, so that neither side ever waits to send.
        let (requests, asked) = sync_channel(REQUESTS_MAX);
        let (done, filled) = sync_channel(REQUESTS_MAX);
        let thread = std::thread::Builder::new()
            .name("loader".to_owned())
            .spawn(move || serve(&dataset, order, &asked, &done, ready))
            .map_err(|_| LoaderError::ThreadEnded)?;
        Ok(Self {
            batch_count,
            input_count,
            requests: Some(requests),
            filled,
            thread: Some(thread),
            pending: VecDeque::with_capacity(REQUESTS_MAX),
            ready: Vec::with_capacity(REQUESTS_MAX),
            spare: Vec::with_capacity(REQUESTS_MAX),
        })
    }

    /// Asks for the batch of `units` units from `index` on, without waiting; at the end of the run it is what is left. Asking again for one that is on its way or ready changes nothing.
    ///
    /// # Errors
    ///
    /// [`LoaderError::NoSuchBatch`], [`LoaderError::TooManyRequested`], [`LoaderError::ThreadEnded`].
    pub fn request(&mut self, index: BatchIndex, units: u64) -> Result<(), LoaderError> {
        let asked = (index, units);
        if index.0 >= self.batch_count {
            return Err(LoaderError::NoSuchBatch { index, count: self.batch_count });
        }
        if self.pending.contains(&asked) || self.ready.iter().any(|(ready, _)| *ready == asked) {
            return Ok(());
        }
        if self.pending.len() + self.ready.len() >= REQUESTS_MAX {
            return Err(LoaderError::TooManyRequested { index });
        }
        let buffer = self.spare.pop().unwrap_or_else(|| Batch::with_capacity(0, self.input_count));
        let requests = self.requests.as_ref().ok_or(LoaderError::ThreadEnded)?;
        requests.send((asked, buffer)).map_err(|_| LoaderError::ThreadEnded)?;
        self.pending.push_back(asked);
        Ok(())
    }

    /// Takes a batch, asking for it first if nobody has, and waits until it is there. Give it back after use.
    ///
    /// # Errors
    ///
    /// Those of [`Self::request`], and [`LoaderError::NoSuchSample`].
    pub fn take(&mut self, index: BatchIndex, units: u64) -> Result<Batch, LoaderError> {
        self.request(index, units)?;
        let asked = (index, units);
        if let Some(place) = self.ready.iter().position(|(ready, _)| *ready == asked) {
            return self.ready.swap_remove(place).1;
        }
        loop {
            let (arrived, batch) = self.filled.recv().map_err(|_| LoaderError::ThreadEnded)?;
            self.pending.retain(|pending| *pending != arrived);
            if arrived == asked {
                return batch;
            }
            self.ready.push((arrived, batch));
        }
    }

    /// Returns the memory of a batch that is no longer needed.
    pub fn give_back(&mut self, batch: Batch) {
        if self.spare.len() < REQUESTS_MAX {
            self.spare.push(batch);
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // Its panic, if there was one, has been told as `ThreadEnded`.
            let _ = thread.join();
        }
    }
}

/// The thread: fills buffers until one of the channels is closed.
fn serve(
    dataset: &Dataset,
    mut order: DataOrder,
    asked: &Receiver<(Asked, Batch)>,
    done: &SyncSender<Filled>,
    ready: impl Fn(BatchIndex, u64),
) {
    let mut samples = Vec::new();
    while let Ok(((index, units), mut batch)) = asked.recv() {
        order.samples(index, units, &mut samples);
        let outcome = gather(dataset, index, &samples, &mut batch);
        if done.send(((index, units), outcome.map(|()| batch))).is_err() {
            return;
        }
        ready(index, units);
    }
}

fn gather(
    dataset: &Dataset,
    index: BatchIndex,
    samples: &[u32],
    batch: &mut Batch,
) -> Result<(), LoaderError> {
    batch.clear();
    for sample in samples {
        let (inputs, label) = dataset.train_sample(*sample).ok_or(LoaderError::NoSuchSample {
            index,
            sample: *sample,
            count: dataset.train.len() as u64,
        })?;
        batch.push(inputs, label);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Split;

    /// Ten samples; sample i has inputs (i, -i) and label i.
    fn dataset() -> Arc<Dataset> {
        let inputs = (0..10).flat_map(|i| [i as f32, -(i as f32)]).collect();
        let train = Split { inputs, labels: (0..10).collect() };
        let test = Split { inputs: Vec::new(), labels: Vec::new() };
        Arc::new(Dataset { train, test, input_count: 2, class_count: 10 })
    }

    fn order() -> DataOrder {
        DataOrder::new(7, 10, 4, 3)
    }

    fn loader() -> Loader {
        Loader::start(dataset(), order(), |_, _| ()).unwrap()
    }

    fn labels(index: u64, units: u64) -> Vec<u32> {
        let mut samples = Vec::new();
        order().samples(BatchIndex(index), units, &mut samples);
        samples
    }

    #[test]
    fn a_batch_holds_the_samples_of_the_order_with_their_own_rows() {
        let mut loader = loader();
        for index in 0..8 {
            let batch = loader.take(BatchIndex(index), 1).unwrap();
            assert_eq!(batch.examples().labels(), labels(index, 1));
            for (row, label) in batch.examples().inputs().chunks(2).zip(batch.examples().labels()) {
                assert_eq!(row, [*label as f32, -(*label as f32)]);
            }
            loader.give_back(batch);
        }
    }

    #[test]
    fn a_batch_of_several_units_holds_them_one_after_another() {
        let mut loader = loader();
        loader.request(BatchIndex(1), 1).unwrap();
        for (index, units) in [(1, 3), (0, 2), (6, 5), (1, 1)] {
            let batch = loader.take(BatchIndex(index), units).unwrap();
            assert_eq!(batch.examples().labels(), labels(index, units));
            assert_eq!(batch.samples(), (units * 4).min(30 - index * 4) as usize);
        }
    }

    #[test]
    fn batches_may_be_taken_in_another_order_than_asked_for_and_twice() {
        let mut loader = loader();
        for index in [0, 1, 2, 3, 1] {
            loader.request(BatchIndex(index), 1).unwrap();
        }
        for index in [2, 0, 3, 1, 7, 1] {
            assert_eq!(loader.take(BatchIndex(index), 1).unwrap().examples().labels(), labels(index, 1));
        }
        assert!(loader.pending.is_empty() && loader.ready.is_empty());
    }

    #[test]
    fn a_batch_past_the_end_or_one_too_many_is_refused() {
        let mut loader = loader();
        assert_eq!(
            loader.request(BatchIndex(8), 1),
            Err(LoaderError::NoSuchBatch { index: BatchIndex(8), count: 8 })
        );
        let mut long = Loader::start(dataset(), DataOrder::new(7, 10, 1, 3), |_, _| ()).unwrap();
        for index in 0..REQUESTS_MAX as u64 {
            long.request(BatchIndex(index), 1).unwrap();
        }
        let index = BatchIndex(REQUESTS_MAX as u64);
        assert_eq!(long.request(index, 1), Err(LoaderError::TooManyRequested { index }));
        long.take(BatchIndex(3), 1).unwrap();
        long.request(index, 1).unwrap();
    }

    #[test]
    fn an_order_for_another_dataset_is_an_error_not_a_panic() {
        let mut loader = Loader::start(dataset(), DataOrder::new(7, 11, 11, 1), |_, _| ()).unwrap();
        let error = loader.take(BatchIndex(0), 1).unwrap_err();
        assert_eq!(error, LoaderError::NoSuchSample { index: BatchIndex(0), sample: 10, count: 10 });
    }

    #[test]
    fn a_dead_thread_is_told_to_who_waits() {
        let mut loader = loader();
        let (requests, asked) = sync_channel(REQUESTS_MAX);
        let (_, filled) = sync_channel(REQUESTS_MAX);
        loader.requests = Some(requests);
        loader.filled = filled;
        assert_eq!(loader.take(BatchIndex(0), 1).unwrap_err(), LoaderError::ThreadEnded);
        drop(asked);
        assert_eq!(loader.request(BatchIndex(1), 1), Err(LoaderError::ThreadEnded));
    }

    #[test]
    fn a_panic_of_the_thread_lets_go_of_what_tells_of_batches() {
        let (ready, told) = std::sync::mpsc::channel();
        let mut loader = Loader::start(dataset(), order(), move |index, _| {
            ready.send(index).unwrap();
            assert_eq!(index, BatchIndex(0), "no more than that");
        })
        .unwrap();
        loader.request(BatchIndex(0), 1).unwrap();
        loader.request(BatchIndex(1), 1).unwrap();
        assert_eq!(told.iter().collect::<Vec<_>>(), [BatchIndex(0), BatchIndex(1)]);
    }

    #[test]
    fn the_thread_ends_when_the_loader_is_dropped() {
        let dataset = dataset();
        let mut loader = Loader::start(dataset.clone(), order(), |_, _| ()).unwrap();
        loader.request(BatchIndex(1), 1).unwrap();
        assert_eq!(Arc::strong_count(&dataset), 2);
        drop(loader);
        assert_eq!(Arc::strong_count(&dataset), 1);
    }
}
