//! Quorum: the mean of the first K gradients makes one step (K-async SGD, Dutta et al. 2018; the synchronizer of Decoupled DiLoCo,
//! 2026; without waiting readers the buffers of FedBuff, Nguyen et al. 2022, and GBA, Su et al. 2022).
//!
//! Gradients are collected whatever values they were computed on. When K are in, and `grace` has passed since the last came or there is
//! one of every live worker, their mean is applied and the next round begins; one that comes later counts in that. A worker reads
//! again when its own gradient is in the values, so it has at most one in a round. With K = all that is bsp.
//!
//! Each shard counts for itself, so two shards can take different gradients for the first K, and then each can hold one that the other
//! waits for; with K = all only where somebody came or went. A quorum that waits eight times as long as its rounds usually take (one of
//! all: 32 times) is therefore taken as it is.

use std::time::Duration;

use super::{Memory, Needs, Policy, PullVerdict, PushVerdict, Reader, Room};
use crate::ids::{Clock, Moment, WorkerId};

/// Times its usual length that a round waits for a quorum, and the least that it waits.
const PATIENCE: (u32, Duration) = (8, Duration::from_millis(250));

/// The same for a quorum of all: only who came or went can have led to that, and a straggler is far likelier.
const PATIENCE_FOR_ALL: (u32, Duration) = (32, Duration::from_secs(2));

/// Share that the last round has in the usual length.
const LAST_SHARE: f64 = 0.2;

/// Times the usual length that the last round counts for at most: one that was waited for in vain says what the patience was, and the next
/// one would be waited for that much longer.
const LAST_MAX: u32 = 4;

/// The rule with its memory.
#[derive(Clone, Copy, Debug)]
pub struct Quorum {
    /// Gradients that make one step (K); none for one of each live worker.
    count: Option<u32>,
    /// How long a complete quorum still waits for others.
    grace: Duration,
    /// Whether a reader waits until its own push is in the values.
    holds: bool,
    /// The round of the last push, and when the first push of it came.
    round: Option<(Clock, Moment)>,
    /// From the first push of a round to that of the next, usually.
    usual: Option<Duration>,
}

impl Quorum {
    /// The rule for `count` gradients a step (none for one of each live worker), with the time that a complete quorum waits for others,
    /// and whether a reader waits until its own push is in the values.
    #[must_use]
    pub const fn new(count: Option<u32>, grace: Duration, holds: bool) -> Self {
        Self { count, grace, holds, round: None, usual: None }
    }

    /// When the round is taken as it is.
    fn given_up(&self, room: &Room<'_>) -> Option<Moment> {
        let usual = self.usual.filter(|_| self.holds && room.gathered > 0)?;
        let (times, least) = if self.count.is_some() { PATIENCE } else { PATIENCE_FOR_ALL };
        Some(room.gathered_at.after((usual * times).max(least).max(self.grace)))
    }
}

impl Policy for Quorum {
    fn copy(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }

    fn memory(&self) -> Memory {
        let usual_ns = self.usual.map(|usual| u64::try_from(usual.as_nanos()).unwrap_or(u64::MAX));
        Memory::Rounds { round: self.round, usual_ns }
    }

    fn recall(&mut self, memory: &Memory) -> bool {
        let Memory::Rounds { round, usual_ns } = memory else { return false };
        (self.round, self.usual) = (*round, usual_ns.map(Duration::from_nanos));
        true
    }

    fn pull(&mut self, _now: Moment, _room: &Room<'_>, reader: Reader) -> PullVerdict {
        if reader.settled || !self.holds { PullVerdict::Serve } else { PullVerdict::Hold(Needs::Settled) }
    }

    fn push(&mut self, now: Moment, room: &Room<'_>, _worker: WorkerId, _clock: Clock) -> PushVerdict {
        match self.round {
            Some((round, _)) if round == room.open => {}
            Some((_, began)) => {
                let last = now.since(began);
                let usual = self.usual.map_or(last, |usual| {
                    usual.mul_f64(1.0 - LAST_SHARE) + last.min(usual * LAST_MAX).mul_f64(LAST_SHARE)
                });
                (self.round, self.usual) = (Some((room.open, now)), Some(usual));
            }
            None => self.round = Some((room.open, now)),
        }
        PushVerdict::Collect { at: room.open }
    }

    fn border(&self, now: Moment, room: &Room<'_>) -> Clock {
        let complete = room.gathered > 0 && room.gathered >= self.needed(room);
        let all_are_in = room.gathered >= room.table.active_count();
        let is_over = complete && (all_are_in || now >= room.gathered_at.after(self.grace));
        let is_given_up = self.given_up(room).is_some_and(|moment| now >= moment);
        if is_over || is_given_up { room.open.next() } else { room.open }
    }

    fn deadline(&self, room: &Room<'_>) -> Option<Moment> {
        let complete = room.gathered > 0 && room.gathered >= self.needed(room);
        if complete { Some(room.gathered_at.after(self.grace)) } else { self.given_up(room) }
    }

    /// Never more than there are workers, so that a dead one stops nobody.
    fn needed(&self, room: &Room<'_>) -> u32 {
        let live = room.table.active_count();
        self.count.map_or(live, |count| count.min(live)).max(1)
    }

    fn moves_up(&self) -> bool {
        self.holds
    }

    fn withholds(&self) -> bool {
        self.holds
    }
}
