//! Where the shards are: which server answers for each, and what becomes of that which is under way when one moves.
//!
//! At the beginning the partition says it. From then on the coordinator does, in [`Placed`]: a server that is lost is replaced by the one
//! with the copy. What the shard has not answered (the push, the word that all shards have theirs, pulls) goes to the new server, and what
//! the old one still says of it is not heard any more.

use std::collections::BTreeSet;

use slackline_core::ids::{Generation, KeyRange, ServerId, ShardId};
use slackline_core::wire::{Placed, ToServer};

use crate::effect::Effect;
use crate::error::WorkerError;
use crate::notice::Notice;
use crate::session::Session;
use crate::worker::Worker;

/// Where one shard is.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// The server that answers for it.
    pub(crate) server: ServerId,
    /// Its keys.
    pub(crate) keys: KeyRange,
    /// The generation of its primary; none as long as only the partition says where it is.
    generation: Option<Generation>,
    /// It has just moved: its server must hear once more who the worker is, and what it has been answered, before anything else.
    is_arriving: bool,
}

impl Home {
    pub(crate) const fn new(server: ServerId, keys: KeyRange) -> Self {
        Self { server, keys, generation: None, is_arriving: false }
    }
}

impl Worker {
    /// The server of a shard, while its session speaks for this worker.
    pub(crate) fn ready_server_of(&self, shard: ShardId) -> Option<ServerId> {
        let home = self.shards.get(&shard).filter(|home| !home.is_arriving)?;
        self.is_registered(home.server).then_some(home.server)
    }

    /// The shards with keys on one server.
    pub(crate) fn shards_on(&self, server: ServerId) -> Vec<ShardId> {
        let here = self.shards.iter().filter(|(_, home)| home.server == server);
        here.map(|(shard, _)| *shard).collect()
    }

    /// Whether the worker cannot go on without a server: it has shards, or is the coordinator. Copies it can do without.
    pub(crate) fn needs(&self, server: ServerId) -> bool {
        server == self.settings.coordinator || self.shards.values().any(|home| home.server == server)
    }

    /// The servers with shards.
    pub(crate) fn owners(&self) -> BTreeSet<ServerId> {
        self.shards.values().map(|home| home.server).collect()
    }

    /// The coordinator says where shards are.
    pub(crate) fn on_placed(
        &mut self,
        server: ServerId,
        places: Vec<Placed>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        if server != self.settings.coordinator {
            return Err(WorkerError::OutOfPlace { server, what: "a place of a shard" });
        }
        let mut arrivals = BTreeSet::new();
        for place in places {
            if place.server.0 >= self.settings.partition.server_count() {
                return Err(WorkerError::OutOfPlace {
                    server,
                    what: "a place at a server that does not exist",
                });
            }
            if let Some(to) = self.place(place, effects) {
                arrivals.insert(to);
            }
        }
        for to in arrivals {
            self.reach(to, effects);
        }
        self.begin_asking(effects);
        Ok(())
    }

    /// Takes in one place, if it is news. Returns the server that the shard has come to, if it has.
    fn place(&mut self, place: Placed, effects: &mut Vec<Effect>) -> Option<ServerId> {
        let Placed { shard, generation, server } = place;
        let home = self.shards.get_mut(&shard)?;
        if home.generation.is_some_and(|known| known >= generation) {
            return None;
        }
        let known = home.generation.replace(generation).unwrap_or_default();
        if home.server == server && known == generation {
            return None;
        }
        // In a later generation it can have been elsewhere meanwhile, though it is where it was.
        let from = std::mem::replace(&mut home.server, server);
        home.is_arriving = true;
        if from != server {
            effects.push(Effect::Notice(Notice::Moved { shard, from, to: server, generation }));
        }
        self.reopen(shard);
        let entering = self.sessions.get(&from).and_then(|session| session.entering);
        let now = self.now;
        let session = self.sessions.entry(server).or_insert_with(|| Session::new(server, now));
        // Whether the new server's copy has heard it is not known.
        session.entering = session.entering.or(entering);
        Some(server)
    }

    /// What a shard has said may be gone with its state: all of it that is under way is open again.
    fn reopen(&mut self, shard: ShardId) {
        self.reopen_push(shard);
        self.reopen_pulls(shard);
    }

    /// A server that is another process than before has the shards' states from somewhere else, and perhaps from earlier.
    pub(crate) fn reopen_shards_on(&mut self, server: ServerId) {
        for shard in self.shards_on(server) {
            self.reopen(shard);
        }
    }

    /// Shards have come to a server. The worker registers there once more: their state can be of before, and then they must know what the
    /// worker has been answered, or they would wait for pushes that nobody sends again.
    fn reach(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        let (now, is_member) = (self.now, self.member.is_some());
        let Some(session) = self.sessions.get_mut(&server) else { return };
        if session.is_registered() {
            session.registrations += 1;
            let register = self.registration();
            self.send(server, ToServer::Register(register), effects);
        } else if is_member {
            session.want(now);
            session.connect_if_due(now, effects);
        }
    }

    /// The worker is registered, or is so once more: the shards that have come to the server meanwhile are like the others there.
    pub(crate) fn settle_arrivals(&mut self, server: ServerId) -> Vec<ShardId> {
        let arrived = |home: &Home| home.server == server && home.is_arriving;
        let here: Vec<_> = self.shards.iter_mut().filter(|(_, home)| arrived(home)).collect();
        here.into_iter().fold(Vec::new(), |mut shards, (shard, home)| {
            home.is_arriving = false;
            shards.push(*shard);
            shards
        })
    }

    /// Sends what a server must hear before all else; then the pushes that these of its shards have not answered, and the pulls that none
    /// of its shards has, since it gives up those that came before a registration.
    pub(crate) fn resume(&mut self, server: ServerId, arrived: &[ShardId], effects: &mut Vec<Effect>) {
        self.resume_standing(server, effects);
        self.resume_pushes(arrived, effects);
        self.resume_commit(server, effects);
        let shards = self.shards_on(server);
        self.resume_pulls(&shards, effects);
        self.resume_snapshots(&shards, effects);
    }
}
