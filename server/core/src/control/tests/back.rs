//! A run of which nothing but a checkpoint is left.

use super::keeping::{commits, saved, with_checkpoints};
use super::*;
use crate::assign::{Repeat, Why};
use slackline_core::ids::Version;

/// A run of 18 batches whose worker has reported seven and has two more; checkpoint 1 has the first five.
fn saved_after_five() -> (Desk, WorkerId, Incarnation) {
    let mut settings = with_checkpoints(1);
    settings.coordinator.as_mut().unwrap().epochs = 4;
    let mut desk = Desk::new(settings);
    let (worker, incarnation) = desk.enlist(0);
    (0..2).for_each(|clock| drop(desk.say(0, ask(clock, None))));
    desk.say(0, ask(2, Some(0)));
    desk.event(saved(1));
    let made: Vec<_> = (3..7).flat_map(|clock| commits(&desk.say(0, ask(clock, Some(clock - 2))))).collect();
    assert_eq!((made.len(), made[0].position.next, made[0].position.clock), (1, 5, Clock(5)));
    desk.event(ControlEvent::Committed { number: 1 });
    (7..9).for_each(|clock| drop(desk.say(0, ask(clock, Some(clock - 2)))));
    (desk, worker, incarnation)
}

/// The same run in a process that has nothing but what the coordinator kept, and loads checkpoint 1 for its only shard.
fn started_again(desk: &Desk) -> (Desk, ShardId, Generation) {
    let mut settings = ControlSettings { boot: 99, ..with_checkpoints(1) };
    settings.coordinator.as_mut().unwrap().epochs = 4;
    let mut effects = Vec::new();
    let state = desk.control.state().unwrap();
    let control = Control::restore(settings, &state, Vec::new(), Moment(5), &mut effects).unwrap();
    let mut desk = Desk { control, now: Moment(5) };
    let place = effects.iter().find_map(|effect| match effect {
        ControlEffect::Place { place: Some(place), .. } => Some(*place),
        _ => None,
    });
    let Place { shard, generation, origin, .. } = place.unwrap();
    assert_eq!(origin, Origin::Checkpoint { number: 1 });
    desk.event(ControlEvent::Leads { shard, generation, has_values: true, members: Vec::new() });
    (desk, shard, generation)
}

// Found by reading: the data went on where the coordinator had them and the shards at the checkpoint, so what came between was in no shard.
#[test]
fn the_data_go_back_to_the_checkpoint_that_is_left_and_what_is_done_again_is_told() {
    let (desk, worker, incarnation) = saved_after_five();
    let (mut desk, shard, generation) = started_again(&desk);
    desk.open(6, Role::Worker);
    assert_eq!(refusals(&desk.register(6, worker, incarnation)), []);
    let (version, clock) = (Version(5), Clock(5));
    let effects = desk.event(ControlEvent::Restored { shard, generation, version, clock });
    let line = "all shards were restored from checkpoint 1, and nothing newer is left: the data go back to it too, 40 samples are \
                done again, and the workers join anew";
    let said = effects
        .iter()
        .filter(|effect| matches!(effect, ControlEffect::Notice(notice) if notice.to_string() == line));
    assert_eq!(said.count(), 1, "{effects:?}");
    let text = "worker 0 is no member any more: the run has gone back to checkpoint 1";
    assert_eq!(refusals(&effects), [(RefusalCode::Fenced, text.to_owned())]);
    let repeats: Vec<Repeat> = desk.control.repeats().unwrap().ranges().collect();
    assert_eq!(repeats, [Repeat { from: 50, to: 90, why: Why::Restored { checkpoint: 1 } }]);
    assert_eq!(desk.control.batches_repeated(), 4);
    assert_eq!(desk.control.record().unwrap().progress(desk.now).samples, 50);
    // As in a run that is resumed.
    let (again, later, clock) = desk.join(7, Some((worker, incarnation)));
    assert_eq!((again, clock), (worker, Clock(5)));
    assert!(later > incarnation);
    desk.register(7, again, later);
    let given = works(&desk.say(7, ask(5, None)));
    assert!(matches!(given[..], [(7, Work::Batch { batch: BatchIndex(5), .. })]), "{given:?}");
}

// Found by reading: the place of the data in the checkpoint before the newest was forgotten, and the data stayed where they were.
#[test]
fn a_checkpoint_that_is_committed_while_the_shards_go_back_to_the_one_before_hides_it_not() {
    let (mut desk, ..) = saved_after_five();
    desk.event(saved(2));
    let made: Vec<_> = (9..14).flat_map(|clock| commits(&desk.say(0, ask(clock, Some(clock - 2))))).collect();
    assert_eq!((made.len(), made[0].number), (1, 2));
    let (mut desk, shard, generation) = started_again(&desk);
    desk.event(ControlEvent::Committed { number: 2 });
    let (version, clock) = (Version(5), Clock(5));
    let effects = desk.event(ControlEvent::Restored { shard, generation, version, clock });
    let went = effects
        .iter()
        .any(|effect| matches!(effect, ControlEffect::Notice(Notice::WentBack { checkpoint: 1, .. })));
    assert!(went, "{effects:?}");
}
