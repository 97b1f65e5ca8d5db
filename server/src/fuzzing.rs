//! The readers of what another server or an earlier process has left, as functions of bytes: for `bench/fuzz`, which makes them up.
//!
//! Each begins with bytes as they are, and once more with their checksums put right, since chance does not find one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use slackline_core::ids::{
    Clock, Generation, Incarnation, KeyRange, Moment, ServerId, ShardId, Version, WorkerId,
};
use slackline_core::wire;
use slackline_server_core::replica::{Entry, Frame, Index};
use slackline_server_core::shard::{ShardState, StateArray};
use slackline_server_core::{ControlEvent, ShardEvent};

use crate::frames::{Assembler, Content, FrameError, Head, Opening, Piece, pieces};
use crate::journal::{self, framing};
use crate::ledger;

const SHARD: ShardId = ShardId(0);
const KEYS: KeyRange = KeyRange::new(0, 12);
const JOURNAL: &str = "shard-00000-0000000000.journal";

/// The log that a primary gives to its backup: pieces, each after the lengths of its head (2 bytes) and payload (4 bytes).
pub fn log(bytes: &[u8]) {
    let mut assembler = Assembler::new(SHARD, KEYS);
    let mut left = bytes;
    while let Some((lengths, rest)) = left.split_first_chunk::<6>() {
        let head_bytes = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
        let payload_bytes = u32::from_le_bytes([lengths[2], lengths[3], lengths[4], lengths[5]]) as usize;
        let (head, rest) = rest.split_at(head_bytes.min(rest.len()));
        let (payload, rest) = rest.split_at(payload_bytes.min(rest.len()));
        left = rest;
        if let Err(error) = take(&mut assembler, head, payload) {
            drop(error.to_string());
            return;
        }
    }
}

fn take(assembler: &mut Assembler, head: &[u8], payload: &[u8]) -> Result<Option<Frame>, FrameError> {
    let head: Head = wire::decode(head)?;
    let mut content = assembler.place(&head, payload.len() as u64)?;
    match &mut content {
        Content::Values(values) => bytemuck::cast_slice_mut(values).copy_from_slice(payload),
        Content::Bytes(place) => place.copy_from_slice(payload),
    }
    assembler.take(head, content)
}

/// A shard's journal, as a file of `folder`.
pub fn journal(folder: &Path, bytes: &[u8]) {
    read_journal(folder, bytes);
    read_journal(folder, &sealed(bytes));
}

fn read_journal(folder: &Path, bytes: &[u8]) {
    // A file that cannot be written is not read either.
    let _ = fs::write(folder.join(JOURNAL), bytes);
    if let Err(error) = journal::find(folder) {
        drop(error.to_string());
    }
    match journal::load(folder, SHARD, KEYS) {
        Ok((_, kept)) => drop((kept.state.hash(), kept.entries)),
        Err(error) => drop(error.to_string()),
    }
}

/// The coordinator's events, as a file of `folder`.
pub fn ledger(folder: &Path, bytes: &[u8]) {
    let path = folder.join("control.events");
    for bytes in [bytes, &sealed(bytes)] {
        let _ = fs::write(&path, bytes);
        match ledger::local::read_events(&path) {
            Ok((events, length)) => {
                assert!(length <= bytes.len() as u64, "more than there is");
                drop(format!("{events:?}"));
            }
            Err(error) => drop(error.to_string()),
        }
    }
}

/// The same frames with marks and checksums that are right; lengths are cut to what is there.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes.len());
    let mut left = bytes;
    while let Some((front, rest)) = left.split_first_chunk::<{ framing::FRONT_BYTES }>() {
        let word = |at: usize| {
            front[at..at + 4].iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let (head, rest) = rest.split_at(word(4).min(rest.len()));
        let (payload, rest) = rest.split_at(word(8).min(rest.len()));
        all.extend_from_slice(&framing::front(head, payload, u64::from(front[16])));
        all.extend_from_slice(head);
        all.extend_from_slice(payload);
        left = rest;
    }
    all
}

/// What fuzzing begins with, under the names of its targets.
pub type Samples = [(&'static str, Vec<u8>); 3];

/// A whole log, a whole journal and whole events, for fuzzing to begin with.
///
/// # Errors
/// A head that has no place in the wire's encoding, which none of these has.
pub fn samples() -> Result<Samples, Box<dyn std::error::Error>> {
    let mut log = Vec::new();
    let opening = Opening { shard: SHARD, primary: ServerId(0), generation: Generation(1), config_hash: 7 };
    let mut journal = framed(&Piece::of(&Head::Opening(opening), Default::default())?);
    for frame in frames() {
        for piece in pieces(frame) {
            let piece = piece?;
            let payload = piece.payload.as_ref();
            log.extend_from_slice(&u16::try_from(piece.head.len())?.to_le_bytes());
            log.extend_from_slice(&u32::try_from(payload.len())?.to_le_bytes());
            log.extend_from_slice(&piece.head);
            log.extend_from_slice(payload);
            journal.extend(framed(&piece));
        }
    }
    journal.extend(framed(&Piece::of(&Head::Term(Generation(2)), Default::default())?));
    let mut events = Vec::new();
    for (at, event) in [ControlEvent::Tick, ControlEvent::Persisted { number: 3 }].into_iter().enumerate() {
        events.extend(framing::frame(&wire::encode_state(&(at as u64, event))?, events.len() as u64));
    }
    Ok([("log", log), ("journal", journal), ("ledger", events)])
}

fn framed(piece: &Piece) -> Vec<u8> {
    let payload = piece.payload.as_ref();
    [&framing::front(&piece.head, payload, 0)[..], &piece.head, payload].concat()
}

/// A state and two entries after it.
fn frames() -> [Frame; 3] {
    let values: Vec<f32> = (0..12_u8).map(f32::from).collect();
    let arrays = vec![StateArray { name: "values".to_owned(), values: Arc::new(values) }];
    let (version, clock, facts) = (Version(1), Clock(0), vec![1, 2, 3]);
    let state = ShardState { shard: SHARD, keys: KEYS, version, clock, facts, arrays };
    let (worker, incarnation) = (WorkerId(0), Incarnation(1));
    let lead = ShardEvent::Lead { members: vec![(worker, incarnation, Clock(2))], started: true };
    let entry =
        |index, event| Frame::Entry(Arc::new(Entry { index: Index(index), at: Moment(index), event }));
    [
        Frame::State { index: Index(1), at: Moment(1), state: Arc::new(state) },
        entry(2, lead),
        entry(3, ShardEvent::Finish { worker }),
    ]
}
