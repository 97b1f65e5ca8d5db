//! What travels is pinned byte by byte, comes back as it was sent, and cannot hurt its reader.

mod cluster;
mod golden;
mod groups;
mod header;
mod limits;
mod samples;
mod strategies;

use std::collections::BTreeSet;
use std::fmt::Debug;

use proptest::prelude::*;

use super::*;
use golden::Golden;

fn is_pinned<M: Encode + Decode<()> + Debug + PartialEq>((what, message, hex): &Golden<M>) {
    let bytes = golden::bytes(hex);
    assert_eq!(encode(message), Ok(bytes.clone()), "{what}");
    assert_eq!(decode::<M>(&bytes).as_ref(), Ok(message), "{what}");
}

#[test]
fn every_message_has_its_golden_bytes() {
    golden::to_server().iter().for_each(is_pinned);
    golden::to_peer().iter().for_each(is_pinned);
    groups::between_workers().iter().for_each(is_pinned);
}

/// Matches without a wildcard, so that a new variant does not compile before it is pinned.
const fn server_variant(message: &ToServer) -> u8 {
    match message {
        ToServer::Join(_) => 0,
        ToServer::Register(_) => 1,
        ToServer::Renew => 2,
        ToServer::Enter { .. } => 3,
        ToServer::Finish => 4,
        ToServer::Ask(_) => 5,
        ToServer::Pull(_) => 6,
        ToServer::PushNothing { .. } => 7,
        ToServer::Evaluated(_) => 8,
        ToServer::Leave(_) => 9,
        ToServer::Status => 10,
        ToServer::Stop { .. } => 11,
        ToServer::Ready(_) => 12,
        ToServer::Trouble(_) => 13,
        ToServer::Stepped(_) => 14,
        ToServer::Commit { .. } => 15,
        ToServer::Cluster(_) => 16,
    }
}

const fn peer_variant(message: &ToPeer) -> u8 {
    match message {
        ToPeer::Welcome { .. } => 0,
        ToPeer::Joined { .. } => 1,
        ToPeer::Registered { .. } => 2,
        ToPeer::Work(_) => 3,
        ToPeer::Pushed(_) => 4,
        ToPeer::Status(_) => 5,
        ToPeer::Refused(_) => 6,
        ToPeer::Goodbye => 7,
        ToPeer::Renewed => 8,
        ToPeer::Overtaken { .. } => 9,
        ToPeer::Group(_) => 10,
        ToPeer::Regroup { .. } => 11,
        ToPeer::Staged { .. } => 12,
        ToPeer::Placed(_) => 13,
        ToPeer::Cluster(_) => 14,
    }
}

#[test]
fn every_variant_is_among_the_golden_ones() {
    let server: BTreeSet<u8> =
        golden::to_server().iter().map(|(_, message, _)| server_variant(message)).collect();
    assert_eq!(server, (0..17).collect());
    let peer: BTreeSet<u8> = golden::to_peer().iter().map(|(_, message, _)| peer_variant(message)).collect();
    assert_eq!(peer, (0..15).collect());
}

#[test]
fn a_variant_that_does_not_exist_is_malformed() {
    assert_eq!(decode::<ToServer>(&17_u32.to_le_bytes()), Err(WireError::Malformed));
    assert_eq!(decode::<ToPeer>(&15_u32.to_le_bytes()), Err(WireError::Malformed));
    // A bool and an option of 2, a text that is not UTF-8.
    assert_eq!(decode::<ToPeer>(&golden::bytes("02000000 02")), Err(WireError::Malformed));
    assert_eq!(decode::<ToServer>(&golden::bytes("09000000 00000000 02")), Err(WireError::Malformed));
    let not_utf8 = golden::bytes("0b000000 0100000000000000 ff");
    assert_eq!(decode::<ToServer>(&not_utf8), Err(WireError::Malformed));
}

fn stands_alone<M: Decode<()> + Debug + PartialEq>((what, _, hex): &Golden<M>) {
    let bytes = golden::bytes(hex);
    for end in 0..bytes.len() {
        assert_eq!(decode::<M>(&bytes[..end]), Err(WireError::Malformed), "{what}, cut to {end}");
    }
    for extra in [1, 2, 100] {
        let longer = [&bytes[..], &vec![0; extra]].concat();
        assert_eq!(decode::<M>(&longer), Err(WireError::Trailing { extra }), "{what}");
    }
}

#[test]
fn a_message_that_is_cut_is_malformed_and_one_with_more_behind_it_is_refused() {
    golden::to_server().iter().for_each(stands_alone);
    golden::to_peer().iter().for_each(stands_alone);
    groups::between_workers().iter().for_each(stands_alone);
}

#[test]
fn a_frame_is_as_long_as_its_prefix_says_and_never_over_the_limit() {
    for length in [0, 1, 255, 256, CONTROL_BYTES_MAX] {
        assert_eq!(frame_length(frame_prefix(&vec![0; length])), Ok(length));
    }
    for claimed in [CONTROL_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX] {
        let expected = Err(WireError::TooLong { claimed: u64::from(claimed) });
        assert_eq!(frame_length(claimed.to_le_bytes()), expected);
    }
}

#[test]
fn bytes_over_the_limit_are_no_message_in_either_direction() {
    let claimed = CONTROL_BYTES_MAX as u64 + 1;
    let bytes = vec![0; CONTROL_BYTES_MAX + 1];
    assert_eq!(decode::<ToServer>(&bytes), Err(WireError::TooLong { claimed }));
    let crowded =
        Status { members: vec![samples::member(1, ""); 3000], ..samples::bare_status(Phase::Running) };
    assert!(matches!(encode(&crowded), Err(WireError::TooLong { claimed }) if claimed > 3000 * 29));
}

#[test]
fn a_loss_that_is_not_a_number_travels() {
    let report = Some(Report { loss_sum: f64::NAN, ..Report::default() });
    let message = ToServer::Evaluated(Evaluated { at_samples: 1, loss: f64::NAN, accuracy: 0.0, report });
    let bytes = encode(&message).unwrap();
    let ToServer::Evaluated(Evaluated { loss, report: Some(report), .. }) = decode(&bytes).unwrap() else {
        panic!("another message came out");
    };
    assert!(loss.is_nan() && report.loss_sum.is_nan());
}

proptest! {
    #[test]
    fn a_message_to_a_server_comes_back_as_it_was(message in strategies::to_server()) {
        let bytes = encode(&message).unwrap();
        prop_assert_eq!(decode::<ToServer>(&bytes), Ok(message));
    }

    #[test]
    fn a_message_between_workers_comes_back_as_it_was(message in groups::any_between_workers()) {
        let bytes = encode(&message).unwrap();
        prop_assert_eq!(decode::<PeerMessage>(&bytes), Ok(message));
    }

    #[test]
    fn a_message_to_a_peer_comes_back_as_it_was(message in strategies::to_peer()) {
        let bytes = encode(&message).unwrap();
        prop_assert_eq!(decode::<ToPeer>(&bytes), Ok(message));
    }
}

/// All counts of a report; a new field must be added here, or this does not compile.
fn counts(report: &Report) -> Vec<u64> {
    let Report {
        iterations,
        samples,
        loss_sum: _,
        times,
        bytes_pushed,
        bytes_pulled,
        wire_sent,
        wire_received,
        pushes_sent,
        pushes_applied,
        pushes_duplicate,
        pushes_dropped,
        pushes_down_weighted,
        dropped_late,
        dropped_stale,
        dropped_not_finite,
        dropped_abandoned,
        dropped_guarded,
        pulls_served,
        pulls_held,
        clock_lead,
        version_staleness,
    } = report;
    let Times { compute_us, wait_for_clock_us, push_us, busy_us, pull_us, data_us, evaluate_us, total_us } =
        *times;
    let plain = [
        *iterations,
        *samples,
        *bytes_pushed,
        *bytes_pulled,
        *wire_sent,
        *wire_received,
        *pushes_sent,
        *pushes_applied,
        *pushes_duplicate,
        *pushes_dropped,
        *pushes_down_weighted,
        *dropped_late,
        *dropped_stale,
        *dropped_not_finite,
        *dropped_abandoned,
        *dropped_guarded,
        *pulls_served,
        *pulls_held,
        compute_us,
        wait_for_clock_us,
        push_us,
        busy_us,
        pull_us,
        data_us,
        evaluate_us,
        total_us,
        clock_lead.count(),
        version_staleness.count(),
    ];
    plain.to_vec()
}

#[test]
fn merged_reports_add_every_count_and_saturate() {
    let report = samples::report();
    let mut sum = report.clone();
    sum.merge(&report);
    let doubled: Vec<u64> = counts(&report).iter().map(|count| 2 * count).collect();
    assert!(counts(&report).iter().all(|count| *count > 0), "a count of nothing proves nothing");
    assert_eq!(counts(&sum), doubled);
    sum.merge(&Report { samples: u64::MAX, ..Report::default() });
    assert_eq!(sum.samples, u64::MAX);
}
