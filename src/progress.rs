//! The progress of a run: a bar on a terminal, a plain line every few seconds elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use slackline_core::wire::{Phase, Progress, Status, WaitRow};

/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// A wait of so long is shown in the place of the figures.
const LONG: Duration = Duration::from_secs(5);

/// The display.
pub(crate) struct Display {
    bar: Option<ProgressBar>,
    last_line: Instant,
    last_text: String,
}

impl Display {
    pub(crate) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| empty_bar(ProgressDrawTarget::stderr()));
        let last_line = Instant::now().checked_sub(LINE_EVERY).unwrap_or_else(Instant::now);
        Self { bar, last_line, last_text: String::new() }
    }

    pub(crate) fn show(&mut self, status: &Status) {
        match (&status.phase, &status.progress) {
            (Phase::Waiting { here, wanted, .. }, progress) => {
                self.put(format!("waiting for workers: {here} of {wanted} here"), progress.as_ref());
            }
            // A wait that has lasted is worth more than a speed of nothing.
            (Phase::Running | Phase::Left(_), Some(progress))
                if status.waits.first().is_some_and(is_long) =>
            {
                let text = status.waits.first().map_or_else(String::new, |wait| wait.text.shown());
                self.put(text, Some(progress));
            }
            (_, Some(progress)) => self.advance(progress),
            _ => {}
        }
    }

    /// Shows how far a run has come.
    pub(crate) fn advance(&mut self, progress: &Progress) {
        self.put(line(progress), Some(progress));
    }

    fn put(&mut self, text: String, progress: Option<&Progress>) {
        match &self.bar {
            Some(bar) => {
                if let Some(progress) = progress {
                    bar.set_length(progress.samples_total.max(1));
                    bar.set_position(progress.samples.min(progress.samples_total));
                }
                bar.set_message(text);
            }
            None if self.last_line.elapsed() >= LINE_EVERY && text != self.last_text => {
                self.last_line = Instant::now();
                let share = progress.map_or(0.0, |progress| {
                    100.0 * progress.samples as f64 / progress.samples_total.max(1) as f64
                });
                self.say(&format!("{share:3.0} % {text}"));
                self.last_text = text;
            }
            None => {}
        }
    }

    /// Shows a line without disturbing the bar.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| crate::say(text)),
            None => crate::say(text),
        }
    }

    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn is_long(wait: &WaitRow) -> bool {
    u128::from(wait.since_ms) >= LONG.as_millis()
}

/// A bar of which nothing is done. One without a length would be drawn full.
fn empty_bar(target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(1), target);
    let style = ProgressStyle::with_template("{bar:24} {percent:>3}% {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn line(progress: &Progress) -> String {
    let mut text = format!(
        "{:.0} samples/s, loss {:.4}, clock lead {:.2}, waiting {:.0} %",
        progress.samples_per_s,
        progress.loss,
        progress.clock_lead,
        100.0 * progress.waiting
    );
    if progress.accuracy >= 0.0 {
        text += &format!(", test accuracy {:.2} %", 100.0 * progress.accuracy);
    }
    text
}
