//! What a certificate says of itself: whose it is, its serial, and from when to when it holds.

use std::fmt;

use rustls::pki_types::CertificateDer;
use slackline_core::role::Role;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls;

/// What a name may have of letters, digits, `-`, `_` and `.`.
const NAME_BYTES_MAX: usize = 63;

/// What can be read in a certificate. It proves nothing: who signed it is another question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The role in its name; none in an authority's.
    pub role: Option<Role>,
    /// What its owner is called: the role itself, unless it was issued under a name.
    pub name: String,
    /// Its serial in hexadecimal digits, without leading zeros.
    pub serial: String,
    /// The first second in which it holds, in Unix time.
    pub from: i64,
    /// The last second in which it holds, in Unix time.
    pub until: i64,
    /// Who signed it: the encoded name.
    pub(crate) issuer: Vec<u8>,
}

impl Certificate {
    /// Reads a certificate in DER; none when it is no certificate.
    #[must_use]
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let common = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let role = tls::role_of(&CertificateDer::from(der));
        let common = common.unwrap_or_default();
        // Before names were given, a certificate of a role was called ROLE.slackline.
        let name = role.map(Role::name).filter(|role| common.strip_suffix(".slackline") == Some(role));
        Some(Self {
            role,
            name: slackline_core::wire::Text::new(name.unwrap_or(common)).shown(),
            serial: hexadecimal(parsed.raw_serial()),
            from: parsed.validity().not_before.timestamp(),
            until: parsed.validity().not_after.timestamp(),
            issuer: parsed.issuer().as_raw().to_vec(),
        })
    }

    /// Whether it holds at `now`, in Unix time.
    #[must_use]
    pub const fn holds_at(&self, now: i64) -> bool {
        self.from <= now && now <= self.until
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Some(role) if role.name() != self.name => write!(f, "{role} {} ", self.name)?,
            Some(role) => write!(f, "{role} ")?,
            None => write!(f, "{} ", self.name)?,
        }
        write!(f, "(serial {})", self.serial)
    }
}

/// Whether a certificate can be issued under this name: it becomes the name of a folder, and must not be taken for a role.
pub(super) fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_role = Role::ALL.iter().any(|role| role.name() == name);
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.starts_with('.')
        && name.bytes().all(fits)
        && !is_role
}

/// A serial as it is shown: without leading zeros, so that every program's spelling of it is the same number.
pub(crate) fn hexadecimal(serial: &[u8]) -> String {
    let digits: String = serial.iter().map(|byte| format!("{byte:02x}")).collect();
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() { "0".to_owned() } else { significant.to_owned() }
}

/// A moment of Unix time as people read it, in UTC.
#[must_use]
pub fn date(moment: i64) -> String {
    OffsetDateTime::from_unix_timestamp(moment).map_or_else(
        |_| format!("second {moment} of Unix time"),
        |at| {
            let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
            format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", at.hour(), at.minute())
        },
    )
}

/// This machine's clock, in Unix time.
pub(crate) fn now() -> i64 {
    i64::try_from(rustls::pki_types::UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_serials_are_shown_as_people_write_them() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
        assert!(date(i64::MAX).contains("Unix time"));
        assert_eq!(hexadecimal(&[0, 0x0a, 0xbc]), "abc");
        assert_eq!(hexadecimal(&[0]), "0");
    }

    #[test]
    fn a_name_is_that_of_a_folder_and_of_no_role() {
        for name in ["gpu7", "rack-3.node_12", "W"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", ".hidden", "a/b", "a b", "worker", "admin", "\u{e9}", &"x".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn what_is_no_certificate_is_not_read() {
        for bytes in [&[][..], b"hello", &[0x30, 0x82, 0xff, 0xff]] {
            assert_eq!(Certificate::read(bytes), None);
        }
    }
}
