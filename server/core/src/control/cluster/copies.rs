//! Copies that are away: equal to what their primary has, or had, on servers that were not heard for a while (frozen, cut off).
//!
//! Such a copy is lost only when its primary goes on without it, and that is so only once the primary has been told. So it is told only when
//! it has said something since the copy was missed, and is asked for that: where it is lost as well, and comes back or is started again, the
//! copy still counts. A primary that is started again without its state gives the shard to the copy's server, away or not, and the shard
//! waits for that one by name. Where there is a checkpoint it waits for two leases, as long as any loss of a server may take; then a state
//! that is a little old is worth more than one that may never come. So it is where the server that was started again has it all on its disk.

use std::collections::BTreeSet;
use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::config::timers::PROMOTION;
use slackline_core::ids::{Moment, ServerId, ShardId};
use slackline_core::limits::PLACES_MAX;
use slackline_core::wire::Origin;

use super::map::{Map, Servers, Slot};
use super::notice::ClusterNotice;
use super::{Cluster, Kept};

/// A server that led a shard and was started again without it, while the server that has the copy was not heard since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Bereft {
    pub(super) server: ServerId,
    since: Moment,
    /// The number of the last word that any server had said by then.
    word: u64,
}

impl Bereft {
    pub(super) const fn new(server: ServerId, servers: &Servers<'_>) -> Self {
        Self { server, since: servers.now, word: servers.words }
    }
}

/// A shard that waits for its copy no longer.
struct Waited {
    shard: ShardId,
    /// The server that loads a checkpoint, where it has nothing better on its disk.
    server: ServerId,
    number: Option<u64>,
    /// How long it has waited.
    after: Duration,
}

impl Slot {
    /// Lets a backup that lacks nothing answer as soon as it is back: its primary has been started again without the state.
    pub(super) fn wait_for_copy(&mut self, servers: &Servers<'_>, notices: &mut Vec<ClusterNotice>) -> bool {
        let Some(backup) = self.place.backup.filter(|backup| backup.in_step) else { return false };
        let (shard, from, to) = (self.place.shard, self.place.primary, backup.server);
        self.hand_over(to, None, servers);
        self.wait();
        self.bereft = Some(Bereft::new(from, servers));
        let until = servers.newest.map(|number| (servers.patience, number));
        notices.push(ClusterNotice::WaitsForCopy { shard, from, to, until });
        true
    }

    fn waited(&self, servers: &Servers<'_>) -> Option<Waited> {
        let Bereft { server, since, .. } = self.bereft.filter(|_| self.standing.is_away())?;
        let after = servers.now.since(since);
        let is_over = after >= servers.patience && servers.live.contains(&server);
        let number = servers.newest;
        let has_some = number.is_some() || self.can_go_back(servers);
        (is_over && has_some).then_some(Waited { shard: self.place.shard, server, number, after })
    }
}

impl Map {
    /// Primaries go on without backups that are lost, where these can be told that those are.
    pub(super) fn leave_lost(
        &mut self,
        can_be_told: impl Fn(ServerId, ServerId) -> bool,
        notices: &mut Vec<ClusterNotice>,
    ) {
        for slot in self.slots.values_mut().filter(|slot| !slot.standing.is_away()) {
            let primary = slot.place.primary;
            if slot.place.backup.is_some_and(|backup| can_be_told(primary, backup.server)) {
                slot.go_on_alone(notices);
            }
        }
    }

    /// Shards that have waited for their copies long enough, as far as their former servers have room for them.
    fn waited(&self, servers: &Servers<'_>) -> Vec<Waited> {
        let mut copies = self.copies();
        let mut has_room = |waited: &Waited| {
            let count = copies.entry(waited.server).or_default();
            *count += 1;
            *count <= PLACES_MAX
        };
        self.slots.values().filter_map(|slot| slot.waited(servers)).filter(|one| has_room(one)).collect()
    }

    /// Former servers load what is on their disks, which is all that anybody was told, or else a checkpoint.
    fn wait_no_longer(&mut self, waited: &[Waited], servers: &Servers<'_>, notices: &mut Vec<ClusterNotice>) {
        for Waited { shard, server, number, after } in waited {
            let Some(slot) = self.slots.get_mut(shard) else { continue };
            let away = slot.place.primary;
            notices.push(ClusterNotice::CopyStaysAway { shard: *shard, server: away, after: *after });
            if slot.go_back(servers, notices) {
                continue;
            }
            if let Some(number) = *number {
                slot.place.primary = *server;
                slot.load(Origin::Checkpoint { number }, notices);
            }
        }
    }
}

impl Cluster {
    /// How long a copy that is away is waited for where there is a checkpoint.
    pub(super) fn patience(&self) -> Duration {
        self.settings.lease * PROMOTION
    }

    /// Asks the primaries of copies that are lost for a word: whoever is told what it knows says that it took it in.
    pub(super) fn ask_primaries(&mut self, lost: &BTreeSet<ServerId>) {
        let (own, Kept { map, servers, .. }) = (self.settings.own, &mut self.kept);
        for slot in map.slots.values().filter(|slot| slot.place.primary != own && !slot.standing.is_away()) {
            let is_lost = slot.place.backup.is_some_and(|backup| lost.contains(&backup.server));
            if let Some(primary) = servers.get_mut(&slot.place.primary).filter(|_| is_lost) {
                primary.tell_again();
            }
        }
    }

    /// Primaries go on without backups that are lost.
    pub(super) fn settle_copies(&mut self) {
        let (own, servers) = (self.settings.own, &self.kept.servers);
        let can_be_told = |primary: ServerId, backup: ServerId| {
            let (Some(first), Some(second)) = (servers.get(&primary), servers.get(&backup)) else {
                return false;
            };
            // One that was told to go is missed by nobody.
            let has_spoken = second.lost_after.is_none_or(|word| first.spoke > word);
            let hears = first.is_live() && first.is_connected && has_spoken;
            second.is_lost && (primary == own || hears)
        };
        self.kept.map.leave_lost(can_be_told, &mut self.kept.notices);
    }

    /// Copies that are back, or were waited for long enough, are waited for no more.
    pub(super) fn tick_copies(&mut self, now: Moment) {
        let Kept { map, servers, .. } = &mut self.kept;
        for slot in map.slots.values_mut() {
            let spoke = servers.get(&slot.place.primary).map_or(0, |server| server.spoke);
            slot.bereft = slot.bereft.filter(|bereft| spoke <= bereft.word);
        }
        let waited = self.with_servers(now, Map::waited);
        if !waited.is_empty() {
            self.change(now, |map, servers, notices| {
                map.wait_no_longer(&waited, servers, notices);
                Ok(())
            });
        }
    }

    /// Moves the moments since which copies are waited for.
    pub(super) fn date_copies(&mut self, moment: impl Fn(Moment) -> Moment) {
        for bereft in self.kept.map.slots.values_mut().filter_map(|slot| slot.bereft.as_mut()) {
            bereft.since = moment(bereft.since);
        }
    }
}
