//! `slackline check-trace` and `slackline trace-export`, and what `slackline run` does with the traces of a former run.

use std::fs;
use std::io;
use std::path::Path;

use slackline_core::trace::FOLDER;

use crate::cli::{CheckTraceArgs, TraceExportArgs};
use crate::failure::{Failure, WORLD};
use crate::print;

/// Replays the traces of a run: 0 when every law held, 1 when one was broken, 2 when they cannot be read.
pub(crate) fn check(args: &CheckTraceArgs) -> Result<u8, Failure> {
    let checked = slackline_trace::check(&args.dir).map_err(Failure::user)?;
    print(&checked.to_string())?;
    Ok(if checked.breach_count() == 0 { 0 } else { WORLD })
}

/// Writes the timeline of a run.
pub(crate) fn export(args: &TraceExportArgs) -> Result<u8, Failure> {
    let bytes_max = args.megabytes.saturating_mul(1_000_000);
    let exported =
        slackline_trace::export(&args.dir, args.out.as_deref(), bytes_max).map_err(Failure::user)?;
    let how = match (exported.every, exported.is_cut) {
        (1, false) => "all iterations".to_owned(),
        (every, false) => format!("one iteration of {every}, to keep within {} MB", args.megabytes),
        (_, true) => format!("the beginning of the run, to keep within {} MB", args.megabytes),
    };
    print(&format!(
        "{}: {how}, {} events, {:.1} MB; open it at https://ui.perfetto.dev or in chrome://tracing\n",
        exported.path.display(),
        exported.events,
        exported.bytes as f64 * 1e-6
    ))
}

/// Removes the traces of a former run from the folder of the results, so that those that are there are of this run.
pub(crate) fn forget(out: &Path) -> io::Result<()> {
    // A folder that is not there has none; one that cannot be read is the servers' to complain about.
    let Ok(entries) = fs::read_dir(out.join(FOLDER)) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "trace") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
