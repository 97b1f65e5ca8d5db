//! What the way to the right neighbour is like: the round trip of a message, and how fast a large transfer goes. All members measure
//! at once, as they will all send at once.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use slackline_core::ids::{Generation, KeyRange, Sequence, WorkerId};
use slackline_core::wire::{LinkFigures, PeerMessage};
use slackline_net::SharedValues;
use tokio::sync::oneshot;

use super::circle::Line;
use super::link::Awaited;
use super::reducing::header;
use crate::streams::Outgoing;

/// Values of a transfer for measuring: 1 MiB.
pub(crate) const VALUES: u64 = 1 << 18;

/// Round trips, of which the median counts, and transfers likewise. The first ones open the path and do not count.
const ROUND_TRIPS: usize = 20;
const TRANSFERS: usize = 5;
const WARM_UP: usize = 2;

/// What a worker that has nobody beside it measures: as good as nothing to do.
pub(crate) const ALONE: LinkFigures = LinkFigures { latency_s: 1e-6, bytes_per_s: 1e12 };

/// The way that is measured.
pub(crate) struct Probe {
    pub(crate) me: WorkerId,
    pub(crate) generation: Generation,
    pub(crate) line: Line,
    pub(crate) awaited: Awaited,
}

impl Probe {
    /// Measures; none if the connection is lost meanwhile, which is told elsewhere.
    pub(crate) async fn measure(self) -> Option<LinkFigures> {
        let mut number = 0;
        let mut times = Vec::new();
        for _ in 0..ROUND_TRIPS + WARM_UP {
            number += 1;
            times.push(self.time(number, Outgoing::Message(Box::new(PeerMessage::Ping(number)))).await?);
        }
        let round_trip = median(times.split_off(WARM_UP));
        let values = SharedValues::from(vec![0.0; VALUES as usize]);
        for _ in 0..TRANSFERS + WARM_UP {
            number += 1;
            let mut header = header(self.me, self.generation, KeyRange::new(0, VALUES));
            header.sequence = Sequence(number);
            times.push(self.time(number, Outgoing::Transfer(Box::new(header), vec![values.clone()])).await?);
        }
        let transfer = median(times.split_off(2 * WARM_UP));
        let seconds = transfer.saturating_sub(round_trip).max(Duration::from_nanos(1)).as_secs_f64();
        let bytes_per_s = (VALUES * 4) as f64 / seconds;
        Some(LinkFigures { latency_s: round_trip.as_secs_f64() / 2.0, bytes_per_s })
    }

    /// Time from sending something to its answer.
    async fn time(&self, number: u64, outgoing: Outgoing<PeerMessage>) -> Option<Duration> {
        let (sender, answer) = oneshot::channel();
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) = Some((number, sender));
        let began = Instant::now();
        self.line.send(outgoing).await.ok()?;
        answer.await.ok()?;
        Some(began.elapsed())
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
