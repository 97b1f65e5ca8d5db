//! What a process shows to its peers and whom it believes, kept in step with the files while it runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use slackline_core::role::Role;
use webpki::KeyUsage;

use super::accepted;
use super::certificate::{Certificate, date, now};
use super::error::KeysError;
use super::folder::{AUTHORITY, Stamps, certificate_file, key_file, read};
use super::trust::Trust;
use crate::peers::Peers;
use crate::tls;

/// Looks at the files more often than this are answered by the last one.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A certificate that ends sooner than this is spoken of, once a day.
const WARN_BEFORE: i64 = 7 * 24 * 3600;
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

/// What a process shows to its peers, and whom it believes.
///
/// It follows the files that it was read from: listeners and connectors look at them every second, and a handshake takes what is
/// in force when it begins. Files that do not fit together are refused, with an error in the log, and what was in force stays.
/// Clones are the same identity.
#[derive(Clone)]
pub struct Identity {
    shared: Arc<Shared>,
}

struct Shared {
    directory: PathBuf,
    role: Role,
    present: RwLock<Arc<Present>>,
    followed: Mutex<Followed>,
    peers: Peers,
}

/// What is in force at one moment.
pub(crate) struct Present {
    pub(crate) trust: Arc<Trust>,
    pub(crate) own: Arc<Own>,
}

/// A certificate with its key.
pub(crate) struct Own {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) facts: Certificate,
    file: PathBuf,
}

/// How far the files have been followed.
struct Followed {
    seen: Stamps,
    looked: Instant,
    /// What was seen could not be used: it is tried once more before anything is said, since files are replaced one by one.
    unsettled: bool,
    warned: Option<Instant>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key never reaches a log.
        f.debug_struct("Identity").field("role", &self.shared.role).finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads the files of a role and checks that they belong together and hold today.
    ///
    /// # Errors
    /// One [`KeysError`] for each way in which they do not.
    pub fn load(directory: &Path, role: Role) -> Result<Self, KeysError> {
        let seen = Stamps::of(directory, role);
        let present =
            Present { trust: Arc::new(Trust::load(directory)?), own: Arc::new(Own::load(directory, role)?) };
        present.fits(directory)?;
        present.holds()?;
        let followed = Followed { seen, looked: Instant::now(), unsettled: false, warned: None };
        let identity = Self {
            shared: Arc::new(Shared {
                directory: directory.to_owned(),
                role,
                present: RwLock::new(Arc::new(present)),
                followed: Mutex::new(followed),
                peers: Peers::default(),
            }),
        };
        identity.warn_of_the_end(&mut identity.followed());
        Ok(identity)
    }

    /// The role it stands for.
    #[must_use]
    pub fn role(&self) -> Role {
        self.shared.role
    }

    /// The certificate that is shown at present.
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        self.present().own.facts.clone()
    }

    /// Checks that others can connect to a process with this identity.
    ///
    /// # Errors
    /// [`KeysError::CannotListen`]: nobody connects to this role, or its certificate was made when nobody did.
    pub fn can_listen(&self) -> Result<(), KeysError> {
        self.present().can_listen(self.shared.role)
    }

    /// Looks at the files, unless that was just done, and puts in force what has changed. Connections of peers that are not to
    /// be trusted any more are closed. It reads files: not for the network's thread.
    pub fn refresh(&self) {
        let mut followed = self.followed();
        if followed.looked.elapsed() < LOOK_EVERY {
            return;
        }
        followed.looked = Instant::now();
        self.look(&mut followed);
    }

    /// Looks at the files.
    fn look(&self, followed: &mut Followed) {
        self.warn_of_the_end(followed);
        let seen = Stamps::of(&self.shared.directory, self.shared.role);
        let has_changed = seen != followed.seen;
        if !has_changed && !followed.unsettled {
            return;
        }
        followed.seen = seen;
        match self.reload() {
            Ok(()) => followed.unsettled = false,
            Err(_) if has_changed => followed.unsettled = true,
            Err(errors) => {
                followed.unsettled = false;
                for error in errors {
                    tracing::error!("new keys are refused, and the old ones stay in force: {error}");
                }
            }
        }
    }

    /// Reads both halves of the identity again, and takes what can be taken of them.
    fn reload(&self) -> Result<(), Vec<KeysError>> {
        let Shared { directory, role, .. } = &*self.shared;
        let before = self.present();
        let mut errors = Vec::new();
        let mut noted = |error| errors.push(error);
        let trust = Trust::load(directory)
            .and_then(|trust| match trust.is_behind(&before.trust) {
                true => Err(KeysError::OlderList { list: directory.join(super::folder::REVOKED) }),
                false => Ok(Arc::new(trust)),
            })
            .map_err(&mut noted)
            .ok();
        let own = Own::load(directory, *role).map(Arc::new).map_err(&mut noted).ok();
        let (trust, own) = (trust.unwrap_or(before.trust.clone()), own.unwrap_or(before.own.clone()));
        // Both at once if they fit together; else one of them with the other's present half.
        let choices =
            [(trust.clone(), own.clone()), (trust, before.own.clone()), (before.trust.clone(), own)];
        for (trust, own) in choices {
            let next = Present { trust, own };
            match next.fits(directory).and_then(|()| self.still_listens(&before, &next)) {
                Ok(()) => {
                    self.put_in_force(&before, next);
                    break;
                }
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// A process that is connected to must stay one.
    fn still_listens(&self, before: &Present, next: &Present) -> Result<(), KeysError> {
        let role = self.shared.role;
        if before.can_listen(role).is_ok() { next.can_listen(role) } else { Ok(()) }
    }

    fn put_in_force(&self, before: &Present, next: Present) {
        let is_other = next.own.certificate != before.own.certificate;
        if is_other {
            let (facts, until) = (&next.own.facts, date(next.own.facts.until));
            tracing::info!("new keys are in force: {facts}, until {until}");
        }
        if let Err(error) = next.holds() {
            tracing::error!("{error}");
        }
        let next = Arc::new(next);
        *self.shared.present.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        self.shared.peers.sweep(&next.trust);
    }

    fn warn_of_the_end(&self, followed: &mut Followed) {
        let present = self.present();
        let until = present.own.facts.until;
        if until - now() > WARN_BEFORE || followed.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        followed.warned = Some(Instant::now());
        let (file, name) = (present.own.file.display(), &present.own.facts.name);
        tracing::warn!(
            "{file} expires on {}: `slackline keys renew DIR {name}` makes a new one",
            date(until)
        );
    }

    /// What is in force now.
    pub(crate) fn present(&self) -> Arc<Present> {
        self.shared.present.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connections that stand on this identity.
    pub(crate) fn peers(&self) -> &Peers {
        &self.shared.peers
    }

    fn followed(&self) -> std::sync::MutexGuard<'_, Followed> {
        self.shared.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Present {
    /// Whether the certificate is of an authority that is trusted.
    fn fits(&self, directory: &Path) -> Result<(), KeysError> {
        if self.trust.has_signed(&self.own.certificate) {
            return Ok(());
        }
        let (certificate, authority) = (self.own.file.clone(), directory.join(AUTHORITY));
        Err(KeysError::OtherAuthority { certificate, authority })
    }

    /// Whether peers will take the certificate today.
    fn holds(&self) -> Result<(), KeysError> {
        let Own { facts, file, .. } = &*self.own;
        let (certificate, whose, name) = (file.clone(), facts.to_string(), facts.name.clone());
        let now = now();
        if self.trust.has_revoked(facts) {
            return Err(KeysError::Revoked { certificate, whose, name });
        }
        if now < facts.from {
            return Err(KeysError::NotYetValid {
                certificate,
                whose,
                from: date(facts.from),
                now: date(now),
            });
        }
        if now > facts.until {
            return Err(KeysError::Expired { certificate, whose, name, until: date(facts.until) });
        }
        Ok(())
    }

    fn can_listen(&self, role: Role) -> Result<(), KeysError> {
        let may = tls::may_be_used(&self.own.certificate, self.trust.authorities(), KeyUsage::server_auth());
        if may && !accepted(role).is_empty() {
            return Ok(());
        }
        Err(KeysError::CannotListen { certificate: self.own.file.clone(), role })
    }
}

impl Own {
    fn load(directory: &Path, role: Role) -> Result<Self, KeysError> {
        let file = certificate_file(directory, role);
        let key_file = key_file(directory, role);
        let unreadable = |file: &Path, wanted| KeysError::Unreadable { file: file.to_owned(), wanted };
        let certificate = CertificateDer::from_pem_slice(&read(directory, &file)?)
            .map_err(|_| unreadable(&file, "certificate"))?;
        let facts = Certificate::read(&certificate).ok_or_else(|| unreadable(&file, "certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(&read(directory, &key_file)?)
            .map_err(|_| unreadable(&key_file, "private key"))?;
        let chain = vec![certificate.clone()];
        let certified = CertifiedKey::from_der(chain, key.clone_key(), &tls::provider()).map_err(
            |error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    KeysError::NotAPair { certificate: file.clone(), key: key_file.clone() }
                }
                _ => unreadable(&key_file, "private key"),
            },
        )?;
        if facts.role != Some(role) {
            return Err(KeysError::OtherRole { certificate: file, role });
        }
        Ok(Self { certificate, certified: Arc::new(certified), key, facts, file })
    }
}

#[cfg(test)]
mod tests;
