//! One combination of size and counts, and the configuration that it stands for.

use clap::ValueEnum;
use slackline_core::config::{Config, Layer, Resolved, SET_LAYER, Value};
use slackline_core::ids::ServerId;
use slackline_core::optimizer::Rule;

use super::BenchError;

/// Learning rate of the servers. With gradients of ones, every value is minus the rate times the version, which is checked.
pub const RATE: f32 = 1e-6;

/// Values of one example of the dataset, and its classes: the ends of the model that makes up the size.
const INPUTS: u64 = 64;
const CLASSES: u64 = 10;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Size of the model in MiB of f32, at least 1.
    pub mib: u64,
    /// Workers that push and pull at once.
    pub workers: u32,
    /// Servers that the model is spread over.
    pub servers: u32,
    /// Rounds that are measured, after two that are not.
    pub rounds: u32,
    /// What a round is.
    pub way: Way,
    /// Keys of the configuration over those of the cell, as `KEY=VALUE` with a TOML literal.
    pub sets: Vec<String>,
}

/// What a worker does in a round, with whole models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// A push and a pull.
    #[default]
    Both,
    /// A push.
    Push,
    /// A pull.
    Pull,
}

impl Way {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Push => "push",
            Self::Pull => "pull",
        }
    }
}

impl Cell {
    /// The configuration, the same in every process of the cell.
    ///
    /// # Errors
    /// A value that is not allowed, of the cell or of its `sets`.
    pub fn resolve(&self) -> Result<Resolved, BenchError> {
        let [first, second] = hidden_widths(self.mib);
        let own = [
            format!("workers={}", self.workers),
            format!("servers={}", self.servers),
            "data.dataset=\"digits\"".to_owned(),
            "model.kind=\"mlp\"".to_owned(),
            format!("model.widths=[{first}, {second}]"),
            "train.epochs=1".to_owned(),
            "train.batch=1".to_owned(),
            "consistency.policy=\"asp\"".to_owned(),
            "optimizer.kind=\"sgd\"".to_owned(),
            format!("optimizer.rate={RATE}"),
            // Transfers alone do not renew a lease, and nobody dies here.
            "cluster.lease_s=120.0".to_owned(),
        ];
        let layer = |name: &str, sets: &[String]| {
            let values = sets.iter().map(|set| key_value(set)).collect::<Result<_, _>>();
            values.map(|values| Layer { name: name.to_owned(), values })
        };
        let layers = [layer("cell", &own)?, layer(SET_LAYER, &self.sets)?];
        Config::resolve(&layers).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            BenchError::Config(lines.join("; "))
        })
    }
}

/// What one server of a cell has, and what it may have, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Values and the optimizer's memory of the largest server.
    pub state: u64,
    /// That, and what each worker may make it hold (`transport.session_bytes`), and a tenth of both.
    pub limit: u64,
}

impl Cell {
    /// What its largest server may have in memory.
    ///
    /// # Errors
    /// As for [`Cell::resolve`].
    pub fn allowed(&self) -> Result<Allowed, BenchError> {
        let config = self.resolve()?.config;
        let arrays = match config.server_optimizer().rule {
            Rule::Sgd => 1,
            Rule::Momentum { .. } => 2,
        };
        let partition = config.partition();
        let keys = |server| partition.shards_on(ServerId(server)).map(|(_, keys)| keys.len).sum::<u64>();
        let state = arrays * 4 * (0..self.servers).map(keys).max().unwrap_or_default();
        let held = config.transport.session_bytes.saturating_mul(self.workers.into());
        Ok(Allowed { state, limit: state.saturating_add(held) / 10 * 11 })
    }
}

fn key_value(set: &str) -> Result<(String, Value), BenchError> {
    let pair = set.split_once('=').and_then(|(key, literal)| {
        let value = Value::from_literal(literal).unwrap_or_else(|| Value::Text(literal.to_owned()));
        Some((key.trim().to_owned(), value)).filter(|(key, _)| !key.is_empty())
    });
    pair.ok_or_else(|| BenchError::Config(format!("{set} is not KEY=VALUE")))
}

/// Widths of two hidden layers that bring the model to the wanted size but for a thousandth, from below.
fn hidden_widths(mib: u64) -> [u64; 2] {
    let wanted = mib.max(1) * (1 << 18);
    let first = wanted.isqrt() * 19 / 20;
    let (before, each) = ((INPUTS + 1) * first + CLASSES, first + 1 + CLASSES);
    [first, wanted.saturating_sub(before) / each]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_the_size_it_names() {
        for mib in [1, 4, 40, 400, 4000] {
            let cell = Cell { mib, workers: 2, servers: 2, rounds: 1, way: Way::Both, sets: Vec::new() };
            let (wanted, is) = (mib << 18, cell.resolve().unwrap().config.layout().len());
            assert!(is <= wanted && wanted - is <= wanted / 400, "{mib} MiB: {is} values");
        }
    }

    #[test]
    fn momentum_doubles_the_state_and_every_worker_adds_its_part() {
        let cell = |workers, set: &str| {
            Cell { mib: 10, workers, servers: 2, rounds: 1, way: Way::Both, sets: vec![set.to_owned()] }
                .allowed()
                .unwrap()
        };
        let (plain, momentum) = (cell(1, "optimizer.kind=\"sgd\""), cell(3, "optimizer.kind=\"momentum\""));
        assert_eq!(momentum.state, 2 * plain.state);
        assert!(plain.state.abs_diff(5 << 20) < 5 << 13, "{plain:?}");
        assert_eq!(momentum.limit, (momentum.state + (3 << 26)) / 10 * 11);
    }

    #[test]
    fn what_is_set_wins_over_the_cell() {
        let sets = vec!["transport.streams=7".to_owned(), "consistency.policy=bsp".to_owned()];
        let cell = Cell { mib: 1, workers: 1, servers: 1, rounds: 1, way: Way::Both, sets };
        assert_eq!(cell.resolve().unwrap().config.transport.streams, 7);
        let wrong = Cell { sets: vec!["transport.streams".to_owned()], ..cell };
        assert!(matches!(wrong.resolve(), Err(BenchError::Config(_))));
    }
}
