//! Files in the idx format of MNIST and its kin, plain or compressed with gzip.
//!
//! An idx file is a big-endian magic number (two zero bytes, the type: 8 for bytes, the number of
//! dimensions), one big-endian u32 for each dimension, then the bytes. Nothing in it is believed: memory
//! grows with the bytes that are really there, and reading stops one byte after the promised end.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::DatasetError;

/// Examples that a file may hold.
pub(super) const EXAMPLE_COUNT_MAX: u64 = 1_000_000;

/// Sides of an image.
pub(super) const SIDE: u32 = 28;

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Memory reserved before the first byte is there.
const RESERVED_MAX: u64 = 1 << 20;

/// The pixels of all images, one byte each.
pub(super) fn read_images(file: &Path) -> Result<Vec<u8>, DatasetError> {
    let mut reader = Reader::open(file)?;
    reader.magic(IMAGES_MAGIC)?;
    let header: [u32; 3] = [reader.number()?, reader.number()?, reader.number()?];
    let [count, rows, columns] = header;
    if (rows, columns) != (SIDE, SIDE) {
        return Err(DatasetError::WrongImageSize { file: file.to_owned(), rows, columns });
    }
    reader.body(count, u64::from(SIDE * SIDE))
}

/// The labels, each below `class_count`.
pub(super) fn read_labels(file: &Path, class_count: u64) -> Result<Vec<u8>, DatasetError> {
    let mut reader = Reader::open(file)?;
    reader.magic(LABELS_MAGIC)?;
    let count = reader.number()?;
    let labels = reader.body(count, 1)?;
    match labels.iter().position(|label| u64::from(*label) >= class_count) {
        None => Ok(labels),
        Some(sample) => Err(DatasetError::LabelOutOfRange {
            file: file.to_owned(),
            sample: sample as u64,
            label: u32::from(labels[sample]),
            class_count,
        }),
    }
}

/// A file being read, with what an error has to tell.
struct Reader<'a> {
    file: &'a Path,
    source: Box<dyn Read>,
    got: u64,
}

impl<'a> Reader<'a> {
    /// Opens `file`. Its first bytes tell whether it is compressed, since names are often wrong about that.
    fn open(file: &'a Path) -> Result<Self, DatasetError> {
        let unreadable = |source| DatasetError::Unreadable { file: file.to_owned(), source };
        let mut plain = BufReader::new(File::open(file).map_err(unreadable)?);
        let start = plain.fill_buf().map_err(unreadable)?;
        if start.is_empty() {
            return Err(DatasetError::Empty { file: file.to_owned() });
        }
        let compressed = start.starts_with(&GZIP_MAGIC);
        let source: Box<dyn Read> =
            if compressed { Box::new(MultiGzDecoder::new(plain)) } else { Box::new(plain) };
        Ok(Self { file, source, got: 0 })
    }

    fn magic(&mut self, wanted: u32) -> Result<(), DatasetError> {
        let got = self.number()?;
        if got == wanted {
            Ok(())
        } else {
            Err(DatasetError::WrongMagic { file: self.file.to_owned(), wanted, got })
        }
    }

    /// The next big-endian number.
    fn number(&mut self) -> Result<u32, DatasetError> {
        let bytes = self.bytes(4)?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    /// All that is left: `count` examples of `width` bytes, and not one byte more.
    fn body(&mut self, count: u32, width: u64) -> Result<Vec<u8>, DatasetError> {
        let (file, count) = (self.file, u64::from(count));
        if count == 0 {
            return Err(DatasetError::NoExamples { file: file.to_owned() });
        }
        if count > EXAMPLE_COUNT_MAX {
            return Err(DatasetError::TooMany { file: file.to_owned(), count, limit: EXAMPLE_COUNT_MAX });
        }
        let body = self.bytes(count * width)?;
        // One byte more, also because only the end makes the decompressor check its checksum.
        let mut after = Vec::new();
        self.source.by_ref().take(1).read_to_end(&mut after).map_err(|error| self.refused(error, 0))?;
        if after.is_empty() {
            Ok(body)
        } else {
            Err(DatasetError::TrailingBytes { file: file.to_owned(), wanted: self.got })
        }
    }

    /// Exactly `len` bytes.
    fn bytes(&mut self, len: u64) -> Result<Vec<u8>, DatasetError> {
        let mut bytes = Vec::with_capacity(len.min(RESERVED_MAX) as usize);
        let outcome = self.source.by_ref().take(len).read_to_end(&mut bytes);
        let wanted = self.got + len;
        self.got += bytes.len() as u64;
        outcome.map_err(|error| self.refused(error, wanted))?;
        if self.got == wanted {
            Ok(bytes)
        } else {
            Err(DatasetError::Truncated { file: self.file.to_owned(), wanted, got: self.got })
        }
    }

    /// What an error of the source means, when `wanted` bytes should be there.
    fn refused(&self, error: std::io::Error, wanted: u64) -> DatasetError {
        let file = self.file.to_owned();
        match error.kind() {
            ErrorKind::UnexpectedEof => {
                DatasetError::Truncated { file, wanted: wanted.max(self.got), got: self.got }
            }
            ErrorKind::InvalidInput | ErrorKind::InvalidData => {
                DatasetError::Damaged { file, reason: error.to_string() }
            }
            _ => DatasetError::Unreadable { file, source: error },
        }
    }
}
