//! Datasets: labelled examples in memory, checked once when they are read, so that nothing later needs to.
//!
//! After [`load`] every label is below the class count and every split is as long as its labels say. Files
//! are treated as foreign: a lie in a header costs no memory, and each fault has its own error with the
//! file's name.

mod digits;
mod fashion;
mod idx;
mod noise;

use std::path::PathBuf;

use slackline_core::model::DatasetSpec;
use xxhash_rust::xxh3::Xxh3;

use crate::model::Examples;

/// Which dataset, from where, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSettings {
    /// The dataset.
    pub spec: DatasetSpec,
    /// The only place to look for its files; `None` means the usual places. Bundled datasets have no files.
    pub dir: Option<PathBuf>,
    /// Train on the first so many samples; `None`, or more than there are, means all of them.
    pub limit: Option<u64>,
}

/// Why a dataset could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// None of the files is anywhere.
    #[error("{dataset} was not found in {}; {advice}", list(looked_in))]
    Absent {
        /// The dataset.
        dataset: &'static str,
        /// The folders looked in.
        looked_in: Vec<PathBuf>,
        /// How to get it.
        advice: &'static str,
    },
    /// Some of the files are there, this one is not.
    #[error("{file} is missing (with or without .gz), while other files of the dataset are there")]
    Missing {
        /// The file, without `.gz`.
        file: PathBuf,
    },
    /// The operating system refused.
    #[error("{file} cannot be read: {source}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// The file is compressed, and what was compressed is damaged.
    #[error("{file} is damaged: {reason}; fetch it again")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The decompressor's word.
        reason: String,
    },
    /// The file has no byte in it.
    #[error("{file} is empty")]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// The file does not begin as its kind must.
    #[error(
        "{file} begins with {got:#010x}, not {wanted:#010x} as such an idx file does; is it another file?"
    )]
    WrongMagic {
        /// The file.
        file: PathBuf,
        /// The magic number of such a file.
        wanted: u32,
        /// Its first four bytes.
        got: u32,
    },
    /// The images are of another size.
    #[error("{file} has images of {rows} x {columns} pixels where 28 x 28 are wanted")]
    WrongImageSize {
        /// The file.
        file: PathBuf,
        /// Rows in its header.
        rows: u32,
        /// Columns in its header.
        columns: u32,
    },
    /// The header speaks of no example.
    #[error("{file} holds no example")]
    NoExamples {
        /// The file.
        file: PathBuf,
    },
    /// The header speaks of more examples than we are willing to read.
    #[error("{file} claims to hold {count} examples; at most {limit} are read")]
    TooMany {
        /// The file.
        file: PathBuf,
        /// The claim.
        count: u64,
        /// The bound.
        limit: u64,
    },
    /// The file ends early.
    #[error("{file} ends after {got} of {wanted} bytes; fetch it again")]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Bytes that its header promises, header included, after decompression.
        wanted: u64,
        /// Bytes that are there.
        got: u64,
    },
    /// The file goes on after its end.
    #[error("{file} goes on after the {wanted} bytes that its header promises; is it another file?")]
    TrailingBytes {
        /// The file.
        file: PathBuf,
        /// Bytes that its header promises, header included, after decompression.
        wanted: u64,
    },
    /// Images and labels do not belong together.
    #[error(
        "{images_file} holds {images} images and {labels_file} {labels} labels; they do not belong together"
    )]
    CountMismatch {
        /// File of the images.
        images_file: PathBuf,
        /// Images in it.
        images: u64,
        /// File of the labels.
        labels_file: PathBuf,
        /// Labels in it.
        labels: u64,
    },
    /// A label names a class that does not exist.
    #[error("label {label} of sample {sample} in {file} is not below {class_count}")]
    LabelOutOfRange {
        /// The file.
        file: PathBuf,
        /// Index of the sample, from 0.
        sample: u64,
        /// Its label.
        label: u32,
        /// Classes of the dataset.
        class_count: u64,
    },
    /// A line of a text file is not of the form it must have.
    #[error("line {line} of {file} is not {wanted}")]
    Line {
        /// The file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// What it should be.
        wanted: &'static str,
    },
    /// The noise asked for is none or too much.
    #[error(
        "{samples} samples of {dimensions} values of noise cannot be made: at least one of each, {limit} values at most"
    )]
    NoiseSize {
        /// Values of one sample.
        dimensions: u64,
        /// Samples.
        samples: u64,
        /// Values that are made at most.
        limit: u64,
    },
    /// The settings leave nothing to train on.
    #[error("data.limit is 0, which leaves no sample to train on; set it to at least 1 or leave it out")]
    NothingLeft,
}

/// Examples in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Row-major (samples, inputs), normalised.
    pub inputs: Vec<f32>,
    /// The class of each sample, below the dataset's class count.
    pub labels: Vec<u32>,
}

impl Split {
    /// Number of samples.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no sample.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Keeps the first `samples` samples, or all if there are fewer.
    fn truncate(&mut self, samples: usize, input_count: usize) {
        self.labels.truncate(samples);
        self.inputs.truncate(samples.saturating_mul(input_count));
    }
}

/// A dataset in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// What models train on.
    pub train: Split,
    /// What they are judged on; the same for every seed.
    pub test: Split,
    /// Values of one sample.
    pub input_count: u64,
    /// Number of classes.
    pub class_count: u64,
}

impl Dataset {
    /// Fingerprint of what is trained on: XXH3-64 over the shape, the inputs and the labels. All workers of a
    /// run must agree on it. It guards against mistakes, not against malice.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        for count in [self.input_count, self.class_count, self.train.len() as u64] {
            hash.update(&count.to_le_bytes());
        }
        let mut bytes = Vec::new();
        for values in self.train.inputs.chunks(4096) {
            bytes.clear();
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            hash.update(&bytes);
        }
        for labels in self.train.labels.chunks(4096) {
            bytes.clear();
            bytes.extend(labels.iter().flat_map(|label| label.to_le_bytes()));
            hash.update(&bytes);
        }
        hash.digest()
    }

    /// The samples of the training split.
    #[must_use]
    pub fn train_examples(&self) -> Examples<'_> {
        Examples::new(&self.train.inputs, &self.train.labels, self.input_count as usize)
    }

    /// The samples of the test split.
    #[must_use]
    pub fn test_examples(&self) -> Examples<'_> {
        Examples::new(&self.test.inputs, &self.test.labels, self.input_count as usize)
    }

    /// Inputs and label of training sample `index`, if there is one.
    #[must_use]
    pub fn train_sample(&self, index: u32) -> Option<(&[f32], u32)> {
        let label = *self.train.labels.get(index as usize)?;
        let width = self.input_count as usize;
        let start = index as usize * width;
        Some((self.train.inputs.get(start..start + width)?, label))
    }
}

/// Loads the dataset of `settings` into memory.
///
/// # Errors
///
/// See [`DatasetError`]; every variant names the file and what is wrong with it.
pub fn load(settings: &DataSettings) -> Result<Dataset, DatasetError> {
    if settings.limit == Some(0) {
        return Err(DatasetError::NothingLeft);
    }
    let (mut train, test) = match settings.spec {
        DatasetSpec::Digits => digits::load()?,
        DatasetSpec::FashionMnist => fashion::load(settings.dir.as_deref())?,
        DatasetSpec::Noise { dimensions, samples } => noise::load(dimensions, samples, settings.limit)?,
    };
    let (input_count, class_count) = (settings.spec.input_count(), settings.spec.class_count());
    if let Some(limit) = settings.limit {
        train.truncate(usize::try_from(limit).unwrap_or(usize::MAX), input_count as usize);
    }
    Ok(Dataset { train, test, input_count, class_count })
}

fn list(places: &[PathBuf]) -> String {
    places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digits(limit: Option<u64>) -> Result<Dataset, DatasetError> {
        load(&DataSettings { spec: DatasetSpec::Digits, dir: None, limit })
    }

    #[test]
    fn a_limit_keeps_the_first_samples_of_the_training_split_only() {
        let (all, some) = (digits(None).unwrap(), digits(Some(100)).unwrap());
        assert_eq!(some.train.labels, all.train.labels[..100]);
        assert_eq!(some.train.inputs, all.train.inputs[..6400]);
        assert_eq!(some.test, all.test);
        assert_eq!(digits(Some(u64::MAX)).unwrap(), all);
        assert!(matches!(digits(Some(0)), Err(DatasetError::NothingLeft)));
    }

    #[test]
    fn the_fingerprint_sees_every_value_label_and_count_trained_on() {
        let base = Dataset {
            train: Split { inputs: vec![0.0, 1.0, 2.0, 3.0], labels: vec![0, 1] },
            test: Split { inputs: vec![], labels: vec![] },
            input_count: 2,
            class_count: 2,
        };
        let print = base.fingerprint();
        assert_eq!(print, base.clone().fingerprint());
        let changed = |change: fn(&mut Dataset)| {
            let mut dataset = base.clone();
            change(&mut dataset);
            dataset.fingerprint()
        };
        assert_ne!(print, changed(|dataset| dataset.train.inputs[3] = 3.5));
        assert_ne!(print, changed(|dataset| dataset.train.labels[0] = 1));
        assert_ne!(print, changed(|dataset| dataset.class_count = 3));
        assert_ne!(print, changed(|dataset| dataset.train.truncate(1, 2)));
        assert_eq!(print, changed(|dataset| dataset.test.labels.push(1)));
    }

    #[test]
    fn a_sample_past_the_end_is_none() {
        let dataset = digits(Some(3)).unwrap();
        assert_eq!(dataset.train_sample(2).unwrap().0, &dataset.train.inputs[128..]);
        assert!(dataset.train_sample(3).is_none());
    }
}
