//! What a reader has already: a pull that names an earlier one is answered with what has changed since that was answered.
//!
//! An earlier pull is named by its number, not by the version that it brought: a copy that leads after another, and a shard that went back to
//! a checkpoint, can have other values under the same version. What one copy has answered since it leads is of one history, so only that is
//! known here; it is no part of the state.

use std::collections::VecDeque;

use slackline_core::ids::Version;

use super::{Held, Shard};

/// Answers that are remembered: a worker reads into two buffers by turns, and each may be followed by fresher values.
const ANSWERS_MAX: usize = 4;

/// The versions that the last pulls of a worker were answered with.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    training: VecDeque<(u64, Version)>,
    evaluation: Option<(u64, Version)>,
}

impl Answers {
    fn version_of(&self, request: u64) -> Option<Version> {
        let mut all = self.training.iter().chain(&self.evaluation);
        all.find_map(|(known, version)| (*known == request).then_some(*version))
    }

    fn put(&mut self, request: u64, version: Version, is_gated: bool) {
        if !is_gated {
            self.evaluation = Some((request, version));
            return;
        }
        // What there was no room to send is served again under its number, with what there is by then.
        self.training.retain(|(known, _)| *known != request);
        self.training.push_back((request, version));
        if self.training.len() > ANSWERS_MAX {
            self.training.pop_front();
        }
    }
}

impl Shard {
    /// Notes what a pull is answered with. Returns the version that its reader has where it is read into, if that is known.
    pub(super) fn note_answer(&mut self, pull: &Held, is_gated: bool) -> Option<Version> {
        let (worker, incarnation) = pull.reader?;
        let version = self.version;
        let member = self.members.get_mut(&worker).filter(|member| member.incarnation == incarnation)?;
        let base = member.answers.version_of(pull.have);
        member.answers.put(pull.request, version, is_gated);
        base
    }
}

/// The last version that changed each block of keys. It is no part of the state: in one that was restored, all of them count as changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks(Vec<Version>);

impl Blocks {
    /// All blocks of so many keys have changed with this version.
    pub(super) fn changed(count: usize, version: Version) -> Self {
        Self(vec![version; count])
    }

    /// A block has changed with this version.
    pub(super) fn change(&mut self, block: usize, version: Version) {
        if let Some(last) = self.0.get_mut(block) {
            *last = version;
        }
    }

    /// The blocks that are others than in an earlier version, in order.
    pub(super) fn since(&self, base: Version) -> Vec<usize> {
        let changed = self.0.iter().enumerate().filter(|(_, last)| **last > base);
        changed.map(|(block, _)| block).collect()
    }
}
