//! What a run leaves on disk: the resolved configuration, `metrics.jsonl` while it goes on, `summary.json` at its end.
//!
//! A file is whole or not there: each is written under another name, synced and renamed. `metrics.jsonl` grows by whole lines.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use slackline_server_core::record::Figures;

/// The resolved configuration, among the results.
pub const CONFIGURATION: &str = "config.toml";

const SUMMARY: &str = "summary.json";

/// A file of the results cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be written: {source}; {}", path.display(), self.remedy())]
pub struct FileError {
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    pub(crate) fn new(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), source }
    }

    /// Whether the folder that was asked for is the fault, and not the state of the disk.
    #[must_use]
    pub fn is_users(&self) -> bool {
        use io::ErrorKind as Kind;
        matches!(
            self.source.kind(),
            Kind::NotFound
                | Kind::NotADirectory
                | Kind::IsADirectory
                | Kind::AlreadyExists
                | Kind::PermissionDenied
                | Kind::ReadOnlyFilesystem
                | Kind::InvalidFilename
                | Kind::InvalidInput
        )
    }

    fn remedy(&self) -> &'static str {
        if self.is_users() {
            "choose a folder that can be made and written to, with --out"
        } else {
            "free space or choose another folder with --out"
        }
    }
}

/// What every summary begins with.
#[derive(Clone, Debug)]
pub struct Heading {
    /// Fingerprint of the configuration.
    pub config_hash: u64,
    /// Its seed.
    pub seed: u64,
    /// The consistency policy in words.
    pub policy: String,
    /// Workers that the run begins with.
    pub workers: u32,
    /// Servers.
    pub servers: u32,
    /// Shards with keys, on all servers together.
    pub shards: u64,
    /// The model in words.
    pub model: String,
    /// Values of the model.
    pub parameters: u64,
}

impl Heading {
    fn to_json(&self) -> Value {
        json!({
            "config_hash": format!("{:016x}", self.config_hash),
            "seed": self.seed,
            "policy": self.policy,
            "workers": self.workers,
            "servers": self.servers,
            "shards": self.shards,
            "model": self.model,
            "parameters": self.parameters,
        })
    }
}

/// The folder of one run's results.
#[derive(Debug)]
pub struct Results {
    folder: PathBuf,
    /// None where the results are whole already, and are left as they are.
    metrics: Option<Lines<File>>,
}

impl Results {
    /// Those of a run that was complete before: nothing is written any more.
    #[must_use]
    pub(crate) fn standing(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), metrics: None }
    }

    /// Makes the folder, saves the resolved configuration and begins the metrics. A summary of an earlier run is removed, so that
    /// one that is there is of this run.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn begin(folder: &Path, configuration: &str, run: Option<u64>) -> Result<Self, FileError> {
        Self::open(folder, configuration, run, false)
    }

    /// The same for a run that goes on: its metrics so far stay, up to the last whole line. Those of another run do not: a candidate for the
    /// coordinator may have led one before it.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn go_on(folder: &Path, configuration: &str, run: Option<u64>) -> Result<Self, FileError> {
        Self::open(folder, configuration, run, true)
    }

    fn open(folder: &Path, configuration: &str, run: Option<u64>, goes_on: bool) -> Result<Self, FileError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| FileError { path, source }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let mark = run.map(mark_of).unwrap_or_default();
        let path = folder.join(CONFIGURATION);
        let goes_on = goes_on && is_marked(&path, &mark);
        if !goes_on {
            // Before the mark says that they are of this run.
            let path = folder.join("metrics.jsonl");
            File::create(&path).map_err(failed(&path))?;
        }
        write_whole(&path, format!("{configuration}{mark}").as_bytes())?;
        let summary = folder.join(SUMMARY);
        match fs::remove_file(&summary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&summary)(error)),
            _ => {}
        }
        let path = folder.join("metrics.jsonl");
        let open = || {
            let mut file =
                OpenOptions::new().create(true).read(true).write(true).truncate(!goes_on).open(&path)?;
            if !goes_on {
                return Ok((file, 0));
            }
            let good = whole_lines(&mut file)?;
            file.set_len(good)?;
            file.seek(SeekFrom::Start(good))?;
            Ok((file, good))
        };
        let (metrics, good) = open().map_err(failed(&path))?;
        Ok(Self { folder: folder.to_owned(), metrics: Some(Lines { file: metrics, good }) })
    }

    /// Adds a line of metrics. `event` says what for: `progress`, or `evaluate` and at how many samples.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn line(&mut self, event: Value, figures: &Figures) -> Result<(), FileError> {
        let Some(metrics) = &mut self.metrics else { return Ok(()) };
        let mut line = merged([event, figures_json(figures)]).to_string();
        line.push('\n');
        let path = || self.folder.join("metrics.jsonl");
        metrics.add(line.as_bytes()).map_err(|source| FileError { path: path(), source })
    }

    /// Where they lie.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes another file beside the summary.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn extra(&self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        write_whole(&self.folder.join(name), bytes)
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn summary(&self, summary: &Value) -> Result<(), FileError> {
        if self.metrics.is_none() {
            return Ok(());
        }
        // A value made of plain numbers, texts and maps can always be written as JSON.
        let mut text = serde_json::to_string_pretty(summary).unwrap_or_default();
        text.push('\n');
        write_whole(&self.folder.join(SUMMARY), text.as_bytes())
    }
}

/// What the configuration beside the results of a run ends with.
fn mark_of(run: u64) -> String {
    format!("\n# The results beside this are of run {run:016x}.\n")
}

fn is_marked(configuration: &Path, mark: &str) -> bool {
    fs::read_to_string(configuration).is_ok_and(|text| text.ends_with(mark))
}

/// Whether the folder has the summary of this run.
pub(crate) fn has_summary(folder: &Path, run: u64) -> bool {
    folder.join(SUMMARY).is_file() && is_marked(&folder.join(CONFIGURATION), &mark_of(run))
}

/// What the summary holds: the heading, the figures, and `extra` after or over them.
#[must_use]
pub fn summary_of(heading: &Heading, figures: &Figures, extra: Value) -> Value {
    merged([heading.to_json(), figures_json(figures), extra])
}

fn figures_json(figures: &Figures) -> Value {
    serde_json::to_value(figures).unwrap_or(Value::Null)
}

fn merged<const N: usize>(parts: [Value; N]) -> Value {
    let mut whole = serde_json::Map::new();
    for part in parts {
        if let Value::Object(part) = part {
            whole.extend(part);
        }
    }
    Value::Object(whole)
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let unfinished = path.with_extension("unfinished");
    let write = || {
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|source| {
        // Where it cannot be removed either, the first error says why.
        let _ = fs::remove_file(&unfinished);
        FileError { path: path.to_owned(), source }
    })
}

/// Bytes of the whole lines that a file begins with.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last as u64 + 1))
}

/// A file that grows by whole lines.
#[derive(Debug)]
struct Lines<F> {
    file: F,
    /// Bytes of all whole lines.
    good: u64,
}

/// A file that can be made shorter.
trait Cut {
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Cut for File {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

impl<F: Write + Seek + Cut> Lines<F> {
    #[cfg(test)]
    const fn new(file: F) -> Self {
        Self { file, good: 0 }
    }

    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(line) {
            // A disk that is full takes the part of the line that still fits. The first error is the one to tell.
            let _ = self.file.cut(self.good);
            let _ = self.file.seek(SeekFrom::Start(self.good));
            return Err(error);
        }
        self.good += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for so many bytes.
    #[derive(Debug)]
    struct Disk {
        file: io::Cursor<Vec<u8>>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let left = self.room.saturating_sub(self.file.position() as usize);
            if left == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.file.write(&bytes[..bytes.len().min(left)])
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Disk {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.file.seek(to)
        }
    }

    impl Cut for Disk {
        fn cut(&mut self, length: u64) -> io::Result<()> {
            self.file.get_mut().truncate(length as usize);
            Ok(())
        }
    }

    #[test]
    fn a_run_goes_on_with_its_own_metrics_and_with_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = || fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        let summary = folder.path().join("summary.json");
        drop(Results::begin(folder.path(), "seed = 1\n", Some(1)).unwrap());
        fs::write(folder.path().join("metrics.jsonl"), "{}\n{}\n{\"cut").unwrap();
        fs::write(&summary, "{}").unwrap();
        drop(Results::go_on(folder.path(), "seed = 1\n", Some(1)).unwrap());
        assert_eq!((metrics().as_str(), summary.exists()), ("{}\n{}\n", false));
        // A candidate leads a run that another one has begun, in a folder of an earlier run.
        fs::write(&summary, "{}").unwrap();
        drop(Results::go_on(folder.path(), "seed = 1\n", Some(2)).unwrap());
        assert_eq!((metrics().as_str(), summary.exists()), ("", false));
    }

    #[test]
    fn a_line_that_does_not_fit_leaves_nothing_of_itself() {
        let mut lines = Lines::new(Disk { file: io::Cursor::default(), room: 10 });
        lines.add(b"one\n").unwrap();
        assert_eq!(lines.add(b"too long\n").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(lines.file.file.get_ref(), b"one\n");
        lines.file.room = 100;
        lines.add(b"two\n").unwrap();
        assert_eq!(lines.file.file.get_ref(), b"one\ntwo\n");
    }

    #[test]
    fn a_file_that_cannot_be_finished_is_not_left_half_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        // Nothing can be renamed onto a folder.
        fs::create_dir(&path).unwrap();
        assert!(write_whole(&path, b"{}").is_err());
        assert!(!path.with_extension("unfinished").exists());
    }

    #[test]
    fn a_wrong_folder_is_told_from_a_full_disk() {
        let failed = |kind: io::ErrorKind| FileError { path: "out".into(), source: kind.into() };
        for kind in [io::ErrorKind::NotADirectory, io::ErrorKind::PermissionDenied, io::ErrorKind::NotFound] {
            assert!(failed(kind).is_users() && !failed(kind).to_string().contains("space"), "{kind}");
        }
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::Other] {
            assert!(!failed(kind).is_users() && failed(kind).to_string().contains("free space"), "{kind}");
        }
    }
}
