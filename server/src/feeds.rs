//! Logs between servers: those that this server feeds as a primary, and those that it is fed as a backup.
//!
//! Each log has a connection of its own: what one shard's backup does not take holds up no other shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slackline_core::ids::ServerId;
use slackline_core::wire;
use slackline_net::log::{
    self, Hold, HoldReceiver, HoldSender, Limits, LogError, LogReceiver, LogSender, Payload,
};
use slackline_net::{CloseCode, Connection};
use slackline_server_core::replica::{Frame, HostEvent, Index};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::frames::{Assembler, Content, FrameError, Head, Opening, Piece, pieces};
use crate::links::{FIRST_PAUSE, Links, Reached};
use crate::owner::{Note, Owner};
use crate::performer::Surroundings;
use crate::session::Shared;
use crate::words::Word;

/// Logs are told apart by a number, so that what is left of one is not taken for the next.
static LAST: AtomicU64 = AtomicU64::new(0);

fn next_number() -> u64 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A log to a backup, and whoever keeps it open. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Feed {
    keeping: AbortHandle,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

impl Feed {
    /// Begins one; the owner hears of it on `notes`. Its frames go to whatever sender came with the last [`Note::FeedOpen`].
    pub(crate) fn start(
        surroundings: Arc<Surroundings>,
        opening: Opening,
        backup: ServerId,
        notes: mpsc::Sender<Note>,
    ) -> Self {
        let runtime = surroundings.runtime.clone();
        let keeping = runtime.spawn(keep(surroundings, opening, backup, notes)).abort_handle();
        Self { keeping }
    }
}

async fn keep(
    surroundings: Arc<Surroundings>,
    opening: Opening,
    backup: ServerId,
    notes: mpsc::Sender<Note>,
) {
    let Opening { shard, generation, .. } = opening;
    loop {
        let begun = timeout(surroundings.lease, begin(&surroundings.links, opening, backup)).await;
        let Ok((reached, sender, holds)) = begun else {
            surroundings.say(Word::OutOfReach { shard, generation, backup });
            continue;
        };
        let number = next_number();
        // Without a bound of its own: the host takes nothing more in when too much is not held.
        let (frames, waiting) = mpsc::unbounded_channel();
        if notes.send(Note::FeedOpen { number, backup, frames }).await.is_err() {
            return;
        }
        let ended = tokio::select! {
            ended = pump(sender, waiting) => ended,
            ended = hear(holds, backup, &notes) => ended,
        };
        reached.connection.close(CloseCode::Done, "the log ends");
        match ended {
            Err(error) => tracing::debug!(shard = shard.0, %error, "a log to {backup} has ended"),
            Ok(()) => tracing::debug!(shard = shard.0, "{backup} has ended a log"),
        }
        if notes.send(Note::FeedLost { number, backup }).await.is_err() {
            return;
        }
    }
}

/// Reaches the backup until it takes the log, however long it takes: one that does not know yet that it is a backup does not.
async fn begin(links: &Links, opening: Opening, backup: ServerId) -> (Reached, LogSender, HoldReceiver) {
    loop {
        let reached = links.reach(backup).await;
        match begin_once(&reached, opening).await {
            Ok(Some((sender, holds))) => return (reached, sender, holds),
            Ok(None) => tracing::debug!("{backup} takes no log of {}", opening.shard),
            Err(error) => tracing::debug!(%error, "{backup} takes no log of {}", opening.shard),
        }
        reached.connection.close(CloseCode::Done, "the log begins anew");
        tokio::time::sleep(FIRST_PAUSE).await;
    }
}

async fn begin_once(
    reached: &Reached,
    opening: Opening,
) -> Result<Option<(LogSender, HoldReceiver)>, LogError> {
    let (mut sender, mut holds) = log::open(&reached.connection).await?;
    if let Ok(piece) = Piece::of(&Head::Opening(opening), Payload::default()) {
        sender.send(&piece.head, &piece.payload).await?;
    }
    // The other side says first that it takes the log, by a hold of nothing.
    Ok(holds.receive().await?.map(|_| (sender, holds)))
}

async fn pump(mut sender: LogSender, mut waiting: mpsc::UnboundedReceiver<Frame>) -> Result<(), LogError> {
    while let Some(frame) = waiting.recv().await {
        for piece in pieces(frame) {
            match piece {
                Ok(Piece { head, payload }) => sender.send(&head, &payload).await?,
                Err(error) => {
                    // No entry is larger than a control message but for its values; a marker that is has too many rows.
                    tracing::error!(%error, "an entry cannot be sent to the backup");
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

async fn hear(mut holds: HoldReceiver, backup: ServerId, notes: &mpsc::Sender<Note>) -> Result<(), LogError> {
    while let Some(Hold { generation, index, hash }) = holds.receive().await? {
        let event = HostEvent::Held { backup, generation, index: Index(index), hash };
        if notes.send(Note::Host(event)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Takes the logs of another server in, until its session ends.
pub(crate) async fn take_logs(connection: Connection, shared: Arc<Shared>) {
    let limits =
        Limits { head_bytes: slackline_core::limits::CONTROL_BYTES_MAX, payload_bytes: shared.payload_max };
    while let Ok((receiver, holds)) = log::accept(&connection, limits).await {
        let (connection, shared) = (connection.clone(), shared.clone());
        tokio::spawn(async move {
            if let Err(reason) = take(receiver, holds, &shared).await {
                tracing::debug!(address = %connection.remote(), "a log has ended: {reason}");
                // It is the only one of its connection.
                connection.close(CloseCode::Refused, &reason);
            }
        });
    }
}

/// Takes one log: the primary's frames to the shard's host here, and back how far it holds them.
async fn take(mut receiver: LogReceiver, mut holds: HoldSender, shared: &Shared) -> Result<(), String> {
    let text = |error: LogError| error.to_string();
    let first = receiver.receive().await.map_err(text)?.ok_or("it has no beginning")?;
    let Ok(Head::Opening(opening)) = wire::decode(&first.bytes) else {
        return Err("it does not begin as a log".to_owned());
    };
    let owner = shared.owner(opening.shard).ok_or_else(|| format!("{} is not backed here", opening.shard))?;
    stands(&owner, &opening, shared)?;
    let number = next_number();
    let (held, waiting) = mpsc::unbounded_channel();
    owner
        .notes
        .send(Note::LogOpen { number, holds: held })
        .await
        .map_err(|_| "the shard's thread has ended")?;
    let begun = Hold { generation: opening.generation, index: 0, hash: None };
    holds.send(begun).await.map_err(text)?;
    tokio::select! {
        ended = read(receiver, &owner, opening, number, shared) => ended,
        ended = answer(holds, waiting) => ended,
    }
}

/// Whether the log is of the primary that this server was told of.
fn stands(owner: &Owner, opening: &Opening, shared: &Shared) -> Result<(), String> {
    let Opening { shard, primary, generation, config_hash } = *opening;
    if config_hash != shared.config_hash {
        return Err("it is of a run with another configuration".to_owned());
    }
    match owner.place() {
        Some(place) if (place.primary, place.generation) == (primary, generation) => Ok(()),
        Some(place) => Err(format!(
            "{shard} is led by {} in {}, and not by {primary} in {generation}",
            place.primary, place.generation
        )),
        None => Err(format!("this server has no part in {shard} yet")),
    }
}

async fn read(
    mut receiver: LogReceiver,
    owner: &Owner,
    opening: Opening,
    number: u64,
    shared: &Shared,
) -> Result<(), String> {
    let text = |error: LogError| error.to_string();
    let mut assembler = Assembler::new(opening.shard, owner.keys).with(owner.buffers.clone());
    while let Some(arrived) = receiver.receive().await.map_err(text)? {
        let no_sense = |error: FrameError| error.to_string();
        let head: Head = wire::decode(&arrived.bytes).map_err(|error| error.to_string())?;
        let mut content = assembler.place(&head, arrived.payload_bytes).map_err(no_sense)?;
        match &mut content {
            Content::Values(values) => receiver.fill_values(values).await,
            Content::Bytes(bytes) => receiver.fill(bytes).await,
        }
        .map_err(text)?;
        if let Some(frame) = assembler.take(head, content).map_err(no_sense)? {
            // A primary that has been replaced and does not know it yet.
            stands(owner, &opening, shared)?;
            // While the thread is behind, nothing more is read, and QUIC slows the primary down.
            let place = owner.frames.clone().acquire_owned().await.map_err(|error| error.to_string())?;
            let note = Note::Frame { number, generation: opening.generation, frame, _place: place };
            owner.notes.send(note).await.map_err(|_| "the shard's thread has ended")?;
        }
    }
    Ok(())
}

/// Says how far the host is. Several that wait are one, but for those with a hash.
async fn answer(mut holds: HoldSender, mut waiting: mpsc::UnboundedReceiver<Hold>) -> Result<(), String> {
    while let Some(mut hold) = waiting.recv().await {
        while hold.hash.is_none()
            && let Ok(later) = waiting.try_recv()
        {
            hold = later;
        }
        holds.send(hold).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
