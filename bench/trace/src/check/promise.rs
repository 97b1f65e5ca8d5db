//! What a policy promises, in the terms that records can be held against.

use slackline_core::trace::Rule;

/// What a reader may count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reads {
    /// A reader at clock c sees the first c - s iterations of the active workers; none when it may count on nothing.
    pub(super) staleness: Option<u64>,
    /// Workers whose iterations may be missing all the same.
    pub(super) late: u64,
    /// Its own pushes are in the values, or left out for good; else they need only have arrived.
    pub(super) own_settled: bool,
    /// Whether a reader is held for nothing else.
    pub(super) holds_no_longer: bool,
}

/// What makes a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applies {
    /// Each push.
    Alone,
    /// The mean of one clock.
    Clock,
    /// The mean of so many pushes, and of those that come within the grace; none for one of each active worker.
    Quorum { count: Option<u64>, grace_ns: u64 },
    /// Nothing is known about it.
    Any,
}

/// What a policy promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
    pub(super) reads: Reads,
    pub(super) applies: Applies,
    /// Whether a worker that is late goes on where the others are.
    pub(super) moves_up: bool,
}

impl Promise {
    pub(super) fn of(rule: Rule) -> Self {
        let bounded = |staleness| Reads {
            staleness: Some(staleness),
            late: 0,
            own_settled: true,
            holds_no_longer: true,
        };
        let unbounded = |own_settled| Reads { staleness: None, late: 0, own_settled, holds_no_longer: true };
        let (reads, applies) = match rule {
            Rule::Bsp => (bounded(0), Applies::Clock),
            Rule::Ssp { staleness } | Rule::Essp { staleness } => (bounded(staleness), Applies::Alone),
            Rule::Dssp { high, .. } => (Reads { holds_no_longer: false, ..bounded(high) }, Applies::Alone),
            Rule::Asp => (unbounded(true), Applies::Alone),
            Rule::Backup { late } => (Reads { late, ..bounded(0) }, Applies::Clock),
            Rule::Quorum { count, grace_ns, holds } => {
                (unbounded(holds), Applies::Quorum { count, grace_ns })
            }
            Rule::Buffer { count } => (unbounded(false), Applies::Quorum { count, grace_ns: 0 }),
            Rule::Other => (Reads { holds_no_longer: false, ..unbounded(false) }, Applies::Any),
        };
        let moves_up = matches!(rule, Rule::Backup { late: 1.. } | Rule::Quorum { holds: true, .. });
        Self { reads, applies, moves_up }
    }
}
