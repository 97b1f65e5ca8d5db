//! What the worker counts between two reports.

use std::time::Duration;

use slackline_core::ids::Moment;
use slackline_core::wire::{Report, Served, Times};

/// Least time between two reports that go along with an ask.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// The counts since the last report.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    counts: Report,
    reported_at: Moment,
    /// The next ask brings a report, however soon.
    is_wanted: bool,
    /// Datagram bytes, as the shell last told them: (sent, received).
    wire: (u64, u64),
    /// Datagram bytes, as they were at the last report.
    wire_reported: (u64, u64),
}

impl Record {
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            counts: Report::default(),
            reported_at: now,
            is_wanted: false,
            wire: (0, 0),
            wire_reported: (0, 0),
        }
    }

    /// The counts, to add to.
    pub(crate) const fn counts(&mut self) -> &mut Report {
        &mut self.counts
    }

    /// Samples since the last report.
    pub(crate) const fn samples(&self) -> u64 {
        self.counts.samples
    }

    /// The shell's totals of datagram bytes.
    pub(crate) fn wire_totals(&mut self, sent: u64, received: u64) {
        self.wire = (self.wire.0.max(sent), self.wire.1.max(received));
    }

    /// A pull for training was answered with `len` values.
    pub(crate) fn pulled(&mut self, served: &Served, bytes: u64) {
        self.counts.pulls_served += 1;
        self.counts.pulls_held += u64::from(served.held_us > 0);
        self.counts.bytes_pulled += bytes;
    }

    /// Whether a report should go along with an ask.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.is_wanted || now.since(self.reported_at) >= REPORT_INTERVAL
    }

    /// Lets the next ask bring a report.
    pub(crate) const fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Takes back a report that the coordinator never heard; it is part of the next one.
    pub(crate) fn recover(&mut self, report: &Report) {
        self.counts.merge(report);
        self.is_wanted = true;
    }

    /// The report since the last one.
    pub(crate) fn take(&mut self, now: Moment, times: Times) -> Report {
        (self.reported_at, self.is_wanted) = (now, false);
        let mut report = std::mem::take(&mut self.counts);
        report.times.merge(&times);
        report.wire_sent += self.wire.0 - self.wire_reported.0;
        report.wire_received += self.wire.1 - self.wire_reported.1;
        self.wire_reported = self.wire;
        report
    }
}
