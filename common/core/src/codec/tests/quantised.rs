//! int8, one-bit and qsgd: their loops against plain ones, and their bounds.

use super::*;

/// The step of a block: few bits, and enough of them.
fn step_of(values: &[f32], levels: u32) -> f32 {
    let largest = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let mut step = (largest / levels as f32).max(f32::MIN_POSITIVE);
    while step.to_bits() & 0xff != 0 {
        step = step.next_up();
    }
    step
}

/// What int8 and qsgd with error feedback stand for, one value after another.
fn nearest_multiples(values: &[f32], block: usize, levels: u32) -> Vec<f32> {
    let of_block = |values: &[f32]| {
        let step = step_of(values, levels);
        values.iter().map(|value| (value / step).round_ties_even() * step).collect::<Vec<_>>()
    };
    values.chunks(block).flat_map(of_block).collect()
}

/// What one-bit stands for.
fn means(values: &[f32]) -> Vec<f64> {
    let of_block = |values: &[f32]| {
        let mean = |negative: bool| {
            let those = values.iter().filter(|value| value.is_sign_negative() == negative);
            those.clone().map(|value| f64::from(*value)).sum::<f64>() / those.count().max(1) as f64
        };
        let (above, below) = (mean(false), mean(true));
        values.iter().map(|value| if value.is_sign_negative() { below } else { above }).collect::<Vec<_>>()
    };
    values.chunks(one_bit::BLOCK).flat_map(of_block).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn loops_over_blocks_are_the_plain_ones(values in prop::collection::vec(usual(), 64..2600)) {
        let kinds = [
            (CodecKind::Int8 { block: 16 }, 16, 127),
            (CodecKind::Int8 { block: 512 }, 512, 127),
            (CodecKind::Int8 { block: 33 }, 33, 127),
            (CodecKind::Int8 { block: 1 << 16 }, 1 << 16, 127),
            (CodecKind::Qsgd { levels: 1 }, qsgd::BLOCK, 1),
            (CodecKind::Qsgd { levels: 5 }, qsgd::BLOCK, 5),
            (CodecKind::Qsgd { levels: 100 }, qsgd::BLOCK, 100),
        ];
        for (kind, block, levels) in kinds {
            let payload = encoder(kind, true, values.len()).encode(&values, None, Vec::new());
            prop_assert_ne!(payload.encoding(), Encoding::F32);
            let sent = decoded(&received(&payload));
            let wanted = nearest_multiples(&values, block, levels);
            for key in 0..values.len() {
                // A zero has no sign on the wire.
                prop_assert_eq!(sent[key], wanted[key], "{:?} key {}", kind, key);
                let step = step_of(&values[key / block * block..((key / block + 1) * block).min(values.len())], levels);
                prop_assert!((sent[key] - values[key]).abs() <= step * 0.500_001, "{:?} key {}", kind, key);
            }
        }
    }

    #[test]
    fn one_bit_is_a_sign_and_a_mean(values in prop::collection::vec(usual(), 64..3300)) {
        let payload = encoder(CodecKind::OneBit, true, values.len()).encode(&values, None, Vec::new());
        prop_assert_eq!(payload.encoding(), Encoding::OneBit);
        let sent = decoded(&received(&payload));
        for (key, (sent, wanted)) in sent.iter().zip(means(&values)).enumerate() {
            prop_assert!((f64::from(*sent) - wanted).abs() <= wanted.abs() / 256.0 + 1e-40, "key {}: {} {}", key, sent, wanted);
        }
        for (block, sent) in values.chunks(one_bit::BLOCK).zip(sent.chunks(one_bit::BLOCK)) {
            let all = squares(block.iter().copied());
            let sum: f64 = block.iter().map(|value| f64::from(value.abs())).sum();
            let lost = squares(block.iter().zip(sent).map(|(value, sent)| value - sent));
            let delta = if all > 0.0 { sum * sum / (block.len() as f64 * all) } else { 1.0 };
            prop_assert!(lost <= (1.0 - delta) * all + 1e-5 * all + 1e-70, "lost {} of {}, delta {}", lost, all, delta);
        }
    }

    #[test]
    fn qsgd_stays_beside_its_values_and_within_its_variance(values in prop::collection::vec(usual(), 512), levels in 1_u32..=127) {
        let kind = CodecKind::Qsgd { levels };
        let step = step_of(&values, levels);
        let mut encoder = encoder(kind, false, values.len());
        let draws = 40;
        let mut variance = 0.0;
        for _ in 0..draws {
            let sent = decoded(&received(&encoder.encode(&values, None, Vec::new())));
            for (sent, value) in sent.iter().zip(&values) {
                prop_assert!((sent - value).abs() < step * 1.000_001);
                prop_assert!(sent.abs() <= step * levels as f32);
            }
            variance += squares(sent.iter().zip(&values).map(|(sent, value)| sent - value)) / f64::from(draws);
        }
        let (n, s) = (values.len() as f64, f64::from(levels));
        let bound = (n / (s * s)).min(n.sqrt() / s) * squares(values.iter().copied());
        // A mean of a few draws of something that is mostly far below.
        prop_assert!(variance <= bound * 1.2 + 1e-70, "{} beyond {}", variance, bound);
    }
}

#[test]
fn qsgd_has_the_right_mean() {
    let draws = 100_000;
    // In every block of 512 the same values, and one that sets the step.
    let some = [1.0_f32, 0.3, -0.77, 0.001, -0.999_9, 1e-5, 0.125, 0.0];
    let gradient: Vec<f32> = (0..draws * some.len()).map(|key| some[key % some.len()]).collect();
    for levels in [1, 3, 7, 127] {
        let kind = CodecKind::Qsgd { levels };
        let sent = decoded(&encoder(kind, false, gradient.len()).encode(&gradient, None, Vec::new()));
        let step = f64::from(step_of(&some, levels));
        for (place, value) in some.iter().enumerate() {
            let mean = sent.iter().skip(place).step_by(some.len()).map(|sent| f64::from(*sent)).sum::<f64>()
                / draws as f64;
            let share = (f64::from(value.abs()) / step).fract();
            let sigma = step * (share * (1.0 - share) / draws as f64).sqrt();
            // A value is at a multiple of the step, or beside one by less than the draws can tell: nearly never the other.
            let error = (mean - f64::from(*value)).abs();
            assert!(
                error <= 4.0 * sigma + step * 1e-6,
                "{levels} levels: {value} became {mean}, sigma {sigma}"
            );
        }
    }
}

#[test]
fn the_nearest_multiples_lose_less_than_there_is() {
    for levels in [1, 3, 7, 127] {
        for seed in 0..20 {
            let values = normal(seed, 512);
            let sent =
                decoded(&encoder(CodecKind::Qsgd { levels }, true, 512).encode(&values, None, Vec::new()));
            let lost = squares(values.iter().zip(&sent).map(|(value, sent)| value - sent));
            let all = squares(values.iter().copied());
            assert!(lost <= (1.0 - 1.0 / 512.0) * all, "{levels} levels lose {lost} of {all}");
        }
    }
}

#[test]
fn random_lanes_are_the_published_generator() {
    // Of the state 1, 2, 3, 4.
    let numbers = [641, 1_573_767, 3_222_811_527, 3_517_856_514];
    let mut lanes = random::Lanes::of_state([1, 2, 3, 4]);
    for number in numbers {
        let mut turn = [0; random::LANES];
        lanes.step(&mut turn);
        assert_eq!(turn, [number; random::LANES]);
    }
    let draw = |seed, count| {
        let mut numbers = [0; 100];
        random::Lanes::new(seed, count).fill(&mut numbers);
        numbers
    };
    assert_eq!(draw(1, 2), draw(1, 2));
    assert_ne!(draw(1, 2), draw(1, 3));
    assert_ne!(draw(1, 2), draw(2, 2));
}
