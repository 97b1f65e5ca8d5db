//! A pull on its way through a shard: held until the run has begun, the reader's own pushes are in and the policy allows it.

use std::sync::Arc;

use slackline_core::codec::Patch;
use slackline_core::consistency::{HoldReason, Needs, PullVerdict, Reader};
use slackline_core::ids::{Clock, Moment, Version};
use slackline_core::wire::{HeldRow, PullKind, Served};

use super::held::{Held, Waits};
use super::{Shard, ShardEffect, ShardEvent, Snapshot, room};

impl Shard {
    pub(super) fn pull(&mut self, now: Moment, mut pull: Held, effects: &mut Vec<ShardEffect>) {
        if pull.kind != PullKind::Snapshot {
            let Some((worker, incarnation)) = pull.reader else { return };
            let Some(member) =
                self.members.get_mut(&worker).filter(|member| member.incarnation == incarnation)
            else {
                // The session of a fenced worker is being closed; there is nobody to answer.
                return;
            };
            member.session = Some(pull.session);
            if pull.gated_reader().is_some() {
                member.comes_to(pull.after(), pull.kind.completed());
            }
            // A worker has one gated pull at a time: a second one is a retry from a new session, or for fresher values. The very same
            // one goes on waiting: a host puts it into the journal once more for a new copy.
            let same = |held: &Held| {
                (held.session, held.request, held.kind) == (pull.session, pull.request, pull.kind)
            };
            if let Some(held) = self.held.take(worker).filter(same) {
                pull = held;
            }
        }
        self.try_serve(now, pull, effects);
    }

    /// Serves what the state has released. Returns whether that was anything.
    pub(super) fn serve_released(&mut self, now: Moment, effects: &mut Vec<ShardEffect>) -> bool {
        let ready = self.started && !self.values.is_empty();
        let mut released = self.held.release(ready, self.table.minimum(), self.open);
        while let Some(worker) = self.woken.pop() {
            released.extend(self.held.take_own(worker));
        }
        let any = !released.is_empty();
        for held in released {
            self.try_serve(now, held, effects);
        }
        any
    }

    fn try_serve(&mut self, now: Moment, mut pull: Held, effects: &mut Vec<ShardEffect>) {
        if self.note_clock(&pull) {
            // Else the reader would get values without the clock that its own rise has closed.
            self.close_clocks(now, effects);
        }
        match self.waits(now, &pull) {
            None => {
                self.note_served(&pull);
                self.serve(now, &pull, effects);
            }
            Some(waits) => {
                if matches!(waits, Waits::Policy(_)) && pull.gated_since.is_none() {
                    pull.gated_since = Some(now);
                }
                self.held.put(pull, waits);
            }
        }
    }

    /// A pull whose own pushes are all in says how many iterations the reader has completed (those of its clock, less those that it is
    /// ahead), which can be more than this shard has seen: a joiner is moved up to the minimum of the shard that is furthest.
    /// Returns whether the reader's clock rose.
    fn note_clock(&mut self, pull: &Held) -> bool {
        let (PullKind::Gated { after, .. }, Some((worker, incarnation))) = (pull.kind, pull.reader) else {
            return false;
        };
        let clock = pull.kind.completed();
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
    fn waits(&mut self, now: Moment, pull: &Held) -> Option<Waits> {
        if self.values.is_empty() {
            return Some(Waits::Values);
        }
        if pull.kind == PullKind::Snapshot {
            return None;
        }
        if !self.started {
            return Some(Waits::Start);
        }
        let (worker, incarnation) = pull.reader?;
        let member = self.members.get(&worker).filter(|member| member.incarnation == incarnation)?;
        let (clock, after) = (pull.clock(), pull.after());
        if !member.window.has_all_to(after) {
            return Some(Waits::OwnPush { needs: after });
        }
        if let PullKind::Fresher { seen, .. } = pull.kind
            && self.table.minimum().is_some_and(|minimum| minimum <= seen)
        {
            return Some(Waits::Policy(Needs::Minimum(seen.next())));
        }
        let reader = Reader { worker, clock, settled: member.window.is_settled() };
        let room = room(&self.table, self.open, &self.collected, self.collected_at);
        match self.policy.pull(now, &room, reader) {
            PullVerdict::Serve => None,
            PullVerdict::Hold(needs) => Some(Waits::Policy(needs)),
        }
    }

    fn reason(&self, waits: Waits) -> Option<HoldReason> {
        let room = self.room();
        match waits {
            // What it waited for when it was kept can have come, and something else not.
            Waits::Values | Waits::Start if self.values.is_empty() => Some(HoldReason::NoValues),
            Waits::Values | Waits::Start => Some(HoldReason::NotStarted),
            Waits::OwnPush { needs } => Some(HoldReason::OwnPush { needs }),
            Waits::Policy(Needs::Minimum(needs)) => self.table.hold_reason(needs),
            Waits::Policy(Needs::Open(needs)) => Some(HoldReason::Round { open: self.open, needs }),
            Waits::Policy(Needs::Settled) => {
                Some(HoldReason::Quorum { have: room.gathered, needs: self.policy.needed(&room) })
            }
        }
    }

    fn serve(&mut self, now: Moment, pull: &Held, effects: &mut Vec<ShardEffect>) {
        let Some(values) = self.values.snapshot() else {
            return;
        };
        let is_gated = pull.kind != PullKind::Snapshot;
        let base = self.note_answer(pull, is_gated);
        if is_gated
            && self.delay.spec().treatment.compensates()
            && let Some(member) = pull.reader.and_then(|(worker, _)| self.members.get_mut(&worker))
        {
            let former = member.read.replace((self.version, values.clone()));
            if let Some((_, former)) = former {
                self.values.give_back(former);
            }
        }
        let minimum = self.table.minimum().unwrap_or_else(|| pull.clock());
        let served = Served {
            version: self.version,
            minimum,
            lead: if is_gated { pull.clock().0.saturating_sub(minimum.0) } else { 0 },
            held_us: pull.gated_since.map_or(0, |since| now.since(since).as_micros() as u64),
        };
        let values = self.written(values, is_gated, base);
        let Held { session, reader, request, have, kind, .. } = *pull;
        effects.push(ShardEffect::Serve { session, reader, request, have, kind, values, served });
    }

    /// The present values as they are sent to a reader that has those of version `base`.
    fn written(&mut self, values: Arc<Vec<f32>>, is_gated: bool, base: Option<Version>) -> Snapshot {
        let buffers = self.values.buffers();
        // An evaluation measures what the shard has, not what a codec leaves of it.
        let is_plain = !is_gated || self.snapshots.are_plain();
        if let Some(base) = base {
            let blocks = self.blocks.since(base);
            // What is encoded has no blocks of its own; and what is put together is copied once more on either side.
            let is_small = is_plain && 2 * Patch::words_of(values.len(), &blocks) <= values.len();
            if blocks.is_empty() || is_small {
                return self.snapshots.patch((base, self.version), &values, &blocks, buffers);
            }
        }
        if is_plain { Snapshot::plain(values) } else { self.snapshots.of(self.version, values, buffers) }
    }

    /// The gated pulls that wait, as events: for a copy that begins with the state, which has none of them.
    pub(crate) fn held_again(&self) -> impl Iterator<Item = ShardEvent> + '_ {
        self.held.all().filter(|held| held.gated_reader().is_some()).map(|held| {
            let Held { session, reader, request, have, kind, .. } = *held;
            ShardEvent::Pull { session, reader, request, have, kind }
        })
    }

    /// The rows that a status shows, at most `most`.
    #[must_use]
    pub fn held_rows(&self, now: Moment, most: usize) -> Vec<HeldRow> {
        let row = |held: &Held| {
            let (worker, _) = held.reader?;
            let reason = self.reason(held.waits?)?;
            let since_ms = now.since(held.since).as_millis() as u64;
            Some(HeldRow { worker, shard: self.id, clock: held.clock(), since_ms, reason })
        };
        self.held.all().filter_map(row).take(most).collect()
    }
}
