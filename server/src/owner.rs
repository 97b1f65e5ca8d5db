//! The thread that owns one shard on this server, as its primary or its backup: events in, effects out, no lock on the way.
//!
//! It is told things in three queues. *Notes* come from its logs and its disk and go first. *Orders* come from control, in control's order.
//! *Tasks* are pushes of peers, which the sessions' peers take turns with; while the host cannot take any more in (a copy that counts is
//! behind), they stay where they are, the sessions wait, and QUIC slows the peers down.

mod deferred;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slackline_core::codec::Payload;
use slackline_core::ids::{Generation, KeyRange, Moment, ServerId, SessionId, ShardId};
use slackline_core::limits::STATUS_ROWS_MAX;
use slackline_core::wire::Place;
use slackline_net::log::Hold;
use slackline_server_core::replica::{Frame, Host, HostEffect, HostEvent, HostSettings, Role};
use slackline_server_core::{Buffers, ShardEvent, Turns};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use self::deferred::Deferred;
use crate::budget::Room;
use crate::directory::Leave;
use crate::looks::Rows;
use crate::performer::{Performer, Pulled, Surroundings};
use crate::tracer::{Arrival, Tracer};
use crate::words::Word;

/// Pushes that may wait for a shard's thread to look. A worker has at most a few; when it is full, sessions wait and QUIC slows the peers.
/// From there they go to where they wait for their turn, which has a bound in the sessions' budgets: each keeps its room until it is
/// taken up, a kilobyte at least.
const INBOX_MAX: usize = 1024;

/// What a push costs a shard's thread beside its gradient, in bytes of one: a step takes an eighth of a nanosecond a value, and all the
/// rest about a fifth of a microsecond.
const PUSH_BYTES: u64 = 4096;

/// Orders that may wait, and notes.
const ORDERS_MAX: usize = 4096;

/// Frames of a log that may wait: as many gradients as fit in 16 MiB, and at least two.
fn frames_max(keys: KeyRange) -> usize {
    usize::try_from((16 << 20) / (4 * keys.len).max(1)).unwrap_or(2).clamp(2, 256)
}

/// A push, or initial values.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) event: ShardEvent,
    /// Who brought it.
    pub(crate) session: SessionId,
    /// When all of it was in memory.
    pub(crate) arrived: Instant,
    /// How long it had waited at its worker for room here.
    pub(crate) waited: Duration,
    /// That room, until the shard has taken it up.
    pub(crate) _room: Option<Room>,
}

impl Task {
    /// How long this server has been too busy for it.
    fn busy(&self) -> Duration {
        self.waited + self.arrived.elapsed()
    }

    /// What it costs its shard, in bytes of values: however few of its own a gradient has, it changes all of its keys.
    fn cost(&self) -> u64 {
        let keys = match &self.event {
            ShardEvent::Push(push) => push.gradient.as_ref().map_or(0, Payload::keys),
            _ => 0,
        };
        PUSH_BYTES + 4 * keys as u64
    }
}

/// What control wants of a shard.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// An event for the shard.
    Shard(ShardEvent),
    /// Its place, or another event that is not the shard's.
    Host(HostEvent),
}

/// What comes from the shard's logs and its disk, and what is asked of its thread.
#[derive(Debug)]
pub(crate) enum Note {
    /// For the host as it is.
    Host(HostEvent),
    /// A log to the backup is open; frames for it go there.
    FeedOpen { number: u64, backup: ServerId, frames: mpsc::UnboundedSender<Frame> },
    /// That log is gone.
    FeedLost { number: u64, backup: ServerId },
    /// A log of the primary is open; how far it is held goes there.
    LogOpen { number: u64, holds: mpsc::UnboundedSender<Hold> },
    /// A frame of that log.
    Frame { number: u64, generation: Generation, frame: Frame, _place: OwnedSemaphorePermit },
    /// A session has room for values that it pulled before.
    Room(Pulled, Leave),
    /// The rows for a status; none where the shard is not led here.
    Look(oneshot::Sender<Option<Rows>>),
    /// An end without order.
    #[cfg(test)]
    Panic,
}

/// The handle of a shard's owner.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) keys: KeyRange,
    pub(crate) inbox: mpsc::Sender<Task>,
    pub(crate) orders: mpsc::Sender<Order>,
    pub(crate) notes: mpsc::Sender<Note>,
    /// Places for frames of a primary's log that wait for the thread.
    pub(crate) frames: Arc<Semaphore>,
    /// The last place that control has told.
    place: Arc<Mutex<Option<Place>>>,
    pub(crate) buffers: Buffers,
}

impl Owner {
    /// Starts the thread. It ends when all handles are gone; its last word is [`Word::Ended`], even where it panics.
    pub(crate) fn start(
        mut settings: HostSettings,
        surroundings: &Arc<Surroundings>,
        tracer: Option<Tracer>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (inbox, tasks) = mpsc::channel(INBOX_MAX);
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let (notes, noted) = mpsc::channel(ORDERS_MAX);
        let place = Arc::default();
        let (keys, buffers) = (settings.shard.keys, surroundings.buffers.clone());
        settings.shard.buffers = buffers.clone();
        let frames = Arc::new(Semaphore::new(frames_max(keys)));
        let owner = Self { keys, inbox, orders, notes: notes.clone(), frames, place, buffers };
        let id = settings.shard.id;
        let ending = Ending { shard: id, surroundings: surroundings.clone() };
        let performer = Performer::new(&settings, surroundings.clone(), notes);
        let mut host = Host::new(settings);
        if tracer.is_some() {
            host.trace();
        }
        let work = Work {
            host,
            queues: Queues {
                noted,
                ordered,
                tasks,
                // A turn is a gradient, or many pushes without one.
                waiting: Turns::new(PUSH_BYTES + 4 * keys.len),
                deferred: Deferred::default(),
            },
            performer,
            tracer,
            effects: Vec::new(),
            _ending: ending,
        };
        // Made on the thread itself: this one has a runtime, and one that is dropped within another panics.
        let clock = || tokio::runtime::Builder::new_current_thread().enable_time().build();
        let processors = surroundings.processors.clone();
        let thread = std::thread::Builder::new().name(format!("shard {}", id.0)).spawn(move || {
            processors.keep(id);
            match clock() {
                Ok(clock) => work.run(&clock),
                Err(error) => tracing::error!("the system gives no timer for {id}: {error}"),
            }
        })?;
        Ok((owner, thread))
    }

    /// Where the shard lies, as control has told.
    pub(crate) fn place(&self) -> Option<Place> {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_place(&self, place: Option<Place>) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

/// Says that the thread ends, however it does: a shard that nobody owns must not look like one that is only slow.
struct Ending {
    shard: ShardId,
    surroundings: Arc<Surroundings>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.surroundings.say(Word::Ended(self.shard));
    }
}

struct Queues {
    noted: mpsc::Receiver<Note>,
    ordered: mpsc::Receiver<Order>,
    tasks: mpsc::Receiver<Task>,
    /// Tasks whose sessions take turns.
    waiting: Turns<SessionId, Task>,
    deferred: Deferred,
}

/// What is done next.
enum Next {
    Note(Note),
    Order(Order),
    Deferred(ShardEvent),
    Task(Task),
    Deadline,
    End,
}

struct Work {
    host: Host,
    queues: Queues,
    performer: Performer,
    tracer: Option<Tracer>,
    effects: Vec<HostEffect>,
    _ending: Ending,
}

impl Work {
    /// `clock` is used while nothing is there to be done.
    fn run(mut self, clock: &Runtime) {
        loop {
            match self.next(clock) {
                Next::Note(note) => self.note(note),
                Next::Order(Order::Host(event)) => self.host(event),
                Next::Order(Order::Shard(event)) => self.order(event),
                Next::Task(task) => {
                    self.performer.taken_up(&task.event, task.busy());
                    let Task { event, _room, .. } = task;
                    self.shard(event);
                }
                Next::Deferred(event) => self.shard(event),
                Next::Deadline => self.host(HostEvent::Tick),
                Next::End => break,
            }
        }
        let now = self.performer.now();
        if let Some(tracer) = self.tracer.take() {
            tracer.end(now);
        }
        // Before the journal's thread is waited for, which may be waiting to note something.
        drop(self.queues);
    }

    fn next(&mut self, clock: &Runtime) -> Next {
        let takes = self.host.takes_events();
        if let Some(next) = self.queues.ready(takes) {
            return next;
        }
        let deadline = self.host.next_deadline().map(|deadline| deadline.since(self.performer.now()));
        let Queues { noted, ordered, tasks, .. } = &mut self.queues;
        clock.block_on(async {
            let until = async {
                match deadline {
                    Some(left) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(note) = noted.recv() => Next::Note(note),
                order = ordered.recv() => order.map_or(Next::End, Next::Order),
                Some(task) = tasks.recv(), if takes => Next::Task(task),
                () = until => Next::Deadline,
            }
        })
    }

    fn order(&mut self, event: ShardEvent) {
        if self.takes_orders() {
            return self.shard(event);
        }
        self.queues.deferred.put(event);
    }

    fn takes_orders(&self) -> bool {
        self.host.takes_events() && self.queues.deferred.is_empty()
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Host(event) => self.host(event),
            Note::FeedOpen { number, backup, frames } => {
                if self.performer.feed_open(number, backup, frames) {
                    self.host(HostEvent::FeedOpen { backup });
                }
            }
            Note::FeedLost { number, backup } => {
                if self.performer.feed_lost(number) {
                    self.host(HostEvent::FeedLost { backup });
                }
            }
            Note::LogOpen { number, holds } => self.performer.log_open(number, holds),
            Note::Frame { number, generation, frame, _place } => {
                if self.performer.is_last_log(number) {
                    self.host(HostEvent::Frame { generation, frame });
                }
            }
            Note::Room(pulled, leave) => {
                if self.host.role() == Role::Leading && self.performer.has_room(pulled, leave) {
                    let Pulled { session, reader, request, have, kind, .. } = pulled;
                    let pull = ShardEvent::Pull { session, reader, request, have, kind };
                    if self.takes_orders() { self.shard(pull) } else { self.queues.deferred.put_again(pull) }
                }
            }
            // Whoever asked may have gone.
            Note::Look(answer) => drop(answer.send(self.rows())),
            #[cfg(test)]
            Note::Panic => panic!("planned"),
        }
    }

    fn rows(&self) -> Option<Rows> {
        let copy = self.host.row();
        let shard = self.host.shard().filter(|_| copy.role == Role::Leading)?;
        let now = self.performer.now();
        Some(Rows {
            row: shard.row(),
            held: self.host.held_rows(now, STATUS_ROWS_MAX),
            unconfirmed: copy.unconfirmed_since.map(|since| {
                let backup = copy.backup.filter(|(_, in_step)| *in_step).map(|(backup, _)| backup);
                (self.host.moment(now).since(since), backup)
            }),
            staged: shard.staged_steps(),
        })
    }

    fn shard(&mut self, event: ShardEvent) {
        let now = self.performer.now();
        let arrival = match (&self.tracer, self.host.shard()) {
            (Some(tracer), Some(shard)) => Some(tracer.arrival(&event, shard)),
            _ => None,
        };
        self.host.handle(now, HostEvent::Shard(event), &mut self.effects);
        self.settle(now, arrival);
    }

    fn host(&mut self, event: HostEvent) {
        let now = self.performer.now();
        self.performer.before(&event, self.host.role() == Role::Leading);
        self.host.handle(now, event, &mut self.effects);
        self.settle(now, None);
    }

    fn settle(&mut self, now: Moment, arrival: Option<Arrival>) {
        let mut effects = std::mem::take(&mut self.effects);
        let traced = self.host.take_traced();
        if let (Some(tracer), Some(shard)) = (&mut self.tracer, self.host.shard())
            && self.host.role() == Role::Leading
        {
            let done = traced.iter().collect::<Vec<_>>();
            let arrival = arrival.unwrap_or_else(|| Tracer::silent(shard));
            tracer.tell(now, arrival, &done, shard);
        }
        for effect in effects.drain(..) {
            self.performer.perform(effect);
        }
        self.effects = effects;
    }
}

impl Queues {
    /// What is there already, without a wait.
    fn ready(&mut self, takes: bool) -> Option<Next> {
        if let Ok(note) = self.noted.try_recv() {
            return Some(Next::Note(note));
        }
        if takes && let Some(event) = self.deferred.take() {
            return Some(Next::Deferred(event));
        }
        match self.ordered.try_recv() {
            Ok(order) => return Some(Next::Order(order)),
            Err(mpsc::error::TryRecvError::Disconnected) => return Some(Next::End),
            Err(mpsc::error::TryRecvError::Empty) => {}
        }
        if takes { self.task().map(Next::Task) } else { None }
    }

    /// The task whose turn it is.
    fn task(&mut self) -> Option<Task> {
        while let Ok(task) = self.tasks.try_recv() {
            self.waiting.put(task.session, task.cost(), task);
        }
        self.waiting.take()
    }
}

#[cfg(test)]
mod tests;
