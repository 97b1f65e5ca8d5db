//! What the status and the log say of servers and of what shards lack.

use std::time::Duration;

use slackline_core::ids::{Clock, Moment, ServerId, WorkerId};
use slackline_core::wire::{Lack, Place};

use super::Cluster;
use super::copies::Bereft;
use super::map::{Slot, Standing};
use super::servers::Server;
use crate::waits::Waiting;

/// What a shard lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PlaceLack {
    pub(in super::super) place: Place,
    pub(in super::super) lack: Lack,
}

/// What the coordinator knows of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct ServerView {
    pub(in super::super) server: ServerId,
    pub(in super::super) boot: Option<u64>,
    pub(in super::super) heard: Option<Moment>,
    pub(in super::super) is_live: bool,
    pub(in super::super) primaries: u32,
    pub(in super::super) backups: u32,
    pub(in super::super) trouble: Option<String>,
}

impl Cluster {
    /// What the checkpoint that is being made lacks: see [`Rounds::waits`](super::rounds::Rounds::waits).
    pub(in super::super) fn checkpoint_waits(
        &self,
        now: Moment,
        quiet: Duration,
        behind: Option<(WorkerId, Clock, Clock)>,
        is_reported: impl FnOnce() -> bool,
    ) -> Vec<Waiting> {
        let rounds = self.kept.rounds.as_ref();
        rounds.map_or_else(Vec::new, |rounds| rounds.waits(now, quiet, behind, is_reported))
    }

    /// What shards lack.
    pub(in super::super) fn lacks(&self) -> Vec<PlaceLack> {
        let wants_backup = self.settings.replicas > 1;
        // Where another server is there and is given no copy, it has no room for one.
        let staying = self.staying();
        let is_another_here = |primary| staying.iter().any(|server| *server != primary);
        let lack = |slot: &Slot| {
            let place = slot.place;
            let is_here = self.kept.servers.get(&place.primary).is_some_and(Server::is_live);
            let lack = match (slot.standing, place.backup) {
                (Standing::Waits | Standing::WaitsToLoad, _) => match slot.bereft {
                    Some(Bereft { server: former, .. }) => Lack::Copy { former },
                    None => Lack::Primary,
                },
                _ if !is_here => Lack::Primary,
                (Standing::Loads, _) => Lack::State,
                (Standing::Held, None) if wants_backup && is_another_here(place.primary) => Lack::Room,
                (Standing::Held, None) if wants_backup => Lack::Backup,
                (Standing::Held, Some(backup)) if !backup.in_step => Lack::Step { backup: backup.server },
                (Standing::Held, _) => return None,
            };
            Some(PlaceLack { place, lack })
        };
        self.kept.map.slots.values().filter_map(lack).collect()
    }

    /// What is known of each server.
    pub(in super::super) fn server_views(&self) -> Vec<ServerView> {
        let count = |of: &dyn Fn(&Place) -> bool| {
            self.kept.map.slots.values().filter(|slot| of(&slot.place)).count() as u32
        };
        let view = |(id, server): (&ServerId, &Server)| ServerView {
            server: *id,
            boot: server.boot,
            heard: server.heard,
            is_live: server.is_live(),
            primaries: count(&|place| place.primary == *id),
            backups: count(&|place| place.backup.is_some_and(|backup| backup.server == *id)),
            trouble: server.trouble.clone(),
        };
        self.kept.servers.iter().map(view).collect()
    }
}
