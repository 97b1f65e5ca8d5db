//! Codecs that pick some keys: top-k, random-k and significance.

use super::*;

/// The keys of the `count` largest values that are not zero, by sorting.
fn top(values: &[f32], count: usize) -> Vec<usize> {
    let mut keys: Vec<usize> = (0..values.len()).filter(|key| values[*key] != 0.0).collect();
    keys.sort_by(|left, right| values[*right].abs().total_cmp(&values[*left].abs()).then(left.cmp(right)));
    keys.truncate(count);
    keys.sort_unstable();
    keys
}

fn picked(values: &[f32]) -> Vec<usize> {
    (0..values.len()).filter(|key| values[*key] != 0.0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn top_k_takes_the_largest_and_no_others(
        values in prop_oneof![
            prop::collection::vec(usual(), 20..3000),
            // Many ties.
            prop::collection::vec((-3_i8..=3).prop_map(f32::from), 20..3000),
        ],
        share in 0.001_f32..0.5,
    ) {
        let kind = CodecKind::TopK { share };
        let payload = encoder(kind, false, values.len()).encode(&values, None, Vec::new());
        prop_assume!(payload.encoding() == Encoding::Sparse);
        let sent = decoded(&received(&payload));
        let count = (f64::from(share) * values.len() as f64).ceil() as usize;
        prop_assert_eq!(picked(&sent), top(&values, count));
        for key in picked(&sent) {
            prop_assert_eq!(sent[key].to_bits(), values[key].to_bits());
        }
        // Once more changes nothing.
        let again = encoder(kind, false, values.len()).encode(&sent, None, Vec::new());
        prop_assert_eq!(decoded(&again), sent.clone());
        let (lost, all) = (squares(values.iter().zip(&sent).map(|(value, sent)| value - sent)), squares(values.iter().copied()));
        let delta = count as f64 / values.len() as f64;
        prop_assert!(lost <= (1.0 - delta) * all * (1.0 + 1e-6), "lost {} of {}", lost, all);
    }

    #[test]
    fn indices_of_any_density_are_found_again(
        keys in 40_usize..20_000,
        places in prop::collection::btree_set(0_usize..20_000, 0..300),
        far in any::<bool>(),
    ) {
        // With few keys a bitmap is the shortest, with many gaps, and where there is one far out a list may be.
        let keys = if far { keys * 50 } else { keys };
        let mut values = vec![0.0; keys];
        for place in &places {
            values[place * if far { 50 } else { 1 } % keys] = 1.0 + *place as f32;
        }
        let payload = encoder(CodecKind::TopK { share: 1.0 }, false, keys).encode(&values, None, Vec::new());
        prop_assert_eq!(decoded(&received(&payload)), values);
    }

    #[test]
    fn random_k_draws_one_key_of_each_stratum(keys in 10_usize..5000, share in 0.001_f32..0.6) {
        let values: Vec<f32> = (1..=keys).map(|key| key as f32).collect();
        let kind = CodecKind::RandomK { share };
        let payload = encoder(kind, true, keys).encode(&values, None, Vec::new());
        prop_assume!(payload.encoding() == Encoding::RandomK);
        let sent = decoded(&received(&payload));
        let count = (f64::from(share) * keys as f64).ceil() as usize;
        let picked = picked(&sent);
        prop_assert_eq!(picked.len(), count);
        for (stratum, key) in picked.into_iter().enumerate() {
            prop_assert!((stratum * keys / count..(stratum + 1) * keys / count).contains(&key));
            prop_assert_eq!(sent[key], values[key]);
        }
    }
}

#[test]
fn each_form_of_indices_is_taken_where_it_is_the_shortest() {
    let form = |keys: usize, picked: &[usize]| {
        let mut values = vec![0.0; keys];
        picked.iter().for_each(|key| values[*key] = 1.0);
        let payload = encoder(CodecKind::TopK { share: 1.0 }, false, keys).encode(&values, None, Vec::new());
        assert_eq!(decoded(&received(&payload)), values);
        (payload.bits()[1], payload.words().len())
    };
    // One index: a list, since a gap takes a word as well.
    assert_eq!(form(1_000_000, &[999_999]), (0, 2 + 1 + 1));
    // A half of the keys: a bit each.
    let half: Vec<usize> = (0..1024).step_by(2).collect();
    assert_eq!(form(1024, &half), (1, 2 + 32 + 512));
    // One in a hundred: a byte each.
    let few: Vec<usize> = (0..100_000).step_by(100).collect();
    assert_eq!(form(100_000, &few), (2, 2 + 250 + 1000));
}

#[test]
fn a_misleading_sample_does_not_mislead() {
    // All that is large lies where the sample does not look, or only there.
    let keys = 200_000;
    let stride = (keys / 16_384) | 1;
    for at in [0, 1] {
        let values: Vec<f32> =
            (0..keys).map(|key| if key % stride == at { 5.0 + (key % 7) as f32 } else { 1e-3 }).collect();
        let payload = encoder(CodecKind::TopK { share: 0.01 }, false, keys).encode(&values, None, Vec::new());
        assert_eq!(picked(&decoded(&payload)), top(&values, 2000));
    }
}

#[test]
fn random_k_keeps_what_the_paper_says_on_the_average() {
    let (keys, draws) = (1000, 400);
    let values = normal(9, keys);
    let all = squares(values.iter().copied());
    let mut encoder = encoder(CodecKind::RandomK { share: 0.1 }, false, keys);
    let (mut mean, mut lost) = (vec![0.0; keys], 0.0);
    for _ in 0..draws {
        let sent = decoded(&encoder.encode(&values, None, Vec::new()));
        for key in 0..keys {
            mean[key] += f64::from(sent[key]) / f64::from(draws);
            // Without error feedback what is picked is multiplied by ten.
            lost += f64::from(values[key] - sent[key] / 10.0).powi(2) / f64::from(draws);
        }
    }
    assert!((lost / all - 0.9).abs() < 0.02, "{lost} of {all}");
    let bias: f64 = mean.iter().zip(&values).map(|(mean, value)| (mean - f64::from(*value)).powi(2)).sum();
    // The variance of a value is nine times its square, of a mean so many times less.
    assert!(bias < 1.3 * 9.0 * all / f64::from(draws), "{bias}");
}

#[test]
fn significance_falls_with_the_root_of_the_steps() {
    let keys = 2000;
    let values = vec![-2.0; keys];
    // From no share of the value to one and a half.
    let gradient: Vec<f32> = (0..keys).map(|key| key as f32 / keys as f32 * 3.0).collect();
    for threshold in [0.0_f32, 0.5, 1.0] {
        let mut encoder = encoder(CodecKind::Significance { threshold }, false, keys);
        for t in 1..=30 {
            let sent = decoded(&encoder.encode(&gradient, Some(&values), Vec::new()));
            let share = f64::from(threshold) / f64::from(t).sqrt();
            for key in 0..keys {
                let ratio = f64::from(gradient[key]) / 2.0;
                if (ratio - share).abs() > 1e-6 {
                    assert_eq!(sent[key] != 0.0, ratio > share, "threshold {threshold} at {t}: {ratio}");
                }
            }
        }
    }
}

#[test]
fn what_is_not_significant_gathers_until_it_is() {
    let keys = 100;
    let (values, gradient) = (vec![1.0; keys], vec![0.03; keys]);
    let mut encoder = encoder(CodecKind::Significance { threshold: 0.1 }, true, keys);
    let sent: Vec<bool> =
        (0..4).map(|_| decoded(&encoder.encode(&gradient, Some(&values), Vec::new()))[0] != 0.0).collect();
    // 0.03, 0.06 and 0.09 against 0.1, 0.071 and 0.058; then 0.03 against 0.05.
    assert_eq!(sent, [false, false, true, false]);
}

#[test]
fn without_a_share_or_values_everything_is_significant() {
    let gradient: Vec<f32> = (0..1000).map(|key| if key % 50 == 0 { 1e-30 } else { 0.0 }).collect();
    for (threshold, values) in [(0.0, Some(vec![1.0; 1000])), (1.0, None), (1.0, Some(vec![0.0; 1000]))] {
        let payload = encoder(CodecKind::Significance { threshold }, true, 1000).encode(
            &gradient,
            values.as_deref(),
            Vec::new(),
        );
        assert_eq!(payload.encoding(), Encoding::Sparse);
        assert_eq!(decoded(&payload), gradient);
    }
}
