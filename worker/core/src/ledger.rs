//! Where the worker's time goes.
//!
//! At every instant after its first work the worker is in exactly one [`Category`], so the shares add up to
//! the total by construction. What a server says it held for other workers' clocks is then moved from pushing
//! or pulling to waiting, and the time that a push lay there before it was taken up to being busy, never more than the phase has
//! lasted. Computing that began before all values were there says afterwards for how long it had to wait for them: that was pulling.

use slackline_core::ids::Moment;
use slackline_core::wire::Times;

/// What the worker's time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    Compute,
    Push,
    Pull,
    Data,
    Evaluate,
    /// For other workers, where they are waited for directly.
    Wait,
}

/// A phase of the present iteration in which a server may hold the worker.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    /// Time spent in it.
    spent: u64,
    /// The longest hold that a server has told of.
    held: u64,
    /// How much of it has been moved to waiting.
    moved: u64,
    /// The longest time that a server has told of in which it was busy.
    busy: u64,
    /// How much of that has been moved.
    moved_busy: u64,
}

impl Phase {
    /// What is to be moved now: the hold as far as the phase has lasted.
    fn due(&self) -> u64 {
        self.held.min(self.spent).saturating_sub(self.moved)
    }

    /// The same of the time in which the server was busy: of what is not a hold.
    fn due_busy(&self) -> u64 {
        self.busy.min(self.spent.saturating_sub(self.moved)).saturating_sub(self.moved_busy)
    }
}

/// Nanoseconds by category, since the last report.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    compute: u64,
    wait: u64,
    busy: u64,
    push: u64,
    pull: u64,
    fetch: u64,
    evaluate: u64,
    total: u64,
}

/// The account. It stands still before [`Ledger::enter`] names a category and after it names none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    spent: Spent,
    push: Phase,
    pull: Phase,
    /// Time of pulling that was booked as computing, and is not moved yet.
    stalled: u64,
    /// When the phases began.
    began: Moment,
    category: Option<Category>,
    since: Moment,
}

impl Ledger {
    /// Books the time until `now`.
    pub(crate) fn advance(&mut self, now: Moment) {
        let nanos = now.0.saturating_sub(self.since.0);
        self.since = self.since.max(now);
        let spent = &mut self.spent;
        match self.category {
            None => return,
            Some(Category::Compute) => spent.compute += nanos,
            Some(Category::Push) => {
                spent.push += nanos;
                self.push.spent += nanos;
            }
            Some(Category::Pull) => {
                spent.pull += nanos;
                self.pull.spent += nanos;
            }
            Some(Category::Data) => spent.fetch += nanos,
            Some(Category::Evaluate) => spent.evaluate += nanos,
            Some(Category::Wait) => spent.wait += nanos,
        }
        spent.total += nanos;
        self.settle();
    }

    /// Books the time until `now`, and from now on under another category; none stops the account.
    pub(crate) fn enter(&mut self, category: Option<Category>, now: Moment) {
        self.advance(now);
        self.category = category;
    }

    /// Pushes go out: the phases of a new iteration begin.
    pub(crate) fn begin_phases(&mut self) {
        (self.push, self.pull, self.began) = (Phase::default(), Phase::default(), self.since);
    }

    /// A server held the answer to a push for so long, for other workers, after it had been too busy to take it up for so long.
    pub(crate) fn push_held(&mut self, held_us: u64, busy_us: u64) {
        self.push.held = self.push.held.max(held_us.saturating_mul(1000));
        self.push.busy = self.push.busy.max(busy_us.saturating_mul(1000));
        self.settle();
    }

    /// A server held a pull for so long, for other workers, that was made at a moment. As long as the worker still computed, that cost
    /// nothing: only what of it lies in the present phase counts.
    pub(crate) fn pull_held(&mut self, held_us: u64, since: Moment) {
        let before = self.began.0.saturating_sub(since.0);
        self.pull.held = self.pull.held.max(held_us.saturating_mul(1000).saturating_sub(before));
        self.settle();
    }

    /// Computing stood still for so long for want of values. What of it was reported as computing is taken from what comes.
    pub(crate) fn stalled(&mut self, waited_us: u64) {
        self.stalled = self.stalled.saturating_add(waited_us.saturating_mul(1000));
        self.settle();
    }

    /// Moves held time to waiting; time that was reported already stays where it was reported.
    fn settle(&mut self) {
        let spent = &mut self.spent;
        let stalled = self.stalled.min(spent.compute);
        self.stalled -= stalled;
        spent.compute -= stalled;
        spent.pull += stalled;
        self.pull.spent += stalled;
        for (phase, from) in [(&mut self.push, &mut spent.push), (&mut self.pull, &mut spent.pull)] {
            let moved = phase.due().min(*from);
            phase.moved += moved;
            *from -= moved;
            spent.wait += moved;
            let busy = phase.due_busy().min(*from);
            phase.moved_busy += busy;
            *from -= busy;
            spent.busy += busy;
        }
    }

    /// The times since the last call. Parts of a microsecond are left for the next one.
    pub(crate) fn take(&mut self) -> Times {
        let spent = &mut self.spent;
        let take = |nanos: &mut u64| {
            let whole = *nanos / 1000;
            *nanos %= 1000;
            whole
        };
        Times {
            compute_us: take(&mut spent.compute),
            wait_for_clock_us: take(&mut spent.wait),
            push_us: take(&mut spent.push),
            busy_us: take(&mut spent.busy),
            pull_us: take(&mut spent.pull),
            data_us: take(&mut spent.fetch),
            evaluate_us: take(&mut spent.evaluate),
            total_us: take(&mut spent.total),
        }
    }

    /// Whether the shares are the total.
    pub(crate) fn is_balanced(&self) -> bool {
        let Spent { compute, wait, busy, push, pull, fetch, evaluate, total } = self.spent;
        let shares = compute + wait + busy + push + pull + fetch + evaluate;
        // The remainders that `take` leaves are under a microsecond each.
        shares.abs_diff(total) < 7_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(us: u64) -> Moment {
        Moment(us * 1000)
    }

    #[test]
    fn a_hold_is_waiting_as_far_as_the_phase_lasted() {
        let mut ledger = Ledger::default();
        ledger.enter(Some(Category::Push), at(10));
        ledger.advance(at(30));
        ledger.push_held(15, 0);
        // A pull that was answered before the push: its hold may only cover time spent pulling.
        ledger.pull_held(500, at(10));
        ledger.enter(Some(Category::Pull), at(30));
        ledger.enter(Some(Category::Compute), at(37));
        ledger.enter(None, at(137));
        ledger.enter(None, at(1000));
        let times = ledger.take();
        let expected =
            Times { compute_us: 100, wait_for_clock_us: 22, push_us: 5, total_us: 127, ..Times::default() };
        assert_eq!(times, expected);
    }

    #[test]
    fn the_larger_of_two_holds_counts_once() {
        let mut ledger = Ledger::default();
        ledger.enter(Some(Category::Pull), at(0));
        ledger.advance(at(100));
        ledger.pull_held(40, at(0));
        ledger.pull_held(60, at(0));
        assert_eq!(ledger.take().wait_for_clock_us, 60);
    }

    #[test]
    fn a_pull_that_was_held_while_the_worker_computed_is_waiting_for_the_rest_only() {
        let mut ledger = Ledger::default();
        ledger.enter(Some(Category::Compute), at(0));
        ledger.advance(at(100));
        ledger.begin_phases();
        ledger.enter(Some(Category::Pull), at(100));
        ledger.advance(at(130));
        // It was made 60 microseconds before the push went out, held for 80, and took 10 to come.
        ledger.pull_held(80, at(40));
        let times = ledger.take();
        assert_eq!((times.compute_us, times.wait_for_clock_us, times.pull_us), (100, 20, 10));
    }

    #[test]
    fn computing_that_stood_still_was_pulling_and_a_hold_is_waiting() {
        let mut ledger = Ledger::default();
        ledger.enter(Some(Category::Compute), at(0));
        ledger.begin_phases();
        ledger.advance(at(30));
        ledger.pull_held(10, at(0));
        assert_eq!(ledger.take().compute_us, 30, "it is not known yet");
        ledger.advance(at(50));
        ledger.stalled(35);
        ledger.advance(at(100));
        let times = ledger.take();
        let expected =
            Times { compute_us: 35, wait_for_clock_us: 10, pull_us: 25, total_us: 70, ..Times::default() };
        assert_eq!(times, expected, "what was told too soon is taken from what comes");
    }

    #[test]
    fn time_that_was_reported_is_not_moved_afterwards() {
        let mut ledger = Ledger::default();
        ledger.enter(Some(Category::Push), at(0));
        ledger.enter(Some(Category::Compute), at(50));
        assert_eq!(ledger.take().push_us, 50);
        ledger.push_held(50, 0);
        assert_eq!(ledger.take().wait_for_clock_us, 0);
        assert!(ledger.is_balanced());
    }

    proptest! {
        #[test]
        fn the_shares_are_the_total(steps in prop::collection::vec((0..10_u8, 0..5_000_000_u64, any::<u64>()), 0..80)) {
            let mut ledger = Ledger::default();
            let (mut now, mut sum, mut total) = (Moment(0), 0_u64, 0);
            for (step, nanos, held) in steps {
                now = Moment(now.0 + nanos);
                ledger.advance(now);
                match step {
                    0 => ledger.enter(Some(Category::Compute), now),
                    1 => { ledger.begin_phases(); ledger.enter(Some(Category::Push), now) }
                    2 => ledger.enter(Some(Category::Pull), now),
                    3 => ledger.enter(Some(Category::Data), now),
                    4 => ledger.enter(Some(Category::Evaluate), now),
                    5 => ledger.push_held(held % 10_000, held % 7_000),
                    6 => ledger.pull_held(held, Moment(now.0 / 2)),
                    7 => ledger.enter(Some(Category::Wait), now),
                    8 => ledger.stalled(held % 3_000),
                    _ => {
                        let times = ledger.take();
                        total += times.total_us;
                        sum += times.compute_us + times.wait_for_clock_us + times.push_us + times.pull_us;
                        sum += times.busy_us + times.data_us + times.evaluate_us;
                    }
                }
                prop_assert!(ledger.is_balanced());
                prop_assert!(sum.abs_diff(total) <= 8);
            }
        }
    }
}
