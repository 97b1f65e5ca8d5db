//! The group that this worker is in: its connections, and whether they are all there that are needed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use slackline_core::collective::Schedule;
use slackline_core::wire::Group;
use slackline_worker_core::Event;
use tokio::task::JoinSet;

use super::News;
use super::circle::Circle;
use super::link::Link;
use super::meeting::{LastWords, Meeting};
use super::news::Whom;

/// Messages that may wait to be sent to one worker beside transfers.
const MESSAGES_MAX: usize = 64;

/// The group that this worker is in.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) meeting: Arc<Meeting>,
    pub(crate) circle: Arc<Circle>,
    /// Connections that stand, by position.
    pub(crate) links: BTreeMap<u32, Link>,
    /// Those who are gone without harm as long as nothing is wanted of them, and how.
    pub(crate) departed: BTreeMap<u32, String>,
    pub(crate) last_words: LastWords,
    /// Calls, and the end of the time for them; they end with the group.
    pub(crate) tasks: JoinSet<()>,
    /// How much may wait for each position.
    pub(crate) room: BTreeMap<u32, usize>,
    pub(crate) formed: Instant,
    pub(crate) is_met: bool,
    pub(crate) has_trouble: bool,
    /// Something is under way that needs all of the others.
    pub(crate) is_busy: bool,
}

impl Current {
    /// Something begins that needs all the others; those who have gone by now are missed.
    pub(crate) fn begin(&mut self) {
        self.is_busy = true;
        if let Some(event) = self.missed() {
            self.circle.tell(News::Event(self.circle.generation, event));
        }
    }

    pub(crate) fn rest(&mut self) {
        self.is_busy = false;
    }

    pub(crate) fn missed(&mut self) -> Option<Event> {
        let (position, text) = self.departed.first_key_value()?;
        let (position, text) = (*position, text.clone());
        self.trouble(position, text)
    }

    /// The first trouble of a group is told; it is over with it.
    pub(crate) fn trouble(&mut self, position: u32, reason: String) -> Option<Event> {
        if std::mem::replace(&mut self.has_trouble, true) {
            return None;
        }
        let (generation, worker) = (self.circle.generation, self.circle.worker(position));
        Some(Event::PeerTrouble { generation, worker, reason })
    }

    /// The first of those who are not here.
    pub(crate) fn missing(&self) -> Option<u32> {
        self.room.keys().find(|position| !self.links.contains_key(position)).copied()
    }

    /// The time for meeting is over.
    pub(crate) fn overdue(&mut self, whom: Whom) -> Option<Event> {
        if self.is_met {
            return None;
        }
        let missing =
            self.missing().filter(|missing| whom == Whom::All || *missing < self.meeting.position)?;
        let waited = self.formed.elapsed().as_secs_f64();
        let last = self.last_words.remove(&missing).map_or_else(String::new, |text| format!(" ({text})"));
        let named = self.meeting.named(missing);
        self.trouble(missing, format!("{named} was not met within {waited:.1} s{last}"))
    }

    /// Waits until everybody else has said that it needs nothing more, or is gone.
    pub(crate) async fn departure(&self) {
        loop {
            let departures = self.circle.departures.notified();
            if self.links.values().all(Link::has_left) {
                return;
            }
            departures.await;
        }
    }
}

/// Who is to be connected with the member at a position: whom it exchanges parts with, or in a group that only measures those beside it;
/// and where somebody lacks values, all with the one that has them.
pub(crate) fn wanted(group: &Group, position: u32, schedule: Option<&Schedule>) -> Vec<u32> {
    let members = group.members.len() as u32;
    let mut wanted = match schedule {
        Some(schedule) => schedule.neighbours(position),
        None => {
            [(position + 1) % members.max(1), (position + members.saturating_sub(1)) % members.max(1)].into()
        }
    };
    match group.source.and_then(|source| group.position_of(source)) {
        Some(source) if source == position => wanted.extend(0..members),
        Some(source) => drop(wanted.insert(source)),
        None => {}
    }
    wanted.remove(&position);
    wanted.into_iter().collect()
}

/// How much may wait to be sent to one member: all that the schedule sends there in two iterations, and messages.
pub(crate) fn room(schedule: Option<&Schedule>, from: u32, to: u32, buckets: usize) -> usize {
    let transfers = schedule.map_or(0, |schedule| {
        schedule.of(from).filter(|transfer| transfer.from == from && transfer.to == to).count()
    });
    2 * transfers * buckets + MESSAGES_MAX
}
