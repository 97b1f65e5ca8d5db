//! Loads the configuration: a TOML file, the environment over it, `--set` over both, each read with the
//! `config` crate.
//!
//! Every source becomes layers of its own, so that each value keeps the name of the place it comes from.
//! What a key takes, and which layer wins, is decided in [`slackline_core::config`].

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use config::{ConfigError, Environment, File, FileFormat, Source, ValueKind};
use slackline_core::config::{
    Config, Fault, Layer, Problem, Resolved, SECTIONS, SET_LAYER, VARIABLE_PREFIX, Value, key_of,
};
use slackline_core::stragglers::Slowness;

/// Bytes of a configuration file; more than this is another file by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why there is no configuration. All of these are for the user to put right.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigurationError {
    /// The file is not there.
    #[error("{}: no such file (configs/quickstart.toml is one to begin with)", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is too large.
    #[error("{}: over {FILE_BYTES_MAX} bytes, which is no configuration", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is not TOML.
    #[error("{}{place}: not valid TOML: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// `:line:column` where they are known, else empty.
        place: String,
        /// What the parser says.
        message: String,
    },
    /// The values are wrong; one line each.
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
    /// The file of recorded times is not there or is none.
    #[error("stragglers.file = {}: {reason}", path.display())]
    Recorded {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Loads the file at `path`, and over it those of `environment` that begin with `SLACKLINE__`, and over
/// these `sets`, each `KEY=VALUE`, the later over the earlier.
///
/// # Errors
///
/// A file that cannot be read or parsed, or else every problem of every layer.
pub(crate) fn load(
    path: &Path,
    sets: &[String],
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Resolved, ConfigurationError> {
    let text = read(path)?;
    let name = path.display().to_string();
    let mut layers = vec![Layer { name: name.clone(), values: parse(path, &text)? }];
    let mut problems = Vec::new();
    for layer in variables(environment).chain(sets.iter().map(|set| set_layer(set))) {
        match layer {
            Ok(layer) => layers.push(layer),
            Err(problem) => problems.push(problem),
        }
    }
    match Config::resolve(&layers) {
        Ok(resolved) if problems.is_empty() => return with_recorded_times(resolved),
        Ok(_) => {}
        Err(more) => problems.extend(more),
    }
    for problem in problems.iter_mut().filter(|problem| problem.layer == name) {
        problem.line = line_of(&text, &problem.key);
    }
    // In the order of the file, then of the layers over it.
    problems.sort_by_key(|problem| (problem.layer != name, problem.line.unwrap_or(u32::MAX)));
    Err(ConfigurationError::Problems(problems))
}

/// Reads the file of recorded times, where the configuration names one.
fn with_recorded_times(mut resolved: Resolved) -> Result<Resolved, ConfigurationError> {
    if let Some(file) = &resolved.config.stragglers_file {
        let failed = |reason: String| ConfigurationError::Recorded { path: PathBuf::from(file), reason };
        let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
        resolved.config.stragglers.slowness =
            Slowness::recorded(&text).map_err(|error| failed(error.to_string()))?;
    }
    Ok(resolved)
}

/// The layers that lie over a file: those of the environment, and those of `sets`.
///
/// # Errors
///
/// What is no text or no assignment; whether the keys are right, resolving tells.
pub(crate) fn layers_over(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    sets: &[String],
) -> Result<(Vec<Layer>, Vec<Layer>), ConfigurationError> {
    let one = |problem: Problem| ConfigurationError::Problems(vec![problem]);
    let environment = variables(environment).collect::<Result<_, _>>().map_err(one)?;
    let sets = sets.iter().map(|set| set_layer(set)).collect::<Result<_, _>>().map_err(one)?;
    Ok((environment, sets))
}

/// The layers of the environment, in the order of their names.
fn variables(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = Result<Layer, Problem>> {
    let mut variables: Vec<_> = environment.into_iter().collect();
    variables.sort();
    variables.into_iter().filter_map(|(name, value)| variable_layer(name, value))
}

fn read(path: &Path) -> Result<String, ConfigurationError> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ConfigurationError::Missing { path: path.to_owned() },
        _ => ConfigurationError::Unreadable { path: path.to_owned(), source },
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ConfigurationError::TooLarge { path: path.to_owned() });
    }
    String::from_utf8(bytes)
        .map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error.utf8_error())))
}

/// The values of a TOML text, flattened to dotted keys and sorted by them.
fn parse(path: &Path, text: &str) -> Result<Vec<(String, Value)>, ConfigurationError> {
    let table = File::from_str(text, FileFormat::Toml).collect().map_err(|error| syntax(path, &error))?;
    let mut values = Vec::new();
    flatten("", table, &mut values);
    values.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(values)
}

/// The parser's report, which shows the place in several lines, on one.
fn syntax(path: &Path, error: &ConfigError) -> ConfigurationError {
    let report = error.to_string();
    let mut place = String::new();
    let mut message = Vec::new();
    for line in report.lines() {
        if let Some(at) = line.strip_prefix("TOML parse error at line ") {
            let numbers: Vec<_> = at.split(", column ").collect();
            let _ = write!(place, ":{}", numbers.join(":"));
        } else if !line.trim_start().starts_with('|') && !line.contains(" | ") && !line.is_empty() {
            message.push(line);
        }
    }
    ConfigurationError::Syntax { path: path.to_owned(), place, message: message.join("; ") }
}

fn flatten(prefix: &str, table: config::Map<String, config::Value>, values: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        // A quoted name may hold a dot: it stays quoted, or it would pass for a section and a name.
        let bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let name =
            if !name.is_empty() && name.bytes().all(bare) { name } else { Value::Text(name).to_string() };
        let path = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value.kind {
            ValueKind::Table(inner) if !inner.is_empty() => flatten(&path, inner, values),
            // An empty section says nothing, unless there is no such section.
            ValueKind::Table(_) if SECTIONS.iter().any(|(section, _)| *section == path) => {}
            kind => values.push((path, value_of(kind))),
        }
    }
}

fn value_of(kind: ValueKind) -> Value {
    match kind {
        ValueKind::Boolean(flag) => Value::Bool(flag),
        ValueKind::I64(number) => Value::Int(number),
        ValueKind::Float(number) => Value::Float(number),
        ValueKind::String(text) => Value::Text(text),
        ValueKind::Table(_) => Value::Table,
        ValueKind::Array(values) => {
            Value::List(values.into_iter().map(|value| value_of(value.kind)).collect())
        }
        // TOML has no others.
        other => Value::Text(other.to_string()),
    }
}

/// The layer of one environment variable; nothing for a variable that is not ours.
fn variable_layer(name: OsString, value: OsString) -> Option<Result<Layer, Problem>> {
    let name = name.into_string().ok()?;
    let source = |text: String| {
        let environment = Environment::with_prefix(VARIABLE_PREFIX).prefix_separator("__").separator("__");
        environment.source(Some(HashMap::from([(name.clone(), text)]))).collect().unwrap_or_default()
    };
    let (text, is_text) = match value.into_string() {
        Ok(text) => (text, true),
        Err(_) => (String::new(), false),
    };
    let (key, value) = source(text).into_iter().next()?;
    if !is_text {
        return Some(Err(Problem { layer: name, line: None, key, given: None, fault: Fault::NotUnicode }));
    }
    let value = match value.kind {
        ValueKind::String(text) => written(&key, &text),
        kind => value_of(kind),
    };
    Some(Ok(Layer { name, values: vec![(key, value)] }))
}

/// The layer of one `--set KEY=VALUE`.
fn set_layer(set: &str) -> Result<Layer, Problem> {
    let name = SET_LAYER.to_owned();
    let Some((key, text)) = set.split_once('=').filter(|(key, _)| !key.trim().is_empty()) else {
        let (key, fault) = (set.to_owned(), Fault::NotAnAssignment);
        return Err(Problem { layer: name, line: None, key, given: None, fault });
    };
    let key = key.trim().to_owned();
    let value = written(&key, text);
    Ok(Layer { name, values: vec![(key, value)] })
}

/// A value as it is written in a shell: a TOML literal, or a text without its quotes.
fn written(key: &str, text: &str) -> Value {
    let text = text.trim();
    // For a key that takes a text, `out=2026` and `out=true` are texts too.
    let takes_text = key_of(key).is_some_and(|key| key.kind.is_text());
    if takes_text && !text.starts_with(['"', '\'']) {
        return Value::Text(text.to_owned());
    }
    let table = File::from_str(&format!("value = {text}"), FileFormat::Toml).collect().unwrap_or_default();
    match table.into_iter().collect::<Vec<_>>().as_mut_slice() {
        [(name, value)] if name == "value" => value_of(std::mem::take(&mut value.kind)),
        // Not a literal, or one that smuggles more lines in.
        _ => Value::Text(text.to_owned()),
    }
}

/// The line, from 1, that sets `key`; nothing where no line or several seem to (in a text of many lines,
/// say).
fn line_of(text: &str, key: &str) -> Option<u32> {
    let mut section = String::new();
    let mut found = None;
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        let without_blanks = |part: &str| part.split_whitespace().collect::<String>();
        let path = if let Some(header) = line.strip_prefix('[') {
            section = without_blanks(header.split(']').next().unwrap_or_default());
            section.clone()
        } else if let Some((name, _)) = line.split_once('=') {
            let name = without_blanks(name);
            if section.is_empty() { name } else { format!("{section}.{name}") }
        } else {
            continue;
        };
        if path == key && found.replace(number).is_some() {
            return None;
        }
    }
    found
}

#[cfg(test)]
#[path = "configuration/tests.rs"]
mod tests;
