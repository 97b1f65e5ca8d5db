//! Peers from outside: what `bench/peers/run.py` measured, as entries beside the contestants.
//!
//! They get what contestants get: the same rates, tuning seeds, epochs, batch, order of the data and slowness. Their rows come from a
//! file that is there, or the comparison has them measured ([`Host`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use slackline_core::config::Config;

use super::execute::best;
use super::plan::Comparison;
use super::standing::{Entry, Evaluated, Family, Row, Standing, Try};
use super::work::{Work, described, unfit};
use crate::names::slug;
use crate::results::RunRow;
use crate::state::{LabError, make_folder, write_whole};

/// Who is compared with beside the contestants.
pub enum Invited<'a> {
    /// Nobody.
    Nobody,
    /// The rows of a file.
    Rows(Lines),
    /// Whoever this host measures.
    Host(&'a dyn Host),
}

/// Measures peers.
pub trait Host {
    /// Measures all peers at this work, with the rate `RATE` or `RATE,PEER=RATE,...`, and gives the lines that were written.
    ///
    /// # Errors
    ///
    /// Why nothing came of it, in a line.
    fn measure(&self, work: &Work<'_>, rates: &str) -> Result<Lines, String>;
}

/// The lines of a file of measurements.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    rows: Vec<Measured>,
    /// Peers that gave nothing, with the reason.
    absent: Vec<(String, String)>,
    /// Machine and versions, in a line.
    machine: Option<String>,
    texts: Vec<Value>,
}

/// One training run of a peer.
#[derive(Clone, Debug)]
struct Measured {
    peer: String,
    workers: u64,
    seed: u64,
    rate: f64,
    stragglers: String,
    /// The condition that it was measured for, where a comparison had it measured.
    condition: Option<String>,
    figures: BTreeMap<String, f64>,
    reached: BTreeMap<String, (f64, f64)>,
    curve: Vec<Evaluated>,
}

/// A file of measurements that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// It cannot be read.
    #[error("{}: cannot read the peers' rows: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is none of bench/peers/run.py.
    #[error("{}:{line}: {reason}; bench/peers/run.py writes such files", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

impl Lines {
    /// Reads a file of JSON lines.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or the first line that is no measurement.
    pub fn read(path: &Path) -> Result<Self, PeersError> {
        let text = fs::read_to_string(path)
            .map_err(|source| PeersError::Unreadable { path: path.to_owned(), source })?;
        let mut lines = Self::default();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let refused =
                |reason: String| PeersError::Line { path: path.to_owned(), line: number + 1, reason };
            let value: Value = serde_json::from_str(line).map_err(|error| refused(error.to_string()))?;
            lines.take(value).map_err(refused)?;
        }
        Ok(lines)
    }

    /// Whether the last line, which says where it was measured, is there.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.machine.is_some()
    }

    fn take(&mut self, value: Value) -> Result<(), String> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let kind = text("kind").ok_or("no field kind")?;
        match kind.as_str() {
            "train" => self.rows.push(Measured::of(&value)?),
            "skipped" | "failed" => {
                let peer = text("peer").ok_or("no field peer")?;
                self.absent.push((peer, format!("{kind}: {}", text("reason").unwrap_or_default())));
            }
            "machine" => self.machine = Some(machine(&value)),
            // Timed allreduces, pushes and pulls are no training.
            "allreduce" | "pushpull" => {}
            other => return Err(format!("kind is \"{other}\"")),
        }
        self.texts.push(value);
        Ok(())
    }

    fn add(&mut self, other: Self, condition: &str) {
        let of = |row: Measured| Measured { condition: Some(condition.to_owned()), ..row };
        self.rows.extend(other.rows.into_iter().map(of));
        for absent in other.absent {
            if !self.absent.contains(&absent) {
                self.absent.push(absent);
            }
        }
        self.machine = other.machine.or_else(|| self.machine.take());
        self.texts.extend(other.texts.into_iter().map(|mut value| {
            if let Some(fields) = value.as_object_mut().filter(|fields| fields["kind"] == "train") {
                fields.insert("condition".to_owned(), Value::String(condition.to_owned()));
            }
            value
        }));
    }
}

fn machine(value: &Value) -> String {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("?");
    let cores = value.get("cores").and_then(Value::as_u64).unwrap_or(0);
    format!(
        "peers measured on {} ({cores} cores), {}; they are evaluated after their runs, which costs them no time",
        text("cpu"),
        text("kernel")
    )
}

impl Measured {
    fn of(value: &Value) -> Result<Self, String> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| value.get(name).and_then(Value::as_f64).ok_or(format!("no number {name}"));
        let whole = |name: &str| value.get(name).and_then(Value::as_u64).ok_or(format!("no number {name}"));
        let point = |point: &Value| {
            let number = |name: &str| point.get(name).and_then(Value::as_f64);
            let (accuracy, loss) = (number("accuracy"), number("loss"));
            Some(Evaluated { t: number("t")?, samples: number("samples")?, accuracy, loss })
        };
        let curve: Vec<Evaluated> = value
            .get("curve")
            .and_then(Value::as_array)
            .map(|points| points.iter().filter_map(point).collect())
            .unwrap_or_default();
        let mut figures = BTreeMap::from([("time_s".to_owned(), number("wall_s")?)]);
        let mut put = |name: &str, figure: Option<f64>| {
            figures
                .extend(figure.filter(|figure| figure.is_finite()).map(|figure| (name.to_owned(), figure)));
        };
        let optional = |name: &str| value.get(name).and_then(Value::as_f64);
        put("samples_per_s", Some(number("samples_per_s")?));
        put("samples", optional("samples"));
        put("waiting", optional("wait_share"));
        put("bytes_sent", optional("bytes_per_worker"));
        put("bytes_received", optional("bytes_received_per_worker"));
        put("test_accuracy", curve.last().and_then(|point| point.accuracy));
        put("test_loss", curve.last().and_then(|point| point.loss));
        let mut reached = BTreeMap::new();
        for (target, hit) in value.get("reached").and_then(Value::as_object).into_iter().flatten() {
            let number = |name: &str| hit.get(name).and_then(Value::as_f64);
            reached.extend(number("t").zip(number("samples")).map(|hit| (target.clone(), hit)));
        }
        Ok(Self {
            peer: text("peer").ok_or("no field peer")?,
            workers: whole("workers")?,
            seed: whole("seed")?,
            rate: number("rate")?,
            stragglers: text("stragglers").unwrap_or_else(|| "none".to_owned()),
            condition: text("condition"),
            figures,
            reached,
            curve,
        })
    }

    /// When and with how many samples the target was reached.
    fn hit(&self, target: f64) -> Option<(f64, f64)> {
        let named = |(name, hit): (&String, &(f64, f64))| (name.parse() == Ok(target)).then_some(*hit);
        let seen = || {
            let first =
                self.curve.iter().find(|point| point.accuracy.is_some_and(|share| share >= target))?;
            Some((first.t, first.samples))
        };
        self.reached.iter().find_map(named).or_else(seen)
    }
}

impl Invited<'_> {
    /// Puts the peers beside the contestants, condition by condition.
    pub(crate) fn join(
        &self,
        comparison: &Comparison,
        folder: &Path,
        standing: &mut Standing,
    ) -> Result<(), LabError> {
        let (mut all, mut chosen_at) = (Lines::default(), BTreeMap::new());
        for place in 0..standing.rows.len() {
            let config = comparison.config(0, place)?;
            let row = &standing.rows[place];
            let guests = Guests { comparison, config: &config, row, folder };
            let entries = match self {
                Self::Nobody => return Ok(()),
                Self::Rows(lines) => guests.of_lines(lines),
                Self::Host(host) => guests.measured(*host, &mut all, &mut chosen_at),
            };
            let row = &mut standing.rows[place];
            match entries {
                Ok((entries, notes)) => {
                    row.entries.extend(entries);
                    row.notes.extend(notes);
                }
                Err(reason) => row.notes.push(format!("peers: {reason}")),
            }
        }
        if let Self::Host(_) = self {
            let text: String = all.texts.iter().map(|line| format!("{line}\n")).collect();
            make_folder(&folder.join("peers"))?;
            write_whole(&folder.join("peers/peers.jsonl"), text.as_bytes())?;
        }
        Ok(())
    }
}

/// What each peer takes at a condition.
type Rates = BTreeMap<String, (f64, Vec<Try>)>;

/// The peers under one condition.
struct Guests<'a> {
    comparison: &'a Comparison,
    config: &'a Config,
    row: &'a Row,
    folder: &'a Path,
}

impl Guests<'_> {
    fn target(&self) -> Result<f64, String> {
        let share = self.row.column.strip_prefix("accuracy_").and_then(|share| share.parse().ok());
        share.ok_or_else(|| "they are compared by an accuracy, and the target here is a loss".to_owned())
    }

    fn tuning_seeds(&self) -> &[u64] {
        self.comparison.plan.sweep.tuning.as_ref().map_or(&[], |tuning| &tuning.seeds)
    }

    /// Rows that are there: chosen by those of the tuning seeds, or with the one rate that there is.
    fn of_lines(&self, lines: &Lines) -> Result<(Vec<Entry>, Vec<String>), String> {
        let (target, wanted) = (self.target()?, described(self.config)?);
        let fits = |row: &&Measured| match &row.condition {
            Some(condition) => *condition == self.row.name,
            None => row.workers == u64::from(self.row.workers) && row.stragglers == wanted,
        };
        let rows: Vec<&Measured> = lines.rows.iter().filter(fits).collect();
        if rows.is_empty() {
            let workers = self.row.workers;
            return Err(format!("the file has no rows of {workers} workers with stragglers {wanted}"));
        }
        let mut notes: Vec<String> =
            lines.absent.iter().map(|(peer, reason)| format!("{peer}: {reason}")).collect();
        let mut rates = self.choose(&rows, target);
        for row in &rows {
            let own: BTreeSet<u64> = rows
                .iter()
                .filter(|other| other.peer == row.peer)
                .map(|other| other.rate.to_bits())
                .collect();
            if !rates.contains_key(&row.peer) && own.len() == 1 {
                notes.push(format!("{}: only at the rate {}, which was not tuned here", row.peer, row.rate));
                rates.insert(row.peer.clone(), (row.rate, Vec::new()));
            }
        }
        notes.extend(lines.machine.clone());
        Ok((self.entries(&rows, &rates, target), notes))
    }

    /// Has the peers measured: the same tries as contestants, then the seeds that are compared.
    fn measured(
        &self,
        host: &dyn Host,
        all: &mut Lines,
        chosen_at: &mut BTreeMap<String, Rates>,
    ) -> Result<(Vec<Entry>, Vec<String>), String> {
        let target = self.target()?;
        unfit(self.config)?;
        let part = self.folder.join("peers").join(slug(&self.row.name));
        let mut found = Lines::default();
        let tried = &self.comparison.plan.sweep.tuning;
        let numbers: Vec<String> = tried
            .iter()
            .flat_map(|tuning| tuning.combinations())
            .filter_map(|rate| rate.first().map(|(_, value)| value.to_string()))
            .collect();
        // A condition that takes another's rates takes those of its peers too, where they come before it.
        let taken = self.row.tuned_at.as_ref().and_then(|at| chosen_at.get(at)).cloned();
        if numbers.len() > 1 && taken.is_none() {
            for rate in &numbers {
                let folder = part.join(format!("rate-{}", slug(rate)));
                let work = Work { config: self.config, seeds: self.tuning_seeds(), target, folder };
                found.add(host.measure(&work, rate)?, &self.row.name);
            }
        }
        let rows: Vec<&Measured> = found.rows.iter().collect();
        let rates = taken.unwrap_or_else(|| self.choose(&rows, target));
        chosen_at.insert(self.row.name.clone(), rates.clone());
        let mut asked = numbers.first().cloned().unwrap_or_default();
        for (peer, (rate, _)) in &rates {
            asked += &format!(",{peer}={rate}");
        }
        let work =
            Work { config: self.config, seeds: self.comparison.seeds(), target, folder: part.join("runs") };
        found.add(host.measure(&work, &asked)?, &self.row.name);
        let rows: Vec<&Measured> = found.rows.iter().collect();
        let mut notes: Vec<String> =
            found.absent.iter().map(|(peer, reason)| format!("{peer}: {reason}")).collect();
        let mut rates = rates;
        for row in &rows {
            rates.entry(row.peer.clone()).or_insert((row.rate, Vec::new()));
        }
        let entries = self.entries(&rows, &rates, target);
        notes.extend(found.machine.clone());
        all.add(found, &self.row.name);
        Ok((entries, notes))
    }

    /// For each peer that was measured with the tuning seeds its best rate, by the rule of the contestants.
    fn choose(&self, rows: &[&Measured], target: f64) -> Rates {
        let seeds = self.tuning_seeds();
        let mut tries: BTreeMap<&str, BTreeMap<u64, Vec<&Measured>>> = BTreeMap::new();
        for row in rows.iter().filter(|row| seeds.contains(&row.seed)) {
            // The bits of positive numbers are in their order.
            tries.entry(&row.peer).or_default().entry(row.rate.to_bits()).or_default().push(row);
        }
        let chosen = |(peer, rates): (&str, BTreeMap<u64, Vec<&Measured>>)| {
            let mean = |figures: Vec<Option<f64>>| {
                let known: Option<Vec<f64>> = figures.into_iter().collect();
                known
                    .filter(|known| known.len() == seeds.len())
                    .map(|known| known.iter().sum::<f64>() / known.len() as f64)
            };
            let tried: Vec<Try> = rates
                .iter()
                .map(|(rate, rows)| Try {
                    rate: f64::from_bits(*rate).to_string(),
                    time: mean(rows.iter().map(|row| row.hit(target).map(|hit| hit.0)).collect()),
                    loss: mean(rows.iter().map(|row| row.figures.get("test_loss").copied()).collect()),
                })
                .collect();
            let rate = rates.keys().nth(best(&tried)).copied().map_or(0.0, f64::from_bits);
            (peer.to_owned(), (rate, tried))
        };
        tries.into_iter().map(chosen).collect()
    }

    fn entries(&self, rows: &[&Measured], rates: &Rates, target: f64) -> Vec<Entry> {
        let entry = |(peer, (rate, tried)): (&String, &(f64, Vec<Try>))| {
            let of = |seed: &u64| {
                rows.iter().rev().find(|row| row.peer == *peer && row.seed == *seed && row.rate == *rate)
            };
            let run = |seed: &u64| self.run(*seed, of(seed).copied(), target);
            let runs: Vec<RunRow> = self.comparison.seeds().iter().map(run).collect();
            let numbers = || tried.iter().filter_map(|one| one.rate.parse::<f64>().ok());
            let is_edge = numbers().all(|other| other >= *rate) || numbers().all(|other| other <= *rate);
            Entry {
                contestant: peer.clone(),
                family: Family::Outside,
                rate: rate.to_string(),
                tried: tried.clone(),
                at_edge: tried.len() > 1 && is_edge,
                // A peer that fails is told in a note, and is no failure of the comparison.
                may_fail: true,
                figures: Entry::middle(&runs, &self.comparison.columns),
                curves: self
                    .comparison
                    .seeds()
                    .iter()
                    .filter_map(|seed| Some(of(seed)?.curve.clone()))
                    .collect(),
                runs,
            }
        };
        rates.iter().map(entry).collect()
    }

    fn run(&self, seed: u64, row: Option<&Measured>, target: f64) -> RunRow {
        let Some(row) = row else {
            let failure = Some("no measurement at this seed".to_owned());
            return RunRow { seed, folder: "peers".to_owned(), failure, figures: BTreeMap::new() };
        };
        let mut figures = row.figures.clone();
        if let Some((time, samples)) = row.hit(target) {
            let cost = time * f64::from(self.row.workers);
            for (name, figure) in [("time_to_target", time), ("samples_to_target", samples), ("cost", cost)] {
                figures.insert(name.to_owned(), figure);
            }
        }
        RunRow { seed, folder: "peers".to_owned(), failure: None, figures }
    }
}
