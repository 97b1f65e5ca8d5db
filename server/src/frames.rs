//! What a primary gives to its backup and to its disk, as bytes: small heads in the wire's encoding, each with a payload of raw values.
//!
//! A state goes as several pieces: its facts, then each of its arrays in pieces of a bounded length, then its end; an entry is one piece.

mod event;

use std::sync::Arc;

use bincode::{Decode, Encode};
use slackline_core::codec::Encoding;
use slackline_core::ids::{Clock, Generation, KeyRange, Moment, ServerId, ShardId, Version};
use slackline_core::limits::{WORKER_COUNT_MAX, WORKER_EVER_MAX};
use slackline_core::wire::{self, WireError};
use slackline_net::log::Payload;
use slackline_server_core::replica::{Entry, Frame, Index};
use slackline_server_core::shard::{Push, ShardState, StateArray};
use slackline_server_core::{Buffers, ShardEvent};

pub(crate) use event::Event;
use event::{MEMBER_BYTES, members_bytes};

/// Values of an array that go in one piece: 256 KiB.
const PIECE_VALUES: usize = 64 * 1024;

/// Bytes of facts that go in one piece.
const PIECE_BYTES: usize = 256 * 1024;

/// Arrays of a state at most: its own few, and the gradients of all workers that wait.
const ARRAYS_MAX: u32 = 8 + 8 * WORKER_COUNT_MAX;

/// Bytes of a state's facts at most: some hundred for every worker there ever was.
const FACTS_MAX: u64 = 512 * WORKER_EVER_MAX as u64;

/// Bytes that are no frames, or frames in no order that makes sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// A head is none.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A payload that its head does not allow.
    #[error("a payload of {bytes} bytes, where {expected}")]
    Payload {
        /// Its length.
        bytes: u64,
        /// What could be there.
        expected: &'static str,
    },
    /// A piece that cannot follow the one before it.
    #[error("{0}")]
    Order(&'static str),
    /// The gradient or array of another shard.
    #[error("{0} values for a shard of {1} keys")]
    Length(u64, u64),
}

/// The head of one piece.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub(crate) enum Head {
    /// The first of a log or a file: whose it is.
    Opening(Opening),
    /// The primary leads in another generation from here on.
    Term(Generation),
    /// One entry.
    Entry { index: Index, at: u64, event: Event },
    /// A state begins.
    State { index: Index, at: u64, keys: KeyRange, version: Version, clock: Clock, facts: u64, arrays: u32 },
    /// Bytes of its facts.
    Facts,
    /// An array of it begins.
    Array { name: String, len: u64 },
    /// Values of the array.
    Values,
    /// The state is whole.
    End,
}

/// See [`Head::Opening`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Opening {
    /// The shard.
    pub(crate) shard: ShardId,
    /// Its primary.
    pub(crate) primary: ServerId,
    /// In which generation.
    pub(crate) generation: Generation,
    /// Fingerprint of the configuration.
    pub(crate) config_hash: u64,
}

/// One piece on its way out.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) head: Vec<u8>,
    pub(crate) payload: Payload,
}

impl Piece {
    pub(crate) fn of(head: &Head, payload: Payload) -> Result<Self, FrameError> {
        Ok(Self { head: wire::encode(head)?, payload })
    }
}

/// All pieces of a frame, one after another.
pub(crate) fn pieces(frame: Frame) -> Box<dyn Iterator<Item = Result<Piece, FrameError>> + Send> {
    match frame {
        Frame::Entry(entry) => Box::new(std::iter::once(entry_piece(entry))),
        Frame::State { index, at, state } => Box::new(state_pieces(index, at, state)),
    }
}

fn entry_piece(entry: Arc<Entry>) -> Result<Piece, FrameError> {
    struct Gradient(Arc<Entry>);
    impl AsRef<[f32]> for Gradient {
        fn as_ref(&self) -> &[f32] {
            match &self.0.event {
                ShardEvent::Push(Push { gradient: Some(gradient), .. }) => gradient.words(),
                ShardEvent::Initialize(values) => values,
                _ => &[],
            }
        }
    }
    let head = Head::Entry { index: entry.index, at: entry.at.0, event: Event::of(&entry.event) };
    let payload = match &entry.event {
        ShardEvent::Push(Push { gradient: Some(_), .. }) | ShardEvent::Initialize(_) => {
            Payload::values(Gradient(entry))
        }
        ShardEvent::Lead { members, .. } => Payload::bytes(members_bytes(members)),
        _ => Payload::default(),
    };
    Piece::of(&head, payload)
}

/// Bytes of the values that an entry has.
pub(crate) fn payload_bytes(entry: &Entry) -> usize {
    match &entry.event {
        ShardEvent::Push(Push { gradient: Some(gradient), .. }) => 4 * gradient.words().len(),
        ShardEvent::Initialize(values) => 4 * values.len(),
        _ => 0,
    }
}

fn state_pieces(
    index: Index,
    at: Moment,
    state: Arc<ShardState>,
) -> impl Iterator<Item = Result<Piece, FrameError>> + Send {
    let head = Head::State {
        index,
        at: at.0,
        keys: state.keys,
        version: state.version,
        clock: state.clock,
        facts: state.facts.len() as u64,
        arrays: state.arrays.len() as u32,
    };
    let facts = {
        let state = state.clone();
        move |start: usize| {
            let end = (start + PIECE_BYTES).min(state.facts.len());
            Piece::of(&Head::Facts, Payload::bytes(Facts(state.clone(), start..end)))
        }
    };
    let starts = (0..state.facts.len()).step_by(PIECE_BYTES);
    let arrays = (0..state.arrays.len()).flat_map(move |number| array_pieces(state.arrays[number].clone()));
    std::iter::once(Piece::of(&head, Payload::default()))
        .chain(starts.map(facts))
        .chain(arrays)
        .chain(std::iter::once(Piece::of(&Head::End, Payload::default())))
}

struct Facts(Arc<ShardState>, std::ops::Range<usize>);

impl AsRef<[u8]> for Facts {
    fn as_ref(&self) -> &[u8] {
        &self.0.facts[self.1.clone()]
    }
}

fn array_pieces(array: StateArray) -> impl Iterator<Item = Result<Piece, FrameError>> + Send {
    struct Cut(Arc<Vec<f32>>, std::ops::Range<usize>);
    impl AsRef<[f32]> for Cut {
        fn as_ref(&self) -> &[f32] {
            &self.0[self.1.clone()]
        }
    }
    let StateArray { name, values } = array;
    let head = Head::Array { name, len: values.len() as u64 };
    let starts = (0..values.len()).step_by(PIECE_VALUES);
    let cut = move |start: usize| {
        let end = (start + PIECE_VALUES).min(values.len());
        Piece::of(&Head::Values, Payload::values(Cut(values.clone(), start..end)))
    };
    std::iter::once(Piece::of(&head, Payload::default())).chain(starts.map(cut))
}

/// What a payload is to be read into.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Values(Vec<f32>),
    Bytes(Vec<u8>),
}

/// Puts pieces together to frames of one shard. Sets nothing aside that the shard's size does not explain.
#[derive(Debug)]
pub(crate) struct Assembler {
    shard: ShardId,
    keys: KeyRange,
    building: Option<Building>,
    /// Where gradients go.
    buffers: Buffers,
}

#[derive(Debug)]
struct Building {
    index: Index,
    at: Moment,
    facts: u64,
    arrays: u32,
    /// Length of the array that is arriving.
    len: u64,
    state: ShardState,
}

impl Assembler {
    pub(crate) fn new(shard: ShardId, keys: KeyRange) -> Self {
        Self { shard, keys, building: None, buffers: Buffers::default() }
    }

    /// The same, with buffers that gradients are put into.
    pub(crate) fn with(self, buffers: Buffers) -> Self {
        Self { buffers, ..self }
    }

    /// Bytes of a payload at most.
    pub(crate) fn payload_max(&self) -> u64 {
        let members = WORKER_COUNT_MAX as u64 * MEMBER_BYTES as u64;
        Encoding::bytes_most(self.keys.len).max(PIECE_BYTES as u64).max(members)
    }

    /// The place for the payload of `head`, once its length is known to be right.
    pub(crate) fn place(&self, head: &Head, bytes: u64) -> Result<Content, FrameError> {
        let wrong = |expected| FrameError::Payload { bytes, expected };
        match head {
            Head::Entry { event: Event::Initialize, .. } => self.room(Encoding::F32, bytes),
            Head::Entry { event: Event::Push { encoding: Some(encoding), .. }, .. } => {
                let encoding =
                    Encoding::from_wire(*encoding).ok_or_else(|| wrong("one of a known encoding is"))?;
                self.room(encoding, bytes)
            }
            Head::Entry { event: Event::Lead { .. }, .. } => {
                let most = u64::from(WORKER_COUNT_MAX) * MEMBER_BYTES as u64;
                if bytes > most || !bytes.is_multiple_of(MEMBER_BYTES as u64) {
                    return Err(wrong("members are"));
                }
                Ok(Content::Bytes(vec![0; bytes as usize]))
            }
            Head::Facts if bytes <= PIECE_BYTES as u64 => Ok(Content::Bytes(vec![0; bytes as usize])),
            Head::Values if bytes <= PIECE_VALUES as u64 * 4 && bytes.is_multiple_of(4) => {
                Ok(Content::Values(vec![0.0; bytes as usize / 4]))
            }
            _ if bytes == 0 => Ok(Content::Bytes(Vec::new())),
            _ => Err(wrong("none or a shorter one is")),
        }
    }

    /// The place for values of all keys, as they are written.
    fn room(&self, encoding: Encoding, bytes: u64) -> Result<Content, FrameError> {
        if !bytes.is_multiple_of(4) || !encoding.can_have(self.keys.len, bytes / 4) {
            return Err(FrameError::Length(bytes / 4, self.keys.len));
        }
        Ok(Content::Values(self.buffers.take((bytes / 4) as usize)))
    }

    /// Takes one piece in; a frame when it is whole.
    pub(crate) fn take(&mut self, head: Head, content: Content) -> Result<Option<Frame>, FrameError> {
        let out_of_order = FrameError::Order("a piece of a state that has not begun, or is not complete");
        match (head, &mut self.building) {
            (Head::Entry { index, at, event }, None) => {
                let event = event
                    .whole(self.keys, content)
                    .ok_or(FrameError::Order("an event without its values"))?;
                Ok(Some(Frame::Entry(Arc::new(Entry { index, at: Moment(at), event }))))
            }
            (Head::State { index, at, keys, version, clock, facts, arrays }, None) => {
                if keys != self.keys || facts > FACTS_MAX || arrays > ARRAYS_MAX {
                    return Err(FrameError::Order("a state of other keys, or beyond all bounds"));
                }
                let state = ShardState {
                    shard: self.shard,
                    keys,
                    version,
                    clock,
                    facts: Vec::new(),
                    arrays: Vec::new(),
                };
                self.building = Some(Building { index, at: Moment(at), facts, arrays, len: 0, state });
                Ok(None)
            }
            (Head::Facts, Some(building)) => {
                let Content::Bytes(bytes) = content else { return Err(out_of_order) };
                building.state.facts.extend_from_slice(&bytes);
                if building.state.facts.len() as u64 > building.facts || building.arrived() > 0 {
                    return Err(FrameError::Order("a state with more facts than it announced"));
                }
                Ok(None)
            }
            (Head::Array { name, len }, Some(building)) => {
                if !building.array_is_whole() || building.arrived() >= building.arrays || len > self.keys.len
                {
                    return Err(FrameError::Order(
                        "an array that is too many, too long, or after half a one",
                    ));
                }
                building.len = len;
                let values = Arc::new(Vec::with_capacity(len as usize));
                building.state.arrays.push(StateArray { name, values });
                Ok(None)
            }
            (Head::Values, Some(building)) => {
                let len = building.len;
                let (Content::Values(values), Some(array)) = (content, building.state.arrays.last_mut())
                else {
                    return Err(out_of_order);
                };
                if (array.values.len() + values.len()) as u64 > len {
                    return Err(FrameError::Length((array.values.len() + values.len()) as u64, len));
                }
                Arc::make_mut(&mut array.values).extend_from_slice(&values);
                Ok(None)
            }
            (Head::End, Some(building)) => {
                let is_whole = building.array_is_whole()
                    && building.arrived() == building.arrays
                    && building.state.facts.len() as u64 == building.facts;
                match self.building.take() {
                    Some(Building { index, at, state, .. }) if is_whole => {
                        Ok(Some(Frame::State { index, at, state: Arc::new(state) }))
                    }
                    _ => Err(out_of_order),
                }
            }
            _ => Err(out_of_order),
        }
    }
}

impl Building {
    const fn arrived(&self) -> u32 {
        self.state.arrays.len() as u32
    }

    fn array_is_whole(&self) -> bool {
        self.state.arrays.last().is_none_or(|array| array.values.len() as u64 == self.len)
    }
}

#[cfg(test)]
mod tests;
