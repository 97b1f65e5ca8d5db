//! The `slackline` command line.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod chaos;
mod child;
mod cli;
mod compare;
mod configuration;
mod daemons;
mod failure;
mod keys;
mod launch;
mod log;
mod observer;
mod progress;
mod simulate;
mod status;
mod stop;
mod summary;
mod sweep;
mod traces;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use slackline_core::config::{Resolved, reference_toml};

use crate::cli::{Cli, Clustered, Command, ConfigCommand, Configured};
use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            say(&format!("{ERROR}{}", failure.text));
            ExitCode::from(failure.code)
        }
    }
}

fn execute(cli: Cli) -> Result<u8, Failure> {
    // Daemons tell what happens; the others only what needs somebody.
    let usual = if matches!(cli.command, Command::Server(_) | Command::Coordinator(_) | Command::Worker(_)) {
        "info"
    } else {
        "warn"
    };
    log::start(cli.log.as_deref().unwrap_or(usual))?;
    match cli.command {
        Command::Run(args) => launch::run(&args, cli.log.as_deref()),
        Command::Sim(args) => simulate::run(&args),
        Command::Sweep(args) => sweep::sweep(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Report(args) => sweep::report(&args),
        Command::CheckTrace(args) => traces::check(&args),
        Command::TraceExport(args) => traces::export(&args),
        Command::Server(args) => daemons::server(&args),
        Command::Coordinator(args) => daemons::coordinator(&args),
        Command::Worker(args) => daemons::worker(&args),
        Command::Status(args) => status::show(&args),
        Command::Stop(args) => stop::stop(&args),
        Command::Keys { command } => keys::execute(&command),
        Command::Config { command } => match command {
            ConfigCommand::Check(configured) => {
                let resolved = resolve(&configured)?;
                print(&format!(
                    "{}: all is well (hash {:016x})\n",
                    configured.file.display(),
                    resolved.hash()
                ))
            }
            ConfigCommand::Show(configured) => print(&resolve(&configured)?.show()),
            ConfigCommand::Reference => print(&reference_toml()),
        },
    }
}

/// What the last words of a process that fails begin with.
const ERROR: &str = "error: ";

/// Says a line on standard error, in one piece: whoever is killed meanwhile has said all of it or nothing.
fn say(text: &str) {
    // Standard error may be closed; there is nobody to tell then.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints to standard output. A reader that has gone (`| head`) is no failure.
fn print(text: &str) -> Result<u8, Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::world(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(0),
    }
}

/// The configuration with everything that was said over it.
fn resolve(configured: &Configured) -> Result<Resolved, Failure> {
    load(configured, configured.all_sets())
}

/// The same for a process of a cluster.
fn resolve_clustered(clustered: &Clustered) -> Result<Resolved, Failure> {
    let mut sets = clustered.configured.all_sets();
    sets.extend(clustered.keys.iter().map(|keys| format!("cluster.keys={}", quoted(keys))));
    load(&clustered.configured, sets)
}

fn load(configured: &Configured, sets: Vec<String>) -> Result<Resolved, Failure> {
    configuration::load(&configured.file, &sets, std::env::vars_os()).map_err(Failure::user)
}

impl Configured {
    /// `--set`, with the short forms written out.
    fn all_sets(&self) -> Vec<String> {
        let mut sets = self.sets.clone();
        sets.extend(self.out.iter().map(|out| format!("out={}", quoted(out))));
        sets.extend(self.seed.iter().map(|seed| format!("seed={seed}")));
        sets
    }
}

/// A text as a TOML literal, so that a folder named `1` or `true` stays a text.
fn quoted(text: &str) -> String {
    slackline_core::config::Value::Text(text.to_owned()).to_string()
}
