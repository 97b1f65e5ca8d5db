//! Bytes over streams with nothing around them: what QUIC itself costs with these settings, for benches to hold transfers against.

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::error::ConnectionError;

/// Bytes that are handed to a stream at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Sends `bytes` over `streams` streams at once, divided evenly, and waits until the peer, which must [`take`] them, has read all.
///
/// # Errors
/// The connection has ended.
pub async fn send(connection: &Connection, streams: u32, bytes: u64) -> Result<(), ConnectionError> {
    let chunk = Bytes::from(vec![0; CHUNK_BYTES]);
    let mut sending = JoinSet::new();
    for _ in 0..streams.max(1) {
        let (connection, chunk) = (connection.clone(), chunk.clone());
        let mut left = bytes / u64::from(streams.max(1));
        sending.spawn(async move {
            let mut stream = connection.quic().open_uni().await?;
            while left > 0 {
                let part = left.min(CHUNK_BYTES as u64);
                stream.write_chunk(chunk.slice(..part as usize)).await?;
                left -= part;
            }
            // It fails only on a stream that has ended, which writing would have told.
            let _ = stream.finish();
            // The peer answers with a stream of its own when it has all of one.
            connection.quic().accept_uni().await?;
            Ok::<(), ConnectionError>(())
        });
    }
    while let Some(sent) = sending.join_next().await {
        sent.map_err(|error| ConnectionError::Transport { reason: error.to_string() })??;
    }
    Ok(())
}

/// Reads what a peer [`send`]s, and answers each stream, until the connection ends.
pub async fn take(connection: &Connection) {
    while let Ok(mut stream) = connection.quic().accept_uni().await {
        let connection = connection.clone();
        tokio::spawn(async move {
            let mut pieces = [const { Bytes::new() }; 32];
            while let Ok(Some(count)) = stream.read_chunks(&mut pieces).await {
                pieces[..count].fill(Bytes::new());
            }
            // A peer that has gone needs no answer.
            if let Ok(mut answer) = connection.quic().open_uni().await {
                let _ = answer.write_all(&[1]).await;
            }
        });
    }
}
