//! The transfers of each topology.

mod hierarchical;
mod recursive;
mod ring;
mod torus;

use std::ops::Range;

use super::schedule::{Action, Transfer};
use super::topology::Topology;

/// Transfers in the making: of any order, not numbered yet.
#[derive(Debug)]
pub(super) struct Draft {
    /// Parts of a gradient.
    pub(super) parts: u32,
    /// All transfers.
    pub(super) transfers: Vec<Transfer>,
}

impl Draft {
    const fn new(parts: u32) -> Self {
        Self { parts, transfers: Vec::new() }
    }

    fn send(&mut self, step: u32, from: u32, to: u32, parts: Range<u32>, action: Action) {
        self.transfers.push(Transfer { number: 0, step, from, to, parts, action });
    }
}

/// The transfers of a topology that fits; none for [`Topology::Auto`].
pub(super) fn draft(topology: Topology, members: u32) -> Option<Draft> {
    match topology {
        Topology::Ring => Some(ring::draft(members)),
        Topology::HalvingDoubling => Some(recursive::halving_doubling(members)),
        Topology::Doubling => Some(recursive::doubling(members)),
        Topology::Hierarchical { group } => Some(hierarchical::draft(members, group)),
        Topology::Torus { x, y } => Some(torus::draft(x, y)),
        Topology::Auto => None,
    }
}
