//! The record of a run: what the workers reported, added up into the figures of `summary.json` and `metrics.jsonl`.

mod figures;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::ids::{Clock, Moment, WorkerId};
use slackline_core::wire::{Evaluated, Progress, Report, Times};

use crate::assign::{PastEvaluation, Position};
use figures::share;
pub use figures::{
    Asked, Bounded, Bytes, Decisions, Diverged, Drops, Figures, Final, Holds, Pulls, Pushes, Recovery,
    Staleness, TimeShares, TimeToAccuracy, TimeToLoss, WorkerTime,
};

/// One evaluation on the held-out examples.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
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
#[derive(Clone, Debug, Encode, Decode)]
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
    /// Times by worker.
    times: BTreeMap<WorkerId, Times>,
    /// The loss of a model that knows nothing.
    blind_loss: f64,
    /// The clock at which the loss left all bounds, while it has not come back.
    diverged: Option<Clock>,
    /// Of an allreduce; none where there is none.
    recoveries: Option<Vec<Recovery>>,
    topology_chosen: Option<String>,
    /// What the run had taken before it was resumed.
    past: Duration,
}

/// Times the loss of a model that knows nothing. Untrained ones lie a little above it, and training only lowers it.
const DIVERGED: f64 = 2.0;

/// How long the rate on a display looks back.
const RATE_WINDOW: Duration = Duration::from_secs(3);

impl Record {
    /// An empty record of a run of `sample_total` samples in epochs of `epoch_samples`, where a model that knows nothing has a mean
    /// loss of `blind_loss`.
    #[must_use]
    pub fn new(epoch_samples: u64, sample_total: u64, blind_loss: f64) -> Self {
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
            times: BTreeMap::new(),
            blind_loss,
            diverged: None,
            recoveries: None,
            topology_chosen: None,
            past: Duration::ZERO,
        }
    }

    /// The same for a run that goes on from a checkpoint: with its evaluations, its batches and the time that it had taken.
    #[must_use]
    pub fn resume(self, position: &Position) -> Self {
        let evaluation = |past: &PastEvaluation| Evaluation {
            samples: past.samples,
            wall: Duration::from_nanos(past.wall_ns),
            loss: past.loss,
            accuracy: past.accuracy,
        };
        Self {
            evaluations: position.evaluations.iter().map(evaluation).collect(),
            batches_done: position.batches_done,
            samples_done: position.samples_done,
            past: Duration::from_nanos(position.wall_ns),
            ..self
        }
    }

    /// The evaluations, for a checkpoint.
    #[must_use]
    pub fn past_evaluations(&self) -> Vec<PastEvaluation> {
        let past = |evaluation: &Evaluation| PastEvaluation {
            samples: evaluation.samples,
            wall_ns: evaluation.wall.as_nanos() as u64,
            loss: evaluation.loss,
            accuracy: evaluation.accuracy,
        };
        self.evaluations.iter().map(past).collect()
    }

    /// Time that the run has taken, with what it took before it was resumed.
    #[must_use]
    pub fn wall(&self, now: Moment) -> Duration {
        let end = self.ended.unwrap_or(now);
        self.past + self.began.map_or(Duration::ZERO, |began| end.since(began))
    }

    /// The same for an allreduce, which has recoveries.
    #[must_use]
    pub fn of_allreduce(self) -> Self {
        Self { recoveries: Some(Vec::new()), ..self }
    }

    /// The workers that were left are at work again.
    pub fn recovered(&mut self, recovery: Recovery) {
        self.recoveries.get_or_insert_default().push(recovery);
    }

    /// A topology was chosen.
    pub fn chose(&mut self, why: &str) {
        if self.topology_chosen.as_deref() != Some(why) {
            self.topology_chosen = Some(why.to_owned());
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

    /// The last batch must be done again: its result was lost.
    pub fn reopen(&mut self) {
        self.ended = None;
    }

    /// The run goes back to before the evaluations of so many samples or more: they were of values that are lost.
    pub fn go_back(&mut self, samples: u64) {
        self.ended = None;
        if samples < self.sample_total {
            self.evaluations.retain(|evaluation| evaluation.samples < samples);
        }
    }

    /// A worker takes part.
    pub fn enter(&mut self) {
        self.workers_seen += 1;
    }

    /// So many batches with so many samples are done by now.
    pub fn done(&mut self, batches: u64, samples: u64) {
        (self.batches_done, self.samples_done) = (batches, samples);
    }

    /// Adds the report of a worker that has completed `clock` iterations.
    pub fn report(&mut self, now: Moment, (worker, clock): (WorkerId, Clock), report: &Report) {
        self.total.merge(report);
        self.times.entry(worker).or_default().merge(&report.times);
        self.look_for_divergence(clock, report);
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

    /// A run has diverged when its loss is beyond all bounds, or its gradients are not finite, to the end.
    fn look_for_divergence(&mut self, clock: Clock, report: &Report) {
        let is_lost = report.loss_sum > DIVERGED * self.blind_loss * report.samples as f64
            || !report.loss_sum.is_finite()
            || report.dropped_not_finite > 0;
        if is_lost {
            self.diverged.get_or_insert(clock);
        } else if report.samples > 0 {
            self.diverged = None;
        }
    }

    /// Adds an evaluation.
    pub fn evaluated(&mut self, now: Moment, evaluated: &Evaluated) {
        let wall = self.wall(now);
        let Evaluated { at_samples: samples, loss, accuracy, .. } = *evaluated;
        self.evaluations.push(Evaluation { samples, wall, loss, accuracy });
    }

    /// Whether all is in: every sample, and the evaluation of the final values.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.evaluations.iter().any(|evaluation| evaluation.samples == self.sample_total)
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
        let wall = self.wall(now);
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
            accuracy: self
                .last()
                .map_or(-1.0, |last| if last.accuracy.is_finite() { last.accuracy } else { -1.0 }),
        }
    }

    /// The figures, as they stand at `now`.
    #[must_use]
    pub fn figures(&self, now: Moment, asked: &Asked<'_>) -> Figures {
        let report = &self.total;
        let wall_s = self.wall(now).as_secs_f64();
        let last = self.last();
        let (policy, whole) = (asked.policy, asked.whole);
        let version_bound = policy.version_bound(asked.workers.max(self.workers_seen), asked.prefetch);
        Figures {
            iterations: self.batches_done,
            samples: self.samples_done,
            epochs: self.samples_done as f64 / self.epoch_samples.max(1) as f64,
            wall_s,
            virtual_s: None,
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
            time_to_accuracy: asked.accuracies.iter().filter_map(|least| self.time_to(*least)).collect(),
            time_to_loss: asked.losses.iter().filter_map(|most| self.time_to_loss(*most)).collect(),
            diverged: self.diverged(),
            bytes: Bytes {
                pushed: report.bytes_pushed,
                pulled: report.bytes_pulled,
                wire_sent: report.wire_sent,
                wire_received: report.wire_received,
            },
            staleness: Staleness {
                clock_lead: Bounded::new(&report.clock_lead, policy.staleness(), whole),
                version: Bounded::new(&report.version_staleness, version_bound, whole),
            },
            time: TimeShares::new(&report.times),
            pushes: Pushes {
                sent: report.pushes_sent,
                applied: report.pushes_applied,
                duplicate: report.pushes_duplicate,
                dropped: report.pushes_dropped,
            },
            pulls: Pulls { served: report.pulls_served, held: report.pulls_held },
            decisions: Decisions {
                apply: report.pushes_applied.saturating_sub(report.pushes_down_weighted),
                down_weight: report.pushes_down_weighted,
                drop: Drops {
                    late: report.dropped_late,
                    abandoned: report.dropped_abandoned,
                    stale: report.dropped_stale,
                    not_finite: report.dropped_not_finite,
                    guarded: report.dropped_guarded,
                },
                hold: Holds::new(policy, report.pulls_held),
            },
            workers_time: if whole { self.workers_time() } else { Vec::new() },
            recoveries: self.recoveries.clone().filter(|_| whole),
            topology_chosen: self.topology_chosen.clone().filter(|_| whole),
        }
    }

    fn diverged(&self) -> Option<Diverged> {
        let is_lost = self.last().is_some_and(|last| !last.loss.is_finite());
        let clock = self.diverged.or_else(|| is_lost.then_some(Clock(0)))?;
        Some(Diverged { clock: clock.0 })
    }

    fn workers_time(&self) -> Vec<WorkerTime> {
        let row = |(worker, times): (&WorkerId, &Times)| WorkerTime {
            worker: worker.0,
            total_s: times.total_us as f64 / 1e6,
            time: TimeShares::new(times),
        };
        self.times.iter().map(row).collect()
    }

    fn time_to(&self, accuracy: f64) -> Option<TimeToAccuracy> {
        let first = self.evaluations.iter().find(|evaluation| evaluation.accuracy >= accuracy)?;
        Some(TimeToAccuracy { accuracy, wall_s: first.wall.as_secs_f64(), samples: first.samples })
    }

    fn time_to_loss(&self, loss: f64) -> Option<TimeToLoss> {
        let first = self.evaluations.iter().find(|evaluation| evaluation.loss <= loss)?;
        Some(TimeToLoss { loss, wall_s: first.wall.as_secs_f64(), samples: first.samples })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::consistency::PolicySpec;

    fn evaluated(at_samples: u64, accuracy: f64) -> Evaluated {
        Evaluated { at_samples, loss: 1.0 - accuracy, accuracy, report: None }
    }

    fn figures(record: &Record) -> Figures {
        let policy = PolicySpec::Ssp { staleness: 2 };
        let accuracies = &[0.5, 0.8, 0.99];
        record.figures(
            Moment(4_000_000_000),
            &Asked { policy, prefetch: 0, workers: 2, accuracies, losses: &[0.15], whole: true },
        )
    }

    #[test]
    fn the_final_accuracy_is_that_of_the_newest_values_even_when_another_comes_later() {
        let mut record = Record::new(100, 200, 2.3);
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
        let mut record = Record::new(100, 200, 2.3);
        record.report(
            Moment(0),
            (WorkerId(0), Clock(1)),
            &Report { samples: 30, loss_sum: 60.0, ..Report::default() },
        );
        record.done(4, 200);
        let figures = figures(&record);
        assert_eq!((figures.iterations, figures.samples, figures.epochs), (4, 200, 2.0));
        assert!((figures.r#final.train_loss - 2.0).abs() < 1e-12);
    }

    #[test]
    fn the_version_bound_counts_every_worker_that_took_part() {
        let mut record = Record::new(100, 200, 2.3);
        for _ in 0..2 {
            record.enter();
        }
        assert_eq!(figures(&record).staleness.version.bound, Some(5));
        record.enter();
        assert_eq!(figures(&record).staleness.version.bound, Some(10));
        let policy = PolicySpec::Ssp { staleness: 2 };
        let asked = Asked { policy, prefetch: 1, workers: 2, accuracies: &[], losses: &[], whole: true };
        let version = record.figures(Moment(0), &asked).staleness.version;
        assert_eq!(version.bound, Some(11), "and the worker's own push that it pulled ahead of");
    }

    #[test]
    fn a_loss_that_comes_back_has_not_diverged_and_one_that_does_not_has() {
        let report = |loss: f64, not_finite| Report {
            samples: 10,
            loss_sum: 10.0 * loss,
            dropped_not_finite: not_finite,
            ..Report::default()
        };
        let after = |reports: &[Report]| {
            let mut record = Record::new(100, 200, 2.3);
            for (clock, report) in reports.iter().enumerate() {
                record.report(Moment(0), (WorkerId(0), Clock(clock as u64)), report);
            }
            figures(&record).diverged
        };
        assert_eq!(after(&[report(4.5, 0), report(0.3, 0)]), None);
        assert_eq!(after(&[report(9.0, 0), report(0.3, 0)]), None);
        assert_eq!(after(&[report(1.0, 0), report(5.0, 0), report(9.0, 0)]), Some(Diverged { clock: 1 }));
        assert_eq!(after(&[report(1.0, 0), report(0.5, 1)]), Some(Diverged { clock: 1 }));
        assert_eq!(after(&[report(f64::NAN, 0)]), Some(Diverged { clock: 0 }));
    }

    #[test]
    fn the_first_time_of_a_loss_is_that_of_the_evaluation_at_or_below_it() {
        let mut record = Record::new(100, 200, 2.3);
        record.begin(Moment(0));
        record.evaluated(Moment(1_000_000_000), &evaluated(50, 0.6));
        record.evaluated(Moment(2_000_000_000), &evaluated(100, 0.9));
        assert_eq!(figures(&record).time_to_loss, [TimeToLoss { loss: 0.15, wall_s: 2.0, samples: 100 }]);
    }
}
