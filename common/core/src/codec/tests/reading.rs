//! A payload is the same in whatever blocks it is read.

use super::*;

/// A gradient of which rows, values and halves are left out now and then.
fn gradient(keys: usize) -> Vec<f32> {
    let values = normal(8, keys);
    (0..keys).map(|key| if key / 20 % 3 == 0 { 0.0 } else { values[key] }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn blocks_of_any_length_give_the_whole(
        keys in 1_usize..5000,
        takes in prop::collection::vec((1_usize..1700, any::<bool>()), 1..40),
    ) {
        let gradient = gradient(keys);
        for kind in kinds() {
            let payload = encoder(kind, true, keys).encode(&gradient, Some(&gradient), Vec::new());
            let whole = decoded(&payload);
            let mut reader = payload.reader();
            let mut scratch = vec![0.0; 1700];
            let mut at = 0;
            for (len, is_skipped) in takes.iter().cycle() {
                let end = (at + len).min(keys);
                if *is_skipped {
                    reader.skip(*len);
                } else {
                    prop_assert_eq!(bits(reader.next(*len, &mut scratch)), bits(&whole[at..end]), "{:?} at {}", kind, at);
                }
                at = end;
                if at == keys {
                    break;
                }
            }
            prop_assert!(reader.next(10, &mut scratch).is_empty());
            let mut part = vec![0.0; keys / 2];
            payload.decode_into(&mut part);
            prop_assert_eq!(bits(&part), bits(&whole[..keys / 2]));
            let mut more = vec![3.0; keys + 2];
            payload.decode_into(&mut more);
            prop_assert_eq!(bits(&more[..keys]), bits(&whole));
            prop_assert_eq!(&more[keys..], [3.0, 3.0]);
        }
    }
}

#[test]
fn plain_values_are_taken_without_a_copy() {
    let payload = Payload::plain((0_u8..50).map(f32::from).collect());
    let mut scratch = [0.0; 20];
    let values = payload.values().unwrap();
    let mut reader = payload.reader();
    reader.skip(5);
    assert!(std::ptr::eq(reader.next(20, &mut scratch), &raw const values[5..25]));
    let mut source = PlainSource::from(values);
    assert!(std::ptr::eq(source.next(20, &mut scratch), &raw const values[..20]));
    source.skip(1);
    assert_eq!(source.next(20, &mut scratch)[0], 21.0);
    assert_eq!(source.next(20, &mut scratch).len(), 9);
    assert!(source.next(20, &mut scratch).is_empty());
}

#[test]
fn a_buffer_that_is_used_again_changes_nothing() {
    let keys = 3001;
    let gradient = gradient(keys);
    for kind in kinds() {
        let clean = encoder(kind, true, keys).encode(&gradient, None, Vec::new());
        let dirty = encoder(kind, true, keys).encode(&gradient, None, vec![f32::NAN; 2 * keys]);
        assert_eq!(clean.encoding(), dirty.encoding());
        assert_eq!(clean.bytes(), dirty.bytes(), "{kind:?}");
    }
}

#[test]
fn an_encoder_is_a_function_of_its_seed_and_history() {
    let keys = 3000;
    let spec = |kind| CodecSpec { kind, error_feedback: false };
    let payloads = |kind, seed| {
        let mut encoder = Encoder::new(spec(kind), &layout(keys), KeyRange::new(0, keys as u64), seed);
        let encode = |at| encoder.encode(&normal(at, keys), None, Vec::new()).bytes().to_vec();
        (0..3).map(encode).collect::<Vec<_>>()
    };
    for kind in kinds() {
        assert_eq!(payloads(kind, 1), payloads(kind, 1), "{kind:?}");
        let is_random = matches!(
            kind,
            CodecKind::Bf16 { stochastic: true }
                | CodecKind::RandomK { .. }
                | CodecKind::Qsgd { .. }
                | CodecKind::PowerSgd { .. }
        );
        assert_eq!(payloads(kind, 1) != payloads(kind, 2), is_random, "{kind:?}");
    }
}

#[test]
fn a_payload_is_never_longer_than_plain_values() {
    for kind in kinds() {
        for keys in (0..200).chain([1023, 1024, 1025, 4096]) {
            let payload = encoder(kind, true, keys).encode(&gradient(keys), None, Vec::new());
            assert!(payload.words().len() <= keys, "{kind:?} {keys}");
            assert_eq!(payload.keys(), keys);
            assert_eq!(bits(&decoded(&received(&payload))), bits(&decoded(&payload)));
        }
    }
    for encoding in Encoding::ALL {
        assert_eq!(Encoding::from_wire(encoding.to_wire()), Some(encoding));
        assert!(encoding.bytes_max(1 << 40) <= 1 << 42);
        assert_eq!(encoding.bytes_max(u64::MAX) % 4, 3 & encoding.bytes_max(u64::MAX));
    }
    assert_eq!([0, 12, 255].map(Encoding::from_wire), [None; 3]);
}
