//! What a connection carries, whoever is at the other end: messages and transfers out, stripes in.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackline_core::wire::TransferHeader;
use slackline_net::{
    Arriving, Connection, ConnectionError, ControlSender, Message, Settings, SharedValues, TransferError,
    transfer,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Something to be sent.
#[derive(Debug)]
pub(crate) enum Outgoing<M> {
    Message(Box<M>),
    /// Values in one piece or several, one after another.
    Transfer(Box<TransferHeader>, Vec<SharedValues>),
    /// Nothing follows.
    Finish,
}

/// The transfers that the other side has not taken yet, each with when it was handed over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backlog {
    waiting: Arc<Mutex<BTreeMap<u64, Instant>>>,
}

impl Backlog {
    /// How many there are, and for how long the oldest has waited.
    pub(crate) fn look(&self) -> Option<(usize, Duration)> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, oldest) = waiting.first_key_value()?;
        Some((waiting.len(), oldest.elapsed()))
    }

    fn add(&self, number: u64) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Instant::now());
    }

    fn remove(&self, number: u64) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

/// A transfer with its number, what it can take of the other side's window, and its values.
struct Waiting(u64, u64, TransferHeader, Vec<SharedValues>);

/// Unread bytes that a transfer can come to: a stream that is not read stops at its window.
fn unread_at_most(header: &TransferHeader, network: &Settings) -> u64 {
    header.payload_bytes().min(u64::from(network.streams) * network.stream_window_bytes)
}

/// Sends what it is given until the queue is closed or something cannot be sent; then says what, unless it was closed. Transfers go
/// beside the messages, which must not wait for them: a side that is too busy to read values must still hear that this one
/// is alive. So transfers leave half of the connection's window alone, and the next waits until one before it is taken.
pub(crate) async fn write<M: Message>(
    connection: &Connection,
    sender: ControlSender,
    mut waiting: mpsc::Receiver<Outgoing<M>>,
    network: Settings,
    backlog: &Backlog,
) -> Option<TransferError> {
    let mut sender = Some(sender);
    let mut transfers = JoinSet::new();
    let mut queue: VecDeque<Waiting> = VecDeque::new();
    let (mut last, mut unread) = (0, 0);
    loop {
        while let Some(Waiting(number, cost, header, pieces)) = queue.pop_front_if(|Waiting(_, cost, ..)| {
            unread == 0 || unread + *cost <= network.connection_window_bytes / 2
        }) {
            unread += cost;
            let connection = connection.clone();
            transfers.spawn(async move {
                transfer::send_pieces(&connection, header, &pieces, &network).await.map(|()| (number, cost))
            });
        }
        tokio::select! {
            outgoing = waiting.recv() => match outgoing {
                Some(Outgoing::Message(message)) => {
                    if let Some(sender) = &mut sender
                        && let Err(error) = sender.send(message.as_ref()).await
                    {
                        return Some(error.into());
                    }
                }
                Some(Outgoing::Transfer(header, pieces)) => {
                    last += 1;
                    backlog.add(last);
                    queue.push_back(Waiting(last, unread_at_most(&header, &network), *header, pieces));
                }
                Some(Outgoing::Finish) => {
                    if let Some(sender) = sender.take() {
                        sender.finish().await;
                    }
                }
                None => return None,
            },
            Some(ended) = transfers.join_next() => {
                match ended {
                    Ok(Ok((number, cost))) => {
                        backlog.remove(number);
                        unread = unread.saturating_sub(cost);
                    }
                    // Nobody would send it again while the connection stands.
                    Ok(Err(error)) => return Some(error),
                    Err(_) => return Some(TransferError::Stopped),
                }
            }
        }
    }
}

/// Reads stripes, each in a task of its own, until the connection ends or one of them fails; then says why.
pub(crate) async fn take_transfers<F, R, E>(connection: &Connection, take: F) -> E
where
    F: FnMut(Arriving) -> R + Clone + Send + 'static,
    R: Future<Output = Result<(), E>> + Send,
    E: From<TransferError> + From<ConnectionError> + Send + 'static,
{
    let mut stripes = JoinSet::new();
    loop {
        tokio::select! {
            opening = transfer::accept(connection) => {
                let opening = match opening {
                    Ok(opening) => opening,
                    Err(error) => return error.into(),
                };
                let mut take = take.clone();
                stripes.spawn(async move { take(opening.header().await?).await });
            }
            Some(ended) = stripes.join_next() => {
                if let Ok(Err(error)) = ended {
                    return error;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::ids::KeyRange;
    use slackline_core::ids::{Incarnation, Sequence, ShardId, WorkerId};
    use slackline_core::wire::{ToServer, TransferKind};
    use slackline_net::{Connector, Identity, Listener, Role, keys};

    fn push(shard: u32, len: u64) -> TransferHeader {
        let keys = KeyRange::new(0, len);
        TransferHeader {
            worker: WorkerId(1),
            incarnation: Incarnation(1),
            sequence: Sequence(1),
            samples: 1,
            ..TransferHeader::plain(TransferKind::Push, ShardId(shard), keys)
        }
    }

    /// A server that reads no transfer, and a worker that sends more of them than the connection's window has room for.
    #[tokio::test]
    async fn a_server_that_takes_no_values_still_hears_that_the_worker_lives() {
        const KIB: u64 = 1024;
        let folder = tempfile::tempdir().unwrap();
        keys::init(folder.path()).unwrap();
        let settings = Settings {
            streams: 2,
            stripe_bytes: 64 * KIB,
            stream_window_bytes: 64 * KIB,
            connection_window_bytes: 256 * KIB,
            socket_buffer_bytes: 1024 * KIB,
            ..Settings::default()
        };
        let identity = |role| Identity::load(folder.path(), role).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(address, &identity(Role::Server), &settings).unwrap();
        let connector = Connector::new(&identity(Role::Worker), &settings).unwrap();
        let address = listener.local_address().to_string();
        let serve = async {
            let connection = listener.accept().await.unwrap().complete().await.unwrap();
            let control = connection.open_control().await.unwrap();
            (connection, control)
        };
        let dial = async {
            let connection = connector.connect(&address, Duration::from_secs(10)).await.unwrap();
            let control = connection.accept_control().await.unwrap();
            (connection, control)
        };
        // The stream is there for the other side with the first message.
        let (served, dialled) = tokio::join!(
            async {
                let (connection, (mut sender, receiver)) = serve.await;
                sender.send(&slackline_core::wire::ToPeer::Renewed).await.unwrap();
                (connection, sender, receiver)
            },
            dial
        );
        let (_server, _sender, mut heard) = served;
        let (connection, (sender, _receiver)) = dialled;

        let (outgoing, waiting) = mpsc::channel(64);
        let backlog = Backlog::default();
        let len = 64 * KIB;
        for shard in 0..8 {
            let values = SharedValues::from(vec![0.5; len as usize]);
            let transfer = Outgoing::Transfer(Box::new(push(shard, len)), vec![values]);
            outgoing.send(transfer).await.unwrap();
        }
        for _ in 0..40 {
            outgoing.send(Outgoing::Message(Box::new(ToServer::Renew))).await.unwrap();
        }
        let hear = async {
            for _ in 0..40 {
                assert_eq!(heard.receive().await.unwrap(), Some(ToServer::Renew));
            }
        };
        tokio::select! {
            error = write(&connection, sender, waiting, settings, &backlog) => panic!("{error:?}"),
            heard = tokio::time::timeout(Duration::from_secs(10), hear) => heard.unwrap(),
        }
        assert_eq!(backlog.look().map(|(count, _)| count), Some(8), "none of them is taken");
    }
}
