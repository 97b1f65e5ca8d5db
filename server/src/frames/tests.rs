//! Pieces and heads of frames, as they are cut and put together again, and what is refused.

use std::sync::Arc;

use slackline_core::consistency::Standing;
use slackline_core::ids::{BatchIndex, Incarnation, Sequence, SessionId, WorkerId};
use slackline_core::wire::{Mark, PullKind};

use super::*;

const SHARD: ShardId = ShardId(3);
const KEYS: KeyRange = KeyRange::new(50, 100_000);

fn values(seed: u32) -> Vec<f32> {
    (0..KEYS.len as u32).map(|key| f32::from_bits((key ^ seed).wrapping_mul(2_654_435_761))).collect()
}

pub(crate) fn state(shard: ShardId, keys: KeyRange) -> ShardState {
    let array = |name: &str, seed: u32| StateArray {
        name: name.to_owned(),
        values: Arc::new(
            (0..keys.len as u32).map(|key| f32::from_bits(key.wrapping_mul(seed | 1))).collect(),
        ),
    };
    ShardState {
        shard,
        keys,
        version: Version(9),
        clock: Clock(4),
        facts: (0..700_000_u32).map(|byte| (byte % 251) as u8).collect(),
        arrays: vec![array("values", 77), array("slots", 99)],
    }
}

/// Takes pieces apart and puts them together again, as a log and a file do.
fn through(frame: Frame) -> Result<Vec<Frame>, FrameError> {
    let mut assembler = Assembler::new(SHARD, KEYS);
    let mut frames = Vec::new();
    for piece in pieces(frame) {
        let piece = piece?;
        let head: Head = wire::decode(&piece.head)?;
        let bytes = piece.payload.as_ref();
        assert!(bytes.len() as u64 <= assembler.payload_max());
        let mut content = assembler.place(&head, bytes.len() as u64)?;
        match &mut content {
            Content::Values(values) => bytemuck::cast_slice_mut(values).copy_from_slice(bytes),
            Content::Bytes(place) => place.copy_from_slice(bytes),
        }
        frames.extend(assembler.take(head, content)?);
    }
    Ok(frames)
}

fn events() -> Vec<ShardEvent> {
    let (worker, incarnation, clock) = (WorkerId(5), Incarnation(6), Clock(7));
    let sequence = Sequence(8);
    let push = |gradient| {
        let (session, pulled, batch) = (SessionId(1), Version(2), BatchIndex(3));
        ShardEvent::Push(Push {
            session,
            worker,
            incarnation,
            sequence,
            clock,
            pulled,
            batch,
            samples: 32,
            reply: 12,
            have: 0,
            gradient,
        })
    };
    let kind = PullKind::Gated { clock, after: sequence, ahead: 0 };
    let mark = Mark { number: 4, cuts: vec![(worker, clock)], rest: Some(Clock(1)) };
    let standing = Standing::Joining;
    vec![
        ShardEvent::Enter { worker, incarnation, clock, standing, batch_count: 12, answered: sequence },
        ShardEvent::Reenter { worker, clock },
        ShardEvent::Finish { worker },
        ShardEvent::Remove { worker },
        ShardEvent::Start,
        ShardEvent::Initialize(values(0)),
        push(Some(values(1).into())),
        push(None),
        ShardEvent::Tick,
        ShardEvent::Pull {
            session: SessionId(1),
            reader: Some((worker, incarnation)),
            request: 3,
            have: 0,
            kind,
        },
        ShardEvent::Commit { worker, incarnation, sequence },
        ShardEvent::Fence { worker, incarnation },
        ShardEvent::Resolve { worker, incarnation, through: sequence },
        ShardEvent::Mark(mark),
        ShardEvent::Lead {
            members: vec![(worker, incarnation, clock), (WorkerId(u32::MAX), incarnation, Clock(u64::MAX))],
            started: true,
        },
    ]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The same with bits instead of numbers: a gradient may hold NaNs.
fn shown(event: &ShardEvent) -> String {
    match event {
        ShardEvent::Push(Push { gradient: Some(gradient), .. }) => {
            format!("{:?} {:?}", Event::of(event), bits(gradient.words()))
        }
        ShardEvent::Initialize(values) => format!("{:?} {:?}", Event::of(event), bits(values)),
        event => format!("{event:?}"),
    }
}

#[test]
fn every_event_comes_back_bit_for_bit() {
    for (index, event) in events().into_iter().enumerate() {
        let entry = Entry { index: Index(index as u64), at: Moment(1 << 40), event: event.clone() };
        let frames = through(Frame::Entry(Arc::new(entry))).unwrap();
        let [Frame::Entry(back)] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!((back.index, back.at), (Index(index as u64), Moment(1 << 40)));
        assert_eq!(shown(&back.event), shown(&event));
    }
}

#[test]
fn a_state_comes_back_with_the_same_hash() {
    let sent = Arc::new(state(SHARD, KEYS));
    let frame = Frame::State { index: Index(7), at: Moment(8), state: sent.clone() };
    assert!(pieces(frame.clone()).count() > 8, "it goes in pieces");
    let frames = through(frame).unwrap();
    let [Frame::State { index: Index(7), at: Moment(8), state: back }] = &frames[..] else {
        panic!("{frames:?}")
    };
    assert_eq!(back.hash(), sent.hash());
}

#[test]
fn a_state_of_a_shard_without_values_comes_back() {
    let state = ShardState { facts: Vec::new(), arrays: Vec::new(), ..state(SHARD, KEYS) };
    let frames = through(Frame::State { index: Index(0), at: Moment(0), state: Arc::new(state) }).unwrap();
    assert!(matches!(&frames[..], [Frame::State { state, .. }] if state.arrays.is_empty()));
}

#[test]
fn pieces_in_no_order_that_makes_sense_are_refused() {
    let frame = Frame::State { index: Index(7), at: Moment(8), state: Arc::new(state(SHARD, KEYS)) };
    let all: Vec<Piece> = pieces(frame).map(Result::unwrap).collect();
    for left_out in 0..all.len() {
        let mut assembler = Assembler::new(SHARD, KEYS);
        let mut outcome = Ok(None);
        for (_, piece) in all.iter().enumerate().filter(|(place, _)| *place != left_out) {
            let head: Head = wire::decode(&piece.head).unwrap();
            let content = assembler.place(&head, piece.payload.len() as u64);
            outcome = content.and_then(|content| assembler.take(head, content));
            if outcome.is_err() {
                break;
            }
        }
        assert!(!matches!(outcome, Ok(Some(_))), "piece {left_out} is missed by nobody");
    }
}

#[test]
fn nothing_is_set_aside_that_the_shard_does_not_explain() {
    let assembler = Assembler::new(SHARD, KEYS);
    let push = Head::Entry { index: Index(1), at: 0, event: Event::Initialize };
    assert!(assembler.place(&push, 4 * KEYS.len).is_ok());
    assert_eq!(assembler.place(&push, 4 * KEYS.len + 4), Err(FrameError::Length(KEYS.len + 1, KEYS.len)));
    for (head, bytes) in [
        (Head::Values, PIECE_VALUES as u64 * 4 + 4),
        (Head::Values, 3),
        (Head::Facts, PIECE_BYTES as u64 + 1),
        (Head::End, 1),
        (Head::Entry { index: Index(1), at: 0, event: Event::Lead { started: true } }, 21),
    ] {
        assert!(assembler.place(&head, bytes).is_err(), "{head:?}");
    }
    let mut assembler = Assembler::new(SHARD, KEYS);
    let state = |facts, arrays, keys| Head::State {
        index: Index(1),
        at: 0,
        keys,
        version: Version(0),
        clock: Clock(0),
        facts,
        arrays,
    };
    for head in [state(u64::MAX, 0, KEYS), state(0, u32::MAX, KEYS), state(0, 0, KeyRange::new(0, 1))] {
        assert!(assembler.take(head, Content::Bytes(Vec::new())).is_err());
    }
    assembler.take(state(0, 1, KEYS), Content::Bytes(Vec::new())).unwrap();
    let long = Head::Array { name: "values".to_owned(), len: KEYS.len + 1 };
    assert!(assembler.take(long, Content::Bytes(Vec::new())).is_err());
}
