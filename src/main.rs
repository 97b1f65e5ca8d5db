//! The `slackline` command line.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod child;
mod cli;
mod configuration;
mod daemons;
mod failure;
mod launch;
mod observer;
mod progress;
mod status;
mod summary;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use slackline_core::config::{Resolved, reference_toml};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command, ConfigCommand, Configured, KeysCommand};
use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // Standard error may be closed; there is nobody to tell then.
            let _ = writeln!(std::io::stderr(), "error: {}", failure.text);
            ExitCode::from(failure.code)
        }
    }
}

fn execute(cli: Cli) -> Result<u8, Failure> {
    // Daemons tell what happens; the others only what needs somebody.
    let usual = if matches!(cli.command, Command::Server(_) | Command::Worker(_)) { "info" } else { "warn" };
    start_log(cli.log.as_deref().unwrap_or(usual))?;
    match cli.command {
        Command::Run(configured) => launch::run(&configured, cli.log.as_deref()),
        Command::Server(args) => daemons::server(&args),
        Command::Worker(args) => daemons::worker(&args),
        Command::Status(args) => status::show(&args),
        Command::Keys { command: KeysCommand::Init { dir } } => {
            slackline_net::keys::init(&dir).map_err(Failure::user)?;
            print(&format!(
                "made an authority and the keys of server, worker, observer and admin in {}\n",
                dir.display()
            ))
        }
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

fn start_log(level: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(level)
        .map_err(|error| Failure::user(format!("--log {level}: {error}; try error, warn, info or debug")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    Ok(())
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
    configuration::load(&configured.file, &configured.all_sets(), std::env::vars_os()).map_err(Failure::user)
}

impl Configured {
    /// `--set`, with the short forms written out.
    fn all_sets(&self) -> Vec<String> {
        let mut sets = self.sets.clone();
        sets.extend(self.out.iter().map(|out| format!("out={}", quoted(out))));
        sets.extend(self.seed.iter().map(|seed| format!("seed={seed}")));
        sets.extend(self.keys.iter().map(|keys| format!("cluster.keys={}", quoted(keys))));
        sets
    }
}

/// A text as a TOML literal, so that a folder named `1` or `true` stays a text.
fn quoted(text: &str) -> String {
    slackline_core::config::Value::Text(text.to_owned()).to_string()
}
