//! Who may speak: one authority for a cluster, and one certificate for each role that it signs.
//!
//! A directory of keys holds `ca.pem`, `ca.key` and, for each role, `ROLE.pem` and `ROLE.key`. A machine needs `ca.pem` and the
//! two files of its own role; `ca.key` can stay at home. A certificate has one name, `ROLE.slackline`, and that is all that is
//! ever asked of it: machines and addresses change, roles do not. Certificates do not expire, as a cluster's directory is made
//! for it and replaced as a whole.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use slackline_core::role::Role;
use webpki::KeyUsage;

use crate::tls;

const AUTHORITY_CERTIFICATE: &str = "ca.pem";
const AUTHORITY_KEY: &str = "ca.key";

/// Why keys cannot be made or used. Each names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The directory or one of its files is not there.
    #[error("{} is missing: `slackline keys init {}` makes the keys", file.display(), directory.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The directory of keys.
        directory: PathBuf,
    },
    /// The operating system does not let the file be read or written.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The file holds no certificate or key in PEM.
    #[error("{} holds no {wanted}: replace it with the file that `slackline keys init` made", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What was looked for.
        wanted: &'static str,
    },
    /// Certificate and key are not a pair.
    #[error("{} is not the key of {}: copy both from one key directory", key.display(), certificate.display())]
    NotAPair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The certificate was signed by another authority than the one beside it.
    #[error(
        "{} was not signed by the authority {}: the wrong key directory was copied",
        certificate.display(), authority.display()
    )]
    OtherAuthority {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the authority's certificate.
        authority: PathBuf,
    },
    /// The certificate does not let others connect to its owner. Workers' did not before they connected to each other.
    #[error(
        "{} lets nobody connect to a {role}: it was made by an older version; make new keys with `slackline keys init DIR`",
        certificate.display()
    )]
    CannotListen {
        /// The file of the certificate.
        certificate: PathBuf,
        /// Its role.
        role: Role,
    },
    /// The certificate is one of another role than its file says.
    #[error("{} is not a certificate of the role {role}", certificate.display())]
    OtherRole {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The role it was to have.
        role: Role,
    },
    /// There is an authority already; a second one would lock out everything that was started with the first.
    #[error(
        "{} already holds an authority; choose another directory, or delete this one if nothing uses its keys",
        directory.display()
    )]
    Exists {
        /// The directory of keys.
        directory: PathBuf,
    },
    /// A certificate could not be made or set up.
    #[error("the keys cannot be used: {reason}")]
    Rejected {
        /// What the library said.
        reason: String,
    },
}

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

/// Makes an authority and a certificate for every role in `directory`, which is made if it is not there.
///
/// The authority's certificate is written last: where it exists, everything else does too.
///
/// # Errors
/// [`KeysError::Exists`] when there is an authority already, [`KeysError::File`] when a file cannot be written.
pub fn init(directory: &Path) -> Result<(), KeysError> {
    let in_directory = |name: &str| directory.join(name);
    if in_directory(AUTHORITY_CERTIFICATE).exists() {
        return Err(KeysError::Exists { directory: directory.to_owned() });
    }
    fs::create_dir_all(directory).map_err(|source| KeysError::File { file: directory.to_owned(), source })?;
    let authority = authority().map_err(rejected)?;
    for role in Role::ALL {
        let (certificate, key) = leaf(role, !accepted(role).is_empty(), &authority).map_err(rejected)?;
        write(&in_directory(&format!("{role}.key")), &key, Access::Owner)?;
        write(&in_directory(&format!("{role}.pem")), &certificate, Access::All)?;
    }
    write(&in_directory(AUTHORITY_KEY), &authority.key().serialize_pem(), Access::Owner)?;
    write(&in_directory(AUTHORITY_CERTIFICATE), &authority.pem(), Access::All)
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Slackline cluster authority");
    // It signs certificates of roles, and no further authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

fn leaf(
    role: Role,
    may_listen: bool,
    authority: &CertifiedIssuer<'static, KeyPair>,
) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(vec![subject(role).to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, subject(role));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if may_listen {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn rejected(error: impl fmt::Display) -> KeysError {
    KeysError::Rejected { reason: error.to_string() }
}

#[derive(Clone, Copy)]
enum Access {
    Owner,
    All,
}

/// Writes a file whole or not at all.
fn write(file: &Path, text: &str, access: Access) -> Result<(), KeysError> {
    let unfinished = file.with_added_extension("unfinished");
    let written = write_new(&unfinished, text, access).and_then(|()| fs::rename(&unfinished, file));
    written.map_err(|source| KeysError::File { file: file.to_owned(), source })
}

fn write_new(file: &Path, text: &str, access: Access) -> io::Result<()> {
    // What an interrupted start left may have other permissions: it is removed, never opened.
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(match access {
            Access::Owner => 0o600,
            Access::All => 0o644,
        });
    }
    #[cfg(not(unix))]
    let _ = access;
    let mut opened = options.open(file)?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()
}

/// What a process shows to its peers, and the authority it asks theirs to be from.
pub struct Identity {
    role: Role,
    authority: CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    certificate_file: PathBuf,
    key: PrivateKeyDer<'static>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key never reaches a log.
        f.debug_struct("Identity").field("role", &self.role).finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads the files of a role and checks that they belong together.
    ///
    /// # Errors
    /// One [`KeysError`] for each way in which they do not.
    pub fn load(directory: &Path, role: Role) -> Result<Self, KeysError> {
        let authority_file = directory.join(AUTHORITY_CERTIFICATE);
        let certificate_file = directory.join(format!("{role}.pem"));
        let key_file = directory.join(format!("{role}.key"));

        let authority = certificate(directory, &authority_file)?;
        let certificate = certificate(directory, &certificate_file)?;
        let key = PrivateKeyDer::from_pem_slice(&read(directory, &key_file)?)
            .map_err(|_| KeysError::Unreadable { file: key_file.clone(), wanted: "private key" })?;

        CertifiedKey::from_der(vec![certificate.clone()], key.clone_key(), &tls::provider()).map_err(
            |error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    KeysError::NotAPair { certificate: certificate_file.clone(), key: key_file.clone() }
                }
                _ => KeysError::Unreadable { file: key_file.clone(), wanted: "private key" },
            },
        )?;
        if !tls::is_signed_by(&certificate, &authority, KeyUsage::client_auth()) {
            return Err(KeysError::OtherAuthority {
                certificate: certificate_file,
                authority: authority_file,
            });
        }
        if tls::role_of(&certificate) != Some(role) {
            return Err(KeysError::OtherRole { certificate: certificate_file, role });
        }
        Ok(Self { role, authority, certificate, certificate_file, key })
    }

    /// The role it stands for.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Checks that others can connect to a process with this identity.
    ///
    /// # Errors
    /// [`KeysError::CannotListen`]: nobody connects to this role, or its certificate was made when nobody did.
    pub fn can_listen(&self) -> Result<(), KeysError> {
        let is_allowed = tls::is_signed_by(&self.certificate, &self.authority, KeyUsage::server_auth());
        if is_allowed && !accepted(self.role).is_empty() {
            return Ok(());
        }
        Err(KeysError::CannotListen { certificate: self.certificate_file.clone(), role: self.role })
    }

    pub(crate) const fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    pub(crate) const fn key(&self) -> &PrivateKeyDer<'static> {
        &self.key
    }
}

fn read(directory: &Path, file: &Path) -> Result<Vec<u8>, KeysError> {
    fs::read(file).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            KeysError::Missing { file: file.to_owned(), directory: directory.to_owned() }
        }
        _ => KeysError::File { file: file.to_owned(), source },
    })
}

fn certificate(directory: &Path, file: &Path) -> Result<CertificateDer<'static>, KeysError> {
    CertificateDer::from_pem_slice(&read(directory, file)?)
        .map_err(|_| KeysError::Unreadable { file: file.to_owned(), wanted: "certificate" })
}

#[cfg(test)]
mod tests;
