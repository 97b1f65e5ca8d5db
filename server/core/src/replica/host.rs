//! The machine of one shard on one server: it leads, follows, or has nothing.
//!
//! As a primary it numbers what it takes in, gives that to its copies, and lets effects out in the order of their entries, each once the
//! copies that count have its entry:
//!
//! | durability | copies that count |
//! |---|---|
//! | memory | none |
//! | replicated | the backup, from when it has the state; before, or without one by the coordinator's word, none |
//! | disk | the disk, and the backup as above: it may be made the primary too |
//!
//! Without a backup and without a disk no entry is made, and the cost is a number added and effects moved from one list to another. With
//! one, each gradient is copied once, into buffers that are used again.

use slackline_core::config::Durability;
use slackline_core::ids::{Clock, Generation, Incarnation, Moment, ServerId, WorkerId};
use slackline_core::wire::{HeldRow, Origin, Place};

use super::feed::{Feed, Held};
use super::journal::{Journal, values_of};
use super::{Entry, Frame, HostEffect, HostEvent, Index};
use crate::shard::{SLICE_COUNT, Shard, ShardEffect, ShardEvent, ShardSettings, ShardState};

/// Values that a disk's journal has beside its state before it begins anew, as a multiple of the state, and at least so many (64 MiB).
const JOURNAL_MAX: (u64, u64) = (4, 16 << 20);

/// Entries from one comparison of the copies to the next. Each compares one slice of [`SLICE_COUNT`]: all that a shard has is compared every
/// 1024 entries, for a thousandth of what hashing it after each entry would cost.
pub(super) const COMPARED_EVERY: u64 = 16;

/// What a host is made from.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// The server that it runs on.
    pub server: ServerId,
    /// Its shard.
    pub shard: ShardSettings,
    /// What an acknowledged push has reached.
    pub durability: Durability,
    /// Copies of the shard, 1 or 2.
    pub replicas: u32,
}

/// What a host does at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has no part in the shard.
    Idle,
    /// It waits for the state that it asked for, to lead then.
    Loading,
    /// It answers for the shard.
    Leading,
    /// It keeps a copy.
    Following,
}

/// What a status says of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRow {
    /// What it does.
    pub role: Role,
    /// In which generation.
    pub generation: Generation,
    /// The last entry that it took.
    pub index: Index,
    /// Its backup, and whether that is in step.
    pub backup: Option<(ServerId, bool)>,
    /// Effects that wait for the copies that count.
    pub withheld: usize,
    /// Since when it waits for the copies that count, in the time of [`Host::moment`]; none while they have everything.
    pub unconfirmed_since: Option<Moment>,
}

/// The journal on the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    pub(super) written: Index,
    /// Values in the entries since its state, and where it begins anew.
    pub(super) values: u64,
    pub(super) values_max: u64,
}

/// See the module.
#[derive(Clone)]
pub struct Host {
    pub(super) settings: HostSettings,
    pub(super) role: Role,
    pub(super) generation: Generation,
    pub(super) place: Option<Place>,
    pub(super) shard: Option<Shard>,
    /// As a backup: the coordinator takes this copy to be in step.
    pub(super) is_whole: bool,
    pub(super) journal: Journal,
    /// A moment here and that of the shard's time at which it was: a copy that takes over goes on with the time of the former primary.
    pub(super) clock: (Moment, Moment),
    pub(super) feed: Option<Feed>,
    pub(super) disk: Option<Disk>,
    /// The members that the state to be loaded is to have.
    pub(super) members: Vec<(WorkerId, Incarnation, Clock)>,
    pub(super) started: bool,
    /// That it leads, where the coordinator is to hear that only once the disk has what it begins with.
    pub(super) unsaid: Option<HostEffect>,
    /// What came while the state was loaded.
    pub(super) early: Vec<ShardEvent>,
    out: Vec<ShardEffect>,
    /// Where it is traced: what the shard has told when it took an event, whether or not that may leave by then.
    traced: Option<Vec<ShardEffect>>,
}

impl Host {
    /// A host that has no part in the shard yet.
    #[must_use]
    pub fn new(settings: HostSettings) -> Self {
        Self {
            settings,
            role: Role::Idle,
            generation: Generation(0),
            place: None,
            shard: None,
            is_whole: false,
            journal: Journal::default(),
            clock: (Moment(0), Moment(0)),
            feed: None,
            disk: None,
            members: Vec::new(),
            started: false,
            unsaid: None,
            early: Vec::new(),
            out: Vec::new(),
            traced: None,
        }
    }

    /// From now on what the shard tells can be had by [`Host::take_traced`], in the order of what it took: effects leave later.
    pub fn trace(&mut self) {
        self.traced.get_or_insert_default();
    }

    /// Answers, pieces kept aside, values served and that there are values, since this was asked last; nothing where it is not traced.
    pub fn take_traced(&mut self) -> Vec<ShardEffect> {
        self.traced.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes one event in.
    pub fn handle(&mut self, now: Moment, event: HostEvent, effects: &mut Vec<HostEffect>) {
        match event {
            HostEvent::Shard(event) => match self.role {
                Role::Leading => self.take(now, event, effects),
                // The shell keeps it back by `takes_events`; what slips through must not be lost.
                Role::Loading => self.early.push(event),
                Role::Idle | Role::Following => refuse(event, effects),
            },
            HostEvent::Place { place, members, started } => {
                (self.members, self.started) = (members, started);
                self.put(now, place, effects);
            }
            HostEvent::Loaded { generation, loaded } => self.loaded(now, generation, loaded, effects),
            HostEvent::Frame { generation, frame } => self.frame(generation, frame, effects),
            HostEvent::Held { backup, generation, index, hash } if generation == self.generation => {
                self.held(now, backup, index, hash, effects);
            }
            HostEvent::Held { .. } => {}
            HostEvent::FeedOpen { backup } => self.feed_open(now, backup, effects),
            HostEvent::FeedLost { backup } => {
                if let Some(feed) = self.feed.as_mut().filter(|feed| feed.backup() == backup) {
                    feed.lost();
                }
            }
            HostEvent::Written { index } => {
                if let Some(disk) = &mut self.disk {
                    disk.written = disk.written.max(index.min(self.journal.index()));
                }
            }
            HostEvent::Tick => {
                let is_due = |deadline| deadline <= self.moment(now);
                if self.role == Role::Leading && self.shard_deadline().is_some_and(is_due) {
                    self.take(now, ShardEvent::Tick, effects);
                }
            }
        }
        self.settle(now, effects);
    }

    /// When a [`HostEvent::Tick`] is due although nothing happens; none for never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let (here, there) = self.clock;
        let deadline = self.shard_deadline().filter(|_| self.role == Role::Leading)?;
        Some(here.after(deadline.since(there)))
    }

    fn shard_deadline(&self) -> Option<Moment> {
        self.shard.as_ref()?.next_deadline()
    }

    /// Whether it can take [`HostEvent::Shard`] now; all other events always. While it cannot, the shell leaves those where they are:
    /// whoever sent them waits. (So they must not stand in one queue with the events that end the wait.)
    #[must_use]
    pub fn takes_events(&self) -> bool {
        match self.role {
            Role::Leading => self.journal.has_room(self.settings.shard.keys.len),
            Role::Loading => false,
            Role::Idle | Role::Following => true,
        }
    }

    /// The shard's time at a moment of this server. It never goes back, whoever leads.
    #[must_use]
    pub fn moment(&self, now: Moment) -> Moment {
        let (here, there) = self.clock;
        there.after(now.since(here))
    }

    /// The shard, where it has one.
    #[must_use]
    pub const fn shard(&self) -> Option<&Shard> {
        self.shard.as_ref()
    }

    /// What it does at present.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The row that a status shows.
    #[must_use]
    pub fn row(&self) -> HostRow {
        HostRow {
            role: self.role,
            generation: self.generation,
            index: self.journal.index(),
            backup: self.feed.as_ref().map(|feed| (feed.backup(), feed.is_in_step())),
            withheld: self.journal.withheld(),
            unconfirmed_since: self.journal.withheld_since().map(|since| self.moment(since)),
        }
    }

    /// The pulls that wait, as a status shows them, at most `most`.
    #[must_use]
    pub fn held_rows(&self, now: Moment, most: usize) -> Vec<HeldRow> {
        let leads = self.shard.as_ref().filter(|_| self.role == Role::Leading);
        leads.map_or_else(Vec::new, |shard| shard.held_rows(self.moment(now), most))
    }

    /// As a primary: one event, numbered and given to the copies.
    pub(super) fn take(&mut self, now: Moment, event: ShardEvent, effects: &mut Vec<HostEffect>) {
        let at = self.moment(now);
        let Some(shard) = &mut self.shard else { return refuse(event, effects) };
        // What an observer reads changes nothing: it is no entry, but waits for those before it.
        let mut at = at.max(self.journal.at());
        if event.changes() {
            let index;
            (index, at) = self.journal.next(at);
            let is_fed = self.feed.as_ref().is_some_and(|feed| feed.needs_after().is_some());
            if is_fed || self.disk.is_some() {
                let entry = self.journal.keep(&event, &self.settings.shard.buffers);
                if let Some(disk) = &mut self.disk {
                    disk.values += values_of(&event);
                    effects.push(HostEffect::Write(Frame::Entry(entry.clone())));
                }
                if self.feed.as_ref().is_some_and(Feed::is_flowing) {
                    effects.push(HostEffect::Feed(Frame::Entry(entry)));
                }
            }
            shard.handle(at, event, &mut self.out);
            if let (Some(slice), Some(feed)) = (compared_after(index), self.feed.as_mut().filter(|_| is_fed))
            {
                feed.expect(index, shard.slice_hash(slice));
            }
        } else {
            shard.handle(at, event, &mut self.out);
        }
        if let Some(traced) = &mut self.traced {
            let is_told = |effect: &&ShardEffect| {
                matches!(
                    effect,
                    ShardEffect::Answer { .. }
                        | ShardEffect::Staged { .. }
                        | ShardEffect::Serve { .. }
                        | ShardEffect::HasValues
                )
            };
            traced.extend(self.out.iter().filter(is_told).cloned());
        }
        self.sort_out(now, effects);
    }

    /// Lets out what may leave now; the rest waits.
    fn sort_out(&mut self, now: Moment, effects: &mut Vec<HostEffect>) {
        let waits = self.journal.index() > self.confirmed();
        for effect in self.out.drain(..) {
            match effect {
                ShardEffect::Recycle(_) | ShardEffect::Notice(_) => effects.push(HostEffect::Shard(effect)),
                _ if waits => self.journal.withhold(now, effect),
                _ => effects.push(HostEffect::Shard(effect)),
            }
        }
    }

    /// The last entry that all copies have that count.
    fn confirmed(&self) -> Index {
        let feed = self.feed.as_ref().filter(|feed| feed.counts()).map(Feed::held);
        let disk = self.disk.map(|disk| disk.written);
        let counts = match self.settings.durability {
            Durability::Memory => None,
            Durability::Replicated => feed,
            Durability::Disk => feed.into_iter().chain(disk).min(),
        };
        counts.unwrap_or(Index(u64::MAX))
    }

    /// What follows from what copies have: effects leave, entries are forgotten.
    fn settle(&mut self, now: Moment, effects: &mut Vec<HostEffect>) {
        if self.role != Role::Leading {
            return;
        }
        if self.disk.is_none_or(|disk| disk.written > Index(0)) {
            effects.extend(self.unsaid.take());
        }
        let confirmed = self.confirmed();
        effects.extend(self.journal.release(confirmed).map(HostEffect::Shard));
        let feed = self.feed.as_ref().and_then(Feed::needs_after);
        let needed = feed.into_iter().chain(self.disk.map(|disk| disk.written)).min();
        self.journal.forget(needed.unwrap_or(Index(u64::MAX)), &self.settings.shard.buffers);
        if let Some(disk) = self.disk.filter(|disk| disk.values > disk.values_max) {
            // What is not on the disk yet stays in the effects that wait: the state has it too.
            self.begin_disk(now, disk.written, effects);
        }
    }

    /// Begins the disk's journal with the present state, and with the pulls that wait, which are none of it.
    pub(super) fn begin_disk(&mut self, now: Moment, written: Index, effects: &mut Vec<HostEffect>) {
        let Some(shard) = &self.shard else { return };
        let pulls: Vec<ShardEvent> = shard.held_again().collect();
        let state = shard.state();
        let (times, least) = JOURNAL_MAX;
        let values_max = (state.bytes() / 4).saturating_mul(times).max(least);
        self.disk = Some(Disk { written, values: 0, values_max });
        effects.push(HostEffect::Write(self.state_frame(state)));
        for pull in pulls {
            self.take(now, pull, effects);
        }
    }

    fn state_frame(&self, state: ShardState) -> Frame {
        Frame::State { index: self.journal.index(), at: self.journal.at(), state: state.into() }
    }

    fn feed_open(&mut self, now: Moment, backup: ServerId, effects: &mut Vec<HostEffect>) {
        let Some(feed) = self.feed.as_mut().filter(|feed| feed.backup() == backup) else { return };
        feed.opened();
        if feed.is_due() {
            self.feed_state(now, effects);
            return;
        }
        let after = feed.held().max(feed.needs_after().unwrap_or_default());
        let again = self.journal.after_entry(after).cloned();
        effects.extend(again.map(|entry| HostEffect::Feed(Frame::Entry(entry))));
    }

    /// Gives the backup the present state. Pulls that wait are none of it: they go into the journal once more.
    fn feed_state(&mut self, now: Moment, effects: &mut Vec<HostEffect>) {
        let Some(shard) = &self.shard else { return };
        let pulls: Vec<ShardEvent> = shard.held_again().collect();
        let frame = self.state_frame(shard.state());
        if let Some(feed) = &mut self.feed {
            feed.sent_state(self.journal.index());
        }
        effects.push(HostEffect::Feed(frame));
        for pull in pulls {
            self.take(now, pull, effects);
        }
    }

    fn held(
        &mut self,
        now: Moment,
        backup: ServerId,
        index: Index,
        hash: Option<u64>,
        effects: &mut Vec<HostEffect>,
    ) {
        let last = self.journal.index();
        let Some(feed) = self.feed.as_mut().filter(|feed| feed.backup() == backup) else { return };
        let generation = self.generation;
        match feed.hold(index, hash, last) {
            Held::Nothing | Held::More => {}
            Held::InStep => effects.push(HostEffect::InStep { generation, backup }),
            Held::Lost { differs } => {
                let is_due = feed.is_due();
                let shard = self.settings.shard.id;
                effects.extend(differs.map(|index| HostEffect::Differs { shard, index }));
                if is_due {
                    self.feed_state(now, effects);
                }
            }
        }
    }

    /// As a backup: a frame of the primary. It is held as soon as the shard has it.
    fn frame(&mut self, generation: Generation, frame: Frame, effects: &mut Vec<HostEffect>) {
        let is_mine = generation == self.generation && matches!(self.role, Role::Idle | Role::Following);
        if generation > self.generation {
            // The primary has heard of it before this server has: the place will follow.
            self.leave(effects);
            (self.generation, self.place) = (generation, None);
        } else if !is_mine {
            return refuse_frame(frame, effects);
        }
        self.role = Role::Following;
        let mut hash = None;
        match frame {
            Frame::State { index, at, state } => {
                let state = std::sync::Arc::unwrap_or_clone(state);
                match Shard::restore(self.settings.shard.clone(), state) {
                    Ok(shard) => (self.shard, self.journal) = (Some(shard), Journal::after(index, at)),
                    Err(_) => {
                        let shard = self.settings.shard.id;
                        effects.push(HostEffect::Differs { shard, index });
                        return;
                    }
                }
            }
            Frame::Entry(entry) => {
                let entry = std::sync::Arc::unwrap_or_clone(entry);
                if self.shard.is_some() && entry.index > Index(self.journal.index().0.saturating_add(1)) {
                    self.shard = None;
                }
                if self.shard.is_none() {
                    self.journal = Journal::default();
                    refuse(entry.event, effects);
                } else if entry.index <= self.journal.index() {
                    refuse(entry.event, effects);
                } else {
                    let slice = compared_after(entry.index);
                    self.follow(entry, effects);
                    hash = self.shard.as_ref().zip(slice).map(|(shard, slice)| shard.slice_hash(slice));
                }
            }
        }
        effects.push(HostEffect::Hold { generation, index: self.journal.index(), hash });
    }

    /// One entry of another's journal. What the shard asks for, its primary has asked for.
    pub(super) fn follow(&mut self, entry: Entry, effects: &mut Vec<HostEffect>) {
        let Some(shard) = &mut self.shard else { return };
        let (_, at) = self.journal.next(entry.at);
        shard.handle(at, entry.event, &mut self.out);
        let buffers = self.out.drain(..).filter(|effect| matches!(effect, ShardEffect::Recycle(_)));
        effects.extend(buffers.map(HostEffect::Shard));
    }

    /// Whether this copy can lead in the generation of `place` as it is.
    pub(super) fn has_state_for(&self, place: &Place) -> bool {
        let is_copy = self.is_whole || place.origin == Origin::Memory;
        self.shard.is_some() && self.role == Role::Following && is_copy
    }
}

/// The slice that the copies are compared by after this entry, in turns; none where they are not. It follows from the entry's number alone, so
/// both sides hash the same.
const fn compared_after(index: Index) -> Option<u64> {
    if index.0.is_multiple_of(COMPARED_EVERY) { Some(index.0 / COMPARED_EVERY % SLICE_COUNT) } else { None }
}

/// Drops an event that only a primary takes: whoever sent it hears where that is.
pub(super) fn refuse(event: ShardEvent, effects: &mut Vec<HostEffect>) {
    let buffer = match event {
        ShardEvent::Initialize(buffer) => buffer,
        ShardEvent::Push(crate::shard::Push { gradient: Some(gradient), .. }) => gradient.into_words(),
        _ => return,
    };
    effects.push(HostEffect::Shard(ShardEffect::Recycle(buffer)));
}

fn refuse_frame(frame: Frame, effects: &mut Vec<HostEffect>) {
    if let Frame::Entry(entry) = frame
        && let Some(entry) = std::sync::Arc::into_inner(entry)
    {
        refuse(entry.event, effects);
    }
}
