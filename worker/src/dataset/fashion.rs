//! Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 + 10,000 grey-scale images of 28 x 28, in four idx
//! files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use slackline_core::model::DatasetSpec;

use super::{DatasetError, Split, idx};

const FOLDER: &str = "fashion-mnist";
const TRAIN: [&str; 2] = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
const TEST: [&str; 2] = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];

/// Mean and standard deviation of the training pixels, as shares of 255.
const MEAN: f32 = 0.2860;
const DEVIATION: f32 = 0.3530;

/// The training split and the one held out, normalised to mean 0 and deviation 1 over the training pixels.
pub(super) fn load(dir: Option<&Path>) -> Result<(Split, Split), DatasetError> {
    let places = places(dir, std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"));
    load_from(places)
}

/// Where to look: only in `dir` if it is set, else Debian's folder, then the user's cache.
fn places(dir: Option<&Path>, cache: Option<OsString>, home: Option<OsString>) -> Vec<PathBuf> {
    if let Some(dir) = dir {
        return vec![dir.to_owned()];
    }
    let of_cache = cache.filter(|path| !path.is_empty()).map(PathBuf::from);
    let of_home = || home.filter(|path| !path.is_empty()).map(|home| PathBuf::from(home).join(".cache"));
    let cache = of_cache.or_else(of_home).map(|cache| cache.join("slackline").join(FOLDER));
    [Some(Path::new("/usr/share/datasets").join(FOLDER)), cache].into_iter().flatten().collect()
}

fn load_from(places: Vec<PathBuf>) -> Result<(Split, Split), DatasetError> {
    let names = || TRAIN.into_iter().chain(TEST);
    let Some(place) = places.iter().find(|place| names().any(|name| find(place, name).is_some())) else {
        return Err(DatasetError::Absent {
            dataset: "Fashion-MNIST",
            looked_in: places,
            advice: "install it (`apt-get install dataset-fashion-mnist`), or name a folder (`--set data.dir=DIR`)",
        });
    };
    // All four are looked for before one is read, so that a missing file is told at once.
    for name in names() {
        present(place, name)?;
    }
    Ok((load_split(place, TRAIN)?, load_split(place, TEST)?))
}

fn find(place: &Path, name: &str) -> Option<PathBuf> {
    [format!("{name}.gz"), name.to_owned()].iter().map(|name| place.join(name)).find(|path| path.exists())
}

fn present(place: &Path, name: &str) -> Result<PathBuf, DatasetError> {
    find(place, name).ok_or_else(|| DatasetError::Missing { file: place.join(name) })
}

fn load_split(place: &Path, [images, labels]: [&str; 2]) -> Result<Split, DatasetError> {
    let (images_file, labels_file) = (present(place, images)?, present(place, labels)?);
    let labels = idx::read_labels(&labels_file, DatasetSpec::FashionMnist.class_count())?;
    let pixels = idx::read_images(&images_file)?;
    let images = pixels.len() as u64 / DatasetSpec::FashionMnist.input_count();
    if images != labels.len() as u64 {
        return Err(DatasetError::CountMismatch {
            images_file,
            images,
            labels_file,
            labels: labels.len() as u64,
        });
    }
    let inputs = pixels.par_iter().with_min_len(1 << 16).map(|pixel| normalised(*pixel)).collect();
    Ok(Split { inputs, labels: labels.into_iter().map(u32::from).collect() })
}

fn normalised(pixel: u8) -> f32 {
    (f32::from(pixel) / 255.0 - MEAN) / DEVIATION
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;
    use tempfile::TempDir;

    fn images(count: u32, rows: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [0x803_u32, count, rows, 28].iter().flat_map(|number| number.to_be_bytes()).collect();
        bytes.extend((0..count * rows * 28).map(|i| (i % 256) as u8));
        bytes
    }

    fn labels(labels: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [0x801_u32, labels.len() as u32].iter().flat_map(|number| number.to_be_bytes()).collect();
        bytes.extend(labels);
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// A folder with a small, sound dataset: three training images, two test images.
    fn folder() -> TempDir {
        let folder = TempDir::new().unwrap();
        write(&folder, TRAIN[0], &images(3, 28));
        write(&folder, TRAIN[1], &labels(&[0, 9, 4]));
        write(&folder, TEST[0], &images(2, 28));
        write(&folder, TEST[1], &labels(&[1, 2]));
        folder
    }

    fn write(folder: &TempDir, name: &str, bytes: &[u8]) {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }

    fn load_folder(folder: &TempDir) -> Result<(Split, Split), DatasetError> {
        load(Some(folder.path()))
    }

    /// The error when file `name` of a sound folder holds `bytes` instead, which must name that file. The
    /// same bytes compressed must give the same error.
    fn error_with(name: &str, bytes: &[u8]) -> DatasetError {
        let folder = folder();
        write(&folder, name, bytes);
        let error = load_folder(&folder).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        if !bytes.is_empty() {
            write(&folder, name, &gzip(bytes));
            let compressed = load_folder(&folder).unwrap_err();
            assert_eq!(compressed.to_string(), error.to_string());
        }
        error
    }

    #[test]
    fn a_sound_folder_loads_plain_or_compressed_whatever_its_names_say() {
        let folder = folder();
        let (train, test) = load_folder(&folder).unwrap();
        assert_eq!((train.len(), train.inputs.len(), train.labels.clone()), (3, 3 * 784, vec![0, 9, 4]));
        assert_eq!(test.labels, [1, 2]);
        assert!((train.inputs[255] - (1.0 - 0.2860) / 0.3530).abs() < 1e-6);
        std::fs::remove_file(folder.path().join(TRAIN[0])).unwrap();
        write(&folder, &format!("{}.gz", TRAIN[0]), &gzip(&images(3, 28)));
        write(&folder, TEST[0], &gzip(&images(2, 28)));
        assert_eq!(load_folder(&folder).unwrap(), (train, test));
    }

    #[test]
    fn absence_names_the_places_and_the_remedy() {
        let folder = TempDir::new().unwrap();
        let error = load_folder(&folder).unwrap_err();
        assert!(matches!(&error, DatasetError::Absent { looked_in, .. } if looked_in == &[folder.path()]));
        let message = error.to_string();
        for part in
            [folder.path().to_str().unwrap(), "apt-get install dataset-fashion-mnist", "--set data.dir=DIR"]
        {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_set_folder_is_the_only_place_else_debian_then_the_cache() {
        let text = |path: &str| Some(OsString::from(path));
        assert_eq!(places(Some(Path::new("/d")), text("/c"), text("/h")), [Path::new("/d")]);
        let debian = Path::new("/usr/share/datasets/fashion-mnist");
        assert_eq!(places(None, text("/c"), text("/h")), [debian, Path::new("/c/slackline/fashion-mnist")]);
        let home = Path::new("/h/.cache/slackline/fashion-mnist");
        assert_eq!(places(None, None, text("/h")), [debian, home]);
        assert_eq!(places(None, text(""), text("/h")), [debian, home]);
        assert_eq!(places(None, None, None), [debian]);
    }

    #[test]
    fn one_missing_file_is_named() {
        for name in [TRAIN, TEST].concat() {
            let folder = folder();
            std::fs::remove_file(folder.path().join(name)).unwrap();
            let error = load_folder(&folder).unwrap_err();
            assert!(matches!(&error, DatasetError::Missing { file } if file.ends_with(name)), "{error}");
        }
    }

    #[test]
    fn an_empty_file_is_empty_and_one_cut_anywhere_is_truncated() {
        assert!(matches!(error_with(TRAIN[0], &[]), DatasetError::Empty { .. }));
        let (images, labels) = (images(3, 28), labels(&[0, 9, 4]));
        for len in [1, 3, 4, 9, 15, 16, 17, images.len() - 1] {
            let error = error_with(TRAIN[0], &images[..len]);
            assert!(
                matches!(error, DatasetError::Truncated { got, .. } if got == len as u64),
                "{len}: {error}"
            );
        }
        for len in [2, 7, 8, 10] {
            assert!(matches!(error_with(TRAIN[1], &labels[..len]), DatasetError::Truncated { .. }), "{len}");
        }
    }

    #[test]
    fn another_kind_of_file_has_the_wrong_magic() {
        assert!(matches!(
            error_with(TRAIN[0], &labels(&[0, 9, 4])),
            DatasetError::WrongMagic { got: 0x801, wanted: 0x803, .. }
        ));
        assert!(matches!(error_with(TEST[1], &images(2, 28)), DatasetError::WrongMagic { got: 0x803, .. }));
        assert!(matches!(error_with(TEST[1], b"<html>no</html>"), DatasetError::WrongMagic { .. }));
    }

    #[test]
    fn sizes_counts_and_labels_are_checked() {
        assert!(matches!(
            error_with(TEST[0], &images(2, 27)),
            DatasetError::WrongImageSize { rows: 27, columns: 28, .. }
        ));
        assert!(matches!(
            error_with(TEST[0], &images(3, 28)),
            DatasetError::CountMismatch { images: 3, labels: 2, .. }
        ));
        assert!(matches!(
            error_with(TRAIN[1], &labels(&[0, 9])),
            DatasetError::CountMismatch { images: 3, labels: 2, .. }
        ));
        assert!(matches!(
            error_with(TRAIN[1], &labels(&[0, 10, 4])),
            DatasetError::LabelOutOfRange { sample: 1, label: 10, .. }
        ));
        assert!(matches!(error_with(TRAIN[1], &labels(&[])), DatasetError::NoExamples { .. }));
        let longer = [images(3, 28), vec![0]].concat();
        assert!(matches!(error_with(TRAIN[0], &longer), DatasetError::TrailingBytes { wanted: 2368, .. }));
    }

    #[test]
    fn a_header_that_lies_costs_no_memory() {
        let mut header = images(0, 28);
        header[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(error_with(TRAIN[0], &header), DatasetError::TooMany { count: 0xffff_ffff, .. }));
        header[4..8].copy_from_slice(&(idx::EXAMPLE_COUNT_MAX as u32).to_be_bytes());
        assert!(matches!(
            error_with(TRAIN[0], &header),
            DatasetError::Truncated { wanted: 784_000_016, got: 16, .. }
        ));
    }

    #[test]
    fn a_file_that_unpacks_to_far_more_than_it_promises_is_not_unpacked() {
        let bomb = gzip(&[images(3, 28), vec![0; 1 << 24]].concat());
        assert!(bomb.len() < 1 << 17);
        let folder = folder();
        write(&folder, TRAIN[0], &bomb);
        assert!(matches!(load_folder(&folder), Err(DatasetError::TrailingBytes { wanted: 2368, .. })));
    }

    #[test]
    fn damaged_compression_is_told_apart_from_a_short_file() {
        let whole = gzip(&images(3, 28));
        let folder = folder();
        for cut in [3, 20, whole.len() / 2, whole.len() - 1] {
            write(&folder, TRAIN[0], &whole[..cut]);
            let error = load_folder(&folder).unwrap_err();
            assert!(matches!(error, DatasetError::Truncated { .. }), "{cut}: {error}");
        }
        for place in [whole.len() / 2, whole.len() - 6] {
            let mut damaged = whole.clone();
            damaged[place] ^= 0x55;
            write(&folder, TRAIN[0], &damaged);
            assert!(load_folder(&folder).is_err());
        }
        let mut checksum = whole.clone();
        let last = checksum.len() - 8;
        checksum[last] ^= 1;
        write(&folder, TRAIN[0], &checksum);
        assert!(matches!(load_folder(&folder), Err(DatasetError::Damaged { .. })));
        write(&folder, TRAIN[0], &[&whole[..], b"rubbish"].concat());
        assert!(load_folder(&folder).is_err());
    }

    #[test]
    fn a_folder_in_the_place_of_a_file_is_unreadable() {
        let folder = folder();
        std::fs::remove_file(folder.path().join(TEST[0])).unwrap();
        std::fs::create_dir(folder.path().join(TEST[0])).unwrap();
        assert!(matches!(load_folder(&folder), Err(DatasetError::Unreadable { .. })));
    }
}
