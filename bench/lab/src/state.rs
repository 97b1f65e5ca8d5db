//! The folder of a sweep: which sweep it holds, whether it was finished, and files that are whole or not there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Why a sweep cannot go on, or a report cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file or folder cannot be read or written.
    #[error("{} cannot be read or written: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the folder is not what this program writes.
    #[error("{} is damaged ({reason}); remove it, and what has finished in runs is still taken", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The folder holds another sweep.
    #[error("{} holds results of the {kind} \"{there}\", not of \"{given}\"; choose another folder with --out", folder.display())]
    OtherSweep {
        /// What it holds: a sweep or a comparison.
        kind: &'static str,
        /// The folder.
        folder: PathBuf,
        /// The sweep that it holds.
        there: String,
        /// The sweep that was asked for.
        given: String,
    },
    /// The folder holds the sweep with other runs.
    #[error(
        "{} holds results of another version of the {kind} \"{name}\" (other {}, seeds, scale or keys); \
         --resume keeps the runs that are the same and makes the rest, --out chooses another folder",
        folder.display(), if *kind == SWEEP { "axes" } else { "contestants, conditions" }
    )]
    OtherVersion {
        /// What it was asked for.
        kind: &'static str,
        /// The folder.
        folder: PathBuf,
        /// The sweep.
        name: String,
    },
    /// The folder holds an interrupted sweep.
    #[error("{} holds an interrupted {kind}; go on with --resume, or choose another folder with --out", folder.display())]
    Interrupted {
        /// What it was asked for.
        kind: &'static str,
        /// The folder.
        folder: PathBuf,
    },
    /// There is nothing to draw.
    #[error("{} holds no results.json; finish the sweep first (slackline sweep ... --resume)", folder.display())]
    NoResults {
        /// The folder.
        folder: PathBuf,
    },
    /// The sweep was stopped from outside. Finished runs are kept.
    #[error("stopped with {done} of {total} runs finished; go on with --resume")]
    Stopped {
        /// Runs that are finished.
        done: u64,
        /// Runs of the sweep.
        total: u64,
    },
    /// A run's configuration does not resolve, which checking had excluded.
    #[error(transparent)]
    Sweep(#[from] crate::problem::SweepError),
}

impl LabError {
    /// Whether the one who started it can mend it (another folder, `--resume`), and not the world (a full disk).
    #[must_use]
    pub fn is_users(&self) -> bool {
        use io::ErrorKind as Kind;
        match self {
            Self::File { source, .. } => matches!(
                source.kind(),
                Kind::NotFound
                    | Kind::NotADirectory
                    | Kind::IsADirectory
                    | Kind::AlreadyExists
                    | Kind::PermissionDenied
                    | Kind::ReadOnlyFilesystem
                    | Kind::InvalidFilename
                    | Kind::InvalidInput
            ),
            Self::Stopped { .. } => false,
            _ => true,
        }
    }
}

const FILE: &str = "sweep.json";

/// The kinds of what a folder holds.
pub(crate) const SWEEP: &str = "sweep";
pub(crate) const COMPARISON: &str = "comparison";

/// What a folder is taken for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    /// [`SWEEP`] or [`COMPARISON`].
    pub(crate) kind: &'static str,
    pub(crate) name: &'a str,
    /// The fingerprint of what is run.
    pub(crate) runs: u64,
}

/// Takes a folder, or refuses it with the remedy.
pub(crate) fn take(folder: &Path, claim: Claim<'_>, resume: bool) -> Result<(), LabError> {
    let path = folder.join(FILE);
    let Claim { kind, name, runs } = claim;
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(LabError::File { path, source }),
        Ok(text) => {
            let damaged = |reason: String| LabError::Damaged { path: path.clone(), reason };
            let found: Value = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
            let field = |name: &str| found.get(name).and_then(Value::as_str);
            let held = [SWEEP, COMPARISON].into_iter().find_map(|kind| Some((kind, field(kind)?)));
            let (held, there) = held.ok_or_else(|| damaged("it names no sweep".to_owned()))?;
            let folder = folder.to_owned();
            if (held, there) != (kind, name) {
                let kind = held;
                let (there, given) = (there.to_owned(), name.to_owned());
                return Err(LabError::OtherSweep { kind, folder, there, given });
            }
            if field("runs") != Some(format!("{runs:016x}").as_str()) && !resume {
                return Err(LabError::OtherVersion { kind, folder, name: name.to_owned() });
            }
            if field("state") != Some("complete") && !resume {
                return Err(LabError::Interrupted { kind, folder });
            }
        }
    }
    note(folder, claim, "running")
}

/// Notes that every run was made.
pub(crate) fn complete(folder: &Path, claim: Claim<'_>) -> Result<(), LabError> {
    note(folder, claim, "complete")
}

fn note(folder: &Path, claim: Claim<'_>, state: &str) -> Result<(), LabError> {
    let runs = format!("{:016x}", claim.runs);
    let text = format!("{:#}\n", json!({ claim.kind: claim.name, "runs": runs, "state": state }));
    make_folder(folder)?;
    write_whole(&folder.join(FILE), text.as_bytes())
}

pub(crate) fn make_folder(folder: &Path) -> Result<(), LabError> {
    fs::create_dir_all(folder).map_err(|source| LabError::File { path: folder.to_owned(), source })
}

/// Writes a file under another name and renames it, so that it is whole or not there.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), LabError> {
    let unfinished = path.with_extension("unfinished");
    let write = || {
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|source| LabError::File { path: path.to_owned(), source })
}
