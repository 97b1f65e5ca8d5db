//! A congestion controller that measures what the path delivers, instead of taking every loss for a full queue.
//!
//! CUBIC and NewReno halve or nearly halve their window at any loss, so at a loss of 3 % and a round trip of 100 ms they come to 1 Mbit/s
//! on any link. This one follows BBR (Cardwell et al., ACM Queue 14(5), 2016): the window follows from the greatest rate of delivery of the last
//! rounds (measured as in draft-cheng-iccrg-delivery-rate-estimation) and the least round trip of the last ten seconds. Two things differ.
//!
//! - **Pacing by acknowledgements.** quinn paces at 1.25 windows a round trip and gives a controller no other say. So the window is what is in flight and
//!   a credit, which grows with the measured rate from acknowledgement to acknowledgement.
//! - **A floor of the loss.** The least share that was lost in any of the last spans is the path's own; only what exceeds it tells
//!   of a full queue. Then less may be in flight, as in BBR's second version.
//!
//! Times come from outside; bytes are those of whole datagrams.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Rounds over which the greatest rate counts (BBR: 10).
const RATE_ROUNDS: u64 = 10;

/// How long a least round trip counts.
const ROUND_TRIP_AGE: Duration = Duration::from_secs(10);

/// How long less is in flight to measure it anew.
const PROBE_ROUND_TRIP: Duration = Duration::from_millis(200);

/// While it begins, a round that delivers so much more than the best before says that there may be more.
const GROWTH: f64 = 1.25;

/// Rounds without such growth that end the beginning; one is enough where a queue has formed too.
const ROUNDS_WITHOUT_GROWTH: u32 = 3;

/// A queue has formed where the round trip is so much longer than the least.
const QUEUED: f64 = 1.25;

/// What is sent for each byte that was delivered: more for a round, to see whether there is more; less until what that has queued
/// is gone; then as much, for six rounds (BBR's cycle). Slightly less, as the greatest of several measurements is a little too great.
const GAINS: [f64; 8] = [1.25, 0.75, 0.99, 0.99, 0.99, 0.99, 0.99, 0.99];

/// In flight at most, in products of rate and round trip. With less it would get little beside others that fill the queue, with more (BBR: 2)
/// the others would.
const IN_FLIGHT_MAX: f64 = 1.75;

/// In flight at least, in the same: what keeps the acknowledgements coming.
const IN_FLIGHT_MIN: f64 = 0.9;

/// Round trips below this are taken for this where what may be in flight is concerned: a receiver that computes for a moment answers
/// late, and on a short path that is many round trips.
const SHORT: Duration = Duration::from_millis(5);

/// Datagrams of one measurement of the loss, which is a round at least.
const SPAN_DATAGRAMS: u64 = 200;

/// Measurements over which the least loss counts as the path's own: two cycles at least, in which the queue was empty more than once.
const FLOOR_SPANS: usize = 16;

/// Loss above the floor that tells of a full queue.
const EXCESS_LOSS: f64 = 0.05;

/// What may be in flight after that.
const BACK_OFF: f64 = 0.85;

/// Datagrams that may always be in flight.
const DATAGRAMS_MIN: u64 = 4;

/// What is smaller is mostly an acknowledgement, which nobody acknowledges: to remember it would be for nothing.
const REMEMBERED_BYTES: u64 = 256;

/// Groups of datagrams that are remembered. At 10 Gbit/s, 200 ms and ten datagrams of Ethernet's size a group there are 17,000.
const FLIGHTS_MAX: usize = 1 << 16;

/// What was known when a group of datagrams was sent.
#[derive(Clone, Copy, Debug)]
struct Flight {
    sent: Instant,
    /// Bytes delivered by then, and when the last of them was.
    delivered: u64,
    delivered_at: Instant,
    /// When that one had been sent.
    first_sent: Instant,
    /// Whether there was nothing more to send.
    app_limited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// The window doubles each round, until it delivers no more.
    Begin { best: f64, without_growth: u32 },
    /// What that has queued goes.
    Drain,
    /// The cycle: a place in [`GAINS`].
    Cruise { phase: usize, since: Instant },
    /// Less in flight, to see how long the way is without a queue: the least round trip so far.
    Empty { until: Instant, least: Duration },
}

/// The controller of one path.
#[derive(Clone, Debug)]
pub(super) struct Model {
    initial_window: u64,
    datagram: u64,
    mode: Mode,
    window: u64,
    /// Bytes that may be sent beyond those in flight; below zero what was sent too much.
    credit: f64,
    flights: VecDeque<Flight>,
    /// Bytes acknowledged so far, and when the last of them were.
    delivered: u64,
    delivered_at: Instant,
    /// When those had been sent.
    first_sent: Instant,
    /// Of the acknowledgements that are being taken in: the newest datagram's time of sending.
    newest: Option<Instant>,
    acked: u64,
    in_flight: u64,
    is_idle: bool,
    app_limited: bool,
    /// The last round in which datagrams were marked.
    marked_in: u64,
    /// Number of the round, and what is delivered when it ends.
    round: u64,
    round_ends: u64,
    /// Bytes a second with their rounds: each less than all before it.
    rates: VecDeque<(u64, f64)>,
    round_trip: Option<Duration>,
    round_trip_at: Instant,
    /// The last one.
    latest: Duration,
    losses: Losses,
    /// In flight at most, in products, after a loss beyond the floor.
    most: f64,
}

/// The share that is lost, span by span.
#[derive(Clone, Debug, Default)]
struct Losses {
    lost: u64,
    delivered: u64,
    spans: VecDeque<f64>,
}

impl Losses {
    /// Ends a span if it is long enough; then whether more of it was lost than the path loses by itself.
    fn end_span(&mut self, datagram: u64) -> bool {
        let all = self.lost + self.delivered;
        if all < SPAN_DATAGRAMS * datagram {
            return false;
        }
        let share = self.lost as f64 / all as f64;
        (self.lost, self.delivered) = (0, 0);
        if self.spans.len() == FLOOR_SPANS {
            self.spans.pop_front();
        }
        self.spans.push_back(share);
        let floor = self.floor();
        // Three standard deviations of what chance loses of so many.
        let chance = 3.0 * (floor * (1.0 - floor) * datagram as f64 / all as f64).sqrt();
        share - floor > EXCESS_LOSS + chance
    }

    /// The share that the path loses by itself, as far as is known.
    fn floor(&self) -> f64 {
        self.spans.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }
}

impl Model {
    /// The controller of a path of which nothing is known. Sizes in bytes.
    pub(super) fn new(now: Instant, initial_window: u64, datagram: u16) -> Self {
        Self {
            initial_window,
            datagram: u64::from(datagram),
            mode: Mode::Begin { best: 0.0, without_growth: 0 },
            window: initial_window,
            credit: 0.0,
            flights: VecDeque::new(),
            delivered: 0,
            delivered_at: now,
            first_sent: now,
            newest: None,
            acked: 0,
            in_flight: 0,
            is_idle: true,
            marked_in: 0,
            app_limited: false,
            round: 0,
            round_ends: 0,
            rates: VecDeque::new(),
            round_trip: None,
            round_trip_at: now,
            latest: Duration::ZERO,
            losses: Losses::default(),
            most: IN_FLIGHT_MAX,
        }
    }

    /// Bytes that may be in flight.
    pub(super) fn window(&self) -> u64 {
        self.window.max(DATAGRAMS_MIN * self.datagram)
    }

    pub(super) fn set_datagram(&mut self, datagram: u16) {
        self.datagram = u64::from(datagram);
    }

    /// Datagrams went out together.
    pub(super) fn on_sent(&mut self, now: Instant, bytes: u64) {
        if self.is_idle {
            // What was delivered before the pause says nothing of the time since.
            (self.delivered_at, self.first_sent, self.is_idle) = (now, now, false);
        }
        self.credit -= bytes as f64;
        if bytes < REMEMBERED_BYTES {
            return;
        }
        if self.flights.len() == FLIGHTS_MAX {
            self.flights.pop_front();
        }
        let Self { delivered, delivered_at, first_sent, app_limited, .. } = *self;
        self.flights.push_back(Flight { sent: now, delivered, delivered_at, first_sent, app_limited });
    }

    /// A datagram that was sent then was delivered.
    pub(super) fn on_ack(&mut self, sent: Instant, bytes: u64) {
        self.acked += bytes;
        self.delivered += bytes;
        self.newest = self.newest.max(Some(sent));
    }

    /// A router has marked datagrams, since its queue is long. Once a round is enough.
    pub(super) fn on_marked(&mut self) {
        if self.round != self.marked_in {
            self.marked_in = self.round;
            self.back_off();
        }
    }

    /// Datagrams are lost.
    pub(super) fn on_lost(&mut self, bytes: u64) {
        self.losses.lost += bytes;
        // What is lost is no longer in flight, and is not sent again before its turn.
        if !matches!(self.mode, Mode::Begin { .. }) {
            self.window = self.window.saturating_sub(bytes).max(self.least());
        }
    }

    /// Nothing that was sent in a long time was delivered: what was known is of another path.
    pub(super) fn begin_anew(&mut self, now: Instant) {
        let datagram = u16::try_from(self.datagram).unwrap_or(u16::MAX);
        *self = Self::new(now, self.initial_window, datagram);
        self.window = DATAGRAMS_MIN * self.datagram;
    }

    /// All acknowledgements of one datagram were taken in. `in_flight` is what is left in flight.
    pub(super) fn on_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool) {
        let Some(newest) = self.newest.take() else { return };
        let since = now.saturating_duration_since(self.delivered_at);
        let acked = std::mem::take(&mut self.acked);
        self.losses.delivered += acked;
        self.see_round_trip(now, now.saturating_duration_since(newest));
        let is_new_round = self.see_delivery(now, newest);
        (self.delivered_at, self.first_sent) = (now, newest);
        (self.app_limited, self.is_idle) = (app_limited, in_flight == 0);

        self.in_flight = in_flight;
        if is_new_round {
            if self.losses.end_span(self.datagram) {
                self.back_off();
            }
            self.end_round();
        }
        self.advance(now, in_flight);
        self.set_window(since, acked, in_flight);
    }

    fn see_round_trip(&mut self, now: Instant, latest: Duration) {
        self.latest = latest;
        if let Mode::Empty { least, .. } = &mut self.mode {
            *least = latest.min(*least);
        }
        let least = self.round_trip.map_or(latest, |least| least.min(latest));
        // As short but for the noise is as short.
        if latest <= least + least / 16 {
            self.round_trip_at = now;
        }
        self.round_trip = Some(least);
    }

    /// Measures the rate of delivery; says whether a round is complete.
    fn see_delivery(&mut self, now: Instant, newest: Instant) -> bool {
        // Groups are in the order of their sending; of those before the newest nothing newer will be known.
        while self.flights.get(1).is_some_and(|next| next.sent <= newest) {
            self.flights.pop_front();
        }
        let Some(flight) = self.flights.front().copied().filter(|flight| flight.sent <= newest) else {
            return false;
        };
        let is_new_round = flight.delivered >= self.round_ends;
        if is_new_round {
            self.round += 1;
            self.round_ends = self.delivered;
        }
        // Neither a burst of sending nor one of acknowledgements makes the path faster.
        let took = now
            .saturating_duration_since(flight.delivered_at)
            .max(flight.sent.saturating_duration_since(flight.first_sent));
        if !took.is_zero() && took >= self.round_trip.unwrap_or(Duration::ZERO) / 2 {
            let rate = (self.delivered - flight.delivered) as f64 / took.as_secs_f64();
            // With nothing more to send it can only be too small.
            if !flight.app_limited || rate >= self.rate() {
                self.add_rate(rate);
            }
        }
        is_new_round
    }

    fn add_rate(&mut self, rate: f64) {
        while self.rates.back().is_some_and(|(_, before)| *before <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
        while self.rates.front().is_some_and(|(round, _)| round + RATE_ROUNDS < self.round) {
            self.rates.pop_front();
        }
    }

    /// Bytes a second that the path delivers; 0 if that is not known yet.
    fn rate(&self) -> f64 {
        self.rates.front().map_or(0.0, |(_, rate)| *rate)
    }

    /// Bytes on their way where the path is full and nothing is queued. Those that get lost are not made up for: they may be lost because too
    /// much is sent.
    fn product(&self, round_trip: Duration) -> f64 {
        self.rate() * round_trip.as_secs_f64()
    }

    fn least_product(&self) -> f64 {
        self.product(self.round_trip.unwrap_or(Duration::ZERO))
    }

    /// A queue was full: less may be in flight from now on.
    fn back_off(&mut self) {
        if let Mode::Begin { without_growth, .. } = &mut self.mode {
            // More is sent than passes: that ends the beginning with the round.
            *without_growth = ROUNDS_WITHOUT_GROWTH;
        }
        let product = self.least_product();
        if product > 0.0 {
            self.most = (BACK_OFF * self.in_flight as f64 / product).clamp(IN_FLIGHT_MIN, self.most);
        }
        if let Mode::Cruise { phase: phase @ 0, .. } = &mut self.mode {
            *phase = 1;
        }
    }

    /// Whether something waits before the link.
    fn is_queued(&self) -> bool {
        self.round_trip.is_some_and(|least| self.latest > least.max(SHORT).mul_f64(QUEUED))
    }

    /// What a round of the beginning has shown.
    fn end_round(&mut self) {
        let (rate, app_limited, is_queued) = (self.rate(), self.app_limited, self.is_queued());
        let Mode::Begin { best, without_growth } = &mut self.mode else { return };
        if app_limited {
            return;
        }
        if rate >= *best * GROWTH {
            (*best, *without_growth) =
                (rate, (*without_growth / ROUNDS_WITHOUT_GROWTH) * ROUNDS_WITHOUT_GROWTH);
        } else {
            *without_growth += if is_queued { ROUNDS_WITHOUT_GROWTH } else { 1 };
        }
        if *without_growth >= ROUNDS_WITHOUT_GROWTH {
            self.mode = Mode::Drain;
        }
    }

    /// Goes on to the next mode or phase, where it is time.
    fn advance(&mut self, now: Instant, in_flight: u64) {
        let round_trip = self.round_trip.unwrap_or(Duration::ZERO);
        let is_drained = in_flight as f64 <= self.least_product();
        match self.mode {
            Mode::Begin { .. } => {}
            Mode::Drain if is_drained => self.cruise(now, 2),
            Mode::Drain => {}
            Mode::Cruise { phase, since } => {
                // What others have queued cannot be drained, so that is not tried for long.
                let rounds = if phase == 1 { 2 } else { 1 };
                let is_over = now.saturating_duration_since(since) > rounds * round_trip;
                if is_over || (phase == 1 && is_drained) {
                    if phase == 0 && self.most < IN_FLIGHT_MAX {
                        // More went, and was not lost.
                        self.most = (self.most * GROWTH).min(IN_FLIGHT_MAX);
                    }
                    self.cruise(now, (phase + 1) % GAINS.len());
                }
                if now.saturating_duration_since(self.round_trip_at) > ROUND_TRIP_AGE && !self.app_limited {
                    let until = now + PROBE_ROUND_TRIP.max(2 * round_trip);
                    self.mode = Mode::Empty { until, least: self.latest };
                }
            }
            Mode::Empty { until, least } => {
                if now >= until {
                    (self.round_trip, self.round_trip_at) = (Some(least), now);
                    self.cruise(now, 0);
                }
            }
        }
    }

    fn cruise(&mut self, since: Instant, phase: usize) {
        self.mode = Mode::Cruise { phase, since };
    }

    /// Bytes that may be in flight whatever was sent before.
    fn least(&self) -> u64 {
        let share = match self.mode {
            Mode::Empty { .. } => 0.5,
            Mode::Cruise { phase: 1, .. } | Mode::Drain => 0.75,
            _ => IN_FLIGHT_MIN,
        };
        ((share * self.least_product()) as u64).max(DATAGRAMS_MIN * self.datagram)
    }

    fn set_window(&mut self, since: Duration, acked: u64, in_flight: u64) {
        let gain = match self.mode {
            Mode::Begin { .. } => {
                // More than is used is of no use, and what would only wait is not sent before the round has shown that it passes.
                if !self.app_limited && !self.is_queued() {
                    self.window += acked;
                }
                return;
            }
            Mode::Drain => 0.0,
            Mode::Cruise { phase, .. } => GAINS[phase],
            Mode::Empty { .. } => 0.5,
        };
        let round_trip = self.round_trip.unwrap_or(Duration::ZERO);
        let rate = self.rate();
        // What was not used in time is not used later, else a pause would end with a burst.
        let burst =
            rate * (round_trip / 4).clamp(Duration::from_millis(2), Duration::from_millis(25)).as_secs_f64();
        let burst = burst.max((DATAGRAMS_MIN * self.datagram) as f64);
        self.credit = (self.credit.max(0.0) + gain * rate * since.as_secs_f64()).min(burst);
        let most = (self.most * self.product(round_trip.max(SHORT))) as u64;
        self.window = (in_flight + self.credit as u64).min(most).max(self.least());
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
