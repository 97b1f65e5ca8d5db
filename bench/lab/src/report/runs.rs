//! What the runs left in their folders: curves of error, histograms, worker time, the timeline.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

/// Lines of one file that are read; a longer one is drawn as far as this.
const LINES_MAX: usize = 50_000;

/// One evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Evaluation {
    pub(crate) time_s: f64,
    pub(crate) epochs: f64,
    /// Samples that went into the values.
    pub(crate) samples: f64,
    /// Share of the test set that was classified wrongly.
    pub(crate) error: Option<f64>,
    pub(crate) loss: Option<f64>,
}

/// One span of one worker's time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) worker: u64,
    pub(crate) start_s: f64,
    pub(crate) end_s: f64,
    pub(crate) what: String,
}

/// What a worker's time goes to: the name in the summary and in the timeline.
pub(crate) const WHAT: [(&str, &str); 6] = [
    ("compute", "compute"),
    ("wait_for_clock", "wait"),
    ("push", "push"),
    ("pull", "pull"),
    ("data", "data"),
    ("evaluate", "evaluate"),
];

/// All that is drawn of one run. What is missing is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Run {
    pub(crate) evaluations: Vec<Evaluation>,
    /// Values with their counts.
    pub(crate) leads: Vec<(f64, f64)>,
    pub(crate) staleness: Vec<(f64, f64)>,
    /// Shares of worker time in the order of [`WHAT`].
    pub(crate) shares: [f64; 6],
    pub(crate) timeline: Vec<Span>,
}

/// Reads the folder of a run; whatever cannot be read is not drawn.
pub(crate) fn read(folder: &Path, with_timeline: bool) -> Run {
    let mut run = Run::default();
    for line in lines(&folder.join("metrics.jsonl")) {
        if line.get("event").and_then(Value::as_str) == Some("evaluate") {
            run.evaluations.extend(evaluation(&line));
        }
    }
    run.evaluations.sort_by(|a, b| a.epochs.total_cmp(&b.epochs));
    if let Some(summary) = summary(&folder.join("summary.json")) {
        run.leads = histogram(&summary, "/staleness/clock_lead/histogram");
        run.staleness = histogram(&summary, "/staleness/version/histogram");
        run.shares = WHAT.map(|(name, _)| {
            summary.pointer(&format!("/time/{name}")).and_then(Value::as_f64).unwrap_or(0.0)
        });
    }
    if with_timeline {
        run.timeline = lines(&folder.join("timeline.jsonl")).filter_map(|line| span(&line)).collect();
    }
    run
}

/// The moments that a run left lines about, with the samples done by then, in order; seconds of virtual time, or else of the wall.
pub(crate) fn progress(path: &Path) -> Vec<(f64, f64)> {
    let moment = |line: Value| {
        let number = |name: &str| line.get(name).and_then(Value::as_f64);
        Some((number("virtual_s").or_else(|| number("wall_s"))?, number("samples")?))
    };
    let mut moments: Vec<(f64, f64)> = lines(path).filter_map(moment).collect();
    moments.sort_by(|a, b| a.0.total_cmp(&b.0));
    moments
}

fn summary(path: &Path) -> Option<Value> {
    serde_json::from_reader(BufReader::new(File::open(path).ok()?)).ok()
}

fn lines(path: &Path) -> impl Iterator<Item = Value> + use<> {
    let lines = File::open(path).ok().map(|file| BufReader::new(file).lines());
    lines
        .into_iter()
        .flatten()
        .map_while(Result::ok)
        .take(LINES_MAX)
        .filter_map(|line| serde_json::from_str(&line).ok())
}

fn evaluation(line: &Value) -> Option<Evaluation> {
    let number = |pointer: &str| line.pointer(pointer).and_then(Value::as_f64);
    let time_s = number("/virtual_s").or_else(|| number("/wall_s"))?;
    // The values that were measured are those at so many samples; more may have been done when the line was written.
    let epochs = match (number("/at_samples"), number("/samples"), number("/epochs")?) {
        (Some(at), Some(samples), epochs) if samples > 0.0 => epochs * at / samples,
        (_, _, epochs) => epochs,
    };
    let error = number("/final/test_accuracy").map(|accuracy| 1.0 - accuracy);
    let samples = number("/at_samples").or_else(|| number("/samples")).unwrap_or(0.0);
    Some(Evaluation { time_s, epochs, samples, error, loss: number("/final/test_loss") })
}

fn histogram(summary: &Value, pointer: &str) -> Vec<(f64, f64)> {
    let rows = summary.pointer(pointer).and_then(Value::as_array);
    let row = |row: &Value| Some((row.get(0)?.as_f64()?, row.get(1)?.as_f64()?));
    rows.map(|rows| rows.iter().filter_map(row).collect()).unwrap_or_default()
}

fn span(line: &Value) -> Option<Span> {
    let seconds = |name: &str| line.get(name).and_then(Value::as_f64);
    Some(Span {
        worker: line.get("worker")?.as_u64()?,
        start_s: seconds("start_s")?,
        end_s: seconds("end_s")?,
        what: line.get("what")?.as_str()?.to_owned(),
    })
}

/// A curve over the seeds: places, and there the mean, the least and the greatest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Band {
    pub(crate) rows: Vec<(f64, f64, f64, f64)>,
}

impl Band {
    /// The curves of all seeds together, over the stretch that all of them cover.
    pub(crate) fn over(curves: &[Vec<(f64, f64)>]) -> Self {
        const STEPS: usize = 80;
        let begin = curves.iter().filter_map(|curve| curve.first()).map(|at| at.0).fold(f64::MIN, f64::max);
        let end = curves.iter().filter_map(|curve| curve.last()).map(|at| at.0).fold(f64::MAX, f64::min);
        if curves.is_empty() || curves.iter().any(Vec::is_empty) || begin > end {
            return Self::default();
        }
        let at = |step: usize| begin + (end - begin) * step as f64 / (STEPS - 1) as f64;
        let places: Vec<f64> = match curves {
            // One seed needs no common places: its own are exact.
            [one] => one.iter().map(|at| at.0).collect(),
            _ => (0..STEPS).map(at).collect(),
        };
        let row = |x: f64| {
            let values: Vec<f64> = curves.iter().map(|curve| value_at(curve, x)).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            (x, mean, least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        };
        Self { rows: places.into_iter().map(row).collect() }
    }

    pub(crate) fn means(&self) -> Vec<(f64, f64)> {
        self.rows.iter().map(|row| (row.0, row.1)).collect()
    }
}

/// The curve at `x`, straight between its points.
fn value_at(curve: &[(f64, f64)], x: f64) -> f64 {
    let after = curve.partition_point(|at| at.0 < x);
    match (after.checked_sub(1).and_then(|before| curve.get(before)), curve.get(after)) {
        (Some(a), Some(b)) if b.0 > a.0 => a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0),
        (_, Some(at)) | (Some(at), None) => at.1,
        (None, None) => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_covers_what_all_seeds_cover() {
        let band = Band::over(&[vec![(0.0, 1.0), (10.0, 0.0)], vec![(2.0, 1.0), (8.0, 0.4)]]);
        let (first, last) = (band.rows[0], band.rows[band.rows.len() - 1]);
        assert_eq!((first.0, last.0), (2.0, 8.0));
        assert!((first.1 - 0.9).abs() < 1e-12 && (first.2 - 0.8).abs() < 1e-12 && first.3 == 1.0);
        assert!((last.1 - 0.3).abs() < 1e-12);
        assert_eq!(Band::over(&[vec![(0.0, 1.0)], vec![(2.0, 1.0)]]), Band::default());
        assert_eq!(Band::over(&[]), Band::default());
    }

    #[test]
    fn an_evaluation_lies_at_the_samples_it_measured() {
        let line = serde_json::json!({
            "event": "evaluate", "at_samples": 100, "samples": 200, "epochs": 2.0, "virtual_s": 4.0, "wall_s": 0.1,
            "final": { "test_accuracy": 0.75, "test_loss": 1.5 },
        });
        let expected =
            Evaluation { time_s: 4.0, epochs: 1.0, samples: 100.0, error: Some(0.25), loss: Some(1.5) };
        assert_eq!(evaluation(&line), Some(expected));
    }
}
