//! The thread that owns one shard: events in, effects out, no lock on the way.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use slackline_core::ids::{Clock, Incarnation, KeyRange, Moment, Sequence, ShardId, WorkerId};
use slackline_core::limits::STATUS_ROWS_MAX;
use slackline_core::wire::{Dtype, Served, ToPeer, TransferHeader, TransferKind};
use slackline_server_core::{Notice, Shard, ShardEffect, ShardEvent, ShardSettings};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use crate::directory::{Directory, Outgoing};
use crate::looks::Rows;
use crate::tracer::Tracer;

/// Events that may wait for a shard. A worker has at most a few; when it is full, sessions wait and QUIC slows the peers.
const INBOX_MAX: usize = 1024;

/// Gradient buffers kept for reuse.
const SPARE_MAX: usize = 64;

/// What can be put before an owner.
#[derive(Debug)]
pub(crate) enum Task {
    /// An event for the shard.
    Event(ShardEvent),
    /// The rows for a status.
    Look(oneshot::Sender<Rows>),
    /// An end without order.
    #[cfg(test)]
    Panic,
}

/// What an owner's thread tells the control loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The shard has values now.
    HasValues(ShardId),
    /// The thread is at its end: nobody will answer for the shard any more.
    Ended(ShardId),
}

/// The handle of a shard's owner.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) keys: KeyRange,
    pub(crate) inbox: mpsc::Sender<Task>,
    spare: Arc<Mutex<Vec<Vec<f32>>>>,
}

impl Owner {
    /// Starts the thread. It ends when all handles are gone; its last word on `words` is [`Word::Ended`], even where it panics.
    pub(crate) fn start(
        settings: ShardSettings,
        began: Instant,
        directory: Arc<Directory>,
        words: mpsc::UnboundedSender<Word>,
        tracer: Option<Tracer>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (inbox, tasks) = mpsc::channel(INBOX_MAX);
        // A lock, since the network's thread takes buffers that this one gives back; held for a push or a pop.
        let spare = Arc::new(Mutex::new(Vec::new()));
        let owner = Self { keys: settings.keys, inbox, spare: spare.clone() };
        let id = settings.id;
        let ending = Ending { shard: id, words };
        let clock = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let work = Work { shard: Shard::new(settings), began, directory, ending, spare, clock, tracer };
        let thread =
            std::thread::Builder::new().name(format!("shard {}", id.0)).spawn(move || work.run(tasks))?;
        Ok((owner, thread))
    }

    /// A buffer of the shard's length; what is in it has no meaning.
    pub(crate) fn buffer(&self) -> Vec<f32> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| vec![0.0; self.keys.len as usize])
    }
}

/// Says that the thread ends, however it does: a shard that nobody owns must not look like one that is only slow.
struct Ending {
    shard: ShardId,
    /// At most two words are ever said, so it needs no bound.
    words: mpsc::UnboundedSender<Word>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        // The other end is the control loop; where it is gone, the process is at its end.
        let _ = self.words.send(Word::Ended(self.shard));
    }
}

struct Work {
    shard: Shard,
    began: Instant,
    directory: Arc<Directory>,
    ending: Ending,
    spare: Arc<Mutex<Vec<Vec<f32>>>>,
    /// Used while the shard waits for a moment, which a blocking receive cannot.
    clock: Runtime,
    tracer: Option<Tracer>,
}

impl Work {
    fn run(mut self, mut tasks: mpsc::Receiver<Task>) {
        let mut effects = Vec::new();
        while let Some(task) = self.next(&mut tasks) {
            let now = self.now();
            match task {
                Task::Event(event) => self.handle(now, event, &mut effects),
                Task::Look(answer) => {
                    let rows = (self.shard.row(), self.shard.held_rows(now, STATUS_ROWS_MAX));
                    // Whoever asked may have gone.
                    let _ = answer.send(rows);
                }
                #[cfg(test)]
                Task::Panic => panic!("planned"),
            }
            for effect in effects.drain(..) {
                self.perform(effect);
            }
        }
        if let Some(tracer) = self.tracer.take() {
            tracer.end(self.now());
        }
    }

    fn handle(&mut self, now: Moment, event: ShardEvent, effects: &mut Vec<ShardEffect>) {
        let arrival = self.tracer.as_ref().map(|tracer| tracer.arrival(&event, &self.shard));
        self.shard.handle(now, event, effects);
        if let (Some(tracer), Some(arrival)) = (&mut self.tracer, arrival) {
            tracer.tell(now, arrival, effects, &self.shard);
        }
    }

    fn now(&self) -> Moment {
        Moment(self.began.elapsed().as_nanos() as u64)
    }

    /// The next task, or the time that the shard waits for.
    fn next(&self, tasks: &mut mpsc::Receiver<Task>) -> Option<Task> {
        let Some(deadline) = self.shard.next_deadline() else { return tasks.blocking_recv() };
        let left = deadline.since(self.now());
        let next = self.clock.block_on(async { tokio::time::timeout(left, tasks.recv()).await });
        next.unwrap_or(Some(Task::Event(ShardEvent::Tick)))
    }

    fn perform(&self, effect: ShardEffect) {
        match effect {
            ShardEffect::Answer { session, pushed } => {
                self.directory.send(session, Outgoing::Message(ToPeer::Pushed(pushed)));
            }
            ShardEffect::Serve { session, reader, request, values, served } => {
                let header = self.values_header(reader, request, served);
                self.directory.send_values(session, header, values);
            }
            ShardEffect::Overtaken { session, open } => {
                self.directory.send(session, Outgoing::Message(ToPeer::Overtaken { open }));
            }
            // The other end is the control loop; it is gone only when the process ends.
            ShardEffect::HasValues => drop(self.ending.words.send(Word::HasValues(self.shard.id()))),
            ShardEffect::Recycle(buffer) => {
                let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
                if spare.len() < SPARE_MAX && buffer.len() as u64 == self.shard.keys().len {
                    spare.push(buffer);
                }
            }
            ShardEffect::Notice(Notice::BadGradient { worker, shard, clock, tensor }) => {
                let notice = Notice::BadGradient { worker, shard, clock, tensor };
                tracing::warn!(worker = worker.0, clock = clock.0, shard = shard.0, "{notice}");
            }
            ShardEffect::Notice(notice) => tracing::warn!(shard = self.shard.id().0, "{notice}"),
        }
    }

    fn values_header(
        &self,
        reader: Option<(WorkerId, Incarnation)>,
        request: u64,
        served: Served,
    ) -> TransferHeader {
        let (worker, incarnation) = reader.unwrap_or_default();
        TransferHeader {
            kind: TransferKind::Values,
            dtype: Dtype::F32,
            shard: self.shard.id(),
            worker,
            incarnation,
            sequence: Sequence(request),
            clock: Clock(served.minimum.0),
            version: served.version,
            batch: Default::default(),
            lead: served.lead,
            samples: 0,
            stripe_count: 1,
            keys: self.shard.keys(),
            stripe: self.shard.keys(),
            held_us: served.held_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::ids::ServerId;

    use super::*;

    // A shard whose thread had panicked looked like one that was slow, and all workers waited for it for ever.
    #[test]
    fn a_thread_that_panics_says_that_it_ended() {
        let config = crate::pair::resolved().config;
        let settings = crate::parts::shards(ServerId(0), &config).remove(0);
        let (id, keys) = (settings.id, settings.keys);
        let (words, mut said) = mpsc::unbounded_channel();
        let (owner, thread) =
            Owner::start(settings, Instant::now(), Arc::new(Directory::new(1)), words, None).unwrap();
        let initial = vec![0.0; keys.len as usize];
        owner.inbox.blocking_send(Task::Event(ShardEvent::Initialize(initial))).unwrap();
        owner.inbox.blocking_send(Task::Panic).unwrap();
        assert_eq!(said.blocking_recv(), Some(Word::HasValues(id)));
        assert_eq!(said.blocking_recv(), Some(Word::Ended(id)));
        assert!(thread.join().is_err());
        assert!(owner.inbox.blocking_send(Task::Event(ShardEvent::Start)).is_err());
    }
}
