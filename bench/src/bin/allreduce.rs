//! `allreduce`: how fast processes of this machine sum a buffer over QUIC. `allreduce --help` says what can be asked.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use slackline_bench::BenchError;
use slackline_bench::allreduce::{self, Cell};
use slackline_core::collective::Topology;

/// Bytes in MiB that are summed in one cell, where the repetitions are not given; between the least and the most repetitions.
const SUMMED_MIB: u64 = 600;
const REPEATS_MIN: u64 = 5;
const REPEATS_MAX: u64 = 60;

/// Measures the allreduce of a buffer over the loopback device: a table of all combinations of ranks, sizes and topologies.
#[derive(Debug, Parser)]
#[command(name = "allreduce", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    plan: Plan,
}

/// What is measured.
#[derive(Debug, Args)]
struct Plan {
    /// Processes that sum.
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4], value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Vec<u32>,
    /// Sizes of the buffer in MiB of f32.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 40], value_parser = clap::value_parser!(u64).range(1..=4096))]
    mib: Vec<u64>,
    /// Who sends what to whom, as sync.topology; can be repeated.
    #[arg(long = "topology", default_values_t = [Topology::Ring])]
    topologies: Vec<Topology>,
    /// KiB that are summed at once, as sync.bucket_kib; 0 for the whole buffer.
    #[arg(long, default_value_t = 1024)]
    bucket_kib: u64,
    /// Repetitions of a cell; as many as make 600 MiB, 5 to 60, if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

/// What this program starts itself as.
#[derive(Debug, Subcommand)]
enum Role {
    /// One member of a cell.
    #[command(hide = true)]
    Member {
        #[arg(long)]
        ranks: u32,
        #[arg(long)]
        position: u32,
        #[arg(long)]
        mib: u64,
        #[arg(long)]
        topology: Topology,
        #[arg(long)]
        bucket_kib: u64,
        #[arg(long)]
        keys: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.role {
        Some(Role::Member { ranks, position, mib, topology, bucket_kib, keys }) => {
            allreduce::member::run(&Cell { ranks, mib, topology, bucket_kib, repeats: 0 }, position, &keys)
        }
        None => measure(&cli.plan),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("allreduce: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(plan: &Plan) -> Result<(), BenchError> {
    let mut all = Vec::new();
    for &ranks in &plan.ranks {
        for &mib in &plan.mib {
            for &topology in &plan.topologies {
                let usual = (SUMMED_MIB / mib).clamp(REPEATS_MIN, REPEATS_MAX) as u32;
                let repeats = plan.repeats.unwrap_or(usual);
                let cell = Cell { ranks, mib, topology, bucket_kib: plan.bucket_kib, repeats };
                all.push(allreduce::measure(&cell)?);
            }
        }
    }
    if plan.json {
        println!("{:#}", allreduce::json(&all));
    } else {
        print!("{}", allreduce::table(&all));
    }
    Ok(())
}
