//! TLS as Slackline uses it: version 1.3, both sides show a certificate, the role is in its name.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use slackline_core::role::Role;
use slackline_core::wire::ALPN;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::keys::{Identity, KeysError, subject};

/// ring, named explicitly, since rustls refuses to choose when another provider is in the tree too. AES-128 is the fastest suite
/// here, and QUIC needs it for its first packets anyway.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(provider)
}

/// The configuration of a listening side.
pub(crate) fn listening(identity: &Identity) -> Result<Arc<QuicServerConfig>, KeysError> {
    identity.can_listen()?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(identity)?), provider())
        .build()
        .map_err(rejected)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(rejected)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain(), identity.key().clone_key())
        .map_err(rejected)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Sessions last for hours: a faster second handshake is worth no ticket, and replayable early data nothing at all.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(QuicServerConfig::try_from(config).map_err(rejected)?))
}

/// The configuration of a connecting side.
pub(crate) fn connecting(identity: &Identity) -> Result<Arc<QuicClientConfig>, KeysError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(rejected)?
        .with_root_certificates(roots(identity)?)
        .with_client_auth_cert(identity.chain(), identity.key().clone_key())
        .map_err(rejected)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(QuicClientConfig::try_from(config).map_err(rejected)?))
}

fn roots(identity: &Identity) -> Result<RootCertStore, KeysError> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.authority().clone()).map_err(rejected)?;
    Ok(roots)
}

fn rejected(error: impl std::fmt::Display) -> KeysError {
    KeysError::Rejected { reason: error.to_string() }
}

/// The role whose name a certificate has. It says nothing about who signed it: TLS has checked that.
pub(crate) fn role_of(certificate: &CertificateDer<'_>) -> Option<Role> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    Role::ALL.into_iter().find(|&role| {
        ServerName::try_from(subject(role))
            .is_ok_and(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    })
}

/// The role of the other side of a connection.
pub(crate) fn peer_role(connection: &quinn::Connection) -> Option<Role> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    role_of(chain.first()?)
}

/// Whether an authority has signed a certificate for that usage.
pub(crate) fn is_signed_by(
    certificate: &CertificateDer<'_>,
    authority: &CertificateDer<'_>,
    usage: KeyUsage,
) -> bool {
    let Ok(anchor) = anchor_from_trusted_cert(authority) else { return false };
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return false };
    let now = UnixTime::now();
    certificate.verify_for_usage(ALL_VERIFICATION_ALGS, &[anchor], &[], now, usage, None, None).is_ok()
}
