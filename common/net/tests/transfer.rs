//! Transfers of values, whole and damaged.
#![allow(clippy::unwrap_used)]

mod pair;

use pair::{Pair, pair, push, settings};
use slackline_core::ids::{KeyRange, ShardId};
use slackline_core::wire::{Stripe, TransferHeader, WireError};
use slackline_net::{
    Arriving, Connection, ConnectionError, Destination, Gather, Settings, SharedValues, TransferError,
    transfer,
};

/// Every bit pattern there is, NaNs included: a transfer must not look at values.
fn values(count: usize) -> Vec<f32> {
    (0..count as u32).map(|index| f32::from_bits(index.wrapping_mul(2_654_435_761))).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

async fn next(connection: &Connection) -> Arriving {
    transfer::accept(connection).await.unwrap().header().await.unwrap()
}

/// Receives one transfer whole; says how many stripes it had.
async fn gather(connection: &Connection) -> (Vec<f32>, u32) {
    let first = next(connection).await;
    let count = first.header().stripe_count;
    let buffer = vec![f32::NAN; first.header().words as usize];
    let gather = Gather::new(first.header(), buffer.into()).unwrap();
    let mut reading = tokio::task::JoinSet::new();
    let whole = gather.clone();
    reading.spawn(async move { whole.receive(first).await });
    for _ in 1..count {
        let (whole, stripe) = (gather.clone(), next(connection).await);
        reading.spawn(async move { whole.receive(stripe).await });
    }
    let mut complete = 0;
    while let Some(ended) = reading.join_next().await {
        complete += u32::from(ended.unwrap().unwrap());
    }
    assert_eq!(complete, 1);
    (gather.take(), count)
}

async fn arrives_bit_equal(count: usize, streams: u32, stripe_bytes: u64, expected_stripes: u32) {
    let settings = Settings { streams, stripe_bytes, ..settings() };
    let Pair { listener: _l, connector: _c, server, worker } = pair(&settings).await;
    let sent = SharedValues::from(values(count + 10));
    let part = sent.slice(10..count + 10);
    let header = push(KeyRange::new(1000, count as u64));
    let (outcome, (received, stripes)) = tokio::join!(
        transfer::send(&worker.connection, header, &part, &settings),
        gather(&server.connection)
    );
    outcome.unwrap();
    assert_eq!(stripes, expected_stripes);
    assert!(bits(&received) == bits(part.as_ref()), "{count} values over {streams} streams");
}

#[tokio::test]
async fn no_value_at_all_arrives() {
    arrives_bit_equal(0, 4, 1 << 20, 1).await;
}

#[tokio::test]
async fn one_value_arrives() {
    arrives_bit_equal(1, 4, 4, 1).await;
}

#[tokio::test]
async fn five_million_values_arrive_bit_equal_on_one_stream() {
    arrives_bit_equal(5_000_000, 1, 1 << 20, 1).await;
}

#[tokio::test]
async fn five_million_values_arrive_bit_equal_on_three_streams() {
    arrives_bit_equal(5_000_000, 3, 1 << 20, 3).await;
}

#[tokio::test]
async fn five_million_values_arrive_bit_equal_on_four_streams() {
    arrives_bit_equal(5_000_000, 4, 1 << 20, 4).await;
}

#[tokio::test]
async fn values_in_pieces_arrive_as_one_whatever_the_stripes() {
    for (streams, stripe_bytes, expected_stripes) in [(1, 4, 1), (3, 4, 3), (7, 4096, 7), (64, 1 << 16, 20)] {
        let settings = Settings { streams, stripe_bytes, ..settings() };
        let Pair { listener: _l, connector: _c, server, worker } = pair(&settings).await;
        let whole = SharedValues::from(values(330_000));
        let cuts = [0, 1, 1, 70_000, 70_003, 200_000, 330_000, 330_000];
        let pieces: Vec<_> = cuts.windows(2).map(|cut| whole.slice(cut[0]..cut[1])).collect();
        let (outcome, (received, stripes)) = tokio::join!(
            transfer::send_pieces(&worker.connection, push(KeyRange::new(5, 330_000)), &pieces, &settings),
            gather(&server.connection)
        );
        outcome.unwrap();
        assert_eq!(stripes, expected_stripes);
        assert!(bits(&received) == bits(whole.as_ref()), "{streams} streams");
        let outcome =
            transfer::send_pieces(&worker.connection, push(KeyRange::new(5, 9)), &pieces, &settings).await;
        assert_eq!(outcome, Err(TransferError::OtherLength { words: 9, values: 330_000 }));
    }
}

#[tokio::test]
async fn a_server_can_send_too_and_many_streams_wait_their_turn() {
    let settings = Settings { streams: 64, stripe_bytes: 4096, ..settings() };
    let Pair { listener: _l, connector: _c, server, worker } = pair(&settings).await;
    let sent = SharedValues::from(values(100_000));
    for _ in 0..10 {
        let header = push(KeyRange::new(0, 100_000));
        let (outcome, (received, stripes)) = tokio::join!(
            transfer::send(&server.connection, header, &sent, &settings),
            gather(&worker.connection)
        );
        outcome.unwrap();
        assert_eq!(stripes, 64);
        assert!(bits(&received) == bits(sent.as_ref()));
    }
}

#[tokio::test]
async fn a_window_under_a_datagram_does_not_stall_a_transfer() {
    let narrow = Settings { initial_window_bytes: 1, ..settings() };
    let Pair { listener: _l, connector: _c, server, worker } = pair(&narrow).await;
    assert!(worker.connection.datagram_bytes() > 60_000);
    let sent = SharedValues::from(values(1_000_000));
    let header = push(KeyRange::new(0, 1_000_000));
    let (outcome, (received, _)) =
        tokio::join!(transfer::send(&worker.connection, header, &sent, &narrow), gather(&server.connection));
    outcome.unwrap();
    assert!(bits(&received) == bits(sent.as_ref()));
}

#[tokio::test]
async fn a_fixed_datagram_size_is_kept() {
    let settings = Settings { datagram_bytes: Some(1400), ..settings() };
    let Pair { listener: _l, connector: _c, server, worker } = pair(&settings).await;
    let sent = SharedValues::from(values(300_000));
    let header = push(KeyRange::new(0, 300_000));
    let (outcome, (received, _)) = tokio::join!(
        transfer::send(&worker.connection, header, &sent, &settings),
        gather(&server.connection)
    );
    outcome.unwrap();
    assert!(bits(&received) == bits(sent.as_ref()));
    assert_eq!(worker.connection.datagram_bytes(), 1400);
}

#[tokio::test]
async fn the_buffer_comes_back_once_the_peer_has_the_values() {
    let Pair { listener: _l, connector: _c, mut server, mut worker } = pair(&settings()).await;
    let mut sent = SharedValues::from(values(1000));
    let header = push(KeyRange::new(0, 1000));
    transfer::send(&worker.connection, header, &sent, &settings()).await.unwrap();
    gather(&server.connection).await;
    // Acknowledgements travel with whatever else is sent: messages to and fro until they are there.
    let buffer = loop {
        match sent.try_reclaim() {
            Ok(buffer) => break buffer,
            Err(shared) => sent = shared,
        }
        worker.sender.send(&slackline_core::wire::ToServer::Renew).await.unwrap();
        server.receiver.receive::<slackline_core::wire::ToServer>().await.unwrap();
        server.sender.send(&slackline_core::wire::ToPeer::Goodbye).await.unwrap();
        worker.receiver.receive::<slackline_core::wire::ToPeer>().await.unwrap();
    };
    assert_eq!(buffer.len(), 1000);
}

#[tokio::test]
async fn values_that_do_not_fit_the_keys_are_not_sent() {
    let Pair { listener: _l, connector: _c, server: _s, worker } = pair(&settings()).await;
    let sent = SharedValues::from(values(9));
    let outcome = transfer::send(&worker.connection, push(KeyRange::new(0, 10)), &sent, &settings()).await;
    assert_eq!(outcome, Err(TransferError::OtherLength { words: 10, values: 9 }));
}

/// What a hostile or broken peer writes to a stream: any bytes at all.
mod hostile {
    use std::sync::Arc;

    use quinn::crypto::rustls::QuicClientConfig;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use slackline_core::wire::ALPN;
    use slackline_net::{Connection, Listener};
    use tempfile::TempDir;

    use super::pair::{key_directory, listener, settings};

    pub(crate) struct Hostile {
        pub(crate) quic: quinn::Connection,
        pub(crate) server: Connection,
        _kept: (quinn::Endpoint, Listener, TempDir),
    }

    fn config(keys: &TempDir) -> quinn::ClientConfig {
        let file = |name: &str| keys.path().join(name);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
        let chain = vec![CertificateDer::from_pem_file(file("worker.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(file("worker.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        tls.alpn_protocols = vec![ALPN.to_vec()];
        quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
    }

    pub(crate) async fn hostile() -> Hostile {
        let keys = key_directory();
        let listener = listener(&keys, "127.0.0.1:0", &settings());
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let connecting =
            endpoint.connect_with(config(&keys), listener.local_address(), "server.slackline").unwrap();
        let (quic, server) =
            tokio::join!(connecting, async { listener.accept().await.unwrap().complete().await.unwrap() });
        Hostile { quic: quic.unwrap(), server, _kept: (endpoint, listener, keys) }
    }

    impl Hostile {
        pub(crate) async fn write(&self, bytes: &[u8]) -> quinn::SendStream {
            let mut stream = self.quic.open_uni().await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream
        }
    }
}

use hostile::hostile;

fn bytes(header: &TransferHeader, payload: usize) -> Vec<u8> {
    let mut bytes = header.to_bytes().to_vec();
    bytes.resize(bytes.len() + payload, 7);
    bytes
}

#[tokio::test]
async fn a_lying_header_gets_no_memory() {
    let hostile = hostile().await;
    let claimed = KeyRange::new(0, 1 << 39);
    let _stream = hostile.write(&bytes(&push(claimed), 100)).await;
    let arriving = next(&hostile.server).await;
    assert_eq!(arriving.header().keys, claimed);
    let destination = Destination::from(vec![0.0; 1000]);
    let outcome = arriving.read_into(&destination).await;
    let stripe = Stripe::new(0, claimed.len);
    assert_eq!(outcome, Err(TransferError::Outside { stripe, words: 1000 }));
    assert!(destination.take().iter().all(|&value| value == 0.0));
}

#[tokio::test]
async fn a_stripe_with_too_few_or_too_many_bytes_is_refused() {
    let hostile = hostile().await;
    let keys = KeyRange::new(0, 1000);
    let announced = 4000;
    for (payload, expected) in [
        (0, TransferError::TooFew { announced, received: 0 }),
        (3999, TransferError::TooFew { announced, received: 3999 }),
        (4001, TransferError::TooMany { announced }),
        (900_000, TransferError::TooMany { announced }),
    ] {
        let mut stream = hostile.write(&bytes(&push(keys), payload)).await;
        stream.finish().unwrap();
        let destination = Destination::from(vec![0.0; 1000]);
        assert_eq!(next(&hostile.server).await.read_into(&destination).await, Err(expected));
    }
}

#[tokio::test]
async fn bytes_that_are_no_transfer_end_that_stream_only() {
    let hostile = hostile().await;
    for junk in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0; 128], &[0xff; 500]] {
        let mut stream = hostile.write(junk).await;
        stream.finish().unwrap();
        let outcome = transfer::accept(&hostile.server).await.unwrap().header().await;
        assert_eq!(outcome.unwrap_err(), TransferError::Wire(WireError::NotATransfer));
    }
    let mut stream = hostile.write(&bytes(&push(KeyRange::new(0, 1)), 4)).await;
    stream.finish().unwrap();
    let (received, _) = gather(&hostile.server).await;
    assert_eq!(received.len(), 1);
}

#[tokio::test]
async fn a_stream_that_is_given_up_is_an_error() {
    let hostile = hostile().await;
    let mut stream = hostile.write(&bytes(&push(KeyRange::new(0, 1000)), 400)).await;
    let arriving = next(&hostile.server).await;
    stream.reset(1u32.into()).unwrap();
    let destination = Destination::from(vec![0.0; 1000]);
    let outcome = arriving.read_into(&destination).await;
    assert_eq!(outcome, Err(TransferError::Connection(ConnectionError::StreamAbandoned)));
}

#[tokio::test]
async fn a_send_that_is_dropped_half_way_never_looks_whole() {
    let narrow = Settings { send_window_bytes: 100_000, streams: 2, ..settings() };
    let Pair { listener: _l, connector: _c, server, worker } = pair(&narrow).await;
    let header = push(KeyRange::new(0, 5_000_000));
    let sending = {
        let connection = worker.connection.clone();
        tokio::spawn(async move {
            transfer::send(&connection, header, &SharedValues::from(values(5_000_000)), &narrow).await
        })
    };
    let arriving = next(&server.connection).await;
    sending.abort();
    let destination = Destination::from(vec![0.0; 5_000_000]);
    let outcome = arriving.read_into(&destination).await;
    assert_eq!(outcome, Err(TransferError::Connection(ConnectionError::StreamAbandoned)));
}

/// The first of several transfers is read, and the streams of the others are not: what those have in the connection's window must not
/// keep out what the first still lacks. Then the next is read.
#[tokio::test]
async fn transfers_that_are_read_one_by_one_do_not_wait_for_those_that_are_not_read() {
    const KIB: u64 = 1024;
    let narrow = Settings {
        streams: 4,
        stripe_bytes: 64 * KIB,
        stream_window_bytes: 256 * KIB,
        connection_window_bytes: 1024 * KIB,
        ..settings()
    };
    let Pair { listener: _l, connector: _c, server, worker } = pair(&narrow).await;
    let count = 1_000_000;
    let sent = SharedValues::from(values(count));
    let mut sending = tokio::task::JoinSet::new();
    for shard in 0..6 {
        let header = TransferHeader { shard: ShardId(shard), ..push(KeyRange::new(0, count as u64)) };
        let (connection, sent) = (worker.connection.clone(), sent.clone());
        sending.spawn(async move { transfer::send(&connection, header, &sent, &narrow).await.unwrap() });
    }
    for shard in 0..6 {
        // Stripes of another transfer among its own would be refused.
        let (received, stripes) =
            tokio::time::timeout(pair::WITHIN, gather(&server.connection)).await.unwrap();
        assert_eq!(stripes, 4, "of shard {shard}");
        assert!(bits(&received) == bits(sent.as_ref()));
    }
    while let Some(ended) = sending.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn what_ends_with_values_ends_when_the_peer_has_acknowledged_them() {
    struct End(tokio::sync::oneshot::Sender<()>);
    impl Drop for End {
        fn drop(&mut self) {
            let (sender, _) = tokio::sync::oneshot::channel();
            let _ = std::mem::replace(&mut self.0, sender).send(());
        }
    }
    let Pair { listener: _l, connector: _c, server, worker } = pair(&settings()).await;
    let (sender, mut ended) = tokio::sync::oneshot::channel();
    let count = 2_000_000;
    let sent = SharedValues::from(values(count)).with_end(End(sender));
    let part = sent.slice(0..count);
    drop(sent);
    assert!(ended.try_recv().is_err(), "a part is there");
    let header = push(KeyRange::new(0, count as u64));
    let read = async {
        let received = gather(&server.connection).await;
        received.0.len()
    };
    let settings = settings();
    let (outcome, received) =
        tokio::join!(transfer::send(&worker.connection, header, &part, &settings), read);
    outcome.unwrap();
    assert_eq!(received, count);
    drop(part);
    tokio::time::timeout(pair::WITHIN, ended).await.unwrap().unwrap();
}
