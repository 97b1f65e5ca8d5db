//! What is logged, to standard error.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::Failure;

/// Starts the log with what `--log` says.
pub(crate) fn start(said: &str) -> Result<(), Failure> {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(filter(said)?).with(lines).init();
    Ok(())
}

/// A level, or levels for parts of the program: `TARGET=LEVEL`, with commas between.
fn filter(said: &str) -> Result<Targets, Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::user(format!(
            "--log {said}: {why}; give off, error, warn, info, debug or trace, or such as warn,slackline_net=debug"
        ))
    };
    // A word alone would pass for a target, all of whose lines are shown, and everything else would be mute.
    for part in said.split(',').map(str::trim) {
        if part.is_empty() || (!part.contains('=') && part.parse::<LevelFilter>().is_err()) {
            return Err(refused(&format_args!("{part:?} is no level")));
        }
    }
    said.replace(' ', "").parse().map_err(|error| refused(&error))
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::ParseError;

    use super::*;

    #[test]
    fn levels_and_filters_are_taken() -> Result<(), ParseError> {
        for said in ["off", "error", "warn", "info", "debug", "trace", "INFO", "slackline_net=debug"] {
            assert_eq!(filter(said), Ok(said.parse()?), "{said}");
        }
        let filter = filter("warn, slackline_net=debug").unwrap();
        assert!(filter.would_enable("slackline_net::connector", &tracing::Level::DEBUG));
        assert!(!filter.would_enable("slackline_worker", &tracing::Level::INFO));
        assert!(filter.would_enable("slackline_worker", &tracing::Level::WARN));
        Ok(())
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for said in ["loud", "", "warn,loud", "slackline_net", "slackline_net=loud", "a=b=c", "???"] {
            let failure = filter(said).unwrap_err();
            assert_eq!(failure.code, crate::failure::USER, "{said}");
            assert!(failure.text.starts_with(&format!("--log {said}: ")), "{}", failure.text);
        }
    }
}
