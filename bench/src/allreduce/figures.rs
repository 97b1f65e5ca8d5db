//! What was measured, and how it is shown.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Cell;
use crate::spread::Spread;

/// All repetitions of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The cell.
    pub cell: Cell,
    /// Seconds of each repetition: from the barrier until the last member has all sums.
    pub seconds: Vec<f64>,
    /// Processor seconds of all processes in all repetitions, with the barriers; none where the system does not tell.
    pub processor_seconds: Option<f64>,
}

impl Figures {
    /// Bytes of the buffer.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.cell.mib << 20
    }

    /// Seconds, over repetitions.
    #[must_use]
    pub fn spread(&self) -> Option<Spread> {
        Spread::of(self.seconds.iter().copied())
    }

    /// Bytes of the buffer a second, over repetitions.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<Spread> {
        Spread::of(self.seconds.iter().map(|seconds| self.bytes() as f64 / seconds))
    }

    /// Processor seconds of all processes for each GiB of the buffer.
    #[must_use]
    pub fn processor_seconds_per_gib(&self) -> Option<f64> {
        let gib = self.bytes() as f64 * self.seconds.len() as f64 / f64::from(1 << 30);
        self.processor_seconds.map(|used| used / gib)
    }
}

/// The cells as a table for people; MB are 10^6 bytes.
#[must_use]
pub fn table(all: &[Figures]) -> String {
    let mut text = String::from(
        "ranks   MiB topology           ms                          MB/s of the buffer     processor s/GiB\n",
    );
    for figures in all {
        let Cell { ranks, mib, topology, .. } = figures.cell;
        let scaled = |spread: Option<Spread>, factor: f64| spread.map(|spread| spread.times(factor));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{ranks:>5} {mib:>5} {:<18} {:<27} {:<22} {}",
            topology.to_string(),
            Spread::show(scaled(figures.spread(), 1e3), 2),
            Spread::show(scaled(figures.bytes_per_second(), 1e-6), 0),
            figures.processor_seconds_per_gib().map_or_else(|| "-".to_owned(), |used| format!("{used:.2}")),
        );
    }
    text
}

/// The cells as JSON, with the time of each repetition.
#[must_use]
pub fn json(all: &[Figures]) -> Value {
    let cell = |figures: &Figures| {
        let Cell { ranks, mib, topology, bucket_kib, repeats } = &figures.cell;
        json!({
            "ranks": ranks, "mib": mib, "topology": topology.to_string(), "bucket_kib": bucket_kib, "repeats": repeats,
            "bytes": figures.bytes(), "seconds": figures.seconds,
            "spread_s": Spread::json(figures.spread()),
            "bytes_per_s": Spread::json(figures.bytes_per_second()),
            "processor_s_per_gib": figures.processor_seconds_per_gib(),
        })
    };
    Value::Array(all.iter().map(cell).collect())
}
