//! The UCI optical digits, part of the binary (`data/README.md` has the attribution): 1,797 images of 8 x 8.

use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;

use super::{DatasetError, Split};

const NAME: &str = "digits.csv.gz";
const BUNDLED: &[u8] = include_bytes!("../../data/digits.csv.gz");
const PIXELS: usize = 64;
const PIXEL_MAX: u32 = 16;
const CLASS_COUNT: usize = 10;
/// One image in so many of each class is held out. Counting within a class, not over lines: the writers wrote
/// the ten digits in turn, so that every fifth line would be a 3 more than twice as often as a 1. They come
/// one after another in the file, hence both splits have images of all of them.
const HOLD_OUT_EVERY: u32 = 5;

/// The training split and the one held out; the inputs are scaled to 0..1.
pub(super) fn load() -> Result<(Split, Split), DatasetError> {
    let mut text = String::new();
    GzDecoder::new(BUNDLED)
        .read_to_string(&mut text)
        .map_err(|error| DatasetError::Damaged { file: PathBuf::from(NAME), reason: error.to_string() })?;
    parse(&text)
}

fn parse(text: &str) -> Result<(Split, Split), DatasetError> {
    let empty = || Split { inputs: Vec::new(), labels: Vec::new() };
    let (mut train, mut test) = (empty(), empty());
    let mut seen = [0; CLASS_COUNT];
    let mut inputs = Vec::with_capacity(PIXELS);
    for (line, number) in text.lines().zip(1_u64..) {
        inputs.clear();
        let file = || PathBuf::from(NAME);
        let label = parse_line(line, &mut inputs).ok_or_else(|| DatasetError::Line {
            file: file(),
            line: number,
            wanted: "64 integers from 0 to 16 and a label",
        })?;
        let Some(seen) = seen.get_mut(label as usize) else {
            let class_count = CLASS_COUNT as u64;
            return Err(DatasetError::LabelOutOfRange {
                file: file(),
                sample: number - 1,
                label,
                class_count,
            });
        };
        *seen += 1;
        let split = if *seen % HOLD_OUT_EVERY == 0 { &mut test } else { &mut train };
        split.inputs.extend_from_slice(&inputs);
        split.labels.push(label);
    }
    if train.is_empty() || test.is_empty() {
        return Err(DatasetError::NoExamples { file: PathBuf::from(NAME) });
    }
    Ok((train, test))
}

/// Appends the pixels of one line to `inputs`; returns its label, or `None` if it is not of the right form.
fn parse_line(line: &str, inputs: &mut Vec<f32>) -> Option<u32> {
    let mut fields = line.split(',').map(|field| field.trim().parse::<u32>().ok());
    for _ in 0..PIXELS {
        let pixel = fields.next()??;
        if pixel > PIXEL_MAX {
            return None;
        }
        inputs.push(pixel as f32 / PIXEL_MAX as f32);
    }
    let label = fields.next()??;
    fields.next().is_none().then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_digits_are_whole() {
        let (train, test) = load().unwrap();
        assert_eq!((train.len(), test.len()), (1442, 355));
        assert_eq!((train.inputs.len(), test.inputs.len()), (1442 * 64, 355 * 64));
        assert!(train.inputs.iter().all(|value| (0.0..=1.0).contains(value)));
        for class in 0..10 {
            let held_out = test.labels.iter().filter(|label| **label == class).count();
            assert!((34..=36).contains(&held_out), "{held_out} of class {class}");
        }
        assert_eq!(&train.inputs[..4], &[0.0, 0.0, 5.0 / 16.0, 13.0 / 16.0]);
        assert_eq!(train.labels[..12], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
    }

    #[test]
    fn a_line_of_another_form_is_named() {
        let good = format!("{}3", "0,".repeat(64));
        let many = format!("{good}\n").repeat(6);
        assert!(parse(&many).is_ok());
        for bad in [
            "",
            "a",
            &"0,".repeat(64),
            &format!("{good},1"),
            &good.replacen('0', "17", 1),
            &good.replacen('0', "-1", 1),
        ] {
            let text = format!("{good}\n{bad}\n");
            assert!(matches!(parse(&text), Err(DatasetError::Line { line: 2, .. })), "{bad}");
        }
        let text = format!("{good}\n{}10\n", "0,".repeat(64));
        assert!(matches!(parse(&text), Err(DatasetError::LabelOutOfRange { sample: 1, label: 10, .. })));
        assert!(matches!(parse(""), Err(DatasetError::NoExamples { .. })));
    }
}
