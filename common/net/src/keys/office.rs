//! Where certificates are made, listed and taken back: the commands of `slackline keys`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use slackline_core::role::Role;

use super::authority::{Authority, Pair};
use super::certificate::{Certificate, is_name, now};
use super::error::{KeysError, rejected};
use super::folder::{
    AUTHORITY, AUTHORITY_KEY, Access, ISSUED, MACHINES, REVOKED, certificate_file, entries, key_file, make,
    read, read_if_there, write,
};
use super::trust::{AUTHORITIES_MAX, List, authorities_of, issuer_of, lists_of};

/// How long what is made holds, in days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days {
    /// An authority.
    pub authority: u32,
    /// A certificate of a role.
    pub certificates: u32,
}

impl Default for Days {
    fn default() -> Self {
        Self { authority: 3650, certificates: 90 }
    }
}

/// What became of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It holds, and is the one that its directory shows.
    InUse,
    /// It holds, and a newer one has taken its place.
    Replaced,
    /// It has expired, or does not hold yet.
    Expired,
    /// It was taken back at this moment, in Unix time.
    Revoked(i64),
    /// It was signed by an authority that is not trusted any more.
    Foreign,
}

/// A certificate that was made, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What is in it.
    pub certificate: Certificate,
    /// What became of it.
    pub state: State,
}

/// What a key directory holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The authorities that are trusted, the newest first.
    pub authorities: Vec<Certificate>,
    /// Certificates of roles: those of the directory itself, then those of machines, then those that were replaced.
    pub certificates: Vec<Entry>,
    /// Serials that were revoked and belong to no certificate here, each with the moment.
    pub others_revoked: Vec<(String, i64)>,
}

/// Makes an authority and a certificate for every role in `directory`, which is made if it is not there, for the usual time.
///
/// # Errors
/// [`KeysError::Exists`] when there is an authority already, [`KeysError::File`] when a file cannot be written.
pub fn init(directory: &Path) -> Result<(), KeysError> {
    init_for(directory, Days::default())
}

/// The same for a time that is given.
///
/// The authority's certificate is written last: where it exists, everything else does too.
///
/// # Errors
/// As [`init`].
pub fn init_for(directory: &Path, days: Days) -> Result<(), KeysError> {
    if directory.join(AUTHORITY).exists() {
        return Err(KeysError::Exists { directory: directory.to_owned() });
    }
    make(directory)?;
    let (authority, certificate, key) = Authority::new(days.authority)?;
    for role in Role::ALL {
        let pair = authority.certify(role, role.name(), days.certificates)?;
        keep(directory, directory, role, &pair)?;
    }
    write(&directory.join(AUTHORITY_KEY), &key, Access::Owner)?;
    write(&directory.join(REVOKED), &authority.list(1, &[])?, Access::All)?;
    write(&directory.join(AUTHORITY), &certificate, Access::All)
}

/// Makes a certificate of a role under a name, in a directory of its own that can be copied to a machine as it is: `machines/NAME`.
/// A machine can have certificates of several roles under one name.
///
/// # Errors
/// The name is none or taken, or the directory is not the authority's.
pub fn issue(directory: &Path, role: Role, name: &str, days: u32) -> Result<Certificate, KeysError> {
    if !is_name(name) {
        return Err(KeysError::BadName { name: name.to_owned() });
    }
    let machine = directory.join(MACHINES).join(name);
    let file = certificate_file(&machine, role);
    if file.exists() {
        return Err(KeysError::NameTaken { file, name: name.to_owned() });
    }
    let office = Office::open(directory)?;
    make(&machine)?;
    let pair = office.newest()?.certify(role, name, days)?;
    keep(directory, &machine, role, &pair)?;
    office.copy_to(&machine)?;
    Ok(pair.facts)
}

/// Makes new certificates in the place of those of a role, or of a name that was issued; of all when `name` is none. The old ones
/// stay good until they expire or are revoked.
///
/// # Errors
/// There is no such role or name, or the directory is not the authority's.
pub fn renew(directory: &Path, name: Option<&str>, days: u32) -> Result<Vec<Certificate>, KeysError> {
    let office = Office::open(directory)?;
    let mut renewed = Vec::new();
    for (place, role, certificate) in office.shown() {
        let called = certificate.as_ref().map_or(role.name(), |certificate| &certificate.name);
        if name.is_some_and(|name| name != called) {
            continue;
        }
        let pair = office.newest()?.certify(role, called, days)?;
        keep(directory, &place, role, &pair)?;
        renewed.push(pair.facts);
    }
    match name {
        Some(name) if renewed.is_empty() => Err(office.unknown(name)),
        _ => Ok(renewed),
    }
}

/// Takes back what `what` names: a serial, a role or name with all its certificates, or a certificate's file. Whoever shows one
/// of them is refused from then on, once `revoked.pem` has reached the machines.
///
/// # Errors
/// There is nothing of that name, or the directory is not the authority's.
pub fn revoke(directory: &Path, what: &str) -> Result<Vec<Certificate>, KeysError> {
    let office = Office::open(directory)?;
    let serial = what.replace(':', "").to_ascii_lowercase();
    let serial = serial.trim_start_matches('0');
    let file = Path::new(what);
    let mut meant: Vec<_> = match read_certificate(file).filter(|_| file.is_file()) {
        Some(certificate) => vec![certificate],
        None => {
            office.known().into_iter().filter(|known| known.serial == serial || known.name == what).collect()
        }
    };
    let is_foreign = |certificate: &Certificate| {
        !office.authorities.iter().any(|authority| authority.has_signed(certificate))
    };
    meant.retain(|certificate| certificate.role.is_some());
    office.can_revoke(&meant)?;
    meant.retain(|certificate| !is_foreign(certificate));
    if meant.is_empty() {
        return Err(office.unknown(what));
    }
    office.revoke(&meant)?;
    Ok(meant)
}

/// What a directory holds: the authority's, or a machine's copy.
///
/// # Errors
/// The authorities or revocation lists cannot be read.
pub fn list(directory: &Path) -> Result<Listing, KeysError> {
    let lists = lists_in(directory)?;
    let authorities = office_authorities(directory)?;
    let shown: Vec<_> =
        shown_in(directory).into_iter().filter_map(|(_, _, certificate)| certificate).collect();
    let mut certificates = Vec::new();
    let mut listed = BTreeSet::new();
    for certificate in shown.iter().cloned().chain(issued(directory)) {
        if !listed.insert(certificate.serial.clone()) {
            continue;
        }
        let revoked = lists.iter().filter(|list| list.issuer == certificate.issuer);
        let at = revoked.flat_map(|list| &list.revoked).find(|(serial, _)| *serial == certificate.serial);
        let is_trusted = authorities.iter().any(|authority| authority.issuer == certificate.issuer);
        let state = match at {
            Some((_, at)) => State::Revoked(*at),
            None if !is_trusted => State::Foreign,
            None if !certificate.holds_at(now()) => State::Expired,
            None if shown.contains(&certificate) => State::InUse,
            None => State::Replaced,
        };
        certificates.push(Entry { certificate, state });
    }
    let all_revoked = lists.iter().flat_map(|list| &list.revoked);
    let others_revoked = all_revoked.filter(|(serial, _)| !listed.contains(serial)).cloned().collect();
    Ok(Listing { authorities, certificates, others_revoked })
}

/// Makes a new authority, which signs from now on. The old ones stay trusted, and so do their certificates, until
/// [`finish_rotation`].
///
/// # Errors
/// The directory is not the authority's, or so many authorities are trusted already that one more would not be read.
pub fn rotate(directory: &Path, days: u32) -> Result<Certificate, KeysError> {
    let before = Office::open(directory)?;
    if before.trusted.len() >= AUTHORITIES_MAX {
        return Err(KeysError::TooManyAuthorities {
            authority: directory.join(AUTHORITY),
            most: AUTHORITIES_MAX,
        });
    }
    let (authority, certificate, key) = Authority::new(days)?;
    let facts = Certificate::read(&authority.certificate)
        .ok_or_else(|| rejected("a new authority cannot be read"))?;
    let after = |file: &str, first: &str| -> Result<String, KeysError> {
        let old = read(directory, &directory.join(file))?;
        Ok(format!("{}\n{}", first.trim_end(), String::from_utf8_lossy(&old)))
    };
    let keys = after(AUTHORITY_KEY, &key)?;
    let list = authority.list(1, &[])?;
    let old_lists = read_if_there(&directory.join(REVOKED))?.unwrap_or_default();
    let lists = format!("{}\n{}", list.trim_end(), String::from_utf8_lossy(&old_lists));
    let certificates = after(AUTHORITY, &certificate)?;
    write(&directory.join(AUTHORITY_KEY), &keys, Access::Owner)?;
    write(&directory.join(REVOKED), &lists, Access::All)?;
    write(&directory.join(AUTHORITY), &certificates, Access::All)?;
    before.copy_to_machines()?;
    Ok(facts)
}

/// Ends a rotation: only the newest authority is trusted from now on, and certificates of the others open nothing.
///
/// # Errors
/// A certificate that is in use is of an old authority (renew first), or the directory is not the authority's.
pub fn finish_rotation(directory: &Path) -> Result<Vec<Certificate>, KeysError> {
    let office = Office::open(directory)?;
    let newest = office.newest()?;
    for (place, role, certificate) in office.shown() {
        if certificate.is_some_and(|certificate| !newest.has_signed(&certificate)) {
            return Err(KeysError::OldAuthority { certificate: certificate_file(&place, role) });
        }
    }
    let gone: Vec<_> = office.trusted.iter().skip(1).filter_map(|der| Certificate::read(der)).collect();
    let all = read(directory, &directory.join(AUTHORITY))?;
    let all = String::from_utf8_lossy(&all);
    let first = first_block(&all).ok_or_else(|| rejected("the newest authority cannot be told apart"))?;
    let (number, revoked) = office.list_of(newest);
    write(&directory.join(AUTHORITY), &format!("{first}\n"), Access::All)?;
    write(&directory.join(REVOKED), &newest.list(number + 1, &revoked)?, Access::All)?;
    write(&directory.join(AUTHORITY_KEY), &newest.key_pem(), Access::Owner)?;
    office.copy_to_machines()?;
    Ok(gone)
}

/// The directory of the authority, opened to make something.
struct Office<'a> {
    directory: &'a Path,
    /// Those whose key is here, the newest first.
    authorities: Vec<Authority>,
    trusted: Vec<CertificateDer<'static>>,
    lists: Vec<List>,
}

impl<'a> Office<'a> {
    fn open(directory: &'a Path) -> Result<Self, KeysError> {
        let lists = lists_in(directory)?;
        let trusted = authorities_of(&read(directory, &directory.join(AUTHORITY))?).unwrap_or_default();
        let file = directory.join(AUTHORITY_KEY);
        let Some(text) = read_if_there(&file)? else { return Err(KeysError::NoAuthorityKey { file }) };
        let unreadable = || KeysError::Unreadable { file: file.clone(), wanted: "private key" };
        let keys: Result<Vec<_>, _> = PrivateKeyDer::pem_slice_iter(&text).collect();
        let keys: Vec<_> =
            keys.map_err(|_| unreadable())?.iter().map(|key| key.secret_der().to_vec()).collect();
        let authorities: Vec<_> =
            trusted.iter().filter_map(|der| Authority::with_one_of(der, &keys)).collect();
        if authorities.is_empty() {
            let certificate = directory.join(AUTHORITY);
            return Err(if keys.is_empty() {
                unreadable()
            } else {
                KeysError::NotAPair { certificate, key: file }
            });
        }
        Ok(Self { directory, authorities, trusted, lists })
    }

    /// The authority that signs now: the first of the file.
    fn newest(&self) -> Result<&Authority, KeysError> {
        let first = self.authorities.first().filter(|first| Some(&first.certificate) == self.trusted.first());
        let (certificate, key) = (self.directory.join(AUTHORITY), self.directory.join(AUTHORITY_KEY));
        first.ok_or(KeysError::NotAPair { certificate, key })
    }

    fn unknown(&self, what: &str) -> KeysError {
        KeysError::Unknown { what: what.to_owned(), directory: self.directory.to_owned() }
    }

    fn shown(&self) -> Vec<(PathBuf, Role, Option<Certificate>)> {
        shown_in(self.directory)
    }

    /// All certificates that can be found, each once.
    fn known(&self) -> Vec<Certificate> {
        let mut known = issued(self.directory);
        known.extend(self.shown().into_iter().filter_map(|(_, _, certificate)| certificate));
        known.sort_by(|one, other| one.serial.cmp(&other.serial));
        known.dedup();
        known
    }

    /// Highest number and content of an authority's lists in force: of several, which somebody has put into one file, all count.
    fn list_of(&self, authority: &Authority) -> (u64, Vec<(String, i64)>) {
        let number = |list: &List| {
            list.number.iter().fold(0_u64, |sum, &byte| sum.saturating_mul(256).saturating_add(byte.into()))
        };
        let (mut highest, mut revoked) = (0, Vec::<(String, i64)>::new());
        for list in self.lists.iter().filter(|list| list.issuer == authority.subject()) {
            highest = highest.max(number(list));
            for entry in &list.revoked {
                if !revoked.iter().any(|(serial, _)| *serial == entry.0) {
                    revoked.push(entry.clone());
                }
            }
        }
        (highest, revoked)
    }

    /// Whether all of these can be taken back that open something. An authority that is trusted and whose key is not here alone can take back
    /// what it has signed: half of them must not pass for all.
    fn can_revoke(&self, meant: &[Certificate]) -> Result<(), KeysError> {
        let has_key = |der: &&CertificateDer<'_>| {
            self.authorities.iter().any(|authority| authority.certificate == **der)
        };
        let without_key = self.trusted.iter().filter(|der| !has_key(der));
        let without_key: Vec<_> = without_key.filter_map(|der| Certificate::read(der)).collect();
        let opens = |certificate: &Certificate| {
            let lists = self.lists.iter().filter(|list| list.issuer == certificate.issuer);
            let mut revoked = lists.flat_map(|list| &list.revoked);
            certificate.until >= now() && !revoked.any(|(serial, _)| *serial == certificate.serial)
        };
        // An authority signed itself.
        let is_beyond = |certificate: &&Certificate| {
            opens(certificate) && without_key.iter().any(|authority| authority.issuer == certificate.issuer)
        };
        match meant.iter().find(is_beyond) {
            Some(certificate) => Err(KeysError::KeyElsewhere {
                whose: certificate.to_string(),
                authority: self.directory.join(AUTHORITY),
                key: self.directory.join(AUTHORITY_KEY),
            }),
            None => Ok(()),
        }
    }

    fn revoke(&self, meant: &[Certificate]) -> Result<(), KeysError> {
        let mut text = String::new();
        let mut made = Vec::new();
        for authority in &self.authorities {
            let (number, mut revoked) = self.list_of(authority);
            let mine = meant.iter().filter(|certificate| authority.has_signed(certificate));
            let before = revoked.len();
            for certificate in mine {
                if !revoked.iter().any(|(serial, _)| *serial == certificate.serial) {
                    revoked.push((certificate.serial.clone(), now()));
                }
            }
            if revoked.len() > before && !authority.can_revoke() {
                return Err(KeysError::CannotRevoke { authority: self.directory.join(AUTHORITY) });
            }
            if authority.can_revoke() {
                text.push_str(&authority.list(number + 1, &revoked)?);
                made.push(authority.subject().to_vec());
            }
        }
        // What others took back stays so: those whose key is not here, and those whose certificate is still to come.
        let file = self.directory.join(REVOKED);
        let before = read_if_there(&file)?.unwrap_or_default();
        text.push_str(&lists_but(&String::from_utf8_lossy(&before), &made));
        write(&file, &text, Access::All)?;
        self.copy_to_machines()
    }

    /// Brings what machines trust up to date.
    fn copy_to_machines(&self) -> Result<(), KeysError> {
        let machines = entries(&self.directory.join(MACHINES));
        machines.iter().filter(|place| place.is_dir()).try_for_each(|place| self.copy_to(place))
    }

    fn copy_to(&self, machine: &Path) -> Result<(), KeysError> {
        for name in [REVOKED, AUTHORITY] {
            if let Some(bytes) = read_if_there(&self.directory.join(name))? {
                write(&machine.join(name), &String::from_utf8_lossy(&bytes), Access::All)?;
            }
        }
        Ok(())
    }
}

/// Writes a certificate and its key to their place, and the certificate to the archive.
fn keep(directory: &Path, place: &Path, role: Role, pair: &Pair) -> Result<(), KeysError> {
    let archive = directory.join(ISSUED);
    make(&archive)?;
    write(&archive.join(format!("{}.pem", pair.facts.serial)), &pair.certificate, Access::All)?;
    write(&key_file(place, role), &pair.key, Access::Owner)?;
    write(&certificate_file(place, role), &pair.certificate, Access::All)
}

/// The places of a directory that show a certificate: its own, then those of machines.
fn shown_in(directory: &Path) -> Vec<(PathBuf, Role, Option<Certificate>)> {
    let machines = entries(&directory.join(MACHINES));
    let places = std::iter::once(directory.to_owned()).chain(machines);
    let of_roles = places.flat_map(|place| Role::ALL.map(|role| (place.clone(), role)));
    let there = of_roles.filter(|(place, role)| certificate_file(place, *role).exists());
    there
        .map(|(place, role)| {
            let certificate = read_certificate(&certificate_file(&place, role));
            (place, role, certificate)
        })
        .collect()
}

/// The archive: every certificate that was made.
fn issued(directory: &Path) -> Vec<Certificate> {
    let files = entries(&directory.join(ISSUED))
        .into_iter()
        .filter(|file| file.extension().is_some_and(|end| end == "pem"));
    files.filter_map(|file| read_certificate(&file)).collect()
}

fn read_certificate(file: &Path) -> Option<Certificate> {
    let der = CertificateDer::from_pem_file(file).ok()?;
    Certificate::read(&der)
}

/// The revocation lists of the authorities, also of those that hold no more or not yet: what was taken back stays so.
fn lists_in(directory: &Path) -> Result<Vec<List>, KeysError> {
    let file = directory.join(AUTHORITY);
    let all = authorities_of(&read(directory, &file)?);
    let all = all.ok_or(KeysError::Unreadable { file, wanted: "certificate" })?;
    let lists = read_if_there(&directory.join(REVOKED))?;
    lists_of(directory, lists.as_deref().unwrap_or_default(), lists.is_none(), &all)
}

fn office_authorities(directory: &Path) -> Result<Vec<Certificate>, KeysError> {
    let all = authorities_of(&read(directory, &directory.join(AUTHORITY))?).unwrap_or_default();
    Ok(all.iter().filter_map(|der| Certificate::read(der)).collect())
}

/// The first certificate of a file as it stands there.
fn first_block(text: &str) -> Option<&str> {
    blocks(text, "CERTIFICATE").next()
}

/// The revocation lists of a file as they stand there, but those of these issuers.
fn lists_but(text: &str, issuers: &[Vec<u8>]) -> String {
    let stays = |block: &&str| issuer_of(block.as_bytes()).is_none_or(|issuer| !issuers.contains(&issuer));
    blocks(text, "X509 CRL").filter(stays).map(|block| format!("{block}\n")).collect()
}

/// What a file has of one kind, as it stands there.
fn blocks<'a>(text: &'a str, kind: &str) -> impl Iterator<Item = &'a str> {
    let (begin, end) = (format!("-----BEGIN {kind}-----"), format!("-----END {kind}-----"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let from = rest.find(&begin)?;
        let to = from + rest[from..].find(&end)? + end.len();
        let block = rest.get(from..to)?;
        rest = rest.get(to..)?;
        Some(block)
    })
}
