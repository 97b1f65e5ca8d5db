//! Dynamic stale-synchronous parallel (Zhao et al. 2019): ssp whose bound moves between two.
//!
//! A worker that would be held at the low bound is looked at, and again whenever the minimum clock rises: from the times of the last
//! two pushes of everyone it is foreseen how long it would wait after r more iterations, for each r up to high - low, and the r with the
//! least waiting is granted (the smallest such r). Whatever is granted, the high bound is never exceeded. With low = high that is ssp.

use std::collections::BTreeMap;

use super::{Memory, Needs, Pace, Policy, PullVerdict, PushVerdict, Reader, Room, ssp};
use crate::ids::{Clock, Moment, WorkerId};

/// Extra iterations looked at; beyond, the forecast from two pushes means nothing.
const FORESIGHT_MAX: u64 = 64;

/// The rule with its memory.
#[derive(Clone, Debug)]
pub struct Dssp {
    low: u64,
    high: u64,
    paces: BTreeMap<WorkerId, Pace>,
}

impl Dssp {
    /// The rule with its two bounds, in iterations; a `high` below `low` is taken as `low`.
    #[must_use]
    pub fn new(low: u64, high: u64) -> Self {
        Self { low, high: high.max(low), paces: BTreeMap::new() }
    }

    /// Extra iterations after which `reader` is foreseen to wait least for the slowest worker.
    fn foreseen(&self, now: Moment, room: &Room<'_>, reader: Reader) -> u64 {
        let slowest = room.table.slowest().filter(|(slowest, _)| *slowest != reader.worker);
        let pace = |worker| self.paces.get(&worker).and_then(|pace| Some((pace.last?, pace.interval?)));
        let (Some(own), Some(other)) = (pace(reader.worker), slowest.and_then(|(worker, _)| pace(worker)))
        else {
            return 0;
        };
        let waiting = |extra: u64| {
            let ready = now.0.saturating_add(own.1.saturating_mul(extra));
            let (since, interval) = (ready.saturating_sub(other.0.0), other.1.max(1));
            // The slowest pushes at `last + k interval`; the first of these that is not before `ready` ends the wait.
            since.div_ceil(interval).max(1).saturating_mul(interval).saturating_sub(since)
        };
        let most = (self.high - self.low).min(FORESIGHT_MAX);
        (0..=most).min_by_key(|extra| waiting(*extra)).unwrap_or(0)
    }
}

impl Policy for Dssp {
    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn memory(&self) -> Memory {
        Memory::Paces(self.paces.iter().map(|(worker, pace)| (*worker, *pace)).collect())
    }

    fn recall(&mut self, memory: &Memory) -> bool {
        let Memory::Paces(paces) = memory else { return false };
        self.paces = paces.iter().copied().collect();
        true
    }

    fn pull(&mut self, now: Moment, room: &Room<'_>, reader: Reader) -> PullVerdict {
        let clock = reader.clock;
        if ssp::read(room, clock, self.low) == PullVerdict::Serve {
            return PullVerdict::Serve;
        }
        let within = ssp::read(room, clock, self.high);
        let (PullVerdict::Serve, Some(minimum)) = (within, room.table.minimum()) else { return within };
        let known = self.paces.get(&reader.worker).copied().unwrap_or_default();
        if clock <= known.granted {
            return PullVerdict::Serve;
        }
        if known.looked_at != Some((clock, minimum)) {
            let extra = self.foreseen(now, room, reader);
            let pace = self.paces.entry(reader.worker).or_default();
            pace.looked_at = Some((clock, minimum));
            if extra > 0 {
                pace.granted = Clock(clock.0.saturating_add(extra - 1));
                return PullVerdict::Serve;
            }
        }
        // The next push of the slowest tells more.
        PullVerdict::Hold(Needs::Minimum(minimum.next()))
    }

    fn push(&mut self, now: Moment, room: &Room<'_>, worker: WorkerId, _clock: Clock) -> PushVerdict {
        // Those that have gone are forgotten, so that the memory is that of the table.
        if self.paces.len() > 2 * room.table.len() + 8 {
            self.paces.retain(|known, _| room.table.clock_of(*known).is_some());
        }
        let pace = self.paces.entry(worker).or_default();
        pace.interval = pace.last.map(|last| now.0.saturating_sub(last.0));
        pace.last = Some(now);
        PushVerdict::Apply
    }
}
