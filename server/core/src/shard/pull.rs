//! A pull on its way through a shard: held until the run has begun, the reader's own pushes are in and the policy allows it.

use slackline_core::consistency::{HoldReason, PullVerdict};
use slackline_core::ids::{Clock, Incarnation, Moment, Sequence, SessionId, WorkerId};
use slackline_core::wire::{HeldRow, PullKind, Served};

use super::{Shard, ShardEffect};

/// A pull that waits, or is about to be served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// The session to answer.
    pub session: SessionId,
    /// The worker that reads; none for an observer.
    pub reader: Option<(WorkerId, Incarnation)>,
    /// Number of the pull.
    pub request: u64,
    /// Gated or not.
    pub kind: PullKind,
    /// When it arrived.
    pub since: Moment,
    /// When it first waited for another worker's clock.
    gated_since: Option<Moment>,
}

/// What a pull waits for, without the names that a report needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waits {
    Values,
    Start,
    OwnPush { needs: Sequence },
    Clock { needs: Clock },
}

impl Held {
    pub(super) const fn new(
        session: SessionId,
        reader: Option<(WorkerId, Incarnation)>,
        request: u64,
        kind: PullKind,
        since: Moment,
    ) -> Self {
        Self { session, reader, request, kind, since, gated_since: None }
    }

    const fn clock(&self) -> Clock {
        match self.kind {
            PullKind::Gated { clock, .. } => clock,
            PullKind::Snapshot => Clock(0),
        }
    }

    const fn is_gated(&self) -> bool {
        matches!(self.kind, PullKind::Gated { .. })
    }
}

impl Shard {
    pub(super) fn pull(&mut self, now: Moment, pull: Held, effects: &mut Vec<ShardEffect>) {
        if pull.is_gated() {
            let known =
                pull.reader.is_some_and(|(worker, incarnation)| self.member(worker, incarnation).is_some());
            if !known {
                // The session of a fenced worker is being closed; there is nobody to answer.
                return;
            }
            // A worker has one gated pull at a time: a second one is a retry from a new session.
            self.held.retain(|held| !(held.is_gated() && held.reader == pull.reader));
        }
        self.try_serve(now, pull, effects);
        // The reader's own clock may have risen, which can close a clock or release others.
        self.close_clocks(now, effects);
        self.serve_held(now, effects);
    }

    /// Serves what can be served now, in order of arrival. Most events release nobody, and then nothing is moved.
    pub(super) fn serve_held(&mut self, now: Moment, effects: &mut Vec<ShardEffect>) {
        while self.held.iter().any(|held| self.waits(held).is_none()) {
            for held in std::mem::take(&mut self.held) {
                self.try_serve(now, held, effects);
            }
        }
    }

    fn try_serve(&mut self, now: Moment, mut pull: Held, effects: &mut Vec<ShardEffect>) {
        if self.note_clock(&pull) {
            // Else the reader would get values without the clock that its own rise has closed.
            self.close_clocks(now, effects);
        }
        match self.waits(&pull) {
            None => {
                self.note_served(&pull);
                self.serve(now, &pull, effects);
            }
            Some(waits) => {
                if matches!(waits, Waits::Clock { .. }) && pull.gated_since.is_none() {
                    pull.gated_since = Some(now);
                }
                self.held.push(pull);
            }
        }
    }

    /// A pull at clock c whose own pushes are all in says that the reader has completed c iterations, which can be more than
    /// this shard has seen: a joiner is moved up to the minimum of the shard that is furthest.
    /// Returns whether the reader's clock rose.
    fn note_clock(&mut self, pull: &Held) -> bool {
        let (PullKind::Gated { clock, after }, Some((worker, incarnation))) = (pull.kind, pull.reader) else {
            return false;
        };
        let complete = self.member(worker, incarnation).is_some_and(|member| member.window.has_all_to(after));
        let rises = complete
            && self.table.is_active(worker)
            && self.table.clock_of(worker).is_some_and(|before| before < clock);
        if rises {
            self.table.advance(worker, clock);
        }
        rises
    }

    /// Whoever is served at clock c may count on c - s iterations of everyone. While others count, they have them; when nobody does,
    /// the next who counts must not begin below that.
    fn note_served(&mut self, pull: &Held) {
        if let (PullKind::Gated { clock, .. }, Some(staleness)) = (pull.kind, self.spec.staleness()) {
            self.open = self.open.max(Clock(clock.0.saturating_sub(staleness)));
        }
    }

    /// What a pull waits for; none when it can be served.
    pub(super) fn waits(&self, pull: &Held) -> Option<Waits> {
        if self.values.is_empty() {
            return Some(Waits::Values);
        }
        let PullKind::Gated { clock, after } = pull.kind else {
            return None;
        };
        if !self.started {
            return Some(Waits::Start);
        }
        let (worker, incarnation) = pull.reader?;
        let member = self.member(worker, incarnation)?;
        if !member.window.has_all_to(after) {
            return Some(Waits::OwnPush { needs: after });
        }
        match self.policy.pull(&self.table, clock) {
            PullVerdict::Serve => None,
            PullVerdict::Hold { needs } => Some(Waits::Clock { needs }),
        }
    }

    fn reason(&self, waits: Waits) -> Option<HoldReason> {
        match waits {
            Waits::Values => Some(HoldReason::NoValues),
            Waits::Start => Some(HoldReason::NotStarted),
            Waits::OwnPush { needs } => Some(HoldReason::OwnPush { needs }),
            Waits::Clock { needs } => self.table.hold_reason(needs),
        }
    }

    fn serve(&self, now: Moment, pull: &Held, effects: &mut Vec<ShardEffect>) {
        let Some(values) = self.values.snapshot() else {
            return;
        };
        let minimum = self.table.minimum().unwrap_or_else(|| pull.clock());
        let served = Served {
            version: self.version,
            minimum,
            lead: if pull.is_gated() { pull.clock().0.saturating_sub(minimum.0) } else { 0 },
            held_us: pull.gated_since.map_or(0, |since| now.since(since).as_micros() as u64),
        };
        let (session, reader, request) = (pull.session, pull.reader, pull.request);
        effects.push(ShardEffect::Serve { session, reader, request, values, served });
    }

    /// The rows that a status shows, at most `most`.
    #[must_use]
    pub fn held_rows(&self, now: Moment, most: usize) -> Vec<HeldRow> {
        let row = |held: &Held| {
            let (worker, _) = held.reader?;
            let reason = self.reason(self.waits(held)?)?;
            let since_ms = now.since(held.since).as_millis() as u64;
            Some(HeldRow { worker, shard: self.id, clock: held.clock(), since_ms, reason })
        };
        self.held.iter().filter_map(row).take(most).collect()
    }
}
