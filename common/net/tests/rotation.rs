//! Keys that change while both sides run: renewed, revoked, expired, replaced with their authority.
#![allow(clippy::unwrap_used)]

mod pair;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pair::{WITHIN, connector, dial, identity, key_directory, listener, serve_one, settings};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use slackline_net::keys::{self, finish_rotation, issue, renew, revoke, rotate};
use slackline_net::{
    CloseCode, ConnectError, ConnectionError, Connector, HandshakeError, HandshakeFailure, Identity,
    Listener, Role,
};
use tempfile::TempDir;

const DAY: i64 = 24 * 3600;

/// What a machine was given: a copy, which later changes do not reach.
fn copy_of(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

async fn failed_handshake(listener: &Listener) -> HandshakeError {
    loop {
        let handshake = listener.accept().await.unwrap();
        if let Err(error) = handshake.complete().await {
            return error;
        }
    }
}

#[tokio::test]
async fn a_revoked_peer_is_cut_off_within_seconds_and_cannot_come_back() {
    let keys = key_directory();
    issue(keys.path(), Role::Worker, "gpu7", 7).unwrap();
    issue(keys.path(), Role::Worker, "gpu8", 7).unwrap();
    let machines = ["gpu7", "gpu8"].map(|name| copy_of(&keys.path().join("machines").join(name)));
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let [seventh, eighth] = machines.each_ref().map(|keys| connector(keys, Role::Worker, &settings()));
    let (server_seven, worker_seven) =
        tokio::join!(serve_one(&listener), dial(&seventh, listener.local_address()));
    let (_server_eight, worker_eight) =
        tokio::join!(serve_one(&listener), dial(&eighth, listener.local_address()));
    assert_eq!(server_seven.connection.certificate().name, "gpu7");

    let revoked = revoke(keys.path(), "gpu7").unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), worker_seven.connection.closed()).await.unwrap();
    let ConnectionError::Closed { code: CloseCode::Refused, reason } = &ended else { panic!("{ended}") };
    assert!(
        reason.contains("gpu7") && reason.contains(&revoked[0].serial) && reason.contains("revoked"),
        "{reason}"
    );
    assert!(!ended.is_lost(), "a worker must not try again");

    let address = listener.local_address().to_string();
    let (refused, failure) = tokio::join!(
        async { seventh.connect(&address, WITHIN).await.unwrap_err() },
        failed_handshake(&listener)
    );
    assert_eq!(failure.failure, HandshakeFailure::Revoked);
    assert!(failure.to_string().contains("worker gpu7"), "{failure}");
    assert!(matches!(refused, ConnectError::OwnRefused { .. }) && !refused.is_retryable(), "{refused}");
    assert!(refused.to_string().contains("revoked"), "{refused}");
    assert!(worker_eight.connection.is_open(), "the other machine works on");
    let (_again, _and) = tokio::join!(serve_one(&listener), dial(&eighth, listener.local_address()));
}

#[tokio::test]
async fn a_worker_leaves_a_server_that_was_revoked() {
    let keys = key_directory();
    issue(keys.path(), Role::Server, "rack1", 7).unwrap();
    let server_keys = copy_of(&keys.path().join("machines/rack1"));
    let listener = listener(&server_keys, "127.0.0.1:0", &settings());
    let connector = connector(&keys, Role::Worker, &settings());
    let (server, worker) = tokio::join!(serve_one(&listener), dial(&connector, listener.local_address()));
    revoke(keys.path(), "rack1").unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), server.connection.closed()).await.unwrap();
    assert!(ended.to_string().contains("rack1"), "{ended}");
    assert!(!worker.connection.is_open());
    let address = listener.local_address().to_string();
    let (refused, failure) = tokio::join!(
        async { connector.connect(&address, WITHIN).await.unwrap_err() },
        failed_handshake(&listener)
    );
    assert!(
        matches!(&refused, ConnectError::Revoked { .. }) && refused.to_string().contains("rack1"),
        "{refused}"
    );
    assert_eq!(failure.failure, HandshakeFailure::RefusedByPeer);
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let connector = connector(&keys, Role::Worker, &settings());
    let (_server, before) = tokio::join!(serve_one(&listener), dial(&connector, listener.local_address()));
    let renewed = renew(keys.path(), None, 30).unwrap();
    let shown = async {
        loop {
            let (server, worker) =
                tokio::join!(serve_one(&listener), dial(&connector, listener.local_address()));
            let both = [worker.connection.certificate(), server.connection.certificate()];
            if both.iter().all(|certificate| renewed.contains(certificate)) {
                return;
            }
        }
    };
    tokio::time::timeout(WITHIN, shown).await.unwrap();
    assert!(before.connection.is_open(), "a connection outlives the keys that it began with");
}

#[tokio::test]
async fn damaged_keys_leave_the_old_ones_in_force() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    let connector = connector(&keys, Role::Worker, &settings());
    let own = identity(&keys, Role::Server);
    for name in ["server.pem", "worker.pem", "ca.pem", "revoked.pem"] {
        fs::write(keys.path().join(name), "garbage").unwrap();
    }
    own.refresh();
    for _ in 0..3 {
        tokio::time::timeout(WITHIN, async {
            tokio::join!(serve_one(&listener), dial(&connector, listener.local_address()))
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn an_authority_is_replaced_under_running_connections() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    // A machine that nobody brings new keys to.
    let forgotten = copy_of(keys.path());
    let old = connector(&forgotten, Role::Worker, &settings());
    let (_server, left_behind) = tokio::join!(serve_one(&listener), dial(&old, listener.local_address()));
    rotate(keys.path(), 3650).unwrap();
    renew(keys.path(), None, 30).unwrap();
    let new = connector(&keys, Role::Worker, &settings());
    let (_with, by_bundle) = tokio::join!(
        async {
            loop {
                // Until the listener has seen the new authority it refuses those who come with it.
                let handshake = listener.accept().await.unwrap();
                if let Ok(connection) = handshake.complete().await {
                    let (mut sender, receiver) = connection.open_control().await.unwrap();
                    sender.send(&pair::welcome()).await.unwrap();
                    return (connection, sender, receiver);
                }
            }
        },
        async {
            loop {
                if let Ok(connection) = new.connect(&listener.local_address().to_string(), WITHIN).await {
                    return connection;
                }
            }
        }
    );
    assert!(left_behind.connection.is_open());
    finish_rotation(keys.path()).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), left_behind.connection.closed()).await.unwrap();
    assert!(ended.to_string().contains("not trusted any more"), "{ended}");
    assert!(by_bundle.is_open());
}

/// A certificate of the cluster's authority with days of our own choice.
fn made(
    keys: &TempDir,
    role: &str,
    from: i64,
    until: i64,
) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let read = |name: &str| fs::read_to_string(keys.path().join(name)).unwrap();
    let authority_key = rcgen::KeyPair::from_pem(&read("ca.key")).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca.pem"), authority_key).unwrap();
    let mut params = rcgen::CertificateParams::new(vec![format!("{role}.slackline")]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "gpu7");
    params.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth, rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let at = |days: i64| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        time::OffsetDateTime::from_unix_timestamp(i64::try_from(now).unwrap() + days * DAY).unwrap()
    };
    (params.not_before, params.not_after) = (at(from), at(until));
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let pem = (certificate.pem(), key.serialize_pem());
    fs::write(keys.path().join(format!("{role}.pem")), pem.0).unwrap();
    fs::write(keys.path().join(format!("{role}.key")), pem.1).unwrap();
    (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
}

#[test]
fn a_process_does_not_start_with_keys_that_do_not_hold() {
    let keys = key_directory();
    made(&keys, "worker", -9, -2);
    let said = Identity::load(keys.path(), Role::Worker).unwrap_err().to_string();
    assert!(
        said.contains("worker gpu7") && said.contains("expired on") && said.contains("keys renew DIR gpu7"),
        "{said}"
    );
    made(&keys, "worker", 2, 9);
    let said = Identity::load(keys.path(), Role::Worker).unwrap_err().to_string();
    assert!(
        said.contains("worker gpu7") && said.contains("holds from") && said.contains("set the clock"),
        "{said}"
    );
}

#[tokio::test]
async fn a_peer_whose_certificate_does_not_hold_is_told_apart() {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", &settings());
    for (from, until, words) in [(-9, -2, "expired on"), (2, 9, "holds from")] {
        let (certificate, key) = made(&keys, "worker", from, until);
        let mut roots = rustls::RootCertStore::empty();
        use rustls::pki_types::pem::PemObject;
        roots.add(CertificateDer::from_pem_file(keys.path().join("ca.pem")).unwrap()).unwrap();
        let mut tls =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![certificate], key)
                .unwrap();
        tls.alpn_protocols = vec![slackline_core::wire::ALPN.to_vec()];
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_address();
        let (_, failure) = tokio::join!(
            async {
                if let Ok(connection) =
                    endpoint.connect_with(config, address, "server.slackline").unwrap().await
                {
                    connection.closed().await;
                }
            },
            failed_handshake(&listener)
        );
        assert_eq!(failure.failure, HandshakeFailure::Expired);
        assert!(
            failure.to_string().contains("worker gpu7") && failure.to_string().contains(words),
            "{failure}"
        );
    }
}

#[tokio::test]
async fn a_server_whose_certificate_does_not_hold_is_told_apart() {
    let keys = key_directory();
    let (certificate, key) = made(&keys, "server", -9, -2);
    let mut tls =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
    tls.alpn_protocols = vec![slackline_core::wire::ALPN.to_vec()];
    let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
    let expired = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let connector = Connector::new(&identity(&keys, Role::Worker), &settings()).unwrap();
    let address = expired.local_addr().unwrap().to_string();
    let (refused, _) =
        tokio::join!(async { connector.connect(&address, WITHIN).await.unwrap_err() }, async {
            let _ = expired.accept().await.unwrap().await;
        });
    assert!(matches!(refused, ConnectError::Expired { .. }) && !refused.is_retryable(), "{refused}");
    assert!(
        refused.to_string().contains("server gpu7") && refused.to_string().contains("expired on"),
        "{refused}"
    );
    assert!(keys::role("server").is_some());
}
