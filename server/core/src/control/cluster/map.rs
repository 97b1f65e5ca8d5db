//! The map of shards: who answers for each, who holds its copy, and what becomes of it when a server is lost.
//!
//! Every change of a shard's primary, and every loss of its backup, begins a new generation of it, and no generation is used twice: what
//! one says of a backup, a state or a frame can never be taken for what another said.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::ids::{Generation, Moment, ServerId, ShardId};
use slackline_core::limits::PLACES_MAX;
use slackline_core::wire::{Backup, Holding, Origin, Place};

use super::copies::Bereft;
use super::formers::Formers;
use super::notice::ClusterNotice;

/// How far a shard's state is known to be where its place says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) enum Standing {
    /// The primary has the state, or begins without values.
    Held,
    /// The primary loads it.
    Loads,
    /// The primary is away, and there is no other copy. It has the state, as far as is known.
    Waits,
    /// The same, and it has not said that it has loaded the state.
    WaitsToLoad,
}

impl Standing {
    /// Whether the primary is away.
    pub(super) const fn is_away(self) -> bool {
        matches!(self, Self::Waits | Self::WaitsToLoad)
    }
}

/// One shard in the map.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Slot {
    pub(super) place: Place,
    pub(super) standing: Standing,
    /// The last backup that the primary could not reach: others are chosen first.
    pub(super) shunned: Option<ServerId>,
    /// The generation in which its primary became that, or began with another state.
    pub(super) led_since: Generation,
    /// What its primary's disk has from this generation on is whole: it is `led_since`, but where the shard went back to that disk.
    pub(super) whole_since: Generation,
    /// Who led it before, as long as its primary may have nothing on its disk.
    pub(super) formers: Formers,
    /// Who led it before and was started again without it, as long as nothing was heard of its primary since.
    pub(super) bereft: Option<Bereft>,
}

/// What is known of the servers when the map is changed.
pub(super) struct Servers<'a> {
    /// Those that can be counted on now.
    pub(super) live: &'a BTreeSet<ServerId>,
    /// What each has on its disk.
    pub(super) disks: &'a dyn Fn(ServerId, ShardId) -> Option<Holding>,
    /// The number of the process of each.
    pub(super) boots: &'a dyn Fn(ServerId) -> Option<u64>,
    /// Whether what is acknowledged is on a disk.
    pub(super) is_on_disk: bool,
    /// The newest checkpoint.
    pub(super) newest: Option<u64>,
    /// Whether there can be trained values.
    pub(super) is_trained: bool,
    pub(super) now: Moment,
    /// Words that servers have said so far.
    pub(super) words: u64,
    /// How long a copy that is away is waited for where there is a checkpoint.
    pub(super) patience: Duration,
}

/// The map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(super) struct Map {
    pub(super) slots: BTreeMap<ShardId, Slot>,
    /// Copies that each shard should have.
    replicas: u32,
    /// Where a shard begins.
    first: Option<u64>,
}

impl Map {
    /// The first map: every shard where the partition puts it, its backup on the next server; `first` is the checkpoint that the run goes on
    /// from.
    pub(super) fn new(
        shards: &[(ShardId, ServerId)],
        servers: u32,
        replicas: u32,
        first: Option<u64>,
    ) -> Self {
        let origin = first.map_or(Origin::Nothing, |number| Origin::Checkpoint { number });
        let slot = |(shard, primary): &(ShardId, ServerId)| {
            let next = ServerId((primary.0 + 1) % servers.max(1));
            let backup =
                (replicas > 1 && next != *primary).then_some(Backup { server: next, in_step: false });
            let place = Place { shard: *shard, generation: Generation(0), primary: *primary, backup, origin };
            let standing = if first.is_some() { Standing::Loads } else { Standing::Held };
            let (led_since, whole_since) = (Generation(0), Generation(0));
            let formers = Formers::default();
            let slot = Slot { place, standing, shunned: None, led_since, whole_since, formers, bereft: None };
            (*shard, slot)
        };
        Self { slots: shards.iter().map(slot).collect(), replicas, first }
    }

    /// A server is lost: its lease is over. What becomes of shards that have their backup there is settled when their primaries can be told.
    pub(super) fn lost(&mut self, server: ServerId, servers: &Servers<'_>, notices: &mut Vec<ClusterNotice>) {
        for slot in self.slots.values_mut() {
            if slot.place.primary == server {
                let boot = (servers.boots)(server);
                if !slot.promote(boot, servers, notices) {
                    slot.wait();
                }
            }
        }
    }

    /// The shards of a server that nobody could answer for at once if it went.
    pub(super) fn alone_at(&self, server: ServerId, live: &BTreeSet<ServerId>) -> u64 {
        let led = self.slots.values().filter(|slot| slot.place.primary == server);
        led.filter(|slot| !slot.can_promote(live)).count() as u64
    }

    /// A server is another process than before: what it had in memory is gone.
    pub(super) fn reborn(
        &mut self,
        server: ServerId,
        servers: &Servers<'_>,
        notices: &mut Vec<ClusterNotice>,
    ) -> Result<(), String> {
        let first = self.first;
        for slot in self.slots.values_mut() {
            if slot.place.primary == server {
                if slot.promote(None, servers, notices) {
                    slot.bereft = Some(Bereft::new(server, servers));
                } else {
                    slot.restore(servers, first, notices)?;
                }
            } else if slot.has_backup_at(server) {
                slot.go_on_alone(notices);
            }
        }
        Ok(())
    }

    /// A server that was lost is here again, as the same process.
    pub(super) fn returned(
        &mut self,
        server: ServerId,
        servers: &Servers<'_>,
        notices: &mut Vec<ClusterNotice>,
    ) {
        for slot in self.slots.values_mut() {
            if slot.standing.is_away() && slot.has_backup_at(server) {
                let boot = (servers.boots)(slot.place.primary);
                slot.promote(boot, servers, notices);
            }
            if slot.place.primary != server {
                continue;
            }
            slot.standing = match slot.standing {
                Standing::WaitsToLoad | Standing::Loads => Standing::Loads,
                // A state that was loaded once is not loaded again, and nobody would say so.
                Standing::Waits | Standing::Held => Standing::Held,
            };
        }
    }

    /// Workers are given work: from now on there is something to lose, and no shard begins without values again.
    pub(super) fn trained(&mut self) -> bool {
        let fresh = self.slots.values_mut().filter(|slot| slot.place.origin == Origin::Nothing);
        fresh.map(|slot| slot.place.origin = Origin::Memory).count() > 0
    }

    /// A loaded state is in force.
    pub(super) fn restored(&mut self, shard: ShardId, generation: Generation) -> Option<Origin> {
        let slot = self.slots.get_mut(&shard).filter(|slot| slot.place.generation == generation)?;
        (std::mem::replace(&mut slot.standing, Standing::Held) == Standing::Loads)
            .then_some(slot.place.origin)
    }

    /// A state could not be loaded: the next best is tried, if there is one.
    pub(super) fn not_restored(
        &mut self,
        (shard, generation): (ShardId, Generation),
        why: &str,
        newest: Option<u64>,
        notices: &mut Vec<ClusterNotice>,
    ) -> Result<(), String> {
        let Some(slot) = self.slots.get_mut(&shard).filter(|slot| slot.place.generation == generation) else {
            return Ok(());
        };
        if slot.standing.is_away() {
            return Ok(());
        }
        match (slot.place.origin, newest) {
            (Origin::Disk | Origin::Memory, Some(number)) => {
                notices.push(ClusterNotice::NotRestored { shard, why: why.to_owned() });
                slot.load(Origin::Checkpoint { number }, notices);
                Ok(())
            }
            // It was removed while the one after it was committed.
            (Origin::Checkpoint { number }, Some(newer)) if newer > number => {
                slot.load(Origin::Checkpoint { number: newer }, notices);
                Ok(())
            }
            (Origin::Memory, None) => Err(format!("{shard} has no state: {why}")),
            (origin, _) => {
                Err(format!("{shard} cannot be restored from {}: {why}", super::notice::from(origin)))
            }
        }
    }

    /// A backup has all that its primary has.
    pub(super) fn in_step(&mut self, shard: ShardId, generation: Generation, server: ServerId) -> bool {
        let slot = self.slots.get_mut(&shard).filter(|slot| slot.place.generation == generation);
        let backup =
            slot.and_then(|slot| slot.place.backup.as_mut()).filter(|backup| backup.server == server);
        backup.is_some_and(|backup| !std::mem::replace(&mut backup.in_step, true))
    }

    /// A primary cannot reach its backup.
    pub(super) fn out_of_reach(
        &mut self,
        (shard, generation): (ShardId, Generation),
        backup: ServerId,
        notices: &mut Vec<ClusterNotice>,
    ) {
        let slot = self.slots.get_mut(&shard).filter(|slot| slot.place.generation == generation);
        if let Some(slot) = slot.filter(|slot| slot.has_backup_at(backup) && !slot.standing.is_away()) {
            slot.shunned = Some(backup);
            slot.go_on_alone(notices);
        }
    }

    /// Gives a backup to shards that have none: the server of those that stay with the fewest copies, the next in the ring among equals. One
    /// that has as many places as fit in an order takes no more, and the shard waits for another.
    pub(super) fn choose_backups(&mut self, live: &BTreeSet<ServerId>, staying: &BTreeSet<ServerId>) {
        if self.replicas < 2 {
            return;
        }
        let mut copies = self.copies();
        let count = live.iter().next_back().map_or(1, |last| last.0 + 1);
        for slot in self.slots.values_mut() {
            let primary = slot.place.primary;
            if slot.place.backup.is_some() || slot.standing != Standing::Held || !live.contains(&primary) {
                continue;
            }
            let ring = |server: ServerId| (server.0 + count - primary.0 % count - 1) % count;
            let copies_at = |server| copies.get(&server).copied().unwrap_or(0);
            let has_room = |server: &&ServerId| **server != primary && copies_at(**server) < PLACES_MAX;
            let chosen = staying
                .iter()
                .filter(has_room)
                .min_by_key(|server| (slot.shunned == Some(**server), copies_at(**server), ring(**server)));
            if let Some(server) = chosen.copied() {
                slot.place.backup = Some(Backup { server, in_step: false });
                *copies.entry(server).or_default() += 1;
            }
        }
    }

    /// How many places each server has, of those that have some.
    pub(super) fn copies(&self) -> BTreeMap<ServerId, usize> {
        let mut copies = BTreeMap::new();
        for slot in self.slots.values() {
            let servers = [Some(slot.place.primary), slot.place.backup.map(|backup| backup.server)];
            for server in servers.into_iter().flatten() {
                *copies.entry(server).or_default() += 1;
            }
        }
        copies
    }

    /// The places that concern a server, at most [`PLACES_MAX`].
    pub(super) fn of(places: &BTreeMap<ShardId, Place>, server: ServerId) -> Vec<Place> {
        let concerns = |place: &&Place| {
            place.primary == server || place.backup.is_some_and(|backup| backup.server == server)
        };
        places.values().filter(concerns).copied().collect()
    }

    pub(super) fn places(&self) -> BTreeMap<ShardId, Place> {
        self.slots.iter().map(|(shard, slot)| (*shard, slot.place)).collect()
    }
}

impl Slot {
    fn has_backup_at(&self, server: ServerId) -> bool {
        self.place.backup.is_some_and(|backup| backup.server == server)
    }

    fn next_generation(&mut self) {
        self.place.generation = self.place.generation.next();
    }

    /// Whether there is a backup that lacks nothing and can be counted on.
    fn can_promote(&self, live: &BTreeSet<ServerId>) -> bool {
        self.place.backup.is_some_and(|backup| backup.in_step && live.contains(&backup.server))
    }

    /// Lets the backup answer, where it lacks nothing. `boot` is the process of the primary, unless it has ended.
    fn promote(
        &mut self,
        boot: Option<u64>,
        servers: &Servers<'_>,
        notices: &mut Vec<ClusterNotice>,
    ) -> bool {
        let Some(backup) = self.place.backup.filter(|_| self.can_promote(servers.live)) else { return false };
        let from = self.place.primary;
        self.hand_over(backup.server, boot, servers);
        let Place { shard, generation, primary: to, .. } = self.place;
        notices.push(ClusterNotice::Promoted { shard, from, to, generation });
        true
    }

    /// The server that has the copy is the primary from now on; `boot` is the process of the one before, unless it has ended.
    pub(super) fn hand_over(&mut self, to: ServerId, boot: Option<u64>, servers: &Servers<'_>) {
        if servers.is_on_disk {
            self.formers.add(self.place.primary, self.whole_since, boot);
        }
        self.next_generation();
        self.place = Place { primary: to, backup: None, origin: Origin::Memory, ..self.place };
        self.standing = Standing::Held;
        (self.led_since, self.whole_since) = (self.place.generation, self.place.generation);
        self.bereft = None;
    }

    /// Nobody answers for it until its primary is back. Its backup, which lacks something, is kept until then: only the primary can be told
    /// to go on without it.
    pub(super) fn wait(&mut self) {
        self.standing = match self.standing {
            Standing::Held | Standing::Waits => Standing::Waits,
            Standing::Loads | Standing::WaitsToLoad => Standing::WaitsToLoad,
        };
    }

    pub(super) fn go_on_alone(&mut self, notices: &mut Vec<ClusterNotice>) {
        let Some(backup) = self.place.backup.take() else { return };
        self.next_generation();
        // The primary has the state, unless it is still to load it.
        let has_it = matches!(self.standing, Standing::Held | Standing::Waits);
        if has_it && self.place.origin != Origin::Nothing {
            self.place.origin = Origin::Memory;
        }
        let Place { shard, primary, .. } = self.place;
        if backup.in_step {
            notices.push(ClusterNotice::Alone { shard, primary, backup: backup.server });
        }
    }

    /// The primary is here and its memory is not.
    fn restore(
        &mut self,
        servers: &Servers<'_>,
        first: Option<u64>,
        notices: &mut Vec<ClusterNotice>,
    ) -> Result<(), String> {
        let Place { shard, primary, .. } = self.place;
        // Its disk can be behind the map by generations in which it only lost its backup.
        let on_disk =
            (servers.disks)(primary, shard).filter(|holding| holding.is_from(self.whole_since)).is_some();
        if !servers.is_trained {
            // No worker was given work yet: there is nothing to lose.
            self.begin_again(first, notices);
            return Ok(());
        }
        if on_disk {
            self.formers.clear();
            self.load(Origin::Disk, notices);
            return Ok(());
        }
        if self.wait_for_copy(servers, notices) || self.go_back(servers, notices) {
            return Ok(());
        }
        match (servers.newest, self.bereft) {
            (Some(number), _) => self.load(Origin::Checkpoint { number }, notices),
            (None, Some(Bereft { server, .. })) => {
                return Err(format!(
                    "{shard} has no state: {server} was restarted, and {primary}, which had the copy, too; give the run \
                     cluster.durability = \"disk\" or checkpoints"
                ));
            }
            (None, None) => {
                return Err(format!(
                    "{shard} has no state: {primary} was restarted; give the run cluster.durability = \"disk\", \
                     cluster.replicas = 2 or checkpoints"
                ));
            }
        }
        Ok(())
    }

    fn begin_again(&mut self, first: Option<u64>, notices: &mut Vec<ClusterNotice>) {
        match first {
            Some(number) => self.load(Origin::Checkpoint { number }, notices),
            None => {
                self.next_generation();
                self.place.backup = None;
                self.place.origin = Origin::Nothing;
                self.begins_here();
                self.standing = Standing::Held;
            }
        }
    }

    /// The state is another one from this generation on; what others had of the one before does not matter any more.
    fn begins_here(&mut self) {
        (self.led_since, self.whole_since) = (self.place.generation, self.place.generation);
        self.formers.clear();
        self.bereft = None;
    }

    pub(super) fn load(&mut self, origin: Origin, notices: &mut Vec<ClusterNotice>) {
        self.next_generation();
        self.place.backup = None;
        self.place.origin = origin;
        if origin != Origin::Disk {
            self.begins_here();
        }
        self.standing = Standing::Loads;
        self.bereft = None;
        let Place { shard, primary: server, .. } = self.place;
        notices.push(ClusterNotice::Loads { shard, server, origin });
    }
}
