//! The feed of one backup, as the primary sees it: what it was sent, what it holds, and whether it counts.

use std::collections::VecDeque;

use slackline_core::ids::ServerId;

use super::Index;

/// How far a backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It is given the state.
    Filling,
    /// It has the state and counts from now on; it is in step once it has everything whose effects had left before.
    Closing {
        /// The last entry of those.
        through: Index,
    },
    /// The coordinator was told that it is in step, and may make it the primary at any time.
    InStep,
}

/// What [`Feed::hold`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Nothing new, or nothing that makes sense.
    Nothing,
    /// It holds more.
    More,
    /// It holds more, and is in step from now on.
    InStep,
    /// It has lost what it had, or is not what it should be at this entry: the state must go again.
    Lost {
        /// Where the two copies differ.
        differs: Option<Index>,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Feed {
    backup: ServerId,
    is_open: bool,
    phase: Phase,
    /// A state must go before anything else.
    wants_state: bool,
    /// The state that was sent and is not held yet.
    pending: Option<Index>,
    /// The last entry in the state that was sent last.
    base: Index,
    /// The last entry that the backup holds.
    held: Index,
    /// The primary's hashes, by entry.
    hashes: VecDeque<(Index, u64)>,
}

impl Feed {
    pub(super) fn new(backup: ServerId, in_step: bool) -> Self {
        Self {
            backup,
            is_open: false,
            phase: if in_step { Phase::InStep } else { Phase::Filling },
            wants_state: true,
            pending: None,
            base: Index(0),
            held: Index(0),
            hashes: VecDeque::new(),
        }
    }

    pub(super) const fn backup(&self) -> ServerId {
        self.backup
    }

    /// Whether effects wait for it.
    pub(super) const fn counts(&self) -> bool {
        !matches!(self.phase, Phase::Filling)
    }

    pub(super) const fn is_in_step(&self) -> bool {
        matches!(self.phase, Phase::InStep)
    }

    /// The coordinator takes it to be in step.
    pub(super) const fn believe(&mut self) {
        self.phase = Phase::InStep;
    }

    pub(super) const fn held(&self) -> Index {
        self.held
    }

    /// Entries up to this one need not be kept for it; none while it needs a state first and so no entries.
    pub(super) fn needs_after(&self) -> Option<Index> {
        (!self.wants_state).then(|| self.held.max(self.base))
    }

    /// Whether an entry goes out at once.
    pub(super) const fn is_flowing(&self) -> bool {
        self.is_open && !self.wants_state
    }

    /// Whether a state can and must go now.
    pub(super) const fn is_due(&self) -> bool {
        self.is_open && self.wants_state
    }

    /// The state up to this entry goes out.
    pub(super) fn sent_state(&mut self, index: Index) {
        (self.wants_state, self.pending, self.base) = (false, Some(index), index);
        self.hashes.clear();
    }

    pub(super) const fn opened(&mut self) {
        self.is_open = true;
    }

    pub(super) fn lost(&mut self) {
        self.is_open = false;
        if self.pending.take().is_some() || !self.is_in_step() {
            self.wants_state = true;
        }
        if !self.is_in_step() {
            // Nobody was told of it: the primary goes on alone until it is back.
            (self.phase, self.held, self.base) = (Phase::Filling, Index(0), Index(0));
        }
    }

    pub(super) fn expect(&mut self, index: Index, hash: u64) {
        self.hashes.push_back((index, hash));
    }

    /// The backup says that it holds everything up to `index`; `last` is the primary's last entry.
    pub(super) fn hold(&mut self, index: Index, hash: Option<u64>, last: Index) -> Held {
        if index > last || self.wants_state || self.pending.is_some_and(|pending| index < pending) {
            return Held::Nothing;
        }
        if index < self.held {
            self.wants_state = true;
            return Held::Lost { differs: None };
        }
        let expected = self.hashes.iter().find(|(at, _)| *at == index).map(|(_, hash)| *hash);
        self.hashes.retain(|(at, _)| *at > index);
        if let (Some(expected), Some(hash)) = (expected, hash)
            && expected != hash
        {
            self.wants_state = true;
            return Held::Lost { differs: Some(index) };
        }
        (self.pending, self.held) = (None, index);
        if self.phase == Phase::Filling {
            self.phase = Phase::Closing { through: last };
        }
        match self.phase {
            Phase::Closing { through } if index >= through => {
                self.phase = Phase::InStep;
                Held::InStep
            }
            _ => Held::More,
        }
    }
}
