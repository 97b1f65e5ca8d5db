//! The sums in [`crate::limits`] against encoded messages, and texts at their limit.

use std::time::Duration;

use proptest::prelude::*;

use super::{samples, strategies};
use crate::collective::Topology;
use crate::consistency::HoldReason;
use crate::histogram::Histogram;
use crate::ids::{
    BatchIndex, Clock, Generation, Incarnation, KeyRange, ServerId, ShardId, Version, WorkerId,
};
use crate::limits::*;
use crate::wire::*;

/// One value in every bucket.
fn full_histogram() -> Histogram {
    let small = 0..256;
    let large =
        (8..64).flat_map(|exponent| (0..16).map(move |part| (1 << exponent) + (part << (exponent - 4))));
    samples::histogram(&small.chain(large).collect::<Vec<u64>>())
}

fn full_report() -> Report {
    Report { clock_lead: full_histogram(), version_staleness: full_histogram(), ..samples::report() }
}

fn longest_text() -> Text {
    Text::new("x".repeat(TEXT_BYTES_MAX))
}

#[test]
fn a_histogram_with_all_its_buckets_has_as_many_rows_as_the_limit_says() {
    let bytes = encode(&full_histogram()).unwrap();
    assert_eq!(bytes[..8], (HISTOGRAM_BUCKETS as u64).to_le_bytes());
    assert_eq!(bytes.len(), 3 * 8 + 12 * HISTOGRAM_BUCKETS);
}

#[test]
fn a_full_report_fits_into_every_message_that_carries_one() {
    let report = full_report();
    assert_eq!(encode(&report).unwrap().len(), REPORT_BYTES_MAX);
    let carriers = [
        ToServer::Leave(Leave { outcome: Outcome::Failed(longest_text()), report: Some(report.clone()) }),
        ToServer::Evaluated(Evaluated {
            at_samples: u64::MAX,
            loss: 1.0,
            accuracy: 1.0,
            report: Some(report.clone()),
        }),
        ToServer::Stepped(Stepped {
            generation: Generation(1),
            clock: Clock(1),
            units: 1,
            report: Some(report.clone()),
        }),
        ToServer::Ask(Ask {
            clock: Clock(1),
            results: vec![
                BatchResult {
                    number: u64::MAX,
                    batch: BatchIndex(u64::MAX),
                    clock: Clock(u64::MAX),
                    fate: Fate::Done { compute_us: u64::MAX },
                };
                ASK_RESULTS_MAX
            ],
            report: Some(report),
        }),
    ];
    for message in carriers {
        assert_eq!(decode(&encode(&message).unwrap()), Ok(message));
    }
}

#[test]
fn a_full_status_fits_into_a_message() {
    let reason =
        HoldReason::Clock { slowest: WorkerId(u32::MAX), at: Clock(u64::MAX), needs: Clock(u64::MAX) };
    let (worker, shard, clock) = (WorkerId(u32::MAX), ShardId(u32::MAX), Clock(u64::MAX));
    let row = ShardRow {
        shard,
        keys: KeyRange::new(1, 2),
        version: Version(u64::MAX),
        minimum: Some(clock),
        has_values: true,
    };
    let server = ServerRow {
        server: ServerId(u32::MAX),
        address: Text::new("a".repeat(ADDRESS_BYTES_MAX)),
        boot: Some(u64::MAX),
        heard_ms: Some(u64::MAX),
        is_alive: true,
        primaries: u32::MAX,
        backups: u32::MAX,
        trouble: cut("t".repeat(TEXT_BYTES_MAX), TROUBLE_BYTES_MAX),
    };
    let place = PlaceRow {
        shard,
        generation: Generation(u64::MAX),
        primary: ServerId(u32::MAX),
        lack: Lack::Step { backup: ServerId(u32::MAX) },
        since_ms: u64::MAX,
    };
    let status = Status {
        progress: Some(Progress::default()),
        members: vec![samples::member(u32::MAX, &"a".repeat(ADDRESS_BYTES_MAX)); STATUS_ROWS_MAX],
        members_hidden: u32::MAX,
        held: vec![HeldRow { worker, shard, clock, since_ms: u64::MAX, reason }; STATUS_ROWS_MAX],
        shards: vec![row; STATUS_ROWS_MAX],
        servers: vec![server; SERVER_ROWS_MAX],
        places: vec![place; PLACE_ROWS_MAX],
        waits: vec![WaitRow::new(Duration::MAX, "w".repeat(2 * WAIT_BYTES_MAX)); WAIT_ROWS_MAX],
        ..samples::bare_status(Phase::Failed(longest_text()))
    };
    assert_eq!(encode(&status).unwrap().len(), STATUS_BYTES_MAX);
    let message = ToPeer::Status(Box::new(status));
    assert_eq!(decode(&encode(&message).unwrap()), Ok(message));
}

#[test]
fn the_largest_group_fits_into_a_message() {
    let member = GroupMember {
        worker: WorkerId(u32::MAX),
        incarnation: Incarnation(u64::MAX),
        address: Text::new("a".repeat(ADDRESS_BYTES_MAX)),
    };
    let message = ToPeer::Group(Group {
        run: u64::MAX,
        generation: Generation(1),
        topology: Topology::Torus { x: 1, y: 512 },
        members: vec![member; GROUP_COUNT_MAX as usize],
        clock: Clock(1),
        units: 1,
        source: Some(WorkerId(1)),
    });
    assert_eq!(decode(&encode(&message).unwrap()), Ok(message));
}

#[test]
fn the_longest_socket_address_fits_into_a_row() {
    let scope = std::net::SocketAddrV6::new(std::net::Ipv6Addr::from_bits(u128::MAX), u16::MAX, 0, u32::MAX);
    assert_eq!(scope.to_string().len(), 58);
    assert!(scope.to_string().len() <= ADDRESS_BYTES_MAX);
}

/// The bytes of a text behind their length.
fn content(text: &Text) -> String {
    String::from_utf8(encode(text).unwrap().split_off(8)).unwrap()
}

/// A request to stop whose reason was not made by [`Text::new`].
fn stop(reason: &str) -> Vec<u8> {
    [&11_u32.to_le_bytes()[..], &(reason.len() as u64).to_le_bytes(), reason.as_bytes()].concat()
}

fn reason_of(bytes: &[u8]) -> Text {
    match decode(bytes).unwrap() {
        ToServer::Stop { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_text_that_a_peer_made_too_long_is_bounded_by_its_message_and_cut_when_shown() {
    let longest = "\u{7}".repeat(CONTROL_BYTES_MAX - 12);
    assert_eq!(reason_of(&stop(&longest)).shown(), " ".repeat(TEXT_BYTES_MAX));
    let claimed = CONTROL_BYTES_MAX as u64 + 1;
    assert_eq!(decode::<ToServer>(&stop(&format!("{longest}x"))), Err(WireError::TooLong { claimed }));
}

#[test]
fn a_text_cannot_write_to_a_terminal_more_than_letters() {
    let text = reason_of(&stop("\u{1b}[2J\r\nroot:\u{9b}31m\u{7f}\0\t\u{e9}"));
    assert_eq!(text.shown(), " [2J  root: 31m   \u{e9}");
    assert_eq!(text.to_string(), text.shown());
}

proptest! {
    #[test]
    fn a_text_is_cut_at_a_border_of_characters(whole in strategies::string(1200)) {
        let kept = content(&Text::new(whole.clone()));
        prop_assert!(kept.len() <= TEXT_BYTES_MAX && whole.starts_with(&kept));
        match whole[kept.len()..].chars().next() {
            // Nothing is cut without need: the next character would have been too much.
            Some(next) => prop_assert!(kept.len() + next.len_utf8() > TEXT_BYTES_MAX),
            None => prop_assert_eq!(kept, whole),
        }
    }

    #[test]
    fn what_is_shown_has_no_control_characters(sent in strategies::string(1200)) {
        let shown = reason_of(&stop(&sent)).shown();
        prop_assert!(!shown.chars().any(char::is_control));
        prop_assert_eq!(shown.chars().count(), sent.chars().count().min(TEXT_BYTES_MAX));
    }
}
