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

/// Runs it; what it printed as JSON, and whether it was content.
fn loopback(arguments: &[&str]) -> (serde_json::Value, bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_loopback")).args(arguments).arg("--json").output().unwrap();
    let said = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (said, output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

// Case 32 of the allreduce list (flower#3006): a model larger than a message could not be sent. A server had every push of a model whole, twice the model a worker: four times the model in all.
#[test]
fn a_model_larger_than_a_sessions_buffers_passes_through_them_and_its_workers_wait() {
    let cell = ["--mib", "96", "--workers", "2", "--servers", "1", "--rounds", "1", "--repeats", "1"];
    let small = ["--set", "transport.session_bytes=16777216", "--set", "cluster.shard_bytes=1048576"];
    for sets in [&[][..], &small[..]] {
        let (cells, is_within, said) = loopback(&[&cell[..], sets, &["--within-limit"]].concat());
        assert!(is_within, "{said}{cells:#}");
        let cell = &cells[0];
        let mib = |name: &str| cell[name].as_f64().unwrap();
        assert!((mib("server_state_mib") - 96.0).abs() < 1.0, "{cells:#}");
        assert!(cell["server_peak_mib"]["max"].as_f64().unwrap() <= mib("server_limit_mib"), "{cells:#}");
        assert!(cell["busy_ms"][0].as_u64().unwrap() > 0, "nobody had to wait: {cells:#}");
    }
}

#[test]
fn a_limit_that_is_not_kept_is_an_error() {
    let cell = ["--mib", "8", "--workers", "1", "--servers", "1", "--rounds", "1", "--repeats", "1"];
    // Room for two shards there always is, and so large a shard has more than the limit allows.
    let over = ["--set", "transport.session_bytes=1048576", "--set", "cluster.shard_bytes=8388608"];
    let (cells, is_within, said) = loopback(&[&cell[..], &over, &["--within-limit"]].concat());
    assert!(!is_within && said.contains("more memory than it may"), "{said}{cells:#}");
}

#[test]
fn many_pushes_leave_nothing_in_memory() {
    let cell = ["--mib", "1", "--workers", "2", "--servers", "1", "--set", "cluster.shards_per_server=64"];
    let (steady, is_steady, said) =
        loopback(&[&cell[..], &["--pushes", "20000", "--growth-mib", "4"]].concat());
    assert!(is_steady, "{said}{steady:#}");
    assert!(steady["pushes"].as_u64().unwrap() >= 20_000, "{steady:#}");
}

// Case 45: what a round takes while checkpoints are saved can only be measured where they are.
#[test]
fn checkpoints_are_made_beside_the_rounds_where_they_are_asked_for() {
    let at = tempfile::tempdir().unwrap();
    let place = format!("checkpoint.at={:?}", at.path());
    let cell = ["--mib", "1", "--workers", "1", "--servers", "1", "--rounds", "40", "--repeats", "1"];
    let (cells, is_well, said) =
        loopback(&[&cell[..], &["--set", "checkpoint.every_clocks=5", "--set", &place]].concat());
    assert!(is_well, "{said}");
    let round = &cells[0]["round_ms"];
    assert!(round["median"].as_f64().unwrap() <= round["p99"].as_f64().unwrap(), "{round}");
    assert!(at.path().read_dir().unwrap().count() > 0, "no checkpoint was made");
}

#[test]
fn bytes_go_one_way_bare_and_as_pushes_and_pulls() {
    let cell = ["--raw", "--mib", "1", "--rounds", "3", "--repeats", "1", "--tcp-mib", "1"];
    let (rows, is_well, said) = loopback(&cell);
    assert!(is_well, "{said}");
    let names: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["way"].as_str().unwrap()).collect();
    let wanted =
        ["bare QUIC, one stream", "bare QUIC, four streams", "pushes", "pulls", "plain TCP, one stream"];
    assert_eq!(names, wanted);
    for row in rows.as_array().unwrap() {
        assert!(row["gigabits_per_s"]["median"].as_f64().unwrap() > 0.0, "{row}");
    }
    // Within one machine a datagram is as large as the loopback takes.
    assert!(rows[0]["datagram_bytes"].as_u64().unwrap() > 60_000, "{}", rows[0]);
}

#[test]
fn a_held_pull_and_idle_workers_are_measured() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_loopback")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let held = run(&["--held", "20", "--repeats", "1"]);
    assert!(held.contains("a held pull after the push that releases it"), "{held}");
    let idle: serde_json::Value = serde_json::from_str(&run(&["--idle", "8", "--watch-s", "1"])).unwrap();
    assert_eq!(idle["idle_workers"], 8);
    assert!(idle["kib_each"].as_f64().unwrap() < 1024.0, "{idle}");
}

#[test]
fn a_round_can_be_one_way() {
    for (way, bytes) in [("push", 1), ("pull", 1), ("both", 2)] {
        let cell = ["--mib", "1", "--workers", "1", "--servers", "1", "--rounds", "3", "--repeats", "1"];
        let (cells, is_well, said) = loopback(&[&cell[..], &["--one-way", way]].concat());
        assert!(is_well, "{said}");
        let cell = &cells[0];
        assert_eq!(
            cell["bytes"].as_u64().unwrap(),
            bytes * 3 * 4 * cell["values"].as_u64().unwrap(),
            "{way}"
        );
    }
}
