//! One bucket's allreduce at one member: what is to be sent when, and what is added to what. No IO.

use std::ops::Range;
use std::sync::Arc;

use super::plan::Move;
use super::schedule::{Action, Schedule, Transfer};
use super::segments::Segments;

/// Shared values that can be cut without a copy.
pub trait Values: Clone + AsRef<[f32]> + From<Vec<f32>> {
    /// The values in `range`, as far as they exist: in a simulation of times alone there are none.
    #[must_use]
    fn part(&self, range: Range<usize>) -> Self;
}

/// A message to another member.
#[derive(Clone, Debug)]
pub struct Outgoing<V> {
    /// To which position.
    pub to: u32,
    /// The transfer's number in the schedule.
    pub number: u32,
    /// Its step.
    pub step: u32,
    /// Which parts.
    pub parts: Range<u32>,
    /// How many values that are, also where none exist.
    pub len: u64,
    /// The values, one piece after another.
    pub pieces: Vec<V>,
}

/// What came was not what the schedule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReductionError {
    /// No such transfer from that member to this one.
    #[error("position {from} sent transfer {number}, which is none of its own to this one")]
    Unexpected {
        /// Who sent it.
        from: u32,
        /// Under which number.
        number: u32,
    },
    /// It has come before.
    #[error("position {from} sent transfer {number} twice")]
    Again {
        /// Who sent it.
        from: u32,
        /// Under which number.
        number: u32,
    },
    /// Too few or too many values.
    #[error("transfer {number} of position {from} has {values} values, not {expected}")]
    Length {
        /// Who sent it.
        from: u32,
        /// Under which number.
        number: u32,
        /// How many came.
        values: u64,
        /// How many there must be.
        expected: u64,
    },
    /// This member's own gradient was given before.
    #[error("this member's own gradient of the bucket came twice")]
    OwnAgain,
    /// This member's own gradient has another length.
    #[error("this member's own gradient of the bucket has {values} values, not {expected}")]
    OwnLength {
        /// How many came.
        values: u64,
        /// How many there must be.
        expected: u64,
    },
}

/// Where a move of the plan is.
#[derive(Clone, Debug)]
enum Stage {
    /// Not sent, or not received.
    Open,
    /// Received before it could be used.
    Kept(Vec<f32>),
    /// Over.
    Done,
}

/// One bucket's allreduce at one member: values in, messages and sums out.
///
/// An addition is what came plus what is here. For each part additions follow the steps of the schedule, whatever order messages
/// arrive in, so that the order fixes no bit. A message of some step waits for what earlier steps bring for its parts and for
/// nothing else. Messages that would be empty are neither sent nor expected. All members end with the same bits, except that
/// which of the many NaN stands for a sum that is none may differ.
#[derive(Clone, Debug)]
pub struct Reduction<V> {
    schedule: Arc<Schedule>,
    position: u32,
    values: Segments<V>,
    /// Whether this member's own gradient is in.
    has_own: bool,
    /// Whether that has no values, since only times are simulated.
    is_bare: bool,
    /// For each move, how many others it waits for.
    needs: Vec<u32>,
    /// For each move.
    stages: Vec<Stage>,
    /// Moves that are not over.
    open: usize,
    /// Additions that are not over.
    open_additions: usize,
    /// Moves that wait for no other any more; empty between two calls.
    ready: Vec<u32>,
}

impl<V: Values> Reduction<V> {
    /// Begins, for the member at `position`, with the lengths of the parts as [`Packing::part_lens`](super::Packing::part_lens) gives
    /// them. A position that the schedule does not have expects nothing and sends nothing.
    #[must_use]
    pub fn new(schedule: Arc<Schedule>, position: u32, part_lens: Vec<u64>) -> Self {
        let values = Segments::new(schedule.parts(), &part_lens);
        let plan = schedule.plan(position);
        let transfers = schedule.transfers();
        let needs = plan.moves.iter().map(|step| step.needs).collect();
        // An empty message needs no waiting for: it is as if it had come.
        let stage = |step: &Move| match values.len(&transfers[step.number as usize].parts) {
            0 if !step.is_sent => Stage::Kept(Vec::new()),
            _ => Stage::Open,
        };
        let stages: Vec<Stage> = plan.moves.iter().map(stage).collect();
        let adds = |step: &&Move| !step.is_sent && transfers[step.number as usize].action == Action::Add;
        let open_additions = plan.moves.iter().filter(adds).count();
        let open = stages.len();
        Self {
            values,
            has_own: false,
            is_bare: false,
            needs,
            stages,
            open,
            open_additions,
            ready: Vec::new(),
            schedule,
            position,
        }
    }

    /// Number of values that are still to come from a member under a transfer's number; none where nothing is.
    #[must_use]
    pub fn expects(&self, from: u32, number: u32) -> Option<u64> {
        let (index, len) = self.awaited(from, number)?;
        matches!(self.stages[index], Stage::Open).then_some(len as u64)
    }

    /// The move and the length of a message that comes from that member at some time.
    fn awaited(&self, from: u32, number: u32) -> Option<(usize, usize)> {
        let index = *self.schedule.plan(self.position).received.get(&number)?;
        let transfer = &self.schedule.transfers()[number as usize];
        let len = self.values.len(&transfer.parts);
        (transfer.from == from && len > 0).then_some((index as usize, len))
    }

    /// Takes this member's own gradient of the bucket, packed; appends what can be sent.
    ///
    /// # Errors
    /// A wrong length (no value at all is right where only times are simulated), or it came before; or what was kept has
    /// another length than is right beside it. The reduction is as it was before.
    pub fn own(&mut self, packed: V, out: &mut Vec<Outgoing<V>>) -> Result<(), ReductionError> {
        if self.has_own {
            return Err(ReductionError::OwnAgain);
        }
        let (values, expected) = (packed.as_ref().len(), self.values.total());
        let is_bare = values == 0 && expected > 0;
        if values != expected && !is_bare {
            return Err(ReductionError::OwnLength { values: values as u64, expected: expected as u64 });
        }
        self.check_kept(is_bare)?;
        (self.has_own, self.is_bare) = (true, is_bare);
        self.values.fill(packed);
        let free = self.needs.iter().enumerate().filter(|(_, needs)| **needs == 0);
        self.ready.extend(free.map(|(index, _)| index as u32));
        self.advance(out);
        Ok(())
    }

    /// What came before the own gradient has values exactly if that has.
    fn check_kept(&self, is_bare: bool) -> Result<(), ReductionError> {
        let plan = self.schedule.plan(self.position);
        for (step, stage) in plan.moves.iter().zip(&self.stages) {
            let Stage::Kept(kept) = stage else { continue };
            let transfer = &self.schedule.transfers()[step.number as usize];
            let expected = if is_bare { 0 } else { self.values.len(&transfer.parts) };
            check_len(transfer.from, step.number, kept.len(), expected)?;
        }
        Ok(())
    }

    /// Takes what came from a member; appends what can be sent now. May come before [`own`](Self::own), and is kept then.
    ///
    /// # Errors
    /// Not what the schedule says; the reduction is as it was before.
    pub fn arrived(
        &mut self,
        from: u32,
        number: u32,
        values: Vec<f32>,
        out: &mut Vec<Outgoing<V>>,
    ) -> Result<(), ReductionError> {
        let (index, len) = self.awaited(from, number).ok_or(ReductionError::Unexpected { from, number })?;
        if !matches!(self.stages[index], Stage::Open) {
            return Err(ReductionError::Again { from, number });
        }
        // Whether there are values at all is not known before the own gradient is here; it is checked then.
        let is_bare = if self.has_own { self.is_bare } else { values.is_empty() };
        check_len(from, number, values.len(), if is_bare { 0 } else { len })?;
        self.stages[index] = Stage::Kept(values);
        if self.has_own && self.needs[index] == 0 {
            self.ready.push(index as u32);
            self.advance(out);
        }
        Ok(())
    }

    /// Does all moves that are ready, and those that get ready by them.
    fn advance(&mut self, out: &mut Vec<Outgoing<V>>) {
        let schedule = Arc::clone(&self.schedule);
        let plan = schedule.plan(self.position);
        let mut next = 0;
        while let Some(index) = self.ready.get(next).copied() {
            next += 1;
            let step = &plan.moves[index as usize];
            let transfer = &schedule.transfers()[step.number as usize];
            if step.is_sent {
                self.send(transfer, out);
            } else if matches!(self.stages[index as usize], Stage::Open) {
                // Comes again when the message is here.
                continue;
            }
            match std::mem::replace(&mut self.stages[index as usize], Stage::Done) {
                Stage::Kept(values) => self.receive(transfer, values),
                Stage::Open | Stage::Done => {}
            }
            self.open -= 1;
            for waiting in &step.then {
                let needs = &mut self.needs[*waiting as usize];
                *needs -= 1;
                if *needs == 0 {
                    self.ready.push(*waiting);
                }
            }
        }
        self.ready.clear();
    }

    fn send(&self, transfer: &Transfer, out: &mut Vec<Outgoing<V>>) {
        let len = self.values.len(&transfer.parts) as u64;
        if len > 0 {
            let pieces = self.values.pieces(&transfer.parts);
            let Transfer { to, number, step, ref parts, .. } = *transfer;
            out.push(Outgoing { to, number, step, parts: parts.clone(), len, pieces });
        }
    }

    fn receive(&mut self, transfer: &Transfer, mut values: Vec<f32>) {
        if transfer.action == Action::Add {
            self.open_additions -= 1;
            self.values.add_to(&transfer.parts, &mut values);
        }
        if self.values.len(&transfer.parts) > 0 {
            self.values.replace(transfer.parts.clone(), V::from(values));
        }
    }

    /// Whether every addition is done: the gradients of all others are in, as far as this member adds them.
    #[must_use]
    pub const fn is_gathered(&self) -> bool {
        self.has_own && self.open_additions == 0
    }

    /// Whether all sums are here and everything is sent.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.has_own && self.open == 0
    }

    /// The sums, one a part, in order, once [`is_complete`](Self::is_complete); what there is, before.
    #[must_use]
    pub fn into_parts(self) -> Vec<V> {
        self.values.into_parts()
    }
}

fn check_len(from: u32, number: u32, values: usize, expected: usize) -> Result<(), ReductionError> {
    if values == expected {
        return Ok(());
    }
    Err(ReductionError::Length { from, number, values: values as u64, expected: expected as u64 })
}
