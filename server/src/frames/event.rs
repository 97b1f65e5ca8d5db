//! The events of a shard as heads of frames: all of them but for what can be large.

use bincode::{Decode, Encode};
use slackline_core::codec::{Encoding, Payload};
use slackline_core::consistency::Standing;
use slackline_core::ids::{BatchIndex, Clock, Incarnation, KeyRange, Sequence, SessionId, Version, WorkerId};
use slackline_core::wire::{Mark, PullKind};
use slackline_server_core::ShardEvent;
use slackline_server_core::shard::Push;

use super::Content;

/// Bytes of one member in the payload of [`ShardEvent::Lead`].
pub(super) const MEMBER_BYTES: usize = 20;

/// A [`ShardEvent`] without what can be large.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub(crate) enum Event {
    Enter {
        worker: WorkerId,
        incarnation: Incarnation,
        clock: Clock,
        is_active: bool,
        batch_count: u64,
        answered: Sequence,
    },
    Reenter {
        worker: WorkerId,
        clock: Clock,
    },
    Finish {
        worker: WorkerId,
    },
    Remove {
        worker: WorkerId,
    },
    Start,
    Initialize,
    Push {
        session: SessionId,
        worker: WorkerId,
        incarnation: Incarnation,
        sequence: Sequence,
        clock: Clock,
        pulled: Version,
        batch: BatchIndex,
        samples: u32,
        reply: u64,
        /// How its gradient is written, as on the wire; none without one.
        encoding: Option<u8>,
    },
    Tick,
    Pull {
        session: SessionId,
        reader: Option<(WorkerId, Incarnation)>,
        request: u64,
        kind: PullKind,
    },
    Commit {
        worker: WorkerId,
        incarnation: Incarnation,
        sequence: Sequence,
    },
    Fence {
        worker: WorkerId,
        incarnation: Incarnation,
    },
    Resolve {
        worker: WorkerId,
        incarnation: Incarnation,
        through: Sequence,
    },
    Mark(Mark),
    Lead {
        started: bool,
    },
}

impl Event {
    pub(super) fn of(event: &ShardEvent) -> Self {
        match *event {
            ShardEvent::Enter { worker, incarnation, clock, standing, batch_count, answered } => {
                let is_active = standing == Standing::Active;
                Self::Enter { worker, incarnation, clock, is_active, batch_count, answered }
            }
            ShardEvent::Reenter { worker, clock } => Self::Reenter { worker, clock },
            ShardEvent::Finish { worker } => Self::Finish { worker },
            ShardEvent::Remove { worker } => Self::Remove { worker },
            ShardEvent::Start => Self::Start,
            ShardEvent::Initialize(_) => Self::Initialize,
            ShardEvent::Push(Push {
                session,
                worker,
                incarnation,
                sequence,
                clock,
                pulled,
                batch,
                samples,
                reply,
                // Only who leads answers.
                have: _,
                ref gradient,
            }) => {
                let encoding = gradient.as_ref().map(|gradient| gradient.encoding().to_wire());
                Self::Push {
                    session,
                    worker,
                    incarnation,
                    sequence,
                    clock,
                    pulled,
                    batch,
                    samples,
                    reply,
                    encoding,
                }
            }
            ShardEvent::Tick => Self::Tick,
            ShardEvent::Pull { session, reader, request, have: _, kind } => {
                Self::Pull { session, reader, request, kind }
            }
            ShardEvent::Commit { worker, incarnation, sequence } => {
                Self::Commit { worker, incarnation, sequence }
            }
            ShardEvent::Fence { worker, incarnation } => Self::Fence { worker, incarnation },
            ShardEvent::Resolve { worker, incarnation, through } => {
                Self::Resolve { worker, incarnation, through }
            }
            ShardEvent::Mark(ref mark) => Self::Mark(mark.clone()),
            ShardEvent::Lead { started, .. } => Self::Lead { started },
        }
    }

    pub(super) fn whole(self, keys: KeyRange, content: Content) -> Option<ShardEvent> {
        Some(match self {
            Self::Enter { worker, incarnation, clock, is_active, batch_count, answered } => {
                let standing = if is_active { Standing::Active } else { Standing::Joining };
                ShardEvent::Enter { worker, incarnation, clock, standing, batch_count, answered }
            }
            Self::Reenter { worker, clock } => ShardEvent::Reenter { worker, clock },
            Self::Finish { worker } => ShardEvent::Finish { worker },
            Self::Remove { worker } => ShardEvent::Remove { worker },
            Self::Start => ShardEvent::Start,
            Self::Initialize => match content {
                Content::Values(values) => ShardEvent::Initialize(values),
                Content::Bytes(_) => return None,
            },
            Self::Push {
                session,
                worker,
                incarnation,
                sequence,
                clock,
                pulled,
                batch,
                samples,
                reply,
                encoding,
            } => {
                let gradient = match (encoding, content) {
                    (Some(encoding), Content::Values(words)) => {
                        let encoding = Encoding::from_wire(encoding)?;
                        Some(Payload::new(encoding, keys.len as usize, words).ok()?)
                    }
                    (None, _) => None,
                    (Some(_), Content::Bytes(_)) => return None,
                };
                ShardEvent::Push(Push {
                    session,
                    worker,
                    incarnation,
                    sequence,
                    clock,
                    pulled,
                    batch,
                    samples,
                    reply,
                    have: 0,
                    gradient,
                })
            }
            Self::Tick => ShardEvent::Tick,
            Self::Pull { session, reader, request, kind } => {
                ShardEvent::Pull { session, reader, request, have: 0, kind }
            }
            Self::Commit { worker, incarnation, sequence } => {
                ShardEvent::Commit { worker, incarnation, sequence }
            }
            Self::Fence { worker, incarnation } => ShardEvent::Fence { worker, incarnation },
            Self::Resolve { worker, incarnation, through } => {
                ShardEvent::Resolve { worker, incarnation, through }
            }
            Self::Mark(mark) => ShardEvent::Mark(mark),
            Self::Lead { started } => match content {
                Content::Bytes(bytes) => ShardEvent::Lead { members: members_of(&bytes), started },
                Content::Values(_) => return None,
            },
        })
    }
}

pub(super) fn members_bytes(members: &[(WorkerId, Incarnation, Clock)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(members.len() * MEMBER_BYTES);
    for (worker, incarnation, clock) in members {
        bytes.extend_from_slice(&worker.0.to_le_bytes());
        bytes.extend_from_slice(&incarnation.0.to_le_bytes());
        bytes.extend_from_slice(&clock.0.to_le_bytes());
    }
    bytes
}

fn members_of(bytes: &[u8]) -> Vec<(WorkerId, Incarnation, Clock)> {
    let member = |bytes: &[u8]| {
        let word =
            |at: usize| bytes[at..at + 8].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let worker = bytes[..4].iter().rev().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        (WorkerId(worker), Incarnation(word(4)), Clock(word(12)))
    };
    bytes.chunks_exact(MEMBER_BYTES).map(member).collect()
}
