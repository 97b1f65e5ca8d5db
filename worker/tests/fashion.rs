//! The real Fashion-MNIST files, where they are installed.

#![allow(clippy::unwrap_used, missing_docs)]

use slackline_core::model::DatasetSpec;
use slackline_worker::dataset::{DataSettings, DatasetError, load};

#[test]
fn the_published_files_load_normalised() {
    let dataset = match load(&DataSettings { spec: DatasetSpec::FashionMnist, dir: None, limit: None }) {
        Ok(dataset) => dataset,
        Err(error @ DatasetError::Absent { .. }) => {
            println!("SKIPPED the_published_files_load_normalised: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!((dataset.train.len(), dataset.test.len()), (60_000, 10_000));
    for (split, each) in [(&dataset.train, 6_000), (&dataset.test, 1_000)] {
        for class in 0..10 {
            assert_eq!(split.labels.iter().filter(|label| **label == class).count(), each);
        }
    }
    let count = dataset.train.inputs.len() as f64;
    let mean = dataset.train.inputs.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    let square = dataset.train.inputs.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / count;
    assert!(mean.abs() < 1e-3 && (square - 1.0).abs() < 2e-3, "mean {mean}, mean square {square}");
}
