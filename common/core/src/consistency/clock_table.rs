//! The clocks of the live workers, as one shard knows them, with their minimum.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};

use super::HoldReason;
use crate::ids::{Clock, WorkerId};

/// Whether a worker's clock counts towards the minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Standing {
    /// It counts.
    Active,
    /// It has joined but not pushed yet, and gates nobody.
    Joining,
}

/// One row a live worker. A worker that has finished or whose lease ran out has no row, so nobody waits for it.
#[derive(Clone, Debug, Default)]
pub struct ClockTable {
    rows: BTreeMap<WorkerId, (Clock, Standing)>,
    /// How many active rows stand at each clock: the first key is the minimum.
    active: BTreeMap<Clock, u32>,
    active_count: u32,
}

impl ClockTable {
    /// Adds a worker, or replaces its row.
    pub fn enter(&mut self, worker: WorkerId, clock: Clock, standing: Standing) {
        self.leave(worker);
        self.rows.insert(worker, (clock, standing));
        if standing == Standing::Active {
            self.count(clock);
        }
    }

    /// Removes a worker; whoever waited for it must be looked at again.
    pub fn leave(&mut self, worker: WorkerId) {
        if let Some((clock, Standing::Active)) = self.rows.remove(&worker) {
            self.uncount(clock);
        }
    }

    /// A worker has completed `clock` iterations. Its clock never goes back. A joining worker becomes active, at the
    /// present minimum if that is higher, so that its slow start holds nobody back. Returns its clock now.
    pub fn advance(&mut self, worker: WorkerId, clock: Clock) -> Option<Clock> {
        let (before, standing) = *self.rows.get(&worker)?;
        let mut now = clock.max(before);
        if standing == Standing::Joining {
            now = now.max(self.minimum().unwrap_or(now));
        } else {
            self.uncount(before);
        }
        self.rows.insert(worker, (now, Standing::Active));
        self.count(now);
        Some(now)
    }

    fn count(&mut self, clock: Clock) {
        *self.active.entry(clock).or_default() += 1;
        self.active_count += 1;
    }

    fn uncount(&mut self, clock: Clock) {
        if let Some(count) = self.active.get_mut(&clock) {
            *count -= 1;
            self.active_count -= 1;
            if *count == 0 {
                self.active.remove(&clock);
            }
        }
    }

    /// A worker's clock.
    #[must_use]
    pub fn clock_of(&self, worker: WorkerId) -> Option<Clock> {
        self.rows.get(&worker).map(|(clock, _)| *clock)
    }

    /// Whether a worker has a row and counts towards the minimum.
    #[must_use]
    pub fn is_active(&self, worker: WorkerId) -> bool {
        matches!(self.rows.get(&worker), Some((_, Standing::Active)))
    }

    /// The smallest clock of an active worker; none when there is no active worker.
    #[must_use]
    pub fn minimum(&self) -> Option<Clock> {
        self.active.keys().next().copied()
    }

    /// The smallest clock of an active worker when the `late` slowest are left out; at least one is left.
    #[must_use]
    pub fn minimum_without(&self, late: u32) -> Option<Clock> {
        let mut left = late.min(self.active_count().saturating_sub(1));
        for (clock, count) in &self.active {
            if *count > left {
                return Some(*clock);
            }
            left -= count;
        }
        None
    }

    /// The smallest clock of those that join; looks through the rows.
    #[must_use]
    pub fn joining(&self) -> Option<Clock> {
        let joining = self.rows.values().filter(|(_, standing)| *standing == Standing::Joining);
        joining.map(|(clock, _)| *clock).min()
    }

    /// Active workers.
    #[must_use]
    pub fn active_count(&self) -> u32 {
        self.active_count
    }

    /// Workers with a row.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no worker has a row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The first of the workers at the minimum, with its clock.
    #[must_use]
    pub fn slowest(&self) -> Option<(WorkerId, Clock)> {
        let minimum = self.minimum()?;
        self.rows
            .iter()
            .find(|(_, row)| **row == (minimum, Standing::Active))
            .map(|(worker, _)| (*worker, minimum))
    }

    /// Why somebody waits for the minimum to reach `needs`. Looks through the rows: for reports, not for every event.
    #[must_use]
    pub fn hold_reason(&self, needs: Clock) -> Option<HoldReason> {
        let (slowest, at) = self.slowest()?;
        (at < needs).then_some(HoldReason::Clock { slowest, at, needs })
    }

    /// All rows, by worker.
    pub fn rows(&self) -> impl Iterator<Item = (WorkerId, Clock, Standing)> + '_ {
        self.rows.iter().map(|(worker, (clock, standing))| (*worker, *clock, *standing))
    }
}
