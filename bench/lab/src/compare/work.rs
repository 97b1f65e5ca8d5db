//! The work that peers are given: that of a condition, with the order of the data and the delays of every gradient written out.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use slackline_core::config::Config;
use slackline_core::ids::{BatchIndex, WorkerId};
use slackline_core::model::{DatasetSpec, ModelSpec};
use slackline_core::optimizer::{Rule, Shape};
use slackline_core::schedule::DataOrder;
use slackline_core::stragglers::Slowness;

/// Training samples of Fashion-MNIST, which peers train on.
const SAMPLES: u64 = 60_000;

/// Hidden layers of the peers' network.
const WIDTHS: [u64; 2] = [512, 256];

/// Where a measurement names its seed.
const SEED: &str = "{seed}";

/// One measurement of all peers.
#[derive(Debug)]
pub struct Work<'a> {
    /// The condition.
    pub config: &'a Config,
    /// Every seed of it is one run.
    pub seeds: &'a [u64],
    /// The accuracy whose time counts.
    pub target: f64,
    /// Where everything of it goes.
    pub folder: PathBuf,
}

/// Why peers cannot do the work of this condition, in words.
pub(crate) fn unfit(config: &Config) -> Result<(), String> {
    let is_network = matches!(&config.model, ModelSpec::Mlp { widths } if widths.as_slice() == WIDTHS);
    let is_data = config.data.dataset == DatasetSpec::FashionMnist && config.data.limit.is_none();
    if !is_network || !is_data {
        return Err(
            "they train the MLP 784-512-256-10 on all of Fashion-MNIST (model.kind = \"mlp\", model.widths = [512, 256], \
             data.dataset = \"fashion-mnist\"), and this is another task"
                .to_owned(),
        );
    }
    let is_rule = matches!(config.optimizer.rule, Rule::Sgd | Rule::Momentum { nesterov: false, .. });
    if !is_rule || config.optimizer.weight_decay != 0.0 || config.optimizer.schedule.warmup != 0.0 {
        return Err("they know sgd and momentum, without weight decay and warmup".to_owned());
    }
    if !matches!(config.optimizer.schedule.shape, Shape::Constant | Shape::Linear) {
        return Err("they know the schedules constant and linear".to_owned());
    }
    let simulation = &config.simulation;
    if simulation.bandwidth.is_some() || simulation.latency_s > 0.0 || simulation.loss > 0.0 {
        return Err("they are not put under slowed links".to_owned());
    }
    Ok(())
}

/// The slowness as `bench/peers/run.py` names it.
pub(crate) fn described(config: &Config) -> Result<String, String> {
    let compute = config.stragglers.compute_s;
    match config.stragglers.slowness {
        Slowness::None => Ok("none".to_owned()),
        Slowness::Transient { probability, factor } => {
            Ok(format!("transient:{probability}:{factor}:{compute}"))
        }
        Slowness::Rotating { factor, burst } => Ok(format!("rotating:{factor}:{burst}:{compute}")),
        Slowness::Permanent { factor, count } => Ok(format!("permanent:{factor}:{count}:{compute}")),
        _ => Err("rows of a file have no such stragglers.kind".to_owned()),
    }
}

impl Work<'_> {
    /// What `bench/peers/run.py` is started with.
    #[must_use]
    pub fn arguments(&self, rates: &str) -> Vec<String> {
        let Config { workers, servers, train, optimizer, evaluate, .. } = self.config;
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        let (schedule, last) = match optimizer.schedule.shape {
            Shape::Linear => ("linear", optimizer.schedule.final_share),
            _ => ("constant", 1.0),
        };
        let momentum = if let Rule::Momentum { momentum, .. } = optimizer.rule { momentum } else { 0.0 };
        let evaluations = if evaluate.every_epochs > 0.0 {
            (1.0 / evaluate.every_epochs).round().clamp(1.0, 1000.0)
        } else {
            1.0
        };
        let place = |file: &str| self.folder.join(file).display().to_string();
        let mut arguments: Vec<String> = Vec::new();
        let mut put = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
        put("out", self.folder.display().to_string());
        put("only", "ddp,mxnet".to_owned());
        put("mode", "train".to_owned());
        put("workers", workers.to_string());
        put("servers", servers.to_string());
        put("seeds", seeds.join(","));
        put("epochs", train.epochs.to_string());
        put("batch", train.batch.to_string());
        put("rate", rates.to_owned());
        put("schedule", schedule.to_owned());
        put("final-rate", last.to_string());
        put("momentum", momentum.to_string());
        put("target", self.target.to_string());
        put("evaluations", evaluations.to_string());
        put("order", place(&format!("order-{SEED}.u32")));
        if self.config.stragglers.is_slow() {
            put("delays", place(&format!("delays-{SEED}.csv")));
        }
        if let Some(dir) = &self.config.data.dir {
            put("data-dir", dir.clone());
        }
        arguments
    }

    /// Writes the order of the data and the delays of every seed into the folder.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub fn write_files(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        for seed in self.seeds {
            fs::write(self.path("order", *seed, "u32"), self.order(*seed))?;
            if self.config.stragglers.is_slow() {
                fs::write(self.path("delays", *seed, "csv"), self.delays(*seed))?;
            }
        }
        Ok(())
    }

    /// Removes them again: those of a long run are large, and follow from the configuration.
    pub fn remove_files(&self) {
        for seed in self.seeds {
            // What is not there need not be removed.
            let _ = fs::remove_file(self.path("order", *seed, "u32"));
            let _ = fs::remove_file(self.path("delays", *seed, "csv"));
        }
    }

    fn path(&self, name: &str, seed: u64, end: &str) -> PathBuf {
        self.folder.join(format!("{name}-{seed}.{end}"))
    }

    /// The file of measurements.
    #[must_use]
    pub fn results(&self) -> PathBuf {
        self.folder.join("peers.jsonl")
    }

    /// Sample indices of the whole run, batch after batch, as little-endian u32.
    fn order(&self, seed: u64) -> Vec<u8> {
        let train = &self.config.train;
        let mut order = DataOrder::new(seed, SAMPLES, train.batch, train.epochs);
        let (mut bytes, mut samples) = (Vec::new(), Vec::new());
        for batch in 0..order.batch_count() {
            order.samples(BatchIndex(batch), 1, &mut samples);
            bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
        }
        bytes
    }

    /// The least time of every gradient, as workers of this program wait for it.
    fn delays(&self, seed: u64) -> String {
        let Config { workers, train, stragglers, .. } = self.config;
        let batches = (SAMPLES * train.epochs).div_ceil(train.batch.max(1));
        let mut text = "worker,iteration,seconds\n".to_owned();
        for worker in 0..*workers {
            for clock in 0..batches.div_ceil(u64::from((*workers).max(1))) {
                let seconds = stragglers.seconds(seed, WorkerId(worker), clock, *workers, 1.0);
                // Writing to a text cannot fail.
                let _ = writeln!(text, "{worker},{clock},{seconds}");
            }
        }
        text
    }
}

/// A script of `bench/peers`: below the present folder or one above it, or beside the comparison file's.
#[must_use]
pub fn find_script(name: &str, file: &Path) -> Option<PathBuf> {
    let script = Path::new("bench/peers").join(name);
    let file = file.canonicalize().ok()?;
    let here = std::env::current_dir().ok()?;
    let above = here.ancestors().chain(file.ancestors());
    above.map(|folder| folder.join(&script)).find(|path| path.is_file())
}

#[cfg(test)]
pub(crate) mod tests {
    use slackline_core::config::{Layer, Value};

    use super::*;

    pub(crate) fn config(sets: &[(&str, Value)]) -> Config {
        let text = |text: &str| Value::Text(text.to_owned());
        let mut values = vec![
            ("data.dataset".to_owned(), text("fashion-mnist")),
            ("model.kind".to_owned(), text("mlp")),
            ("model.widths".to_owned(), Value::List(vec![Value::Int(512), Value::Int(256)])),
            ("workers".to_owned(), Value::Int(2)),
            ("servers".to_owned(), Value::Int(1)),
            ("train.batch".to_owned(), Value::Int(100)),
            ("train.epochs".to_owned(), Value::Int(1)),
            ("optimizer.kind".to_owned(), text("momentum")),
            ("optimizer.rate".to_owned(), Value::Float(0.1)),
        ];
        values.extend(sets.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        Config::resolve(&[Layer { name: "a test".to_owned(), values }]).unwrap().config
    }

    #[test]
    fn peers_get_the_order_and_the_delays_of_the_workers() {
        let config = config(&[("stragglers.kind", Value::Text("transient".to_owned()))]);
        let folder = tempfile::tempdir().unwrap();
        let work = Work { config: &config, seeds: &[7], target: 0.8, folder: folder.path().to_owned() };
        work.write_files().unwrap();
        let order = fs::read(folder.path().join("order-7.u32")).unwrap();
        assert_eq!(order.len(), 4 * 60_000);
        let mut samples = Vec::new();
        DataOrder::new(7, 60_000, 100, 1).samples(BatchIndex(3), 1, &mut samples);
        let third = &order[4 * 300..4 * 400];
        assert!(third.chunks(4).zip(&samples).all(|(bytes, sample)| bytes == sample.to_le_bytes()));
        let delays = fs::read_to_string(folder.path().join("delays-7.csv")).unwrap();
        let rows: Vec<&str> = delays.lines().collect();
        assert_eq!((rows[0], rows.len()), ("worker,iteration,seconds", 1 + 2 * 300));
        let expected = config.stragglers.seconds(7, WorkerId(1), 4, 2, 1.0);
        assert_eq!(rows[1 + 300 + 4], format!("1,4,{expected}"));
        work.remove_files();
        assert!(!folder.path().join("delays-7.csv").exists());
    }

    #[test]
    fn peers_get_the_budget_of_the_contestants() {
        let config = config(&[]);
        let work = Work { config: &config, seeds: &[1, 2], target: 0.87, folder: "out".into() };
        let text = work.arguments("0.1,ddp-gloo=0.05").join(" ");
        let expected = "--out out --only ddp,mxnet --mode train --workers 2 --servers 1 --seeds 1,2 --epochs 1 --batch 100 --rate \
                        0.1,ddp-gloo=0.05 --schedule constant --final-rate 1 --momentum 0.9 --target 0.87 --evaluations 1 --order \
                        out/order-{seed}.u32";
        assert_eq!(text, expected);
    }

    #[test]
    fn another_task_is_not_for_them() {
        assert_eq!(unfit(&config(&[])), Ok(()));
        let softmax = config(&[("model.widths", Value::List(vec![Value::Int(16)]))]);
        assert!(unfit(&softmax).unwrap_err().contains("another task"));
        let slowed = config(&[("simulation.latency_s", Value::Float(0.1))]);
        assert_eq!(unfit(&slowed).unwrap_err(), "they are not put under slowed links");
    }
}
