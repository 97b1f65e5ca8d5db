//! What is joined out of shards that were cut otherwise, and what is refused.

use slackline_core::codec::CodecKind;
use slackline_core::config::{self, Steps};
use slackline_core::consistency::{DelaySpec, PolicySpec, Standing};
use slackline_core::ids::{BatchIndex, SessionId};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{OptimizerSpec, RateSchedule, Rule};

use super::*;
use crate::shard::{Push, Shard, ShardEvent, ShardSettings};

fn settings(id: u32, keys: KeyRange, policy: PolicySpec) -> ShardSettings {
    let mut layout = Layout::new();
    layout.parameter("weight", &[6], false);
    ShardSettings {
        id: ShardId(id),
        keys,
        layout: Arc::new(layout),
        policy,
        delay: DelaySpec::default(),
        optimizer: OptimizerSpec {
            rule: Rule::Sgd,
            rate: 1.0,
            weight_decay: 0.0,
            decay_per_clock: true,
            schedule: RateSchedule::CONSTANT,
        },
        workers: 2,
        batch: None,
        steps: Steps::Parts,
        guard: config::Guard::default(),
        pull: CodecKind::F32,
        buffers: Default::default(),
    }
}

/// A shard of two workers where each of `pushes`, a worker's first, has come.
fn shard(id: u32, keys: KeyRange, policy: PolicySpec, pushes: &[u32]) -> Shard {
    let mut shard = Shard::new(settings(id, keys, policy));
    let mut now = 0;
    let mut event = |event| {
        now += 1_000_000_000;
        shard.handle(Moment(now), event, &mut Vec::new());
    };
    for worker in 0..2 {
        event(ShardEvent::Enter {
            worker: WorkerId(worker),
            incarnation: Incarnation(1),
            clock: Clock(0),
            standing: Standing::Active,
            batch_count: 10,
            answered: Sequence(0),
        });
    }
    event(ShardEvent::Initialize((keys.start..keys.end()).map(|key| key as f32).collect()));
    event(ShardEvent::Start);
    for worker in pushes.iter().copied() {
        event(ShardEvent::Push(Push {
            session: SessionId(u64::from(worker)),
            worker: WorkerId(worker),
            incarnation: Incarnation(1),
            sequence: Sequence(1),
            clock: Clock(0),
            pulled: Version(0),
            batch: BatchIndex(u64::from(worker)),
            samples: 1,
            reply: 0,
            have: 0,
            gradient: Some((keys.start..keys.end()).map(|key| key as f32 / 10.0).collect()),
        }));
    }
    shard
}

fn former(shard: &Shard) -> FormerShard {
    let ShardState { shard, keys, version, clock, facts, arrays } = shard.state();
    let waiting = arrays.into_iter().filter(|array| array.name.starts_with("collected")).collect();
    FormerShard { shard, keys, version, clock, facts, waiting }
}

fn values(keys: KeyRange) -> Vec<StateArray> {
    let values = (keys.start..keys.end()).map(|key| key as f32).collect();
    vec![StateArray { name: "values".to_owned(), values: Arc::new(values) }]
}

const ALL: KeyRange = KeyRange { start: 0, len: 6 };

fn halves(policy: PolicySpec, pushes: [&[u32]; 2]) -> Vec<FormerShard> {
    let keys = [KeyRange::new(0, 3), KeyRange::new(3, 3)];
    (0..2).map(|id| former(&shard(id, keys[id as usize], policy, pushes[id as usize]))).collect()
}

#[test]
fn two_shards_become_one_at_their_cut_without_their_workers() {
    let halves = halves(PolicySpec::Bsp, [&[0, 1], &[0, 1]]);
    let Joined { state, lost } = ShardState::join((ShardId(0), ALL), values(ALL), halves, false).unwrap();
    assert_eq!((state.clock, state.version, lost), (Clock(1), Version(1), Vec::new()));
    let shard = Shard::restore(settings(0, ALL, PolicySpec::Bsp), state).unwrap();
    assert_eq!((shard.members().count(), shard.table().minimum()), (0, None));
}

#[test]
fn gradients_that_wait_are_joined_where_all_have_the_same() {
    let halves = halves(PolicySpec::Bsp, [&[1], &[1]]);
    let Joined { state, lost } = ShardState::join((ShardId(0), ALL), values(ALL), halves, false).unwrap();
    assert_eq!(lost, []);
    let waiting = state.array("collected.0").unwrap();
    assert_eq!(waiting.as_slice(), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]);
    assert!(Shard::restore(settings(0, ALL, PolicySpec::Bsp), state).is_ok());
}

#[test]
fn a_push_that_only_some_have_waiting_is_lost_by_name() {
    let halves = halves(PolicySpec::Bsp, [&[0], &[0, 1]]);
    let Joined { state, lost } = ShardState::join((ShardId(0), ALL), values(ALL), halves, false).unwrap();
    assert_eq!(lost, [(WorkerId(0), Clock(0))]);
    assert!(Shard::restore(settings(0, ALL, PolicySpec::Bsp), state).is_ok());
}

#[test]
fn one_shard_is_cut_in_two_with_what_waits() {
    let one = former(&shard(0, ALL, PolicySpec::Bsp, &[1]));
    let keys = KeyRange::new(2, 3);
    let Joined { state, .. } = ShardState::join((ShardId(1), keys), values(keys), vec![one], false).unwrap();
    assert_eq!(state.array("collected.0").unwrap().as_slice(), [0.2, 0.3, 0.4]);
    assert!(Shard::restore(settings(1, keys, PolicySpec::Bsp), state).is_ok());
}

#[test]
fn members_stay_where_the_run_and_the_shard_are_the_same() {
    let shard = shard(0, ALL, PolicySpec::Bsp, &[1]);
    let joined = ShardState::join((ShardId(0), ALL), values(ALL), vec![former(&shard)], true).unwrap().state;
    let back = Shard::restore(settings(0, ALL, PolicySpec::Bsp), joined).unwrap();
    assert_eq!(back.members().collect::<Vec<_>>(), shard.members().collect::<Vec<_>>());
    assert_eq!(back.table().minimum(), shard.table().minimum());
}

#[test]
fn keys_that_nobody_had_and_facts_that_are_none_are_refused() {
    let nobody = ShardState::join((ShardId(0), ALL), values(ALL), Vec::new(), false);
    assert!(nobody.is_err());
    let mut one = former(&shard(0, ALL, PolicySpec::Bsp, &[]));
    one.facts.truncate(3);
    assert!(ShardState::join((ShardId(0), ALL), values(ALL), vec![one], false).is_err());
}
