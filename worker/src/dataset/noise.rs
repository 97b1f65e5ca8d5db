//! Standard normal numbers as a dataset, the noise of the quadratic model: the same numbers in every run and on every machine.

use slackline_core::stragglers::Draws;

use super::{DatasetError, Split};

/// The numbers are part of what the dataset is, so they follow from this and not from the seed of the run, which orders them.
const SEED: u64 = 0x6e_6f69_7365;

/// Values of the training split that are made at most: four gibibytes of f32.
const VALUE_COUNT_MAX: u64 = 1 << 30;

/// The training split of `samples` (or, if it is less, `limit`) rows of `dimensions` values, and one held-out row of zeros, at which
/// the loss of a quadratic has no noise. Row i does not depend on how many rows there are.
pub(super) fn load(
    dimensions: u64,
    samples: u64,
    limit: Option<u64>,
) -> Result<(Split, Split), DatasetError> {
    let samples = limit.map_or(samples, |limit| limit.min(samples));
    let is_small = dimensions.checked_mul(samples).is_some_and(|values| values <= VALUE_COUNT_MAX);
    if !is_small || dimensions == 0 || samples == 0 || samples > u64::from(u32::MAX) {
        return Err(DatasetError::NoiseSize { dimensions, samples, limit: VALUE_COUNT_MAX });
    }
    let mut inputs = Vec::with_capacity((dimensions * samples) as usize);
    for sample in 0..samples {
        // A row has as many numbers as it likes, so each gets a stream.
        let mut draws = Draws::at(SEED, sample, 0);
        inputs.extend((0..dimensions).map(|_| draws.normal() as f32));
    }
    let train = Split { inputs, labels: vec![0; samples as usize] };
    let test = Split { inputs: vec![0.0; dimensions as usize], labels: vec![0] };
    Ok((train, test))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_known_and_do_not_depend_on_how_many_there_are() {
        let (train, test) = load(3, 50, None).unwrap();
        assert_eq!((train.inputs.len(), train.labels), (150, vec![0; 50]));
        assert_eq!((test.inputs, test.labels), (vec![0.0; 3], vec![0]));
        assert_eq!(load(3, 9, None).unwrap().0.inputs, train.inputs[..27]);
        assert_eq!(load(3, 50, Some(9)).unwrap().0.inputs, train.inputs[..27]);
        assert_eq!(
            train.inputs[..3].iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
            [0x3dd3_f902, 0x3e13_3695, 0xbf0c_52e0]
        );
    }

    #[test]
    fn the_numbers_are_standard_normal() {
        let inputs = load(10, 10_000, None).unwrap().0.inputs;
        let mean = |power| inputs.iter().map(|value| f64::from(*value).powi(power)).sum::<f64>() / 1e5;
        assert!(mean(1).abs() < 0.015, "mean {}", mean(1));
        assert!((mean(2) - 1.0).abs() < 0.02, "variance {}", mean(2));
        assert!((mean(4) - 3.0).abs() < 0.15, "fourth moment {}", mean(4));
        // Neighbours in a row and rows below each other are strangers.
        let product = |apart: usize| {
            inputs.iter().zip(&inputs[apart..]).map(|(left, right)| f64::from(left * right)).sum::<f64>()
                / 1e5
        };
        assert!(product(1).abs() < 0.015 && product(10).abs() < 0.015);
    }

    #[test]
    fn a_size_that_cannot_be_made_is_refused() {
        for (dimensions, samples) in [(0, 5), (5, 0), (u64::MAX, 2), (1 << 20, 1 << 20), (1, 1 << 32)] {
            assert!(matches!(load(dimensions, samples, None), Err(DatasetError::NoiseSize { .. })));
        }
    }
}
