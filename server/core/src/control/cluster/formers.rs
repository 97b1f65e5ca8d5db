//! Servers that led a shard before, where disks count: what is acknowledged is on the disk of whoever acknowledged it.
//!
//! A backup that takes over acknowledges nothing before its state is on its disk. If its process dies before that, all that was ever
//! acknowledged is still on the disk of the primary before it (or, if that had come to nothing either, of the one before that). So those
//! are remembered until a later disk is known to be whole, and the shard goes back to the last of them that is not known to have nothing.

use bincode::{Decode, Encode};
use slackline_core::ids::{Generation, ServerId};
use slackline_core::wire::{Origin, Place};

use super::map::{Servers, Slot, Standing};
use super::notice::ClusterNotice;

/// Former primaries of a shard that are remembered. Each stands for a server that led it for less than one write to its disk.
const FORMERS_MAX: usize = 8;

/// A server that led a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Former {
    server: ServerId,
    /// Its disk is whole if it has a state of this generation or a later one.
    since: Generation,
    /// Its process then, unless it has ended: another process has said what its disk has.
    boot: Option<u64>,
}

/// Those of one shard, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(super) struct Formers(Vec<Former>);

impl Formers {
    /// A later disk is whole, or what these have is not part of the run any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn add(&mut self, server: ServerId, since: Generation, boot: Option<u64>) {
        if self.0.len() == FORMERS_MAX {
            // Where all the others have nothing, the run ends by name.
            self.0.remove(0);
        }
        self.0.push(Former { server, since, boot });
    }
}

impl Slot {
    /// Whether a former primary is not known to have less than all that was acknowledged.
    fn can_have_it(&self, Former { server, since, boot }: Former, servers: &Servers<'_>) -> bool {
        let is_whole =
            (servers.disks)(server, self.place.shard).is_some_and(|holding| holding.is_from(since));
        let has_said = (servers.boots)(server) != boot;
        is_whole || !has_said
    }

    /// Whether [`Self::go_back`] would find one.
    pub(super) fn can_go_back(&self, servers: &Servers<'_>) -> bool {
        self.formers.0.iter().any(|former| self.can_have_it(*former, servers))
    }

    /// Gives the shard back to the last former primary that can have all that was acknowledged, present or not: nobody else has more.
    pub(super) fn go_back(&mut self, servers: &Servers<'_>, notices: &mut Vec<ClusterNotice>) -> bool {
        while let Some(former) = self.formers.0.pop() {
            if !self.can_have_it(former, servers) {
                continue;
            }
            let (Former { server, since, .. }, shard) = (former, self.place.shard);
            let from = self.place.primary;
            self.place.generation = self.place.generation.next();
            self.place = Place { primary: server, backup: None, origin: Origin::Disk, ..self.place };
            // The disk is that of its time; for workers the shard moves now.
            (self.whole_since, self.led_since) = (since, self.place.generation);
            self.bereft = None;
            self.standing =
                if servers.live.contains(&server) { Standing::Loads } else { Standing::WaitsToLoad };
            notices.push(ClusterNotice::GoesBack { shard, from, to: server });
            return true;
        }
        false
    }
}
