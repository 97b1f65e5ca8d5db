//! A header that is accepted is sound, whatever its bytes went through.

use proptest::prelude::*;

use super::golden;
use super::samples::header;
use crate::ids::{KeyRange, ShardId};
use crate::limits::{STRIPE_COUNT_MAX, VALUE_COUNT_MAX};
use crate::wire::*;

const KINDS: [TransferKind; 6] = [
    TransferKind::Push,
    TransferKind::Initial,
    TransferKind::Values,
    TransferKind::Part,
    TransferKind::State,
    TransferKind::Probe,
];

fn array(bytes: &[u8]) -> [u8; HEADER_BYTES] {
    bytes.try_into().unwrap()
}

/// No overflow, the stripe within the payload, the keys within the largest model, and a word for each of them.
fn is_sound(header: &TransferHeader) -> bool {
    let ends =
        (header.keys.start.checked_add(header.keys.len), header.stripe.start.checked_add(header.stripe.len));
    let (Some(keys_end), Some(stripe_end)) = ends else { return false };
    keys_end <= VALUE_COUNT_MAX
        && header.words == header.keys.len
        && stripe_end <= header.words
        && (1..=STRIPE_COUNT_MAX).contains(&header.stripe_count)
        && header.stripe.len.checked_mul(4) == Some(header.stripe_bytes())
}

#[test]
fn a_header_of_every_kind_has_its_golden_bytes() {
    for (what, header, hex) in golden::headers() {
        let bytes = array(&golden::bytes(hex));
        assert_eq!(header.to_bytes(), bytes, "{what}");
        assert_eq!(TransferHeader::from_bytes(&bytes), Ok(header), "{what}");
    }
}

#[test]
fn a_flipped_bit_is_refused_or_leaves_a_sound_header() {
    for kind in KINDS {
        let bytes = header(kind).to_bytes();
        for bit in 0..8 * HEADER_BYTES {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            match TransferHeader::from_bytes(&flipped) {
                Ok(other) => {
                    assert!(is_sound(&other), "bit {bit}: {other:?}");
                    assert_eq!(other.to_bytes(), flipped, "bit {bit} was read over");
                }
                Err(WireError::NotATransfer) => assert!(bit < 4 * 8),
                Err(WireError::Protocol { .. }) => assert!((4 * 8..6 * 8).contains(&bit)),
                Err(error) => assert!(matches!(error, WireError::Inconsistent { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn the_field_that_is_wrong_is_named() {
    let refused = |at: usize, field: &[u8]| {
        let mut bytes = header(TransferKind::Push).to_bytes();
        bytes[at..at + field.len()].copy_from_slice(field);
        TransferHeader::from_bytes(&bytes)
    };
    let inconsistent = |what| Err(WireError::Inconsistent { what });
    assert_eq!(refused(0, b"HTTP"), Err(WireError::NotATransfer));
    assert_eq!(refused(4, &[2, 1]), Err(WireError::Protocol { theirs: 258 }));
    assert_eq!(refused(6, &[0]), inconsistent("kind"));
    assert_eq!(refused(6, &[7]), inconsistent("kind"));
    assert_eq!(refused(7, &[0]), inconsistent("encoding"));
    assert_eq!(refused(32, &[1]), inconsistent("words"));
    assert_eq!(refused(76, &0_u32.to_le_bytes()), inconsistent("stripe count"));
    assert_eq!(refused(76, &(STRIPE_COUNT_MAX + 1).to_le_bytes()), inconsistent("stripe count"));
    assert_eq!(refused(80, &u64::MAX.to_le_bytes()), inconsistent("keys"));
    assert_eq!(refused(88, &VALUE_COUNT_MAX.to_le_bytes()), inconsistent("keys"));
    assert_eq!(refused(96, &31_u64.to_le_bytes()), inconsistent("stripe"));
    assert_eq!(refused(104, &41_u64.to_le_bytes()), inconsistent("stripe"));
    assert_eq!(refused(104, &40_u64.to_le_bytes()).unwrap().stripe, Stripe::new(10, 40));
}

#[test]
fn a_stripe_whose_end_overflows_is_refused() {
    let mut bytes = header(TransferKind::Push).to_bytes();
    bytes[96..104].copy_from_slice(&(1_u64 << 63).to_le_bytes());
    bytes[104..112].copy_from_slice(&(1_u64 << 63).to_le_bytes());
    assert_eq!(TransferHeader::from_bytes(&bytes), Err(WireError::Inconsistent { what: "stripe" }));
}

/// Numbers where ranges go wrong.
fn edge() -> impl Strategy<Value = u64> {
    let near = |middle: u64| (0..5_u64).prop_map(move |step| middle.wrapping_add(step).wrapping_sub(2));
    prop_oneof![0..200_u64, near(VALUE_COUNT_MAX), near(1 << 63), near(0), any::<u64>()]
}

proptest! {
    #[test]
    fn an_accepted_header_is_sound(
        kind in prop::sample::select(KINDS.to_vec()), count in any::<u32>(), ranges in [edge(), edge(), edge(), edge()]
    ) {
        let sent = TransferHeader {
            stripe_count: count % (STRIPE_COUNT_MAX + 3),
            keys: KeyRange::new(ranges[0], ranges[1]),
            words: ranges[1],
            stripe: Stripe::new(ranges[2], ranges[3]),
            ..header(kind)
        };
        let read = TransferHeader::from_bytes(&sent.to_bytes());
        // The length of an unsound range need not fit; `is_sound` looks at it last.
        prop_assert_eq!(read.is_ok(), is_sound(&sent), "{:?}", sent);
        if let Ok(read) = read {
            prop_assert_eq!(read, sent);
        }
    }

    #[test]
    fn random_bytes_are_no_transfer(bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES)) {
        prop_assert_eq!(TransferHeader::from_bytes(&array(&bytes)), Err(WireError::NotATransfer));
    }

    #[test]
    fn stripes_cover_the_payload_in_order(
        start in 0..1000_u64, len in prop_oneof![0..1000_u64, 0..VALUE_COUNT_MAX - 1000],
        least in prop_oneof![0..100_u64, any::<u64>()], most in prop_oneof![0..100_u32, any::<u32>()],
    ) {
        let keys = KeyRange::new(start, len);
        let stripes = stripes(len, least, most);
        prop_assert!(!stripes.is_empty() && stripes.len() <= STRIPE_COUNT_MAX.min(most.max(1)) as usize);
        let mut next = 0;
        for stripe in &stripes {
            prop_assert_eq!(stripe.start, next);
            prop_assert!(stripes.len() == 1 || stripe.len >= least.max(1));
            next = stripe.end();
            // What a sender cuts, a receiver accepts.
            let plain = TransferHeader::plain(TransferKind::Values, ShardId(1), keys);
            let sent = TransferHeader { stripe_count: stripes.len() as u32, ..plain };
            let sent = sent.with_stripe(*stripe);
            prop_assert_eq!(TransferHeader::from_bytes(&sent.to_bytes()), Ok(sent));
        }
        prop_assert_eq!(next, len);
        let longest = stripes.iter().map(|stripe| stripe.len).max().unwrap();
        prop_assert!(stripes.iter().all(|stripe| longest - stripe.len <= 1), "{:?}", stripes);
    }
}
