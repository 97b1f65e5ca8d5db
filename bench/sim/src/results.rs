//! What a simulated run leaves: the files of a real one, with virtual time in the place of wall time.

use std::time::Duration;

use serde_json::{Value, json};
use slackline_core::config::{Config, Evaluate};
use slackline_core::ids::Moment;
use slackline_server::files::{FileError, Heading, Results as Files, summary_of};
use slackline_server::parts;
use slackline_server_core::control::ClusterNotice;
use slackline_server_core::record::{Diverged, Figures};

use crate::engine::Engine;
use crate::failure::SimFailure;
use crate::world::World;

/// Lines of progress at the configured pace. From there on the pace halves with every further half of that, so that a run of months
/// leaves a file that can be read.
const LINES_AT_PACE: u64 = 2000;

/// Where the results go.
pub(crate) struct Results {
    pub(crate) files: Option<Files>,
    heading: Heading,
    every: Duration,
    next: Moment,
    lines: u64,
    failure: Option<FileError>,
}

impl Results {
    pub(crate) const fn new(files: Option<Files>, heading: Heading, every: Duration) -> Self {
        Self { files, heading, every, next: Moment(0), lines: 0, failure: None }
    }

    /// The first file that could not be written.
    pub(crate) fn take_failure(&mut self) -> Option<FileError> {
        self.failure.take()
    }

    fn line(&mut self, event: Value, figures: &Figures) -> Result<(), FileError> {
        self.files.as_mut().map_or(Ok(()), |files| files.line(event, figures))
    }
}

/// Lines about servers and shards that a summary holds at most.
const CHRONICLE_MAX: usize = 200;

/// What was done until the model was so good: gradients that count for nothing any more are in it, which the record knows nothing of.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Gradients that were computed, whatever became of them.
    pub(crate) gradients: u64,
    losses: Vec<(f64, Option<Reached>)>,
    accuracies: Vec<(f64, Option<Reached>)>,
    /// Clocks that restored shards had lost.
    clocks_lost: u64,
    chronicle: Vec<(Moment, String)>,
}

#[derive(Clone, Copy, Debug)]
struct Reached {
    gradients: u64,
    at: Moment,
}

impl Tally {
    pub(crate) fn new(config: &Config) -> Self {
        let open = |thresholds: &[f64]| thresholds.iter().map(|threshold| (*threshold, None)).collect();
        let Evaluate { losses, accuracies, .. } = &config.evaluate;
        Self { losses: open(losses), accuracies: open(accuracies), ..Self::default() }
    }

    fn evaluated(&mut self, now: Moment, loss: f64, accuracy: f64) {
        let reached = Reached { gradients: self.gradients, at: now };
        let losses = self.losses.iter_mut().filter(|(threshold, _)| loss <= *threshold);
        let accuracies = self.accuracies.iter_mut().filter(|(threshold, _)| accuracy >= *threshold);
        for (_, first) in losses.chain(accuracies) {
            first.get_or_insert(reached);
        }
    }

    /// The thresholds that were reached, under the name of what they are of.
    fn rows(of: &'static str, rows: &[(f64, Option<Reached>)], workers: u32) -> Value {
        let row = |(threshold, first): &(f64, Option<Reached>)| {
            let Reached { gradients, at } = (*first)?;
            let clocks = gradients as f64 / f64::from(workers.max(1));
            Some(
                json!({ of: threshold, "gradients": gradients, "clocks": clocks, "virtual_s": at.0 as f64 / 1e9 }),
            )
        };
        rows.iter().filter_map(row).collect()
    }
}

impl World {
    /// Something happened to servers or shards.
    pub(crate) fn chronicle(&mut self, notice: &ClusterNotice) {
        match notice {
            // What goes well is no news.
            ClusterNotice::InStep { .. } | ClusterNotice::Saved { .. } => return,
            ClusterNotice::Restored { lost, .. } => self.tally.clocks_lost += lost,
            _ => {}
        }
        if self.tally.chronicle.len() < CHRONICLE_MAX {
            self.tally.chronicle.push((self.now(), notice.to_string()));
        }
    }

    /// What happened to servers and shards so far, in words.
    pub(crate) fn chronicled(&self) -> Vec<(f64, String)> {
        let row = |(at, text): &(Moment, String)| (at.0 as f64 / 1e9, text.clone());
        self.tally.chronicle.iter().map(row).collect()
    }

    /// The figures as they stand, over virtual time. The real time is not in them: the same seed gives the same bytes.
    fn figures(&self, whole: bool) -> Option<Figures> {
        let record = self.servers[0].control.record()?;
        let mut figures = record.figures(self.now(), &parts::asked(self.plan.config(), whole));
        if self.wall_before.is_some() {
            let unknown = self.wall_unknown.as_secs_f64();
            figures.wall_s += unknown;
            figures.samples_per_s = figures.samples as f64 / figures.wall_s;
            figures.time_to_accuracy.iter_mut().for_each(|time| time.wall_s += unknown);
            figures.time_to_loss.iter_mut().for_each(|time| time.wall_s += unknown);
        }
        (figures.virtual_s, figures.wall_s) = (Some(figures.wall_s), f64::NAN);
        if let Engine::Timing { .. } = self.engine {
            // The shards that the cores see are smaller than those that are meant, and no loss was measured. What members of a group
            // send each other has its true size.
            if self.plan.group.is_none() {
                figures.bytes.pushed = self.counts.bytes_pushed;
                figures.bytes.pulled = self.counts.bytes_pulled;
            }
            figures.r#final.train_loss = f64::NAN;
            (figures.r#final.test_loss, figures.r#final.test_accuracy) = (None, None);
            figures.best_test_accuracy = None;
            figures.diverged = None;
        }
        Some(figures)
    }

    /// Adds a line about the progress, if one is due.
    pub(crate) fn write_progress(&mut self) -> Result<(), SimFailure> {
        let now = self.now();
        let is_due = self.results.files.is_some()
            && self.over.is_none()
            && self.servers[0].control.is_started()
            && now >= self.results.next;
        if is_due && let Some(figures) = self.figures(false) {
            self.results.lines += 1;
            if self.results.lines >= LINES_AT_PACE && self.results.lines.is_multiple_of(LINES_AT_PACE / 2) {
                self.results.every *= 2;
            }
            self.results.next = now.after(self.results.every);
            self.results.line(json!({ "event": "progress" }), &figures)?;
        }
        Ok(())
    }

    /// Adds a line about an evaluation. That it cannot be written is told when the present event is over.
    pub(crate) fn write_evaluation(&mut self) {
        let evaluations = self.servers[0].control.record().map_or(&[][..], |record| record.evaluations());
        let last = evaluations.last();
        let at_samples = last.map(|evaluation| evaluation.samples);
        if let Some((loss, accuracy)) = last.map(|evaluation| (evaluation.loss, evaluation.accuracy)) {
            self.tally.evaluated(self.agenda.now(), loss, accuracy);
        }
        if self.results.files.is_some()
            && let Some(figures) = self.figures(false)
            && let Err(error) =
                self.results.line(json!({ "event": "evaluate", "at_samples": at_samples }), &figures)
        {
            self.results.failure.get_or_insert(error);
        }
    }

    /// The summary of the whole run. Of all its fields only `wall_s`, the real time, differs between two runs of one configuration.
    pub(crate) fn summary(&self, wall: Duration, diverged: Option<Diverged>) -> Value {
        let Some(mut figures) = self.figures(true) else { return Value::Null };
        (figures.wall_s, figures.diverged) = (wall.as_secs_f64(), diverged);
        let control = &self.servers[0].control;
        let refused = control.refused();
        let mut extra = json!({
            "batches_repeated": control.batches_repeated(),
            "refused": {
                "handshake": refused.handshake, "role": refused.role,
                "malformed": refused.malformed, "fenced": refused.fenced,
            },
            "timing_only": matches!(self.engine, Engine::Timing { .. }),
            "events": self.counts.events,
            "gradients": self.tally.gradients,
            "work_to_loss": Tally::rows("loss", &self.tally.losses, self.plan.config().workers),
            "work_to_accuracy": Tally::rows("accuracy", &self.tally.accuracies, self.plan.config().workers),
            "bytes_copied": self.counts.bytes_fed,
            "bytes_saved": self.store.bytes,
        });
        if !self.fates.are_calm() {
            let line = |(at, text): (f64, String)| format!("{at:.3} s: {text}");
            extra["chronicle"] = self.chronicled().into_iter().map(line).collect();
            extra["clocks_lost"] = self.tally.clocks_lost.into();
        }
        summary_of(&self.results.heading, &figures, extra)
    }

    /// Whether the run diverged: what the record says, or the clock at which a gradient that was no number ended the run.
    pub(crate) fn diverged(&self, has_failed: bool) -> Option<Diverged> {
        let recorded = self.figures(false).and_then(|figures| figures.diverged);
        let stopped = self.diverged.filter(|_| has_failed);
        recorded.or(stopped.map(|clock| Diverged { clock: clock.0 }))
    }

    /// Writes what is written at the end.
    pub(crate) fn write_end(&self, summary: &Value) -> Result<(), FileError> {
        let Some(files) = &self.results.files else { return Ok(()) };
        files.extra("timeline.jsonl", self.timeline.to_text().as_bytes())?;
        files.summary(summary)
    }
}
