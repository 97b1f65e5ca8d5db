//! One direction of a link, without a clock: when a packet arrives, or why it does not.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What one direction of a link does to packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    /// Bytes of a second, headers of IP included; none where packets take no time.
    pub rate: Option<f64>,
    /// How much later each arrives.
    pub delay: Duration,
    /// Share of the packets that are lost on the way, each by itself.
    pub loss: f64,
    /// The longest time that a packet waits for those before it; one that would wait longer is dropped.
    pub queue: Duration,
    /// Bytes of the largest packet that passes; a larger one vanishes, and nobody is told (a black hole). None where all pass.
    pub largest: Option<usize>,
}

impl Default for Weather {
    /// A link on which nothing befalls a packet.
    fn default() -> Self {
        Self { rate: None, delay: Duration::ZERO, loss: 0.0, queue: Duration::MAX, largest: None }
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this time.
    Arrives(Duration),
    /// It took its time on the line, and is lost.
    Lost,
    /// The queue before the line is full.
    Full,
}

/// One direction of a link. Times count from any common beginning.
#[derive(Clone, Debug)]
pub struct Line {
    weather: Weather,
    chance: ChaCha8Rng,
    /// When the last packet has left.
    free: Duration,
    /// When the last packet arrives: none overtakes another.
    last: Duration,
}

impl Line {
    /// A line on which nothing is. Which packets are lost follows from `seed` and their number.
    #[must_use]
    pub fn new(weather: Weather, seed: u64) -> Self {
        let chance = ChaCha8Rng::seed_from_u64(seed);
        Self { weather, chance, free: Duration::ZERO, last: Duration::ZERO }
    }

    /// What becomes of a packet of `bytes` that comes at `now`. To be asked in the order of their coming.
    pub fn pass(&mut self, now: Duration, bytes: usize) -> Fate {
        let Weather { rate, delay, loss, queue, largest } = self.weather;
        // Drawn for each packet, so that the losses of a run do not depend on how its queue went.
        let is_lost = loss > 0.0 && self.chance.random_bool(loss.min(1.0));
        let begins = self.free.max(now);
        if begins - now > queue {
            return Fate::Full;
        }
        let takes = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate.max(1.0)));
        self.free = begins + takes;
        if is_lost || largest.is_some_and(|largest| bytes > largest) {
            return Fate::Lost;
        }
        self.last = self.last.max(self.free + delay);
        Fate::Arrives(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn line(rate: Option<f64>, delay: Duration, loss: f64, queue: Duration) -> Line {
        Line::new(Weather { rate, delay, loss, queue, largest: None }, 7)
    }

    #[test]
    fn a_packet_takes_its_time_and_its_delay() {
        let mut line = line(Some(1e6), 50 * MS, 0.0, Duration::MAX);
        assert_eq!(line.pass(10 * MS, 1000), Fate::Arrives(61 * MS));
        // The line is busy with the first one.
        assert_eq!(line.pass(10 * MS, 2000), Fate::Arrives(63 * MS));
        assert_eq!(line.pass(100 * MS, 1000), Fate::Arrives(151 * MS));
    }

    #[test]
    fn the_rate_is_kept_over_any_stretch() {
        let mut line = line(Some(1e6), Duration::ZERO, 0.0, Duration::MAX);
        let mut last = Duration::ZERO;
        for number in 0..1000_u32 {
            let Fate::Arrives(at) = line.pass(MS * (number / 10), 500) else {
                panic!("nothing is lost here")
            };
            assert!(at > last);
            last = at;
        }
        assert_eq!(last, 500 * MS);
    }

    #[test]
    fn a_full_queue_drops_what_comes_and_goes_on_when_it_has_drained() {
        let mut line = line(Some(1e6), Duration::ZERO, 0.0, 5 * MS);
        let fates: Vec<Fate> = (0..8).map(|_| line.pass(Duration::ZERO, 1000)).collect();
        assert_eq!(fates.iter().filter(|fate| **fate == Fate::Full).count(), 2, "{fates:?}");
        assert_eq!(line.pass(2 * MS, 1000), Fate::Arrives(7 * MS));
    }

    #[test]
    fn what_is_too_large_vanishes() {
        let mut line = Line::new(Weather { largest: Some(1500), ..Weather::default() }, 7);
        assert_eq!(line.pass(MS, 1501), Fate::Lost);
        assert_eq!(line.pass(MS, 1500), Fate::Arrives(MS));
    }

    #[test]
    fn the_same_seed_loses_the_same_packets_and_a_share_of_them() {
        let lost = |seed| {
            let weather = Weather { delay: MS, loss: 0.1, ..Weather::default() };
            let mut line = Line::new(weather, seed);
            (0..20_000).filter(|_| line.pass(Duration::ZERO, 100) == Fate::Lost).collect::<Vec<u32>>()
        };
        assert_eq!(lost(1), lost(1));
        assert_ne!(lost(1), lost(2));
        assert!((1800..2200).contains(&lost(3).len()), "{}", lost(3).len());
    }
}
