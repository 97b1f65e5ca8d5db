//! Parts of a gradient that leave before the rest.

use super::*;
use slackline_core::consistency::DropReason;
use slackline_core::wire::{Refusal, RefusalCode, Text};

use crate::event::Packed;
use slackline_core::codec::Encoding;

impl Rig {
    /// Shard 1's part of a gradient is final.
    fn part(&mut self, sequence: u64) -> Vec<Effect> {
        let part = Packed { shard: ShardId(1), encoding: Encoding::F32, words: 16 };
        self.on(Event::PartReady { sequence: Sequence(sequence), part, samples: 4 })
    }
}

#[test]
fn a_part_leaves_while_the_rest_is_computed_and_is_not_sent_again_with_it() {
    let mut rig = Rig::second(settings(2));
    assert_eq!(rig.part(2), [push(1, 2, 1, 1, 1)]);
    assert_eq!(rig.part(2), [], "once");
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    // The pull that would have gone with it goes by a message.
    let rest = rig.gradient(2, None);
    assert_eq!(rest, [&push_and_pull(0, 2, 1, 1, 1, 5)[..], &pull(1, 6, 2, 2)].concat());
    rig.pushed(0, 2, 2, applied(2));
    assert_eq!(rig.pushed(1, 2, 2, applied(2)), [release(2)]);
}

#[test]
fn what_is_answered_before_the_rest_is_pushed_counts_then() {
    let mut rig = Rig::second(settings(2));
    rig.part(2);
    assert_eq!(rig.pushed(1, 2, 2, applied(2)), []);
    assert_eq!(rig.pushed(1, 2, 2, applied(2)), [], "twice is once");
    rig.gradient(2, None);
    assert_eq!(rig.pushed(0, 2, 2, applied(2)), [release(2)]);
    assert_eq!(rig.worker.clock(), Clock(2));
}

// Until then the worker can be moved up to another clock, which the part would not have.
#[test]
fn a_part_waits_for_the_answers_to_the_push_before() {
    let mut rig = Rig::second(settings(2));
    rig.gradient(2, None);
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    rig.values(0, 5, 2);
    assert_eq!(rig.values(1, 6, 2), [compute(3, 2)]);
    rig.pushed(0, 2, 2, applied(2));
    assert_eq!(rig.part(3), []);
    let answered = rig.pushed(1, 2, 2, applied(2));
    assert_eq!(answered, [release(2), send(0, ask(3, Some(1))), push(1, 3, 2, 2, 2)]);
}

// It could not leave early, and what was written of it is what is sent: the news of the whole gradient does not name it again.
#[test]
fn a_part_that_had_to_wait_for_the_whole_is_sent_as_it_was_written() {
    let mut rig = Rig::second(settings(2));
    rig.gradient(2, None);
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    rig.values(0, 5, 2);
    assert_eq!(rig.values(1, 6, 2), [compute(3, 2)]);
    rig.pushed(0, 2, 2, applied(2));
    let (encoding, words) = (Encoding::F16, 8);
    let part = Packed { shard: ShardId(1), encoding, words };
    assert_eq!(rig.on(Event::PartReady { sequence: Sequence(3), part, samples: 4 }), []);
    rig.gradient(3, None);
    let effects = rig.pushed(1, 2, 2, applied(2));
    let sent = effects.iter().find_map(|effect| match effect {
        Effect::SendPush { header, .. } if header.shard == ShardId(1) => Some(header),
        _ => None,
    });
    assert_eq!(sent.map(|header| (header.encoding, header.words)), Some((encoding, words)), "{effects:?}");
}

#[test]
fn a_part_that_was_on_its_way_to_a_lost_server_is_sent_again_as_it_was() {
    let mut rig = Rig::second(settings(2));
    let sent = rig.part(2);
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 71);
    let resumed = rig.hear(1, ToPeer::Registered { has_values: true });
    assert!(resumed.ends_with(&sent), "{resumed:?}");
    // One that was answered is not.
    rig.pushed(1, 2, 2, applied(2));
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 71);
    let resumed = rig.hear(1, ToPeer::Registered { has_values: true });
    assert!(!resumed.contains(&sent[0]), "{resumed:?}");
    // Unless the server is another process: what it had may be gone.
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 72);
    let resumed = rig.hear(1, ToPeer::Registered { has_values: true });
    assert!(resumed.ends_with(&sent), "{resumed:?}");
}

#[test]
fn the_batch_of_a_gradient_that_is_left_is_done_where_a_part_of_it_was_taken() {
    for (outcome, result) in [
        (applied(2), ask(2, Some(1))),
        (PushOutcome::Dropped(DropReason::LateClock { open: Clock(4) }), returning(2, 1)),
    ] {
        let mut rig = Rig::second(settings(2));
        rig.part(2);
        rig.hear(0, ToPeer::Overtaken { open: Clock(4) });
        let effects = rig.gradient(2, None);
        assert!(effects.contains(&release_unused(2, &[0])), "of the other part it is not known: {effects:?}");
        let nothing =
            |effect: &&Effect| matches!(effect, Effect::Send { message: ToServer::PushNothing { .. }, .. });
        assert_eq!(
            effects.iter().filter(nothing).count(),
            1,
            "the shard whose part left is told nothing else"
        );
        rig.pushed(0, 2, 2, PushOutcome::Nothing);
        rig.pushed(1, 2, 2, outcome);
        // The next ask reports it.
        rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
        rig.values(0, 5, 2);
        let effects = without_reports(rig.values(1, 6, 2));
        let results = |message: &ToServer| match message {
            ToServer::Ask(ask) => ask.results.clone(),
            other => panic!("{other:?}"),
        };
        let told = effects.iter().find_map(|effect| match effect {
            Effect::Send { message: message @ ToServer::Ask(_), .. } => Some(results(message)),
            _ => None,
        });
        assert_eq!(told, Some(results(&result)));
    }
}

#[test]
fn of_a_forgotten_gradient_what_had_left_is_not_put_back() {
    let mut rig = Rig::second(settings(2));
    rig.part(2);
    let text = Text::new("too late");
    rig.hear(1, ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }));
    assert_eq!(rig.gradient(2, None), [release_unused(2, &[0])]);
}

#[test]
fn with_whole_steps_no_part_leaves() {
    let mut rig = Rig::computing(Settings { steps: Steps::Whole, ..settings(2) }, work(1));
    assert_eq!(rig.part(1), []);
    assert_eq!(rig.gradient(1, None).len(), 2);
}

// Its other parts are finite, and gone.
#[test]
fn a_gradient_that_turns_out_bad_after_a_part_of_it_has_left_is_nothing_to_the_other_shards() {
    let mut rig = Rig::second(settings(2));
    rig.part(2);
    let effects = rig.gradient(2, Some(3));
    let nothing = |effect: &Effect| match effect {
        Effect::Send { message: ToServer::PushNothing { shard, .. }, .. } => Some(*shard),
        _ => None,
    };
    assert_eq!(effects.iter().filter_map(nothing).collect::<Vec<_>>(), [ShardId(0)]);
    assert!(effects.contains(&release_unused(2, &[0])));
    rig.pushed(0, 2, 2, PushOutcome::Nothing);
    rig.pushed(1, 2, 2, applied(2));
    let counts = rig.worker.record.counts();
    assert_eq!((counts.pushes_applied, counts.dropped_not_finite), (3, 1));
}
