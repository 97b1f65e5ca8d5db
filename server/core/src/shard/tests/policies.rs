//! What the policies do to pushes and pulls that the laws of the others do not show.

use slackline_core::consistency::DropReason;

use super::*;

/// A push of worker `index` at `clock` on the values of `pulled`.
fn push(index: u32, clock: u64, pulled: u64, gradient: f32) -> Push {
    Push {
        session: SessionId(u64::from(index)),
        worker: WorkerId(index),
        incarnation: Incarnation(u64::from(index)),
        sequence: Sequence(clock + 1),
        clock: Clock(clock),
        pulled: Version(pulled),
        batch: BatchIndex(clock),
        samples: 4,
        reply: 0,
        have: 0,
        gradient: Some(vec![gradient; KEYS as usize].into()),
    }
}

fn pull(index: u32, clock: u64, after: u64) -> ShardEvent {
    ShardEvent::Pull {
        session: SessionId(u64::from(index)),
        reader: Some((WorkerId(index), Incarnation(u64::from(index)))),
        request: clock + 1,
        have: 0,
        kind: PullKind::Gated { clock: Clock(clock), after: Sequence(after), ahead: 0 },
    }
}

fn handled(world: &mut World, now: u64, event: ShardEvent) -> Vec<ShardEffect> {
    let mut effects = Vec::new();
    world.shard.handle(Moment(now), event, &mut effects);
    world.shard.check_invariants();
    effects
}

fn outcomes(effects: &[ShardEffect]) -> Vec<(u64, PushOutcome)> {
    let answer = |effect: &ShardEffect| match effect {
        ShardEffect::Answer { session, pushed } => Some((session.0, pushed.outcome)),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

const fn applied(version: u64, staleness: u64) -> PushOutcome {
    PushOutcome::Applied { version: Version(version), staleness, down_weighted: false }
}

// Trap 2 of the sources (ps-lite's applications, MXNet, BytePS): a round was complete after so many pushes, whoever they were of.
#[test]
fn a_clock_in_step_does_not_close_for_one_worker_that_pushes_twice() {
    let mut world = World::new(PolicySpec::Bsp, 2);
    let second = Push { sequence: Sequence(2), ..push(0, 0, 0, 5.0) };
    for event in [push(0, 0, 0, 1.0), push(0, 0, 0, 1.0), second] {
        assert_eq!(outcomes(&handled(&mut world, 1, ShardEvent::Push(event))), []);
        assert_eq!((world.shard.version(), world.shard.values()), (Version(0), Some(&[0.0; 3][..])));
    }
    let effects = handled(&mut world, 9, ShardEvent::Push(push(1, 0, 0, 3.0)));
    assert_eq!(outcomes(&effects), [(0, applied(1, 0)), (0, applied(1, 0)), (1, applied(1, 0))]);
    assert_eq!(world.shard.values(), Some(&[-3.0; 3][..]));
}

// Case 28 (dmlc/ps-lite#100): pulls that had been parked were answered with another length.
#[test]
fn a_pull_that_was_held_is_answered_whole_and_once() {
    let mut world = World::new(PolicySpec::Ssp { staleness: 0 }, 2);
    handled(&mut world, 1, ShardEvent::Push(push(0, 0, 0, 1.0)));
    assert!(handled(&mut world, 2, pull(0, 1, 1)).is_empty());
    let effects = handled(&mut world, 10_000_000_002, ShardEvent::Push(push(1, 0, 0, 1.0)));
    let served = |effect: &ShardEffect| match effect {
        ShardEffect::Serve { session, request, values, served, .. } => {
            Some((session.0, *request, values.words.to_vec(), served.version, served.minimum))
        }
        _ => None,
    };
    let all: Vec<_> = effects.iter().filter_map(served).collect();
    assert_eq!(all, [(0, 2, vec![-2.0; KEYS as usize], Version(2), Clock(1))]);
    assert!(handled(&mut world, 10_000_000_003, ShardEvent::Tick).is_empty());
}

// Chen et al. 2016: the late gradient is never applied, and its worker goes on with the others.
#[test]
fn a_backup_clock_closes_without_its_slowest_which_is_told_and_moved_up() {
    let mut world = World::new(PolicySpec::Backup { late: 1 }, 3);
    for index in 0..3 {
        handled(&mut world, 1, pull(index, 0, 0));
    }
    assert_eq!(outcomes(&handled(&mut world, 2, ShardEvent::Push(push(0, 0, 0, 1.0)))), []);
    let effects = handled(&mut world, 3, ShardEvent::Push(push(1, 0, 0, 3.0)));
    assert_eq!(outcomes(&effects), [(0, applied(1, 0)), (1, applied(1, 0))]);
    assert_eq!(world.shard.values(), Some(&[-2.0; 3][..]));
    let told = |effect: &ShardEffect| {
        matches!(effect, ShardEffect::Overtaken { session: SessionId(2), open: Clock(1) })
    };
    assert_eq!(effects.iter().filter(|effect| told(effect)).count(), 1);
    let effects = handled(&mut world, 4, ShardEvent::Push(push(2, 0, 0, 9.0)));
    assert_eq!(outcomes(&effects), [(2, PushOutcome::Dropped(DropReason::LateClock { open: Clock(1) }))]);
    assert_eq!(world.shard.table().clock_of(WorkerId(2)), Some(Clock(1)));
    assert_eq!(world.shard.values(), Some(&[-2.0; 3][..]));
}

#[test]
fn a_quorum_waits_its_grace_and_takes_the_late_into_the_next_round() {
    let grace = std::time::Duration::from_nanos(100);
    let mut world = World::new(PolicySpec::Quorum { count: Some(2), grace, holds: true }, 3);
    handled(&mut world, 1, ShardEvent::Push(push(0, 0, 0, 1.0)));
    let effects = handled(&mut world, 10, ShardEvent::Push(push(1, 0, 0, 3.0)));
    assert!(outcomes(&effects).is_empty());
    assert_eq!(world.shard.next_deadline(), Some(Moment(110)));
    assert!(outcomes(&handled(&mut world, 109, ShardEvent::Tick)).is_empty());
    assert_eq!(
        outcomes(&handled(&mut world, 110, ShardEvent::Tick)),
        [(0, applied(1, 0)), (1, applied(1, 0))]
    );
    assert_eq!(world.shard.next_deadline(), None);
    // Worker 2 comes after its round, worker 0 in the next: both count, one of them stale.
    handled(&mut world, 120, ShardEvent::Push(push(2, 0, 0, 4.0)));
    assert_eq!(world.shard.held_rows(Moment(121), 9).len(), 0);
    handled(&mut world, 121, pull(2, 1, 1));
    let reason = HoldReason::Quorum { have: 1, needs: 2 };
    assert_eq!(world.shard.held_rows(Moment(122), 9)[0].reason, reason);
    handled(&mut world, 130, ShardEvent::Push(push(0, 1, 1, 8.0)));
    let effects = handled(&mut world, 230, ShardEvent::Tick);
    assert_eq!(outcomes(&effects), [(2, applied(2, 1)), (0, applied(2, 0))]);
    assert!(effects.iter().any(|effect| matches!(effect, ShardEffect::Serve { .. })), "the reader goes on");
    assert_eq!(world.shard.values(), Some(&[-8.0; 3][..]));
    assert_eq!(world.shard.table().clock_of(WorkerId(2)), Some(Clock(2)), "it goes on with the others");
}

#[test]
fn a_stale_gradient_is_down_weighted_and_one_too_stale_is_dropped() {
    let mut world = World::new(PolicySpec::Asp, 3);
    let spec = DelaySpec { treatment: Treatment::Inverse, drop_at: Some(3) };
    world.shard.delay = Delay::new(spec, KEYS as usize);
    let mut apply = |index, clock, pulled, gradient| {
        outcomes(&handled(&mut world, 1, ShardEvent::Push(push(index, clock, pulled, gradient))))[0].1
    };
    assert_eq!(apply(0, 0, 0, 1.0), applied(1, 0));
    assert_eq!(apply(0, 1, 1, 1.0), applied(2, 0));
    let halved = PushOutcome::Applied { version: Version(3), staleness: 2, down_weighted: true };
    assert_eq!(apply(1, 0, 0, 4.0), halved);
    let dropped = PushOutcome::Dropped(DropReason::TooStale { staleness: 3 });
    assert_eq!(apply(2, 0, 0, 100.0), dropped);
    assert_eq!(world.shard.values(), Some(&[-4.0; 3][..]));
}

// DC-ASGD corrects by what the values moved since this very worker read them.
#[test]
fn a_compensated_gradient_knows_the_values_that_its_worker_read() {
    let mut world = World::new(PolicySpec::Asp, 2);
    let treatment = Treatment::Compensate { strength: 0.5 };
    world.shard.delay = Delay::new(DelaySpec { treatment, drop_at: None }, KEYS as usize);
    for index in 0..2 {
        handled(&mut world, 1, pull(index, 0, 0));
    }
    handled(&mut world, 2, ShardEvent::Push(push(0, 0, 0, 2.0)));
    assert_eq!(world.shard.values(), Some(&[-2.0; 3][..]));
    // g + 0.5 g g (w - w_read) = 2 + 0.5 * 4 * -2 = -2.
    handled(&mut world, 3, ShardEvent::Push(push(1, 0, 0, 2.0)));
    assert_eq!(world.shard.values(), Some(&[0.0; 3][..]));
}

#[test]
fn a_pull_for_fresher_values_is_answered_when_the_minimum_has_risen() {
    let mut world = World::new(PolicySpec::Essp { staleness: 3 }, 2);
    handled(&mut world, 1, pull(0, 0, 0));
    let reader = Some((WorkerId(0), Incarnation(0)));
    let kind = PullKind::Fresher { clock: Clock(0), after: Sequence(0), seen: Clock(0) };
    let fresher = ShardEvent::Pull { session: SessionId(0), reader, request: 9, have: 0, kind };
    assert!(handled(&mut world, 2, fresher).is_empty());
    handled(&mut world, 3, ShardEvent::Push(push(1, 0, 0, 1.0)));
    let effects = handled(&mut world, 4, ShardEvent::Push(push(0, 0, 0, 1.0)));
    let served = effects.iter().find_map(|effect| match effect {
        ShardEffect::Serve { request, served, .. } => Some((*request, served.minimum, served.version)),
        _ => None,
    });
    assert_eq!(served, Some((9, Clock(1), Version(2))));
}

#[test]
fn a_proportional_push_counts_by_its_share_of_a_batch() {
    let mut world = World::new(PolicySpec::Asp, 1);
    world.shard.batch = Some(8);
    handled(&mut world, 1, ShardEvent::Push(push(0, 0, 0, 3.0)));
    assert_eq!(world.shard.values(), Some(&[-1.5; 3][..]));
}

// The batch of a slow worker was done again at the end of a run, alone in its clock, at the rate of the beginning, and undid what was
// learned (found by the experiment on stragglers).
#[test]
fn a_batch_that_is_done_again_late_takes_the_rate_of_the_present() {
    let mut world = World::new(PolicySpec::Asp, 1);
    let schedule =
        RateSchedule { shape: slackline_core::optimizer::Shape::Linear, warmup: 0.0, final_share: 0.0 };
    let mut layout = Layout::new();
    layout.parameter("weight", &[KEYS], false);
    let spec = OptimizerSpec { schedule, ..sgd() };
    world.shard.optimizer = Optimizer::new(spec, &layout, KeyRange::new(0, KEYS), 1);
    for (clock, batch, expected) in [(0, 0, -1.0), (1, 750, -1.25), (2, 3, -1.5)] {
        let push = Push { batch: BatchIndex(batch), ..push(0, clock, clock, 1.0) };
        handled(&mut world, 1, ShardEvent::Push(push));
        assert_eq!(world.shard.values(), Some(&[expected; 3][..]), "batch {batch} of 1000");
    }
}

#[test]
fn a_correction_that_overflows_is_refused_and_leaves_values_and_memory_as_they_were() {
    use slackline_core::consistency::Treatment;
    for treatment in
        [Treatment::Compensate { strength: 1.0 }, Treatment::CompensateAdaptive { strength: 1e30 }]
    {
        let mut world = World::new(PolicySpec::Asp, 2);
        world.shard.delay = Delay::new(DelaySpec { treatment, drop_at: None }, KEYS as usize);
        for index in 0..2 {
            handled(&mut world, 1, pull(index, 0, 0));
        }
        handled(&mut world, 2, ShardEvent::Push(push(0, 0, 0, 2.0)));
        let effects = handled(&mut world, 3, ShardEvent::Push(push(1, 0, 0, 1e25)));
        assert_eq!(outcomes(&effects)[0].1, PushOutcome::NotFinite { key: 0 }, "{treatment:?}");
        assert_eq!(world.shard.values(), Some(&[-2.0; 3][..]));
        handled(&mut world, 4, pull(1, 1, 1));
        let effects = handled(&mut world, 5, ShardEvent::Push(push(1, 1, 1, 1.0)));
        assert_eq!(outcomes(&effects)[0].1, applied(2, 0), "{treatment:?}");
    }
}
