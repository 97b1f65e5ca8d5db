//! How a restarted server tells the peers of its former self that their connections are gone.
//!
//! QUIC answers a packet of an unknown connection with a token that only the process that opened the connection could know
//! (RFC 9000, section 10.3, stateless reset). Here the token's key comes from the server's private key and the address it listens
//! on, so that the next process on that address has the same one, and a worker learns of the restart with its next packet
//! rather than at the end of the lease (unless the key was renewed in between). Each address has a key of its own: no server can end connections of another.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::crypto::{CryptoError, HmacKey};
use quinn_proto::HashedConnectionIdGenerator;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::tls13::{Hkdf, OkmBlock};

use crate::keys::Identity;

/// Bytes of a tag of HMAC-SHA256.
const TAG_BYTES: usize = 32;

struct ResetKey {
    hkdf: &'static dyn Hkdf,
    key: OkmBlock,
}

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(self.hkdf.hmac_sign(&self.key, data).as_ref());
    }

    fn signature_len(&self) -> usize {
        TAG_BYTES
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        if self.hkdf.hmac_sign(&self.key, data).as_ref() == signature { Ok(()) } else { Err(CryptoError) }
    }
}

/// The configuration of an endpoint that can answer for its former self on `address`. None where the suite is missing, which
/// costs only the quick notice.
pub(crate) fn endpoint_config(identity: &Identity, address: SocketAddr) -> Option<quinn::EndpointConfig> {
    let hkdf = TLS13_AES_128_GCM_SHA256.tls13()?.hkdf_provider;
    let secret =
        hkdf.extract_from_secret(Some(b"slackline stateless reset"), identity.present().own.key.secret_der());
    let address = address.to_string();
    let key = secret.expand_block(&[b"token ", address.as_bytes()]);
    let mut id_key = [0; 8];
    secret.expand_slice(&[b"connection ids ", address.as_bytes()], &mut id_key).ok()?;
    let id_key = u64::from_le_bytes(id_key);

    let mut config = quinn::EndpointConfig::new(Arc::new(ResetKey { hkdf, key }));
    // An endpoint answers only for connection ids that it could have made: these too must survive the restart.
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(id_key)));
    Some(config)
}
