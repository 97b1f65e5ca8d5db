//! Configurations for simulations, written as in a file.
#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::Value as Json;
use slackline_core::config::{Config, Layer, Resolved, Value};
use slackline_sim::{Options, Outcome, SimFailure, simulate};

/// A small run on the bundled digits with some keys set otherwise.
pub(crate) fn resolved(more: &[(&str, &str)]) -> Resolved {
    let base = [
        ("data.dataset", "\"digits\""),
        ("model.kind", "\"softmax\""),
        ("train.epochs", "2"),
        ("train.batch", "32"),
        ("optimizer.kind", "\"sgd\""),
        ("optimizer.rate", "0.1"),
    ];
    let values =
        base.iter().chain(more).map(|(key, value)| ((*key).to_owned(), Value::from_literal(value).unwrap()));
    let layer = Layer { name: "test".to_owned(), values: values.collect() };
    match Config::resolve(&[layer]) {
        Ok(resolved) => resolved,
        Err(problems) => {
            panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        }
    }
}

/// Runs it without gradients.
pub(crate) fn timing(more: &[(&str, &str)]) -> Outcome {
    let options = Options { timing_only: true, ..Options::default() };
    simulate(&resolved(more), &options).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Runs it with gradients.
pub(crate) fn run(more: &[(&str, &str)]) -> Result<Outcome, SimFailure> {
    simulate(&resolved(more), &Options::default())
}

/// A number of a summary.
pub(crate) fn number(outcome: &Outcome, path: &str) -> f64 {
    outcome.summary.pointer(path).and_then(Json::as_f64).unwrap_or_else(|| {
        panic!("the summary has no number at {path}: {:#}", outcome.summary);
    })
}
