//! The pulls that wait at a shard, sorted by what they wait for: an event looks only at those that it can release.

use std::collections::BTreeMap;

use slackline_core::consistency::Needs;
use slackline_core::ids::{Clock, Incarnation, Moment, Sequence, SessionId, WorkerId};
use slackline_core::limits::WORKER_COUNT_MAX;
use slackline_core::wire::PullKind;

/// Snapshots that may wait, for a shard's values or for its copies, one a session. More than there can be sessions at once: those beyond are
/// of peers that have gone.
pub(crate) const SNAPSHOTS_MAX: usize = WORKER_COUNT_MAX as usize + 1024;

/// A pull that waits, or is about to be served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// The session to answer.
    pub session: SessionId,
    /// The worker that reads; none for an observer.
    pub reader: Option<(WorkerId, Incarnation)>,
    /// Number of the pull.
    pub request: u64,
    /// That of an earlier one whose answer lies where this one's is read into; zero for none.
    pub have: u64,
    /// Gated or not.
    pub kind: PullKind,
    /// When it arrived.
    pub since: Moment,
    /// When the policy first held it.
    pub(super) gated_since: Option<Moment>,
    /// What it waits for.
    pub(super) waits: Option<Waits>,
}

/// What a pull waits for, without the names that a report needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    Values,
    Start,
    OwnPush { needs: Sequence },
    Policy(Needs),
}

impl Held {
    pub(super) const fn new(
        session: SessionId,
        reader: Option<(WorkerId, Incarnation)>,
        (request, have): (u64, u64),
        kind: PullKind,
        since: Moment,
    ) -> Self {
        Self { session, reader, request, have, kind, since, gated_since: None, waits: None }
    }

    /// The clock at which its values are used.
    pub(super) const fn clock(&self) -> Clock {
        match self.kind {
            PullKind::Gated { clock, .. } | PullKind::Fresher { clock, .. } => clock,
            PullKind::Snapshot => Clock(0),
        }
    }

    /// The last push of its reader that the values must include.
    pub(super) const fn after(&self) -> Sequence {
        match self.kind {
            PullKind::Gated { after, .. } | PullKind::Fresher { after, .. } => after,
            PullKind::Snapshot => Sequence(0),
        }
    }

    /// The reader, if the clock gates it.
    pub(super) fn gated_reader(&self) -> Option<WorkerId> {
        self.reader.map(|(worker, _)| worker).filter(|_| !matches!(self.kind, PullKind::Snapshot))
    }
}

/// A place to wait in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Early,
    Own,
    Minimum(Clock),
    Open(Clock),
}

/// See the module. Within a place, the order is that of arrival.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldPulls {
    /// For the initial values or the start.
    early: Vec<Held>,
    /// For the reader's own pushes to arrive, or to be in the values.
    own: BTreeMap<WorkerId, Held>,
    /// For the minimum clock.
    minimum: BTreeMap<Clock, Vec<Held>>,
    /// For a clock to be open.
    open: BTreeMap<Clock, Vec<Held>>,
    /// Where the one gated pull of each reader is.
    places: BTreeMap<WorkerId, Place>,
}

impl HeldPulls {
    /// Keeps a pull. The reader's earlier gated one must have been taken away.
    pub(super) fn put(&mut self, held: Held, waits: Waits) {
        let held = Held { waits: Some(waits), ..held };
        let place = match (waits, held.gated_reader()) {
            (Waits::Policy(Needs::Minimum(clock)), _) => Place::Minimum(clock),
            (Waits::Policy(Needs::Open(clock)), _) => Place::Open(clock),
            (Waits::OwnPush { .. } | Waits::Policy(Needs::Settled), Some(_)) => Place::Own,
            _ => Place::Early,
        };
        if let Some(reader) = held.gated_reader() {
            self.places.insert(reader, place);
            if place == Place::Own {
                self.own.insert(reader, held);
                return;
            }
        } else {
            self.make_room_early(held.session);
        }
        match place {
            Place::Minimum(clock) => self.minimum.entry(clock).or_default().push(held),
            Place::Open(clock) => self.open.entry(clock).or_default().push(held),
            Place::Own | Place::Early => self.early.push(held),
        }
    }

    /// Of the snapshots that a session asks for before there are values, the last waits; of peers that have gone, some may.
    fn make_room_early(&mut self, session: SessionId) {
        let is_snapshot = |held: &Held| held.gated_reader().is_none();
        self.early.retain(|held| held.session != session || !is_snapshot(held));
        if self.early.iter().filter(|held| is_snapshot(held)).count() >= SNAPSHOTS_MAX
            && let Some(oldest) = self.early.iter().position(is_snapshot)
        {
            self.early.remove(oldest);
        }
    }

    /// The gated pull of a reader.
    pub(super) fn of(&self, reader: WorkerId) -> Option<&Held> {
        let is_its = |held: &&Held| held.gated_reader() == Some(reader);
        match self.places.get(&reader)? {
            Place::Early => self.early.iter().find(is_its),
            Place::Own => self.own.get(&reader),
            Place::Minimum(clock) => self.minimum.get(clock)?.iter().find(is_its),
            Place::Open(clock) => self.open.get(clock)?.iter().find(is_its),
        }
    }

    /// Takes the gated pull of a reader away.
    pub(super) fn take(&mut self, reader: WorkerId) -> Option<Held> {
        let take = |kept: &mut Vec<Held>| {
            let place = kept.iter().position(|held| held.gated_reader() == Some(reader))?;
            Some(kept.remove(place))
        };
        match self.places.remove(&reader)? {
            Place::Early => take(&mut self.early),
            Place::Own => self.own.remove(&reader),
            Place::Minimum(clock) => take_from(&mut self.minimum, clock, take),
            Place::Open(clock) => take_from(&mut self.open, clock, take),
        }
    }

    /// Takes the pull of a reader that waits for its own pushes.
    pub(super) fn take_own(&mut self, reader: WorkerId) -> Option<Held> {
        let held = self.own.remove(&reader)?;
        self.places.remove(&reader);
        Some(held)
    }

    /// Drops all pulls of a worker.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.take(worker);
        self.early.retain(|held| held.reader.is_none_or(|(reader, _)| reader != worker));
    }

    /// Takes all that the present state may release: with no minimum, all that wait for one.
    pub(super) fn release(&mut self, ready: bool, minimum: Option<Clock>, open: Clock) -> Vec<Held> {
        let mut released = if ready { std::mem::take(&mut self.early) } else { Vec::new() };
        take_up_to(&mut self.minimum, minimum, &mut released);
        take_up_to(&mut self.open, Some(open), &mut released);
        for reader in released.iter().filter_map(Held::gated_reader) {
            self.places.remove(&reader);
        }
        released
    }

    /// All pulls that wait.
    pub(super) fn all(&self) -> impl Iterator<Item = &Held> {
        let sorted = self.minimum.values().chain(self.open.values()).flatten();
        self.early.iter().chain(self.own.values()).chain(sorted)
    }

    /// Nothing is kept that [`HeldPulls::release`] would release.
    ///
    /// # Panics
    /// When something is: for tests and the simulated world.
    pub(super) fn check(&self, ready: bool, minimum: Option<Clock>, open: Clock) {
        assert!(!ready || self.early.is_empty(), "pulls are held that could be served: {:?}", self.early);
        if let Some(first) = self.minimum.keys().next() {
            assert!(
                minimum.is_some_and(|minimum| minimum < *first),
                "a pull for {first} is held at {minimum:?}"
            );
        }
        if let Some(first) = self.open.keys().next() {
            assert!(open < *first, "a pull for {first} is held although {open} is open");
        }
        let gated = self.all().filter(|held| held.gated_reader().is_some()).count();
        assert_eq!(gated, self.places.len(), "a gated pull is lost or kept twice");
    }
}

fn take_from(
    kept: &mut BTreeMap<Clock, Vec<Held>>,
    clock: Clock,
    take: impl FnOnce(&mut Vec<Held>) -> Option<Held>,
) -> Option<Held> {
    let waiting = kept.get_mut(&clock)?;
    let held = take(waiting);
    if waiting.is_empty() {
        kept.remove(&clock);
    }
    held
}

fn take_up_to(kept: &mut BTreeMap<Clock, Vec<Held>>, clock: Option<Clock>, released: &mut Vec<Held>) {
    while let Some(entry) = kept.first_entry() {
        if clock.is_some_and(|clock| clock < *entry.key()) {
            return;
        }
        released.extend(entry.remove());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(session: u64, request: u64) -> Held {
        Held::new(SessionId(session), None, (request, 0), PullKind::Snapshot, Moment(0))
    }

    #[test]
    fn snapshots_that_wait_for_values_are_bounded_for_one_session_and_for_all() {
        let mut held = HeldPulls::default();
        let reader = (WorkerId(0), Incarnation(1));
        let kind = PullKind::Gated { clock: Clock(0), after: Sequence(0), ahead: 0 };
        held.put(Held::new(SessionId(3), Some(reader), (1, 0), kind, Moment(0)), Waits::Start);
        for request in 0..100 {
            held.put(snapshot(3, request), Waits::Values);
        }
        let requests: Vec<_> = held.all().map(|held| held.request).collect();
        assert_eq!(requests, [1, 99], "the last of the session, and its worker's gated pull");
        let last = SNAPSHOTS_MAX as u64 + 9;
        for session in 0..=last {
            held.put(snapshot(session, session), Waits::Values);
        }
        assert_eq!(held.all().count(), SNAPSHOTS_MAX + 1);
        held.check(false, None, Clock(0));
        let newest = held.release(true, None, Clock(0)).pop();
        assert_eq!(newest.map(|held| held.session), Some(SessionId(last)));
        held.check(true, None, Clock(0));
    }
}
