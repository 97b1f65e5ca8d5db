//! How a host comes to lead, to follow and to leave: the coordinator's places, and states that are loaded.
//!
//! A place of an older generation is old news. One that names another primary ends a primary, whatever it thinks of itself: what it has
//! withheld never leaves.

use slackline_core::config::Durability;
use slackline_core::ids::{Generation, Moment};
use slackline_core::wire::{Origin, Place};

use super::feed::Feed;
use super::host::{Host, Role, refuse};
use super::journal::Journal;
use super::{HostEffect, Index, Kept};
use crate::shard::{Shard, ShardEvent};

impl Host {
    /// How things are to be from now on.
    pub(super) fn put(&mut self, now: Moment, place: Option<Place>, effects: &mut Vec<HostEffect>) {
        let Some(place) = place else {
            self.leave(effects);
            self.place = None;
            return;
        };
        if place.generation < self.generation {
            return;
        }
        if place.primary == self.settings.server {
            self.put_first(now, place, effects);
            return;
        }
        let in_step =
            place.backup.filter(|backup| backup.server == self.settings.server).map(|backup| backup.in_step);
        let goes_on = self.role == Role::Following && place.generation == self.generation;
        if !goes_on || in_step.is_none() {
            self.leave(effects);
        }
        (self.generation, self.place) = (place.generation, Some(place));
        if let Some(in_step) = in_step {
            (self.role, self.is_whole) = (Role::Following, in_step);
        }
    }

    /// This server is the primary.
    fn put_first(&mut self, now: Moment, place: Place, effects: &mut Vec<HostEffect>) {
        let before = self.place.replace(place);
        let is_news =
            place.generation > self.generation || self.role == Role::Idle || self.role == Role::Following;
        // A primary that did not hear that another had taken over, or that has no values, is given its state anew like any other.
        let loads_anew = is_news && place.is_loaded();
        if self.role == Role::Leading && !loads_anew {
            self.generation = place.generation;
            self.feed_as_placed(is_news, effects);
            return;
        }
        // The same order again asks for nothing again, also where it could not be followed.
        let asked = before
            .is_some_and(|before| (before.generation, before.origin) == (place.generation, place.origin));
        if asked && self.role != Role::Following {
            return;
        }
        self.generation = place.generation;
        if self.has_state_for(&place) {
            self.lead_as_placed(now, place, effects);
            return;
        }
        self.leave(effects);
        self.place = Some(place);
        match place.origin {
            Origin::Nothing => {
                self.shard = Some(Shard::new(self.settings.shard.clone()));
                self.journal = Journal::after(Index(0), now);
                self.lead(now, effects);
            }
            Origin::Memory => {
                let why = "this server does not have its state in memory".to_owned();
                effects.push(HostEffect::NotRestored { generation: place.generation, why });
            }
            Origin::Disk | Origin::Checkpoint { .. } => {
                self.role = Role::Loading;
                effects.push(HostEffect::Load { place });
            }
        }
    }

    /// Leads with the state that is there, with the shard's time going on from its last entry.
    fn lead(&mut self, now: Moment, effects: &mut Vec<HostEffect>) {
        (self.role, self.is_whole) = (Role::Leading, true);
        self.clock = (now, self.journal.at());
        let members = std::mem::take(&mut self.members);
        self.take(now, ShardEvent::Lead { members, started: self.started }, effects);
        if self.settings.durability == Durability::Disk {
            self.begin_disk(now, Index(0), effects);
        }
        if let Some(shard) = &self.shard {
            let (generation, has_values) = (self.generation, shard.values().is_some());
            let leads = HostEffect::Leads { generation, has_values, members: shard.members().collect() };
            // A run that has begun does not begin anew, so what it begins on must be on the disk. Those that begin with a state have it from
            // where they can have it again.
            let begins = self.place.is_some_and(|place| place.origin == Origin::Nothing);
            if begins && self.disk.is_some() {
                self.unsaid = Some(leads);
            } else {
                effects.push(leads);
            }
        }
        self.feed_as_placed(true, effects);
        for event in std::mem::take(&mut self.early) {
            self.take(now, event, effects);
        }
    }

    /// Feeds the backup that the place names, and none else.
    fn feed_as_placed(&mut self, is_news: bool, effects: &mut Vec<HostEffect>) {
        let wanted =
            self.place.and_then(|place| place.backup).filter(|backup| backup.server != self.settings.server);
        let generation = self.generation;
        if let (Some(feed), Some(wanted), false) = (&mut self.feed, wanted, is_news)
            && feed.backup() == wanted.server
        {
            match (feed.is_in_step(), wanted.in_step) {
                // What told the coordinator so was lost.
                (true, false) => effects.push(HostEffect::InStep { generation, backup: wanted.server }),
                (false, true) => feed.believe(),
                _ => {}
            }
            return;
        }
        if self.feed.take().is_some() {
            effects.push(HostEffect::CloseFeed);
        }
        if let Some(wanted) = wanted {
            self.feed = Some(Feed::new(wanted.server, wanted.in_step));
            effects.push(HostEffect::OpenFeed { backup: wanted.server, generation });
        }
    }

    /// The state that was asked for.
    pub(super) fn loaded(
        &mut self,
        now: Moment,
        generation: Generation,
        loaded: Result<Kept, String>,
        effects: &mut Vec<HostEffect>,
    ) {
        if self.role != Role::Loading || generation != self.generation {
            return;
        }
        let restored = loaded.and_then(|kept| self.replay(kept, effects));
        if let Err(why) = restored {
            let (early, place) = (std::mem::take(&mut self.early), self.place);
            early.into_iter().for_each(|event| refuse(event, effects));
            self.leave(effects);
            self.place = place;
            effects.push(HostEffect::NotRestored { generation, why });
            return;
        }
        if let Some(place) = self.place {
            self.lead_as_placed(now, place, effects);
        }
    }

    /// Leads with what it has; where the coordinator waits for a state, that is said.
    fn lead_as_placed(&mut self, now: Moment, place: Place, effects: &mut Vec<HostEffect>) {
        let shown = self.shard.as_ref().map(|shard| (shard.version(), shard.row().minimum));
        self.lead(now, effects);
        if let Some((version, minimum)) = shown.filter(|_| place.is_loaded()) {
            let (generation, clock) = (place.generation, minimum.unwrap_or_default());
            effects.push(HostEffect::Restored { generation, version, clock });
        }
    }

    /// Builds the shard from a state and the entries after it.
    fn replay(&mut self, kept: Kept, effects: &mut Vec<HostEffect>) -> Result<(), String> {
        let Kept { index, at, state, entries } = kept;
        let shard = Shard::restore(self.settings.shard.clone(), state).map_err(|why| why.to_string())?;
        (self.shard, self.journal) = (Some(shard), Journal::after(index, at));
        for entry in entries {
            let next = Index(self.journal.index().0.saturating_add(1));
            if entry.index != next {
                let (entry, next) = (entry.index.0, next.0);
                return Err(format!("the journal has entry {entry} where {next} should be: it is damaged"));
            }
            self.follow(entry, effects);
        }
        Ok(())
    }

    /// Has no part in the shard from now on.
    pub(super) fn leave(&mut self, effects: &mut Vec<HostEffect>) {
        if self.feed.take().is_some() {
            effects.push(HostEffect::CloseFeed);
        }
        for event in std::mem::take(&mut self.early) {
            refuse(event, effects);
        }
        (self.role, self.is_whole) = (Role::Idle, false);
        (self.shard, self.disk, self.unsaid) = (None, None, None);
        self.journal = Journal::default();
    }
}
