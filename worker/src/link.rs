//! The connections to the servers: each is made, read and written by tasks of its own, and speaks to the driver through one channel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slackline_core::ids::{Sequence, ServerId, ShardId};
use slackline_core::wire::{Served, ToPeer, ToServer, TransferHeader, TransferKind};
use slackline_net::{
    Arriving, CloseCode, Connection, Connector, ControlReceiver, ControlSender, Destination, Gather,
    Settings, SharedValues, transfer,
};
use slackline_worker_core::Event;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Messages that may wait to be sent to one server.
const OUTGOING_MAX: usize = 256;

/// How long one attempt to connect lasts.
const ATTEMPT: Duration = Duration::from_secs(5);

/// An event with the number of the connection it belongs to.
pub(crate) type Tagged = (ServerId, u64, Event);

#[derive(Debug)]
enum Outgoing {
    Message(Box<ToServer>),
    Transfer(Box<TransferHeader>, SharedValues),
}

/// Where the answer to a pull goes.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) request: u64,
    pub(crate) destination: Destination,
}

/// What is expected from one server, by shard: for training and for evaluation.
type Expectations = Arc<Mutex<BTreeMap<(ShardId, bool), Expected>>>;

#[derive(Debug, Default)]
struct Link {
    number: u64,
    outgoing: Option<mpsc::Sender<Outgoing>>,
    task: Option<JoinHandle<()>>,
    expected: Expectations,
    connection: Arc<Mutex<Option<Connection>>>,
}

/// All connections of a worker.
#[derive(Debug)]
pub(crate) struct Links {
    connector: Arc<Connector>,
    addresses: Vec<String>,
    network: Settings,
    events: mpsc::Sender<Tagged>,
    links: BTreeMap<ServerId, Link>,
    /// Datagram bytes of connections that are gone: sent, received.
    former_bytes: (u64, u64),
}

impl Links {
    pub(crate) fn new(
        connector: Connector,
        addresses: Vec<String>,
        network: Settings,
        events: mpsc::Sender<Tagged>,
    ) -> Self {
        let links = BTreeMap::new();
        Self { connector: Arc::new(connector), addresses, network, events, links, former_bytes: (0, 0) }
    }

    /// The address of a server, as the configuration gives it.
    pub(crate) fn address_of(&self, server: ServerId) -> &str {
        self.addresses.get(server.0 as usize).map_or("", String::as_str)
    }

    /// Whether an event belongs to the present connection.
    pub(crate) fn is_present(&self, server: ServerId, number: u64) -> bool {
        self.links.get(&server).is_some_and(|link| link.number == number && link.task.is_some())
    }

    pub(crate) fn connect(&mut self, server: ServerId) {
        self.disconnect(server);
        let address = self.address_of(server).to_owned();
        let link = self.links.entry(server).or_default();
        link.number += 1;
        let (outgoing, waiting) = mpsc::channel(OUTGOING_MAX);
        link.outgoing = Some(outgoing);
        link.expected = Expectations::default();
        let task = Task {
            server,
            number: link.number,
            address,
            connector: self.connector.clone(),
            network: self.network,
            events: self.events.clone(),
            expected: link.expected.clone(),
            connection: link.connection.clone(),
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

    pub(crate) fn expect(&self, server: ServerId, shard: ShardId, snapshot: bool, expected: Expected) {
        if let Some(link) = self.links.get(&server) {
            let mut all = link.expected.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert((shard, snapshot), expected);
        }
    }

    pub(crate) fn send(&self, server: ServerId, message: ToServer) {
        self.put(server, Outgoing::Message(Box::new(message)));
    }

    pub(crate) fn transfer(&self, server: ServerId, header: TransferHeader, values: SharedValues) {
        self.put(server, Outgoing::Transfer(Box::new(header), values));
    }

    fn put(&self, server: ServerId, outgoing: Outgoing) {
        let sender = self.links.get(&server).and_then(|link| link.outgoing.as_ref());
        if let Some(sender) = sender
            && sender.try_send(outgoing).is_err()
        {
            // The server takes nothing, or the connection is gone; its end, which is told, sorts it out.
            tracing::debug!(server = server.0, "a message could not be queued");
        }
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

/// The life of one connection.
struct Task {
    server: ServerId,
    number: u64,
    address: String,
    connector: Arc<Connector>,
    network: Settings,
    events: mpsc::Sender<Tagged>,
    expected: Expectations,
    connection: Arc<Mutex<Option<Connection>>>,
}

impl Task {
    async fn tell(&self, event: Event) {
        // Fails only when the driver has ended, which ends this task too.
        let _ = self.events.send((self.server, self.number, event)).await;
    }

    async fn run(self, waiting: mpsc::Receiver<Outgoing>) {
        let server = self.server;
        let connection = match self.connector.connect(&self.address, ATTEMPT).await {
            Ok(connection) => connection,
            Err(error) => {
                let (reason, fatal) = (error.to_string(), !error.is_retryable());
                self.tell(Event::ConnectFailed { server, reason, fatal }).await;
                return;
            }
        };
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        if let Ok((sender, receiver)) = connection.accept_control().await {
            self.tell(Event::Connected { server }).await;
            // The first to end takes the others with it: a connection is whole or gone.
            tokio::select! {
                () = self.read(receiver) => {}
                () = write(&connection, sender, waiting, self.network) => {}
                () = self.take_transfers(&connection) => {}
            }
        }
        self.tell(Event::Lost { server }).await;
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
        let gathers = Arc::new(Mutex::new(BTreeMap::new()));
        let mut stripes = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                opening = transfer::accept(connection) => {
                    let Ok(opening) = opening else { return };
                    let inward = Inward {
                        server: self.server,
                        number: self.number,
                        events: self.events.clone(),
                        expected: self.expected.clone(),
                        gathers: gathers.clone(),
                    };
                    stripes.spawn(async move {
                        match opening.header().await {
                            Ok(arriving) => inward.take_stripe(arriving).await,
                            Err(error) => Err(error.to_string()),
                        }
                    });
                }
                Some(ended) = stripes.join_next() => {
                    if let Ok(Err(text)) = ended {
                        tracing::warn!(server = self.server.0, "a transfer failed: {text}");
                        return;
                    }
                }
            }
        }
    }
}

/// Transfers that are arriving, by shard and number of the pull.
type Gathers = Arc<Mutex<BTreeMap<(ShardId, Sequence), Gather>>>;

/// The way of one stripe.
struct Inward {
    server: ServerId,
    number: u64,
    events: mpsc::Sender<Tagged>,
    expected: Expectations,
    gathers: Gathers,
}

impl Inward {
    /// Reads one stripe straight to its place; a stripe that nobody waits for any more is thrown away unread.
    async fn take_stripe(self, arriving: Arriving) -> Result<(), String> {
        let header = *arriving.header();
        if header.kind != TransferKind::Values {
            return Err("a server sends nothing but values".to_owned());
        }
        let Some(destination) = self.destination_of(&header) else { return Ok(()) };
        let key = (header.shard, header.sequence);
        let gather = {
            let mut gathers = self.gathers.lock().unwrap_or_else(PoisonError::into_inner);
            match gathers.get(&key) {
                Some(gather) => gather.clone(),
                None => {
                    let gather = Gather::onto(&header, destination).map_err(|error| error.to_string())?;
                    gathers.insert(key, gather.clone());
                    gather
                }
            }
        };
        let complete = gather.receive(arriving).await.map_err(|error| error.to_string())?;
        if complete {
            self.gathers.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            let served = Served {
                version: header.version,
                minimum: header.clock,
                lead: header.lead,
                held_us: header.held_us,
            };
            let (server, shard, request) = (self.server, header.shard, header.sequence.0);
            let event = Event::ValuesArrived { server, shard, request, served };
            let _ = self.events.send((self.server, self.number, event)).await;
        }
        Ok(())
    }

    fn destination_of(&self, header: &TransferHeader) -> Option<Destination> {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |snapshot| {
            let expected: &Expected = expected.get(&(header.shard, snapshot))?;
            (expected.request == header.sequence.0).then(|| expected.destination.clone())
        };
        wanted(false).or_else(|| wanted(true))
    }
}

async fn write(
    connection: &Connection,
    mut sender: ControlSender,
    mut waiting: mpsc::Receiver<Outgoing>,
    network: Settings,
) {
    while let Some(outgoing) = waiting.recv().await {
        match outgoing {
            Outgoing::Message(message) => {
                if sender.send(message.as_ref()).await.is_err() {
                    return;
                }
            }
            Outgoing::Transfer(header, values) => {
                // Beside the control messages, which must not wait for it.
                let connection = connection.clone();
                tokio::spawn(async move {
                    if let Err(error) = transfer::send(&connection, *header, &values, &network).await {
                        tracing::debug!(%error, "a transfer did not go out");
                    }
                });
            }
        }
    }
}
