//! What one server was ordered about its shards, and what it tells the coordinator of them.
//!
//! The coordinator says how things are to be; this part hands the news on to the shards and keeps what the coordinator must hear until a
//! session takes it there. On server 0 the session is a function call.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use slackline_core::ids::{Generation, Incarnation, Moment, ServerId, ShardId, WorkerId};
use slackline_core::wire::{Doubt, Here, Holding, Origin, Place, ServerWord, Text};

/// What a server knows of one shard that concerns it.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
struct Home {
    place: Place,
    /// The shard is led here.
    leads: bool,
    has_values: bool,
    /// The last word of each kind about it, for a coordinator that has not heard it.
    in_step: Option<ServerWord>,
    restored: Option<ServerWord>,
    saved: Option<ServerWord>,
}

/// What a new order changes.
pub(super) struct Change {
    pub(super) shard: ShardId,
    /// The new place; none when the shard is no business of this server any more.
    pub(super) place: Option<Place>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub(super) struct Places {
    server: ServerId,
    /// The last order; none before the first.
    number: Option<u64>,
    /// The next order is the first over its session.
    is_new_session: bool,
    homes: BTreeMap<ShardId, Home>,
    /// States that lay on the disk when the process began.
    disk: Vec<Holding>,
    /// Gone workers whose pieces wait here.
    doubts: BTreeMap<(WorkerId, Incarnation, ShardId), Doubt>,
    trouble: Option<Text>,
    /// The coordinator can be told something.
    pub(super) is_linked: bool,
    pub(super) said: Moment,
}

impl Places {
    pub(super) const fn new(server: ServerId, disk: Vec<Holding>) -> Self {
        Self {
            server,
            number: None,
            is_new_session: true,
            homes: BTreeMap::new(),
            disk,
            doubts: BTreeMap::new(),
            trouble: None,
            is_linked: false,
            said: Moment(0),
        }
    }

    /// The process is another one than that whose state this is: nothing is in its memory.
    pub(super) fn restart(&mut self, disk: Vec<Holding>) {
        *self = Self::new(self.server, disk);
    }

    /// What is said first over a session, and what may not have been heard before.
    pub(super) fn words(&mut self, boot: u64, layout_hash: u64, config_hash: u64) -> Vec<ServerWord> {
        self.is_new_session = true;
        let holds = self.holds();
        let here = Here { server: self.server, boot, layout_hash, config_hash, holds };
        let mut words = vec![ServerWord::Here(here)];
        for home in self.homes.values() {
            let kept = [&home.in_step, &home.restored, &home.saved];
            words.extend(kept.into_iter().flatten().cloned());
        }
        words.extend(self.doubts.values().cloned().map(ServerWord::Doubt));
        words.extend(self.trouble.clone().map(|trouble| ServerWord::Trouble(Some(trouble))));
        words
    }

    fn holds(&self) -> Vec<Holding> {
        let mut holds: BTreeMap<ShardId, Holding> =
            self.disk.iter().map(|holding| (holding.shard, *holding)).collect();
        for (shard, home) in &self.homes {
            let Place { generation, primary, backup, .. } = home.place;
            let is_backup = backup.is_some_and(|backup| backup.server == self.server && backup.in_step);
            if (primary == self.server && home.leads) || is_backup {
                let holding = Holding { shard: *shard, generation, is_whole: true, on_disk: false };
                holds.insert(*shard, holding);
            }
        }
        holds.into_values().take(slackline_core::limits::PLACES_MAX).collect()
    }

    /// Takes an order in. None for one that is older than the last.
    ///
    /// # Errors
    /// Where the coordinator knows less than it has said: it was restarted without its memory.
    pub(super) fn order(&mut self, number: u64, places: &[Place]) -> Result<Option<Vec<Change>>, String> {
        let is_first = std::mem::take(&mut self.is_new_session);
        match self.number {
            Some(last) if number < last && is_first => {
                return Err(format!(
                    "the coordinator was restarted without its memory (map {number} after map {last}): its run is \
                     another one; start the run again, or resume it from a checkpoint"
                ));
            }
            Some(last) if number < last => return Ok(None),
            _ => self.number = Some(number),
        }
        let mut changes = Vec::new();
        let named: BTreeMap<ShardId, Place> = places.iter().map(|place| (place.shard, *place)).collect();
        let gone = self.homes.keys().filter(|shard| !named.contains_key(shard)).copied();
        for shard in gone.collect::<Vec<_>>() {
            self.homes.remove(&shard);
            changes.push(Change { shard, place: None });
        }
        // Whoever answers for the shard now has doubts of its own.
        let own = self.server;
        let is_led = |shard: &ShardId| named.get(shard).is_some_and(|place| place.primary == own);
        self.doubts.retain(|(_, _, shard), _| is_led(shard));
        for (shard, place) in named {
            let before = self.homes.get(&shard);
            if before.is_some_and(|home| home.place == place) {
                continue;
            }
            // A primary that stays one keeps what it has.
            let stays =
                before.filter(|home| home.place.primary == self.server && place.primary == self.server);
            let keeps = stays.filter(|_| {
                !place.is_loaded() || stays.is_some_and(|home| home.place.generation == place.generation)
            });
            let (leads, has_values) = keeps.map_or((false, false), |home| (home.leads, home.has_values));
            let same = before.filter(|home| home.place.generation == place.generation);
            let home = Home {
                place,
                leads,
                has_values,
                in_step: same.and_then(|home| home.in_step.clone()),
                restored: same.and_then(|home| home.restored.clone()),
                saved: keeps.and_then(|home| home.saved.clone()),
            };
            self.homes.insert(shard, home);
            changes.push(Change { shard, place: Some(place) });
        }
        Ok(Some(changes))
    }

    /// Whether the run has begun, as the places of shards say it: some shard here goes on. (A run that is resumed begins anew.)
    pub(super) fn go_on(&self) -> bool {
        let goes_on = |place: &Place| match place.origin {
            Origin::Nothing => false,
            Origin::Memory => true,
            Origin::Disk | Origin::Checkpoint { .. } => place.generation > Generation(0),
        };
        self.homes.values().any(|home| goes_on(&home.place))
    }

    /// Whether the coordinator has ever said what this server is to do.
    pub(super) const fn is_ordered(&self) -> bool {
        self.number.is_some()
    }

    /// Whether every shard that it leads has a copy elsewhere that can answer at once.
    pub(super) fn has_copies(&self) -> bool {
        let mut led = self.homes.values().filter(|home| home.place.primary == self.server);
        led.all(|home| home.place.backup.is_some_and(|backup| backup.in_step))
    }

    /// Whether this server leads a shard.
    pub(super) fn is_led(&self, shard: ShardId) -> bool {
        self.homes.get(&shard).is_some_and(|home| home.place.primary == self.server)
    }

    /// Whether it has heard what it is to do, and has done it: workers can be taken in.
    pub(super) fn is_ready(&self) -> bool {
        self.number.is_some()
            && self.homes.values().all(|home| home.place.primary != self.server || home.leads)
    }

    /// The last order, once all shards that begin here without a state are led: the run may count on them from then on.
    pub(super) fn begun(&self) -> Option<u64> {
        let begins = |home: &&Home| home.place.primary == self.server && home.place.origin == Origin::Nothing;
        self.number.filter(|_| self.homes.values().filter(begins).all(|home| home.leads))
    }

    /// Whether every shard that it leads has values.
    pub(super) fn has_values(&self) -> bool {
        self.homes.values().all(|home| home.place.primary != self.server || home.has_values)
    }

    /// The shards that are led here without values, where they should have some.
    pub(super) fn without_values(&self) -> Vec<(ShardId, Generation)> {
        let lacks = |home: &&Home| home.leads && !home.has_values && home.place.origin != Origin::Nothing;
        let lacking = self.homes.values().filter(lacks).map(|home| home.place);
        lacking
            .filter(|place| place.primary == self.server)
            .map(|place| (place.shard, place.generation))
            .collect()
    }

    /// A shard is led here now. Its place can be of a later generation by now, in which it goes on without its backup.
    pub(super) fn leads(&mut self, shard: ShardId, generation: Generation, has_values: bool) {
        let home = self.homes.get_mut(&shard).filter(|home| home.place.generation >= generation);
        if let Some(home) = home {
            home.leads = true;
            home.has_values |= has_values;
        }
    }

    /// A shard has values now.
    pub(super) fn got_values(&mut self, shard: ShardId) {
        if let Some(home) = self.homes.get_mut(&shard) {
            home.has_values = true;
        }
    }

    fn at(&mut self, shard: ShardId, generation: Generation) -> Option<&mut Home> {
        self.homes.get_mut(&shard).filter(|home| home.place.generation == generation)
    }

    /// Takes note of a word, in case it is not heard; false when it is of a place that is no more.
    pub(super) fn note(&mut self, word: &ServerWord) -> bool {
        let kept = Some(word.clone());
        match word {
            ServerWord::InStep { shard, generation, .. } => {
                self.at(*shard, *generation).map(|home| home.in_step = kept).is_some()
            }
            ServerWord::Restored { shard, generation, .. }
            | ServerWord::NotRestored { shard, generation, .. } => {
                self.at(*shard, *generation).map(|home| home.restored = kept).is_some()
            }
            ServerWord::Saved { shard, .. } | ServerWord::NotSaved { shard, .. } => {
                self.homes.get_mut(shard).map(|home| home.saved = kept).is_some()
            }
            ServerWord::Doubt(doubt) => {
                let key = (doubt.worker, doubt.incarnation, doubt.shard);
                if doubt.waiting.is_empty() {
                    self.doubts.remove(&key);
                } else {
                    self.doubts.insert(key, doubt.clone());
                }
                true
            }
            ServerWord::Trouble(trouble) => {
                self.trouble.clone_from(trouble);
                true
            }
            _ => true,
        }
    }

    /// What waited of a worker is decided.
    pub(super) fn resolved(&mut self, worker: WorkerId, incarnation: Incarnation) {
        self.doubts.retain(|(gone, of, _), _| (*gone, *of) != (worker, incarnation));
    }
}
