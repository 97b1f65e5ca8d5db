//! What the workers' push logs say, while they are written: which answer came when.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use slackline_chaos::pushes::StepId;
use slackline_core::ids::{BatchIndex, ServerId, ShardId};
use slackline_core::wire::PushOutcome;
use slackline_worker::push_log::{PushLog, PushLogError, PushRecord};

/// An answer that a worker had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// When it was seen in the log, in seconds since training began; the logs are looked at every 20 ms.
    pub(super) at_s: f64,
    /// The place of its process. The number that the coordinator has given it is another one.
    pub(super) process: u32,
    pub(super) step: StepId,
    pub(super) shard: ShardId,
    /// The server that led the shard.
    pub(super) server: ServerId,
    /// Whether the push is in the values.
    pub(super) is_applied: bool,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// In the order in which they came.
    pub(super) answers: Vec<Answer>,
    /// The batch of each step, with its samples.
    pub(super) batches: BTreeMap<StepId, (BatchIndex, u32)>,
}

/// Reads on in the logs of all workers.
#[derive(Debug)]
pub(super) struct Follower {
    /// Each with where its last whole record ends.
    logs: Vec<(PathBuf, u64)>,
    pub(super) seen: Seen,
}

/// The log of one worker.
pub(super) fn log_of(folder: &Path, worker: u32) -> PathBuf {
    folder.join(format!("worker-{worker}.pushes"))
}

impl Follower {
    pub(super) fn new(folder: &Path, workers: u32) -> Self {
        let logs = (0..workers).map(|worker| (log_of(folder, worker), 0)).collect();
        Self { logs, seen: Seen::default() }
    }

    /// Takes in what is new; true where there was an answer.
    pub(super) fn look(&mut self, at_s: f64) -> Result<bool, PushLogError> {
        let before = self.seen.answers.len();
        for ((path, at), process) in self.logs.iter_mut().zip(0..) {
            let length = std::fs::metadata(&*path).map_or(0, |file| file.len());
            if length <= *at {
                continue;
            }
            let mut log = PushLog::open_at(path, *at)?;
            while let Some(record) = log.next_record()? {
                self.seen.take(record, process, at_s);
            }
            *at = log.whole();
        }
        Ok(self.seen.answers.len() > before)
    }
}

impl Seen {
    fn take(&mut self, record: PushRecord, process: u32, at_s: f64) {
        match record {
            PushRecord::Push { header, .. } => {
                let (worker, incarnation, sequence) = (header.worker, header.incarnation, header.sequence);
                let step = StepId { worker, incarnation, sequence };
                self.batches.insert(step, (header.batch, header.samples));
            }
            PushRecord::Answer { server, worker, incarnation, pushed } => {
                let step = StepId { worker, incarnation, sequence: pushed.sequence };
                let is_applied = matches!(pushed.outcome, PushOutcome::Applied { .. });
                self.answers.push(Answer { at_s, process, step, shard: pushed.shard, server, is_applied });
            }
        }
    }
}
