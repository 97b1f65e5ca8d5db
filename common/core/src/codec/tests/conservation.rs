//! What is sent and what is kept is what was produced.

use super::*;

/// Whether what is kept is exact. Of the others it is the nearest f32.
fn is_exact(kind: CodecKind) -> bool {
    !matches!(kind, CodecKind::OneBit | CodecKind::PowerSgd { .. })
}

/// Whether `left + right` is `sum` as real numbers: Knuth's two-sum leaves nothing over.
fn is_sum(left: f32, right: f32, sum: f32) -> bool {
    let (left, right) = (f64::from(left), f64::from(right));
    let rounded = left + right;
    let part = rounded - left;
    let rest = (left - (rounded - part)) + (right - part);
    rounded == f64::from(sum) && rest == 0.0
}

/// One encoding, held against what was kept before: what was sent.
fn step(encoder: &mut Encoder, kind: CodecKind, gradient: &[f32], values: &[f32]) -> (Payload, Vec<f32>) {
    let before = if encoder.kept().is_empty() { vec![0.0; gradient.len()] } else { encoder.kept().to_vec() };
    let payload = received(&encoder.encode(gradient, Some(values), Vec::new()));
    let sent = decoded(&payload);
    for (key, (&gradient, &before)) in gradient.iter().zip(&before).enumerate() {
        let kept = encoder.kept().get(key).copied().unwrap_or(0.0);
        let (sent, sum) = (sent[key], before + gradient);
        if !sum.is_finite() {
            assert_eq!((sent, kept), (gradient, before), "{kind:?}: a sum that overflows is not made");
        } else if is_exact(kind) {
            assert!(is_sum(sent, kept, sum), "{kind:?} key {key}: {sent:e} and {kept:e} are not {sum:e}");
            assert!(sent + kept == sum, "{kind:?} key {key}: {sent:e} + {kept:e} in f32");
        } else {
            let exact = f64::from(sum) - f64::from(sent);
            let error = (exact - f64::from(kept)).abs();
            let half_a_place = exact.abs() * 0.5_f64.powi(24) * (1.0 + 1e-9) + 0.5_f64.powi(150);
            assert!(error <= half_a_place, "{kind:?} key {key}: {kept:e} is not the nearest to {exact:e}");
        }
    }
    (payload, sent)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_step_conserves_whatever_the_values(
        gradients in (1_usize..1500).prop_flat_map(|keys| {
            prop::collection::vec((prop::collection::vec(number(), keys), any::<bool>()), 1..5)
        }),
    ) {
        let keys = gradients[0].0.len();
        let values = normal(3, keys);
        for kind in kinds() {
            let mut encoder = encoder(kind, true, keys);
            for (gradient, is_taken_back) in &gradients {
                let before = encoder.kept().to_vec();
                let (payload, _) = step(&mut encoder, kind, gradient, &values);
                if *is_taken_back && kind.is_lossy() && is_exact(kind) {
                    encoder.take_back(&payload);
                    // The sum of then is there again, except where there was none.
                    for (key, kept) in encoder.kept().iter().enumerate() {
                        let sum = before[key] + gradient[key];
                        prop_assert!(*kept == sum || !sum.is_finite(), "{:?} key {}", kind, key);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    // What was sent and not used had in it what was kept of gradients that were.
    #[test]
    fn what_is_undone_leaves_what_was_kept_before(seed in any::<u64>(), keys in 1_usize..1500, scale in -12_i32..12) {
        let values = normal(3, keys);
        for kind in kinds() {
            let mut encoder = encoder(kind, true, keys);
            let gradients = [normal(seed, keys), normal(!seed, keys).iter().map(|x| x * 2_f32.powi(scale)).collect()];
            step(&mut encoder, kind, &gradients[0], &values);
            let before = encoder.kept().to_vec();
            let (payload, sent) = step(&mut encoder, kind, &gradients[1], &values);
            let (after, sum) = (encoder.kept().to_vec(), |key: usize| before[key] + gradients[1][key]);
            encoder.undo(&payload, &gradients[1]);
            for (key, kept) in encoder.kept().iter().enumerate() {
                // One rounding of the sum, one of the difference; of codecs that keep to the nearest f32, two more.
                let largest = [before[key], gradients[1][key], sum(key), sent[key], after[key]].map(f32::abs).into_iter().fold(0.0, f32::max);
                let error = (f64::from(*kept) - f64::from(before[key])).abs();
                prop_assert!(error <= 4.0 * f64::from(largest) * 2_f64.powi(-24), "{:?} key {}: {} for {}", kind, key, kept, before[key]);
            }
        }
    }
}

/// A number as a multiple of 2^-90; of numbers up to 2^36 with 24 bits above that place.
fn fixed(value: f32) -> i128 {
    let scaled = f64::from(value) * 2_f64.powi(90);
    assert!(scaled.abs() < 2_f64.powi(126) && scaled.fract() == 0.0);
    scaled as i128
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The whole of what was produced, over many encodings of which some are taken back later: what is sent and kept differs from it by
    /// the roundings of the sums alone, each of which is at most half of the sum's last place.
    #[test]
    fn a_history_conserves_but_for_the_rounding_of_its_sums(
        seed in any::<u64>(),
        steps in prop::collection::vec((-12_i32..12, any::<bool>()), 1..12),
        keys in 30_usize..400,
    ) {
        let values = normal(seed, keys);
        for kind in kinds().into_iter().filter(|kind| kind.is_lossy() && is_exact(*kind)) {
            let mut encoder = encoder(kind, true, keys);
            let (mut produced, mut sent, mut rounded) = (vec![0; keys], vec![0; keys], vec![0; keys]);
            let mut taken: Vec<(Payload, Vec<f32>)> = Vec::new();
            for (at, (exponent, later)) in steps.iter().enumerate() {
                let gradient: Vec<f32> =
                    normal(seed.wrapping_add(at as u64), keys).iter().map(|value| value * 2_f32.powi(*exponent)).collect();
                for key in 0..keys {
                    let (kept, gradient) = (encoder.kept()[key], gradient[key]);
                    produced[key] += fixed(gradient);
                    rounded[key] += fixed(kept + gradient) - fixed(kept) - fixed(gradient);
                }
                let (payload, values) = step(&mut encoder, kind, &gradient, &values);
                for key in 0..keys {
                    sent[key] += fixed(values[key]);
                }
                taken.push((payload, values));
                if *later {
                    let (payload, values) = taken.remove(0);
                    for key in 0..keys {
                        let (kept, values) = (encoder.kept()[key], values[key]);
                        sent[key] -= fixed(values);
                        rounded[key] += fixed(kept + values) - fixed(kept) - fixed(values);
                    }
                    encoder.take_back(&payload);
                }
            }
            for key in 0..keys {
                prop_assert_eq!(sent[key] + fixed(encoder.kept()[key]), produced[key] + rounded[key], "{:?} {}", kind, key);
            }
        }
    }

    /// Where no sum is rounded nothing is left over at all: whole numbers, whose sums are exact.
    #[test]
    fn a_history_of_whole_numbers_conserves_to_the_last_bit(
        seed in any::<u64>(),
        steps in prop::collection::vec(any::<bool>(), 1..20),
        keys in 30_usize..400,
    ) {
        // Steps of int8 and qsgd are no whole numbers.
        let whole = |kind: &CodecKind| !matches!(kind, CodecKind::Int8 { .. } | CodecKind::Qsgd { .. });
        for kind in kinds().into_iter().filter(|kind| kind.is_lossy() && is_exact(*kind) && whole(kind)) {
            let mut encoder = encoder(kind, true, keys);
            let (mut produced, mut sent) = (vec![0.0; keys], vec![0.0; keys]);
            for (at, is_taken_back) in steps.iter().enumerate() {
                let gradient: Vec<f32> =
                    normal(seed.wrapping_add(at as u64), keys).iter().map(|value| (value * 10_000.0).round()).collect();
                let (payload, values) = step(&mut encoder, kind, &gradient, &vec![3000.0; keys]);
                if *is_taken_back {
                    encoder.take_back(&payload);
                }
                for key in 0..keys {
                    produced[key] += f64::from(gradient[key]);
                    sent[key] += if *is_taken_back { 0.0 } else { f64::from(values[key]) };
                }
            }
            for key in 0..keys {
                prop_assert_eq!(sent[key] + f64::from(encoder.kept()[key]), produced[key], "{:?} {}", kind, key);
            }
        }
    }
}

#[test]
fn a_number_that_is_none_is_sent_and_never_kept() {
    for kind in kinds() {
        let keys = 4000;
        let mut encoder = encoder(kind, true, keys);
        let first = encoder.encode(&normal(1, keys), None, Vec::new());
        let before = encoder.kept().to_vec();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut gradient = normal(2, keys);
            gradient[3001] = bad;
            let mut encoder = encoder.clone();
            let payload = received(&encoder.encode(&gradient, None, Vec::new()));
            assert_eq!(payload.first_not_finite(), Some(3001), "{kind:?}");
            assert!(encoder.kept().iter().all(|kept| kept.is_finite()), "{kind:?}");
            if kind.is_lossy() {
                assert_eq!(encoder.kept()[3001], before[3001], "{kind:?}: what was kept before stays");
            }
            encoder.take_back(&payload);
            encoder.take_back(&first);
            assert!(encoder.kept().iter().all(|kept| kept.is_finite()), "{kind:?}");
        }
    }
}

#[test]
fn an_error_is_made_good_by_and_by() {
    // A constant gradient: what was sent in all stays near what was produced, however long it goes on.
    let keys = 1000;
    let gradient = normal(5, keys);
    for kind in kinds().into_iter().filter(|kind| kind.is_lossy()) {
        let mut encoder = encoder(kind, true, keys);
        let largest_kept = |encoder: &mut Encoder, steps| {
            let norms = (0..steps).map(|_| {
                let _ = encoder.encode(&gradient, Some(&gradient), Vec::new());
                squares(encoder.kept().iter().copied())
            });
            norms.fold(0.0, f64::max)
        };
        let (early, late) = (largest_kept(&mut encoder, 1000), largest_kept(&mut encoder, 1000));
        assert!(late <= 1.5 * early + 1e-12, "{kind:?}: what is kept grows from {early} to {late}");
    }
}
