//! Whole steps: no shard is told that a step is whole before every shard has its piece, and each is told until it has answered.

use super::*;
use crate::{Notice, WaitKind, WorkerError};

fn whole() -> Settings {
    Settings { steps: Steps::Whole, ..settings(2) }
}

fn staged(rig: &mut Rig, shard: u32, sequence: u64) -> Vec<Effect> {
    rig.hear(shard, ToPeer::Staged { shard: ShardId(shard), sequence: Sequence(sequence) })
}

fn commit(server: u32, sequence: u64) -> Effect {
    send(server, ToServer::Commit { sequence: Sequence(sequence) })
}

/// A worker of two servers whose first push is out.
fn pushed() -> Rig {
    let mut rig = Rig::computing(whole(), work(1));
    assert_eq!(rig.gradient(1, None), [push(0, 1, 0, 0, 0), push(1, 1, 0, 0, 0)]);
    rig
}

fn back(rig: &mut Rig, server: u32, boot: u64) -> Vec<Effect> {
    rig.on(Event::Lost { server: ServerId(server) });
    rig.greet(server, boot);
    let mut effects = rig.hear(server, ToPeer::Registered { has_values: true });
    effects.retain(|effect| !matches!(effect, Effect::Notice(_)));
    effects
}

#[test]
fn a_step_is_committed_when_every_shard_has_its_piece() {
    let mut rig = pushed();
    assert_eq!(staged(&mut rig, 1, 1), []);
    assert_eq!(staged(&mut rig, 1, 1), [], "one shard that says it twice is not two shards");
    assert_eq!(staged(&mut rig, 0, 1), [commit(0, 1), commit(1, 1)]);
    rig.pushed(0, 1, 1, applied(1));
    assert_eq!(rig.pushed(1, 1, 1, applied(1))[0], release(1));
}

#[test]
fn a_shard_that_has_answered_has_its_piece_and_needs_no_word() {
    let mut rig = pushed();
    // It was told before a loss, by this worker.
    assert_eq!(rig.pushed(0, 1, 1, applied(1)), []);
    assert_eq!(staged(&mut rig, 1, 1), [commit(1, 1)]);
    let mut rig = pushed();
    staged(&mut rig, 1, 1);
    assert_eq!(rig.pushed(0, 1, 1, applied(1)), [commit(1, 1)], "in whatever order");
}

#[test]
fn after_a_loss_the_push_goes_again_and_so_does_the_word() {
    let mut rig = pushed();
    staged(&mut rig, 1, 1);
    assert_eq!(back(&mut rig, 1, 71), [push(1, 1, 0, 0, 0)], "it is not whole yet");
    staged(&mut rig, 0, 1);
    assert_eq!(back(&mut rig, 1, 71), [push(1, 1, 0, 0, 0), commit(1, 1)]);
    // The word can be there before the push, which goes beside it.
    assert_eq!(staged(&mut rig, 1, 1), [commit(1, 1)]);
}

#[test]
fn a_shard_that_lost_its_piece_before_the_word_is_waited_for_again() {
    let mut rig = pushed();
    staged(&mut rig, 1, 1);
    back(&mut rig, 1, 99);
    assert_eq!(staged(&mut rig, 0, 1), [], "the piece of the restarted server is gone");
    assert_eq!(staged(&mut rig, 1, 1), [commit(0, 1), commit(1, 1)]);
}

#[test]
fn a_late_word_of_an_earlier_step_says_nothing() {
    let mut rig = pushed();
    (0..2).for_each(|shard| _ = staged(&mut rig, shard, 1));
    (0..2).for_each(|shard| _ = rig.pushed(shard, 1, 1, applied(1)));
    assert_eq!(staged(&mut rig, 0, 1), []);
}

#[test]
fn pieces_that_wait_where_none_should_are_out_of_place() {
    let mut rig = Rig::computing(settings(2), work(1));
    rig.gradient(1, None);
    staged(&mut rig, 1, 1);
    rig.hear(0, ToPeer::Goodbye);
    let what = "a piece of a step that waits for others";
    let error = WorkerError::OutOfPlace { server: ServerId(1), what };
    assert_eq!(rig.hear(1, ToPeer::Goodbye), [Effect::Exit(Err(error))]);
}

#[test]
fn a_worker_that_is_told_to_end_completes_its_step_reports_it_and_goes() {
    let mut rig = pushed();
    assert_eq!(rig.on(Event::Interrupt), []);
    assert_eq!(rig.on(Event::BatchLoaded { batch: BatchIndex(1) }), [], "nothing new is begun");
    staged(&mut rig, 0, 1);
    assert_eq!(staged(&mut rig, 1, 1), [commit(0, 1), commit(1, 1)]);
    rig.pushed(0, 1, 1, applied(1));
    let effects = without_reports(rig.pushed(1, 1, 1, applied(1)));
    assert_eq!(effects[..2], [release(1), send(0, ask(1, Some(0)))]);
    assert!(effects[2..].iter().all(|effect| matches!(
        effect,
        Effect::Send { message: ToServer::Leave(leave), .. }
            if leave.outcome == slackline_core::wire::Outcome::Interrupted
    )));
    assert_eq!(effects.len(), 3);
}

#[test]
fn a_worker_that_is_told_to_end_waits_neither_for_ever_nor_for_a_server_that_is_away() {
    let mut rig = pushed();
    rig.on(Event::Interrupt);
    let deadline = rig.worker.next_deadline().unwrap();
    assert_eq!(deadline, rig.now.after(Duration::from_millis(2500)));
    let effects = rig.tick_after(Duration::from_millis(2500));
    assert_eq!(effects.len(), 1, "it leaves");
    // What shards have of its last step it does not know, and says so.
    let unfinished = slackline_core::wire::Outcome::Unfinished { batch: BatchIndex(0) };
    assert!(effects.iter().all(|effect| matches!(
        effect,
        Effect::Send { message: ToServer::Leave(leave), .. } if leave.outcome == unfinished
    )));

    let mut rig = pushed();
    rig.on(Event::Interrupt);
    rig.on(Event::Lost { server: ServerId(1) });
    let reason = "gone".to_owned();
    rig.on(Event::ConnectFailed { server: ServerId(1), reason, obstacle: Obstacle::Passing });
    let effects = rig.tick_after(Duration::from_secs(2));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Send { message: ToServer::Leave(_), .. })));

    // At the second signal nothing is waited for.
    let mut rig = pushed();
    rig.on(Event::Interrupt);
    assert_eq!(rig.on(Event::Interrupt).last(), Some(&Effect::Exit(Ok(()))));
}

#[test]
fn a_staged_step_is_named_as_what_it_waits_for() {
    let mut rig = pushed();
    staged(&mut rig, 0, 1);
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    let effects = rig.tick_after(Duration::from_secs(5));
    let waits: Vec<_> = effects
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Notice(Notice::Waiting { what, server, .. }) => Some((what, server)),
            _ => None,
        })
        .collect();
    assert_eq!(waits, [(WaitKind::Steps, ServerId(0)), (WaitKind::Answers, ServerId(1))]);
}
