//! What is taken of files that change while a process runs.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::keys::{init, issue, renew, revoke, rotate};

fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    init(directory.path()).unwrap();
    directory
}

/// Looks twice, as a process does within two seconds; what was refused in the second look.
fn follow(identity: &Identity) {
    for _ in 0..2 {
        identity.look(&mut identity.followed());
    }
}

#[test]
fn new_keys_come_into_force() {
    let directory = directory();
    let identity = Identity::load(directory.path(), Role::Server).unwrap();
    let renewed = renew(directory.path(), Some("server"), 90).unwrap();
    assert_ne!(identity.certificate(), renewed[0]);
    identity.look(&mut identity.followed());
    assert_eq!(identity.certificate(), renewed[0]);
}

#[test]
fn a_half_that_is_damaged_is_refused_and_the_other_is_taken() {
    let directory = directory();
    let identity = Identity::load(directory.path(), Role::Server).unwrap();
    let before = identity.certificate();
    // The certificate is replaced and its key is not there yet.
    let kept = fs::read(directory.path().join("server.key")).unwrap();
    let renewed = renew(directory.path(), Some("server"), 90).unwrap();
    let new = fs::read(directory.path().join("server.key")).unwrap();
    fs::write(directory.path().join("server.key"), kept).unwrap();
    let revoked = revoke(directory.path(), "worker").unwrap();
    follow(&identity);
    assert_eq!(identity.certificate(), before, "no pair, no change");
    assert!(
        identity.present().trust.has_revoked(&revoked[0]),
        "who is revoked comes into force all the same"
    );

    fs::write(directory.path().join("server.key"), new).unwrap();
    follow(&identity);
    assert_eq!(identity.certificate(), renewed[0]);

    for name in ["server.pem", "server.key"] {
        let whole = fs::read(directory.path().join(name)).unwrap();
        fs::write(directory.path().join(name), "garbage").unwrap();
        follow(&identity);
        assert_eq!(identity.certificate(), renewed[0], "{name}");
        fs::write(directory.path().join(name), whole).unwrap();
        follow(&identity);
    }
}

#[test]
fn a_damaged_or_foreign_authority_changes_nothing() {
    let (directory, other) = (directory(), directory());
    let identity = Identity::load(directory.path(), Role::Worker).unwrap();
    let file = directory.path().join("ca.pem");
    let theirs = fs::read(other.path().join("ca.pem")).unwrap();
    for bytes in [&b""[..], b"garbage", &theirs] {
        fs::write(&file, bytes).unwrap();
        follow(&identity);
        let present = identity.present();
        assert!(present.trust.has_signed(&present.own.certificate));
    }
    fs::remove_file(&file).unwrap();
    follow(&identity);
    let present = identity.present();
    assert!(present.trust.has_signed(&present.own.certificate));
}

#[test]
fn what_is_revoked_stays_revoked_when_an_older_list_comes_or_the_list_goes() {
    let directory = directory();
    let identity = Identity::load(directory.path(), Role::Server).unwrap();
    let file = directory.path().join("revoked.pem");
    let older = fs::read(&file).unwrap();
    let machine = issue(directory.path(), Role::Worker, "gpu7", 7).unwrap();
    revoke(directory.path(), "gpu7").unwrap();
    follow(&identity);
    assert!(identity.present().trust.has_revoked(&machine));
    fs::write(&file, older).unwrap();
    follow(&identity);
    assert!(identity.present().trust.has_revoked(&machine), "an older list is no news");
    fs::remove_file(&file).unwrap();
    follow(&identity);
    assert!(identity.present().trust.has_revoked(&machine), "no list is no pardon");
}

#[test]
fn a_process_whose_own_certificate_is_revoked_still_follows_the_files() {
    let directory = directory();
    let identity = Identity::load(directory.path(), Role::Server).unwrap();
    let own = identity.certificate();
    revoke(directory.path(), "server").unwrap();
    follow(&identity);
    assert!(identity.present().trust.has_revoked(&own));
    let renewed = renew(directory.path(), Some("server"), 90).unwrap();
    follow(&identity);
    assert_eq!(identity.certificate(), renewed[0]);
}

#[test]
fn a_second_authority_is_trusted_as_soon_as_it_is_in_the_file() {
    let directory = directory();
    let identity = Identity::load(directory.path(), Role::Server).unwrap();
    rotate(directory.path(), 3650).unwrap();
    let newcomer = issue(directory.path(), Role::Worker, "gpu7", 7).unwrap();
    let newcomer_file = directory.path().join("machines/gpu7/worker.pem");
    let der = CertificateDer::from_pem_file(newcomer_file).unwrap();
    assert!(!identity.present().trust.has_signed(&der));
    follow(&identity);
    assert!(identity.present().trust.has_signed(&der), "{newcomer}");
}
