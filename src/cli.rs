//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use slackline_net::keys::Days;

/// Trains models with sharded parameter servers and workers that may run ahead of each other by a bounded number of iterations.
#[derive(Debug, Parser)]
#[command(name = "slackline", version)]
pub(crate) struct Cli {
    /// What is logged to standard error: off, error, warn, info, debug, trace, or a filter such as warn,slackline_net=debug.
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole experiment on this machine: servers, workers, throw-away keys, summary.
    Run(RunArgs),
    /// Run the same experiment in virtual time: the same cores and gradients, simulated machines and links.
    Sim(SimArgs),
    /// Run an experiment over many configurations, draw its report, and judge its expectations.
    Sweep(SweepArgs),
    /// Compare contestants under conditions, each at its own tuned rate, and say who wins.
    Compare(CompareArgs),
    /// Run a cluster of real processes, do to it what a plan says, and prove afterwards that nothing was lost.
    Chaos(ChaosArgs),
    /// Draw the report of a sweep or a comparison again.
    Report(ReportArgs),
    /// Replay the traces of a run against the definition of its policy; exits with 1 when it was broken.
    CheckTrace(CheckTraceArgs),
    /// Make a timeline of the traces of a run, for Perfetto or Chrome.
    TraceExport(TraceExportArgs),
    /// Run one server of a cluster.
    Server(ServerArgs),
    /// Run one candidate for the coordinator, where cluster.store is etcd; one of them leads, the others stand by.
    Coordinator(CoordinatorArgs),
    /// Run one worker; any number, at any time.
    Worker(WorkerArgs),
    /// Show who is connected, each worker's clock, and who waits for whom.
    Status(StatusArgs),
    /// Tell all servers of a cluster to end, whether the run is over or not.
    Stop(StopArgs),
    /// Make, list, renew and revoke the keys of a cluster.
    Keys {
        /// What to do.
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// Look at a configuration.
    Config {
        /// What to do.
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

/// A configuration and what is said over it.
#[derive(Clone, Debug, Args)]
pub(crate) struct Configured {
    /// The configuration file; configs/reference.toml explains every key.
    #[arg(value_name = "CONFIG")]
    pub(crate) file: PathBuf,
    /// Set a key over the file and the environment, such as consistency.staleness=4; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Folder of the results; the same as --set out=DIR.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<String>,
    /// What everything random follows from; the same as --set seed=N.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// The same for a process of a cluster, which shows its keys to the others.
#[derive(Clone, Debug, Args)]
pub(crate) struct Clustered {
    #[command(flatten)]
    pub(crate) configured: Configured,
    /// Folder of the keys; the same as --set cluster.keys=DIR.
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<String>,
}

/// `slackline run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) configured: Configured,
    /// Trace every pull and push of each shard into trace/ of the results, for `check-trace` and `trace-export`.
    #[arg(long)]
    pub(crate) trace: bool,
    /// Go on from the newest checkpoint of this folder or URL: that of an earlier run's results, or its checkpoints.
    #[arg(long, value_name = "DIR", conflicts_with = "fresh")]
    pub(crate) resume: Option<String>,
    /// Remove the checkpoints that an earlier run has left among the results.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Record every push of every worker with its values in this folder, which grows by the model's size with every iteration.
    #[arg(long, value_name = "DIR")]
    pub(crate) push_log: Option<PathBuf>,
    /// Each process in a network namespace of its own, which bench/peers/netns.sh has made: workers first, then servers.
    #[arg(long, hide = true)]
    pub(crate) netns: bool,
    /// Here only to be refused with a reason.
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) keys: Option<String>,
}

/// `slackline sim`.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    #[command(flatten)]
    pub(crate) configured: Configured,
    /// Compute no gradients: throughput, waiting, staleness and bytes only.
    #[arg(long)]
    pub(crate) timing_only: bool,
    /// Threads that compute gradients; all processors by default. It changes no figure.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
}

/// `slackline sweep`.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// The sweep file; configs/experiments has some to begin with.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Folder of the results: results.csv, results.json, report.html, and every run.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: String,
    /// Exit with 1 when an expectation of the file does not hold.
    #[arg(long)]
    pub(crate) check: bool,
    /// Runs at once; all processors for simulated ones, one for real ones. It changes no result.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) jobs: Option<u32>,
    /// Go on with a sweep that was interrupted or has changed; finished runs are kept.
    #[arg(long)]
    pub(crate) resume: bool,
    /// scale=NAME takes the sweep at one of its scales; any other key is set for every run. Can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
}

/// `slackline compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The comparison file; configs/experiments/ps-vs-allreduce.toml is one.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Folder of the results: results.csv, results.json, report.html, and every run.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: String,
    /// Exit with 1 when an expectation of the file does not hold.
    #[arg(long)]
    pub(crate) check: bool,
    /// In virtual time, which is the default where the file does not say.
    #[arg(long = "virtual", conflicts_with = "real")]
    pub(crate) in_virtual_time: bool,
    /// With real processes on this machine; conditions that cannot be made here are skipped with a line.
    #[arg(long)]
    pub(crate) real: bool,
    /// Runs at once; all processors for simulated ones, one for real ones. It changes no result.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) jobs: Option<u32>,
    /// Go on with a comparison that was interrupted or has changed; finished runs are kept.
    #[arg(long)]
    pub(crate) resume: bool,
    /// scale=NAME takes the comparison at one of its scales; any other key is set for every run. Can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Put other programs beside the contestants: from a file that bench/peers/run.py wrote, or measured now. Real runs only.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "not given, given alone, given with a file")]
    pub(crate) with_peers: Option<Option<PathBuf>>,
}

/// `slackline chaos`.
#[derive(Debug, Args)]
pub(crate) struct ChaosArgs {
    /// The configuration of the cluster; configs/chaos/cluster.toml is one.
    #[arg(value_name = "CONFIG")]
    pub(crate) file: PathBuf,
    /// What befalls it; configs/chaos/rough.toml is one.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: PathBuf,
    /// What the times and victims of the faults follow from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// scale=NAME takes the plan at one of its scales; any other key is set over the configuration. Can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Folder of the results: chaos.json, and a folder for each of the two runs; what they left there before is removed.
    #[arg(long, value_name = "DIR", default_value = "out/chaos")]
    pub(crate) out: PathBuf,
    /// Exit with 1 also when throughput, stalls or accuracy are not as aimed at, which depends on what else the machine does.
    #[arg(long)]
    pub(crate) check_timing: bool,
}

/// `slackline report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Folder of the results of a sweep or a comparison.
    #[arg(value_name = "DIR")]
    pub(crate) dir: String,
}

/// `slackline check-trace`.
#[derive(Debug, Args)]
pub(crate) struct CheckTraceArgs {
    /// Folder of a run that was made with --trace.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// `slackline trace-export`.
#[derive(Debug, Args)]
pub(crate) struct TraceExportArgs {
    /// Folder of a run that was made with --trace.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The timeline's file; by default timeline.json beside the traces.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Largest size in MB; a longer run is thinned to fit.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) megabytes: u64,
}

/// `slackline server`.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    pub(crate) clustered: Clustered,
    /// Which server of cluster.addresses this is, from 0; server 0 is the coordinator, unless cluster.store is etcd.
    #[arg(long, value_name = "N")]
    pub(crate) index: u32,
    /// Address to bind, HOST:PORT; port 0 lets the system choose. By default that of cluster.addresses.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) bind: Option<String>,
    /// Address that others reach this server at, HOST or HOST:PORT, where it is not the one that is bound.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) advertise: Option<String>,
    /// Remove what an earlier process of this server, or an earlier run, has left in the folder; without it, the server goes on with that.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Go on from the newest checkpoint of this folder or URL; by default of checkpoint.at. What a run that went on from one has left in the
    /// folder is newer, and the server goes on with that: with --fresh from the checkpoint.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "")]
    pub(crate) resume: Option<String>,
    /// Trace every pull and push of each shard into trace/ of the results.
    #[arg(long, hide = true)]
    pub(crate) trace: bool,
    /// End when standard input ends: for a process that starts this one.
    #[arg(long, hide = true)]
    pub(crate) leash: bool,
    /// Go on with what the process before this one has left: for a process that starts this one again.
    #[arg(long, hide = true, requires = "leash")]
    pub(crate) again: bool,
}

/// `slackline coordinator`.
#[derive(Debug, Args)]
pub(crate) struct CoordinatorArgs {
    #[command(flatten)]
    pub(crate) clustered: Clustered,
    /// Which candidate of cluster.coordinators this is, from 0.
    #[arg(long, value_name = "N")]
    pub(crate) index: u32,
    /// Address to bind, HOST:PORT. By default that of cluster.coordinators.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) bind: Option<String>,
    /// Remove what etcd has of an earlier run of this configuration, unless another candidate leads it; without it, the run goes on with that.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Where etcd has nothing of the run, or with --fresh, go on from the newest checkpoint of this folder or URL; by default of checkpoint.at.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "")]
    pub(crate) resume: Option<String>,
}

/// `slackline worker`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) clustered: Clustered,
    /// Record every push with its values, and every answer, in this file, which grows by the model's size with every iteration.
    #[arg(long, value_name = "FILE")]
    pub(crate) push_log: Option<PathBuf>,
    /// End when standard input ends: for a process that starts this one.
    #[arg(long, hide = true)]
    pub(crate) leash: bool,
}

/// `slackline status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) clustered: Clustered,
    /// Role to ask as: observer or admin.
    #[arg(long, value_name = "ROLE", default_value = "observer")]
    pub(crate) role: String,
}

/// `slackline stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) clustered: Clustered,
    /// Why; servers and workers name it as they end.
    #[arg(long, value_name = "TEXT", default_value = "an admin said so")]
    pub(crate) reason: String,
}

/// How many days something holds.
fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=36_500)
}

/// `slackline keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Make an authority and one certificate for each role (server, worker, observer, admin).
    Init {
        /// Folder to make them in.
        dir: PathBuf,
        /// Days that the certificates hold.
        #[arg(long, value_name = "N", default_value_t = Days::default().certificates, value_parser = days())]
        days: u32,
        /// Days that the authority holds; certificates never outlive it.
        #[arg(long, value_name = "N", default_value_t = Days::default().authority, value_parser = days())]
        authority_days: u32,
    },
    /// List authorities and certificates: whose, serial, until when, in use or revoked.
    Show {
        /// Folder of the keys: the authority's, or a machine's copy.
        dir: PathBuf,
    },
    /// Make a certificate for one machine, which can be revoked alone, in DIR/machines/NAME: copy that folder there.
    Issue {
        /// Folder of the authority.
        dir: PathBuf,
        /// What the machine is to be: server, worker, observer or admin.
        #[arg(long, value_name = "ROLE")]
        role: String,
        /// The machine's name, as logs are to show it.
        #[arg(long, value_name = "NAME")]
        name: String,
        /// Days that the certificate holds.
        #[arg(long, value_name = "N", default_value_t = Days::default().certificates, value_parser = days())]
        days: u32,
    },
    /// Make new certificates and keys in place; the old ones stay good until they expire or are revoked.
    Renew {
        /// Folder of the authority.
        dir: PathBuf,
        /// A role, or the name of a machine; all by default.
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Days that the certificates hold.
        #[arg(long, value_name = "N", default_value_t = Days::default().certificates, value_parser = days())]
        days: u32,
    },
    /// Take a certificate back: running processes close its connections as soon as they have the new revoked.pem.
    Revoke {
        /// Folder of the authority.
        dir: PathBuf,
        /// A serial, a certificate's file, or a role or name with all its certificates.
        #[arg(value_name = "WHICH")]
        what: String,
    },
    /// Replace the authority: make a new one beside the old, renew, copy, then --finish.
    Rotate {
        /// Folder of the authority.
        dir: PathBuf,
        /// End the rotation: trust the newest authority alone.
        #[arg(long)]
        finish: bool,
        /// Days that the new authority holds.
        #[arg(long, value_name = "N", default_value_t = Days::default().authority, value_parser = days())]
        authority_days: u32,
    },
}

/// `slackline config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report every problem of a configuration with file, key, value and what is allowed.
    Check(Configured),
    /// Print the resolved configuration and where each value comes from.
    Show(Configured),
    /// Print every key with its unit, default and effect.
    Reference,
}
