//! The servers of the run: their leases, and what follows when one is lost, comes back or is another process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::ids::{Moment, ServerId, SessionId, ShardId};
use slackline_core::limits::PLACES_MAX;
use slackline_core::wire::{Here, Holding, Place, ServerOrder, ServerWord};

use super::Cluster;
use super::going::Going;
use super::map::{Map, Servers, Slot};
use super::notice::ClusterNotice;

/// Former processes of a server that are remembered: one that still lives then comes back at once.
const REPLACED_MAX: usize = 16;

/// One server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(super) struct Server {
    /// The number of its process; none while it was never heard.
    pub(super) boot: Option<u64>,
    /// Where that process calls from, for people.
    calls_from: String,
    /// The session over which that process was first heard here: one that called before it is an older one. (Later ones say nothing of that:
    /// whoever loses its session calls again.) Zero, which is before all of them, after a restart of the coordinator.
    first: SessionId,
    /// The numbers of the processes in whose place others came, the oldest first. They are never this server again.
    replaced: Vec<u64>,
    pub(super) heard: Option<Moment>,
    /// Its lease is over, or it was let go.
    pub(super) is_lost: bool,
    /// The number of the last word that anybody had said when its lease was over.
    pub(super) lost_after: Option<u64>,
    /// The number of its own last word, among those of all.
    pub(super) spoke: u64,
    /// It was told to go.
    pub(super) going: Option<Going>,
    /// It has the answer, over this session.
    pub(super) may_go: bool,
    /// It has a session, over which it has said what it is.
    pub(super) is_connected: bool,
    /// States that it has on its disk.
    disk: BTreeMap<ShardId, Holding>,
    /// It does not know what was in force before this map: it would begin without values where it has lost them.
    since: u64,
    /// The map that it was told over this session.
    pub(super) told: u64,
    /// What that map said of it.
    places: Option<Vec<Place>>,
    /// The last map that it has taken in.
    pub(super) took: u64,
    /// It asked whether anybody is there.
    pub(super) asks: bool,
    pub(super) trouble: Option<String>,
}

impl Server {
    /// Whether it can be counted on.
    pub(super) fn is_live(&self) -> bool {
        self.boot.is_some() && !self.is_lost
    }

    /// What it was told is told again.
    pub(super) fn tell_again(&mut self) {
        (self.places, self.told) = (None, 0);
    }

    fn replace(&mut self, boot: u64) {
        if !self.replaced.contains(&boot) {
            if self.replaced.len() == REPLACED_MAX {
                self.replaced.remove(0);
            }
            self.replaced.push(boot);
        }
    }
}

impl Cluster {
    pub(super) fn live(&self) -> BTreeSet<ServerId> {
        self.kept.servers.iter().filter(|(_, server)| server.is_live()).map(|(id, _)| *id).collect()
    }

    /// Whether the primaries of all shards are here and know that they are, as the map is now.
    pub(crate) fn has_primaries(&self) -> bool {
        let kept = &self.kept;
        let is_ready = |id: &ServerId, number: u64| {
            let server = kept.servers.get(id);
            server.is_some_and(|server| server.is_connected && server.is_live() && server.took >= number)
        };
        let is_settled = !kept.is_changed && kept.storing.is_none();
        is_settled && kept.led.values().all(|((server, _), number)| is_ready(server, *number))
    }

    /// Whether every backup that is here has what its primary has, as the map is now.
    pub(crate) fn has_copies(&self) -> bool {
        let live = self.live();
        let lags = |slot: &Slot| {
            slot.place.backup.is_some_and(|backup| !backup.in_step && live.contains(&backup.server))
        };
        !self.kept.map.slots.values().any(lags)
    }

    /// A word of a server that was lost brings it back, unless it is the first of another process.
    pub(super) fn heard(&mut self, now: Moment, id: ServerId, word: &ServerWord) {
        let Some(server) = self.kept.servers.get_mut(&id) else { return };
        self.kept.words += 1;
        server.spoke = self.kept.words;
        if matches!(word, ServerWord::Here(here) if server.boot.is_some_and(|boot| boot != here.boot)) {
            return;
        }
        (server.heard, server.lost_after) = (Some(now), None);
        // What a server that was let go still says does not bring it back.
        if !server.is_gone() && std::mem::take(&mut server.is_lost) {
            self.kept.notices.push(ClusterNotice::Back { server: id });
            self.change(now, |map, servers, notices| {
                map.returned(id, servers, notices);
                Ok(())
            });
        }
    }

    /// A change of the map, with what is known of the servers.
    pub(super) fn change(
        &mut self,
        now: Moment,
        change: impl FnOnce(&mut Map, &Servers<'_>, &mut Vec<ClusterNotice>) -> Result<(), String>,
    ) {
        let (mut map, mut notices) = (self.kept.map.clone(), Vec::new());
        let verdict = self.with_servers(now, |_, servers| change(&mut map, servers, &mut notices));
        self.kept.map = map;
        self.kept.notices.append(&mut notices);
        (self.kept.is_changed, self.is_due) = (true, true);
        if let Err(text) = verdict {
            self.kept.failure.get_or_insert(text);
        }
    }

    /// The map beside what is known of the servers.
    pub(super) fn with_servers<T>(&self, now: Moment, see: impl FnOnce(&Map, &Servers<'_>) -> T) -> T {
        let known = &self.kept.servers;
        let disks = |server: ServerId, shard: ShardId| -> Option<Holding> {
            known.get(&server)?.disk.get(&shard).copied()
        };
        let servers = Servers {
            live: &self.live(),
            disks: &disks,
            boots: &|server| known.get(&server)?.boot,
            is_on_disk: self.settings.on_disk,
            newest: self.newest(),
            is_trained: self.kept.is_trained,
            now,
            words: self.kept.words,
            patience: self.patience(),
        };
        see(&self.kept.map, &servers)
    }

    /// Whether a server has shards, in its memory or on its disk, and this coordinator never gave it any: they are of another run. (A journal
    /// would be written over.)
    pub(crate) fn is_of_another_run(&self, here: &Here) -> bool {
        let is_unknown = self.kept.servers.get(&here.server).is_some_and(|known| known.boot.is_none());
        is_unknown && !here.holds.is_empty()
    }

    /// Whether another process came in the place of this one. The newest counts: whoever starts a server again means it.
    pub(crate) fn is_replaced(&self, here: &Here) -> bool {
        self.kept.servers.get(&here.server).is_some_and(|server| server.replaced.contains(&here.boot))
    }

    /// A process says over this session who it is. One that called before the present one of its server was first heard is older, however late
    /// its word comes.
    pub(crate) fn may_be_late(&mut self, here: &Here, session: SessionId) {
        if let Some(server) = self.kept.servers.get_mut(&here.server)
            && server.boot.is_some_and(|boot| boot != here.boot)
            && session < server.first
        {
            server.replace(here.boot);
        }
    }

    /// Where a server's process calls from.
    pub(crate) fn calls_from(&self, id: ServerId) -> &str {
        self.kept.servers.get(&id).map_or("", |server| &server.calls_from)
    }

    /// The process of a server is there, over this session and from this address; what it says follows.
    pub(crate) fn called_from(&mut self, here: &Here, session: SessionId, address: &str) {
        if let Some(server) = self.kept.servers.get_mut(&here.server) {
            address.clone_into(&mut server.calls_from);
            if server.boot != Some(here.boot) {
                server.first = session;
            }
        }
    }

    /// A server says who it is, over a new session.
    pub(super) fn here(&mut self, now: Moment, id: ServerId, here: &Here) {
        let Some(server) = self.kept.servers.get_mut(&id) else { return };
        let before = server.boot.replace(here.boot);
        if before != Some(here.boot) {
            before.into_iter().for_each(|before| server.replace(before));
            // A new process was told nothing, and the map has what becomes of the one before.
            (server.is_lost, server.lost_after, server.going) = (false, None, None);
        }
        server.may_go = false;
        let holds = here.holds.iter().filter(|holding| holding.on_disk).take(PLACES_MAX);
        server.disk = holds.map(|holding| (holding.shard, *holding)).collect();
        server.tell_again();
        (server.is_connected, server.took, server.heard) = (true, 0, Some(now));
        self.kept.doubts.forget_told(id);
        if let Some(rounds) = &mut self.kept.rounds {
            rounds.forget_told(id);
        }
        if before.is_none_or(|before| before == here.boot) {
            return;
        }
        if let Some(server) = self.kept.servers.get_mut(&id) {
            // What is in force or being stored now counts on what it had.
            server.since = self.kept.number + 1;
        }
        self.kept.notices.push(ClusterNotice::Restarted { server: id });
        self.change(now, |map, servers, notices| map.reborn(id, servers, notices));
    }

    /// The session of a server is over; its lease goes on.
    pub(crate) fn disconnected(&mut self, id: ServerId) {
        if let Some(server) = self.kept.servers.get_mut(&id) {
            server.is_connected = false;
            self.is_due = true;
        }
    }

    /// Servers whose lease is over. The coordinator's own server is never lost to itself.
    pub(crate) fn tick(&mut self, now: Moment) {
        let lease = self.settings.lease;
        let mut lost = Vec::new();
        for (id, server) in self.kept.servers.iter_mut().filter(|(id, _)| **id != self.settings.own) {
            let Some(heard) = server.heard.filter(|_| server.is_live()) else { continue };
            let silent = now.since(heard);
            if silent > lease {
                (server.is_lost, server.lost_after) = (true, Some(self.kept.words));
                lost.push((*id, silent));
            }
        }
        let ids: BTreeSet<_> = lost.iter().map(|(id, _)| *id).collect();
        for (id, silent) in lost {
            self.kept.notices.push(ClusterNotice::Lost { server: id, silent });
            self.change(now, |map, servers, notices| {
                map.lost(id, servers, notices);
                Ok(())
            });
        }
        self.ask_primaries(&ids);
        self.tick_copies(now);
    }

    /// Time in which this server heard nobody is nobody's silence.
    pub(crate) fn forgive(&mut self, by: Duration, now: Moment) {
        for server in self.kept.servers.values_mut() {
            server.heard = server.heard.map(|heard| heard.after(by).min(now));
        }
        self.date_copies(|since| since.after(by).min(now));
    }

    /// What was kept of the process before; the events since then follow.
    pub(crate) fn take_up(&mut self, kept: super::Kept) {
        (self.kept, self.is_due) = (kept, true);
    }

    /// After a restart of the coordinator: all leases begin anew, and nobody has a session.
    pub(crate) fn restart(&mut self, now: Moment) {
        self.is_due = true;
        for server in self.kept.servers.values_mut() {
            server.heard = server.heard.map(|_| now);
            (server.is_connected, server.asks, server.first) = (false, false, SessionId(0));
        }
        self.date_copies(|_| now);
        if let Some(rounds) = &mut self.kept.rounds {
            rounds.restart();
        }
        if let Some(record) = self.kept.storing.take() {
            // Nobody knows whether it is stored: it was told to nobody, and is stored again under its number and later ones.
            self.kept.number = record.number;
            self.kept.is_changed = true;
        }
    }

    /// Tells every server that can hear it what is in force, where that is not what it was told.
    pub(super) fn tell_places(&mut self, orders: &mut Vec<(ServerId, ServerOrder)>) {
        let (number, run, from) = (self.kept.stored.number, self.kept.run, self.resumed());
        let all = self.kept.stored.places.iter().map(|place| (place.shard, *place)).collect();
        for (id, server) in self.kept.servers.iter_mut().filter(|(_, server)| server.is_connected) {
            if std::mem::take(&mut server.asks) {
                orders.push((*id, ServerOrder::Heard));
            }
            if number == 0 || number < server.since || server.told == number {
                continue;
            }
            let places = Map::of(&all, *id);
            server.told = number;
            if server.places.as_ref() != Some(&places) {
                server.places = Some(places.clone());
                orders.push((*id, ServerOrder::Places { number, run, from, places }));
            }
        }
    }
}
