//! Senders on one link in virtual time: what they deliver, lose and leave in its queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// Bytes of every datagram.
const DATAGRAM: u64 = 1452;

/// A link that all senders share.
#[derive(Clone, Copy, Debug)]
struct Link {
    mbit: f64,
    /// One way.
    delay_ms: u64,
    loss: f64,
    /// What waits at most, in milliseconds of the link's time.
    queue_ms: u64,
}

/// What a sender does; ours, or what others do.
trait Sending {
    fn on_sent(&mut self, now: Instant);
    fn on_ack(&mut self, now: Instant, sent: Instant, in_flight: u64);
    fn on_lost(&mut self, sent: Instant, now: Instant);
    fn window(&self) -> u64;
}

impl Sending for Model {
    fn on_sent(&mut self, now: Instant) {
        Self::on_sent(self, now, DATAGRAM);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, in_flight: u64) {
        Self::on_ack(self, sent, DATAGRAM);
        self.on_acks(now, in_flight, false);
    }

    fn on_lost(&mut self, _: Instant, _: Instant) {
        Self::on_lost(self, DATAGRAM);
    }

    fn window(&self) -> u64 {
        Self::window(self)
    }
}

/// Additive increase, multiplicative decrease: what most of the others amount to.
struct Halving {
    window: f64,
    threshold: f64,
    recovered: Option<Instant>,
}

impl Sending for Halving {
    fn on_sent(&mut self, _: Instant) {}

    fn on_ack(&mut self, _: Instant, _: Instant, _: u64) {
        let datagram = DATAGRAM as f64;
        self.window +=
            if self.window < self.threshold { datagram } else { datagram * datagram / self.window };
    }

    fn on_lost(&mut self, sent: Instant, now: Instant) {
        if self.recovered.is_none_or(|recovered| sent > recovered) {
            self.recovered = Some(now);
            self.window = (self.window / 2.0).max(2.0 * DATAGRAM as f64);
            self.threshold = self.window;
        }
    }

    fn window(&self) -> u64 {
        self.window as u64
    }
}

/// What became of one sender's datagrams.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    delivered: u64,
    lost: u64,
    /// Longest time in the queue over the second half of the run.
    queued: Duration,
}

struct Flow {
    sender: Box<dyn Sending>,
    next: u64,
    open: BTreeMap<u64, Instant>,
    round_trip: Duration,
    /// When pacing lets the next one go, and whether that is on the agenda.
    paced: Instant,
    is_waiting: bool,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send,
    Ack(u64),
    /// Looks whether nothing was acknowledged in a long time.
    Timeout,
}

/// Lets senders send for some seconds all they can; what became of the datagrams of each.
fn run(link: Link, seconds: u64, senders: Vec<Box<dyn Sending>>) -> Vec<Outcome> {
    let began = Instant::now();
    let end = began + Duration::from_secs(seconds);
    let mut chance = ChaCha8Rng::seed_from_u64(1);
    let mut agenda = BinaryHeap::new();
    let mut flows: Vec<Flow> = senders
        .into_iter()
        .map(|sender| Flow {
            sender,
            next: 0,
            open: BTreeMap::new(),
            round_trip: Duration::from_millis(100),
            paced: began,
            is_waiting: true,
            outcome: Outcome::default(),
        })
        .collect();
    for place in 0..flows.len() {
        agenda.extend([Event::Send, Event::Timeout].map(|event| Reverse((began, 0, place, event))));
    }
    let (mut free, mut number) = (began, 1);
    let takes = Duration::from_secs_f64(DATAGRAM as f64 * 8.0 / (link.mbit * 1e6));
    let (delay, queue) = (Duration::from_millis(link.delay_ms), Duration::from_millis(link.queue_ms));
    while let Some(Reverse((now, _, place, event))) = agenda.pop()
        && now < end
    {
        let flow = &mut flows[place];
        match event {
            Event::Send => flow.is_waiting = false,
            Event::Ack(acked) => flow.acknowledged(now, acked),
            Event::Timeout => {
                flow.time_out(now);
                agenda.push(Reverse((now + flow.round_trip, number, place, Event::Timeout)));
                number += 1;
            }
        }
        // As quinn: one and a quarter windows a round trip.
        while (flow.open.len() as u64 + 1) * DATAGRAM <= flow.sender.window() && !flow.is_waiting {
            if flow.paced > now {
                flow.is_waiting = true;
                agenda.push(Reverse((flow.paced, number, place, Event::Send)));
                number += 1;
                break;
            }
            let pace = flow.round_trip.mul_f64(DATAGRAM as f64 / (1.25 * flow.sender.window() as f64));
            // Bursts of two milliseconds are allowed, as there.
            flow.paced = flow.paced.max(now - Duration::from_millis(2)) + pace;
            flow.sender.on_sent(now);
            flow.open.insert(flow.next, now);
            flow.next += 1;
            let leaves = free.max(now);
            if leaves - now > queue {
                continue;
            }
            if now > began + Duration::from_secs(seconds) / 2 {
                flow.outcome.queued = flow.outcome.queued.max(leaves - now);
            }
            free = leaves + takes;
            if !chance.random_bool(link.loss) {
                agenda.push(Reverse((free + 2 * delay, number, place, Event::Ack(flow.next - 1))));
                number += 1;
            }
        }
    }
    flows.into_iter().map(|flow| flow.outcome).collect()
}

impl Flow {
    /// Everything is lost of which nothing was heard for three round trips.
    fn time_out(&mut self, now: Instant) {
        while let Some((&first, &sent)) = self.open.first_key_value()
            && now - sent > 3 * self.round_trip
        {
            self.open.remove(&first);
            self.outcome.lost += 1;
            self.sender.on_lost(sent, now);
        }
    }

    fn acknowledged(&mut self, now: Instant, acked: u64) {
        let Some(sent) = self.open.remove(&acked) else { return };
        self.outcome.delivered += 1;
        self.round_trip = (self.round_trip * 7 + (now - sent)) / 8;
        self.sender.on_ack(now, sent, self.open.len() as u64 * DATAGRAM);
        while let Some((&first, &sent)) = self.open.first_key_value()
            && first + 3 <= acked
        {
            self.open.remove(&first);
            self.outcome.lost += 1;
            self.sender.on_lost(sent, now);
        }
    }
}

fn ours() -> Box<dyn Sending> {
    Box::new(Model::new(Instant::now(), 64 * DATAGRAM, DATAGRAM as u16))
}

fn halving() -> Box<dyn Sending> {
    Box::new(Halving { window: 64.0 * DATAGRAM as f64, threshold: f64::INFINITY, recovered: None })
}

/// The share of the link's rate that was delivered, the share of the datagrams that were lost, and the longest time in the queue.
fn alone(link: Link, seconds: u64, sender: Box<dyn Sending>) -> (f64, f64, Duration) {
    let outcome = run(link, seconds, vec![sender])[0];
    let rate = outcome.delivered as f64 * DATAGRAM as f64 * 8.0 / seconds as f64;
    let lost = outcome.lost as f64 / (outcome.lost + outcome.delivered) as f64;
    (rate / (link.mbit * 1e6), lost, outcome.queued)
}

/// Both senders' shares of the link's rate.
fn beside(link: Link, seconds: u64, senders: [Box<dyn Sending>; 2]) -> [f64; 2] {
    let outcomes = run(link, seconds, senders.into());
    let share = |place: usize| {
        outcomes[place].delivered as f64 * DATAGRAM as f64 * 8.0 / seconds as f64 / (link.mbit * 1e6)
    };
    [share(0), share(1)]
}

#[test]
fn a_link_is_used_whatever_it_loses_by_itself() {
    for (mbit, delay_ms) in [(10.0, 10), (100.0, 1), (100.0, 10), (50.0, 50)] {
        for (loss, least) in [(0.0, 0.93), (0.03, 0.87), (0.1, 0.72)] {
            let link = Link { mbit, delay_ms, loss, queue_ms: 2 * delay_ms };
            let (used, lost, queued) = alone(link, 15, ours());
            assert!(used > least, "{link:?}: {used:.3} of it is used");
            assert!(lost < loss + 0.03, "{link:?}: {lost:.3} is lost");
            assert!(
                queued <= Duration::from_millis(delay_ms * 3 / 2 + 5),
                "{link:?}: {queued:?} in the queue"
            );
        }
    }
    // What it is for.
    let link = Link { mbit: 50.0, delay_ms: 50, loss: 0.03, queue_ms: 100 };
    assert!(alone(link, 15, halving()).0 < 0.1);
}

#[test]
fn a_short_queue_does_not_make_it_lose_much() {
    for delay_ms in [10, 50] {
        let link = Link { mbit: 100.0, delay_ms, loss: 0.0, queue_ms: delay_ms / 2 };
        let (used, lost, _) = alone(link, 15, ours());
        assert!(used > 0.93 && lost < 0.03, "{link:?}: {used:.3} used, {lost:.3} lost");
    }
}

#[test]
fn two_of_them_share_a_link() {
    for queue_ms in [10, 50, 200] {
        let link = Link { mbit: 100.0, delay_ms: 25, loss: 0.0, queue_ms };
        let [one, other] = beside(link, 30, [ours(), ours()]);
        assert!(one > 0.4 && other > 0.4 && one + other > 0.9, "{link:?}: {one:.3}, {other:.3}");
    }
}

#[test]
fn it_leaves_others_their_part_and_keeps_its_own() {
    for (queue_ms, least) in [(25, 0.2), (50, 0.35), (100, 0.25)] {
        let link = Link { mbit: 100.0, delay_ms: 25, loss: 0.0, queue_ms };
        let [own, other] = beside(link, 40, [ours(), halving()]);
        assert!(own > least && other > least && own + other > 0.9, "{link:?}: {own:.3}, {other:.3}");
    }
}

#[test]
fn whatever_happens_some_datagrams_may_go() {
    let mut chance = ChaCha8Rng::seed_from_u64(3);
    let mut now = Instant::now();
    let mut model = Model::new(now, 1, DATAGRAM as u16);
    let mut sent = vec![now];
    for _ in 0..50_000 {
        now += Duration::from_nanos(chance.random_range(0..20_000_000));
        match chance.random_range(0..8) {
            0..3 => {
                model.on_sent(now, chance.random_range(0..20_000));
                sent.push(now);
            }
            3..6 => {
                let at = sent[chance.random_range(0..sent.len())];
                model.on_ack(at, chance.random_range(0..20_000));
                model.on_acks(now, chance.random_range(0..1 << 20), chance.random_bool(0.3));
            }
            6 => model.on_lost(chance.random_range(0..1 << 20)),
            _ if chance.random_bool(0.01) => model.begin_anew(now),
            _ if chance.random_bool(0.1) => model.on_marked(),
            _ => model.set_datagram(chance.random_range(1200..9000)),
        }
        assert!(model.window() >= DATAGRAMS_MIN * model.datagram);
    }
}

/// A model whose link delivers a datagram each millisecond, 20 ms after it was sent, for two seconds; and the time then.
fn steady() -> (Model, Instant) {
    let mut now = Instant::now();
    let mut model = Model::new(now, 64 * DATAGRAM, DATAGRAM as u16);
    let mut under_way = VecDeque::new();
    for _ in 0..2000 {
        now += Duration::from_millis(1);
        model.on_sent(now, DATAGRAM);
        under_way.push_back(now);
        if under_way.len() > 20
            && let Some(sent) = under_way.pop_front()
        {
            model.on_ack(sent, DATAGRAM);
            model.on_acks(now, under_way.len() as u64 * DATAGRAM, false);
        }
    }
    (model, now)
}

#[test]
fn the_rate_and_the_round_trip_are_those_of_the_link() {
    let (model, _) = steady();
    assert!((model.rate() / (DATAGRAM as f64 * 1000.0) - 1.0).abs() < 0.06, "{}", model.rate());
    assert_eq!(model.round_trip, Some(Duration::from_millis(20)));
}

#[test]
fn a_pause_is_not_followed_by_a_burst_of_what_was_not_sent_in_it() {
    let (mut model, now) = steady();
    let later = now + Duration::from_secs(5);
    model.on_sent(later, DATAGRAM);
    model.on_ack(later, DATAGRAM);
    model.on_acks(later + Duration::from_millis(20), 0, true);
    assert!(model.window() <= 25 * DATAGRAM, "{}", model.window());
}

#[test]
fn what_is_never_acknowledged_is_not_remembered() {
    let now = Instant::now();
    let mut model = Model::new(now, 64 * DATAGRAM, DATAGRAM as u16);
    for _ in 0..100_000 {
        model.on_sent(now, 45);
    }
    assert!(model.flights.is_empty());
}

#[test]
fn a_marked_datagram_takes_less_into_flight_once_a_round() {
    let (mut model, _) = steady();
    model.on_marked();
    let most = model.most;
    assert!(most < IN_FLIGHT_MAX);
    model.on_marked();
    assert!((model.most - most).abs() < 1e-9);
}

#[test]
fn a_path_that_delivers_nothing_is_a_new_one() {
    let (mut model, now) = steady();
    model.begin_anew(now);
    assert_eq!(model.window(), DATAGRAMS_MIN * DATAGRAM);
    assert!(model.rate().abs() < 1e-9);
}
