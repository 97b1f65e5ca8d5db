//! The coordinator's part in keeping what the servers have: their leases, the map of shards, checkpoints, and the last steps of workers
//! that are gone.
//!
//! Two rules are rigid. A map is stored before any server is told of it, so a coordinator that is restarted never says less than it has
//! said. And no generation of a shard is used twice.

mod copies;
mod doubts;
mod formers;
mod going;
mod invariants;
mod map;
mod notice;
mod restores;
mod rounds;
mod rows;
mod servers;

use std::collections::BTreeMap;
use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::ids::{Clock, Generation, Incarnation, Moment, ServerId, ShardId, WorkerId};
use slackline_core::limits::PLACED_MAX;
use slackline_core::wire::{FinalValues, Mark, Place, Placed, ServerOrder, ServerWord};

use doubts::Doubts;
use map::{Map, Standing};
pub use notice::ClusterNotice;
use restores::Restores;
use rounds::Rounds;
pub(super) use rows::{PlaceLack, ServerView};
use servers::Server;

/// A map of shards, to be stored before anybody is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct MapRecord {
    /// Counts the changes, from 1.
    pub number: u64,
    /// Who has which shard.
    pub places: Vec<Place>,
}

/// What the cluster is made from.
#[derive(Clone, Debug)]
pub(super) struct ClusterSettings {
    /// The server that this coordinator is; it need not be one with shards.
    pub(super) own: ServerId,
    pub(super) shards: Vec<(ShardId, ServerId)>,
    pub(super) servers: u32,
    pub(super) lease: Duration,
    pub(super) replicas: u32,
    pub(super) is_whole: bool,
    pub(super) keeps_map: bool,
    /// Clocks between two checkpoints.
    pub(super) every: Option<u64>,
    /// The checkpoint that the run goes on from, with its marker clock.
    pub(super) from: Option<(u64, Clock)>,
    /// Names the run, in checkpoints.
    pub(super) run: u64,
    /// Servers keep what they take in on their disks.
    pub(super) on_disk: bool,
}

/// What control is to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Out {
    Order(ServerId, ServerOrder),
    Persist(MapRecord),
    /// All workers are to hear of it.
    Placed(Vec<Placed>),
    Notice(ClusterNotice),
    Commit {
        mark: Mark,
        clock: Clock,
        parts: Vec<(ShardId, Vec<u8>)>,
    },
    /// A cut was chosen.
    Marked(Mark),
    /// The checkpoint that was being made is made or given up.
    Unmarked,
    /// Every shard has gone back to this checkpoint: so must the data.
    GoBack {
        number: u64,
    },
    Fail(String),
}

/// What the cluster has to know of the rest of control.
pub(super) struct View<'a> {
    /// The slowest worker's clock.
    pub(super) progress: Clock,
    /// Whether the run goes on, so that checkpoints are made.
    pub(super) is_running: bool,
    /// Batches that are done, and those that workers have.
    pub(super) done: u64,
    pub(super) in_hand: u64,
    /// Whether the work is done, and nobody is there for the final evaluation.
    pub(super) is_left: bool,
    /// The mark for a number and a margin, and its clock.
    pub(super) cut: &'a dyn Fn(u64, u64) -> (Mark, Clock),
    /// Whether all results of the batches before the cut were heard; asked only where a checkpoint waits for nothing else.
    pub(super) is_reported: &'a dyn Fn() -> bool,
}

/// The server that leads a shard, and the generation in which it began to, or began with another state.
type Led = (ServerId, Generation);

/// See the module. Everything but the settings is kept over a restart of the coordinator.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) settings: ClusterSettings,
    pub(super) kept: Kept,
    /// Something was heard or has happened since it was last settled. What it sees of the rest of control is asked beside this.
    is_due: bool,
}

/// What is kept.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub(super) struct Kept {
    /// Names the run: drawn when it began first, and the same in every process that goes on with it.
    run: u64,
    /// The checkpoint that it went on from then, with its marker clock.
    from: Option<(u64, Clock)>,
    map: Map,
    /// The number of the map as it is now.
    number: u64,
    is_changed: bool,
    /// The map that is being stored.
    storing: Option<MapRecord>,
    /// The map that is stored, which is in force.
    stored: MapRecord,
    servers: BTreeMap<ServerId, Server>,
    /// Words of servers so far.
    words: u64,
    /// Where workers think that the shards are, and since which generation.
    announced: BTreeMap<ShardId, Led>,
    /// Who leads each shard and since when, with the stored map in which that was news.
    led: BTreeMap<ShardId, (Led, u64)>,
    doubts: Doubts,
    rounds: Option<Rounds>,
    is_trained: bool,
    /// The generation in which each shard last loaded a checkpoint, or with which the work began.
    loads: BTreeMap<ShardId, Generation>,
    restores: Option<Restores>,
    /// The slowest worker's clock.
    progress: Clock,
    notices: Vec<ClusterNotice>,
    failure: Option<String>,
    /// Incarnations that control is to take for gone.
    gone: Vec<(WorkerId, Incarnation)>,
}

impl Cluster {
    pub(super) fn new(settings: ClusterSettings) -> Self {
        let from = settings.from;
        let map =
            Map::new(&settings.shards, settings.servers, settings.replicas, from.map(|(number, _)| number));
        let kept = Kept {
            run: settings.run,
            from,
            map,
            number: 0,
            is_changed: true,
            storing: None,
            stored: MapRecord::default(),
            servers: (0..settings.servers).map(|server| (ServerId(server), Server::default())).collect(),
            words: 0,
            announced: settings
                .shards
                .iter()
                .map(|(shard, server)| (*shard, (*server, Generation(0))))
                .collect(),
            led: BTreeMap::new(),
            doubts: Doubts::default(),
            rounds: settings.every.map(|every| Rounds::new(every, from)),
            is_trained: false,
            loads: BTreeMap::new(),
            restores: None,
            progress: from.map_or(Clock(0), |(_, clock)| clock),
            notices: Vec::new(),
            failure: None,
            gone: Vec::new(),
        };
        Self { settings, kept, is_due: true }
    }

    /// The name of the run.
    pub(super) const fn run(&self) -> u64 {
        self.kept.run
    }

    /// The checkpoint that the run went on from when it began first.
    pub(super) fn resumed(&self) -> Option<u64> {
        self.kept.from.map(|(number, _)| number)
    }

    /// A server says something.
    pub(super) fn word(&mut self, now: Moment, server: ServerId, word: ServerWord) {
        self.is_due = true;
        self.heard(now, server, &word);
        let pause = self.settings.lease;
        let Kept { map, rounds, notices, servers, doubts, .. } = &mut self.kept;
        match word {
            ServerWord::Here(here) => self.here(now, server, &here),
            ServerWord::Alive => {
                if let Some(known) = servers.get_mut(&server) {
                    known.asks = true;
                }
            }
            ServerWord::Took { number } => {
                if let Some(known) = servers.get_mut(&server) {
                    known.took = known.took.max(number);
                }
            }
            ServerWord::InStep { shard, generation, backup } => {
                if self.is_primary(server, shard) && self.kept.map.in_step(shard, generation, backup) {
                    self.kept.is_changed = true;
                    self.kept.notices.push(ClusterNotice::InStep { shard, backup });
                }
            }
            ServerWord::OutOfReach { shard, generation, backup } => {
                if self.is_primary(server, shard) {
                    self.kept.map.out_of_reach((shard, generation), backup, &mut self.kept.notices);
                    self.kept.is_changed = true;
                }
            }
            ServerWord::Restored { shard, generation, clock, .. } => {
                if self.is_primary(server, shard) {
                    self.restored(shard, generation, clock);
                }
            }
            ServerWord::NotRestored { shard, generation, why } => {
                if self.is_primary(server, shard) {
                    self.not_restored(shard, generation, &why.shown());
                }
            }
            ServerWord::Saved { number, shard, entry } => {
                if let Some(rounds) = rounds {
                    rounds.saved(number, shard, entry);
                }
            }
            ServerWord::NotSaved { number, shard, why } => {
                let why = format!("{shard}: {}", why.shown());
                if let Some(rounds) = rounds {
                    rounds.not_saved(now, number, why, pause / 3, notices);
                }
            }
            ServerWord::Doubt(doubt) => {
                // A former primary may have removed workers that are there, for nobody could reach it.
                let leads = map.slots.get(&doubt.shard).is_some_and(|slot| slot.place.primary == server);
                if self.settings.is_whole && leads && doubts.hear(server, &doubt) {
                    self.kept.gone.push((doubt.worker, doubt.incarnation));
                }
            }
            ServerWord::Going => self.asks_to_go(now, server),
            ServerWord::Trouble(what) => {
                let what = what.map(|what| what.shown());
                if let Some(known) = servers.get_mut(&server)
                    && known.trouble != what
                {
                    known.trouble.clone_from(&what);
                    notices.push(ClusterNotice::Trouble { server, what });
                }
            }
        }
    }

    fn is_primary(&self, server: ServerId, shard: ShardId) -> bool {
        self.kept.map.slots.get(&shard).is_some_and(|slot| slot.place.primary == server)
    }

    /// A map is stored.
    pub(super) fn persisted(&mut self, number: u64) {
        if let Some(record) = self.kept.storing.take_if(|record| record.number == number) {
            self.is_due = true;
            self.in_force(record);
        }
    }

    fn in_force(&mut self, record: MapRecord) {
        let Kept { map, led, .. } = &mut self.kept;
        for Place { shard, generation, primary, .. } in record.places.iter().copied() {
            // Where the map has gone on meanwhile, the record itself is the latest that is certain.
            let since = map.slots.get(&shard).map_or(generation, |slot| slot.led_since.min(generation));
            let entry = led.entry(shard).or_insert(((primary, since), record.number));
            if entry.0 != (primary, since) {
                *entry = ((primary, since), record.number);
            }
        }
        self.kept.stored = record;
    }

    /// Workers are given work from now on.
    pub(super) fn trained(&mut self) {
        if !self.kept.is_trained {
            (self.kept.is_trained, self.is_due) = (true, true);
            self.kept.is_changed |= self.kept.map.trained();
            self.note_beginning();
        }
    }

    /// A worker is gone.
    pub(super) fn fence(&mut self, worker: WorkerId, incarnation: Incarnation) {
        if self.settings.is_whole {
            self.is_due = true;
            self.kept.doubts.open((worker, incarnation));
        }
    }

    /// Incarnations that a server has removed on its own account.
    pub(super) fn take_gone(&mut self) -> Vec<(WorkerId, Incarnation)> {
        std::mem::take(&mut self.kept.gone)
    }

    /// Where shards are that have moved or have another state, for a worker that registers. Those that are back where they began too: a
    /// worker that was fenced in between knows only that they had left. With the generations that all others were told: a later one would
    /// make what they are told next no news to it.
    pub(super) fn moved(&self) -> Vec<Placed> {
        let placed = |(shard, (server, generation)): (&ShardId, &Led)| {
            let (shard, server, generation) = (*shard, *server, *generation);
            (generation.0 > 0).then_some(Placed { shard, generation, server })
        };
        self.kept.announced.iter().filter_map(placed).collect()
    }

    /// The run is over: the last steps of all that are gone are to be settled and the final values kept before the servers go.
    pub(super) fn finish(&mut self) -> bool {
        let is_kept = match &mut self.kept.rounds {
            Some(rounds) => {
                self.is_due |= rounds.finish();
                rounds.has_ended()
            }
            None => true,
        };
        is_kept && self.kept.doubts.is_settled()
    }

    /// Where the final values are, of a run whose work is done.
    pub(super) fn final_values(&self) -> FinalValues {
        self.kept.rounds.as_ref().map_or(FinalValues::Unkept, Rounds::final_values)
    }

    /// The checkpoint that is being made: no worker may enter before its cut.
    pub(super) fn mark(&self) -> Option<&Mark> {
        Some(&self.kept.rounds.as_ref()?.round()?.mark)
    }

    pub(super) fn committed(&mut self, now: Moment, number: u64) {
        self.is_due = true;
        let Kept { rounds, notices, .. } = &mut self.kept;
        if let Some(rounds) = rounds {
            rounds.committed(now, number, notices);
        }
    }

    pub(super) fn not_committed(&mut self, now: Moment, number: u64, why: String) {
        self.is_due = true;
        let pause = self.settings.lease / 3;
        let Kept { rounds, notices, .. } = &mut self.kept;
        if let Some(rounds) = rounds {
            rounds.not_committed(now, number, why, pause, notices);
        }
    }

    /// Whether nothing follows from the state that did not follow when it was last settled. Control asks after every event of a worker, and
    /// of those hardly one matters here.
    fn rests(&self, now: Moment, view: &View<'_>) -> bool {
        !self.is_due
            && !self.is_asked_to_go()
            && self.kept.rounds.as_ref().is_none_or(|rounds| rounds.rests(now, view))
    }

    /// What follows from the state.
    pub(super) fn settle(&mut self, now: Moment, view: &View<'_>, out: &mut Vec<Out>) {
        self.kept.progress = view.progress;
        if self.rests(now, view) {
            return;
        }
        self.is_due = false;
        self.settle_going(now);
        let (live, staying) = (self.live(), self.staying());
        let before = self.kept.map.clone();
        self.settle_copies();
        self.kept.map.choose_backups(&live, &staying);
        self.kept.is_changed |= before != self.kept.map;
        self.store(out);
        let mut orders = Vec::new();
        self.tell_places(&mut orders);
        self.tell_going(&mut orders);
        self.settle_doubts(&mut orders);
        // Where the data go back, a cut of the clocks of before would be none.
        if !self.settle_restores(view, out) {
            self.settle_rounds(now, view, &mut orders, out);
        }
        out.extend(orders.into_iter().map(|(server, order)| Out::Order(server, order)));
        let news = self.news();
        out.extend(news.chunks(PLACED_MAX).map(|chunk| Out::Placed(chunk.to_vec())));
        out.extend(std::mem::take(&mut self.kept.notices).into_iter().map(Out::Notice));
        out.extend(self.kept.failure.take().map(Out::Fail));
    }

    /// A changed map is stored before it is told; one at a time.
    fn store(&mut self, out: &mut Vec<Out>) {
        let kept = &mut self.kept;
        if !kept.is_changed || kept.storing.is_some() {
            return;
        }
        kept.is_changed = false;
        kept.number += 1;
        let places = kept.map.places().into_values().collect();
        let record = MapRecord { number: kept.number, places };
        if self.settings.keeps_map {
            self.kept.storing = Some(record.clone());
            out.push(Out::Persist(record));
        } else {
            self.in_force(record);
        }
    }

    /// Servers that can be told something now, each with the map that it was told.
    fn reached(&self) -> BTreeMap<ServerId, u64> {
        let number = self.kept.stored.number;
        let told = |(id, server): (&ServerId, &Server)| {
            (server.is_connected && server.told == number && number > 0).then_some((*id, number))
        };
        self.kept.servers.iter().filter_map(told).collect()
    }

    fn homes(&self) -> BTreeMap<ShardId, ServerId> {
        self.kept.stored.places.iter().map(|place| (place.shard, place.primary)).collect()
    }

    fn settle_doubts(&mut self, orders: &mut Vec<(ServerId, ServerOrder)>) {
        let (reached, homes) = (self.reached(), self.homes());
        self.kept.doubts.settle(&reached, &homes, orders);
    }

    fn settle_rounds(
        &mut self,
        now: Moment,
        view: &View<'_>,
        orders: &mut Vec<(ServerId, ServerOrder)>,
        out: &mut Vec<Out>,
    ) {
        let (reached, homes) = (self.reached(), self.homes());
        let live = self.live();
        let Kept { rounds: Some(rounds), map, notices, is_changed, storing, .. } = &mut self.kept else {
            return;
        };
        let is_whole = map.slots.values().all(|slot| slot.standing == Standing::Held);
        rounds.check(now, &homes, is_whole, notices);
        if rounds.take_dropped() {
            out.push(Out::Unmarked);
        }
        let can_begin = is_whole
            && !*is_changed
            && storing.is_none()
            && homes.values().all(|server| live.contains(server) && reached.contains_key(server));
        if can_begin && let Some(mark) = rounds.begin(now, view, &homes) {
            out.push(Out::Marked(mark));
        }
        rounds.tell(&reached, orders);
        if let Some((mark, clock, parts)) = rounds.commit(view) {
            out.push(Out::Commit { mark, clock, parts });
        }
    }

    /// Shards whose primary knows that it is one now, or that their state is another one, and workers do not.
    fn news(&mut self) -> Vec<Placed> {
        let mut news = Vec::new();
        let Kept { led, announced, servers, .. } = &mut self.kept;
        for (shard, (place, number)) in led {
            let (server, generation) = *place;
            let is_ready = servers.get(&server).is_some_and(|known| known.took >= *number);
            if is_ready && announced.insert(*shard, *place) != Some(*place) {
                news.push(Placed { shard: *shard, generation, server });
            }
        }
        news
    }
}

#[cfg(test)]
mod tests;
