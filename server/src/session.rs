//! One peer: its control messages in, its transfers in, and what it is sent.

mod writing;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use slackline_core::codec::{Encoding, Payload};
use slackline_core::ids::{Sequence, SessionId, ShardId};
use slackline_core::wire::{Status, ToPeer, ToServer, TransferHeader, TransferKind};
use slackline_net::{
    Arriving, CloseCode, Connection, ConnectionError, ControlReceiver, Gather, Role, Settings, transfer,
};
use slackline_server_core::ControlEvent;
use slackline_server_core::ShardEvent;
use slackline_server_core::shard::Push;
use tokio::sync::{OnceCell, mpsc, watch};

use crate::budget::{Budget, Room};
use crate::directory::{Directory, OUTGOING_MAX, Outgoing};
use crate::door::{self, Unheard};
use crate::feeds;
use crate::looks;
use crate::owner::{Owner, Task};

/// Transfers of one session that may be arriving at one shard at once. A worker has one push under way and perhaps a retry.
const ARRIVING_MAX: usize = 4;

/// What all sessions of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) directory: Arc<Directory>,
    /// The shards that this server leads or backs, or has. A lock, since control adds to them while sessions look; all on one thread.
    pub(crate) owners: RwLock<BTreeMap<ShardId, Owner>>,
    pub(crate) control: mpsc::Sender<ControlEvent>,
    pub(crate) network: Settings,
    /// Fingerprint of the configuration, which the servers of one run share.
    pub(crate) config_hash: u64,
    /// Bytes of a frame's payload in a log at most: those of the largest shard.
    pub(crate) payload_max: u64,
    /// What a status says while control waits for its memory and hears nobody.
    pub(crate) standstill: watch::Sender<Option<Standstill>>,
    /// Those who were turned away without a word of each to control.
    pub(crate) unheard: Unheard,
}

/// Control hears this no more: its loop has ended.
#[derive(Debug)]
struct Gone;

/// What is said while control hears nobody.
#[derive(Clone, Debug)]
pub(crate) struct Standstill {
    pub(crate) welcome: ToPeer,
    pub(crate) status: Status,
}

/// Whether control can be told something.
enum Place<'a> {
    /// It can.
    Free(mpsc::Permit<'a, ControlEvent>),
    /// It stands still; this is what is said meanwhile.
    None(Box<Standstill>),
}

impl Shared {
    /// The owner of a shard on this server.
    pub(crate) fn owner(&self, shard: ShardId) -> Option<Owner> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner).get(&shard).cloned()
    }

    /// Control hears nobody until this is none again; a status says it so.
    pub(crate) fn stand_still(&self, standstill: Option<Standstill>) {
        self.standstill.send_replace(standstill);
    }

    /// Waits for a place in control's queue, or only until control stands still: then that queue may be full, and what is said in its
    /// stead is returned.
    async fn place_or_standstill(&self) -> Result<Place<'_>, Gone> {
        let mut standstill = self.standstill.subscribe();
        let stands = async {
            match standstill.wait_for(Option::is_some).await {
                Ok(standstill) => standstill.clone(),
                // This server's sessions share what would have to be gone.
                Err(_) => None,
            }
        };
        tokio::select! {
            biased;
            Some(standstill) = stands => Ok(Place::None(Box::new(standstill))),
            place = self.control.reserve() => place.map(Place::Free).map_err(|_| Gone),
        }
    }

    /// All of them, in their order.
    pub(crate) fn owners(&self) -> Vec<(ShardId, Owner)> {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        owners.iter().map(|(shard, owner)| (*shard, owner.clone())).collect()
    }
}

/// Serves one peer until its connection ends.
pub(crate) async fn serve(id: SessionId, connection: Connection, shared: Arc<Shared>) {
    let (sender, receiver) = match connection.open_control().await {
        Ok(control) => control,
        Err(error) => {
            tracing::debug!(session = id.0, %error, "a peer left before it was welcomed");
            return;
        }
    };
    let (outgoing, waiting) = mpsc::channel(OUTGOING_MAX);
    let (shares, piece) = (shared.network.shares(), shared.payload_max);
    let arriving_room = Budget::new(shares.arriving, piece);
    shared.directory.insert(id, outgoing, connection.clone(), Budget::new(shares.leaving, piece));
    let Ok(unheard) = announce(id, &connection, &shared).await else { return };
    let logs = (connection.role() == Role::Server)
        .then(|| tokio::spawn(feeds::take_logs(connection.clone(), shared.clone())));
    let session = Arc::new(Session {
        id,
        connection: connection.clone(),
        shared,
        arriving: Mutex::default(),
        arriving_room,
        unheard: Mutex::new(unheard),
    });
    let writer = tokio::spawn(session.clone().write(sender, waiting));
    let transfers = tokio::spawn(session.clone().take_transfers());
    let outcome = session.read(receiver).await;
    transfers.abort();
    session.arriving_room.close();
    if let Some(logs) = logs {
        logs.abort();
    }
    if let Err(error) = outcome {
        session.turn_away(&error);
    }
    session.shared.directory.remove(id);
    // The writer still sends what was said before, then ends since its channel is closed.
    let _ = writer.await;
    if session.take_unheard().is_none() {
        let _ = session.shared.control.send(ControlEvent::Closed { session: id }).await;
    }
}

/// Tells control of a new session. Whoever only looks does not wait for that while control stands still: it is welcomed at once, and what
/// control has not heard of it is returned.
async fn announce(
    id: SessionId,
    connection: &Connection,
    shared: &Shared,
) -> Result<Option<ControlEvent>, Gone> {
    let (role, address) = (connection.role(), connection.remote().to_string());
    let opened = ControlEvent::Opened { session: id, role, address };
    if !matches!(role, Role::Observer | Role::Admin) {
        return shared.control.send(opened).await.map(|()| None).map_err(|_| Gone);
    }
    match shared.place_or_standstill().await? {
        Place::Free(place) => {
            place.send(opened);
            Ok(None)
        }
        Place::None(standstill) => {
            shared.directory.send(id, Outgoing::Message(standstill.welcome));
            Ok(Some(opened))
        }
    }
}

struct Session {
    id: SessionId,
    connection: Connection,
    shared: Arc<Shared>,
    /// Transfers that are arriving. A lock, since each stripe has a task; all run on the network's thread, so it is free.
    arriving: Mutex<BTreeMap<(ShardId, Sequence), Incoming>>,
    /// Room for them, until their shards have taken them up.
    arriving_room: Budget,
    /// That the session was opened, where control has not heard it yet.
    unheard: Mutex<Option<ControlEvent>>,
}

/// A transfer of which something has arrived; empty until there is room for all of it.
type Incoming = Arc<OnceCell<Admitted>>;

/// A transfer that is being put together.
struct Admitted {
    gather: Gather,
    /// Goes on with the values.
    room: Mutex<Option<Room>>,
    /// How long it waited for that.
    waited: Duration,
}

impl Session {
    async fn read(&self, mut receiver: ControlReceiver) -> Result<(), ConnectionError> {
        while let Some(message) = receiver.receive::<ToServer>().await? {
            let outcome =
                if message == ToServer::Status { self.status().await } else { self.tell(message).await };
            if outcome.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Asks control for a status, or says itself how things are while control stands still.
    async fn status(&self) -> Result<(), Gone> {
        loop {
            match self.shared.place_or_standstill().await? {
                Place::None(standstill) => {
                    if self.shared.directory.begin_status(self.id) {
                        tokio::spawn(looks::send_status(self.id, standstill.status, self.shared.clone()));
                    }
                    return Ok(());
                }
                Place::Free(place) => match self.take_unheard() {
                    Some(opened) => place.send(opened),
                    None => {
                        place.send(ControlEvent::Message { session: self.id, message: ToServer::Status });
                        return Ok(());
                    }
                },
            }
        }
    }

    /// Tells control, however long it takes until there is room for that.
    async fn tell(&self, message: ToServer) -> Result<(), Gone> {
        let event = ControlEvent::Message { session: self.id, message };
        for event in self.take_unheard().into_iter().chain([event]) {
            self.shared.control.send(event).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    fn take_unheard(&self) -> Option<ControlEvent> {
        self.unheard.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A peer whose bytes have no meaning is cut off and counted; one whose connection was lost may come back.
    fn turn_away(&self, error: &ConnectionError) {
        let was_closed = matches!(error, ConnectionError::Closed { .. } | ConnectionError::ClosedHere);
        if error.is_lost() || was_closed {
            tracing::debug!(session = self.id.0, %error, "a connection is gone");
            return;
        }
        self.cut_off(error.to_string());
    }

    /// Says to the peer and to control that what came has no meaning.
    fn cut_off(&self, text: String) {
        self.connection.close(CloseCode::Malformed, &text);
        door::turned_away(&self.shared, self.connection.remote().to_string(), text, false);
    }

    async fn take_transfers(self: Arc<Self>) {
        while let Ok(opening) = transfer::accept(&self.connection).await {
            let session = self.clone();
            tokio::spawn(async move {
                let outcome = match opening.header().await {
                    Ok(arriving) => session.take_stripe(arriving).await,
                    Err(error) => Err(error.to_string()),
                };
                if let Err(text) = outcome
                    && session.connection.is_open()
                {
                    session.cut_off(text);
                }
            });
        }
    }

    /// Reads one stripe; with the last one, the transfer goes to its shard.
    async fn take_stripe(&self, arriving: Arriving) -> Result<(), String> {
        let header = *arriving.header();
        let owner = self.owner_of(&header)?;
        let key = (header.shard, header.sequence);
        let incoming = self.incoming(key)?;
        // Until there is room nothing more of it is read, and QUIC keeps the rest of it at the peer.
        let admitted = incoming.get_or_try_init(|| self.admit(&header, &owner)).await?;
        let outcome = admitted.gather.receive(arriving).await;
        if !matches!(outcome, Ok(false)) {
            self.arriving.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        }
        if !outcome.map_err(|error| error.to_string())? {
            return Ok(());
        }
        let values = admitted.gather.take();
        let room = admitted.room.lock().unwrap_or_else(PoisonError::into_inner).take();
        let is_initial = header.kind == TransferKind::Initial;
        if let Some(at) = values.iter().position(|value| is_initial && !value.is_finite()) {
            let (shard, key) = (header.shard, header.keys.start + at as u64);
            return Err(format!(
                "the initial values for {shard} are not all finite: key {key} is {}",
                values[at]
            ));
        }
        let event =
            match header.kind {
                TransferKind::Initial => ShardEvent::Initialize(values),
                _ => ShardEvent::Push(Push {
                    session: self.id,
                    worker: header.worker,
                    incarnation: header.incarnation,
                    sequence: header.sequence,
                    clock: header.clock,
                    pulled: header.version,
                    batch: header.batch,
                    samples: header.samples,
                    reply: header.reply,
                    have: header.have,
                    gradient: Some(Payload::new(header.encoding, header.keys.len as usize, values).map_err(
                        |error| format!("a push of {} for {}: {error}", header.worker, header.shard),
                    )?),
                }),
            };
        // Fails only when the shard's thread has ended, and with it the run: the thread itself has told the control loop.
        let (session, arrived, waited) = (self.id, Instant::now(), admitted.waited);
        let task = Task { event, session, arrived, waited, _room: room };
        let _ = owner.inbox.send(task).await;
        Ok(())
    }

    /// Checks a header against what this session may send, before a byte is set aside for it.
    fn owner_of(&self, header: &TransferHeader) -> Result<Owner, String> {
        match header.kind {
            TransferKind::Push => {}
            TransferKind::Initial if header.encoding == Encoding::F32 => {}
            TransferKind::Initial => return Err("initial values come as plain f32".to_owned()),
            TransferKind::Values => return Err("a server takes no values".to_owned()),
            TransferKind::Part | TransferKind::State | TransferKind::Probe => {
                return Err("a server takes nothing that belongs between workers".to_owned());
            }
        }
        let speaks_for = self.shared.directory.worker_of(self.id);
        if speaks_for != Some((header.worker, header.incarnation)) {
            return Err(format!("the session does not speak for {} ({})", header.worker, header.incarnation));
        }
        let owner = self.shared.owner(header.shard);
        let owner = owner.ok_or_else(|| format!("{} does not lie on this server", header.shard))?;
        if header.keys != owner.keys {
            return Err(format!("a transfer for {} must have exactly its keys", header.shard));
        }
        Ok(owner)
    }

    /// The transfer that a stripe is part of.
    fn incoming(&self, key: (ShardId, Sequence)) -> Result<Incoming, String> {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(incoming) = arriving.get(&key) {
            return Ok(incoming.clone());
        }
        if arriving.range((key.0, Sequence(0))..=(key.0, Sequence(u64::MAX))).count() >= ARRIVING_MAX {
            return Err(format!("more than {ARRIVING_MAX} transfers at once for {}", key.0));
        }
        Ok(arriving.entry(key).or_default().clone())
    }

    /// Begins to put a transfer together once there is room for it; its other stripes wait meanwhile.
    async fn admit(&self, header: &TransferHeader, owner: &Owner) -> Result<Admitted, String> {
        let asked = Instant::now();
        let room = self.arriving_room.take(header.payload_bytes()).await;
        let room = room.ok_or_else(|| "the session has ended".to_owned())?;
        let gather = Gather::new(header, owner.buffers.take(header.words as usize).into())
            .map_err(|error| error.to_string())?;
        Ok(Admitted { gather, room: Mutex::new(Some(room)), waited: asked.elapsed() })
    }
}

#[cfg(test)]
mod tests;
