//! All transfers of one topology for one number of members.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;

use super::plan::Plan;
use super::topologies::{Draft, draft};
use super::topology::{Misfit, Topology};

/// What the receiver does with the values of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Adds what it has to them: they are a partial sum.
    Add,
    /// Takes them in place of what it has: they are whole sums.
    Replace,
}

/// One message from one member to another. Members are named by their positions, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Its place in the schedule.
    pub number: u32,
    /// When: transfers of one step go side by side. Each member waits only for what it needs, not for the step.
    pub step: u32,
    /// Who sends.
    pub from: u32,
    /// Who receives.
    pub to: u32,
    /// Which parts of the gradient, see [`Packing`](super::Packing).
    pub parts: Range<u32>,
    /// What becomes of them.
    pub action: Action,
}

/// Who sends which parts to whom, and in which order.
#[derive(Debug)]
pub struct Schedule {
    parts: u32,
    steps: u32,
    transfers: Vec<Transfer>,
    /// The numbers of the transfers of each position.
    of: Vec<Vec<u32>>,
    /// What each position does, made when it is asked for; the last is that of a stranger, who does nothing.
    plans: Vec<OnceLock<Plan>>,
}

impl Schedule {
    /// The schedule of a topology. A member alone has nothing to send. It is the same for all members and all buckets: share it.
    ///
    /// # Errors
    /// The topology does not fit, or is [`Topology::Auto`].
    pub fn new(topology: Topology, members: u32) -> Result<Self, Misfit> {
        topology.fits(members)?;
        let Draft { parts, mut transfers } = draft(topology, members).ok_or(Misfit::Undecided)?;
        transfers.sort_by_key(|transfer| transfer.step);
        let mut of = vec![Vec::new(); members as usize];
        for (number, transfer) in transfers.iter_mut().enumerate() {
            transfer.number = number as u32;
            of[transfer.from as usize].push(transfer.number);
            of[transfer.to as usize].push(transfer.number);
        }
        let steps = transfers.last().map_or(0, |last| last.step + 1);
        let plans = (0..=members).map(|_| OnceLock::new()).collect();
        Ok(Self { parts, steps, transfers, of, plans })
    }

    /// Number of members.
    #[must_use]
    pub const fn members(&self) -> u32 {
        self.of.len() as u32
    }

    /// Number of parts that a gradient is cut into.
    #[must_use]
    pub const fn parts(&self) -> u32 {
        self.parts
    }

    /// Number of steps.
    #[must_use]
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// All transfers, step by step; a transfer's place is its number.
    #[must_use]
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// The transfers that a member sends or receives, step by step; none for a position that does not exist.
    pub fn of(&self, position: u32) -> impl Iterator<Item = &Transfer> {
        let numbers = self.of.get(position as usize).map_or(&[][..], Vec::as_slice);
        numbers.iter().map(|number| &self.transfers[*number as usize])
    }

    /// The positions that a member sends to or receives from.
    #[must_use]
    pub fn neighbours(&self, position: u32) -> BTreeSet<u32> {
        let other = |transfer: &Transfer| if transfer.from == position { transfer.to } else { transfer.from };
        self.of(position).map(other).collect()
    }

    pub(super) fn plan(&self, position: u32) -> &Plan {
        let plan = &self.plans[position.min(self.members()) as usize];
        plan.get_or_init(|| Plan::new(position, self.parts, self.of(position)))
    }
}
