//! Logs between two servers, whole and damaged.
#![allow(clippy::unwrap_used)]

mod pair;

use std::sync::Arc;

use pair::{Pair, WITHIN, pair, settings};
use slackline_core::ids::Generation;
use slackline_net::log::{self, Hold, Limits, LogError, LogHead, LogReceiver, LogSender, Payload};
use tokio::time::timeout;

const LIMITS: Limits = Limits { head_bytes: 100, payload_bytes: 64 << 20 };

/// Both ends of a log whose first frame has the head "first"; beside it the other direction.
async fn begun(pair: &Pair) -> (LogSender, log::HoldReceiver, LogReceiver, log::HoldSender) {
    let (mut sender, holds) = log::open(&pair.worker.connection).await.unwrap();
    sender.send(b"first", &Payload::default()).await.unwrap();
    let (mut receiver, holder) = log::accept(&pair.server.connection, LIMITS).await.unwrap();
    assert_eq!(receiver.receive().await.unwrap(), Some(head(b"first", 0)));
    (sender, holds, receiver, holder)
}

fn head(bytes: &[u8], payload_bytes: u64) -> LogHead {
    LogHead { bytes: bytes.to_owned(), payload_bytes }
}

#[tokio::test]
async fn frames_arrive_in_order_and_bit_equal() {
    let pair = pair(&settings()).await;
    let (mut sender, mut holds, mut receiver, mut holder) = begun(&pair).await;
    let values: Arc<Vec<f32>> =
        Arc::new((0..3_000_000_u32).map(|index| f32::from_bits(index.wrapping_mul(2_654_435_761))).collect());
    let sent = values.clone();
    let sending = async {
        for number in 0..5_u8 {
            sender.send(&[number; 7], &Payload::values(Shared(sent.clone()))).await.unwrap();
        }
        sender.send(b"", &Payload::bytes(vec![1, 2, 3])).await.unwrap();
        sender.finish().await;
    };
    let receiving = async {
        let mut place = vec![0.0_f32; values.len()];
        for number in 0..5_u8 {
            assert_eq!(receiver.receive().await.unwrap(), Some(head(&[number; 7], 12_000_000)));
            // One of them is read in pieces, one is left out.
            match number {
                2 => {
                    let (first, second) = place.split_at_mut(1000);
                    receiver.fill_values(first).await.unwrap();
                    receiver.fill_values(second).await.unwrap();
                }
                3 => continue,
                _ => receiver.fill_values(&mut place).await.unwrap(),
            }
            assert!(place.iter().zip(&**values).all(|(got, sent)| got.to_bits() == sent.to_bits()));
            let hash = (number == 2).then_some(u64::MAX - 1);
            holder.send(Hold { generation: Generation(9), index: number.into(), hash }).await.unwrap();
        }
        assert_eq!(receiver.receive().await.unwrap(), Some(head(b"", 3)));
        assert_eq!(
            receiver.fill(&mut [0; 4]).await.unwrap_err(),
            LogError::PastTheEnd { left: 3, wanted: 4 }
        );
        assert_eq!(receiver.receive().await.unwrap(), None);
        drop((receiver, holder));
    };
    let hearing = async {
        let mut heard = Vec::new();
        while let Some(hold) = holds.receive().await.unwrap() {
            assert_eq!(hold.generation, Generation(9));
            assert_eq!(hold.hash, (hold.index == 2).then_some(u64::MAX - 1));
            heard.push(hold.index);
        }
        heard
    };
    let ((), (), heard) = tokio::join!(sending, receiving, hearing);
    assert_eq!(heard, [0, 1, 2, 4]);
}

struct Shared(Arc<Vec<f32>>);

impl AsRef<[f32]> for Shared {
    fn as_ref(&self) -> &[f32] {
        &self.0
    }
}

#[tokio::test]
async fn what_is_over_the_receivers_limits_is_refused_unread() {
    let pair = pair(&settings()).await;
    let (mut sender, _holds, mut receiver, _holder) = begun(&pair).await;
    sender.send(&[0; 101], &Payload::default()).await.unwrap();
    let refused = receiver.receive().await.unwrap_err();
    assert_eq!(refused, LogError::HeadTooLong { announced: 101, limit: 100 });

    let (mut sender, _holds) = log::open(&pair.worker.connection).await.unwrap();
    sender.send(b"x", &Payload::bytes(vec![0; 11])).await.unwrap();
    let limits = Limits { head_bytes: 1, payload_bytes: 10 };
    let (mut receiver, _holder) = log::accept(&pair.server.connection, limits).await.unwrap();
    let refused = receiver.receive().await.unwrap_err();
    assert_eq!(refused, LogError::PayloadTooLong { announced: 11, limit: 10 });
}

#[tokio::test]
async fn a_receiver_that_reads_no_further_slows_the_sender_down() {
    let pair = pair(&settings()).await;
    let (mut sender, _holds, mut receiver, _holder) = begun(&pair).await;
    let piece = Arc::new(vec![1.0_f32; 1 << 20]);
    let mut sent = 0_u32;
    // QUIC's windows take some; then the sender waits, however long.
    let waits = async {
        while sent < 1000 {
            sender.send(b"", &Payload::values(Shared(piece.clone()))).await.unwrap();
            sent += 1;
        }
    };
    assert!(timeout(std::time::Duration::from_millis(500), waits).await.is_err());
    assert!(sent < 64, "{sent} pieces of 4 MiB went to nobody");
    for _ in 0..sent {
        assert!(timeout(WITHIN, receiver.receive()).await.unwrap().unwrap().is_some());
    }
}

#[tokio::test]
async fn a_log_that_ends_within_a_frame_is_torn() {
    let pair = pair(&settings()).await;
    let (mut sender, _holds, mut receiver, _holder) = begun(&pair).await;
    sender.send(b"whole", &Payload::bytes(vec![0; 100])).await.unwrap();
    assert!(receiver.receive().await.unwrap().is_some());
    receiver.fill(&mut [0; 50]).await.unwrap();
    pair.worker.connection.close(slackline_net::CloseCode::Stopped, "planned");
    let mut rest = [0; 51];
    assert!(receiver.fill(&mut rest).await.is_err());
    assert!(receiver.receive().await.is_err() || receiver.receive().await.is_err());
}
