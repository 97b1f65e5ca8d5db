//! Real connections between network namespaces whose link has a delay, loses packets and takes some sizes only. Where there are no namespaces,
//! each test says so and passes.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use slackline_link::{Ends, EndsError, Weather, carry};

/// Carries so many MiB over QUIC from one end of a link to another whose devices take `mtu` bytes; what the bench says of the first way, which is
/// one stream. None where there are no namespaces.
fn over(name: &str, mtu: u16, weather: Weather, mib: u32) -> Option<serde_json::Value> {
    let (ends, devices) = match Ends::make(2, mtu) {
        Ok(made) => made,
        Err(EndsError::NotHere(reason)) => {
            println!("skipped: {name}: {reason}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let _counts = carry(devices, weather, 1).unwrap();
    let (server, worker, address) = (ends.prefix(0), ends.prefix(1), ends.address(0).to_string());
    let rounds = mib.to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_loopback"))
        .args(["--raw", "--bare", "--json", "--repeats", "1", "--mib", "1", "--rounds", &rounds])
        .args(["--server-via", &server, "--worker-via", &worker, "--bind", &address])
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    Some(rows[0].clone())
}

#[test]
fn the_datagram_follows_the_device() {
    for (mtu, datagram) in [(1500, 1452), (9000, 8952), (1400, 1352)] {
        let Some(row) = over("the_datagram_follows_the_device", mtu, Weather::default(), 8) else { return };
        let found = row["datagram_bytes"].as_u64().unwrap();
        // The search takes steps that halve, and one whose probe is lost by chance is the last: it ends a little below.
        assert!(found <= datagram && 20 * found >= 19 * datagram, "{mtu}: {found}");
    }
}

#[test]
fn a_path_that_takes_less_than_its_devices_is_used_with_what_it_takes() {
    let weather = Weather { largest: Some(1500), ..Weather::default() };
    let name = "a_path_that_takes_less_than_its_devices_is_used_with_what_it_takes";
    let Some(row) = over(name, 9000, weather, 8) else { return };
    let found = row["datagram_bytes"].as_u64().unwrap();
    assert!((1200..=1472).contains(&found), "{found}");
}

// CUBIC and TCP come to 1 to 2 Mbit/s here, on whatever link.
#[test]
fn a_long_way_that_loses_packets_is_used() {
    for (loss, mib) in [(0.03, 16), (0.1, 8)] {
        let weather = Weather {
            rate: Some(100e6 / 8.0),
            delay: Duration::from_millis(50),
            loss,
            queue: Duration::from_millis(100),
            largest: None,
        };
        let Some(row) = over("a_long_way_that_loses_packets_is_used", 1500, weather, mib) else { return };
        let speed = row["gigabits_per_s"]["median"].as_f64().unwrap() * 1e3;
        assert!(speed > 10.0, "{speed} Mbit/s at a loss of {loss}");
    }
}
