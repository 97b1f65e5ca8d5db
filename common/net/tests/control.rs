//! Control messages between two processes' worth of endpoints.
#![allow(clippy::unwrap_used)]

mod pair;

use pair::{Pair, pair, settings};
use slackline_core::ids::Clock;
use slackline_core::wire::{Text, ToPeer, ToServer, WireError};
use slackline_net::{CloseCode, ConnectionError, Message, Role};

/// Bytes that the protocol would never frame.
struct Raw(Vec<u8>);

impl Message for Raw {
    fn to_bytes(&self) -> Result<Vec<u8>, WireError> {
        Ok(self.0.clone())
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        Ok(Self(bytes.to_vec()))
    }
}

#[tokio::test]
async fn messages_arrive_in_order_both_ways() {
    let Pair { listener: _l, connector: _c, mut server, mut worker } = pair(&settings()).await;
    assert_eq!(server.connection.role(), Role::Worker);
    assert_eq!(worker.connection.role(), Role::Server);
    for clock in 0..500 {
        worker.sender.send(&ToServer::Enter { clock: Clock(clock) }).await.unwrap();
    }
    for clock in 0..500 {
        let expected = Some(ToServer::Enter { clock: Clock(clock) });
        assert_eq!(server.receiver.receive().await.unwrap(), expected);
    }
    server.sender.send(&ToPeer::Goodbye).await.unwrap();
    assert_eq!(worker.receiver.receive().await.unwrap(), Some(ToPeer::Goodbye));
    let (sent, received) = worker.connection.wire_bytes();
    assert!(sent > 500 && received > 0);
}

#[tokio::test]
async fn the_end_of_the_stream_and_a_close_are_both_clean_ends() {
    let Pair { listener: _l, connector: _c, mut server, mut worker } = pair(&settings()).await;
    worker.sender.finish().await;
    assert_eq!(server.receiver.receive::<ToServer>().await.unwrap(), None);
    server.connection.close(CloseCode::Done, "the run is over");
    assert_eq!(worker.receiver.receive::<ToPeer>().await.unwrap(), None);
    assert!(!worker.connection.is_open());
}

#[tokio::test]
async fn a_close_for_cause_is_fatal_and_says_why() {
    let Pair { listener: _l, connector: _c, server, mut worker } = pair(&settings()).await;
    server.connection.close(CloseCode::Refused, "not\x1b[2Jyou");
    let error = worker.receiver.receive::<ToPeer>().await.unwrap_err();
    let reason = "not [2Jyou".to_owned();
    assert_eq!(error, ConnectionError::Closed { code: CloseCode::Refused, reason });
    assert!(!error.is_lost());
}

#[tokio::test]
async fn a_peer_that_drops_the_connection_without_a_word_is_lost() {
    let Pair { listener, connector: _c, server, mut worker } = pair(&settings()).await;
    drop(server);
    drop(listener);
    assert!(worker.receiver.receive::<ToPeer>().await.unwrap_err().is_lost());
    assert!(worker.connection.closed().await.is_lost());
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_before_it_is_read() {
    let Pair { listener: _l, connector: _c, mut server, mut worker } = pair(&settings()).await;
    worker.sender.send(&Raw(vec![0; 70_000])).await.unwrap();
    let error = server.receiver.receive::<ToServer>().await.unwrap_err();
    assert_eq!(error, ConnectionError::Wire(WireError::TooLong { claimed: 70_000 }));
    assert!(!error.is_lost());
}

#[tokio::test]
async fn bytes_that_are_no_message_are_refused() {
    let Pair { listener: _l, connector: _c, mut server, mut worker } = pair(&settings()).await;
    worker.sender.send(&Raw(b"GET / HTTP/1.1\r\n\r\n".to_vec())).await.unwrap();
    let error = server.receiver.receive::<ToServer>().await.unwrap_err();
    assert!(matches!(error, ConnectionError::Wire(_)));
    worker.sender.send(&Raw(Vec::new())).await.unwrap();
}

#[tokio::test]
async fn a_receive_that_is_dropped_half_way_loses_nothing() {
    let Pair { listener: _l, connector: _c, mut server, mut worker } = pair(&settings()).await;
    let sent = ToServer::Stop { reason: Text::new("x".repeat(1000)) };
    for _ in 0..50 {
        worker.sender.send(&sent).await.unwrap();
        // Polled once and dropped, over and over, until the message is there.
        let received: ToServer = loop {
            tokio::select! {
                biased;
                message = server.receiver.receive() => break message.unwrap().unwrap(),
                () = tokio::task::yield_now() => {}
            }
        };
        assert_eq!(received, sent);
    }
}
