//! The side that checks: the authorities that are trusted, and the certificates that they took back.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::certificate::{Certificate, date, hexadecimal, now};
use super::error::{KeysError, rejected};
use super::folder::{AUTHORITY, REVOKED, read, read_if_there};
use crate::tls;

/// Authorities in one file. A rotation needs two.
pub(super) const AUTHORITIES_MAX: usize = 16;

/// Revocation lists in one file: those of the authorities, and of some whose certificates are still to come.
const LISTS_MAX: usize = 2 * AUTHORITIES_MAX;

/// One authority's list of what it took back.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// The encoded name of the authority.
    pub(super) issuer: Vec<u8>,
    /// Grows with every list of an authority, big-endian without leading zeros.
    pub(super) number: Vec<u8>,
    /// Serials in hexadecimal digits, each with the moment it was taken back.
    pub(super) revoked: Vec<(String, i64)>,
    serials: BTreeSet<String>,
    der: CertificateRevocationListDer<'static>,
}

/// Who is trusted. Never changed: a new one takes its place.
#[derive(Debug)]
pub(crate) struct Trust {
    authorities: Vec<CertificateDer<'static>>,
    lists: Vec<List>,
    /// Checks those who connect to this process.
    pub(crate) of_clients: Arc<dyn ClientCertVerifier>,
    /// Checks those whom this process connects to.
    pub(crate) of_servers: Arc<WebPkiServerVerifier>,
}

impl Trust {
    /// Reads the authorities and revocation lists of a directory. Without a list nothing is revoked.
    pub(super) fn load(directory: &Path) -> Result<Self, KeysError> {
        let authorities = read(directory, &directory.join(AUTHORITY))?;
        let lists = read_if_there(&directory.join(REVOKED))?;
        Self::read(directory, &authorities, lists.as_deref())
    }

    /// The same from the files' bytes; the directory only lends its name to errors.
    pub(super) fn read(
        directory: &Path,
        authorities: &[u8],
        lists: Option<&[u8]>,
    ) -> Result<Self, KeysError> {
        let authority_file = directory.join(AUTHORITY);
        let all = authorities_of(authorities)
            .ok_or_else(|| KeysError::Unreadable { file: authority_file.clone(), wanted: "certificate" })?;
        let facts: Vec<_> = all.iter().filter_map(|der| Certificate::read(der)).collect();
        let now = now();
        let holding = all.iter().zip(&facts).filter(|(_, facts)| facts.holds_at(now));
        let authorities: Vec<_> = holding.map(|(der, _)| der.clone()).collect();
        if authorities.is_empty() {
            let until = facts.iter().map(|facts| facts.until).max().unwrap_or_default();
            return Err(KeysError::AuthorityExpired { authority: authority_file, until: date(until) });
        }
        let lists = lists_of(directory, lists.unwrap_or_default(), lists.is_none(), &authorities)?;

        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            roots.add(authority.clone()).map_err(rejected)?;
        }
        let (roots, crls) = (Arc::new(roots), lists.iter().map(|list| list.der.clone()));
        // An authority without a list has taken nothing back.
        let of_clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), tls::provider())
            .with_crls(crls.clone())
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status()
            .build()
            .map_err(rejected)?;
        let of_servers = WebPkiServerVerifier::builder_with_provider(roots, tls::provider())
            .with_crls(crls)
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status()
            .build()
            .map_err(rejected)?;
        Ok(Self { authorities, lists, of_clients, of_servers })
    }

    pub(super) fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    /// Whether one of the authorities has signed a certificate. It says nothing about dates and revocation.
    pub(crate) fn has_signed(&self, certificate: &[u8]) -> bool {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
        self.authorities.iter().any(|authority| {
            X509Certificate::from_der(authority).is_ok_and(|(_, authority)| {
                authority.subject().as_raw() == certificate.issuer().as_raw()
                    && certificate.verify_signature(Some(authority.public_key())).is_ok()
            })
        })
    }

    /// Whether a certificate was taken back.
    pub(crate) fn has_revoked(&self, certificate: &Certificate) -> bool {
        self.lists
            .iter()
            .any(|list| list.issuer == certificate.issuer && list.serials.contains(&certificate.serial))
    }

    /// Whether this forgets what `before` knew to be revoked: a list of an authority that both trust is gone, or is an older one.
    pub(super) fn is_behind(&self, before: &Self) -> bool {
        let subject = |authority: &CertificateDer<'_>| {
            X509Certificate::from_der(authority).map(|(_, parsed)| parsed.subject().as_raw().to_vec()).ok()
        };
        let trusted: Vec<_> = self.authorities.iter().filter_map(subject).collect();
        before.lists.iter().filter(|list| trusted.contains(&list.issuer)).any(|list| {
            let mut now = self.lists.iter().filter(|now| now.issuer == list.issuer);
            !now.any(|now| (now.number.len(), &now.number) >= (list.number.len(), &list.number))
        })
    }
}

/// The authorities of a file; none when there is none, or one is damaged.
pub(super) fn authorities_of(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).take(AUTHORITIES_MAX + 1).collect();
    let all = all.ok()?;
    let are_whole = all.iter().all(|der| Certificate::read(der).is_some());
    (are_whole && (1..=AUTHORITIES_MAX).contains(&all.len())).then_some(all)
}

/// The encoded name of the authority of a list; none where it is no list.
pub(super) fn issuer_of(pem: &[u8]) -> Option<Vec<u8>> {
    let der = CertificateRevocationListDer::from_pem_slice(pem).ok()?;
    let (_, parsed) = CertificateRevocationList::from_der(&der).ok()?;
    Some(parsed.issuer().as_raw().to_vec())
}

/// The lists of the authorities; those of others are left out, since a new authority's list may come before its certificate.
pub(super) fn lists_of(
    directory: &Path,
    pem: &[u8],
    is_missing: bool,
    authorities: &[CertificateDer<'static>],
) -> Result<Vec<List>, KeysError> {
    let file = directory.join(REVOKED);
    let damaged = || KeysError::Unreadable { file: file.clone(), wanted: "revocation list" };
    let mut lists = Vec::new();
    let mut are_none = true;
    for (place, der) in CertificateRevocationListDer::pem_slice_iter(pem).enumerate() {
        are_none = false;
        let der = der.map_err(|_| damaged())?;
        // One that nobody reads would let in whom it keeps out.
        if place == LISTS_MAX {
            return Err(KeysError::TooManyLists { list: file, most: LISTS_MAX });
        }
        // rustls reads lists more strictly than the parser: what it does not take is damaged.
        if webpki::BorrowedCertRevocationList::from_der(&der).is_err() {
            return Err(damaged());
        }
        let (_, parsed) = CertificateRevocationList::from_der(&der).map_err(|_| damaged())?;
        let issuer = parsed.issuer().as_raw().to_vec();
        let mut of_that_name = authorities
            .iter()
            .filter_map(|authority| X509Certificate::from_der(authority).ok())
            .filter(|(_, authority)| authority.subject().as_raw() == issuer)
            .peekable();
        if of_that_name.peek().is_none() {
            continue;
        }
        if !of_that_name.any(|(_, authority)| parsed.verify_signature(authority.public_key()).is_ok()) {
            return Err(KeysError::ForeignList { list: file.clone(), authority: directory.join(AUTHORITY) });
        }
        let number = parsed.crl_number().map(|number| number.to_bytes_be()).unwrap_or_default();
        let revoked: Vec<_> = parsed
            .iter_revoked_certificates()
            .map(|entry| (hexadecimal(entry.raw_serial()), entry.revocation_date.timestamp()))
            .collect();
        let serials = revoked.iter().map(|(serial, _)| serial.clone()).collect();
        lists.push(List { issuer, number, revoked, serials, der: der.clone() });
    }
    if are_none && !is_missing { Err(damaged()) } else { Ok(lists) }
}
