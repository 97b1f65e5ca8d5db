//! TLS as Slackline uses it: version 1.3, both sides show a certificate, the role is in its name.
//!
//! Each handshake has a configuration of its own, made of what is in force when it begins. There are no tickets and no sessions
//! to resume, and so there is no early data (0-RTT): nothing that a peer sends is seen before its certificate was checked.

use std::fmt;
use std::sync::{Arc, OnceLock};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    SupportedCipherSuite,
};
use slackline_core::role::Role;
use slackline_core::wire::ALPN;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::keys::{Certificate, KeysError, Present, Trust, date, now, rejected, subject};

/// ring, named explicitly, since rustls refuses to choose when another provider is in the tree too. It is as fast as aws-lc-rs where that has
/// the wider instructions too, and half as fast again elsewhere (`bench/README.md`, Transport).
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        let mut provider = ring::default_provider();
        provider.cipher_suites = suites(has_aes()).to_vec();
        Arc::new(provider)
    };
    PROVIDER.get_or_init(make).clone()
}

/// The suites in the order of choice. With AES instructions AES-128 is the fastest, and twice as fast as ChaCha20; without them it is several
/// times slower. QUIC needs AES-128 for its first packets anyway.
const fn suites(has_aes: bool) -> [SupportedCipherSuite; 3] {
    let (aes_128, aes_256) =
        (ring::cipher_suite::TLS13_AES_128_GCM_SHA256, ring::cipher_suite::TLS13_AES_256_GCM_SHA384);
    let chacha = ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
    if has_aes { [aes_128, aes_256, chacha] } else { [chacha, aes_128, aes_256] }
}

/// Whether the processor has instructions for AES-GCM, as ring asks for them.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// The configuration of a listening side, for one handshake; what is held against the peer's certificate comes to `refusal`.
pub(crate) fn listening(present: &Present, refusal: &Refusal) -> Result<Arc<QuicServerConfig>, KeysError> {
    let verifier = Arc::new(Explaining {
        verifier: present.trust.of_clients.clone(),
        trust: present.trust.clone(),
        refusal: refusal.clone(),
    });
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(rejected)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(present.own.certified.clone())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // The connecting side chooses, unless it chose what is slow here: one without AES instructions is the slower one of any pair.
    config.ignore_client_order = !has_aes();
    // Sessions last for hours: a faster second handshake is worth no ticket, and replayable early data nothing at all.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(Arc::new(QuicServerConfig::try_from(config).map_err(rejected)?))
}

/// The configuration of a connecting side, for one handshake; what is held against the peer's certificate comes to `refusal`.
pub(crate) fn connecting(present: &Present, refusal: &Refusal) -> Result<Arc<QuicClientConfig>, KeysError> {
    let verifier = Arc::new(Explaining {
        verifier: present.trust.of_servers.clone(),
        trust: present.trust.clone(),
        refusal: refusal.clone(),
    });
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(rejected)?
        // Dangerous is only what lets more through; this one asks rustls's own verifier and explains its answer.
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(present.own.certified.clone())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    Ok(Arc::new(QuicClientConfig::try_from(config).map_err(rejected)?))
}

/// What was held against a peer's certificate in one handshake, in words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal(Arc<OnceLock<String>>);

impl Refusal {
    /// The words, if there was something.
    pub(crate) fn text(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// A verifier of rustls that says whose certificate it refused and why.
struct Explaining<V: ?Sized> {
    verifier: Arc<V>,
    trust: Arc<Trust>,
    refusal: Refusal,
}

impl<V: ?Sized> fmt::Debug for Explaining<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explaining").finish_non_exhaustive()
    }
}

impl<V: ?Sized> Explaining<V> {
    /// The error, with its words set aside. Of a certificate that anybody could have written nothing is repeated, and it is of
    /// another authority before it is anything else.
    fn explained(&self, certificate: &CertificateDer<'_>, error: rustls::Error) -> rustls::Error {
        let rustls::Error::InvalidCertificate(fault) = &error else { return error };
        let Some(facts) = Certificate::read(certificate) else { return error };
        if !self.trust.has_signed(certificate) {
            return rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        }
        let name = &facts.name;
        let renew = format!("`slackline keys renew DIR {name}` where the authority is makes a new one");
        let text = match fault {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("the certificate of {facts} expired on {}; {renew}", date(facts.until))
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                let (from, now) = (date(facts.from), date(now()));
                format!(
                    "the certificate of {facts} holds from {from} on, and the clock here says {now}: set the clocks"
                )
            }
            CertificateError::Revoked => format!("the certificate of {facts} was revoked; {renew}"),
            _ => return error,
        };
        // A handshake has one certificate to refuse.
        let _ = self.refusal.0.set(text);
        error
    }
}

impl ClientCertVerifier for Explaining<dyn ClientCertVerifier> {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verdict = self.verifier.verify_client_cert(end_entity, intermediates, now);
        verdict.map_err(|error| self.explained(end_entity, error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

impl<V: ServerCertVerifier> ServerCertVerifier for Explaining<V> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verdict =
            self.verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        verdict.map_err(|error| self.explained(end_entity, error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// The role whose name a certificate has. It says nothing about who signed it: TLS has checked that.
pub(crate) fn role_of(certificate: &CertificateDer<'_>) -> Option<Role> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    Role::ALL.into_iter().find(|&role| {
        ServerName::try_from(subject(role))
            .is_ok_and(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    })
}

/// The certificate of the other side of a connection, which TLS has checked.
pub(crate) fn peer_certificate(connection: &quinn::Connection) -> Option<CertificateDer<'static>> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.into_iter().next()
}

/// Whether one of the authorities has signed a certificate for that usage. Whether it holds today is not the question here.
pub(crate) fn may_be_used(
    certificate: &CertificateDer<'_>,
    authorities: &[CertificateDer<'_>],
    usage: KeyUsage,
) -> bool {
    let anchors: Vec<_> =
        authorities.iter().filter_map(|authority| anchor_from_trusted_cert(authority).ok()).collect();
    let Ok(end_entity) = EndEntityCert::try_from(certificate) else { return false };
    // The question is put for a moment at which the certificate holds.
    let within = Certificate::read(certificate).and_then(|facts| u64::try_from(facts.until).ok());
    let Some(within) = within else { return false };
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(within));
    end_entity.verify_for_usage(ALL_VERIFICATION_ALGS, &anchors, &[], at, usage, None, None).is_ok()
}

#[cfg(test)]
mod tests {
    use rustls::CipherSuite;

    use super::*;

    #[test]
    fn the_suite_that_the_processor_is_fastest_at_comes_first() {
        let order = |has_aes| suites(has_aes).map(|suite| suite.suite());
        let [aes_128, aes_256, chacha] = [
            CipherSuite::TLS13_AES_128_GCM_SHA256,
            CipherSuite::TLS13_AES_256_GCM_SHA384,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        assert_eq!(order(true), [aes_128, aes_256, chacha]);
        assert_eq!(order(false), [chacha, aes_128, aes_256]);
        let in_force: Vec<_> = provider().cipher_suites.iter().map(SupportedCipherSuite::suite).collect();
        assert_eq!(in_force, order(has_aes()));
    }
}
