//! The connections to the servers: each is made, read and written by tasks of its own, and speaks to the driver through one channel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use slackline_core::config::timers;
use slackline_core::ids::{Sequence, ServerId, ShardId};
use slackline_core::partition::Partition;
use slackline_core::wire::{Served, ToPeer, ToServer, TransferHeader, TransferKind};
use slackline_net::{
    Arriving, CloseCode, Connection, ConnectionError, Connector, ControlReceiver, Destination, Gather,
    Settings, SharedValues, TransferError,
};
use slackline_worker_core::{Event, Obstacle};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::streams::{self, Backlog, Outgoing};

/// Messages that may wait to be sent to one server for each shard, since all can move to it: after a reconnection its initial values, a
/// push, a pull and a snapshot.
const OUTGOING_PER_SHARD: usize = 4;

/// Messages that may wait beside them: asks, renewals, results.
const OUTGOING_MORE: usize = 64;

/// An event with the number of the connection it belongs to.
pub(crate) type Tagged = (ServerId, u64, Event);

/// What values are pulled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    Training,
    /// To replace those for training, if they come in time.
    Fresher,
    Evaluation,
}

/// Where the answer to a pull goes.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) request: u64,
    pub(crate) destination: Destination,
}

/// An answer that is awaited. When it is not any more, the other end of the channel sees it, and what is being read for it ends there:
/// otherwise it would be written between what comes for the pull that has taken its place.
#[derive(Debug)]
struct Awaited {
    expected: Expected,
    alive: watch::Sender<()>,
}

/// What is expected from one server, by shard and purpose.
type Expectations = Arc<Mutex<BTreeMap<(ShardId, Purpose), Awaited>>>;

#[derive(Debug, Default)]
struct Link {
    number: u64,
    outgoing: Option<mpsc::Sender<Outgoing<ToServer>>>,
    task: Option<JoinHandle<()>>,
    expected: Expectations,
    connection: Arc<Mutex<Option<Connection>>>,
    backlog: Backlog,
}

/// All connections of a worker.
#[derive(Debug)]
pub(crate) struct Links {
    connector: Arc<Connector>,
    /// Where each server may be: one address, or one for each candidate for the coordinator, which stands behind the servers.
    addresses: Vec<Vec<String>>,
    network: Settings,
    events: mpsc::Sender<Tagged>,
    links: BTreeMap<ServerId, Link>,
    /// Shards with keys.
    shards: usize,
    /// Connections that were given up because a message could not be queued, with their numbers.
    broken: Vec<(ServerId, u64)>,
    /// Datagram bytes of connections that are gone: sent, received.
    former_bytes: (u64, u64),
}

impl Links {
    pub(crate) fn new(
        connector: Connector,
        addresses: Vec<Vec<String>>,
        network: Settings,
        partition: &Partition,
        events: mpsc::Sender<Tagged>,
    ) -> Self {
        let shards = partition.shards().count();
        Self {
            connector: Arc::new(connector),
            addresses,
            network,
            events,
            links: BTreeMap::new(),
            shards,
            broken: Vec::new(),
            former_bytes: (0, 0),
        }
    }

    /// The addresses that a server may be at, as the configuration gives them, for people.
    pub(crate) fn address_of(&self, server: ServerId) -> String {
        self.addresses.get(server.0 as usize).map_or_else(String::new, |addresses| addresses.join(" or "))
    }

    /// Whether an event belongs to the present connection.
    pub(crate) fn is_present(&self, server: ServerId, number: u64) -> bool {
        self.links.get(&server).is_some_and(|link| link.number == number && link.task.is_some())
    }

    pub(crate) fn connect(&mut self, server: ServerId) {
        self.disconnect(server);
        let addresses = self.addresses.get(server.0 as usize).cloned().unwrap_or_default();
        let link = self.links.entry(server).or_default();
        link.number += 1;
        let (outgoing, waiting) = mpsc::channel(OUTGOING_PER_SHARD * self.shards + OUTGOING_MORE);
        link.outgoing = Some(outgoing);
        link.backlog = Backlog::default();
        link.expected = Expectations::default();
        let task = Task {
            server,
            number: link.number,
            addresses,
            connector: self.connector.clone(),
            network: self.network,
            events: self.events.clone(),
            expected: link.expected.clone(),
            connection: link.connection.clone(),
            backlog: link.backlog.clone(),
        };
        link.task = Some(tokio::spawn(task.run(waiting)));
    }

    pub(crate) fn disconnect(&mut self, server: ServerId) {
        let Some(link) = self.links.get_mut(&server) else { return };
        link.outgoing = None;
        if let Some(task) = link.task.take() {
            task.abort();
        }
        let connection = link.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(connection) = connection {
            let (sent, received) = connection.wire_bytes();
            self.former_bytes = (self.former_bytes.0 + sent, self.former_bytes.1 + received);
            connection.close(CloseCode::Done, "");
        }
    }

    /// The answer to this pull is awaited, and none that was awaited before for the same shard and purpose, from whatever server.
    pub(crate) fn expect(&self, server: ServerId, shard: ShardId, purpose: Purpose, expected: Expected) {
        let mut awaited = Some(Awaited { expected, alive: watch::Sender::new(()) });
        for (other, link) in &self.links {
            let mut all = link.expected.lock().unwrap_or_else(PoisonError::into_inner);
            all.remove(&(shard, purpose));
            if *other == server {
                all.extend(awaited.take().map(|awaited| ((shard, purpose), awaited)));
            }
        }
    }

    /// The number of the present connection to a server, if there is one or one is being made.
    pub(crate) fn number_of(&self, server: ServerId) -> Option<u64> {
        self.links.get(&server).filter(|link| link.task.is_some()).map(|link| link.number)
    }

    /// Transfers that a server has not taken yet, and for how long the oldest has waited.
    pub(crate) fn backlog(&self, server: ServerId) -> Option<(usize, Duration)> {
        self.links.get(&server)?.backlog.look()
    }

    pub(crate) fn send(&mut self, server: ServerId, message: ToServer) {
        self.put(server, Outgoing::Message(Box::new(message)));
    }

    pub(crate) fn transfer(&mut self, server: ServerId, header: TransferHeader, values: SharedValues) {
        self.put(server, Outgoing::Transfer(Box::new(header), vec![values]));
    }

    fn put(&mut self, server: ServerId, outgoing: Outgoing<ToServer>) {
        let Some(link) = self.links.get(&server) else { return };
        let Some(sender) = &link.outgoing else { return };
        let number = link.number;
        // If the queue is closed, the connection is gone, and its end, which is told, sorts it out.
        if let Err(TrySendError::Full(_)) = sender.try_send(outgoing) {
            tracing::warn!(server = server.0, "the server takes nothing more; connecting again");
            self.disconnect(server);
            self.broken.push((server, number));
        }
    }

    /// The servers whose connections were given up here since the last call, and not made again since.
    pub(crate) fn take_broken(&mut self) -> Vec<ServerId> {
        let broken = std::mem::take(&mut self.broken);
        let is_gone = |(server, number): (ServerId, u64)| {
            let link = self.links.get(&server)?;
            (link.number == number).then_some(server)
        };
        broken.into_iter().filter_map(is_gone).collect()
    }

    /// Bytes of datagrams so far: sent, received.
    pub(crate) fn wire_bytes(&self) -> (u64, u64) {
        self.links.values().fold(self.former_bytes, |(sent, received), link| {
            let connection = link.connection.lock().unwrap_or_else(PoisonError::into_inner);
            let (more_sent, more_received) = connection.as_ref().map_or((0, 0), Connection::wire_bytes);
            (sent + more_sent, received + more_received)
        })
    }

    pub(crate) async fn close(mut self) {
        let servers: Vec<ServerId> = self.links.keys().copied().collect();
        for server in servers {
            self.disconnect(server);
        }
        self.connector.close(CloseCode::Done, "").await;
    }
}

/// How long one attempt to connect lasts: half a lease, within bounds. QUIC asks a server that does not answer ever more seldom, and one
/// that comes back within a lease should be found within it.
fn attempt(network: &Settings) -> Duration {
    let [least, most] = timers::ATTEMPT;
    (network.idle_timeout / 2).clamp(least, most)
}

/// The life of one connection.
struct Task {
    server: ServerId,
    number: u64,
    addresses: Vec<String>,
    connector: Arc<Connector>,
    network: Settings,
    events: mpsc::Sender<Tagged>,
    expected: Expectations,
    connection: Arc<Mutex<Option<Connection>>>,
    backlog: Backlog,
}

impl Task {
    async fn tell(&self, event: Event) {
        // Fails only when the driver has ended, which ends this task too.
        let _ = self.events.send((self.server, self.number, event)).await;
    }

    async fn run(self, waiting: mpsc::Receiver<Outgoing<ToServer>>) {
        let server = self.server;
        let connection = match self.connect().await {
            Ok(connection) => connection,
            Err((reason, obstacle)) => {
                self.tell(Event::ConnectFailed { server, reason, obstacle }).await;
                return;
            }
        };
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        if let Ok((sender, receiver)) = connection.accept_control().await {
            self.tell(Event::Connected { server }).await;
            // The first to end takes the others with it: a connection is whole or gone.
            tokio::select! {
                () = self.read(receiver) => {}
                error = streams::write(&connection, sender, waiting, self.network, &self.backlog) => {
                    if let Some(error) = error {
                        tracing::debug!(server = server.0, %error, "nothing more goes out");
                    }
                }
                () = self.take_transfers(&connection) => {}
            }
        }
        self.tell(Event::Lost { server }).await;
    }

    /// The connection, or why there is none and what stands against it. Several addresses are tried at once: all candidates
    /// for the coordinator but one turn this worker away, and one that is frozen says nothing.
    async fn connect(&self) -> Result<Connection, (String, Obstacle)> {
        let within = attempt(&self.network);
        let mut attempts: FuturesUnordered<_> =
            self.addresses.iter().map(|address| self.connector.connect(address, within)).collect();
        let mut reasons = Vec::new();
        let (mut is_lasting, mut is_own) = (true, false);
        while let Some(outcome) = attempts.next().await {
            match outcome {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    is_lasting &= !error.is_retryable();
                    is_own |= error.is_own();
                    reasons.push(error.to_string());
                }
            }
        }
        reasons.sort_unstable();
        let obstacle = match (is_lasting, is_own) {
            (false, _) => Obstacle::Passing,
            (true, false) => Obstacle::Lasting,
            (true, true) => Obstacle::Own,
        };
        Err((reasons.join("; "), obstacle))
    }

    async fn read(&self, mut receiver: ControlReceiver) {
        loop {
            match receiver.receive::<ToPeer>().await {
                Ok(Some(message)) => self.tell(Event::Message { server: self.server, message }).await,
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(server = self.server.0, %error, "the control stream ended");
                    return;
                }
            }
        }
    }

    async fn take_transfers(&self, connection: &Connection) {
        let inward = Inward {
            server: self.server,
            number: self.number,
            events: self.events.clone(),
            expected: self.expected.clone(),
            gathers: Gathers::default(),
        };
        let failed =
            streams::take_transfers(connection, move |arriving| inward.clone().take_stripe(arriving));
        if let Failed::Transfer(text) = failed.await {
            tracing::warn!(server = self.server.0, "a transfer failed: {text}");
        }
    }
}

/// Why no more transfers are taken.
enum Failed {
    /// The connection has ended.
    Connection,
    /// One of them was wrong or broke off.
    Transfer(String),
}

impl From<ConnectionError> for Failed {
    fn from(_: ConnectionError) -> Self {
        Self::Connection
    }
}

impl From<TransferError> for Failed {
    fn from(error: TransferError) -> Self {
        Self::Transfer(error.to_string())
    }
}

/// Transfers that are arriving, by shard and number of the pull.
type Gathers = Arc<Mutex<BTreeMap<(ShardId, Sequence), Gather>>>;

/// The way of one stripe.
#[derive(Clone)]
struct Inward {
    server: ServerId,
    number: u64,
    events: mpsc::Sender<Tagged>,
    expected: Expectations,
    gathers: Gathers,
}

impl Inward {
    /// Reads one stripe, plain values straight to their place; a stripe that nobody waits for any more is thrown away unread.
    async fn take_stripe(self, arriving: Arriving) -> Result<(), Failed> {
        let header = *arriving.header();
        if header.kind != TransferKind::Values {
            return Err(Failed::Transfer("a server sends nothing but values".to_owned()));
        }
        let Some((place, mut alive)) = self.place_of(&header) else { return Ok(()) };
        let key = (header.shard, header.sequence);
        let gather = {
            let mut gathers = self.gathers.lock().unwrap_or_else(PoisonError::into_inner);
            match gathers.get(&key) {
                Some(gather) => gather.clone(),
                None => {
                    let gather = Gather::towards(&header, &place)?;
                    gathers.insert(key, gather.clone());
                    gather
                }
            }
        };
        let complete = tokio::select! {
            // First: a patch must not be written over what has come for another pull.
            biased;
            // Another pull has taken the place of this one.
            _ = alive.changed() => {
                self.gathers.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
                return Ok(());
            }
            complete = gather.receive(arriving) => complete?,
        };
        if complete {
            self.gathers.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            gather.land(&place)?;
            let served = Served {
                version: header.version,
                minimum: header.clock,
                lead: header.lead,
                held_us: header.held_us,
            };
            let (server, shard, request) = (self.server, header.shard, header.sequence.0);
            let bytes = header.payload_bytes();
            let event = Event::ValuesArrived { server, shard, request, served, bytes };
            let _ = self.events.send((self.server, self.number, event)).await;
        }
        Ok(())
    }

    fn place_of(&self, header: &TransferHeader) -> Option<(Destination, watch::Receiver<()>)> {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let purposes = [Purpose::Training, Purpose::Fresher, Purpose::Evaluation];
        let mut all = purposes.iter().filter_map(|purpose| expected.get(&(header.shard, *purpose)));
        let awaited = all.find(|awaited| awaited.expected.request == header.sequence.0)?;
        Some((awaited.expected.destination.clone(), awaited.alive.subscribe()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use slackline_net::{Identity, Role, keys};

    fn links(shards_per_server: u32) -> Links {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("keys");
        keys::init(&folder).unwrap();
        let settings = Settings::default();
        let connector = Connector::new(&Identity::load(&folder, Role::Worker).unwrap(), &settings).unwrap();
        let partition = Partition::new(16 * 2 * 256, 2, shards_per_server);
        let (events, _) = mpsc::channel(1);
        Links::new(connector, vec![vec!["127.0.0.1:1".to_owned()]; 2], settings, &partition, events)
    }

    #[tokio::test]
    async fn a_queue_holds_what_a_reconnection_sends_for_every_shard() {
        let mut links = links(256);
        links.connect(ServerId(1));
        // The task has not run yet: nothing is taken out.
        (0..4 * 512 + 64).for_each(|_| links.send(ServerId(1), ToServer::Renew));
        assert!(links.take_broken().is_empty());
    }

    #[tokio::test]
    async fn a_shard_that_has_moved_is_awaited_from_its_new_server_alone() {
        let mut links = links(1);
        (0..2).for_each(|server| links.connect(ServerId(server)));
        let awaited = |links: &Links, server: u32, request: u64| {
            let expected = links.links[&ServerId(server)].expected.lock().unwrap();
            let awaited = expected.get(&(ShardId(1), Purpose::Training))?;
            (awaited.expected.request == request).then(|| awaited.alive.subscribe())
        };
        let expect = |links: &Links, server, request| {
            let destination = Destination::from(vec![0.0; 2]);
            let expected = Expected { request, destination };
            links.expect(ServerId(server), ShardId(1), Purpose::Training, expected);
        };
        expect(&links, 0, 5);
        let mut reading = awaited(&links, 0, 5).unwrap();
        assert!(reading.has_changed().is_ok());
        expect(&links, 1, 6);
        assert!(awaited(&links, 0, 5).is_none() && awaited(&links, 1, 6).is_some());
        assert!(reading.changed().await.is_err(), "what is being read of the old answer ends");
        let mut reading = awaited(&links, 1, 6).unwrap();
        expect(&links, 1, 7);
        assert!(reading.changed().await.is_err(), "of the same server too");
    }

    #[tokio::test]
    async fn a_full_queue_is_a_lost_connection() {
        let mut links = links(1);
        links.connect(ServerId(1));
        (0..=72).for_each(|_| links.send(ServerId(1), ToServer::Renew));
        assert!(!links.is_present(ServerId(1), 1), "nothing more is heard of it");
        assert_eq!(links.take_broken(), [ServerId(1)]);
        assert!(links.take_broken().is_empty(), "it is told once");
        // One that was made again meanwhile is not lost.
        links.connect(ServerId(1));
        (0..=72).for_each(|_| links.send(ServerId(1), ToServer::Renew));
        links.connect(ServerId(1));
        assert!(links.take_broken().is_empty());
    }
}
