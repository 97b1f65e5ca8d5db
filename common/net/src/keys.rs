//! Who may speak: an authority for a cluster, and the certificates of roles that it signs.
//!
//! A key directory holds `ca.pem` (the authorities that are trusted), `revoked.pem` (what they took back) and, for each role,
//! `ROLE.pem` and `ROLE.key`. That is what a machine needs, of the roles that it plays. Where certificates are made there are
//! also `ca.key`, `issued/` (every certificate that was made, under its serial) and `machines/NAME/`, a directory to be copied
//! to a machine that has certificates of its own, so that it alone can be revoked.
//!
//! A certificate has one DNS name, `ROLE.slackline`, and that is all that decides about rights: machines and addresses change,
//! roles do not. Its common name says whose it is, for people and for logs.
//!
//! A running process follows the files: see [`Identity`].

mod authority;
mod certificate;
mod error;
mod folder;
mod identity;
mod office;
mod trust;

use slackline_core::role::Role;

pub(crate) use certificate::now;
pub use certificate::{Certificate, date};
pub use error::KeysError;
pub(crate) use error::rejected;
pub use identity::Identity;
pub(crate) use identity::Present;
pub use office::{
    Days, Entry, Listing, State, finish_rotation, init, init_for, issue, list, renew, revoke, rotate,
};
pub(crate) use trust::Trust;

/// The one name in a role's certificate.
pub(crate) const fn subject(role: Role) -> &'static str {
    match role {
        Role::Server => "server.slackline",
        Role::Worker => "worker.slackline",
        Role::Observer => "observer.slackline",
        Role::Admin => "admin.slackline",
    }
}

/// The roles that may connect to one: everybody to servers, workers to workers.
pub(crate) const fn accepted(role: Role) -> &'static [Role] {
    match role {
        Role::Server => &Role::ALL,
        Role::Worker => &[Role::Worker],
        Role::Observer | Role::Admin => &[],
    }
}

/// The role with this name, as in file names; none if there is no such role.
#[must_use]
pub fn role(name: &str) -> Option<Role> {
    Role::ALL.into_iter().find(|role| role.name() == name)
}

/// Reads the files of a directory from bytes: authorities, then revocation lists, then certificates, each with everything that
/// a process does to them. For fuzzing: no bytes may make it panic.
#[doc(hidden)]
pub fn read_for_fuzzing(bytes: &[u8]) {
    use rustls::pki_types::pem::PemObject;
    let nowhere = std::path::Path::new("");
    let found = trust::authorities_of(bytes).unwrap_or_default();
    let trust = Trust::read(nowhere, bytes, Some(bytes));
    if let Ok(trust) = Trust::read(nowhere, bytes, None) {
        let _ = trust.is_behind(&trust);
    }
    let found = found.into_iter().chain([rustls::pki_types::CertificateDer::from(bytes.to_vec())]);
    for der in found {
        if let (Some(facts), Ok(trust)) = (Certificate::read(&der), &trust) {
            let _ = (trust.has_signed(&der), trust.has_revoked(&facts), facts.to_string());
        }
        let _ = crate::tls::role_of(&der);
    }
    let _ = rustls::pki_types::PrivateKeyDer::from_pem_slice(bytes);
}

#[cfg(test)]
mod tests;
