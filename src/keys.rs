//! `slackline keys`, and the throw-away keys of `slackline run`: a folder that goes with the process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use slackline_net::keys::{self, Certificate, Days, Entry, Listing, State, date};
use tempfile::TempDir;

use crate::cli::KeysCommand;
use crate::failure::Failure;
use crate::print;

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

/// Makes, lists, renews or revokes keys.
pub(crate) fn execute(command: &KeysCommand) -> Result<u8, Failure> {
    let text = match command {
        KeysCommand::Init { dir, days, authority_days } => {
            let days = Days { authority: *authority_days, certificates: *days };
            keys::init_for(dir, days).map_err(Failure::user)?;
            let Days { authority, certificates } = days;
            format!(
                "made an authority (for {authority} days) and the keys of server, worker, observer and admin (for {certificates} \
                 days) in {}\n",
                dir.display()
            )
        }
        KeysCommand::Show { dir } => shown(&keys::list(dir).map_err(Failure::user)?),
        KeysCommand::Issue { dir, role, name, days } => {
            let known = || Failure::user(format!("--role {role}: write server, worker, observer or admin"));
            let role = keys::role(role).ok_or_else(known)?;
            let made = keys::issue(dir, role, name, *days).map_err(Failure::user)?;
            let place = dir.join("machines").join(name);
            format!("{}copy {} to the machine as its cluster.keys\n", made_line(&made), place.display())
        }
        KeysCommand::Renew { dir, name, days } => {
            let made = keys::renew(dir, name.as_deref(), *days).map_err(Failure::user)?;
            made.iter().map(made_line).collect()
        }
        KeysCommand::Revoke { dir, what } => {
            let revoked = keys::revoke(dir, what).map_err(Failure::user)?;
            let lines = revoked.iter().map(|certificate| format!("revoked {certificate}\n"));
            let list = dir.join("revoked.pem");
            lines.chain([format!("copy {} to every machine's cluster.keys\n", list.display())]).collect()
        }
        KeysCommand::Rotate { dir, finish: false, authority_days } => {
            let made = keys::rotate(dir, *authority_days).map_err(Failure::user)?;
            format!(
                "made {made}, until {}; both authorities are trusted now\n\
                 1. copy ca.pem and revoked.pem to every machine; running processes take them by themselves\n\
                 2. `slackline keys renew {1}`, and copy the new certificates and keys\n\
                 3. `slackline keys rotate {1} --finish`, and copy ca.pem and revoked.pem again\n",
                date(made.until),
                dir.display()
            )
        }
        KeysCommand::Rotate { dir, finish: true, .. } => {
            let gone = keys::finish_rotation(dir).map_err(Failure::user)?;
            let lines = gone.iter().map(|authority| format!("{authority} is not trusted any more\n"));
            lines.chain(["copy ca.pem and revoked.pem to every machine\n".to_owned()]).collect()
        }
    };
    print(&text)
}

fn made_line(certificate: &Certificate) -> String {
    format!("made {certificate}, until {}\n", date(certificate.until))
}

/// What a folder holds, as a table.
fn shown(listing: &Listing) -> String {
    let mut text = "authorities that are trusted; the first one signs:\n".to_owned();
    for authority in &listing.authorities {
        text += &format!("  {authority}, until {}\n", date(authority.until));
    }
    text += &format!("{:10} {:16} {:18} {:22} state\n", "role", "name", "serial", "until");
    for Entry { certificate, state } in &listing.certificates {
        let role = certificate.role.map_or("none", |role| role.name());
        let state = match state {
            State::InUse => "in use".to_owned(),
            State::Replaced => "replaced, still good".to_owned(),
            State::Expired => "does not hold today".to_owned(),
            State::Revoked(at) => format!("revoked on {}", date(*at)),
            State::Foreign => "its authority is not trusted".to_owned(),
        };
        let Certificate { name, serial, until, .. } = certificate;
        text += &format!("{role:10} {name:16} {serial:18} {:22} {state}\n", date(*until));
    }
    for (serial, at) in &listing.others_revoked {
        text += &format!("{:10} {:16} {serial:18} {:22} revoked on {}\n", "-", "-", "-", date(*at));
    }
    text
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
