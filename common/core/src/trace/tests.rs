//! The format, byte by byte, and that nothing written is read as something else.

use proptest::prelude::*;

use super::*;
use crate::consistency::Standing;
use crate::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, ServerId, ShardId, Version, WorkerId,
};

fn header() -> Header {
    Header {
        server: ServerId(1),
        shard: ShardId(3),
        keys: KeyRange::new(100, 50),
        key_count: 1000,
        servers: 2,
        shards: 4,
        workers: 5,
        config_hash: 0x0123_4567_89ab_cdef,
        began_unix_ns: 1_700_000_000_000_000_000,
        rule: Rule::Ssp { staleness: 2 },
        policy: "ssp(2)".to_owned(),
        prefetch: 1,
    }
}

fn record() -> Record {
    Record {
        worker: Some(WorkerId(7)),
        incarnation: Incarnation(8),
        clock: Clock(9),
        sequence: Sequence(10),
        version: Version(11),
        pulled: Version(12),
        minimum: Some(Clock(13)),
        reached: None,
        batch: BatchIndex(14),
        samples: 15,
        ..Record::new(
            5,
            Moment(6),
            What::Verdict {
                verdict: Verdict::Applied { staleness: 16, down_weighted: true },
                duplicate: false,
            },
        )
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_header_has_these_bytes() {
    let bytes = header().encode();
    let expected = [
        "534c4b5452414345", // SLKTRACE
        "01000000",         // format
        "00010000",         // bytes of the header
        "60000000",         // bytes of a record
        "01000000",         // server
        "03000000",         // shard
        "02000000",         // servers
        "04000000",         // shards
        "05000000",         // workers
        "6400000000000000", // first key
        "3200000000000000", // its keys
        "e803000000000000", // all keys
        "efcdab8967452301", // configuration
        "00002a36fe9c9717", // began
        "02000000",         // ssp
        "06000000",         // letters of its name
        "0200000000000000", // staleness
        "0000000000000000",
        "0000000000000000",
        "737370283229", // ssp(2)
    ];
    let ahead = "01000000"; // iterations that values may be pulled ahead, behind 64 bytes for the name
    let expected = [&expected.concat()[..], &"0".repeat(2 * (64 - 6)), ahead].concat();
    assert_eq!(hex(&bytes)[..expected.len()], expected);
    assert!(bytes[expected.len() / 2..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_record_has_these_bytes() {
    let expected = [
        "0a01",             // a verdict: applied
        "02",               // it weighed less
        "00",               // nothing
        "05000000",         // number
        "07000000",         // worker
        "0f000000",         // samples
        "0600000000000000", // at
        "0800000000000000", // incarnation
        "0900000000000000", // clock
        "0a00000000000000", // sequence
        "0b00000000000000", // version
        "0c00000000000000", // pulled
        "0d00000000000000", // minimum
        "ffffffffffffffff", // no clock reached
        "0e00000000000000", // batch
        "1000000000000000", // staleness
    ];
    assert_eq!(hex(&record().encode()), expected.concat());
}

#[test]
fn foreign_bytes_are_named() {
    let mut bytes = header().encode();
    bytes[8] = 2;
    assert_eq!(Header::decode(&bytes), Err(Damage::Format { found: 2 }));
    bytes[0] = b'X';
    assert_eq!(Header::decode(&bytes), Err(Damage::Magic));
    let mut bytes = record().encode();
    bytes[0] = 14;
    assert_eq!(Record::decode(&bytes), Err(Damage::Field { field: "the kind of the record", found: 14 }));
    let mut bytes = record().encode();
    bytes[2] = 4;
    assert_eq!(Record::decode(&bytes), Err(Damage::Field { field: "a field without a meaning", found: 4 }));
    let finish = Record::new(0, Moment(0), What::Finish);
    let mut bytes = finish.encode();
    bytes[RECORD_BYTES - 8] = 9;
    assert_eq!(Record::decode(&bytes), Err(Damage::Field { field: "a field without a meaning", found: 9 }));
}

#[test]
fn a_long_name_of_a_policy_is_cut_between_letters() {
    let long = Header { policy: format!("{}é", "x".repeat(63)), ..header() };
    let read = Header::decode(&long.encode()).unwrap();
    assert_eq!(read.policy, "x".repeat(63));
}

fn rules() -> impl Strategy<Value = Rule> {
    let count = || prop::option::of(0..u64::MAX - 1);
    prop_oneof![
        prop::sample::select(vec![Rule::Bsp, Rule::Asp, Rule::Other]),
        any::<u64>().prop_map(|staleness| Rule::Ssp { staleness }),
        any::<u64>().prop_map(|staleness| Rule::Essp { staleness }),
        any::<(u64, u64)>().prop_map(|(low, high)| Rule::Dssp { low, high }),
        any::<u64>().prop_map(|late| Rule::Backup { late }),
        (count(), any::<(u64, bool)>()).prop_map(|(count, (grace_ns, holds))| Rule::Quorum {
            count,
            grace_ns,
            holds
        }),
        count().prop_map(|count| Rule::Buffer { count }),
    ]
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    (0..13_u8, any::<(bool, u64)>()).prop_map(|(kind, (down_weighted, number))| match kind {
        0 => Verdict::Applied { staleness: number, down_weighted },
        1 => Verdict::Collected,
        2 => Verdict::Dropped(Dropped::LateClock { open: Clock(number) }),
        3 => Verdict::Dropped(Dropped::TooStale { staleness: number }),
        4 => Verdict::Dropped(Dropped::Other),
        5 => Verdict::Nothing,
        6 => Verdict::NotFinite { key: number },
        7 => Verdict::Fenced,
        8 => Verdict::OutOfWindow,
        9 => Verdict::WrongKeys,
        10 => Verdict::Gathered { staleness: number, down_weighted },
        11 => Verdict::Staged,
        _ => Verdict::Other,
    })
}

fn readings() -> impl Strategy<Value = Reading> {
    prop::sample::select(vec![Reading::Snapshot, Reading::Gated, Reading::Fresher])
}

fn events() -> impl Strategy<Value = What> {
    let fates = prop::sample::select(vec![PullFate::Served, PullFate::Held, PullFate::Ignored]);
    prop_oneof![
        prop::sample::select(vec![
            What::Enter(Standing::Active),
            What::Enter(Standing::Joining),
            What::Reenter,
            What::Finish,
            What::Remove,
            What::Start,
            What::Values,
            What::Full,
            What::End,
            What::Mean,
        ]),
        (readings(), fates, any::<u8>()).prop_map(|(reading, fate, ahead)| What::Pull {
            reading,
            fate,
            ahead
        }),
        (readings(), any::<u64>()).prop_map(|(reading, lead)| What::Serve { reading, lead }),
        any::<bool>().prop_map(|empty| What::Push { empty }),
        (verdicts(), any::<bool>()).prop_map(|(verdict, duplicate)| What::Verdict { verdict, duplicate }),
    ]
}

prop_compose! {
    fn records()(
        what in events(),
        worker in prop::option::of(0..u32::MAX),
        clocks in (prop::option::of(0..u64::MAX), prop::option::of(0..u64::MAX)),
        small in any::<(u32, u32)>(),
        large in any::<[u64; 7]>(),
    ) -> Record {
        Record {
            number: small.0,
            at: Moment(large[0]),
            what,
            worker: worker.map(WorkerId),
            incarnation: Incarnation(large[1]),
            clock: Clock(large[2]),
            sequence: Sequence(large[3]),
            version: Version(large[4]),
            pulled: Version(large[5]),
            minimum: clocks.0.map(Clock),
            reached: clocks.1.map(Clock),
            batch: BatchIndex(large[6]),
            samples: small.1,
        }
    }
}

proptest! {
    #[test]
    fn every_record_is_read_as_it_was_written(record in records()) {
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn every_header_is_read_as_it_was_written(
        rule in rules(),
        policy in "[ -~]{0,64}",
        small in any::<[u32; 6]>(),
        large in any::<[u64; 5]>(),
    ) {
        let header = Header {
            server: ServerId(small[0]),
            shard: ShardId(small[1]),
            keys: KeyRange { start: large[0], len: large[1] },
            key_count: large[4],
            servers: small[2],
            shards: small[3],
            workers: small[4],
            config_hash: large[2],
            began_unix_ns: large[3],
            rule,
            policy,
            prefetch: small[5],
        };
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    // Bytes that are taken for a record are those of exactly that record: no two mean the same.
    #[test]
    fn any_bytes_are_one_record_or_none(
        (kind, code, flags) in (0..15_u8, 0..14_u8, 0..5_u8),
        rest in prop::collection::vec(any::<u8>(), RECORD_BYTES - 3),
        zero in any::<bool>(),
    ) {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..3].copy_from_slice(&[kind, code, flags]);
        bytes[3..].copy_from_slice(&rest);
        if zero {
            bytes[3] = 0;
            bytes[RECORD_BYTES - 8..].fill(0);
        }
        if let Ok(record) = Record::decode(&bytes) {
            prop_assert_eq!(record.encode(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_one_header_or_none(kind in 0..12_u8, at in 0..HEADER_BYTES, byte in any::<u8>()) {
        let mut bytes = header().encode();
        bytes[80] = kind;
        bytes[at] = byte;
        // No panic, and a policy that is understood is written the same way again.
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
}
