//! What a primary gives to its backup: frames over the same links as every other transfer, in order, and back how far they are held.
//!
//! An entry with a gradient costs its bytes, a state those of all its arrays; anything else takes the latency and waits for what was sent
//! before it.

use std::collections::VecDeque;
use std::time::Duration;

use slackline_core::ids::{Generation, ServerId, ShardId};
use slackline_server_core::replica::{Entry, Frame, HostEvent, Index};
use slackline_server_core::shard::Push;
use slackline_server_core::{ControlEvent, ShardEvent};

use crate::hosts::At;
use crate::links::Passage;
use crate::world::{Happening, World};

/// Until a primary asks a backup again that did not take its feed: it may not have heard yet that it is one.
const KNOCK_PAUSE: Duration = Duration::from_millis(100);

/// One frame on its way.
#[derive(Debug)]
struct Underway {
    frame: Frame,
    passage: Option<Passage>,
    is_there: bool,
}

/// One feed.
#[derive(Debug)]
pub(crate) struct Feed {
    shard: ShardId,
    from: usize,
    to: usize,
    /// The process of the backup that took it.
    to_boot: u64,
    generation: Generation,
    is_open: bool,
    is_over: bool,
    way: VecDeque<Underway>,
    /// Frames that are not on their way any more.
    passed: u64,
    /// Counts the times that it was opened: what was meant for an earlier one is void.
    round: u32,
}

/// What happens to a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fed {
    /// The primary asks the backup to take it.
    Knocks,
    /// The backup does.
    Opens,
    /// It does not.
    Refused,
    /// It has not for a lease.
    Late,
    /// It is gone.
    Lost { round: u32 },
    /// The first byte of a frame reaches the backup's link.
    Reaches { number: u64 },
    /// A frame is complete.
    Here { number: u64 },
    /// The backup holds all up to an entry.
    Held { generation: Generation, index: Index, hash: Option<u64> },
}

impl Fed {
    /// Whether it happens at the backup's process, and not at the primary's.
    const fn is_at_backup(self) -> bool {
        matches!(self, Self::Knocks | Self::Here { .. })
    }
}

impl World {
    /// The server that something happens to, if it must be awake for it.
    pub(crate) fn server_of_feed(&self, feed: usize, what: Fed) -> Option<usize> {
        let Feed { from, to, .. } = &self.feeds[feed];
        match what {
            Fed::Reaches { .. } => None,
            what if what.is_at_backup() => Some(*to),
            _ => Some(*from),
        }
    }

    /// A primary wants to feed its backup.
    pub(crate) fn open_feed(&mut self, at: At, backup: usize, generation: Generation) {
        self.close_feed(at);
        let feed = self.feeds.len();
        self.feeds.push(Feed {
            shard: at.shard,
            from: at.server(),
            to: backup,
            to_boot: 0,
            generation,
            is_open: false,
            is_over: false,
            way: VecDeque::new(),
            passed: 0,
            round: 0,
        });
        if let Some(slot) = self.slot(at) {
            slot.feed = Some(feed);
        }
        self.knock(feed);
    }

    fn knock(&mut self, feed: usize) {
        let when = self.now().after(self.way());
        self.agenda.at(when, Happening::AtFeed { feed, what: Fed::Knocks });
        let late = self.now().after(self.plan.lease);
        self.agenda.at(late, Happening::AtFeed { feed, what: Fed::Late });
    }

    pub(crate) fn close_feed(&mut self, at: At) {
        if let Some(feed) = self.slot(at).and_then(|slot| slot.feed.take()) {
            self.feeds[feed].end();
        }
    }

    /// A server's process is gone, and with it its feeds; those who fed it learn it after a lease without a sign of life.
    pub(crate) fn crash_feeds(&mut self, server: usize) {
        for feed in &mut self.feeds {
            if feed.from == server {
                feed.end();
            }
        }
        let idle = self.now().after(self.plan.lease);
        self.lose_feeds_to(server, idle);
    }

    /// Whoever feeds a server's former process learns at this moment that it is gone.
    pub(crate) fn lose_feeds_to(&mut self, server: usize, when: slackline_core::ids::Moment) {
        for (number, feed) in self.feeds.iter().enumerate() {
            if feed.to == server && feed.is_open && !feed.is_over {
                let what = Fed::Lost { round: feed.round };
                self.agenda.at(when, Happening::AtFeed { feed: number, what });
            }
        }
    }

    /// Something happens to a feed.
    pub(crate) fn at_feed(&mut self, number: usize, what: Fed) {
        let Feed { shard, from, to, generation, is_open, is_over, round, .. } = self.feeds[number];
        if is_over {
            return;
        }
        let (primary, backup) = (At::new(from, shard), ServerId(to as u32));
        match what {
            Fed::Knocks => self.feed_knocks(number),
            Fed::Opens if !is_open => {
                let feed = &mut self.feeds[number];
                (feed.is_open, feed.round) = (true, round + 1);
                self.host_event(primary, HostEvent::FeedOpen { backup });
            }
            Fed::Refused if !is_open => {
                let when = self.now().after(KNOCK_PAUSE + self.way());
                self.agenda.at(when, Happening::AtFeed { feed: number, what: Fed::Knocks });
            }
            Fed::Late if !is_open => {
                self.control_event(from, ControlEvent::OutOfReach { shard, generation, backup });
                let late = self.now().after(self.plan.lease);
                self.agenda.at(late, Happening::AtFeed { feed: number, what: Fed::Late });
            }
            Fed::Lost { round: lost } if is_open && lost == round => {
                let feed = &mut self.feeds[number];
                feed.is_open = false;
                feed.clear();
                self.host_event(primary, HostEvent::FeedLost { backup });
                if !self.feeds[number].is_over {
                    self.knock(number);
                }
            }
            Fed::Reaches { number: frame } => self.frame_reaches(number, frame),
            Fed::Here { number: frame } => self.frame_is_here(number, frame),
            Fed::Held { generation, index, hash } if is_open => {
                self.host_event(primary, HostEvent::Held { backup, generation, index, hash });
            }
            _ => {}
        }
    }

    /// A backup takes a feed of the primary that it was told of, and of none else.
    fn feed_knocks(&mut self, number: usize) {
        let Feed { to, .. } = self.feeds[number];
        let what = if self.stands(number) {
            let (at, boot) = (At::new(to, self.feeds[number].shard), self.servers[to].boot);
            self.feeds[number].to_boot = boot;
            if let Some(slot) = self.slot(at) {
                slot.fed_by = Some(number);
            }
            Fed::Opens
        } else {
            Fed::Refused
        };
        let when = self.now().after(self.way());
        self.agenda.at(when, Happening::AtFeed { feed: number, what });
    }

    fn stands(&mut self, number: usize) -> bool {
        let Feed { shard, from, to, generation, .. } = self.feeds[number];
        let is_up = self.servers[to].up;
        let place = self.slot(At::new(to, shard)).and_then(|slot| slot.place);
        is_up && place.is_some_and(|place| (place.primary.0 as usize, place.generation) == (from, generation))
    }

    /// Sends a frame.
    pub(crate) fn feed(&mut self, at: At, frame: Frame) {
        let Some(number) = self.slot(at).and_then(|slot| slot.feed) else { return };
        if !self.feeds[number].is_open {
            return;
        }
        let bytes = self.plan.frame_bytes(at.shard, &frame);
        let (now, machine) = (self.now(), self.machine_of_server(at.server()));
        let passage = (bytes > 0 && !self.is_opening).then(|| self.links.leave(now, machine, bytes));
        let feed = &mut self.feeds[number];
        let frame_number = feed.passed + feed.way.len() as u64;
        feed.way.push_back(Underway { frame, passage, is_there: false });
        self.counts.bytes_fed += bytes;
        let (when, what) = match passage {
            Some(passage) if self.links.have_queues() => {
                (passage.reaches, Fed::Reaches { number: frame_number })
            }
            Some(passage) => (passage.ends(), Fed::Here { number: frame_number }),
            None => (now.after(self.way()), Fed::Here { number: frame_number }),
        };
        self.agenda.at(when, Happening::AtFeed { feed: number, what });
    }

    fn frame_reaches(&mut self, number: usize, frame: u64) {
        let (now, machine) = (self.now(), self.machine_of_server(self.feeds[number].to));
        let Some(Underway { passage: Some(passage), .. }) = self.feeds[number].underway(frame) else {
            return;
        };
        let when = self.links.arrive(now, machine, passage);
        self.agenda.at(when, Happening::AtFeed { feed: number, what: Fed::Here { number: frame } });
    }

    /// A frame is complete; it is taken in when all before it are.
    fn frame_is_here(&mut self, number: usize, frame: u64) {
        if let Some(underway) = self.feeds[number].underway(frame) {
            underway.is_there = true;
        }
        let Feed { shard, to, generation, .. } = self.feeds[number];
        let at = At::new(to, shard);
        while let Some(Underway { frame, .. }) = self.feeds[number].next() {
            let is_last = self.slot(at).is_some_and(|slot| slot.fed_by == Some(number));
            let is_taken =
                is_last && self.stands(number) && self.servers[to].boot == self.feeds[number].to_boot;
            if is_taken {
                self.host_event(at, HostEvent::Frame { generation, frame });
            }
        }
    }

    /// A backup says how far it is.
    pub(crate) fn hold(&mut self, at: At, generation: Generation, index: Index, hash: Option<u64>) {
        if let Some(feed) = self.slot(at).and_then(|slot| slot.fed_by) {
            let (when, what) = (self.now().after(self.way()), Fed::Held { generation, index, hash });
            self.agenda.at(when, Happening::AtFeed { feed, what });
        }
    }
}

impl Feed {
    fn end(&mut self) {
        (self.is_open, self.is_over) = (false, true);
        self.clear();
    }

    fn clear(&mut self) {
        self.passed += self.way.len() as u64;
        self.way.clear();
    }

    fn underway(&mut self, number: u64) -> Option<&mut Underway> {
        let place = number.checked_sub(self.passed)?;
        self.way.get_mut(usize::try_from(place).ok()?)
    }

    fn next(&mut self) -> Option<Underway> {
        let next = self.way.pop_front_if(|underway| underway.is_there)?;
        self.passed += 1;
        Some(next)
    }
}

impl crate::world::Plan {
    /// Bytes of a frame's values, as they would go over the wire.
    pub(crate) fn frame_bytes(&self, shard: ShardId, frame: &Frame) -> u64 {
        let values = self.shard_bytes[shard.0 as usize];
        match frame {
            Frame::State { state, .. } => state.arrays.len() as u64 * values,
            Frame::Entry(entry) => values * u64::from(has_values(entry)),
        }
    }
}

const fn has_values(entry: &Entry) -> bool {
    matches!(&entry.event, ShardEvent::Push(Push { gradient: Some(_), .. }) | ShardEvent::Initialize(_))
}
