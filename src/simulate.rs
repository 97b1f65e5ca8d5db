//! `slackline sim`: a run in virtual time.

use std::path::{Path, PathBuf};

use slackline_core::wire::Progress;
use slackline_sim::{Options, Outcome, simulate_watched};

use crate::cli::SimArgs;
use crate::failure::Failure;
use crate::progress::Display;
use crate::{print, resolve, summary};

pub(crate) fn run(args: &SimArgs) -> Result<u8, Failure> {
    let resolved = resolve(&args.configured)?;
    let out = resolved.config.out.clone();
    let mut options =
        Options { timing_only: args.timing_only, out: Some(PathBuf::from(&out)), ..Options::default() };
    options.threads = args.threads.map_or(options.threads, |threads| threads as usize);
    let mut display = Display::new();
    let outcome = simulate_watched(&resolved, &options, &mut |progress: &Progress| display.advance(progress));
    display.end();
    let outcome = outcome.map_err(|failure| Failure::of(failure.is_users(), failure))?;
    let text = summary::render(Path::new(&out)).map_err(Failure::world)?;
    print(&(text + &speed(&outcome)))
}

/// How much faster than time.
fn speed(outcome: &Outcome) -> String {
    let Outcome { events, virtual_s, wall_s, .. } = *outcome;
    let rate = events as f64 / wall_s.max(1e-9);
    format!(
        "virtual time   {virtual_s:.2} s, simulated in {wall_s:.2} s; {events} events, {rate:.0} a second\n"
    )
}
