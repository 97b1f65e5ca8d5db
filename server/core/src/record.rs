//! The record of a run: what the workers reported, added up into the figures of `summary.json` and `metrics.jsonl`.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use slackline_core::consistency::PolicySpec;
use slackline_core::histogram::Spread;
use slackline_core::ids::Moment;
use slackline_core::wire::{Evaluated, Progress, Report};

/// One evaluation on the held-out examples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Samples handed out by then.
    pub samples: u64,
    /// Time since the run began.
    pub wall: Duration,
    /// Mean loss.
    pub loss: f64,
    /// Share classified rightly.
    pub accuracy: f64,
}

/// Everything reported so far.
#[derive(Clone, Debug)]
pub struct Record {
    total: Report,
    began: Option<Moment>,
    ended: Option<Moment>,
    evaluations: Vec<Evaluation>,
    /// Reports of the last epoch's worth of samples: (samples, loss sum).
    recent: VecDeque<(u64, f64)>,
    recent_samples: u64,
    /// Reports of the last seconds, for the rate.
    window: VecDeque<(Moment, u64)>,
    epoch_samples: u64,
    sample_total: u64,
    /// Batches done and their samples, each batch once: reports can be lost with a worker, these cannot.
    batches_done: u64,
    samples_done: u64,
    /// Incarnations that ever took part.
    workers_seen: u64,
}

/// How long the rate on a display looks back.
const RATE_WINDOW: Duration = Duration::from_secs(3);

impl Record {
    /// An empty record of a run of `sample_total` samples in epochs of `epoch_samples`.
    #[must_use]
    pub fn new(epoch_samples: u64, sample_total: u64) -> Self {
        Self {
            total: Report::default(),
            began: None,
            ended: None,
            evaluations: Vec::new(),
            recent: VecDeque::new(),
            recent_samples: 0,
            window: VecDeque::new(),
            epoch_samples,
            sample_total,
            batches_done: 0,
            samples_done: 0,
            workers_seen: 0,
        }
    }

    /// The first work was handed out.
    pub fn begin(&mut self, now: Moment) {
        self.began.get_or_insert(now);
    }

    /// The last batch was done.
    pub fn end(&mut self, now: Moment) {
        self.ended.get_or_insert(now);
    }

    /// A worker takes part.
    pub fn enter(&mut self) {
        self.workers_seen += 1;
    }

    /// So many batches with so many samples are done by now.
    pub fn done(&mut self, batches: u64, samples: u64) {
        (self.batches_done, self.samples_done) = (batches, samples);
    }

    /// Adds a worker's report.
    pub fn report(&mut self, now: Moment, report: &Report) {
        self.total.merge(report);
        if report.samples == 0 {
            return;
        }
        self.window.push_back((now, report.samples));
        while self.window.front().is_some_and(|(moment, _)| now.since(*moment) > RATE_WINDOW) {
            self.window.pop_front();
        }
        self.recent.push_back((report.samples, report.loss_sum));
        self.recent_samples = self.recent_samples.saturating_add(report.samples);
        while self.recent.len() > 1 && self.recent_samples > self.epoch_samples.max(1) {
            let dropped = self.recent.pop_front().map_or(0, |(samples, _)| samples);
            self.recent_samples = self.recent_samples.saturating_sub(dropped);
        }
    }

    /// Adds an evaluation.
    pub fn evaluated(&mut self, now: Moment, evaluated: &Evaluated) {
        let wall = self.began.map_or(Duration::ZERO, |began| self.ended.unwrap_or(now).since(began));
        let Evaluated { at_samples: samples, loss, accuracy, .. } = *evaluated;
        self.evaluations.push(Evaluation { samples, wall, loss, accuracy });
    }

    /// The evaluations, in order.
    #[must_use]
    pub fn evaluations(&self) -> &[Evaluation] {
        &self.evaluations
    }

    /// The evaluation of the newest values, which is not always the one that came last.
    fn last(&self) -> Option<&Evaluation> {
        self.evaluations.iter().max_by_key(|evaluation| evaluation.samples)
    }

    /// Mean training loss over the last epoch's worth of samples.
    #[must_use]
    pub fn train_loss(&self) -> f64 {
        let (samples, loss) = self.recent.iter().fold((0, 0.0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        if samples == 0 { 0.0 } else { loss / samples as f64 }
    }

    /// What a progress display shows.
    #[must_use]
    pub fn progress(&self, now: Moment) -> Progress {
        let end = self.ended.unwrap_or(now);
        let wall = self.began.map_or(Duration::ZERO, |began| end.since(began));
        let span = self.window.front().map_or(0.0, |(first, _)| now.since(*first).as_secs_f64());
        let samples: u64 = self.window.iter().skip(1).map(|row| row.1).sum();
        Progress {
            samples: self.samples_done,
            samples_total: self.sample_total,
            wall_ms: wall.as_millis() as u64,
            samples_per_s: if span > 0.0 { samples as f64 / span } else { 0.0 },
            loss: self.train_loss(),
            clock_lead: self.total.clock_lead.spread().mean,
            waiting: share(self.total.times.wait_for_clock_us, self.total.times.total_us),
            accuracy: self.last().map_or(-1.0, |evaluation| evaluation.accuracy),
        }
    }

    /// The figures, as they stand at `now`.
    #[must_use]
    pub fn figures(&self, now: Moment, policy: PolicySpec, workers: u64, thresholds: &[f64]) -> Figures {
        let report = &self.total;
        let wall_s = self.began.map_or(0.0, |began| self.ended.unwrap_or(now).since(began).as_secs_f64());
        let last = self.last();
        let times = &report.times;
        let part = |us: u64| share(us, times.total_us);
        Figures {
            iterations: self.batches_done,
            samples: self.samples_done,
            epochs: self.samples_done as f64 / self.epoch_samples.max(1) as f64,
            wall_s,
            samples_per_s: if wall_s > 0.0 { self.samples_done as f64 / wall_s } else { 0.0 },
            r#final: Final {
                train_loss: self.train_loss(),
                test_loss: last.map(|evaluation| evaluation.loss),
                test_accuracy: last.map(|evaluation| evaluation.accuracy),
            },
            best_test_accuracy: self
                .evaluations
                .iter()
                .map(|evaluation| evaluation.accuracy)
                .reduce(f64::max),
            time_to_accuracy: thresholds.iter().filter_map(|threshold| self.time_to(*threshold)).collect(),
            bytes: Bytes {
                pushed: report.bytes_pushed,
                pulled: report.bytes_pulled,
                wire_sent: report.wire_sent,
                wire_received: report.wire_received,
            },
            staleness: Staleness {
                clock_lead: Bounded::new(report.clock_lead.spread(), policy.staleness()),
                version: Bounded::new(
                    report.version_staleness.spread(),
                    policy.version_bound(workers.max(self.workers_seen)),
                ),
            },
            time: TimeShares {
                compute: part(times.compute_us),
                wait_for_clock: part(times.wait_for_clock_us),
                push: part(times.push_us),
                pull: part(times.pull_us),
                data: part(times.data_us),
                evaluate: part(times.evaluate_us),
            },
            pushes: Pushes {
                sent: report.pushes_sent,
                applied: report.pushes_applied,
                duplicate: report.pushes_duplicate,
                dropped: report.pushes_dropped,
            },
            pulls: Pulls { served: report.pulls_served, held: report.pulls_held },
        }
    }

    fn time_to(&self, accuracy: f64) -> Option<TimeToAccuracy> {
        let first = self.evaluations.iter().find(|evaluation| evaluation.accuracy >= accuracy)?;
        Some(TimeToAccuracy { accuracy, wall_s: first.wall.as_secs_f64(), samples: first.samples })
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The measured part of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Iterations whose gradients are in the weights: batches done.
    pub iterations: u64,
    /// Samples of those batches.
    pub samples: u64,
    /// Passes over the training data.
    pub epochs: f64,
    /// Seconds from the first work handed out to the last batch done.
    pub wall_s: f64,
    /// Samples a second over that time.
    pub samples_per_s: f64,
    /// At the end.
    pub r#final: Final,
    /// Best accuracy of all evaluations.
    pub best_test_accuracy: Option<f64>,
    /// When each accuracy was first seen.
    pub time_to_accuracy: Vec<TimeToAccuracy>,
    /// What went over the wire.
    pub bytes: Bytes,
    /// How stale reads and gradients were.
    pub staleness: Staleness,
    /// What worker time was spent on.
    pub time: TimeShares,
    /// Pushes, one per shard and iteration.
    pub pushes: Pushes,
    /// Pulls, one per shard and iteration.
    pub pulls: Pulls,
}

/// The figures at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Final {
    /// Mean training loss over the last epoch's worth of samples.
    pub train_loss: f64,
    /// Mean loss on the held-out examples.
    pub test_loss: Option<f64>,
    /// Share of them classified rightly.
    pub test_accuracy: Option<f64>,
}

/// See [`Figures::time_to_accuracy`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeToAccuracy {
    /// The accuracy.
    pub accuracy: f64,
    /// Seconds since the first work.
    pub wall_s: f64,
    /// Samples handed out by then.
    pub samples: u64,
}

/// See [`Figures::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bytes {
    /// Gradients, without headers.
    pub pushed: u64,
    /// Values, without headers.
    pub pulled: u64,
    /// Datagrams that workers sent.
    pub wire_sent: u64,
    /// Datagrams that workers received.
    pub wire_received: u64,
}

/// See [`Figures::staleness`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Staleness {
    /// How far the reader's clock lay above the minimum, at each pull.
    pub clock_lead: Bounded,
    /// Versions that passed between a pull and the apply of its gradient.
    pub version: Bounded,
}

/// A spread and the bound it must keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bounded {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
    /// The bound of the policy; none under asp.
    pub bound: Option<u64>,
}

impl Bounded {
    const fn new(spread: Spread, bound: Option<u64>) -> Self {
        let Spread { mean, p50, p99, max } = spread;
        Self { mean, p50, p99, max, bound }
    }
}

/// Shares of worker time; they add up to one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeShares {
    /// Computing gradients.
    pub compute: f64,
    /// Waiting for other workers' clocks.
    pub wait_for_clock: f64,
    /// Sending pushes and waiting for their answers.
    pub push: f64,
    /// Pulling.
    pub pull: f64,
    /// Waiting for work or data.
    pub data: f64,
    /// Evaluating.
    pub evaluate: f64,
}

/// See [`Figures::pushes`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pushes {
    /// Sent, retries left out.
    pub sent: u64,
    /// In the values.
    pub applied: u64,
    /// Sent again and known already.
    pub duplicate: u64,
    /// Dropped by the policy, or refused.
    pub dropped: u64,
}

/// See [`Figures::pulls`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pulls {
    /// Answered.
    pub served: u64,
    /// Held first.
    pub held: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(at_samples: u64, accuracy: f64) -> Evaluated {
        Evaluated { at_samples, loss: 1.0 - accuracy, accuracy, report: None }
    }

    fn figures(record: &Record) -> Figures {
        record.figures(Moment(4_000_000_000), PolicySpec::Ssp { staleness: 2 }, 2, &[0.5, 0.8, 0.99])
    }

    #[test]
    fn the_final_accuracy_is_that_of_the_newest_values_even_when_another_comes_later() {
        let mut record = Record::new(100, 200);
        record.begin(Moment(0));
        record.evaluated(Moment(1_000_000_000), &evaluated(50, 0.6));
        record.evaluated(Moment(2_000_000_000), &evaluated(200, 0.9));
        record.evaluated(Moment(3_000_000_000), &evaluated(150, 0.85));
        let figures = figures(&record);
        assert_eq!((figures.r#final.test_accuracy, figures.best_test_accuracy), (Some(0.9), Some(0.9)));
        let times: Vec<(f64, u64)> =
            figures.time_to_accuracy.iter().map(|time| (time.wall_s, time.samples)).collect();
        assert_eq!(times, [(1.0, 50), (2.0, 200)]);
    }

    #[test]
    fn samples_are_those_of_the_batches_done_whatever_reports_were_lost() {
        let mut record = Record::new(100, 200);
        record.report(Moment(0), &Report { samples: 30, loss_sum: 60.0, ..Report::default() });
        record.done(4, 200);
        let figures = figures(&record);
        assert_eq!((figures.iterations, figures.samples, figures.epochs), (4, 200, 2.0));
        assert!((figures.r#final.train_loss - 2.0).abs() < 1e-12);
    }

    #[test]
    fn the_version_bound_counts_every_worker_that_took_part() {
        let mut record = Record::new(100, 200);
        for _ in 0..2 {
            record.enter();
        }
        assert_eq!(figures(&record).staleness.version.bound, Some(5));
        record.enter();
        assert_eq!(figures(&record).staleness.version.bound, Some(10));
    }
}
