//! What the coordinator takes for in a checkpoint is in the shards' parts of it, and nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::strategy::{Strategy, ValueTree};
use slackline_core::consistency::{DelaySpec, Treatment};
use slackline_core::ids::{KeyRange, Version};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{OptimizerSpec, Rule};

use super::keeping::{commits, saved, with_checkpoints};
use super::*;
use crate::shard::{Push, Shard, ShardEffect, ShardSettings};

const BATCHES: u64 = 90;

/// One key for each batch, so that the values say which are in them.
fn shard_settings() -> ShardSettings {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut settings = crate::shard::tests::crowd::settings().new_tree(&mut runner).unwrap().current();
    let mut layout = Layout::new();
    layout.parameter("weight", &[BATCHES], false);
    (settings.keys, settings.layout) = (KeyRange::new(0, BATCHES), Arc::new(layout));
    settings.policy = PolicySpec::Asp;
    settings.delay = DelaySpec { treatment: Treatment::None, drop_at: None };
    settings.optimizer = OptimizerSpec { rule: Rule::Sgd, weight_decay: 0.0, ..settings.optimizer };
    (settings.steps, settings.guard.norm_max) = (Steps::Parts, None);
    settings
}

/// A worker: its session, who it is, and how far.
struct Hand {
    session: u64,
    worker: WorkerId,
    incarnation: Incarnation,
    clock: u64,
    pushed: u64,
    done: Option<(BatchIndex, u64)>,
}

/// A coordinator with its one shard.
struct Yard {
    desk: Desk,
    shard: Shard,
    /// The batches in the shard's part of the checkpoint.
    part: Option<BTreeSet<u64>>,
    commits: Vec<Commit>,
}

impl Yard {
    fn new() -> Self {
        let mut settings = with_checkpoints(1);
        settings.workers = 2;
        if let Some(coordinator) = &mut settings.coordinator {
            (coordinator.policy, coordinator.epochs) = (PolicySpec::Asp, 20);
        }
        let shard = Shard::new(shard_settings());
        Self { desk: Desk::new(settings), shard, part: None, commits: Vec::new() }
    }

    fn give(&mut self, event: ShardEvent) {
        let mut effects = Vec::new();
        self.shard.handle(self.desk.now, event, &mut effects);
        self.shard.check_invariants();
        for effect in effects {
            if matches!(effect, ShardEffect::HasValues) {
                self.desk.event(ControlEvent::HasValues { shard: ShardId(0) });
            } else if let ShardEffect::Cut { number, state } = effect {
                let values = state.arrays[0].values.iter().enumerate();
                let moved = values.filter(|(_, value)| **value != 0.0).map(|(batch, _)| batch as u64);
                self.part = Some(moved.collect());
                let effects = self.desk.event(saved(number));
                self.hear(effects);
            }
        }
    }

    fn hear(&mut self, effects: Vec<ControlEffect>) -> Vec<(u64, Work)> {
        self.commits.extend(commits(&effects));
        let given = works(&effects);
        for effect in effects {
            if let ControlEffect::Shards(event) | ControlEffect::Shard { event, .. } = effect {
                self.give(event);
            }
        }
        given
    }

    fn come(&mut self, session: u64, former: Option<(WorkerId, Incarnation)>) -> Hand {
        let (worker, incarnation, clock) = self.desk.join(session, former);
        let (layout_hash, config_hash, batch_count) = (1, 2, BATCHES);
        let answered = Sequence(0);
        let register =
            Register { worker, incarnation, layout_hash, config_hash, clock, batch_count, answered };
        let effects = self.desk.say(session, ToServer::Register(register));
        self.hear(effects);
        Hand { session, worker, incarnation, clock: clock.0, pushed: 0, done: None }
    }

    /// A worker tells what it has done and asks for work.
    fn ask(&mut self, hand: &mut Hand) -> Option<BatchIndex> {
        let done = hand.done.take();
        let results = done.map(|(batch, clock)| done_at(hand.pushed, batch.0, clock)).into_iter().collect();
        let ask = Ask { clock: Clock(hand.clock), results, report: None };
        let effects = self.desk.say(hand.session, ToServer::Ask(ask));
        self.hear(effects).into_iter().find_map(|(session, work)| match work {
            Work::Batch { batch, .. } if session == hand.session => Some(batch),
            _ => None,
        })
    }

    fn push(&mut self, hand: &mut Hand, batch: BatchIndex) {
        hand.pushed += 1;
        let mut gradient = vec![0.0; BATCHES as usize];
        gradient[batch.0 as usize] = 1.0;
        self.give(ShardEvent::Push(Push {
            session: SessionId(hand.session),
            worker: hand.worker,
            incarnation: hand.incarnation,
            sequence: Sequence(hand.pushed),
            clock: Clock(hand.clock),
            pulled: Version(0),
            batch,
            samples: 10,
            reply: 0,
            have: 0,
            gradient: Some(gradient.into()),
        }));
        hand.done = Some((batch, hand.clock));
        hand.clock += 1;
    }

    fn work(&mut self, hand: &mut Hand, iterations: usize) {
        for _ in 0..iterations {
            let batch = self.ask(hand).unwrap();
            self.push(hand, batch);
        }
    }
}

// The cut named a worker far ahead; it was lost, came back under its id at the minimum, and what it did then was in the checkpoint and done
// again by a run that went on from it.
#[test]
fn whoever_comes_back_under_a_name_that_is_cut_enters_at_its_cut() {
    let mut yard = Yard::new();
    let (mut first, mut second) = (yard.come(0, None), yard.come(1, None));
    yard.give(ShardEvent::Initialize(vec![0.0; BATCHES as usize]));
    assert_eq!((yard.ask(&mut first), yard.ask(&mut second)), (None, Some(BatchIndex(1))));
    yard.push(&mut first, BatchIndex(0));
    yard.work(&mut first, 9);
    // Told is what it did; what it is given now is lost with it.
    assert!(yard.ask(&mut first).is_some());
    yard.push(&mut second, BatchIndex(1));
    yard.work(&mut second, 2);
    let (number, _) = yard.shard.open_cut().expect("a checkpoint is being made");
    assert_eq!(number, 1);
    for _ in 0..2 {
        let effects = yard.desk.after(9.0);
        yard.hear(effects);
        let effects = yard.desk.say(1, ToServer::Renew);
        yard.hear(effects);
    }
    assert!(!yard.desk.control.members.is_member(first.worker, first.incarnation), "its lease is over");
    let mut again = yard.come(2, Some((first.worker, first.incarnation)));
    assert_eq!(again.worker, first.worker);
    for _ in 0..15 {
        yard.work(&mut again, 1);
        yard.work(&mut second, 1);
    }
    let part = yard.part.clone().expect("the cut is complete");
    let waits = yard.desk.control.waits(yard.desk.now);
    let [commit, ..] = yard.commits.as_slice() else { panic!("it waits: {waits:?}") };
    let position = commit.position.clone();
    let todo: BTreeSet<u64> =
        position.todo.iter().flat_map(|(unit, units)| *unit..unit + u64::from(*units)).collect();
    let booked: BTreeSet<u64> = (0..position.next).filter(|unit| !todo.contains(unit)).collect();
    assert_eq!(part, booked, "{position:?}");
    assert!(part.len() > 10, "{part:?}");
}
