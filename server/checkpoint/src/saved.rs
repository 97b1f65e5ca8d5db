//! What of a shard the last checkpoint has, and which of its blocks the next one takes. Pure.

use slackline_core::config::CheckpointKind;

use crate::part::Array;
use crate::priority::{Changed, Moved};

/// Of incremental checkpoints, every so many a block is saved although it did not change, so that old files can go.
const CARRY: u64 = 16;

/// Of one shard, as the process that saves it knows it: nothing at first, so that its first checkpoint is a full one.
#[derive(Debug, Default)]
pub struct Saved {
    known: Option<Known>,
    written: Option<Written>,
}

/// What a partial checkpoint is measured against.
#[derive(Debug)]
enum Known {
    Moved(Moved),
    Changed(Changed),
}

/// The last part, until it is known whether its checkpoint was committed.
#[derive(Debug)]
struct Written {
    number: u64,
    part: WrittenPart,
}

/// What is to be known of it then, and no array of the cut: to hold one would make the shard copy it, and keep a second state beside it.
#[derive(Debug)]
enum WrittenPart {
    All(Known),
    /// Of these blocks the values.
    Moved(Vec<u32>, Vec<f32>),
    /// Of these blocks the fingerprints.
    Changed(Vec<u32>, Vec<u64>),
}

impl Saved {
    /// The blocks, rising, that checkpoint `number` is to have of `arrays`; none for all. `newest` is the newest checkpoint
    /// that was committed: it tells whether the last part counts.
    pub fn choose(
        &mut self,
        kind: CheckpointKind,
        newest: Option<u64>,
        number: u64,
        arrays: &[Array],
    ) -> Option<Vec<u32>> {
        if let Some(written) = self.written.take().filter(|written| newest == Some(written.number)) {
            self.settle(written);
        }
        match (kind, &self.known) {
            (CheckpointKind::Priority { share }, Some(Known::Moved(moved))) => {
                let carry = (2.0 / share).ceil() as u64;
                Some(moved.choose(values_of(arrays), share, Some(carry), number))
            }
            (CheckpointKind::Incremental, Some(Known::Changed(changed))) => {
                Some(changed.choose(arrays, Some(CARRY), number))
            }
            _ => None,
        }
    }

    /// The part of checkpoint `number` has these blocks of `block_len` keys (none: all) of `arrays`. Whether the checkpoint counts, the next
    /// [`Saved::choose`] is told.
    pub fn wrote(
        &mut self,
        kind: CheckpointKind,
        block_len: u32,
        number: u64,
        blocks: Option<Vec<u32>>,
        arrays: &[Array],
    ) {
        let part = match (kind, blocks, &self.known) {
            // Full ones have nothing to choose from.
            (CheckpointKind::Full, ..) => return,
            (_, Some(blocks), Some(Known::Moved(moved))) => {
                let values = moved.values_in(&blocks, values_of(arrays));
                WrittenPart::Moved(blocks, values)
            }
            (_, Some(blocks), Some(Known::Changed(changed))) => {
                let prints = changed.prints_of(&blocks, arrays);
                WrittenPart::Changed(blocks, prints)
            }
            (CheckpointKind::Priority { .. }, ..) => {
                WrittenPart::All(Known::Moved(Moved::new(values_of(arrays), block_len, number)))
            }
            (CheckpointKind::Incremental, ..) => {
                WrittenPart::All(Known::Changed(Changed::new(arrays, block_len, number)))
            }
        };
        self.written = Some(Written { number, part });
    }

    fn settle(&mut self, written: Written) {
        let Written { number, part } = written;
        match (part, &mut self.known) {
            (WrittenPart::All(known), _) => self.known = Some(known),
            (WrittenPart::Moved(blocks, values), Some(Known::Moved(moved))) => {
                moved.saved(&blocks, &values, number);
            }
            (WrittenPart::Changed(blocks, prints), Some(Known::Changed(changed))) => {
                changed.saved(&blocks, &prints, number);
            }
            // What a part is made against is what it is settled with.
            (WrittenPart::Moved(..) | WrittenPart::Changed(..), _) => self.known = None,
        }
    }
}

/// A shard's values are its first array.
fn values_of(arrays: &[Array]) -> &[f32] {
    arrays.first().map_or(&[], |array| &array.values)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn arrays(values: &[f32]) -> Vec<Array> {
        vec![Array { name: "values".to_owned(), values: Arc::new(values.to_vec()) }]
    }

    #[test]
    fn a_partial_checkpoint_builds_on_one_that_was_committed_only() {
        for kind in [CheckpointKind::Priority { share: 0.25 }, CheckpointKind::Incremental] {
            let mut saved = Saved::default();
            let first = arrays(&[0.0; 8]);
            assert_eq!(saved.choose(kind, None, 1, &first), None, "the first is a full one");
            saved.wrote(kind, 2, 1, None, &first);
            assert_eq!(saved.choose(kind, None, 2, &first), None, "1 was not committed");
            saved.wrote(kind, 2, 2, None, &first);
            let second = arrays(&[0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0]);
            assert_eq!(saved.choose(kind, Some(2), 3, &second), Some(vec![2]));
            saved.wrote(kind, 2, 3, Some(vec![2]), &second);
            assert_eq!(saved.choose(kind, Some(2), 4, &second), Some(vec![2]), "3 was not committed");
            saved.wrote(kind, 2, 4, Some(vec![2]), &second);
            assert_eq!(
                Arc::strong_count(&second[0].values),
                1,
                "a cut is the shard's own again once it is saved"
            );
            let third = arrays(&[1.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0]);
            assert_eq!(saved.choose(kind, Some(4), 5, &third), Some(vec![0]), "block 2 is saved");
        }
    }

    #[test]
    fn a_full_checkpoint_has_everything_and_holds_nothing() {
        let mut saved = Saved::default();
        let values = arrays(&[1.0; 4]);
        saved.wrote(CheckpointKind::Full, 2, 1, None, &values);
        assert_eq!(saved.choose(CheckpointKind::Full, Some(1), 2, &values), None);
    }
}
