//! The side that signs: authorities, the certificates they give out, and the lists of those they took back.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData,
    RevokedCertParams, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use slackline_core::role::Role;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificate::{Certificate, date, hexadecimal, now};
use super::error::{KeysError, rejected};
use super::folder::AUTHORITY;
use super::{accepted, subject};
use crate::tls;

/// Seconds of a day.
const DAY: i64 = 24 * 3600;

/// Certificates hold from a little before they were made: another machine's clock may be behind.
const EARLIER: i64 = 3600;

/// A revocation list is good until the next one comes, whenever that is; the format wants a date.
const LIST_DAYS: i64 = 100 * 365;

/// Bytes of a serial: enough that two are never the same, few enough to be typed.
const SERIAL_BYTES: usize = 8;

/// A certificate and its key, in PEM.
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) facts: Certificate,
}

/// An authority with its key.
pub(super) struct Authority {
    pub(super) certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    facts: Certificate,
}

impl Authority {
    /// Makes a new one that holds for `days`: itself, and its certificate and key in PEM.
    pub(super) fn new(days: u32) -> Result<(Self, String, String), KeysError> {
        let (serial, digits) = serial()?;
        let mut params = CertificateParams::default();
        // Each has a name of its own, so that a certificate says which of two signed it.
        let name = format!("Slackline cluster authority {digits}");
        params.distinguished_name.push(DnType::CommonName, name);
        // It signs certificates of roles, and no further authority.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        params.serial_number = Some(serial);
        (params.not_before, params.not_after) = validity(days, i64::MAX);
        let key = KeyPair::generate().map_err(rejected)?;
        let key_pem = key.serialize_pem();
        let made = CertifiedIssuer::self_signed(params, key).map_err(rejected)?;
        let again = KeyPair::from_pem(&key_pem).map_err(rejected)?;
        let authority = Self::with_key(made.der().clone(), again)?;
        Ok((authority, made.pem(), key_pem))
    }

    /// The authority of a certificate, if one of `keys` (in DER) is its key.
    pub(super) fn with_one_of(certificate: &CertificateDer<'static>, keys: &[Vec<u8>]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let key = keys
            .iter()
            .filter_map(|key| KeyPair::try_from(key.as_slice()).ok())
            .find(|key| key.subject_public_key_info() == parsed.public_key().raw)?;
        Self::with_key(certificate.clone(), key).ok()
    }

    fn with_key(certificate: CertificateDer<'static>, key: KeyPair) -> Result<Self, KeysError> {
        let facts = Certificate::read(&certificate).ok_or_else(|| rejected("the authority is damaged"))?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(rejected)?;
        Ok(Self { certificate, issuer, facts })
    }

    /// Its key, in PEM.
    pub(super) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Whether it has signed a certificate, going by the name in it.
    pub(super) fn has_signed(&self, certificate: &Certificate) -> bool {
        self.subject() == certificate.issuer
    }

    /// Its encoded name. It signed itself, so it is its own issuer.
    pub(super) fn subject(&self) -> &[u8] {
        &self.facts.issuer
    }

    /// A new certificate for a role, under a name; it never outlives the authority.
    pub(super) fn certify(&self, role: Role, name: &str, days: u32) -> Result<Pair, KeysError> {
        self.certify_for(role, name, days, !accepted(role).is_empty())
    }

    pub(super) fn certify_for(
        &self,
        role: Role,
        name: &str,
        days: u32,
        may_listen: bool,
    ) -> Result<Pair, KeysError> {
        if now() > self.facts.until {
            return Err(KeysError::AuthorityExpired {
                authority: AUTHORITY.into(),
                until: date(self.facts.until),
            });
        }
        let (number, digits) = serial()?;
        let mut params = CertificateParams::new(vec![subject(role).to_owned()]).map_err(rejected)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if may_listen {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.serial_number = Some(number);
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(days, self.facts.until);
        let key = KeyPair::generate().map_err(rejected)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(rejected)?;
        let facts = Certificate::read(certificate.der())
            .filter(|facts| facts.serial == digits)
            .ok_or_else(|| rejected("a new certificate cannot be read"))?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem(), facts })
    }

    /// Whether it may sign lists; those of older versions may not.
    pub(super) fn can_revoke(&self) -> bool {
        self.issuer.key_usages().contains(&KeyUsagePurpose::CrlSign)
    }

    /// Its list of what it took back, each with the moment, in PEM. Numbers grow with every list.
    pub(super) fn list(&self, number: u64, revoked: &[(String, i64)]) -> Result<String, KeysError> {
        let mut revoked_certs = Vec::with_capacity(revoked.len());
        for (serial, at) in revoked {
            revoked_certs.push(RevokedCertParams {
                serial_number: SerialNumber::from_slice(&bytes(serial)),
                revocation_time: moment(*at),
                reason_code: None,
                invalidity_date: None,
            });
        }
        let params = CertificateRevocationListParams {
            this_update: moment(now()),
            next_update: moment(now() + LIST_DAYS * DAY),
            crl_number: SerialNumber::from_slice(&number.to_be_bytes()),
            issuing_distribution_point: None,
            revoked_certs,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(rejected)
    }
}

/// From a little before now until so many days from now, and not past `last`.
fn validity(days: u32, last: i64) -> (OffsetDateTime, OffsetDateTime) {
    let now = now();
    (moment(now - EARLIER), moment((now + i64::from(days) * DAY).min(last)))
}

fn moment(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn serial() -> Result<(SerialNumber, String), KeysError> {
    let mut bytes = [0; SERIAL_BYTES];
    tls::provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| rejected("the system gives no random bytes"))?;
    // Positive, and of one length whatever the draw.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok((SerialNumber::from_slice(&bytes), hexadecimal(&bytes)))
}

/// The bytes of a serial in hexadecimal digits; digits that are none count as zero.
fn bytes(serial: &str) -> Vec<u8> {
    let even = if serial.len() % 2 == 1 { format!("0{serial}") } else { serial.to_owned() };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    even.as_bytes()
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |sum, &byte| sum << 4 | digit(byte).unwrap_or(0)))
        .collect()
}
