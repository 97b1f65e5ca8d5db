//! The allreduce bench runs from end to end: real processes, right sums, and figures that make sense.
#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn a_small_buffer_is_summed_by_three_processes() {
    let size = ["--mib", "1", "--ranks", "3", "--repeats", "2", "--bucket-kib", "256", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_allreduce")).args(size).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cells: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let cell = &cells[0];
    assert_eq!((cell["ranks"].as_u64(), cell["bytes"].as_u64()), (Some(3), Some(1 << 20)));
    assert_eq!(cell["seconds"].as_array().unwrap().len(), 2);
    assert!(cell["bytes_per_s"]["median"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_topology_that_does_not_fit_is_refused_with_those_that_would() {
    let wrong = ["--ranks", "6", "--topology", "torus(2, 2)"];
    let output = Command::new(env!("CARGO_BIN_EXE_allreduce")).args(wrong).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("torus(3, 2)"));
}
