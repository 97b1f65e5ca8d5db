//! What a directory of keys can be wrong with.

use std::fs;

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
    let authority = authority().unwrap();
    let (certificate, key) = leaf(Role::Worker, false, &authority).unwrap();
    for (name, text) in [("ca.pem", authority.pem()), ("worker.pem", certificate), ("worker.key", key)] {
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
