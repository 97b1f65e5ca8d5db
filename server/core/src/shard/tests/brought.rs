//! Pulls that a push brings with it.

use super::crowd::{Crowd, settings};
use super::*;

/// A shard that hears of pulls in either way, and all that it said.
struct Ear {
    shard: Shard,
    said: Vec<String>,
}

impl Ear {
    fn hear(&mut self, now: u64, event: ShardEvent) -> Vec<ShardEffect> {
        let mut effects = Vec::new();
        self.shard.handle(Moment(now), event, &mut effects);
        self.shard.check_invariants();
        self.said.extend(effects.iter().map(|effect| format!("{effect:?}")));
        effects
    }
}

/// The pull that a push brings, as a message.
fn message(push: &Push) -> ShardEvent {
    let Push { session, worker, incarnation, sequence, clock, reply, have, .. } = *push;
    let kind = PullKind::Gated { clock: clock.next(), after: sequence, ahead: 0 };
    ShardEvent::Pull { session, reader: Some((worker, incarnation)), request: reply, have, kind }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // The pull of a push is the message that would have followed it: in every effect, in their order, and in the state.
    #[test]
    fn a_push_that_brings_a_pull_is_the_push_and_then_the_pull(
        settings in settings(),
        picks in prop::collection::vec((0..4_usize, 0..12_u8, any::<bool>()), 0..250),
    ) {
        let ear = || Ear { shard: Shard::new(settings.clone()), said: Vec::new() };
        let (mut one, mut two) = (ear(), ear());
        let mut crowd = Crowd::new(4, settings.keys.len);
        for event in crowd.beginning() {
            one.hear(0, event.clone());
            two.hear(0, event);
        }
        let mut sent = BTreeSet::new();
        for ((index, action, brings), now) in picks.into_iter().zip(1..) {
            for event in crowd.next(index, action) {
                let effects = match event {
                    ShardEvent::Push(mut push) => {
                        // Numbers of their own, above all others: the crowd does not wait for their answers.
                        push.reply = if brings { 1_000_000 + now } else { 0 };
                        push.have = 1_000_000 + now.saturating_sub(4);
                        let is_new = sent.insert((push.worker, push.incarnation, push.sequence));
                        let effects = one.hear(now, ShardEvent::Push(push.clone()));
                        two.hear(now, ShardEvent::Push(Push { reply: 0, ..push.clone() }));
                        if brings && is_new {
                            two.hear(now, message(&push));
                        }
                        effects
                    }
                    event => {
                        two.hear(now, event.clone());
                        one.hear(now, event)
                    }
                };
                effects.iter().for_each(|effect| crowd.hear(effect));
            }
            if one.shard.next_deadline().is_some_and(|deadline| deadline.0 <= now) {
                two.hear(now, ShardEvent::Tick);
                one.hear(now, ShardEvent::Tick).iter().for_each(|effect| crowd.hear(effect));
            }
            prop_assert_eq!(&one.said, &two.said);
            prop_assert_eq!(one.shard.state().hash(), two.shard.state().hash());
        }
        let held = |ear: &Ear| ear.shard.held().map(|held| (held.request, held.since)).collect::<Vec<_>>();
        prop_assert_eq!(held(&one), held(&two));
    }
}

/// A shard under a policy with one worker that computes its second iteration, and a push of that.
fn second(steps: Steps) -> (Shard, Push) {
    let mut shard = Shard { steps, ..shard(PolicySpec::Asp) };
    let (worker, incarnation) = (WorkerId(0), Incarnation(0));
    let enter = ShardEvent::Enter {
        worker,
        incarnation,
        clock: Clock(0),
        standing: Standing::Active,
        batch_count: 10,
        answered: Sequence(0),
    };
    for event in [enter, ShardEvent::Initialize(vec![0.0; KEYS as usize]), ShardEvent::Start] {
        shard.handle(Moment(0), event, &mut Vec::new());
    }
    let push = Push {
        session: SessionId(1),
        worker,
        incarnation,
        sequence: Sequence(1),
        clock: Clock(0),
        pulled: Version(0),
        batch: BatchIndex(0),
        samples: 1,
        reply: 5,
        have: 0,
        gradient: Some(vec![1.0; KEYS as usize].into()),
    };
    (shard, push)
}

fn served(shard: &mut Shard, event: ShardEvent) -> Vec<(u64, u64, Version)> {
    let mut effects = Vec::new();
    shard.handle(Moment(1), event, &mut effects);
    let serve = |effect: &ShardEffect| match effect {
        ShardEffect::Serve { session, request, served, .. } => Some((session.0, *request, served.version)),
        _ => None,
    };
    effects.iter().filter_map(serve).collect()
}

#[test]
fn a_push_that_comes_twice_brings_its_pull_once() {
    let (mut shard, push) = second(Steps::Parts);
    assert_eq!(served(&mut shard, ShardEvent::Push(push.clone())), [(1, 5, Version(1))]);
    assert_eq!(served(&mut shard, ShardEvent::Push(push.clone())), []);
    // Whoever sends it again over another session pulls by a message.
    let again = Push { session: SessionId(2), reply: 0, ..push.clone() };
    assert_eq!(served(&mut shard, ShardEvent::Push(again)), []);
    let pull = message(&Push { session: SessionId(2), reply: 9, ..push });
    assert_eq!(served(&mut shard, pull), [(2, 9, Version(1))]);
}

// What was sent over an earlier session can come after what was said over the present one: the pull that is awaited must not be lost for it.
#[test]
fn a_push_that_comes_late_does_not_bring_its_pull_in_the_place_of_a_later_one() {
    let (mut shard, push) = second(Steps::Parts);
    let anew = message(&Push { session: SessionId(2), reply: 9, ..push.clone() });
    assert_eq!(served(&mut shard, anew), [], "it waits for the push");
    assert_eq!(served(&mut shard, ShardEvent::Push(push)), [(2, 9, Version(1))]);
    assert_eq!(shard.held().count(), 0);
}

#[test]
fn a_piece_that_waits_for_its_step_holds_the_pull_that_it_brought() {
    let (mut shard, push) = second(Steps::Whole);
    let (worker, incarnation) = (push.worker, push.incarnation);
    assert_eq!(served(&mut shard, ShardEvent::Push(push.clone())), []);
    assert_eq!(served(&mut shard, ShardEvent::Push(push)), []);
    assert_eq!(shard.held().map(|held| held.request).collect::<Vec<_>>(), [5]);
    let whole = ShardEvent::Commit { worker, incarnation, sequence: Sequence(1) };
    assert_eq!(served(&mut shard, whole), [(1, 5, Version(1))]);
}

#[test]
fn a_push_of_a_stranger_brings_nothing() {
    let (mut shard, push) = second(Steps::Parts);
    assert_eq!(served(&mut shard, ShardEvent::Push(Push { worker: WorkerId(7), ..push.clone() })), []);
    assert_eq!(served(&mut shard, ShardEvent::Push(Push { gradient: Some(vec![1.0].into()), ..push })), []);
    assert_eq!(shard.held().count(), 0);
}
