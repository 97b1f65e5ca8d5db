//! Workers that come again: to a shard that had removed them alone, to a copy that lacks their last words, and to a table that empties.

use super::pair::{Life, taken, wide};
use super::*;

const LIVES: usize = 8;

fn tell(shard: &mut Shard, event: ShardEvent) -> Vec<ShardEffect> {
    let mut effects = Vec::new();
    shard.handle(Moment(1), event, &mut effects);
    shard.check_invariants();
    effects
}

/// A shard whose run has begun with these workers.
fn begun(policy: PolicySpec, steps: Steps, lives: &[Life]) -> Shard {
    let settings = wide(policy, steps, LIVES);
    let values = vec![0.0; settings.keys.len as usize];
    let mut shard = Shard::new(settings);
    for life in lives {
        tell(&mut shard, life.enter(0, Standing::Active));
    }
    tell(&mut shard, ShardEvent::Initialize(values));
    tell(&mut shard, ShardEvent::Start);
    shard
}

fn copy_of(shard: &Shard, policy: PolicySpec, steps: Steps) -> Shard {
    Shard::restore(wide(policy, steps, LIVES), shard.state()).unwrap()
}

fn lead(life: Life) -> ShardEvent {
    let members = vec![(life.worker, life.incarnation, Clock(0))];
    ShardEvent::Lead { members, started: true }
}

fn outcome(effects: &[ShardEffect]) -> Option<(PushOutcome, bool)> {
    effects.iter().find_map(|effect| match effect {
        ShardEffect::Answer { pushed, .. } => Some((pushed.outcome, pushed.duplicate)),
        _ => None,
    })
}

// Found by the simulated world: a primary that was cut off removed a worker, whose backup was promoted where it was still a member: its
// push counted again.
#[test]
fn a_push_counts_once_though_its_worker_was_removed_here_and_is_a_member_elsewhere() {
    let (policy, steps, life) = (PolicySpec::Asp, Steps::Parts, Life::new(1, 5));
    for comes in [lead(life), life.enter(1, Standing::Joining)] {
        let mut shard = begun(policy, steps, &[life]);
        tell(&mut shard, ShardEvent::Push(life.push(1, 0, LIVES)));
        tell(&mut shard, ShardEvent::Remove { worker: life.worker });
        let mut copy = copy_of(&shard, policy, steps);
        tell(&mut copy, comes);
        let again = outcome(&tell(&mut copy, ShardEvent::Push(life.push(1, 0, LIVES))));
        assert!(matches!(again, Some((PushOutcome::Applied { .. }, true))), "{again:?}");
        assert_eq!(copy.version(), Version(1));
        tell(&mut copy, ShardEvent::Push(life.push(2, 1, LIVES)));
        assert_eq!(copy.version(), Version(2));
    }
}

#[test]
fn a_mean_that_closes_after_its_worker_was_removed_answers_it_when_it_is_back() {
    let (policy, steps) = (PolicySpec::Bsp, Steps::Parts);
    let (life, other) = (Life::new(1, 5), Life::new(2, 6));
    let mut shard = begun(policy, steps, &[life, other]);
    tell(&mut shard, ShardEvent::Push(life.push(1, 0, LIVES)));
    tell(&mut shard, ShardEvent::Remove { worker: life.worker });
    tell(&mut shard, ShardEvent::Push(other.push(1, 0, LIVES)));
    assert_eq!(shard.version(), Version(1));
    let mut copy = copy_of(&shard, policy, steps);
    tell(&mut copy, lead(life));
    let again = outcome(&tell(&mut copy, ShardEvent::Push(life.push(1, 0, LIVES))));
    assert!(matches!(again, Some((PushOutcome::Applied { .. }, true))), "{again:?}");
}

#[test]
fn an_incarnation_whose_last_steps_are_decided_never_comes_back() {
    let (policy, steps, life) = (PolicySpec::Asp, Steps::Whole, Life::new(1, 5));
    let Life { worker, incarnation } = life;
    let mut shard = begun(policy, steps, &[life]);
    tell(&mut shard, ShardEvent::Push(life.push(1, 0, LIVES)));
    tell(&mut shard, ShardEvent::Remove { worker });
    tell(&mut shard, ShardEvent::Resolve { worker, incarnation, through: Sequence(1) });
    assert_eq!(shard.version(), Version(1));
    let mut copy = copy_of(&shard, policy, steps);
    tell(&mut copy, lead(life));
    tell(&mut copy, life.enter(0, Standing::Joining));
    let again = outcome(&tell(&mut copy, ShardEvent::Push(life.push(1, 0, LIVES))));
    assert_eq!(again, Some((PushOutcome::Fenced, false)));
    assert_eq!((copy.version(), copy.members().count()), (Version(1), 0));
}

#[test]
fn those_that_are_gone_are_remembered_up_to_a_bound() {
    let mut shard = begun(PolicySpec::Asp, Steps::Parts, &[]);
    let most = slackline_core::limits::WORKER_COUNT_MAX as u64;
    for incarnation in 1..most + 10 {
        let life = Life { worker: WorkerId((incarnation % 7) as u32), incarnation: Incarnation(incarnation) };
        tell(&mut shard, life.enter(0, Standing::Joining));
    }
    assert_eq!(shard.gone.len() as u64, most);
    assert!(!shard.gone.contains_key(&(Incarnation(1), WorkerId(1))), "the oldest goes first");
}

// A shard that took over without the last commit, or was restored, learns from the worker's registration what all shards have.
#[test]
fn what_a_worker_was_answered_is_taken_in_from_its_pieces_or_counts_as_seen() {
    let (policy, steps, life) = (PolicySpec::Asp, Steps::Whole, Life::new(1, 5));
    let enter = |answered| ShardEvent::Enter {
        worker: life.worker,
        incarnation: life.incarnation,
        clock: Clock(answered),
        standing: Standing::Joining,
        batch_count: 100,
        answered: Sequence(answered),
    };
    let mut shard = begun(policy, steps, &[life]);
    tell(&mut shard, ShardEvent::Push(life.push(1, 0, LIVES)));
    tell(&mut shard, enter(1));
    assert_eq!(taken(&shard.state()).len(), 1);
    // Of what was lost with a state, the pieces that are left are of no use alone.
    tell(&mut shard, ShardEvent::Push(life.push(3, 2, LIVES)));
    tell(&mut shard, enter(3));
    assert_eq!((taken(&shard.state()).len(), shard.staged_count()), (1, 0));
    tell(&mut shard, ShardEvent::Push(life.push(4, 3, LIVES)));
    let (worker, incarnation) = (life.worker, life.incarnation);
    tell(&mut shard, ShardEvent::Commit { worker, incarnation, sequence: Sequence(4) });
    assert_eq!(taken(&shard.state()).len(), 2);
}

// Found by the simulated world (seed 526, with checkpoints in most runs): a shard went on from a checkpoint of before an incarnation, which
// then pushed at its clock while the other workers' rows were those of the cut.
#[test]
fn a_state_of_before_a_worker_came_is_behind_once_that_worker_comes_back_to_it() {
    let (policy, steps) = (PolicySpec::Bsp, Steps::Parts);
    let (former, later, other) = (Life::new(1, 5), Life::new(1, 7), Life::new(2, 4));
    let mut shard = begun(policy, steps, &[former, other]);
    for life in [former, other] {
        tell(&mut shard, ShardEvent::Push(life.push(1, 0, LIVES)));
    }
    let ShardEvent::Enter { worker, incarnation, standing, batch_count, .. } =
        later.enter(0, Standing::Joining)
    else {
        panic!("it enters");
    };
    // Its last push has no answer, whether it is its first or not.
    for (answered, pulled) in [(Sequence(1), Version(0)), (Sequence(0), Version(9))] {
        let mut restored = copy_of(&shard, policy, steps);
        let clock = Clock(10);
        tell(
            &mut restored,
            ShardEvent::Enter { worker, incarnation, clock, standing, batch_count, answered },
        );
        let push = Push { pulled, ..later.push(answered.0 + 1, clock.0, LIVES) };
        tell(&mut restored, ShardEvent::Push(push));
        assert_eq!(restored.table().clock_of(worker), Some(Clock(11)));
        assert_eq!(restored.table().minimum(), Some(Clock(1)), "the other's row is that of the cut");
    }
}

// Found by the simulated world: a newcomer that a checkpoint's cut had lifted waited for ever for a clock that nobody was left to close.
#[test]
fn nobody_waits_for_a_clock_below_all_that_join_when_nobody_else_is_left() {
    let policy = PolicySpec::Backup { late: 1 };
    let lives = [Life::new(0, 0), Life::new(1, 1), Life::new(2, 2)];
    let mut shard = begun(policy, Steps::Parts, &lives[..2]);
    tell(&mut shard, lives[2].enter(14, Standing::Joining));
    let pull = ShardEvent::Pull {
        session: SessionId(9),
        reader: Some((lives[2].worker, lives[2].incarnation)),
        request: 1,
        have: 0,
        kind: PullKind::Gated { clock: Clock(14), after: Sequence(0), ahead: 0 },
    };
    let is_served = |effects: &[ShardEffect]| {
        effects.iter().any(|effect| matches!(effect, ShardEffect::Serve { session: SessionId(9), .. }))
    };
    assert!(!is_served(&tell(&mut shard, pull)), "others are at clock 0");
    tell(&mut shard, ShardEvent::Finish { worker: lives[0].worker });
    assert!(is_served(&tell(&mut shard, ShardEvent::Remove { worker: lives[1].worker })));
}

// Found by the simulated world: a server was restarted after the coordinator's word about a worker that was gone, which it had missed: the
// pieces waited for ever, and so did the last checkpoint.
#[test]
fn whoever_leads_asks_again_what_becomes_of_the_pieces_that_wait() {
    let (policy, steps, life) = (PolicySpec::Asp, Steps::Whole, Life::new(1, 5));
    let mut shard = begun(policy, steps, &[life]);
    tell(&mut shard, ShardEvent::Push(life.push(1, 0, LIVES)));
    tell(&mut shard, ShardEvent::Remove { worker: life.worker });
    let mut copy = copy_of(&shard, policy, steps);
    let effects = tell(&mut copy, ShardEvent::Lead { members: Vec::new(), started: false });
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, ShardEffect::Doubt(doubt) if doubt.waiting == [Sequence(1)]))
    );
}
