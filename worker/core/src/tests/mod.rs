//! The worker driven by hand, and against fake servers in random order.

mod beginning;
mod brought;
mod contents;
mod cycle;
mod early;
mod fake;
mod fake_servers;
mod faults;
mod group;
mod guards;
mod measures;
mod orders;
mod places;
mod policies;
mod prefetch;
mod regroup;
mod shelf;
mod silence;
mod steps;
mod unserved;

use std::time::Duration;

use slackline_core::config::Steps;
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, ServerId, ShardId, Version, WorkerId,
};
use slackline_core::layout::Layout;
use slackline_core::partition::Partition;
use slackline_core::wire::{
    Ask, BatchResult, Fate, Join, PROTOCOL, Pull, PullKind, PushOutcome, Pushed, Register, Served, ToPeer,
    ToServer, TransferHeader, TransferKind, Work,
};

use crate::{Buffer, Effect, Event, Obstacle, Settings, Worker};
use shelf::{Shelf, unnamed};

pub(crate) const ONE: WorkerId = WorkerId(1);
pub(crate) const FIRST_LIFE: Incarnation = Incarnation(5);

pub(crate) fn settings(servers: u32) -> Settings {
    Settings {
        partition: Partition::new(16 * u64::from(servers), servers, 1),
        layout: layout(),
        coordinator: ServerId(0),
        config_hash: 2,
        data_hash: 3,
        sample_count: 100,
        batch_count: 20,
        units_max: 1,
        prefetch: 0,
        begins_early: false,
        refreshes: false,
        fragments: 1,
        steps: Steps::Parts,
        has_copies: false,
        lease: Duration::from_secs(9),
        connect_timeout: Duration::from_secs(60),
        wait_report: Duration::from_secs(5),
        group: None,
        stop_on_bad_gradient: false,
        stop_on_norm: false,
    }
}

/// A tensor of three keys and a large one.
pub(crate) fn layout() -> Layout {
    let mut layout = Layout::new();
    layout.parameter("bias", &[3], false);
    layout.parameter("weight", &[45], true);
    layout
}

/// A worker with the time, and the effects of the last event.
pub(crate) struct Rig {
    pub(crate) worker: Worker,
    pub(crate) now: Moment,
    pub(crate) shelf: Shelf,
}

impl Rig {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { worker: Worker::new(settings, Moment(0)), now: Moment(0), shelf: Shelf::default() }
    }

    /// Handles an event and returns what the worker wants, as it wants it.
    pub(crate) fn exactly(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.shelf.take_in(&event);
        self.worker.handle(self.now, event, &mut effects);
        self.worker.check_invariants();
        effects.iter().for_each(|effect| self.shelf.perform(&self.worker, effect));
        effects
    }

    /// The same without what most tests are not about: the circumstances of a gradient, the time that it took, what lies in which buffer, and
    /// in an ask all but the last result, which the ask before may have said too.
    pub(crate) fn on(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = self.exactly(event);
        for effect in &mut effects {
            unnamed(effect);
            match effect {
                Effect::Compute { clock, adopted, pushed, .. } => {
                    (*clock, *adopted, *pushed) = (Clock(0), Vec::new(), Vec::new());
                }
                Effect::Send { message: ToServer::Ask(ask), .. } => {
                    ask.results =
                        ask.results.last().map(|last| plain(last.batch, last.fate)).into_iter().collect();
                }
                _ => {}
            }
        }
        effects
    }

    pub(crate) fn hear(&mut self, server: u32, message: ToPeer) -> Vec<Effect> {
        self.on(Event::Message { server: ServerId(server), message })
    }

    pub(crate) fn tick_after(&mut self, duration: Duration) -> Vec<Effect> {
        self.now = self.now.after(duration);
        self.on(Event::Tick { wire_sent: 0, wire_received: 0 })
    }

    pub(crate) fn after_us(&mut self, us: u64) -> &mut Self {
        self.now = self.now.after(Duration::from_micros(us));
        self
    }

    pub(crate) fn greet(&mut self, server: u32, boot: u64) -> Vec<Effect> {
        assert_eq!(self.on(Event::Connected { server: ServerId(server) }), []);
        self.hear(server, ToPeer::Welcome { protocol: PROTOCOL, server: ServerId(server), boot })
    }

    /// A worker of two servers that has just sent its first ask.
    pub(crate) fn registered(settings: Settings) -> Self {
        let mut rig = Self::new(settings);
        rig.tick_after(Duration::ZERO);
        rig.greet(0, 70);
        rig.hear(0, joined(FIRST_LIFE));
        rig.hear(0, ToPeer::Registered { has_values: true });
        rig.greet(1, 71);
        assert_eq!(rig.hear(1, ToPeer::Registered { has_values: true }), [send(0, ask(0, None))]);
        rig
    }

    /// A worker of two servers that computes its first batch, 0, and has the work for the next.
    pub(crate) fn computing(settings: Settings, next: Work) -> Self {
        let mut rig = Self::registered(settings);
        rig.hear(0, batch(0));
        rig.values(0, 1, 0);
        rig.values(1, 2, 0);
        rig.on(Event::BatchLoaded { batch: BatchIndex(0) });
        rig.hear(0, ToPeer::Work(next));
        rig
    }

    /// In the second iteration: batch 1 is computed on version 1, and batch 2 is the next work.
    pub(crate) fn second(settings: Settings) -> Self {
        let mut rig = Self::computing(settings, work(1));
        rig.gradient(1, None);
        rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
        for shard in 0..2 {
            rig.pushed(shard, 1, 1, applied(1));
        }
        for (shard, request) in [(0, 3), (1, 4)] {
            rig.values(shard, request, 1);
        }
        rig.hear(0, batch(2));
        rig
    }

    pub(crate) fn values(&mut self, shard: u32, request: u64, version: u64) -> Vec<Effect> {
        let served = Served { version: Version(version), minimum: Clock(0), lead: 0, held_us: 0 };
        self.on(Event::ValuesArrived {
            server: ServerId(shard),
            shard: ShardId(shard),
            request,
            served,
            bytes: 64,
        })
    }

    pub(crate) fn gradient(&mut self, sequence: u64, bad_key: Option<u64>) -> Vec<Effect> {
        let sequence = Sequence(sequence);
        self.on(Event::GradientReady {
            sequence,
            bad_key,
            loss: 0.5,
            samples: 4,
            waited_us: 0,
            packed: Vec::new(),
        })
    }

    pub(crate) fn pushed(
        &mut self,
        shard: u32,
        sequence: u64,
        clock: u64,
        outcome: PushOutcome,
    ) -> Vec<Effect> {
        self.hear(
            shard,
            ToPeer::Pushed(Pushed {
                shard: ShardId(shard),
                sequence: Sequence(sequence),
                duplicate: false,
                clock: Clock(clock),
                outcome,
                held_us: 0,
                busy_us: 0,
            }),
        )
    }
}

pub(crate) fn joined(incarnation: Incarnation) -> ToPeer {
    ToPeer::Joined { worker: ONE, incarnation, clock: Clock(0) }
}

pub(crate) fn applied(version: u64) -> PushOutcome {
    PushOutcome::Applied { version: Version(version), staleness: 0, down_weighted: false }
}

pub(crate) fn work(index: u64) -> Work {
    Work::Batch { batch: BatchIndex(index), units: 1, evaluate: None, enter: None }
}

pub(crate) fn batch(index: u64) -> ToPeer {
    ToPeer::Work(work(index))
}

pub(crate) fn send(server: u32, message: ToServer) -> Effect {
    Effect::Send { server: ServerId(server), message }
}

pub(crate) fn connect(server: u32) -> Effect {
    Effect::Connect { server: ServerId(server) }
}

pub(crate) fn disconnect(server: u32) -> Effect {
    Effect::Disconnect { server: ServerId(server) }
}

pub(crate) fn load(index: u64) -> Effect {
    Effect::LoadBatch { batch: BatchIndex(index), units: 1 }
}

pub(crate) fn ask(clock: u64, done: Option<u64>) -> ToServer {
    let done = done.map(|done| plain(BatchIndex(done), Fate::Done { compute_us: 0 }));
    ToServer::Ask(Ask { clock: Clock(clock), results: done.into_iter().collect(), report: None })
}

pub(crate) fn returning(clock: u64, batch: u64) -> ToServer {
    let returned = plain(BatchIndex(batch), Fate::Returned);
    ToServer::Ask(Ask { clock: Clock(clock), results: vec![returned], report: None })
}

/// A result without its circumstances.
pub(crate) fn plain(batch: BatchIndex, fate: Fate) -> BatchResult {
    let fate = if fate == Fate::Returned { fate } else { Fate::Done { compute_us: 0 } };
    BatchResult { number: 0, batch, clock: Clock(0), fate }
}

/// The effects without the reports in them, where only the messages are in question.
pub(crate) fn without_reports(mut effects: Vec<Effect>) -> Vec<Effect> {
    for effect in &mut effects {
        match effect {
            Effect::Send { message: ToServer::Ask(ask), .. } => ask.report = None,
            Effect::Send { message: ToServer::Evaluated(evaluated), .. } => evaluated.report = None,
            _ => {}
        }
    }
    effects
}

pub(crate) fn join(former: Option<(WorkerId, Incarnation)>) -> ToServer {
    let layout_hash = layout().hash();
    ToServer::Join(Join {
        layout_hash,
        config_hash: 2,
        data_hash: 3,
        sample_count: 100,
        former,
        peers_at: None,
    })
}

pub(crate) fn register(clock: u64, answered: u64) -> ToServer {
    ToServer::Register(Register {
        worker: ONE,
        incarnation: FIRST_LIFE,
        layout_hash: layout().hash(),
        config_hash: 2,
        clock: Clock(clock),
        batch_count: 20,
        answered: Sequence(answered),
    })
}

/// What a pull of a shard of the same server looks like.
pub(crate) fn pull(shard: u32, request: u64, clock: u64, after: u64) -> [Effect; 2] {
    let kind = PullKind::Gated { clock: Clock(clock), after: Sequence(after), ahead: 0 };
    pull_of(shard, request, kind)
}

/// The same of one that is made while the iteration before is computed.
pub(crate) fn pull_ahead(shard: u32, request: u64, clock: u64, after: u64) -> [Effect; 2] {
    let kind = PullKind::Gated { clock: Clock(clock), after: Sequence(after), ahead: 1 };
    pull_of(shard, request, kind)
}

pub(crate) fn snapshot(shard: u32, request: u64) -> [Effect; 2] {
    pull_of(shard, request, PullKind::Snapshot)
}

fn pull_of(shard: u32, request: u64, kind: PullKind) -> [Effect; 2] {
    let buffer = if kind == PullKind::Snapshot { Buffer::Evaluation } else { Buffer::First };
    let (server, shard_id) = (ServerId(shard), ShardId(shard));
    [
        Effect::ExpectValues { server, shard: shard_id, request, buffer },
        send(shard, ToServer::Pull(Pull { shard: shard_id, request, have: 0, kind })),
    ]
}

pub(crate) fn push(shard: u32, sequence: u64, clock: u64, version: u64, batch: u64) -> Effect {
    let keys = KeyRange::new(16 * u64::from(shard), 16);
    Effect::SendPush {
        server: ServerId(shard),
        header: TransferHeader {
            worker: ONE,
            incarnation: FIRST_LIFE,
            sequence: Sequence(sequence),
            clock: Clock(clock),
            version: Version(version),
            batch: BatchIndex(batch),
            samples: 4,
            ..TransferHeader::plain(TransferKind::Push, ShardId(shard), keys)
        },
    }
}

/// A push that brings the next pull of its shard with it.
pub(crate) fn push_and_pull(
    shard: u32,
    sequence: u64,
    clock: u64,
    version: u64,
    batch: u64,
    request: u64,
) -> [Effect; 2] {
    let Effect::SendPush { server, mut header } = push(shard, sequence, clock, version, batch) else {
        unreachable!()
    };
    header.reply = request;
    let expect = Effect::ExpectValues { server, shard: header.shard, request, buffer: Buffer::First };
    [expect, Effect::SendPush { server, header }]
}

pub(crate) fn initial(shard: u32) -> Effect {
    let Effect::SendPush { server, mut header } = push(shard, 0, 0, 0, 0) else { unreachable!() };
    (header.kind, header.samples) = (TransferKind::Initial, 0);
    Effect::SendInitial { server, header }
}

pub(crate) fn compute(sequence: u64, batch: u64) -> Effect {
    let (sequence, batch) = (Sequence(sequence), BatchIndex(batch));
    let (adopted, pushed, missing) = (Vec::new(), Vec::new(), Vec::new());
    Effect::Compute { sequence, batch, clock: Clock(0), buffer: Buffer::First, adopted, pushed, missing }
}

pub(crate) fn release(sequence: u64) -> Effect {
    Effect::ReleaseGradient { sequence: Sequence(sequence), unused: Vec::new() }
}

/// Of a gradient that is in no values of these shards.
pub(crate) fn release_unused(sequence: u64, unused: &[u32]) -> Effect {
    let unused = unused.iter().map(|shard| ShardId(*shard)).collect();
    Effect::ReleaseGradient { sequence: Sequence(sequence), unused }
}
