//! `loopback`: how fast workers push and pull, between real processes on this machine. `loopback --help` says what can be asked.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use slackline_bench::loopback::raw::Carrier;
use slackline_bench::loopback::{self, Beside, Cell, Way, Where};
use slackline_bench::{BenchError, Spread};

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
    /// What a round is: a push and a pull, or one of them.
    #[arg(long, value_enum, default_value_t = Way::Both)]
    one_way: Way,
    /// Instead: carry the bytes of each cell's rounds one way, over bare QUIC streams, as pushes and as pulls, in turns. Counts are then of
    /// one worker and one server.
    #[arg(long, conflicts_with_all = ["pushes", "within_limit", "one_way"])]
    raw: bool,
    /// With --raw: over plain TCP too, so many MiB, since a bad link may take TCP long.
    #[arg(long, requires = "raw")]
    tcp_mib: Option<u64>,
    /// With --raw: bare bytes only.
    #[arg(long, requires = "raw")]
    bare: bool,
    /// Instead: so many clocks of two workers under bsp, and how long after the second one's push the first one has the values.
    #[arg(long, conflicts_with_all = ["raw", "pushes"])]
    held: Option<u32>,
    /// Instead: let so many workers join, and tell what they cost a server while they do nothing.
    #[arg(long, conflicts_with_all = ["raw", "pushes", "held"])]
    idle: Option<u32>,
    /// With --idle: watch for so many seconds.
    #[arg(long, default_value_t = 10)]
    watch_s: u64,
    /// Words before the command of every server, such as "ip netns exec NAME".
    #[arg(long, default_value = "")]
    server_via: String,
    /// The same for every worker.
    #[arg(long, default_value = "")]
    worker_via: String,
    /// The servers' address, where it is not that of the loopback.
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST.into())]
    bind: IpAddr,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

impl Plan {
    fn place(&self) -> Where {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Where { server_via: words(&self.server_via), worker_via: words(&self.worker_via), bind: self.bind }
    }
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
        bind: IpAddr,
        #[arg(long)]
        out: PathBuf,
    },
    /// One worker of a cell.
    #[command(hide = true)]
    Worker(Client),
    /// Two workers of which one waits for the other.
    #[command(hide = true)]
    HeldWorkers(Client),
    /// All workers of a cell, doing nothing.
    #[command(hide = true)]
    IdleWorkers(Client),
    /// What receives bare bytes.
    #[command(hide = true)]
    RawServer {
        #[command(flatten)]
        raw: Raw,
        #[arg(long)]
        bind: IpAddr,
    },
    /// What sends bare bytes.
    #[command(hide = true)]
    RawClient {
        #[command(flatten)]
        raw: Raw,
        #[arg(long)]
        address: String,
    },
}

/// A process that connects to servers.
#[derive(Debug, Args)]
struct Client {
    #[command(flatten)]
    part: Part,
    #[arg(long, value_delimiter = ',')]
    addresses: Vec<String>,
}

/// One side of bare bytes.
#[derive(Debug, Args)]
struct Raw {
    #[arg(long, value_enum)]
    carrier: Carrier,
    #[arg(long)]
    keys: PathBuf,
    #[arg(long = "set")]
    sets: Vec<String>,
}

impl Raw {
    fn cell(&self) -> Cell {
        Cell { mib: 1, workers: 1, servers: 1, rounds: 1, way: Way::Both, sets: self.sets.clone() }
    }
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
    #[arg(long, value_enum)]
    way: Way,
    #[arg(long)]
    keys: PathBuf,
    #[arg(long = "set")]
    sets: Vec<String>,
}

impl Part {
    fn split(self) -> (Cell, PathBuf) {
        let Self { mib, workers, servers, rounds, way, keys, sets } = self;
        (Cell { mib, workers, servers, rounds, way, sets }, keys)
    }
}

impl Client {
    fn run(self, role: fn(&Cell, Vec<String>, PathBuf) -> Result<(), BenchError>) -> Result<(), BenchError> {
        let (cell, keys) = self.part.split();
        role(&cell, self.addresses, keys)
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.role {
        Some(Role::Server { part, index, bind, out }) => {
            let (cell, keys) = part.split();
            loopback::server::run(&cell, index, bind, keys, out)
        }
        Some(Role::Worker(client)) => client.run(loopback::worker::run),
        Some(Role::HeldWorkers(client)) => client.run(loopback::worker::held::run),
        Some(Role::IdleWorkers(client)) => client.run(loopback::worker::idle::run),
        Some(Role::RawServer { raw, bind }) => {
            loopback::raw::serve(raw.carrier, &raw.cell(), bind, &raw.keys)
        }
        Some(Role::RawClient { raw, address }) => {
            loopback::raw::send(raw.carrier, &raw.cell(), address, raw.keys)
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
    if let Some(clocks) = plan.held {
        return held(plan, clocks);
    }
    if let Some(workers) = plan.idle {
        return idle(plan, workers);
    }
    if plan.raw {
        return raw(plan);
    }
    let (mut all, at) = (Vec::new(), plan.place());
    for &mib in &plan.mib {
        for &servers in &plan.servers {
            for &workers in &plan.workers {
                let rounds = plan.rounds.unwrap_or((PUSHED_MIB / mib).clamp(ROUNDS_MIN, ROUNDS_MAX) as u32);
                let (way, sets) = (plan.one_way, plan.sets.clone());
                let cell = Cell { mib, workers, servers, rounds, way, sets };
                if let Some(pushes) = plan.pushes {
                    stay(&cell, pushes, plan.growth_mib)?;
                    continue;
                }
                all.push(loopback::measure(&cell, &at, plan.repeats)?);
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

/// Bytes one way, bare and as pushes and pulls.
fn raw(plan: &Plan) -> Result<(), BenchError> {
    for &mib in &plan.mib {
        let rounds = plan.rounds.unwrap_or((PUSHED_MIB / mib).clamp(ROUNDS_MIN, ROUNDS_MAX) as u32);
        let cell = Cell { mib, workers: 1, servers: 1, rounds, way: Way::Both, sets: plan.sets.clone() };
        let beside = Beside { tcp_bytes: plan.tcp_mib.map(|mib| mib << 20), with_models: !plan.bare };
        let rows = loopback::beside(&cell, &plan.place(), beside, plan.repeats)?;
        if !plan.json {
            println!("{mib} MiB, {rounds} times");
        }
        print!("{}", loopback::beside_text(&rows, plan.json));
    }
    Ok(())
}

/// A model of 650 values, so that what takes time is the way and not the bytes; what is set wins.
fn small(plan: &Plan, workers: u32, own: &[&str]) -> Cell {
    let sets = ["model.kind=softmax", "model.widths=[]"].iter().chain(own).map(|set| (*set).to_owned());
    let sets = sets.chain(plan.sets.iter().cloned()).collect();
    Cell { mib: 1, workers, servers: 1, rounds: 1, way: Way::Both, sets }
}

/// How long a released pull takes.
fn held(plan: &Plan, clocks: u32) -> Result<(), BenchError> {
    let cell = small(plan, 2, &["consistency.policy=bsp"]);
    let mut all = Vec::new();
    for _ in 0..plan.repeats {
        all.extend(loopback::held(&cell, &plan.place(), clocks)?);
    }
    let Some(spread) = Spread::of(all) else {
        return Err(BenchError::Protocol("no clock was measured".to_owned()));
    };
    println!(
        "a held pull after the push that releases it: {:.0} us [{:.0}..{:.0}], 99 of 100 within {:.0} us",
        spread.median, spread.min, spread.max, spread.p99
    );
    Ok(())
}

/// What workers cost that do nothing.
fn idle(plan: &Plan, workers: u32) -> Result<(), BenchError> {
    // The lease of a real run, of which four renewals fall into one.
    let cell = small(plan, workers, &["cluster.lease_s=10.0"]);
    println!("{:#}", loopback::idle(&cell, Duration::from_secs(plan.watch_s))?.json());
    Ok(())
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
