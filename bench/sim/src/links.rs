//! What a transfer costs: each machine has one full-duplex link of its own into a network that is never the bottleneck.
//!
//! A transfer of n bytes occupies the sender's uplink for n / bandwidth, is on its way for the latency, and occupies the receiver's
//! downlink for n / bandwidth. Both are queues, first come, first served, unless `transport.order` says otherwise of the first. The receiver takes the bytes as they come (cut-through), so
//! on an idle path the bandwidth is paid once:
//!
//! ```text
//! time = latency + n / bandwidth             idle path
//! time = latency + 2 n / bandwidth           behind one other transfer of the same size, at either end
//! ```
//!
//! A share p of lost packets leaves the share 1 - p of the bandwidth to what is new, and with the probability 1 - (1 - p)^packets
//! that a transfer loses one at all, it is complete a round trip later. Control messages take the latency and nothing else.

use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use slackline_core::ids::Moment;
use slackline_core::schedule::random_stream;

/// Payload of a packet on Ethernet.
const PACKET_BYTES: u64 = 1452;

/// The stream of chance that losses are drawn from; epochs, which have streams of their own under the same seed, never count so far.
const LOSS_STREAM: u64 = u64::MAX - 7;

/// The cost model of the links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkCosts {
    /// Bytes a second each way; none for no bound.
    pub(crate) bandwidth: Option<f64>,
    /// One way.
    pub(crate) latency: Duration,
    /// Share of the packets that is lost, in `[0, 1)`.
    pub(crate) loss: f64,
}

/// One transfer on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passage {
    /// When its first byte reaches the receiver's link.
    pub(crate) reaches: Moment,
    /// How long it occupies a link.
    lasts: Duration,
    /// How much later it is complete because of lost packets.
    late: Duration,
}

impl Passage {
    /// When it is complete where no link has a queue.
    pub(crate) const fn ends(&self) -> Moment {
        self.reaches.after(self.late)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Machine {
    up_free: Moment,
    down_free: Moment,
}

/// The links of all machines.
#[derive(Debug)]
pub(crate) struct Links {
    costs: LinkCosts,
    machines: Vec<Machine>,
    chance: ChaCha8Rng,
}

impl Links {
    pub(crate) fn new(costs: LinkCosts, machines: usize, seed: u64) -> Self {
        Self { costs, machines: vec![Machine::default(); machines], chance: random_stream(seed, LOSS_STREAM) }
    }

    /// Whether transfers wait for each other.
    pub(crate) const fn have_queues(&self) -> bool {
        self.costs.bandwidth.is_some()
    }

    /// The way of a control message.
    pub(crate) const fn latency(&self) -> Duration {
        self.costs.latency
    }

    /// A machine's uplink takes a transfer.
    pub(crate) fn leave(&mut self, now: Moment, machine: usize, bytes: u64) -> Passage {
        let LinkCosts { bandwidth, latency, loss } = self.costs;
        let late = if loss > 0.0 && self.loses_one(bytes, loss) { 2 * latency } else { Duration::ZERO };
        let Some(bandwidth) = bandwidth else {
            return Passage { reaches: now.after(latency), lasts: Duration::ZERO, late };
        };
        let lasts = duration(bytes as f64 / (bandwidth * (1.0 - loss)));
        let up_free = &mut self.machines[machine].up_free;
        let begins = now.max(*up_free);
        *up_free = begins.after(lasts);
        Passage { reaches: begins.after(latency), lasts, late }
    }

    /// From when on a machine's uplink carries nothing, as things are.
    pub(crate) fn free_from(&self, machine: usize) -> Moment {
        self.machines[machine].up_free
    }

    fn loses_one(&mut self, bytes: u64, loss: f64) -> bool {
        let packets = bytes.div_ceil(PACKET_BYTES).max(1) as f64;
        self.chance.random::<f64>() >= (1.0 - loss).powf(packets)
    }

    /// The first byte of a transfer has reached a machine's downlink; returns when it is complete.
    pub(crate) fn arrive(&mut self, now: Moment, machine: usize, passage: &Passage) -> Moment {
        let down_free = &mut self.machines[machine].down_free;
        let ends = now.max(*down_free).after(passage.lasts);
        *down_free = ends;
        ends.after(passage.late)
    }

    /// A machine starts anew: nothing is on its way out any more.
    pub(crate) fn reset(&mut self, machine: usize) {
        self.machines[machine] = Machine::default();
    }
}

/// Seconds as a duration, to the nanosecond; what is no time or too long for one becomes none, or the longest.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::from_nanos((seconds * 1e9).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: usize = 2;

    fn links(loss: f64) -> Links {
        let costs = LinkCosts { bandwidth: Some(1e6), latency: Duration::from_millis(3), loss };
        Links::new(costs, 3, 1)
    }

    /// When transfers between two machines, sent at the same moment, are complete, in milliseconds.
    fn sent(links: &mut Links, transfers: &[(usize, usize, u64)]) -> Vec<f64> {
        let mut passages: Vec<_> =
            transfers.iter().map(|(from, to, bytes)| (links.leave(Moment(0), *from, *bytes), *to)).collect();
        passages.sort_by_key(|(passage, _)| passage.reaches);
        let arrive = |(passage, to): &(Passage, usize)| links.arrive(passage.reaches, *to, passage).0 as f64;
        passages.iter().map(arrive).map(|nanos| nanos / 1e6).collect()
    }

    #[test]
    fn an_idle_path_costs_its_bandwidth_once() {
        assert_eq!(sent(&mut links(0.0), &[(0, SERVER, 10_000)]), [13.0]);
    }

    #[test]
    fn transfers_queue_at_the_end_that_is_busy() {
        // Two machines to one: its downlink takes one after the other.
        assert_eq!(sent(&mut links(0.0), &[(0, SERVER, 10_000), (1, SERVER, 20_000)]), [13.0, 33.0]);
        // One machine to two: its uplink does.
        assert_eq!(sent(&mut links(0.0), &[(SERVER, 0, 10_000), (SERVER, 1, 20_000)]), [13.0, 33.0]);
        // There and back do not meet.
        assert_eq!(sent(&mut links(0.0), &[(0, SERVER, 10_000), (SERVER, 0, 10_000)]), [13.0, 13.0]);
    }

    #[test]
    fn lost_packets_cost_their_bytes_again_and_a_round_trip() {
        let mut links = links(0.5);
        // Hundreds of packets: one is lost for certain.
        assert_eq!(sent(&mut links, &[(0, SERVER, 1_000_000)]), [3.0 + 2000.0 + 6.0]);
        let mut late = 0;
        for _ in 0..1000 {
            links.reset(0);
            late += u32::from(!links.leave(Moment(0), 0, 100).late.is_zero());
        }
        assert!((450..550).contains(&late), "{late} of a thousand single packets were lost");
    }

    #[test]
    fn without_a_bandwidth_only_the_way_takes_time() {
        let costs = LinkCosts { bandwidth: None, latency: Duration::from_millis(3), loss: 0.0 };
        let mut links = Links::new(costs, 3, 1);
        assert_eq!(sent(&mut links, &[(0, SERVER, 1 << 40), (0, SERVER, 1 << 40)]), [3.0, 3.0]);
    }
}
