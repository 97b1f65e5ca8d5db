//! `loopback`: how fast workers push and pull, between real processes on this machine. `loopback --help` says what can be asked.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use slackline_bench::BenchError;
use slackline_bench::loopback::{self, Cell};

/// Bytes in MiB that a worker pushes in one repetition, where the rounds are not given; between the least and the most rounds.
const PUSHED_MIB: u64 = 400;
const ROUNDS_MIN: u64 = 3;
const ROUNDS_MAX: u64 = 100;

/// What a server may have more in memory after many pushes than after a tenth of them.
const GROWTH_MIB: u64 = 4;

/// Measures push and pull of whole models over the loopback device: a table of all combinations of the sizes and counts.
#[derive(Debug, Parser)]
#[command(name = "loopback", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    plan: Plan,
}

/// What is measured.
#[derive(Debug, Args)]
struct Plan {
    /// Sizes of the model in MiB of f32.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 40], value_parser = clap::value_parser!(u64).range(1..=16_384))]
    mib: Vec<u64>,
    /// Workers at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    workers: Vec<u32>,
    /// Servers that the model is spread over.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    servers: Vec<u32>,
    /// Rounds of a repetition; as many as make 400 MiB a worker, 3 to 100, if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Repetitions of a cell, each with new processes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Set a key of the configuration, such as transport.streams=8 or checkpoint.every_clocks=20; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Fail where a server had more memory than its state, what each worker may make it hold, and a tenth of both.
    #[arg(long)]
    within_limit: bool,
    /// Instead: make so many pushes in each cell, and fail where a server has more memory at the end than after the first tenth.
    #[arg(long, conflicts_with_all = ["rounds", "within_limit"])]
    pushes: Option<u64>,
    /// By how many MiB it may have more.
    #[arg(long, default_value_t = GROWTH_MIB, requires = "pushes")]
    growth_mib: u64,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

/// What this program starts itself as.
#[derive(Debug, Subcommand)]
enum Role {
    /// One server of a cell.
    #[command(hide = true)]
    Server {
        #[command(flatten)]
        part: Part,
        #[arg(long)]
        index: u32,
        #[arg(long)]
        out: PathBuf,
    },
    /// One worker of a cell.
    #[command(hide = true)]
    Worker {
        #[command(flatten)]
        part: Part,
        #[arg(long, value_delimiter = ',')]
        addresses: Vec<String>,
    },
}

/// The cell that a process is part of.
#[derive(Debug, Args)]
struct Part {
    #[arg(long)]
    mib: u64,
    #[arg(long)]
    workers: u32,
    #[arg(long)]
    servers: u32,
    #[arg(long)]
    rounds: u32,
    #[arg(long)]
    keys: PathBuf,
    #[arg(long = "set")]
    sets: Vec<String>,
}

impl Part {
    fn split(self) -> (Cell, PathBuf) {
        let Self { mib, workers, servers, rounds, keys, sets } = self;
        (Cell { mib, workers, servers, rounds, sets }, keys)
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.role {
        Some(Role::Server { part, index, out }) => {
            let (cell, keys) = part.split();
            loopback::server::run(&cell, index, keys, out)
        }
        Some(Role::Worker { part, addresses }) => {
            let (cell, keys) = part.split();
            loopback::worker::run(&cell, addresses, keys)
        }
        None => measure(&cli.plan),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loopback: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(plan: &Plan) -> Result<(), BenchError> {
    let mut all = Vec::new();
    for &mib in &plan.mib {
        for &servers in &plan.servers {
            for &workers in &plan.workers {
                let rounds = plan.rounds.unwrap_or((PUSHED_MIB / mib).clamp(ROUNDS_MIN, ROUNDS_MAX) as u32);
                let cell = Cell { mib, workers, servers, rounds, sets: plan.sets.clone() };
                if let Some(pushes) = plan.pushes {
                    stay(&cell, pushes, plan.growth_mib)?;
                    continue;
                }
                all.push(loopback::measure(&cell, plan.repeats)?);
            }
        }
    }
    if plan.pushes.is_some() {
        return Ok(());
    }
    if plan.json {
        println!("{:#}", loopback::json(&all));
    } else {
        print!("{}", loopback::table(&all));
    }
    match all.iter().find(|figures| plan.within_limit && figures.is_within_limit() != Some(true)) {
        Some(figures) => {
            let Cell { mib, workers, servers, .. } = figures.cell;
            let over = format!(
                "{mib} MiB, {workers} workers, {servers} servers: a server had more memory than it may"
            );
            Err(BenchError::Beyond(over))
        }
        None => Ok(()),
    }
}

/// Many pushes, and what they left in memory.
fn stay(cell: &Cell, pushes: u64, growth_mib: u64) -> Result<(), BenchError> {
    let steady = loopback::steady(cell, pushes)?;
    println!("{:#}", steady.json());
    match steady.growth() {
        Some(growth) if growth <= growth_mib << 20 => Ok(()),
        Some(growth) => Err(BenchError::Beyond(format!("a server grew by {growth} bytes"))),
        None => Err(BenchError::Beyond("the system does not tell the memory of a server".to_owned())),
    }
}
