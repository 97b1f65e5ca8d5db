//! What is looked at before a run starts anything: what was asked for that cannot be, and where it goes on.

use std::path::Path;

use slackline_checkpoint::{Damage, Manifest};
use slackline_core::config::{Config, Resolved, SET_LAYER};
use slackline_core::ids::ServerId;
use slackline_server::files::CONFIGURATION;

use crate::configuration;
use crate::failure::Failure;

/// What the name of a push log ends with.
pub(super) const PUSH_LOG: &str = "pushes";

/// What a run decides by itself, whatever the file says, and what it does there.
const OWN: [(&str, &str); 5] = [
    ("cluster.keys", "makes its own keys"),
    ("cluster.addresses", "chooses its own addresses"),
    ("cluster.exit_when_done", "ends its servers itself"),
    ("sync.listen", "lets its workers listen on the loopback only"),
    ("sync.advertise", "chooses its own addresses"),
];

/// An empty folder for the push logs. Those of another run would be continued.
pub(super) fn push_log_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == PUSH_LOG) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The checkpoints that a run goes on from: those of the folder itself, or of the results that it holds. Looked at before anything starts.
pub(super) fn checkpoints_in(at: &str, resolved: &Resolved) -> Result<(String, Manifest), Failure> {
    let among_results = Path::new(at).join(slackline_server::CHECKPOINTS);
    let at = if among_results.is_dir() { among_results.display().to_string() } else { at.to_owned() };
    match slackline_server::resume(&at, resolved) {
        Ok(newest) => Ok((at, newest)),
        Err(error) => {
            let is_other = matches!(error.damage(), Some(Damage::OtherConfig { .. }));
            let differences = if is_other { differences_from(&at, resolved) } else { String::new() };
            Err(Failure::user(format!("--resume: {error}{differences}")))
        }
    }
}

/// What is configured otherwise than in the results that the checkpoints lie among, where they do.
fn differences_from(at: &str, resolved: &Resolved) -> String {
    let file = Path::new(at).with_file_name(CONFIGURATION);
    let Ok(former) = configuration::load(&file, &[], []) else { return String::new() };
    let differences = resolved.training_differences(&former);
    let named = differences.iter().map(|(key, now, then)| format!("{key} is {now}, and was {then}"));
    let named: Vec<String> = named.collect();
    if named.is_empty() { String::new() } else { format!(" ({})", named.join("; ")) }
}

/// What was set by hand must have an effect; in a file, these are for the daemons.
pub(super) fn refuse_own(resolved: &Resolved) -> Result<(), Failure> {
    for (key, own) in OWN {
        if resolved.origin(key) == Some(SET_LAYER) {
            return Err(Failure::user(format!(
                "--set {key}: has no effect, since `run` {own}; leave it out"
            )));
        }
    }
    refuse_apart(&resolved.config)
}

/// A run on one machine has its coordinator on server 0: where the machine is lost, nothing is left that another one could coordinate.
pub(crate) fn refuse_apart(config: &Config) -> Result<(), Failure> {
    if config.coordinator() == ServerId(0) {
        return Ok(());
    }
    Err(Failure::user(
        "cluster.store: a run on one machine keeps its memory there; set it to \"local\", or start `slackline coordinator`, `server` and \
         `worker` on several machines",
    ))
}
