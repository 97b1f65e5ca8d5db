//! The other workers of an allreduce: meeting them, reducing gradients with them, taking over their values.
//!
//! ```text
//!   door  ->  meeting  ->  link  ->  circle  ->  reducing
//!   who may come in        one a pair, shared by     which parts may come,
//!   or is called           both ways   a group's links   what is to be sent
//! ```
//!
//! Everything is told to the driver as [`News`]; [`Peers::take`] makes of it what the pure worker is to know. A connection belongs to one
//! group: with the next one all are made anew, so nothing of a former group can be taken for something of the present one.

mod circle;
mod current;
mod door;
mod fault;
mod link;
mod meeting;
mod news;
mod pool;
mod probe;
mod reducing;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::collective::{Bucket, Misfit, Schedule, Topology};
use slackline_core::ids::{Clock, Generation, KeyRange, ShardId, WorkerId};
use slackline_core::wire::{Group, Hello, LinkFigures, PROTOCOL, PeerMessage, Text, TransferKind};
use slackline_net::{BindError, CloseCode, Connector, Identity, Listener, Role, Settings, SharedValues};
use slackline_worker_core::Event;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::streams::Outgoing;
use circle::{Circle, Fetch};
use current::{Current, room, wanted};
use door::{Count, Door};
use fault::End;
use link::Link;
use meeting::{Acquaintance, LastWords, Meeting};
use news::{Gravity, Whom};
pub(crate) use news::{News, Told};
use pool::Pool;
use probe::Probe;
use reducing::Reducing;

/// How long a worker that is done stays for those who may still lack what it has sent, if a lease is not shorter.
const STAY_MAX: Duration = Duration::from_secs(5);

/// The part of a lease within which those that this worker calls are to be met. Those that call have a whole one: of two that do not meet,
/// the one that calls knows the address and what is wrong with it, and is to be heard first.
const CALL_SHARE: f64 = 0.7;

/// What all workers of a run agree on, and how this one works.
#[derive(Clone, Debug)]
pub(crate) struct PeerSettings {
    pub(crate) layout_hash: u64,
    pub(crate) config_hash: u64,
    /// In the order they are reduced in.
    pub(crate) buckets: Arc<[Bucket]>,
    /// Values of the model, and of the optimizer's state.
    pub(crate) state_lens: [u64; 2],
    pub(crate) lease: Duration,
    pub(crate) network: Settings,
}

/// Why a worker cannot listen for the others.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The text is no address.
    #[error("sync.listen = \"{text}\": {reason}; write ADDRESS:PORT, such as 0.0.0.0:0 or [::]:4500")]
    Address {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The address cannot be had.
    #[error("sync.listen: {0}")]
    Bind(#[from] BindError),
}

/// All that a worker has to do with other workers.
#[derive(Debug)]
pub(crate) struct Peers {
    settings: PeerSettings,
    connector: Arc<Connector>,
    listener: Arc<Listener>,
    accepting: JoinHandle<()>,
    present: watch::Sender<Option<Arc<Meeting>>>,
    news: mpsc::UnboundedSender<News>,
    count: Arc<Count>,
    current: Option<Current>,
    pool: Pool,
    /// Datagram bytes of connections that are gone: sent, received.
    former_bytes: (u64, u64),
}

impl Peers {
    /// Listens at `listen` (`address:port`), within the network's runtime.
    ///
    /// # Errors
    /// It is no address or cannot be had, or the keys do not let workers connect to each other.
    pub(crate) fn bind(
        identity: &Identity,
        listen: &str,
        settings: PeerSettings,
    ) -> Result<(Self, mpsc::UnboundedReceiver<News>), ListenError> {
        let listener = Arc::new(Listener::bind(address_of(listen)?, identity, &settings.network)?);
        let connector = Connector::to(identity, Role::Worker, &settings.network).map_err(BindError::Keys)?;
        let (news, told) = mpsc::unbounded_channel();
        let (present, seen) = watch::channel(None);
        let count = Arc::new(Count::default());
        let door = Door { present: seen, news: news.clone(), count: count.clone(), lease: settings.lease };
        let peers = Self {
            settings,
            connector: Arc::new(connector),
            accepting: tokio::spawn(door::accept(listener.clone(), door)),
            listener,
            present,
            news,
            count,
            current: None,
            pool: Pool::default(),
            former_bytes: (0, 0),
        };
        Ok((peers, told))
    }

    /// Where it listens, with the port that was given.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Begins to meet the others of a group, in which this worker is at `position`. What there was of a former group is gone. Returns how
    /// many parts a gradient has in it.
    ///
    /// # Errors
    /// The topology does not fit the group: the coordinator is at fault.
    pub(crate) fn form(&mut self, group: Group, position: u32) -> Result<u32, Misfit> {
        self.leave();
        let members = group.members.len() as u32;
        let schedule = match group.topology {
            Topology::Auto => None,
            topology => Some(Arc::new(Schedule::new(topology, members)?)),
        };
        let wanted = wanted(&group, position, schedule.as_deref());
        let Some(me) = group.members.get(position as usize).cloned() else {
            return Err(Misfit::Members { members });
        };
        let generation = group.generation;
        let parts = schedule.as_ref().map_or(1, |schedule| schedule.parts());
        let buckets = &self.settings.buckets;
        let room = wanted.iter().map(|to| (*to, room(schedule.as_deref(), position, *to, buckets.len())));
        let room = room.collect();
        let reducing = schedule.map(|schedule| {
            let pool = std::mem::take(&mut self.pool);
            Reducing::new((generation, me.worker, position), schedule, buckets.clone(), group.clock, pool)
        });
        let hello = Hello {
            protocol: PROTOCOL,
            run: group.run,
            generation,
            layout_hash: self.settings.layout_hash,
            config_hash: self.settings.config_hash,
            worker: me.worker,
            incarnation: me.incarnation,
        };
        let circle = Arc::new(Circle::new(generation, me.worker, group.clone(), reducing, self.news.clone()));
        let meeting = Arc::new(Meeting { group, position, hello, wanted });
        let tasks = self.call(&meeting);
        self.current = Some(Current {
            meeting: meeting.clone(),
            circle,
            links: BTreeMap::new(),
            departed: BTreeMap::new(),
            last_words: LastWords::new(),
            tasks,
            room,
            formed: Instant::now(),
            is_met: false,
            has_trouble: false,
            is_busy: true,
        });
        // Those who have called already are let on from here.
        self.present.send_replace(Some(meeting));
        if let Some(event) = self.met() {
            let _ = self.news.send(News::Event(generation, event));
        }
        Ok(parts)
    }

    /// Calls those who are to be called, and sets the time for it.
    fn call(&self, meeting: &Arc<Meeting>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let lease = self.settings.lease;
        for position in meeting.wanted.iter().filter(|position| **position < meeting.position) {
            let (connector, news) = (self.connector.clone(), self.news.clone());
            tasks.spawn(door::dial(connector, meeting.clone(), *position, news, lease));
        }
        let generation = meeting.hello.generation;
        for (within, whom) in [(lease.mul_f64(CALL_SHARE), Whom::Called), (lease, Whom::All)] {
            let news = self.news.clone();
            tasks.spawn(async move {
                tokio::time::sleep(within).await;
                let _ = news.send(News::Overdue { generation, whom });
            });
        }
        tasks
    }

    /// The group is over, if it is the present one.
    pub(crate) fn dissolve(&mut self, generation: Generation) {
        if self.generation() == Some(generation) {
            self.leave();
        }
    }

    /// Closes all connections of the present group.
    fn leave(&mut self) {
        self.present.send_replace(None);
        let Some(current) = self.current.take() else { return };
        for link in current.links.values() {
            link.close();
            self.former_bytes = sum(self.former_bytes, link.connection.wire_bytes());
        }
        // What a task that was just ended still holds of the reductions goes with it.
        if let Some(reducing) = current.circle.reducing().as_mut() {
            self.pool = std::mem::take(&mut reducing.pool);
        }
    }

    /// The group that this worker is in.
    pub(crate) fn generation(&self) -> Option<Generation> {
        self.current.as_ref().map(|current| current.circle.generation)
    }

    fn present(&mut self, generation: Generation) -> Option<&mut Current> {
        self.current.as_mut().filter(|current| current.circle.generation == generation)
    }

    /// Measures the way to the right neighbour; answered by an event.
    pub(crate) fn probe(&mut self, generation: Generation) {
        let Some(current) = self.present(generation) else { return };
        let right = (current.meeting.position + 1) % current.meeting.group.members.len().max(1) as u32;
        let circle = current.circle.clone();
        let measured = move |figures: LinkFigures| {
            circle.tell(News::Event(generation, Event::Measured { generation, figures }));
        };
        match current.links.get(&right) {
            Some(link) => {
                let probe = Probe {
                    me: current.circle.me,
                    generation,
                    line: link.line.clone(),
                    awaited: link.awaited.clone(),
                };
                current.tasks.spawn(async move {
                    if let Some(figures) = probe.measure().await {
                        measured(figures);
                    }
                });
            }
            None if right == current.meeting.position => measured(probe::ALONE),
            None => {}
        }
        current.begin();
    }

    /// Asks `source` for its values; what comes is told as [`Told::State`].
    pub(crate) fn fetch(&mut self, generation: Generation, source: WorkerId, clock: Clock) {
        let lens = self.settings.state_lens;
        let Some(current) = self.present(generation) else { return };
        let Some(from) = current.meeting.group.position_of(source) else { return };
        *current.circle.fetch() = Some(Fetch { from, clock, lens, arrived: [None, None] });
        current.circle.put(from, Outgoing::Message(Box::new(PeerMessage::WantState { clock })));
        current.begin();
    }

    /// Sends values and optimizer state to a worker that wanted them; without them, says that they are not here.
    pub(crate) fn send_state(
        &mut self,
        generation: Generation,
        to: WorkerId,
        clock: Clock,
        state: Option<[Vec<f32>; 2]>,
    ) {
        let Some(current) = self.present(generation) else { return };
        let Some(position) = current.meeting.group.position_of(to) else { return };
        let circle = &current.circle;
        let Some(state) = state else {
            let text = Text::new(format!("{} has not the values after {} iterations", circle.me, clock.0));
            circle.put(position, Outgoing::Message(Box::new(PeerMessage::Refused(text))));
            return;
        };
        for (which, values) in state.into_iter().enumerate() {
            let mut header = reducing::header(circle.me, generation, KeyRange::new(0, values.len() as u64));
            (header.kind, header.shard, header.clock) = (TransferKind::State, ShardId(which as u32), clock);
            circle.put(position, Outgoing::Transfer(Box::new(header), vec![values.into()]));
        }
    }

    /// An iteration begins, for which all the others are needed.
    pub(crate) fn begin(&mut self, generation: Generation) {
        if let Some(current) = self.present(generation) {
            current.begin();
        }
    }

    /// This worker's gradient of a bucket.
    pub(crate) fn own(&mut self, generation: Generation, clock: Clock, bucket: u32, packed: SharedValues) {
        let Some(current) = self.present(generation) else { return };
        let outcomes = match current.circle.reducing().as_mut() {
            Some(reducing) => reducing.own(clock, bucket, packed),
            None => return,
        };
        match outcomes {
            Ok(outcomes) => current.circle.perform(outcomes),
            // Only two parts of this program that do not agree can do that.
            Err(error) => tracing::error!("{error} ({clock}, bucket {bucket}): a fault of this program"),
        }
    }

    /// In the present group, sums are told bucket by bucket as [`Told::Summed`], and not kept.
    pub(crate) fn tell_sums(&mut self) {
        let mut reducing = self.current.as_ref().map(|current| current.circle.reducing());
        if let Some(reducing) = reducing.as_mut().and_then(|reducing| reducing.as_mut()) {
            reducing.tells_sums = true;
        }
    }

    /// The sums of a complete iteration, by bucket and part.
    pub(crate) fn take_sums(
        &mut self,
        generation: Generation,
        clock: Clock,
    ) -> Option<Vec<Vec<SharedValues>>> {
        self.present(generation)?.circle.reducing().as_mut()?.take_sums(clock)
    }

    /// Memory that is not needed any more.
    pub(crate) fn reclaim(&mut self, values: impl IntoIterator<Item = SharedValues>) {
        let mut reducing = self.current.as_ref().map(|current| current.circle.reducing());
        let reducing = reducing.as_mut().and_then(|reducing| reducing.as_mut());
        reducing.map_or(&mut self.pool, |reducing| &mut reducing.pool).reclaim(values);
    }

    /// What the driver is to do for news; none if it is of a former group.
    pub(crate) fn take(&mut self, news: News) -> Option<Told> {
        match news {
            News::Met(acquaintance) => self.admit(*acquaintance).map(Told::Event),
            News::Unmet { generation, position, text, gravity, place } => {
                drop(place);
                let current = self.present(generation)?;
                if current.is_met || current.links.contains_key(&position) {
                    return None;
                }
                tracing::debug!("{text}");
                match gravity {
                    Gravity::Fatal => Some(Told::Event(Event::PeerRefused { reason: text })),
                    Gravity::Misled => current.trouble(position, text).map(Told::Event),
                    Gravity::Passing => {
                        current.last_words.insert(position, text);
                        None
                    }
                }
            }
            News::Overdue { generation, whom } => self.present(generation)?.overdue(whom).map(Told::Event),
            News::Ended { generation, position, end } => {
                self.ended(generation, position, end).map(Told::Event)
            }
            News::Event(generation, event) => {
                let current = self.present(generation)?;
                if matches!(event, Event::Reduced { .. } | Event::Measured { .. }) {
                    current.rest();
                }
                Some(Told::Event(event))
            }
            News::WantState { generation, worker, clock } => {
                self.present(generation)?;
                Some(Told::WantState { generation, worker, clock })
            }
            News::State { generation, clock, values, slots } => {
                self.present(generation)?.rest();
                Some(Told::State { generation, clock, values, slots })
            }
            News::Summed { generation, bucket, parts } => {
                self.present(generation)?;
                Some(Told::Summed { bucket, parts })
            }
        }
    }

    /// Takes over a connection to another worker of the present group.
    fn admit(&mut self, acquaintance: Acquaintance) -> Option<Event> {
        let network = self.settings.network;
        let Acquaintance { generation, position, .. } = acquaintance;
        let Some(current) = self.present(generation) else {
            acquaintance.connection.close(CloseCode::Done, "");
            return None;
        };
        let room = current.room.get(&position).copied()?;
        if current.links.contains_key(&position) {
            let who = acquaintance.connection.remote().to_string();
            acquaintance.connection.close(CloseCode::Refused, "there is a connection already");
            self.count.turned_away(&who, "there is a connection to that worker already");
            return None;
        }
        let link = Link::start(acquaintance, current.circle.clone(), room, network);
        current.links.insert(position, link);
        self.met()
    }

    /// Whether all that are to be met now are, for the first time.
    fn met(&mut self) -> Option<Event> {
        let current = self.current.as_mut()?;
        if current.is_met || current.links.len() < current.room.len() {
            return None;
        }
        current.is_met = true;
        current.rest();
        Some(Event::Met { generation: current.circle.generation })
    }

    fn ended(&mut self, generation: Generation, position: u32, end: End) -> Option<Event> {
        let current = self.present(generation)?;
        let link = current.links.remove(&position);
        let named = current.meeting.named(position);
        let event = match end {
            End::Left => {
                current.departed.insert(position, format!("{named} has left the group"));
                if current.is_busy { current.missed() } else { None }
            }
            End::Refused(text) => current.trouble(position, format!("{named} refused this worker: {text}")),
            End::Lost(error) => {
                current.trouble(position, format!("the connection to {named} was lost: {error}"))
            }
            End::Fault(fault) => {
                let text = fault.to_string();
                let event = current.trouble(position, format!("{text} ({named})"));
                self.count.turned_away(&named, &text);
                event
            }
            End::Stuck => {
                current.trouble(position, format!("{named} takes nothing more: the queue to it is full"))
            }
        };
        if let Some(link) = link {
            link.close();
            self.former_bytes = sum(self.former_bytes, link.connection.wire_bytes());
        }
        event
    }

    /// Bytes of datagrams so far: sent, received.
    pub(crate) fn wire_bytes(&self) -> (u64, u64) {
        let links = self.current.iter().flat_map(|current| current.links.values());
        links.fold(self.former_bytes, |bytes, link| sum(bytes, link.connection.wire_bytes()))
    }

    /// Closes everything. One that has done all its work stays until the others need nothing more of it, for a while.
    pub(crate) async fn close(mut self, is_done: bool) {
        if is_done && let Some(current) = &self.current {
            let positions: Vec<u32> = current.links.keys().copied().collect();
            positions.iter().for_each(|position| current.circle.put(*position, Outgoing::Finish));
            let stay = STAY_MAX.min(self.settings.lease);
            let _ = tokio::time::timeout(stay, current.departure()).await;
        }
        self.leave();
        self.accepting.abort();
        let code = if is_done { CloseCode::Done } else { CloseCode::Stopped };
        self.connector.close(code, "").await;
        self.listener.close(code, "").await;
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn sum(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0 + other.0, one.1 + other.1)
}

fn address_of(text: &str) -> Result<SocketAddr, ListenError> {
    let wrong = |reason: String| ListenError::Address { text: text.to_owned(), reason };
    let mut addresses = text.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    addresses.next().ok_or_else(|| wrong("the name has no address".to_owned()))
}
