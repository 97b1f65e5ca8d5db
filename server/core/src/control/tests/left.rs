//! Workers that all go with the work done and the final evaluation not made.

use slackline_core::wire::{FinalValues, Phase};

use super::keeping::{commits, marks, saved, with_checkpoints};
use super::*;

/// A run whose only worker has done all batches and was given the evaluation.
fn trained(settings: ControlSettings) -> Desk {
    let mut desk = Desk::new(settings);
    desk.enlist(0);
    desk.say(0, ask(0, None));
    for batch in 0..4 {
        desk.say(0, ask(batch + 1, Some(batch)));
    }
    assert_eq!(works(&desk.say(0, ask(5, Some(4)))), [(0, Work::Evaluate { at_samples: 45 })]);
    assert_eq!(desk.control.phase(desk.now), Phase::Running);
    desk
}

fn goes(desk: &mut Desk) -> Vec<ControlEffect> {
    desk.say(0, ToServer::Leave(Leave { outcome: Outcome::Interrupted, report: None }))
}

fn waits(desk: &Desk) -> Vec<String> {
    desk.control.waits(desk.now).iter().map(|waiting| waiting.wait.to_string()).collect()
}

const NOBODY: &str = "no worker is left to make the final evaluation: waiting for a worker to join";

// Found by reading: nobody was told what such a run waited for, and nothing of what it had trained since its last checkpoint was kept.
#[test]
fn the_final_values_are_kept_when_nobody_is_left_to_evaluate_them_and_whoever_comes_does() {
    for is_killed in [false, true] {
        let mut desk = trained(with_checkpoints(1_000));
        let effects = if is_killed { desk.after(11.0) } else { goes(&mut desk) };
        let all = Mark { number: 1, cuts: Vec::new(), rest: Some(Clock(u64::MAX)) };
        assert_eq!(marks(&effects), [all]);
        assert_eq!(desk.control.phase(desk.now), Phase::Left(FinalValues::Keeping));
        assert_eq!(waits(&desk), [NOBODY]);
        let commit = commits(&desk.event(saved(1))).remove(0);
        assert_eq!((commit.position.samples_done, commit.position.evaluations), (45, Vec::new()));
        desk.event(ControlEvent::Committed { number: 1 });
        assert_eq!(desk.control.phase(desk.now), Phase::Left(FinalValues::Kept { number: 1 }));
        assert_eq!(marks(&desk.after(100.0)), [], "once is enough");

        desk.enlist(1);
        assert_eq!(desk.control.phase(desk.now), Phase::Running);
        assert_eq!(works(&desk.say(1, ask(0, None))), [(1, Work::Evaluate { at_samples: 45 })]);
        let evaluated = Evaluated { at_samples: 45, loss: 0.1, accuracy: 0.9, report: None };
        desk.say(1, ToServer::Evaluated(evaluated));
        let left = desk.say(1, ToServer::Leave(Leave { outcome: Outcome::Done, report: None }));
        assert_eq!(marks(&left)[0].number, 2);
        let commit = commits(&desk.event(saved(2))).remove(0);
        assert_eq!(commit.position.evaluations.len(), 1);
        desk.event(ControlEvent::Committed { number: 2 });
        assert_eq!(desk.control.ended(), Some(&End::Complete));
    }
}

#[test]
fn a_store_that_takes_nothing_is_given_up_and_without_checkpoints_nothing_is_kept() {
    let mut desk = trained(with_checkpoints(1_000));
    goes(&mut desk);
    for number in 1..=5 {
        assert_eq!(desk.control.phase(desk.now), Phase::Left(FinalValues::Keeping), "{number}");
        desk.event(ControlEvent::NotSaved { number, shard: ShardId(0), why: "no route".to_owned() });
        assert_eq!(marks(&desk.after(5.0)).len(), usize::from(number < 5), "{number}");
    }
    assert_eq!(desk.control.phase(desk.now), Phase::Left(FinalValues::Unkept));
    let mut desk = trained(settings(1));
    assert_eq!(marks(&goes(&mut desk)), []);
    assert_eq!(desk.control.phase(desk.now), Phase::Left(FinalValues::Unkept));
    assert_eq!(waits(&desk), [NOBODY]);
}

#[test]
fn a_checkpoint_that_is_under_way_gives_way_to_that_of_the_final_values() {
    let mut desk = trained(with_checkpoints(1));
    let last = marks(&goes(&mut desk)).pop().unwrap();
    assert_eq!((last.number, last.rest), (2, Some(Clock(u64::MAX))));
    assert_eq!(commits(&desk.event(saved(1))), []);
    assert_eq!(commits(&desk.event(saved(2))).len(), 1);
    desk.event(ControlEvent::Committed { number: 2 });
    assert_eq!(desk.control.phase(desk.now), Phase::Left(FinalValues::Kept { number: 2 }));
    // A coordinator that is restarted meanwhile knows it.
    let (state, mut effects) = (desk.control.state().unwrap(), Vec::new());
    let again = Control::restore(with_checkpoints(1), &state, Vec::new(), desk.now, &mut effects).unwrap();
    assert_eq!(again.phase(desk.now), Phase::Left(FinalValues::Kept { number: 2 }));
}
