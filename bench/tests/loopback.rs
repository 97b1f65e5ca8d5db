//! The loopback bench runs from end to end: real servers, real workers, and figures that make sense.
#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn a_small_cell_of_two_workers_and_two_servers_is_measured() {
    let size = ["--mib", "1", "--workers", "2", "--servers", "2", "--rounds", "3", "--repeats", "1"];
    let output = Command::new(env!("CARGO_BIN_EXE_loopback")).args(size).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cells: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let cell = &cells[0];
    let values = cell["values"].as_u64().unwrap();
    assert_eq!(cell["bytes"].as_u64().unwrap(), values * 4 * 2 * 2 * 3);
    assert!(cell["megabytes_per_s"]["median"].as_f64().unwrap() > 0.0);
    let round = &cell["round_ms"];
    assert!(round["min"].as_f64().unwrap() <= round["max"].as_f64().unwrap());
}

#[test]
fn a_configuration_that_is_refused_is_said_before_anything_starts() {
    let wrong = ["--mib", "1", "--set", "transport.streams=0"];
    let output = Command::new(env!("CARGO_BIN_EXE_loopback")).args(wrong).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("transport.streams"));
}
