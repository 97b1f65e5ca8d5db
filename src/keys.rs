//! The throw-away keys of `slackline run`: a folder that goes with the process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

/// What the folder's name begins with; the process's number follows.
const PREFIX: &str = "slackline-keys-";

/// Makes a folder for keys in `place`, and removes those that runs of the same user left when they were killed.
pub(crate) fn throw_away(place: &Path) -> io::Result<TempDir> {
    let made =
        tempfile::Builder::new().prefix(&format!("{PREFIX}{}-", std::process::id())).tempdir_in(place)?;
    let user = fs::symlink_metadata(made.path())?.uid();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(process_of);
        let is_ours = || entry.metadata().is_ok_and(|entry| entry.is_dir() && entry.uid() == user);
        if process.is_some_and(is_gone) && is_ours() {
            // Another run may be removing it too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(made)
}

/// The number of the process that made a folder of this name.
fn process_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

/// Whether no such process is there any more; false where the system does not show its processes.
fn is_gone(process: u32) -> bool {
    let processes = Path::new("/proc");
    processes.join("self").exists() && !processes.join(process.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_process_that_is_gone_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let mine = format!("{PREFIX}{}-abc", std::process::id());
        // No process has so large a number.
        let (stale, file) = (format!("{PREFIX}4294967295-abc"), format!("{PREFIX}4294967294-abc"));
        let others = [mine.as_str(), "slackline-keys-abc", "slackline-keys-x-abc", "keys"];
        for name in others {
            fs::create_dir(at(name)).unwrap();
        }
        fs::create_dir_all(at(&stale).join("keys")).unwrap();
        fs::write(at(&stale).join("keys/ca.key"), "secret").unwrap();
        fs::write(at(&file), "no folder").unwrap();
        let made = throw_away(place.path()).unwrap();
        assert!(made.path().starts_with(place.path()));
        assert_eq!(at(&stale).exists(), !is_gone(u32::MAX), "removed where processes are shown");
        assert!(others.iter().all(|name| at(name).exists()) && at(&file).exists());
    }
}
