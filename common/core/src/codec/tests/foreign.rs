//! Payloads of others: refused, or read without a fault.

use super::*;

/// Takes words as any payload; what is taken is read in every way.
fn take(encoding: Encoding, keys: usize, words: Vec<f32>) -> bool {
    let Ok(payload) = Payload::new(encoding, keys, words) else { return false };
    let values = decoded(&payload);
    assert_eq!(values.len(), keys);
    let is_bad = values.iter().position(|value| !value.is_finite());
    assert_eq!(payload.first_not_finite(), is_bad, "{encoding}");
    let (mut reader, mut at, mut scratch) = (payload.reader(), 0, [0.0; 700]);
    while at < keys {
        reader.skip(3);
        at = (at + 3).min(keys);
        let next = reader.next(699, &mut scratch);
        assert_eq!(bits(next), bits(&values[at..at + next.len()]));
        at += next.len();
    }
    let mut encoder = encoder(CodecKind::F16, true, keys);
    encoder.take_back(&payload);
    assert!(encoder.kept().iter().all(|kept| kept.is_finite()));
    true
}

fn encodings() -> impl Strategy<Value = Encoding> {
    prop::sample::select(Encoding::ALL.to_vec())
}

/// Words that are small numbers more often than not, as heads are.
fn word() -> impl Strategy<Value = f32> {
    prop_oneof![3 => 0_u32..40, 1 => any::<u32>(), 1 => any::<f32>().prop_map(f32::to_bits)]
        .prop_map(f32::from_bits)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_words_are_refused_or_read(encoding in encodings(), keys in 0_usize..3000, words in prop::collection::vec(word(), 0..300)) {
        take(encoding, keys, words);
    }

    #[test]
    fn no_number_of_keys_makes_a_fault(encoding in encodings(), keys in any::<u64>(), words in prop::collection::vec(word(), 0..8)) {
        // Far more than there are words for: refused, or nothing that would be made has its size.
        if keys > 1 << 16 {
            let _ = Payload::new(encoding, keys as usize, words);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_payload_that_was_damaged_is_refused_or_read(
        kind in prop::sample::select(kinds()),
        keys in 1_usize..2500,
        damage in prop::collection::vec((any::<prop::sample::Index>(), word()), 1..4),
        cut in 0_usize..3,
    ) {
        let gradient: Vec<f32> = normal(1, keys).iter().enumerate().map(|(key, value)| if key % 60 < 40 { 0.0 } else { *value }).collect();
        let payload = encoder(kind, true, keys).encode(&gradient, None, Vec::new());
        let mut words = payload.words().to_vec();
        let len = words.len();
        for (place, word) in damage {
            // The head is hit as often as all the rest.
            words[place.index(len).min(place.index(24))] = word;
        }
        words.truncate(len - cut.min(len));
        take(payload.encoding(), keys, words);
    }
}

#[test]
fn what_is_wrong_is_named() {
    let words = |bits: &[u32]| bits.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>();
    let fault = |encoding, keys, bits: &[u32]| match Payload::new(encoding, keys, words(bits)) {
        Ok(_) => "taken",
        Err(CodecError::Length { .. }) => "length",
        Err(CodecError::Unsound { what, .. }) => what,
    };
    let one = 1.0_f32.to_bits();
    assert_eq!(fault(Encoding::F32, 3, &[0; 2]), "length");
    assert_eq!(fault(Encoding::F16, 3, &[0; 3]), "length");
    assert_eq!(fault(Encoding::F16, 3, &[0, 1 << 16]), "its padding is not zero");
    assert_eq!(fault(Encoding::F16, 3, &[0, 0x3c00]), "taken");
    assert_eq!(fault(Encoding::Int8, 64, &[]), "its first word says no form");
    assert_eq!(fault(Encoding::Int8, 64, &[64; 3]), "length");
    for block in [15, 65_537] {
        assert_eq!(fault(Encoding::Int8, 64, &[block; 18]), "its first word says no form");
    }
    let int8 = |step: f32| [&[64, step.to_bits()][..], &[0; 16]].concat();
    assert_eq!(fault(Encoding::Int8, 64, &int8(1.0)), "taken");
    for step in [-1.0, f32::NAN, f32::INFINITY, 1e37] {
        assert_eq!(fault(Encoding::Int8, 64, &int8(step)), "a step is not a small enough number");
    }
    // Blocks that do not fill their words are padded, each of them.
    let odd = |first: u32, last: u32| [&[17, one, 0, 0, 0, 0, first][..], &[one, 0, 0, 0, 0, last]].concat();
    assert_eq!(fault(Encoding::Int8, 34, &odd(0xff, 0xff)), "taken");
    assert_eq!(fault(Encoding::Int8, 34, &odd(0x100, 0)), "its padding is not zero");
    assert_eq!(fault(Encoding::Int8, 34, &odd(0, 0x100)), "its padding is not zero");
    let one_bit = |mean: f32, signs: u32| [mean.to_bits() & 0xffff_0000, signs, signs];
    assert_eq!(fault(Encoding::OneBit, 63, &one_bit(1.0, 0xffff)), "taken");
    assert_eq!(fault(Encoding::OneBit, 63, &one_bit(1.0, u32::MAX)), "its padding is not zero");
    assert_eq!(fault(Encoding::OneBit, 63, &one_bit(f32::NAN, 0)), "a mean is not finite");
    assert_eq!(fault(Encoding::Qsgd, 40, &[3, one, 0, 0, 0, 0, 0]), "its first word says no form");
    assert_eq!(fault(Encoding::Qsgd, 39, &[4, one, 0, 0, 0, 0, 1 << 28]), "its padding is not zero");
    assert_eq!(fault(Encoding::Qsgd, 40, &[4, one, 0, 0, 0, 0, 1 << 28]), "taken");
    assert_eq!(fault(Encoding::Sparse, 40, &[1, 0, 39, one]), "taken");
    assert_eq!(fault(Encoding::Sparse, 40, &[1, 0, 40, one]), "its indices do not rise within its keys");
    assert_eq!(
        fault(Encoding::Sparse, 40, &[2, 0, 5, 5, one, one]),
        "its indices do not rise within its keys"
    );
    assert_eq!(fault(Encoding::Sparse, 40, &[9, 0, 5, one]), "its head does not fit its length");
    assert_eq!(fault(Encoding::Sparse, 40, &[1, 3, 5, one]), "its head does not fit its length");
    assert_eq!(fault(Encoding::Sparse, 40, &[1, 1, 0, 1 << 7, one]), "taken");
    assert_eq!(fault(Encoding::Sparse, 40, &[1, 1, 0, 1 << 8, one]), "it has not as many indices as values");
    assert_eq!(fault(Encoding::Sparse, 40, &[1, 2, 39, one]), "taken");
    assert_eq!(fault(Encoding::Sparse, 40, &[1, 2, 40, one]), "its indices do not rise within its keys");
    assert_eq!(fault(Encoding::Sparse, 40, &[1, 2, 0xffff_ffff, one]), "a gap does not end");
    assert_eq!(fault(Encoding::Sparse, 40, &[1, 2, 0x0100, one]), "its padding is not zero");
    assert_eq!(fault(Encoding::RandomK, 40, &[1]), "it has more values than keys");
    assert_eq!(fault(Encoding::RandomK, 40, &[1, 2, one]), "taken");
    assert_eq!(fault(Encoding::LowRank, 40, &[1, 4, 10]), "its table is not whole");
    assert_eq!(fault(Encoding::LowRank, 40, &[1, 4, 9, 1, one]), "its pieces do not make up its keys");
    assert_eq!(fault(Encoding::LowRank, 40, &[2, 4, 10, 1, 0, 7, 1]), "its pieces do not make up its keys");
    assert_eq!(
        fault(Encoding::LowRank, 40, &[1, 4, 10, 1, one]),
        "its pieces have not the data that its table says"
    );
    assert_eq!(fault(Encoding::LowRank, 40, &[&[1, 4, 10, 1][..], &[one; 14]].concat()), "taken");
    assert_eq!(fault(Encoding::Rows, 40, &[1, 4, 10, 1]), "it has not the rows that its table says");
    assert_eq!(
        fault(Encoding::Rows, 40, &[&[1, 4, 10, 1, 4][..], &[one; 10]].concat()),
        "its rows do not rise within their matrix"
    );
    assert_eq!(
        fault(Encoding::Rows, 40, &[&[1, 4, 10, 1, 3][..], &[one; 9]].concat()),
        "its rows have not the values that its table says"
    );
    assert_eq!(fault(Encoding::Rows, 40, &[&[1, 4, 10, 1, 3][..], &[one; 10]].concat()), "taken");
}

#[test]
fn the_first_bad_key_is_found_in_every_encoding() {
    let nan = f32::NAN.to_bits();
    let words = |bits: &[u32]| bits.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>();
    let bad =
        |encoding, keys, bits: &[u32]| Payload::new(encoding, keys, words(bits)).unwrap().first_not_finite();
    assert_eq!(bad(Encoding::F32, 3, &[0, 0, nan]), Some(2));
    assert_eq!(bad(Encoding::F16, 4, &[0, 0x7c00 << 16]), Some(3));
    assert_eq!(bad(Encoding::Bf16, 4, &[0, 0xff80]), Some(2));
    assert_eq!(bad(Encoding::Sparse, 40, &[2, 0, 7, 9, 0, nan]), Some(9));
    let drawn = Payload::new(Encoding::RandomK, 40, words(&[1, 2, 0, 0, nan, 0])).unwrap();
    assert!((20..30).contains(&drawn.first_not_finite().unwrap()));
    assert_eq!(bad(Encoding::Rows, 12, &[1, 4, 3, 1, 2, 0, nan, 0]), Some(7));
    // Factors that are finite can have products that are not.
    let huge = 1e30_f32.to_bits();
    let factors = [&[1, 4, 4, 1][..], &[0, 0, huge, 0], &[1, 1, 1, huge]].concat();
    assert_eq!(bad(Encoding::LowRank, 16, &factors), Some(11));
}
