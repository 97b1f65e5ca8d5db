//! What a directory of keys can be wrong with.

use std::fs;
use std::path::Path;

use super::authority::Authority;
use super::*;

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    init(directory.path()).unwrap();
    directory
}

fn failure(directory: &Path, role: Role) -> String {
    Identity::load(directory, role).unwrap_err().to_string()
}

#[test]
fn every_role_can_be_loaded_from_a_new_directory() {
    let directory = directory();
    for expected in Role::ALL {
        assert_eq!(Identity::load(directory.path(), expected).unwrap().role(), expected);
        assert_eq!(role(expected.name()), Some(expected));
    }
    assert_eq!(role("root"), None);
}

#[test]
fn an_authority_is_never_overwritten() {
    let directory = directory();
    let before = fs::read(directory.path().join("ca.pem")).unwrap();
    assert!(matches!(init(directory.path()), Err(KeysError::Exists { .. })));
    assert_eq!(fs::read(directory.path().join("ca.pem")).unwrap(), before);
}

#[test]
fn an_interrupted_start_can_be_repeated() {
    let directory = directory();
    fs::remove_file(directory.path().join("ca.pem")).unwrap();
    fs::write(directory.path().join("worker.key.unfinished"), "half").unwrap();
    init(directory.path()).unwrap();
    Identity::load(directory.path(), Role::Worker).unwrap();
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_a_key() {
    use std::os::unix::fs::PermissionsExt;
    let directory = directory();
    for name in ["ca.key", "server.key", "worker.key", "observer.key", "admin.key"] {
        let mode = fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_missing_directory_says_how_to_make_one() {
    let said = failure(Path::new("no/such/keys"), Role::Worker);
    assert!(said.contains("slackline keys init no/such/keys"), "{said}");
}

#[test]
fn a_file_that_is_no_certificate_is_named() {
    let directory = directory();
    fs::write(directory.path().join("worker.pem"), "hello").unwrap();
    let said = failure(directory.path(), Role::Worker);
    assert!(said.contains("worker.pem holds no certificate"), "{said}");

    fs::write(directory.path().join("server.key"), [0xff, 0, 1]).unwrap();
    let said = failure(directory.path(), Role::Server);
    assert!(said.contains("server.key holds no private key"), "{said}");
}

#[test]
fn a_key_of_another_certificate_is_told_apart() {
    let directory = directory();
    fs::copy(directory.path().join("admin.key"), directory.path().join("worker.key")).unwrap();
    let said = failure(directory.path(), Role::Worker);
    assert!(said.contains("is not the key of"), "{said}");
}

#[test]
fn a_certificate_of_another_authority_is_told_apart() {
    let (mine, theirs) = (directory(), directory());
    for name in ["worker.pem", "worker.key"] {
        fs::copy(theirs.path().join(name), mine.path().join(name)).unwrap();
    }
    let said = failure(mine.path(), Role::Worker);
    assert!(said.contains("wrong key directory"), "{said}");
}

#[test]
fn a_certificate_under_the_name_of_another_role_is_told_apart() {
    let directory = directory();
    for end in ["pem", "key"] {
        let file = |role: &str| directory.path().join(format!("{role}.{end}"));
        fs::copy(file("worker"), file("server")).unwrap();
    }
    let said = failure(directory.path(), Role::Server);
    assert!(said.contains("not a certificate of the role server"), "{said}");
}

#[test]
fn only_servers_and_workers_can_be_connected_to() {
    let directory = directory();
    for role in Role::ALL {
        let can = Identity::load(directory.path(), role).unwrap().can_listen().is_ok();
        assert_eq!(can, matches!(role, Role::Server | Role::Worker), "{role}");
    }
}

#[test]
fn a_worker_of_an_older_version_can_work_but_not_be_connected_to() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, pem, _) = Authority::new(1).unwrap();
    let pair = authority.certify_for(Role::Worker, "worker", 1, false).unwrap();
    for (name, text) in [("ca.pem", pem), ("worker.pem", pair.certificate), ("worker.key", pair.key)] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let worker = Identity::load(directory.path(), Role::Worker).unwrap();
    let said = worker.can_listen().unwrap_err().to_string();
    assert!(said.contains("worker.pem") && said.contains("older version"), "{said}");
}

#[test]
fn a_key_is_not_shown() {
    let directory = directory();
    let shown = format!("{:?}", Identity::load(directory.path(), Role::Admin).unwrap());
    assert_eq!(shown, "Identity { role: Admin, .. }");
}

/// Names and states of what a directory lists.
fn states(directory: &Path) -> Vec<(String, State)> {
    let listing = list(directory).unwrap();
    listing.certificates.into_iter().map(|entry| (entry.certificate.name, entry.state)).collect()
}

#[test]
fn certificates_hold_for_the_days_that_were_asked_for_and_no_longer_than_their_authority() {
    const DAY: i64 = 24 * 3600;
    let directory = tempfile::tempdir().unwrap();
    init_for(directory.path(), Days { authority: 30, certificates: 90 }).unwrap();
    let listing = list(directory.path()).unwrap();
    let authority = &listing.authorities[0];
    assert!((29 * DAY..=30 * DAY).contains(&(authority.until - now())));
    assert!(listing.certificates.iter().all(|entry| entry.certificate.until == authority.until));

    let issued = issue(directory.path(), Role::Worker, "gpu7", 7).unwrap();
    assert!((6 * DAY..=7 * DAY).contains(&(issued.until - now())));
    assert!(issued.from < now(), "another machine's clock may be a little behind");
}

#[test]
fn a_machine_gets_a_directory_that_can_be_copied_as_it_is() {
    let directory = directory();
    let issued = issue(directory.path(), Role::Worker, "gpu7", 7).unwrap();
    let machine = directory.path().join("machines/gpu7");
    let identity = Identity::load(&machine, Role::Worker).unwrap();
    assert_eq!(identity.certificate(), issued);
    assert_eq!(issued.to_string(), format!("worker gpu7 (serial {})", issued.serial));
    assert!(!machine.join("ca.key").exists());

    issue(directory.path(), Role::Server, "gpu7", 7).unwrap();
    let again = issue(directory.path(), Role::Worker, "gpu7", 7).unwrap_err();
    assert!(
        matches!(&again, KeysError::NameTaken { .. }) && again.to_string().contains("keys renew"),
        "{again}"
    );
    let bad = issue(directory.path(), Role::Worker, "../gpu", 7).unwrap_err();
    assert!(matches!(bad, KeysError::BadName { .. }), "{bad}");
    let elsewhere = issue(&machine, Role::Worker, "gpu8", 7).unwrap_err();
    assert!(matches!(elsewhere, KeysError::NoAuthorityKey { .. }), "{elsewhere}");
}

#[test]
fn a_renewed_certificate_leaves_the_old_one_good() {
    let directory = directory();
    let before = Identity::load(directory.path(), Role::Worker).unwrap();
    let renewed = renew(directory.path(), Some("worker"), 90).unwrap();
    assert_eq!(renewed.len(), 1);
    assert_eq!(Identity::load(directory.path(), Role::Worker).unwrap().certificate(), renewed[0]);
    let of_workers: Vec<_> =
        states(directory.path()).into_iter().filter(|(name, _)| name == "worker").collect();
    assert_eq!(of_workers, [("worker".to_owned(), State::InUse), ("worker".to_owned(), State::Replaced)]);
    assert!(before.present().trust.has_signed(&before.present().own.certificate));

    issue(directory.path(), Role::Worker, "gpu7", 7).unwrap();
    assert_eq!(renew(directory.path(), None, 90).unwrap().len(), Role::ALL.len() + 1);
    let unknown = renew(directory.path(), Some("gpu8"), 90).unwrap_err();
    assert!(
        matches!(&unknown, KeysError::Unknown { .. }) && unknown.to_string().contains("keys show"),
        "{unknown}"
    );
}

#[test]
fn a_certificate_is_revoked_by_serial_name_or_file() {
    let directory = directory();
    for name in ["gpu1", "gpu2", "gpu3"] {
        issue(directory.path(), Role::Worker, name, 7).unwrap();
    }
    let machine = |name: &str| directory.path().join("machines").join(name);
    let serial = Identity::load(&machine("gpu1"), Role::Worker).unwrap().certificate().serial;
    let file = machine("gpu3").join("worker.pem").display().to_string();
    let spelled =
        serial.to_uppercase().as_bytes().chunks(2).map(String::from_utf8_lossy).collect::<Vec<_>>().join(":");
    for (what, name) in [(spelled.as_str(), "gpu1"), ("gpu2", "gpu2"), (file.as_str(), "gpu3")] {
        let revoked = revoke(directory.path(), what).unwrap();
        assert_eq!(revoked.len(), 1);
        assert_eq!(revoked[0].name, name);
        let said = failure(&machine(name), Role::Worker);
        assert!(said.contains(name) && said.contains("was revoked"), "{said}");
    }
    let revoked =
        states(directory.path()).iter().filter(|(_, state)| matches!(state, State::Revoked(_))).count();
    assert_eq!(revoked, 3);
    Identity::load(directory.path(), Role::Worker).unwrap();
    for what in ["nobody", "", "00", "ca.pem", &directory.path().join("ca.pem").display().to_string()] {
        let unknown = revoke(directory.path(), what).unwrap_err();
        assert!(matches!(unknown, KeysError::Unknown { .. }), "{what:?}: {unknown}");
    }
}

#[test]
fn an_authority_is_replaced_in_steps_and_nobody_is_locked_out() {
    let directory = directory();
    issue(directory.path(), Role::Worker, "gpu7", 7).unwrap();
    let old = Identity::load(directory.path(), Role::Server).unwrap();
    rotate(directory.path(), 3650).unwrap();
    assert_eq!(list(directory.path()).unwrap().authorities.len(), 2);
    for role in Role::ALL {
        Identity::load(directory.path(), role).unwrap();
    }
    // Old certificates can still be revoked, each in the list of its own authority.
    revoke(directory.path(), "admin").unwrap();
    let too_early = finish_rotation(directory.path()).unwrap_err();
    assert!(matches!(too_early, KeysError::OldAuthority { .. }), "{too_early}");
    renew(directory.path(), None, 90).unwrap();
    assert_eq!(finish_rotation(directory.path()).unwrap().len(), 1);
    for role in Role::ALL {
        Identity::load(directory.path(), role).unwrap();
    }
    let machine = Identity::load(&directory.path().join("machines/gpu7"), Role::Worker).unwrap();
    assert!(!machine.present().trust.has_signed(&old.present().own.certificate));
    assert!(states(directory.path()).iter().any(|(_, state)| *state == State::Foreign));
    assert_eq!(list(directory.path()).unwrap().authorities.len(), 1);
    revoke(directory.path(), "gpu7").unwrap();
}

/// The lists of a directory as they stand there.
fn list_texts(directory: &Path) -> Vec<String> {
    let text = fs::read_to_string(directory.join("revoked.pem")).unwrap();
    let lists = text.split_inclusive("-----END X509 CRL-----").map(|list| list.trim().to_owned());
    lists.filter(|list| !list.is_empty()).collect()
}

/// A directory in the middle of a rotation, whose former authority has revoked `admin`, with the key of the new authority alone.
fn with_the_new_key_alone() -> tempfile::TempDir {
    let directory = directory();
    rotate(directory.path(), 3650).unwrap();
    revoke(directory.path(), "admin").unwrap();
    let keys = fs::read_to_string(directory.path().join("ca.key")).unwrap();
    let newest = keys.split_inclusive("-----END PRIVATE KEY-----").next().unwrap();
    fs::write(directory.path().join("ca.key"), newest).unwrap();
    directory
}

// Found by reading: whatever was revoked by an authority whose key had been taken away could come in again after the next revocation.
#[test]
fn what_an_authority_has_revoked_whose_key_is_not_here_stays_revoked() {
    let directory = with_the_new_key_alone();
    let running = Identity::load(directory.path(), Role::Server).unwrap();
    let before = list_texts(directory.path());
    renew(directory.path(), Some("worker"), 7).unwrap();
    let newest = Identity::load(directory.path(), Role::Worker).unwrap().certificate();
    let revoked = revoke(directory.path(), &newest.serial).unwrap();
    assert_eq!(revoked, [newest]);
    let after = list_texts(directory.path());
    assert_eq!((before[1].as_str(), after.len()), (after[1].as_str(), before.len()), "as it stood there");
    assert_ne!(before[0], after[0]);
    for role in [Role::Worker, Role::Admin] {
        assert!(failure(directory.path(), role).contains("was revoked"), "{role}");
    }
    // And so it is for processes that run, which take the new lists.
    let now = Trust::load(directory.path()).unwrap();
    assert!(!now.is_behind(&running.present().trust));
}

#[test]
fn what_only_an_authority_can_revoke_whose_key_is_not_here_is_refused_by_name_and_nothing_is_done() {
    let directory = with_the_new_key_alone();
    let old = Identity::load(directory.path(), Role::Worker).unwrap().certificate();
    renew(directory.path(), Some("worker"), 7).unwrap();
    let before = list_texts(directory.path());
    for what in ["worker", old.serial.as_str()] {
        let refused = revoke(directory.path(), what).unwrap_err();
        let said = refused.to_string();
        assert!(matches!(refused, KeysError::KeyElsewhere { .. }) && said.contains(&old.serial), "{said}");
        assert!(said.contains("ca.key") && said.contains("nothing was revoked"), "{said}");
        assert_eq!(list_texts(directory.path()), before);
    }
    // What is revoked already needs no key.
    renew(directory.path(), Some("admin"), 7).unwrap();
    assert_eq!(revoke(directory.path(), "admin").unwrap().len(), 1);
    assert_eq!(
        states(directory.path()).iter().filter(|(_, state)| matches!(state, State::Revoked(_))).count(),
        2
    );
}

#[test]
fn the_list_of_an_authority_whose_certificate_is_to_come_stays_and_one_that_nobody_would_read_is_refused() {
    let (directory, other) = (directory(), directory());
    let file = directory.path().join("revoked.pem");
    let foreign = fs::read_to_string(other.path().join("revoked.pem")).unwrap();
    let both = fs::read_to_string(&file).unwrap() + &foreign;
    fs::write(&file, both).unwrap();
    revoke(directory.path(), "admin").unwrap();
    let kept = fs::read_to_string(&file).unwrap();
    assert!(kept.contains(foreign.trim()), "{kept}");
    fs::write(&file, kept + &foreign.repeat(40)).unwrap();
    for said in
        [failure(directory.path(), Role::Worker), revoke(directory.path(), "worker").unwrap_err().to_string()]
    {
        assert!(said.contains("revoked.pem holds more than"), "{said}");
    }
}

// Found by reading: one rotation more than are read left a folder that no command could open.
#[test]
fn no_rotation_makes_more_authorities_than_are_read() {
    let directory = directory();
    let most = (1..).find(|_| rotate(directory.path(), 3650).is_err()).unwrap();
    assert_eq!(most, trust::AUTHORITIES_MAX);
    let said = rotate(directory.path(), 3650).unwrap_err().to_string();
    assert!(said.contains(&format!("holds {most} authorities")) && said.contains("--finish"), "{said}");
    Identity::load(directory.path(), Role::Server).unwrap();
}

// Found by reading: of two lists of one authority in one file the second was dropped with the next revocation.
#[test]
fn all_lists_of_one_authority_count_and_are_one_after_the_next_revocation() {
    let directory = directory();
    let file = directory.path().join("revoked.pem");
    revoke(directory.path(), "worker").unwrap();
    let first = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    revoke(directory.path(), "server").unwrap();
    let second = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{first}{second}")).unwrap();
    revoke(directory.path(), "observer").unwrap();
    assert_eq!(list_texts(directory.path()).len(), 1);
    let revoked =
        states(directory.path()).into_iter().filter(|(_, state)| matches!(state, State::Revoked(_)));
    assert_eq!(revoked.count(), 3, "{:?}", states(directory.path()));
}

#[test]
fn a_directory_without_a_list_revokes_nothing_and_a_damaged_list_is_refused() {
    let directory = directory();
    let file = directory.path().join("revoked.pem");
    let whole = fs::read_to_string(&file).unwrap();
    let other = tempfile::tempdir().unwrap();
    init(other.path()).unwrap();
    fs::copy(other.path().join("revoked.pem"), &file).unwrap();
    // A list of an authority that is not trusted here says nothing here.
    Identity::load(directory.path(), Role::Worker).unwrap();
    let half = &whole[..whole.len() / 2];
    // A digit of the signature.
    let at = whole.rfind("-----END").unwrap() - 20;
    let digit = if &whole[at..=at] == "A" { "B" } else { "A" };
    let flipped = format!("{}{digit}{}", &whole[..at], &whole[at + 1..]);
    for damaged in ["", "hello", half, &flipped] {
        fs::write(&file, damaged).unwrap();
        let said = failure(directory.path(), Role::Worker);
        assert!(said.contains("revoked.pem"), "{damaged}: {said}");
    }
    fs::remove_file(&file).unwrap();
    Identity::load(directory.path(), Role::Worker).unwrap();
}

#[test]
fn bytes_that_are_no_keys_are_refused_without_a_panic() {
    let directory = directory();
    for name in ["ca.pem", "revoked.pem", "worker.pem", "worker.key"] {
        let whole = fs::read(directory.path().join(name)).unwrap();
        for end in (0..whole.len()).step_by(97) {
            read_for_fuzzing(&whole[..end]);
        }
        read_for_fuzzing(&whole);
    }
}
