//! `slackline-link`: runs a command beside network namespaces whose links have a rate, a delay, loss and a bounded queue.

#[cfg(target_os = "linux")]
mod command {
    use std::process::{Command, ExitCode};
    use std::time::Duration;

    use clap::Parser;
    use slackline_link::{Ends, EndsError, Weather, carry};

    /// The status of a run for which the machine has not what it needs, as in `bench/peers/netns.sh`.
    const SKIPPED: u8 = 77;

    /// Runs COMMAND outside of namespaces that are joined by links. The environment tells it how to get in: `LINK_0="ip netns exec ..."` is what
    /// to write before a command that is to run at end 0, `LINK_ADDRESS_0` is its address; the same for every other end.
    #[derive(Debug, Parser)]
    #[command(name = "slackline-link", version)]
    struct Cli {
        /// Namespaces. Each has a link of its own to a switch between all of them.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
        ends: u8,
        /// Rate of each link, each way, in Mbit/s; 0 for as fast as it goes.
        #[arg(long, default_value_t = 0.0)]
        mbit: f64,
        /// How long a packet takes from one end to another, in milliseconds. The round trip is twice that.
        #[arg(long, default_value_t = 0.0)]
        delay_ms: f64,
        /// Share of the packets that are lost on their way, each by itself, each way.
        #[arg(long, default_value_t = 0.0)]
        loss: f64,
        /// The longest time in milliseconds that a packet waits before a link, beyond which it is dropped; a round trip if not given, and at
        /// least 5.
        #[arg(long)]
        queue_ms: Option<f64>,
        /// Bytes of the largest packet.
        #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..))]
        mtu: u16,
        /// Bytes of the largest packet that passes between the ends, if that is less; larger ones vanish, and nobody is told.
        #[arg(long)]
        path_mtu: Option<u16>,
        /// What is lost follows from it.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    }

    fn milliseconds(number: f64) -> Duration {
        Duration::try_from_secs_f64(number / 1e3).unwrap_or(Duration::ZERO)
    }

    pub(super) fn run() -> ExitCode {
        let cli = Cli::parse();
        let queue = cli.queue_ms.unwrap_or(2.0 * cli.delay_ms).max(5.0);
        let weather = Weather {
            rate: (cli.mbit > 0.0).then_some(cli.mbit * 1e6 / 8.0),
            delay: milliseconds(cli.delay_ms),
            loss: cli.loss.clamp(0.0, 1.0),
            queue: milliseconds(queue),
            largest: cli.path_mtu.map(usize::from),
        };
        let (ends, devices) = match Ends::make(cli.ends, cli.mtu) {
            Ok(made) => made,
            Err(EndsError::NotHere(reason)) => {
                println!("skipped: {reason}");
                return ExitCode::from(SKIPPED);
            }
            Err(error) => return failed(&error),
        };
        let counts = match carry(devices, weather, cli.seed) {
            Ok(counts) => counts,
            Err(error) => return failed(&error),
        };
        let [program, arguments @ ..] = &cli.command[..] else { return ExitCode::FAILURE };
        let mut command = Command::new(program);
        command.args(arguments);
        for end in 0..cli.ends {
            command.env(format!("LINK_{end}"), ends.prefix(end));
            command.env(format!("LINK_ADDRESS_{end}"), ends.address(end).to_string());
        }
        let status = command.status();
        let counts = counts();
        eprintln!(
            "link: {} packets passed, {} lost, {} dropped by a full queue",
            counts.passed, counts.lost, counts.full
        );
        match status {
            Ok(status) if status.success() => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => failed(&error),
        }
    }

    fn failed(error: &dyn std::fmt::Display) -> ExitCode {
        eprintln!("slackline-link: {error}");
        ExitCode::FAILURE
    }
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    command::run()
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    println!("skipped: network namespaces are Linux's");
    std::process::ExitCode::from(77)
}
