//! What a connection carries, whoever is at the other end: messages and transfers out, stripes in.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackline_core::ids::Moment;
use slackline_core::order::Queue;
use slackline_core::wire::{TransferHeader, TransferKind};
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

/// The transfers under way that the other side has not taken yet, each with since when. What waits for its own turn or rate is not held up by the
/// other side.
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

/// A transfer with its number and its values.
type Waiting = (u64, TransferHeader, Vec<SharedValues>);

/// Unread bytes that a transfer can come to: a stream that is not read stops at its window.
fn unread_at_most(header: &TransferHeader, network: &Settings) -> u64 {
    header.payload_bytes().min(u64::from(network.streams) * network.stream_window_bytes)
}

/// Sends what it is given until the queue is closed or something cannot be sent; then says what, unless it was closed. Transfers go
/// beside the messages, which must not wait for them: a side that is too busy to read values must still hear that this one
/// is alive. So transfers leave half of the connection's window alone, and the next waits until one before it is acknowledged.
pub(crate) async fn write<M: Message>(
    connection: &Connection,
    sender: ControlSender,
    mut waiting: mpsc::Receiver<Outgoing<M>>,
    network: Settings,
    backlog: &Backlog,
) -> Option<TransferError> {
    let mut sender = Some(sender);
    let mut transfers = JoinSet::new();
    let credit = network.credit_bytes.min(network.connection_window_bytes / 2);
    let rate = Some(network.push_bytes_per_s as f64).filter(|rate| *rate > 0.0);
    let mut queue: Queue<Waiting> = Queue::new(credit, rate);
    let (mut last, began) = (0, Instant::now());
    let now = || Moment(began.elapsed().as_nanos() as u64);
    loop {
        while let Some((cost, (number, header, pieces))) = queue.take(now()) {
            backlog.add(number);
            let connection = connection.clone();
            transfers.spawn(async move {
                transfer::carry_pieces(&connection, header, &pieces, &network).await.map(|()| (number, cost))
            });
        }
        let due =
            queue.due(now()).map(|due| tokio::time::Instant::from_std(began + Duration::from_nanos(due.0)));
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
                    // The rate is that of pushes.
                    let bytes = if header.kind == TransferKind::Push { header.payload_bytes() } else { 0 };
                    let cost = unread_at_most(&header, &network);
                    queue.put(network.rank(&header), (cost, bytes), (last, *header, pieces));
                }
                Some(Outgoing::Finish) => {
                    if let Some(sender) = sender.take() {
                        sender.finish().await;
                    }
                }
                None => return None,
            },
            () = sleep_until(due) => {}
            Some(ended) = transfers.join_next() => {
                match ended {
                    Ok(Ok((number, cost))) => {
                        backlog.remove(number);
                        queue.done(cost);
                    }
                    // Nobody would send it again while the connection stands.
                    Ok(Err(error)) => return Some(error),
                    Err(_) => return Some(TransferError::Stopped),
                }
            }
        }
    }
}

/// Until a moment; for ever where there is none.
async fn sleep_until(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
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
    use slackline_core::order::Priority;
    use slackline_core::wire::ToServer;
    use slackline_net::{Connector, ControlReceiver, Gather, Identity, Listener, Role, keys};

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

    const KIB: u64 = 1024;

    /// Small windows, so that transfers wait.
    fn narrow() -> Settings {
        Settings {
            streams: 2,
            stripe_bytes: 64 * KIB,
            stream_window_bytes: 64 * KIB,
            connection_window_bytes: 256 * KIB,
            socket_buffer_bytes: 1024 * KIB,
            ..Settings::default()
        }
    }

    type Control = (ControlSender, ControlReceiver);

    /// Both ends of a connection, the server's first.
    async fn ends(settings: &Settings) -> ((Connection, Control), (Connection, Control)) {
        let folder = tempfile::tempdir().unwrap();
        keys::init(folder.path()).unwrap();
        let identity = |role| Identity::load(folder.path(), role).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(address, &identity(Role::Server), settings).unwrap();
        let connector = Connector::new(&identity(Role::Worker), settings).unwrap();
        let address = listener.local_address().to_string();
        let serve = async {
            let connection = listener.accept().await.unwrap().complete().await.unwrap();
            let (mut sender, receiver) = connection.open_control().await.unwrap();
            // The stream is there for the other side with the first message.
            sender.send(&slackline_core::wire::ToPeer::Renewed).await.unwrap();
            (connection, (sender, receiver))
        };
        let dial = async {
            let connection = connector.connect(&address, Duration::from_secs(10)).await.unwrap();
            let control = connection.accept_control().await.unwrap();
            (connection, control)
        };
        let (served, dialled) = tokio::join!(serve, dial);
        // They outlive the test: what ends with them would end the connection.
        std::mem::forget((listener, connector));
        (served, dialled)
    }

    async fn give(outgoing: &mpsc::Sender<Outgoing<ToServer>>, shard: u32, len: u64) {
        let values = SharedValues::from(vec![0.5; len as usize]);
        let transfer = Outgoing::Transfer(Box::new(push(shard, len)), vec![values]);
        outgoing.send(transfer).await.unwrap();
    }

    /// A server that reads no transfer, and a worker that sends more of them than the connection's window has room for.
    #[tokio::test]
    async fn a_server_that_takes_no_values_still_hears_that_the_worker_lives() {
        let settings = narrow();
        let ((_server, (_sender, mut heard)), (connection, (sender, _receiver))) = ends(&settings).await;
        let (outgoing, waiting) = mpsc::channel(64);
        let backlog = Backlog::default();
        for shard in 0..8 {
            give(&outgoing, shard, 64 * KIB).await;
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
        // Each of them takes all of the credit.
        assert_eq!(backlog.look().map(|(count, _)| count), Some(1), "none of them is taken");
    }

    /// A worker with a rate, and a server that takes what comes.
    #[tokio::test]
    async fn a_server_that_waits_for_what_has_a_rate_is_not_said_to_hold_it_up() {
        let settings = Settings { push_bytes_per_s: 1, ..narrow() };
        let ((server, _control), (connection, (sender, _receiver))) = ends(&settings).await;
        let (outgoing, waiting) = mpsc::channel(64);
        let backlog = Backlog::default();
        for shard in 0..2 {
            give(&outgoing, shard, 32 * KIB).await;
        }
        let read = async {
            let mut gather = None;
            loop {
                let arriving = transfer::accept(&server).await.unwrap().header().await.unwrap();
                let header = *arriving.header();
                assert_eq!(header.shard, ShardId(0), "the second waits for a day");
                let place = || Gather::new(&header, vec![0.0; header.words as usize].into()).unwrap();
                if gather.get_or_insert_with(place).receive(arriving).await.unwrap() {
                    break;
                }
            }
            // The first is acknowledged, and nothing else is under way.
            while backlog.look().is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            error = write(&connection, sender, waiting, settings, &backlog) => panic!("{error:?}"),
            read = tokio::time::timeout(Duration::from_secs(10), read) => read.unwrap(),
        }
    }

    /// A credit is given back when its transfer is taken, not when all of it is written.
    #[tokio::test]
    async fn what_has_no_credit_is_not_begun_before_something_else_is_taken() {
        let settings = Settings { credit_bytes: 4 * KIB, ..narrow() };
        let ((server, (_sender, mut heard)), (connection, (sender, _receiver))) = ends(&settings).await;
        let (outgoing, waiting) = mpsc::channel(64);
        for shard in 0..2 {
            give(&outgoing, shard, 64 * KIB).await;
        }
        outgoing.send(Outgoing::Message(Box::new(ToServer::Renew))).await.unwrap();
        let next = || async { transfer::accept(&server).await.unwrap().header().await.unwrap() };
        let read = async {
            let first = next().await;
            let header = *first.header();
            let gather = Gather::new(&header, vec![0.0; header.words as usize].into()).unwrap();
            let other = next().await;
            assert_eq!(other.header().shard, header.shard, "both of its streams");
            // It was said after the second transfer was handed over, which has not begun for all that.
            assert_eq!(heard.receive().await.unwrap(), Some(ToServer::Renew));
            let early = tokio::time::timeout(Duration::from_millis(100), next()).await;
            assert!(early.is_err(), "{:?} began", early.map(|early| early.header().shard));
            let (one, two) = tokio::join!(gather.receive(first), gather.receive(other));
            assert!(one.unwrap() || two.unwrap(), "whole");
            next().await.header().shard
        };
        let backlog = Backlog::default();
        tokio::select! {
            error = write(&connection, sender, waiting, settings, &backlog) => panic!("{error:?}"),
            next = tokio::time::timeout(Duration::from_secs(10), read) => assert_eq!(next.unwrap(), ShardId(1)),
        }
    }

    /// A transfer that would fill the link for long, and windows that do not stop it.
    #[tokio::test]
    async fn a_message_passes_what_is_being_sent() {
        let settings = Settings::default();
        let ((server, (_sender, mut heard)), (connection, (sender, _receiver))) = ends(&settings).await;
        let (outgoing, waiting) = mpsc::channel(64);
        let len = 32 * KIB * KIB;
        give(&outgoing, 0, len).await;
        let read = async {
            let mut arriving = transfer::accept(&server).await.unwrap().header().await.unwrap();
            // All of it could go before a message that is given now.
            outgoing.send(Outgoing::Message(Box::new(ToServer::Renew))).await.unwrap();
            let gather = Gather::new(arriving.header(), vec![0.0; len as usize].into()).unwrap();
            let take = async {
                while !gather.receive(arriving).await.unwrap() {
                    arriving = transfer::accept(&server).await.unwrap().header().await.unwrap();
                }
            };
            tokio::select! {
                biased;
                heard = heard.receive() => assert_eq!(heard.unwrap(), Some(ToServer::Renew)),
                () = take => panic!("128 MiB were there before the message"),
            }
        };
        let backlog = Backlog::default();
        tokio::select! {
            error = write(&connection, sender, waiting, settings, &backlog) => panic!("{error:?}"),
            read = tokio::time::timeout(Duration::from_secs(60), read) => read.unwrap(),
        }
    }

    /// Gives pushes of these shards at once, the last layer's first as backward makes them, and says in which order a server has them whole.
    async fn arrivals(order: Priority) -> Vec<u32> {
        let settings = Settings { order, credit_bytes: 16 * KIB, ..narrow() };
        let ((server, _control), (connection, (sender, _receiver))) = ends(&settings).await;
        let (outgoing, waiting) = mpsc::channel(64);
        for shard in [5, 4, 3, 2, 1, 0] {
            give(&outgoing, shard, 64 * KIB).await;
        }
        let read = async {
            let (mut gathers, mut whole) = (BTreeMap::new(), Vec::new());
            while whole.len() < 6 {
                let arriving = transfer::accept(&server).await.unwrap().header().await.unwrap();
                let header = *arriving.header();
                let place = || Gather::new(&header, vec![0.0; header.words as usize].into()).unwrap();
                let gather: &Gather = gathers.entry(header.shard).or_insert_with(place);
                if gather.receive(arriving).await.unwrap() {
                    whole.push(header.shard.0);
                }
            }
            whole
        };
        let backlog = Backlog::default();
        tokio::select! {
            error = write(&connection, sender, waiting, settings, &backlog) => panic!("{error:?}"),
            whole = tokio::time::timeout(Duration::from_secs(10), read) => whole.unwrap(),
        }
    }

    #[tokio::test]
    async fn the_first_layers_overtake_what_is_not_under_way_yet() {
        assert_eq!(arrivals(Priority::Arrival).await, [5, 4, 3, 2, 1, 0]);
        // What came first may be under way before the others are there.
        let whole = arrivals(Priority::FrontFirst).await;
        let overtaken: Vec<u32> = whole.iter().copied().filter(|shard| *shard != 5).collect();
        assert_eq!(overtaken, [0, 1, 2, 3, 4], "{whole:?}");
    }
}
