//! What the connections of one group share: the reductions, what is being fetched, and where each of them is written to.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use slackline_core::ids::{Clock, Generation, Sequence, WorkerId};
use slackline_core::wire::{Group, PeerMessage, TransferHeader};
use slackline_worker_core::Event;
use tokio::sync::{Notify, mpsc};

use super::News;
use super::fault::{End, Fault};
use super::reducing::{Outcome, Reducing};
use crate::streams::Outgoing;

/// Where one connection's messages and transfers wait to be sent.
pub(crate) type Line = mpsc::Sender<Outgoing<PeerMessage>>;

/// Values and optimizer state that are taken over.
#[derive(Debug)]
pub(crate) struct Fetch {
    /// Position of the member they come from.
    pub(crate) from: u32,
    pub(crate) clock: Clock,
    /// Lengths, and what has come: all values, all of the optimizer's state.
    pub(crate) lens: [u64; 2],
    pub(crate) arrived: [Option<Vec<f32>>; 2],
}

/// What the two kinds of state are called.
pub(crate) const STATE: [&str; 2] = ["the model", "the optimizer's state"];

/// One group, as its connections see it. Behind locks, since each stripe has a task; all run on the network's thread, so nobody waits.
#[derive(Debug)]
pub(crate) struct Circle {
    pub(crate) generation: Generation,
    pub(crate) me: WorkerId,
    pub(crate) group: Group,
    /// None while the group only measures.
    reducing: Mutex<Option<Reducing>>,
    lines: Mutex<BTreeMap<u32, Line>>,
    fetch: Mutex<Option<Fetch>>,
    pub(crate) news: mpsc::UnboundedSender<News>,
    /// Somebody has said that it needs nothing more, or is gone.
    pub(crate) departures: Notify,
}

impl Circle {
    pub(crate) fn new(
        generation: Generation,
        me: WorkerId,
        group: Group,
        reducing: Option<Reducing>,
        news: mpsc::UnboundedSender<News>,
    ) -> Self {
        Self {
            generation,
            me,
            group,
            reducing: Mutex::new(reducing),
            lines: Mutex::default(),
            fetch: Mutex::default(),
            news,
            departures: Notify::new(),
        }
    }

    /// Everything in there is changed in one go, so a panic elsewhere spoils nothing.
    pub(crate) fn reducing(&self) -> MutexGuard<'_, Option<Reducing>> {
        self.reducing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fetch(&self) -> MutexGuard<'_, Option<Fetch>> {
        self.fetch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(&self, position: u32, line: Line) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).insert(position, line);
    }

    /// The id of the worker at a position that is known to exist.
    pub(crate) fn worker(&self, position: u32) -> WorkerId {
        self.group.members.get(position as usize).map_or(WorkerId(u32::MAX), |member| member.worker)
    }

    /// Whether a part may come, and a buffer for it.
    pub(crate) fn admit(&self, from: u32, header: &TransferHeader) -> Result<Vec<f32>, Fault> {
        let worker = self.worker(from);
        let mut reducing = self.reducing();
        let reducing = reducing.as_mut().ok_or(Fault::Unasked { worker, what: "a part of a gradient" })?;
        reducing.admit(from, worker, header)?;
        Ok(reducing.pool.take(header.keys.len as usize))
    }

    /// Takes a whole part.
    pub(crate) fn arrived(&self, from: u32, header: &TransferHeader, values: Vec<f32>) -> Result<(), Fault> {
        let worker = self.worker(from);
        let outcomes = match self.reducing().as_mut() {
            Some(reducing) => reducing.arrived(from, worker, header, values)?,
            None => return Ok(()),
        };
        self.perform(outcomes);
        Ok(())
    }

    /// Sends what is to be sent and tells what is complete.
    pub(crate) fn perform(&self, outcomes: Vec<Outcome>) {
        let generation = self.generation;
        for outcome in outcomes {
            let event = match outcome {
                Outcome::Send(to, header, pieces) => {
                    self.put(to, Outgoing::Transfer(Box::new(header), pieces));
                    continue;
                }
                Outcome::Summed(bucket, parts) => {
                    self.tell(News::Summed { generation, bucket, parts });
                    continue;
                }
                Outcome::Gathered(clock) => Event::Gathered { generation, clock },
                Outcome::Reduced(reduced) => Event::Reduced {
                    generation,
                    clock: reduced.clock,
                    bad_key: reduced.bad_key,
                    sent: reduced.sent,
                    received: reduced.received,
                },
            };
            self.tell(News::Event(generation, event));
        }
    }

    /// Puts something into the queue of a connection. The queue has room for all that a worker may send of two iterations.
    pub(crate) fn put(&self, to: u32, outgoing: Outgoing<PeerMessage>) {
        let line = self.lines.lock().unwrap_or_else(PoisonError::into_inner).get(&to).cloned();
        // If the queue is closed, the connection is gone, and its end is told by itself.
        let is_stuck = line
            .is_none_or(|line| matches!(line.try_send(outgoing), Err(mpsc::error::TrySendError::Full(_))));
        if is_stuck {
            self.tell(News::Ended { generation: self.generation, position: to, end: End::Stuck });
        }
    }

    /// Whether values or state may come, and a buffer for them.
    pub(crate) fn admit_state(&self, from: u32, header: &TransferHeader) -> Result<Vec<f32>, Fault> {
        let worker = self.worker(from);
        let unasked = |what| Fault::Unasked { worker, what };
        let which = header.shard.0 as usize;
        let what = *STATE.get(which).ok_or(unasked("state of an unknown kind"))?;
        // It has none: each would be another transfer, with a buffer of its own.
        if header.sequence != Sequence(0) {
            return Err(unasked("state under a number"));
        }
        let fetch = self.fetch();
        let fetch = fetch.as_ref().filter(|fetch| fetch.from == from && fetch.arrived[which].is_none());
        let Some(fetch) = fetch else { return Err(unasked(what)) };
        let (expected, at) = (fetch.lens[which], fetch.clock);
        if header.keys.len != expected || header.keys.start != 0 || header.clock != at {
            let (values, clock) = (header.keys.len, header.clock);
            return Err(Fault::State { worker, what, values, clock, expected, at });
        }
        Ok(vec![0.0; expected as usize])
    }

    /// Takes values or state that were admitted.
    pub(crate) fn state_arrived(&self, header: &TransferHeader, values: Vec<f32>) {
        let mut fetch = self.fetch();
        let Some(slot) = fetch.as_mut().and_then(|fetch| fetch.arrived.get_mut(header.shard.0 as usize))
        else {
            return;
        };
        *slot = Some(values);
        if fetch.as_ref().is_some_and(|fetch| fetch.arrived.iter().all(Option::is_some))
            && let Some(Fetch { clock, arrived: [Some(values), Some(slots)], .. }) = fetch.take()
        {
            self.tell(News::State { generation: self.generation, clock, values, slots });
        }
    }

    pub(crate) fn tell(&self, news: News) {
        // The driver is gone only when the process ends.
        let _ = self.news.send(news);
    }
}
