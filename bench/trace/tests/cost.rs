//! What tracing costs the thread that owns a shard: the budget is a fiftieth of a run's time.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::codec::CodecKind;
use slackline_core::config::{Guard, Steps};
use slackline_core::consistency::{DelaySpec, PolicySpec, Standing};
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, SessionId, ShardId, Version, WorkerId,
};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{OptimizerSpec, RateSchedule, Rule as Update};
use slackline_core::wire::PullKind;
use slackline_server::tracer::Tracer;
use slackline_server_core::shard::Push;
use slackline_server_core::{Shard, ShardEvent, ShardSettings};

/// Iterations that are timed together.
const BATCH: u64 = 5_000;

/// The shortest time between two iterations at one shard that a run here has had: the quickstart, four workers. Larger models are
/// slower.
const ITERATION: Duration = Duration::from_micros(300);

fn shard() -> Shard {
    let mut layout = Layout::new();
    layout.parameter("weight", &[1], false);
    let optimizer = OptimizerSpec {
        rule: Update::Sgd,
        rate: 1.0,
        weight_decay: 0.0,
        decay_per_clock: true,
        schedule: RateSchedule::CONSTANT,
    };
    Shard::new(ShardSettings {
        id: ShardId(0),
        keys: KeyRange::new(0, 1),
        layout: Arc::new(layout),
        policy: PolicySpec::Asp,
        delay: DelaySpec::default(),
        optimizer,
        workers: 1,
        batch: None,
        steps: Steps::Parts,
        guard: Guard::default(),
        pull: CodecKind::F32,
        buffers: Default::default(),
    })
}

/// Iterations of one worker, as the owner of a shard sees them; returns the time they took.
fn iterations(shard: &mut Shard, tracer: &mut Option<Tracer>, from: u64) -> Duration {
    let mut effects = Vec::new();
    let began = Instant::now();
    let mut event = |at: u64, event: ShardEvent| {
        let now = Moment(at);
        let arrival = tracer.as_ref().map(|tracer| tracer.arrival(&event, shard));
        shard.handle(now, event, &mut effects);
        if let (Some(tracer), Some(arrival)) = (tracer.as_mut(), arrival) {
            tracer.tell(now, arrival, &effects.iter().collect::<Vec<_>>(), shard);
        }
        effects.clear();
    };
    let (session, worker, incarnation) = (SessionId(1), WorkerId(0), Incarnation(1));
    for clock in from..from + BATCH {
        let kind = PullKind::Gated { clock: Clock(clock), after: Sequence(clock), ahead: 0 };
        let reader = Some((worker, incarnation));
        event(clock * 300_000, ShardEvent::Pull { session, reader, request: clock, have: 0, kind });
        let push = Push {
            session,
            worker,
            incarnation,
            sequence: Sequence(clock + 1),
            clock: Clock(clock),
            pulled: Version(clock),
            batch: BatchIndex(clock),
            samples: 32,
            reply: 0,
            have: 0,
            gradient: Some(vec![1.0].into()),
        };
        event(clock * 300_000 + 150_000, ShardEvent::Push(push));
    }
    began.elapsed()
}

/// The least time of an iteration over some batches: whatever else the machine does only adds to it.
fn least(tracer: Option<Tracer>) -> Duration {
    let (mut shard, mut tracer, mut effects) = (shard(), tracer, Vec::new());
    let (worker, incarnation, clock, standing) = (WorkerId(0), Incarnation(1), Clock(0), Standing::Active);
    for event in [
        ShardEvent::Initialize(vec![0.0]),
        ShardEvent::Enter { worker, incarnation, clock, standing, batch_count: 1, answered: Sequence(0) },
        ShardEvent::Start,
    ] {
        let arrival = tracer.as_ref().map(|tracer| tracer.arrival(&event, &shard));
        shard.handle(Moment(0), event, &mut effects);
        if let (Some(tracer), Some(arrival)) = (tracer.as_mut(), arrival) {
            tracer.tell(Moment(0), arrival, &effects.iter().collect::<Vec<_>>(), &shard);
        }
        effects.clear();
    }
    let batches = (0..12).map(|batch| iterations(&mut shard, &mut tracer, batch * BATCH));
    batches.min().unwrap() / BATCH as u32
}

#[test]
fn tracing_an_iteration_costs_less_than_a_fiftieth_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::create(folder.path().join("trace")).unwrap();
    let tracer = Tracer::new(Box::new(file), "a trace".to_owned(), 1 << 30);
    let (with, without) = (least(Some(tracer)), least(None));
    let cost = with.saturating_sub(without);
    println!("an iteration takes a shard {without:?}, traced {with:?}");
    assert!(cost * 50 < ITERATION, "tracing takes {cost:?} of an iteration of {ITERATION:?}");
}
