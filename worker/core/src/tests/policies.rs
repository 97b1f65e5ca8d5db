//! What the worker does for the policies beside the common cycle: fresher values, being overtaken, fragments.

use super::*;

fn served(minimum: u64, version: u64) -> Served {
    Served { version: Version(version), minimum: Clock(minimum), lead: 0, held_us: 0 }
}

fn values(rig: &mut Rig, shard: u32, request: u64, served: Served) -> Vec<Effect> {
    let (server, shard) = (ServerId(shard), ShardId(shard));
    rig.exactly(Event::ValuesArrived { server, shard, request, served, bytes: 64 })
}

fn fresher(shard: u32, request: u64, seen: u64) -> [Effect; 2] {
    let kind = PullKind::Fresher { clock: Clock(0), after: Sequence(0), seen: Clock(seen) };
    let pull = Pull { shard: ShardId(shard), request, have: 0, kind };
    [
        Effect::ExpectFresher { server: ServerId(shard), shard: ShardId(shard), request },
        send(shard, ToServer::Pull(pull)),
    ]
}

#[test]
fn while_it_waits_for_a_shard_it_takes_fresher_values_of_the_others_and_computes_on_the_last() {
    let mut rig = Rig::registered(Settings { refreshes: true, ..settings(2) });
    rig.hear(0, batch(0));
    rig.on(Event::BatchLoaded { batch: BatchIndex(0) });
    assert_eq!(values(&mut rig, 0, 1, served(0, 7)), fresher(0, 3, 0));
    let effects = values(&mut rig, 0, 3, served(2, 9));
    assert_eq!(effects[0], Effect::AdoptFresher { shard: ShardId(0) });
    assert_eq!(effects[1..], fresher(0, 4, 2));
    let effects = values(&mut rig, 1, 2, served(2, 5));
    let (adopted, pushed) = (vec![ShardId(0), ShardId(1)], vec![ShardId(0), ShardId(1)]);
    let compute = Effect::Compute {
        sequence: Sequence(1),
        batch: BatchIndex(0),
        clock: Clock(0),
        buffer: Buffer::First,
        adopted,
        pushed,
        missing: Vec::new(),
    };
    assert_eq!(effects[0], compute, "no fresher ones are asked for once all are there");
    // What still comes is of no use; the push names the version that was computed on.
    assert_eq!(values(&mut rig, 0, 4, served(3, 11)), []);
    rig.hear(0, batch(1));
    let pushed: Vec<u64> = rig
        .gradient(1, None)
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::SendPush { header, .. } => Some(header.version.0),
            _ => None,
        })
        .collect();
    assert_eq!(pushed, [9, 5]);
}

#[test]
fn a_worker_whose_clock_was_closed_leaves_its_gradient_and_goes_on_with_the_others() {
    let mut rig = Rig::computing(settings(2), work(1));
    let overtaken = ToPeer::Overtaken { open: Clock(3) };
    assert_eq!(rig.hear(1, overtaken.clone()), [Effect::Abandon { sequence: Sequence(1) }]);
    assert_eq!(rig.hear(0, overtaken), [], "once");
    let effects = rig.gradient(1, None);
    let nothing = |shard| {
        send(
            shard,
            ToServer::PushNothing {
                shard: ShardId(shard),
                sequence: Sequence(1),
                clock: Clock(0),
                reply: 0,
                have: 0,
            },
        )
    };
    assert_eq!(effects[..3], [release_unused(1, &[0, 1]), nothing(0), nothing(1)]);
    // The answers bring the clock of the others, and the batch is to be done again.
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    rig.pushed(0, 1, 3, PushOutcome::Nothing);
    rig.pushed(1, 1, 3, PushOutcome::Nothing);
    assert_eq!(rig.worker.clock(), Clock(3));
    rig.values(0, 3, 1);
    let effects = rig.values(1, 4, 1);
    assert!(effects.contains(&send(0, returning(4, 0))), "{effects:?}");
}

#[test]
fn a_worker_that_is_overtaken_before_it_computes_does_not_begin() {
    let mut rig = Rig::registered(settings(2));
    rig.hear(0, batch(0));
    rig.values(0, 1, 0);
    let effects = rig.hear(1, ToPeer::Overtaken { open: Clock(1) });
    assert!(effects.iter().all(|effect| !matches!(effect, Effect::Compute { .. } | Effect::Abandon { .. })));
    assert_eq!(rig.values(1, 2, 0), [], "what it asked for is not wanted any more");
    assert!(rig.on(Event::BatchLoaded { batch: BatchIndex(0) }).is_empty());
    assert!(!rig.worker.wants_batch(BatchIndex(9)));
}

#[test]
fn fragments_are_pushed_in_turn_and_pulled_when_they_change() {
    let mut rig = Rig::registered(Settings { fragments: 2, ..settings(2) });
    rig.hear(0, batch(0));
    rig.values(0, 1, 0);
    rig.values(1, 2, 0);
    rig.on(Event::BatchLoaded { batch: BatchIndex(0) });
    rig.hear(0, work_of(1));
    let effects = rig.gradient(1, None);
    let pushes: Vec<u32> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::SendPush { header, .. } => Some(header.shard.0),
            _ => None,
        })
        .collect();
    assert_eq!(pushes, [0], "fragment 0 at clock 0");
    let nothing = ToServer::PushNothing {
        shard: ShardId(1),
        sequence: Sequence(1),
        clock: Clock(0),
        reply: 0,
        have: 0,
    };
    assert!(effects.contains(&send(1, nothing)), "{effects:?}");
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    rig.pushed(0, 1, 1, applied(1));
    rig.pushed(1, 1, 1, PushOutcome::Nothing);
    values(&mut rig, 0, 3, served(1, 1));
    let effects = values(&mut rig, 1, 4, served(1, 0));
    let computing = effects.iter().find_map(|effect| match effect {
        Effect::Compute { clock, adopted, .. } => Some((*clock, adopted.clone())),
        _ => None,
    });
    assert_eq!(computing, Some((Clock(1), vec![ShardId(0)])), "shard 1 has not changed");
}

const fn work_of(index: u64) -> ToPeer {
    ToPeer::Work(Work::Batch { batch: BatchIndex(index), units: 1, evaluate: None, enter: None })
}

#[test]
fn a_batch_larger_than_any_or_of_nothing_is_refused() {
    for units in [0, 2, u32::MAX] {
        let mut rig = Rig::registered(settings(2));
        let work = Work::Batch { batch: BatchIndex(0), units, evaluate: None, enter: None };
        let effects = rig.hear(0, ToPeer::Work(work));
        assert!(effects.iter().all(|effect| !matches!(effect, Effect::LoadBatch { .. })), "{effects:?}");
        assert!(
            effects.iter().any(|effect| matches!(effect, Effect::Send { message: ToServer::Leave(_), .. }))
        );
    }
}
