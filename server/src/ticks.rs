//! When the control loop looks at the time, and whether it came too late to judge anybody's silence.

use std::time::{Duration, Instant};

use slackline_core::config::timers::STANDSTILL;
use tokio::time::sleep_until;

use crate::daemon::EVENTS_MAX;

/// The ticks of the control loop. Each is so long after the one before was taken.
#[derive(Debug)]
pub(crate) struct Ticks {
    every: Duration,
    /// Lateness from which on others must not be blamed: they speak four times in a lease, so that less harms nobody.
    tolerated: Duration,
    next: Instant,
    /// Events since the tick fell due.
    events_since: usize,
}

impl Ticks {
    pub(crate) fn new(now: Instant, every: Duration, lease: Duration) -> Self {
        Self { every, tolerated: lease / STANDSTILL, next: now + every, events_since: 0 }
    }

    /// Waits until the next tick is due.
    pub(crate) async fn due(&self) {
        sleep_until(self.next.into()).await;
    }

    /// Whether an event goes before a tick that is due: those do that waited in the queue by then, and later ones wait, so that
    /// no peer can keep the time from passing.
    pub(crate) const fn let_events_first(&self) -> bool {
        self.events_since < EVENTS_MAX
    }

    pub(crate) fn count_event(&mut self, now: Instant) {
        if now >= self.next {
            self.events_since += 1;
        }
    }

    /// Takes the tick that is due; for how long the process stood still before it, if that is too long for a judgement.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Duration> {
        let late = now.saturating_duration_since(self.next);
        self.next = now + self.every;
        self.events_since = 0;
        (late > self.tolerated).then_some(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(100);
    const LEASE: Duration = Duration::from_secs(2);

    #[test]
    fn a_tick_that_is_late_by_over_half_a_lease_says_so() {
        let began = Instant::now();
        let mut ticks = Ticks::new(began, EVERY, LEASE);
        let mut now = began;
        for (passed, expected) in
            [(EVERY, None), (EVERY + LEASE / 2, None), (EVERY + LEASE, Some(LEASE)), (EVERY, None)]
        {
            now += passed;
            assert_eq!(ticks.take(now), expected);
        }
    }

    #[test]
    fn what_waited_goes_first_and_what_comes_later_does_not() {
        let began = Instant::now();
        let mut ticks = Ticks::new(began, EVERY, LEASE);
        for _ in 0..2 * EVENTS_MAX {
            ticks.count_event(began);
        }
        assert!(ticks.let_events_first(), "no tick is due");
        for _ in 0..EVENTS_MAX {
            assert!(ticks.let_events_first());
            ticks.count_event(began + EVERY);
        }
        assert!(!ticks.let_events_first());
        ticks.take(began + EVERY);
        assert!(ticks.let_events_first());
    }
}
