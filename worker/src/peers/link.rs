//! One connection to another worker of the group: messages and transfers both ways, until its end, which is told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use slackline_core::ids::{Clock, Generation, WorkerId};
use slackline_core::wire::{PeerMessage, TransferHeader, TransferKind};
use slackline_net::{
    Arriving, CloseCode, Connection, ConnectionError, ControlReceiver, Gather, Settings, TransferError,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::News;
use super::circle::{Circle, Line};
use super::fault::{End, Fault};
use super::meeting::Acquaintance;
use super::probe;
use crate::streams::{self, Backlog, Outgoing};

/// The answer that a measurement waits for: its number, and whom to tell.
pub(crate) type Awaited = Arc<Mutex<Option<(u64, oneshot::Sender<()>)>>>;

/// A connection that stands.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) line: Line,
    pub(crate) awaited: Awaited,
    inward: Arc<Inward>,
    task: JoinHandle<()>,
}

impl Link {
    /// Takes a connection over. `room` is how much may wait to be sent on it.
    pub(crate) fn start(
        acquaintance: Acquaintance,
        circle: Arc<Circle>,
        room: usize,
        network: Settings,
    ) -> Self {
        let Acquaintance { position, connection, sender, receiver, .. } = acquaintance;
        let (line, waiting) = mpsc::channel(room);
        circle.join(position, line.clone());
        let awaited = Awaited::default();
        let inward = Arc::new(Inward {
            worker: circle.worker(position),
            circle,
            position,
            line: line.clone(),
            awaited: awaited.clone(),
            gathers: Mutex::default(),
            heard: Mutex::new(Instant::now()),
            has_asked: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
        });
        let (life, connected) = (inward.clone(), connection.clone());
        let task = tokio::spawn(async move {
            // The first to end takes the others with it: a connection is whole or gone.
            let backlog = Backlog::default();
            let end = tokio::select! {
                end = life.clone().read(receiver) => end,
                error = streams::write(&connected, sender, waiting, network, &backlog) => {
                    error.map_or(End::Left, |error| End::of_transfer(life.worker, error))
                }
                end = life.clone().take_transfers(&connected) => end,
            };
            match &end {
                End::Fault(fault) => connected.close(CloseCode::Malformed, &fault.to_string()),
                _ => connected.close(CloseCode::Done, ""),
            }
            life.has_left.store(true, Ordering::Relaxed);
            life.circle.departures.notify_waiters();
            life.circle.tell(News::Ended { generation: life.circle.generation, position, end });
        });
        Self { connection, line, awaited, inward, task }
    }

    /// When something came over it last, beside signs of life of QUIC itself.
    pub(crate) fn heard(&self) -> Instant {
        *self.inward.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the other side has said that it needs nothing more, or is gone.
    pub(crate) fn has_left(&self) -> bool {
        self.inward.has_left.load(Ordering::Relaxed)
    }

    /// Closes it, telling nobody here.
    pub(crate) fn close(&self) {
        self.task.abort();
        self.connection.close(CloseCode::Done, "");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A transfer that is arriving: its kind (of parts, the iteration), bucket or shard, and number.
type Key = (u8, Clock, u32, u64);

/// The side of a link that takes in.
#[derive(Debug)]
struct Inward {
    circle: Arc<Circle>,
    position: u32,
    worker: WorkerId,
    line: Line,
    awaited: Awaited,
    gathers: Mutex<BTreeMap<Key, Gather>>,
    heard: Mutex<Instant>,
    /// It has asked for values once, which is all that a group needs.
    has_asked: AtomicBool,
    has_left: AtomicBool,
}

impl Inward {
    async fn read(self: Arc<Self>, mut receiver: ControlReceiver) -> End {
        loop {
            let message = match receiver.receive::<PeerMessage>().await {
                Ok(Some(message)) => message,
                Ok(None) => {
                    self.has_left.store(true, Ordering::Relaxed);
                    self.circle.departures.notify_waiters();
                    // What it has sent before may still be on its way; the end of the connection is seen by those who read it.
                    return std::future::pending().await;
                }
                Err(error) => return End::of(self.worker, error),
            };
            self.touch();
            if let Err(end) = self.take(message).await {
                return end;
            }
        }
    }

    async fn take(&self, message: PeerMessage) -> Result<(), End> {
        let unasked = |what| Err(End::Fault(Fault::Unasked { worker: self.worker, what }));
        match message {
            // It was on its way to the next group when it was met for this one.
            PeerMessage::Hello(hello) if hello.generation > self.circle.generation => Err(End::Left),
            PeerMessage::Hello(_) => unasked("a second hello"),
            PeerMessage::Refused(text) => Err(End::Refused(text.shown())),
            PeerMessage::WantState { clock } => {
                if self.has_asked.swap(true, Ordering::Relaxed) {
                    return unasked("the wish for values a second time");
                }
                let (generation, worker) = (self.circle.generation, self.worker);
                self.circle.tell(News::WantState { generation, worker, clock });
                Ok(())
            }
            PeerMessage::Ping(number) => {
                // Waits while the queue is full: whoever asks faster than the answers go out is read no further.
                let pong = Outgoing::Message(Box::new(PeerMessage::Pong(number)));
                self.line.send(pong).await.map_err(|_| End::Left)
            }
            PeerMessage::Pong(number) => {
                let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
                match awaited.take_if(|(expected, _)| *expected == number) {
                    // Whoever measured has given up at most.
                    Some((_, sender)) => drop(sender.send(())),
                    None => return unasked("an answer"),
                }
                Ok(())
            }
        }
    }

    async fn take_transfers(self: Arc<Self>, connection: &Connection) -> End {
        let worker = self.worker;
        let failed: Failed =
            streams::take_transfers(connection, move |arriving| self.clone().take_stripe(arriving)).await;
        match failed {
            Failed::Fault(fault) => End::Fault(fault),
            Failed::Transfer(error) => End::of_transfer(worker, error),
        }
    }

    /// Reads one stripe straight to its place, if it is one that may come now.
    async fn take_stripe(self: Arc<Self>, arriving: Arriving) -> Result<(), Failed> {
        let header = *arriving.header();
        self.touch();
        self.check(&header)?;
        let kind = match header.kind {
            TransferKind::Part => 0,
            TransferKind::State => 1,
            _ => 2,
        };
        let key = (kind, header.clock, header.shard.0, header.sequence.0);
        let gather = self.gather(key, &header)?;
        if !gather.receive(arriving).await? {
            return Ok(());
        }
        self.touch();
        self.gathers().remove(&key);
        let values = gather.take();
        match header.kind {
            TransferKind::Part => self.circle.arrived(self.position, &header, values)?,
            TransferKind::State => self.circle.state_arrived(&header, values),
            _ => {
                let pong = Outgoing::Message(Box::new(PeerMessage::Pong(header.sequence.0)));
                let _ = self.line.send(pong).await;
            }
        }
        Ok(())
    }

    /// Whether a transfer comes from the one that it says, for this group.
    fn check(&self, header: &TransferHeader) -> Result<(), Fault> {
        let (worker, ours) = (self.worker, self.circle.generation);
        if header.worker != worker {
            return Err(Fault::Name { worker, said: header.worker });
        }
        let said = Generation(header.incarnation.0);
        if said != ours {
            return Err(Fault::Generation { worker, said, ours });
        }
        match header.kind {
            TransferKind::Part | TransferKind::State | TransferKind::Probe => Ok(()),
            TransferKind::Push | TransferKind::Initial | TransferKind::Values => {
                Err(Fault::Unasked { worker, what: "what is for a server" })
            }
        }
    }

    /// The transfer that a stripe belongs to; for its first stripe a buffer is set aside if it may come at all.
    fn gather(&self, key: Key, header: &TransferHeader) -> Result<Gather, Failed> {
        let mut gathers = self.gathers();
        if let Some(gather) = gathers.get(&key) {
            return Ok(gather.clone());
        }
        let worker = self.worker;
        let values = match header.kind {
            TransferKind::Part => self.circle.admit(self.position, header)?,
            TransferKind::State => self.circle.admit_state(self.position, header)?,
            _ if gathers.keys().any(|key| key.0 == 2) || header.keys.len > probe::VALUES => {
                return Err(Fault::Unasked { worker, what: "more for measuring than one transfer" }.into());
            }
            _ => vec![0.0; header.keys.len as usize],
        };
        let gather = Gather::new(header, values.into())?;
        gathers.insert(key, gather.clone());
        Ok(gather)
    }

    fn gathers(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Gather>> {
        self.gathers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Why a stripe was not taken.
enum Failed {
    Fault(Fault),
    Transfer(TransferError),
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<TransferError> for Failed {
    fn from(error: TransferError) -> Self {
        Self::Transfer(error)
    }
}

impl From<ConnectionError> for Failed {
    fn from(error: ConnectionError) -> Self {
        Self::Transfer(error.into())
    }
}
