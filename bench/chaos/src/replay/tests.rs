//! A run that is made up, and what the replay says when something is wrong with it.

use slackline_core::ids::{BatchIndex, Clock, KeyRange};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{OptimizerSpec, Per, RateSchedule, Rule};

use super::*;
use crate::pushes::Piece;

const KEYS: u64 = 5;
const EFFORT: u64 = 100_000;

fn start() -> Start {
    let mut layout = Layout::new();
    layout.parameter("w", &[KEYS], true);
    let rule = Rule::Momentum { momentum: 0.9, nesterov: false, per: Per::Push };
    let schedule = RateSchedule::CONSTANT;
    let spec = OptimizerSpec { rule, rate: 0.1, weight_decay: 0.01, decay_per_clock: true, schedule };
    let optimizer = Optimizer::new(spec, &layout, KeyRange::new(0, KEYS), 3);
    Start { values: vec![1.0; KEYS as usize], optimizer }
}

fn step(worker: u32, sequence: u64) -> StepId {
    StepId { worker: WorkerId(worker), incarnation: Incarnation(1), sequence: Sequence(sequence) }
}

fn piece(worker: u32, sequence: u64, pulled: u64) -> Piece {
    let value = |key: u64| ((u64::from(worker) * 7 + sequence * 13 + key * 3) % 11) as f32 * 0.1 - 0.45;
    Piece {
        clock: Clock(sequence - 1),
        pulled: Version(pulled),
        batch: BatchIndex(sequence * 3 + u64::from(worker)),
        samples: 32,
        gradient: (0..KEYS).map(value).collect(),
    }
}

/// Three workers that take turns; what they have sent and were told, and the values that follow.
struct Run {
    pushes: Pushes,
    order: Vec<StepId>,
}

impl Run {
    fn of(steps: u64) -> Self {
        let mut run = Self { pushes: Pushes::default(), order: Vec::new() };
        for number in 0..steps {
            let (worker, sequence) = ((number % 3) as u32, number / 3 + 1);
            let name = step(worker, sequence);
            run.pushes.sent(name, piece(worker, sequence, number.saturating_sub(2)));
            run.pushes.applied(name, Version(number + 1));
            run.order.push(name);
        }
        run
    }

    fn values(&self) -> Vec<f32> {
        let Start { mut values, mut optimizer } = start();
        for (step, version) in self.order.iter().zip(0..) {
            let piece = self.pushes.piece(step).unwrap();
            let step = Step { progress: 0.0, weight: 1.0, version, pulled: piece.pulled.0 };
            optimizer.apply(&mut values, &piece.gradient, &step);
        }
        values
    }

    fn replayed(&self) -> Replayed {
        let values = self.values();
        let truth = Truth { version: Version(self.order.len() as u64), values: &values };
        replay(&self.pushes, &start(), truth, EFFORT)
    }

    /// The same, with one step unanswered.
    fn unheard(&mut self, silent: StepId) {
        let mut pushes = Pushes::default();
        for name in self.pushes.pieces() {
            pushes.sent(name, self.pushes.piece(&name).unwrap().clone());
        }
        for (name, versions) in self.pushes.answered().filter(|(name, _)| **name != silent) {
            versions.iter().for_each(|version| pushes.applied(*name, *version));
        }
        self.pushes = pushes;
    }
}

#[test]
fn a_run_without_faults_is_right() {
    let replayed = Run::of(60).replayed();
    assert!(replayed.is_right() && replayed.filled == 0, "{replayed:?}");
    assert_eq!(replayed.order.len(), 60);
}

#[test]
fn a_step_whose_worker_never_heard_of_it_is_found_among_those_that_were_not_applied() {
    let mut run = Run::of(60);
    // Three more were on the way and did not arrive: one of the same life, and two of others.
    run.pushes.sent(step(7, 1), piece(7, 1, 28));
    run.pushes.sent(step(8, 1), piece(8, 1, 29));
    run.pushes.sent(step(1, 21), piece(1, 21, 57));
    run.unheard(run.order[30]);
    let replayed = run.replayed();
    assert!(replayed.is_right() && replayed.filled == 1, "{replayed:?}");
    assert_eq!(replayed.order[30].1, run.order[30]);
}

#[test]
fn an_update_that_was_acknowledged_and_is_not_in_the_values_is_lost() {
    let mut run = Run::of(60);
    // The last one, with the checkpoint's version one lower.
    let last = run.order.pop().unwrap();
    assert_eq!(run.replayed().lost, [last]);
    // One in the middle: the shard went back behind it, and another made its version.
    let mut run = Run::of(60);
    let gone = run.order.remove(40);
    run.pushes = Pushes::default();
    for (name, version) in run.order.clone().into_iter().zip(1..) {
        run.pushes.sent(name, piece(name.worker.0, name.sequence.0, version - 1));
        run.pushes.applied(name, Version(version));
    }
    run.pushes.sent(gone, piece(gone.worker.0, gone.sequence.0, 38));
    run.pushes.applied(gone, Version(41));
    let replayed = run.replayed();
    assert_eq!((replayed.lost.as_slice(), replayed.differing), (&[gone][..], 0), "{replayed:?}");
}

#[test]
fn an_update_that_is_in_the_values_twice_is_doubled() {
    // The shard has said so itself.
    let mut run = Run::of(30);
    let twice = run.order[10];
    run.order.push(twice);
    run.pushes.applied(twice, Version(31));
    assert_eq!(run.replayed().doubled, [twice]);
    // It has not: a version is left that nobody was told of.
    let mut run = Run::of(30);
    run.order.push(run.order[29]);
    let replayed = run.replayed();
    assert_eq!((replayed.doubled.as_slice(), replayed.filled), (&[run.order[29]][..], 1), "{replayed:?}");
}

#[test]
fn a_version_that_nothing_explains_and_values_that_differ_are_told() {
    let run = Run::of(30);
    let mut values = run.values();
    values[2] += 1e-6;
    let truth = |version| Truth { version: Version(version), values: &values };
    let replayed = replay(&run.pushes, &start(), truth(30), EFFORT);
    assert!(!replayed.is_right());
    assert_eq!(replayed.differing, 1);
    let replayed = replay(&run.pushes, &start(), truth(31), EFFORT);
    assert!(!replayed.is_right(), "{replayed:?}");
}

#[test]
fn shards_that_have_not_the_same_steps_are_named() {
    let mut replayed: BTreeMap<_, _> = (0..3).map(|shard| (ShardId(shard), Run::of(30).replayed())).collect();
    assert!(disagreements(&replayed).is_empty());
    let gone = replayed.get_mut(&ShardId(1)).unwrap().order.remove(7).1;
    assert_eq!(disagreements(&replayed), [(gone, vec![ShardId(1)])]);
}
