//! What a run leaves on disk: the resolved configuration, `metrics.jsonl` while it goes on, `summary.json` at its end.
//!
//! A file is whole or not there: each is written under another name, synced and renamed. `metrics.jsonl` grows by whole lines.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use slackline_server_core::record::Figures;

/// A file of the results cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be written: {source}; free space or choose another folder with --out", path.display())]
pub struct FileError {
    path: PathBuf,
    source: io::Error,
}

/// What every summary and every line of metrics begins with.
#[derive(Clone, Debug)]
pub(crate) struct Heading {
    pub(crate) config_hash: u64,
    pub(crate) seed: u64,
    pub(crate) policy: String,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) shards: u64,
    pub(crate) model: String,
    pub(crate) parameters: u64,
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
pub(crate) struct Results {
    folder: PathBuf,
    metrics: File,
}

impl Results {
    /// Makes the folder, saves the resolved configuration and begins the metrics. A summary of an earlier run is removed, so that
    /// one that is there is of this run.
    pub(crate) fn begin(folder: &Path, configuration: &str) -> Result<Self, FileError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| FileError { path, source }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        write_whole(&folder.join("config.toml"), configuration.as_bytes())?;
        let summary = folder.join("summary.json");
        match fs::remove_file(&summary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&summary)(error)),
            _ => {}
        }
        let path = folder.join("metrics.jsonl");
        let metrics =
            OpenOptions::new().create(true).write(true).truncate(true).open(&path).map_err(failed(&path))?;
        Ok(Self { folder: folder.to_owned(), metrics })
    }

    /// Adds a line of metrics. `event` says what for: `progress`, or `evaluate` and at how many samples.
    pub(crate) fn line(&mut self, event: Value, figures: &Figures) -> Result<(), FileError> {
        let mut line = merged([event, figures_json(figures)]).to_string();
        line.push('\n');
        let path = || self.folder.join("metrics.jsonl");
        self.metrics.write_all(line.as_bytes()).map_err(|source| FileError { path: path(), source })
    }

    /// Writes the summary.
    pub(crate) fn summary(
        &self,
        heading: &Heading,
        figures: &Figures,
        extra: Value,
    ) -> Result<(), FileError> {
        let summary = merged([heading.to_json(), figures_json(figures), extra]);
        // A value made of plain numbers, texts and maps can always be written as JSON.
        let mut text = serde_json::to_string_pretty(&summary).unwrap_or_default();
        text.push('\n');
        write_whole(&self.folder.join("summary.json"), text.as_bytes())
    }
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
    let write = || {
        let unfinished = path.with_extension("unfinished");
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|source| FileError { path: path.to_owned(), source })
}
