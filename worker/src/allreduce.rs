//! The road of gradients among workers: buckets of the replica's thread to the reductions, sums back to it.

use slackline_core::ids::{Clock, Generation, WorkerId};
use slackline_worker_core::{Effect, Event};

use crate::daemon::WorkerFailure;
use crate::driver::Base;
use crate::peers::{News, Peers, Told};
use crate::replica::{Replica, ReplicaDone, ReplicaJob};

/// The worker's own copy of the model, and the other workers.
pub(crate) struct Allreduce {
    replica: Replica,
    peers: Peers,
    /// The iteration whose own gradient was computed last.
    computed: Option<(Generation, Clock)>,
    /// What others made complete before this worker's own part was told.
    early: Vec<Event>,
    /// Where values are taken over from.
    source: WorkerId,
}

impl Allreduce {
    pub(crate) const fn new(replica: Replica, peers: Peers) -> Self {
        Self { replica, peers, computed: None, early: Vec::new(), source: WorkerId(0) }
    }

    /// Performs an effect that is not the same on all roads.
    pub(crate) fn perform(&mut self, base: &mut Base, effect: Effect) {
        match effect {
            Effect::Form { group, position } => {
                self.early.clear();
                match self.peers.form(group, position) {
                    Ok(parts) => self.send(base, ReplicaJob::Form { parts }),
                    Err(misfit) => {
                        let reason = format!("the coordinator formed a group that cannot be: {misfit}");
                        base.tell(Event::PeerRefused { reason });
                    }
                }
            }
            Effect::Dissolve { generation } => {
                self.peers.dissolve(generation);
                self.replica.abandon();
                self.early.clear();
            }
            Effect::Probe { generation } => self.peers.probe(generation),
            Effect::FetchState { generation, source, clock } => {
                self.source = source;
                self.peers.fetch(generation, source, clock);
            }
            Effect::Step { generation, clock, batch, share } => {
                let batch = match batch.map(|index| base.take_batch(index)) {
                    Some(None) => return,
                    batch => batch.flatten(),
                };
                let worker = base.worker.member().map(|(worker, _)| worker).unwrap_or_default();
                self.peers.begin(generation);
                self.send(base, ReplicaJob::Step { generation, clock, batch, worker, share });
            }
            Effect::Apply { generation, clock, progress } => match self.peers.take_sums(generation, clock) {
                Some(sums) => self.send(base, ReplicaJob::Apply { clock, progress, sums }),
                None => base.fail(WorkerFailure::SumsMissing(clock)),
            },
            Effect::Skip { generation, clock } => {
                let sums = self.peers.take_sums(generation, clock);
                self.peers.reclaim(sums.into_iter().flatten().flatten());
                self.send(base, ReplicaJob::Skip { clock });
            }
            Effect::Evaluate { at_samples, .. } => self.send(base, ReplicaJob::Snapshot { at_samples }),
            effect => tracing::error!("{effect:?} is for servers of parameters: a fault of this program"),
        }
    }

    fn send(&self, base: &mut Base, job: ReplicaJob) {
        if !self.replica.send(job) {
            base.fail(WorkerFailure::ComputeEnded);
        }
    }

    /// What the replica's thread has done.
    pub(crate) fn job_done(&mut self, base: &mut Base, done: ReplicaDone) {
        match done {
            ReplicaDone::Bucket { generation, clock, bucket, packed } => {
                self.peers.own(generation, clock, bucket, packed);
            }
            ReplicaDone::Step { generation, clock, batch, loss, samples, bad_key } => {
                if let Some(batch) = batch {
                    base.give_back(batch);
                }
                if self.peers.generation() == Some(generation) {
                    self.computed = Some((generation, clock));
                    base.tell(Event::StepComputed { generation, clock, bad_key, loss, samples });
                    std::mem::take(&mut self.early).into_iter().for_each(|event| base.tell(event));
                }
            }
            ReplicaDone::Snapshot { at_samples, values } => base.evaluate(at_samples, values),
            ReplicaDone::State { generation, clock, reply, values, slots, is_right } => {
                self.peers.send_state(generation, reply, clock, is_right.then_some([values, slots]));
            }
            ReplicaDone::Restored { generation, is_right: true } => {
                base.tell(Event::StateArrived { generation });
            }
            ReplicaDone::Restored { generation, is_right: false } => {
                let worker = self.source;
                let reason = format!("the values or the optimizer's state of {worker} do not fit this model");
                base.tell(Event::PeerTrouble { generation, worker, reason });
            }
            ReplicaDone::Spare(values) => self.peers.reclaim(values),
            ReplicaDone::Ended => base.fail(WorkerFailure::ComputeEnded),
        }
    }

    /// What has happened among the workers.
    pub(crate) fn take(&mut self, base: &mut Base, news: News) {
        match self.peers.take(news) {
            None => {}
            Some(Told::Event(event)) => match event {
                // The others can be done with an iteration before this worker has told that it is.
                Event::Gathered { generation, clock } | Event::Reduced { generation, clock, .. }
                    if self.computed != Some((generation, clock)) =>
                {
                    self.early.push(event);
                }
                Event::PeerTrouble { ref reason, .. } => {
                    // The coordinator says what comes of it.
                    tracing::info!("trouble: {reason}");
                    base.tell(event);
                }
                event => base.tell(event),
            },
            Some(Told::WantState { generation, worker, clock }) => {
                self.send(base, ReplicaJob::State { generation, clock, reply: worker });
            }
            Some(Told::State { generation, clock, values, slots }) => {
                self.send(base, ReplicaJob::Restore { generation, clock, values, slots });
            }
            // Here sums are applied together, and nobody asks for them one by one.
            Some(Told::Summed { parts, .. }) => self.peers.reclaim(parts),
        }
    }

    /// Who is waited for now, in words.
    pub(crate) fn awaited(&self) -> Option<String> {
        self.peers.awaited()
    }

    /// Bytes of datagrams to and from other workers: sent, received.
    pub(crate) fn wire_bytes(&self) -> (u64, u64) {
        self.peers.wire_bytes()
    }

    /// See [`Peers::close`].
    pub(crate) async fn close(self, is_done: bool) {
        self.peers.close(is_done).await;
    }
}
