//! Recorded iteration times as text: what the file of a trace of slowness must look like.
//!
//! ```text
//! worker,iteration,seconds
//! 0,0,0.251
//! 1,0,0.249
//! 0,1,0.262
//! ```
//!
//! Lines of different workers may be mixed; those of one worker come in the order of its iterations, from 0 and without a hole, and the
//! workers are counted from 0 without a hole. White space around a field and empty lines are ignored.

use std::collections::BTreeMap;

use super::Slowness;
use crate::limits::WORKER_COUNT_MAX;

/// Ten years: what is longer is a mistake, and no simulation of it ends.
const SECONDS_MAX: f64 = 315_360_000.0;

/// The first line of the file.
pub const RECORDED_HEADER: &str = "worker,iteration,seconds";

/// Why a recorded trace cannot be used. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordedError {
    /// There is no time in it.
    #[error("no iteration is recorded; under the line `{RECORDED_HEADER}` give at least one")]
    Empty,
    /// The first line is not the header.
    #[error("line {line} must be `{RECORDED_HEADER}`")]
    Header {
        /// The first line that is not empty.
        line: u64,
    },
    /// A line has not three fields.
    #[error("line {line} has {count} fields, not the three of `{RECORDED_HEADER}`")]
    FieldCount {
        /// Which line.
        line: u64,
        /// Fields of it.
        count: usize,
    },
    /// A field is not the number it must be.
    #[error("line {line}: {field} is not {wanted}")]
    NotANumber {
        /// Which line.
        line: u64,
        /// Which field.
        field: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// A time is below zero.
    #[error("line {line}: the seconds are negative; a time is at least 0")]
    Negative {
        /// Which line.
        line: u64,
    },
    /// The worker's number is too high.
    #[error("line {line}: worker {worker} is too high; a run has at most {WORKER_COUNT_MAX} workers, from 0")]
    WorkerOutOfRange {
        /// Which line.
        line: u64,
        /// Its worker.
        worker: u64,
    },
    /// An iteration comes out of turn: some are missing before it, or it was there already.
    #[error(
        "line {line}: iteration {iteration} of worker {worker} where {expected} is next; a trace has no holes"
    )]
    Hole {
        /// Which line.
        line: u64,
        /// Its worker.
        worker: u32,
        /// Its iteration.
        iteration: u64,
        /// The iteration that should be there.
        expected: u64,
    },
    /// No line names a worker although one names a later worker.
    #[error(
        "line {line} names worker {later}, and no line worker {worker}; workers are counted from 0 without holes"
    )]
    MissingWorker {
        /// The first line of the later worker.
        line: u64,
        /// The worker that is missing.
        worker: u32,
        /// The next one that is there.
        later: u32,
    },
}

/// What is known of one worker.
struct Row {
    first_line: u64,
    seconds: Vec<f64>,
}

impl Slowness {
    /// Reads a recorded trace, in the form that the head of this file shows.
    ///
    /// # Errors
    /// [`RecordedError`], naming the line.
    pub fn recorded(text: &str) -> Result<Self, RecordedError> {
        let mut lines = (1_u64..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let (line, header) = lines.next().ok_or(RecordedError::Empty)?;
        if !header.split(',').map(str::trim).eq(RECORDED_HEADER.split(',')) {
            return Err(RecordedError::Header { line });
        }
        let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
        for (line, text) in lines {
            let (worker, iteration, seconds) = fields(line, text)?;
            let row = rows.entry(worker).or_insert_with(|| Row { first_line: line, seconds: Vec::new() });
            let expected = row.seconds.len() as u64;
            if iteration != expected {
                return Err(RecordedError::Hole { line, worker, iteration, expected });
            }
            row.seconds.push(seconds);
        }
        for (worker, (later, row)) in (0..).zip(&rows) {
            if *later != worker {
                return Err(RecordedError::MissingWorker { line: row.first_line, worker, later: *later });
            }
        }
        if rows.is_empty() {
            return Err(RecordedError::Empty);
        }
        Ok(Self::Recorded { seconds: rows.into_values().map(|row| row.seconds).collect() })
    }
}

fn fields(line: u64, text: &str) -> Result<(u32, u64, f64), RecordedError> {
    let count = text.split(',').count();
    let mut fields = text.split(',').map(str::trim);
    let (Some(worker), Some(iteration), Some(seconds), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(RecordedError::FieldCount { line, count });
    };
    let whole = |field, text: &str| {
        text.parse::<u64>().map_err(|_| RecordedError::NotANumber {
            line,
            field,
            wanted: "a whole number from 0 on",
        })
    };
    let (worker, iteration) = (whole("worker", worker)?, whole("iteration", iteration)?);
    let seconds = seconds.parse::<f64>().ok().filter(|seconds| seconds.abs() <= SECONDS_MAX);
    let seconds = seconds.ok_or(RecordedError::NotANumber {
        line,
        field: "seconds",
        wanted: "a number of at most ten years",
    })?;
    if seconds < 0.0 {
        return Err(RecordedError::Negative { line });
    }
    match u32::try_from(worker).ok().filter(|worker| *worker < WORKER_COUNT_MAX) {
        Some(worker) => Ok((worker, iteration, seconds)),
        None => Err(RecordedError::WorkerOutOfRange { line, worker }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rows: &str) -> Result<Slowness, RecordedError> {
        Slowness::recorded(&format!("{RECORDED_HEADER}\n{rows}"))
    }

    #[test]
    fn workers_may_be_mixed_and_need_not_have_as_many_iterations() {
        let seconds = vec![vec![0.5, 0.25, 1e-3], vec![2.0]];
        assert_eq!(read("0,0,0.5\n1,0,2\r\n\n0,1, 0.25\n0 ,2,1e-3"), Ok(Slowness::Recorded { seconds }));
    }

    #[test]
    fn a_hole_names_its_line_and_what_is_missing() {
        let hole = |line, iteration, expected| RecordedError::Hole { line, worker: 1, iteration, expected };
        assert_eq!(read("1,0,1\n0,0,1\n1,2,1"), Err(hole(4, 2, 1)));
        assert_eq!(read("1,0,1\n1,0,1"), Err(hole(3, 0, 1)));
        assert_eq!(read("1,1,1"), Err(hole(2, 1, 0)));
        assert_eq!(
            read("0,0,1\n\n3,0,1\n2,0,1"),
            Err(RecordedError::MissingWorker { line: 5, worker: 1, later: 2 })
        );
    }

    #[test]
    fn what_is_not_a_time_is_refused() {
        let not = |field, wanted| RecordedError::NotANumber { line: 2, field, wanted };
        assert_eq!(read("0,0,-1e-9"), Err(RecordedError::Negative { line: 2 }));
        for seconds in ["", "x", "NaN", "inf", "1.0s"] {
            assert_eq!(read(&format!("0,0,{seconds}")), Err(not("seconds", "a number of at most ten years")));
        }
        assert_eq!(read("-1,0,1"), Err(not("worker", "a whole number from 0 on")));
        assert_eq!(read("0,0.5,1"), Err(not("iteration", "a whole number from 0 on")));
        assert_eq!(read("0,0"), Err(RecordedError::FieldCount { line: 2, count: 2 }));
        assert_eq!(read("0,0,1,1"), Err(RecordedError::FieldCount { line: 2, count: 4 }));
        let worker = u64::from(WORKER_COUNT_MAX);
        assert_eq!(read(&format!("{worker},0,1")), Err(RecordedError::WorkerOutOfRange { line: 2, worker }));
    }

    #[test]
    fn an_empty_trace_and_one_without_a_header_are_refused() {
        for empty in ["", "\n \n", RECORDED_HEADER, "worker, iteration, seconds\n\n"] {
            assert_eq!(Slowness::recorded(empty), Err(RecordedError::Empty));
        }
        assert_eq!(Slowness::recorded("\n0,0,1"), Err(RecordedError::Header { line: 2 }));
    }
}
