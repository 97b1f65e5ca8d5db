//! Whatever the order of answers and whatever is lost: the worker ends, and every batch is reported once.

use proptest::prelude::*;

use slackline_core::wire::{Refusal, RefusalCode, Text};

use super::fake::{Dice, Mishaps, World};
use super::*;

fn run(
    servers: u32,
    per_server: u32,
    batches: u64,
    seed: u64,
    steps: Steps,
    mishaps: Mishaps,
) -> Result<(), TestCaseError> {
    let mut settings = settings(servers);
    let keys = 16 * u64::from(servers * per_server) - 3;
    settings.partition = Partition::new(keys, servers, per_server);
    settings.steps = steps;
    settings.has_copies = mishaps.moves % 2 == 1;
    settings.prefetch = u32::from(seed.is_multiple_of(3));
    settings.begins_early = settings.prefetch == 0 && seed.is_multiple_of(2);
    let mut world = World::new(settings, batches, seed, mishaps);
    prop_assert!(world.run(), "it never ends");
    prop_assert_eq!(&world.exit, &Some(Ok(())));
    prop_assert_eq!(world.done.len() as u64, batches);
    prop_assert!(world.done.values().all(|times| *times == 1), "{:?}", world.done);
    Ok(())
}

const fn steps(is_whole: bool) -> Steps {
    if is_whole { Steps::Whole } else { Steps::Parts }
}

/// Any event at all, with numbers that are often the right ones.
fn nonsense(dice: &mut Dice) -> Event {
    let mut number = |below: usize| match dice.below(40) {
        0 => u64::MAX,
        _ => dice.below(below) as u64,
    };
    let (server, shard) = (ServerId(number(3) as u32), ShardId(number(3) as u32));
    let (clock, sequence, index, held_us) =
        (Clock(number(4)), Sequence(number(3)), BatchIndex(number(5)), number(9));
    let served = Served { version: Version(number(3)), minimum: clock, lead: number(3), held_us };
    let outcome = match number(8) {
        0 => PushOutcome::Nothing,
        1 => PushOutcome::NotFinite { key: number(3) },
        2 => PushOutcome::Fenced,
        _ => PushOutcome::Applied { version: Version(1), staleness: number(5), down_weighted: false },
    };
    let work = match number(6) {
        0 => Work::Idle,
        1 => Work::Evaluate { at_samples: number(2) },
        2 => Work::Done,
        kind => {
            let evaluate = (kind == 3).then_some(number(2));
            Work::Batch { batch: index, units: 1, evaluate, enter: (kind == 4).then_some(clock) }
        }
    };
    let code = if number(4) == 0 { RefusalCode::Full } else { RefusalCode::Fenced };
    let message = match number(14) {
        0 | 1 => ToPeer::Welcome { protocol: PROTOCOL, server, boot: 7 },
        2 => ToPeer::Joined { worker: ONE, incarnation: FIRST_LIFE, clock },
        3 | 4 => ToPeer::Registered { has_values: number(2) == 0 },
        5..=8 => ToPeer::Work(work),
        9 if number(5) == 0 => ToPeer::Refused(Refusal { code, text: Text::default() }),
        10 => ToPeer::Goodbye,
        _ => ToPeer::Pushed(Pushed {
            shard,
            sequence,
            duplicate: false,
            clock,
            outcome,
            held_us,
            busy_us: held_us,
        }),
    };
    match number(20) {
        0 | 1 => Event::Connected { server },
        2 => {
            let obstacle = match number(30) {
                0 => Obstacle::Lasting,
                1 => Obstacle::Own,
                _ => Obstacle::Passing,
            };
            Event::ConnectFailed { server, reason: String::new(), obstacle }
        }
        3 if number(5) == 0 => Event::Lost { server },
        4..=6 => Event::ValuesArrived { server, shard, request: number(9), served, bytes: 64 },
        7 | 8 => Event::BatchLoaded { batch: index },
        9 => Event::GradientReady {
            sequence,
            bad_key: None,
            loss: f64::NAN,
            samples: u32::MAX,
            waited_us: u64::MAX,
            packed: Vec::new(),
        },
        10 => Event::EvaluationReady { at_samples: number(2), loss: 0.0, accuracy: 0.0 },
        11 => Event::Tick { wire_sent: number(9), wire_received: number(9) },
        12 if number(50) == 0 => Event::Interrupt,
        _ => Event::Message { server, message },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_order_of_answers_ends_well(servers in 1..4_u32, per_server in 1..3_u32, batches in 0..12_u64, seed: u64, is_whole: bool) {
        run(servers, per_server, batches, seed, steps(is_whole), Mishaps::default())?;
    }

    #[test]
    fn losses_fences_and_bad_gradients_lose_no_batch(
        servers in 1..4_u32,
        per_server in 1..3_u32,
        batches in 0..12_u64,
        seed: u64,
        losses in 0..40_usize,
        fences in 0..6_usize,
        is_whole: bool,
    ) {
        let mishaps = Mishaps { losses, fences, bad_gradients: 60, drops: 100, ..Mishaps::default() };
        run(servers, per_server, batches, seed, steps(is_whole), mishaps)?;
    }

    #[test]
    fn restarted_servers_and_moving_shards_lose_no_batch_and_tear_no_step(
        servers in 1..4_u32,
        per_server in 1..3_u32,
        batches in 0..12_u64,
        seed: u64,
        faults in prop::array::uniform6(0..25_usize),
        is_whole: bool,
    ) {
        let [losses, fences, restarts, restores, moves, unready] = faults;
        let mishaps = Mishaps {
            losses,
            fences: fences / 5,
            bad_gradients: 20,
            drops: 50,
            restarts,
            // Every other time no shard forgets anything, and then no step may be torn.
            restores: if seed % 2 == 0 { restores } else { 0 },
            moves,
            unready: 10 * unready,
        };
        run(servers, per_server, batches, seed, steps(is_whole), mishaps)?;
    }

    #[test]
    fn nonsense_neither_panics_nor_breaks_an_invariant(
        seed: u64,
        keys in 0..48_u64,
        registered: bool,
        prefetch in 0..2_u32,
    ) {
        let mut dice = Dice::new(seed);
        let mut rig = if registered {
            Rig::registered(Settings { prefetch, ..settings(2) })
        } else {
            Rig::new(Settings { partition: Partition::new(keys, 3, 1), prefetch, ..settings(3) })
        };
        for _ in 0..300 {
            let us = dice.below(100_000) as u64;
            rig.after_us(us).on(nonsense(&mut dice));
            let _ = rig.worker.next_deadline();
        }
    }
}
