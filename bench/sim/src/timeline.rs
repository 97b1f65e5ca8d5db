//! What each worker did when: `timeline.jsonl`, up to a number of spans.

use std::fmt::Write as _;

use slackline_core::ids::{Moment, WorkerId};

/// What a span was spent on; the words are those of the summary's shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Compute,
    Wait,
    Push,
    Pull,
    Data,
}

impl What {
    const fn word(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Wait => "wait",
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Data => "data",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    worker: WorkerId,
    start: Moment,
    end: Moment,
    what: What,
}

/// The spans of all workers, in the order in which they ended.
#[derive(Debug)]
pub(crate) struct Timeline {
    spans: Vec<Span>,
    most: usize,
}

impl Timeline {
    pub(crate) const fn new(most: usize) -> Self {
        Self { spans: Vec::new(), most }
    }

    /// Whether more spans are taken.
    pub(crate) const fn is_open(&self) -> bool {
        self.spans.len() < self.most
    }

    fn add(&mut self, worker: WorkerId, start: Moment, end: Moment, what: What) {
        if start < end && self.is_open() {
            self.spans.push(Span { worker, start, end, what });
        }
    }

    /// A gradient was computed, which from `start` to `begins` waited for values.
    pub(crate) fn computed(&mut self, worker: WorkerId, start: Moment, begins: Moment, end: Moment) {
        self.add(worker, start, begins, What::Pull);
        self.add(worker, begins, end, What::Compute);
    }

    /// What followed a gradient in an allreduce: others' gradients were missing, then sums that others had.
    pub(crate) fn reduced(&mut self, worker: WorkerId, computed: Moment, gathered: Moment, end: Moment) {
        self.add(worker, computed, gathered, What::Wait);
        self.add(worker, gathered, end, What::Push);
    }

    /// What lay between two gradients: the push until it was answered, then the pull until the values were there, then whatever else
    /// was missing. What servers held for other workers' clocks is the end of each.
    pub(crate) fn between(&mut self, worker: WorkerId, track: &Track, end: Moment) {
        let Some(start) = track.since else { return };
        let pushed = track.pushed.unwrap_or(start).clamp(start, end);
        let pulled = track.pulled.unwrap_or(pushed).clamp(pushed, end);
        let held = |held_us: u64, from: Moment, to: Moment| {
            Moment(to.0.saturating_sub(held_us.saturating_mul(1000)).max(from.0))
        };
        let push_ends = held(track.push_held_us, start, pushed);
        let pull_ends = held(track.pull_held_us, pushed, pulled);
        self.add(worker, start, push_ends, What::Push);
        self.add(worker, push_ends, pushed, What::Wait);
        self.add(worker, pushed, pull_ends, What::Pull);
        self.add(worker, pull_ends, pulled, What::Wait);
        self.add(worker, pulled, end, What::Data);
    }

    /// One JSON object a line.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for Span { worker, start, end, what } in &self.spans {
            let seconds = |moment: &Moment| moment.0 as f64 / 1e9;
            let (worker, what) = (worker.0, what.word());
            // Writing to a text cannot fail.
            let _ = writeln!(
                text,
                r#"{{"worker":{worker},"start_s":{},"end_s":{},"what":"{what}"}}"#,
                seconds(start),
                seconds(end)
            );
        }
        text
    }
}

/// What is known of a worker since its last gradient.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Track {
    /// When the last gradient was computed; none before the first.
    pub(crate) since: Option<Moment>,
    /// When its push was answered by all.
    pub(crate) pushed: Option<Moment>,
    /// When the last values came.
    pub(crate) pulled: Option<Moment>,
    /// The longest that a server held the push.
    pub(crate) push_held_us: u64,
    /// The longest that a server held a pull.
    pub(crate) pull_held_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Option<Moment> {
        Some(Moment(ms * 1_000_000))
    }

    #[test]
    fn what_lies_between_two_gradients_is_told_apart() {
        let mut timeline = Timeline::new(5);
        let track = Track {
            since: at(10),
            pushed: at(30),
            pulled: at(70),
            push_held_us: 5_000,
            pull_held_us: 25_000,
        };
        timeline.computed(WorkerId(3), Moment(0), Moment(0), Moment(10_000_000));
        timeline.between(WorkerId(3), &track, Moment(70_000_000));
        let expected =
            [(0, 10, "compute"), (10, 25, "push"), (25, 30, "wait"), (30, 45, "pull"), (45, 70, "wait")];
        let line = |(start, end, what): (u32, u32, &str)| {
            let seconds = |ms: u32| f64::from(ms) / 1000.0;
            let (start, end) = (seconds(start), seconds(end));
            format!("{{\"worker\":3,\"start_s\":{start},\"end_s\":{end},\"what\":\"{what}\"}}\n")
        };
        assert_eq!(timeline.to_text(), expected.map(line).concat());
        assert!(!timeline.is_open());
        timeline.computed(WorkerId(3), Moment(1), Moment(1), Moment(2));
        assert_eq!(timeline.spans.len(), 5, "there are no more than were asked for");
    }
}
