//! Servers that were told to go: the copies of their shards answer first, and whoever goes is told when that is so.

use std::collections::BTreeSet;

use bincode::{Decode, Encode};
use slackline_core::ids::{Moment, ServerId};
use slackline_core::wire::ServerOrder;

use super::Cluster;
use super::notice::ClusterNotice;
use super::servers::Server;

/// How far a server is that was told to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) enum Going {
    /// Since when; its shards are given copies that can answer, where that is possible.
    Asks(Moment),
    /// The map is made without it, and it may go as soon as this one is stored.
    Gone {
        /// The map's number.
        number: u64,
    },
    /// Nothing else has what it has.
    Missed,
}

impl Server {
    /// Whether it was taken out of the map.
    pub(super) const fn is_gone(&self) -> bool {
        matches!(self.going, Some(Going::Gone { .. }))
    }
}

impl Cluster {
    /// The servers that can be counted on and were not told to go.
    pub(super) fn staying(&self) -> BTreeSet<ServerId> {
        let stays = |(_, server): &(&ServerId, &Server)| server.is_live() && server.going.is_none();
        self.kept.servers.iter().filter(stays).map(|(id, _)| *id).collect()
    }

    /// A server was told to go. It can say so again over a new session. (The coordinator's own server takes the run with it.)
    pub(super) fn asks_to_go(&mut self, now: Moment, id: ServerId) {
        if let Some(server) = self.kept.servers.get_mut(&id).filter(|_| id != self.settings.own) {
            server.going.get_or_insert(Going::Asks(now));
        }
    }

    /// Whether a server waits to be let go, which time alone can bring.
    pub(super) fn is_asked_to_go(&self) -> bool {
        self.kept.servers.values().any(|server| matches!(server.going, Some(Going::Asks(_))))
    }

    /// Lets those go whose shards have copies that can answer. Copies that are not equal yet are waited for, for a lease; then disks and
    /// checkpoints will do, whose shards wait until the server is started again.
    pub(super) fn settle_going(&mut self, now: Moment) {
        let asks = |(id, server): (&ServerId, &Server)| match server.going {
            Some(Going::Asks(since)) => Some((*id, since)),
            _ => None,
        };
        let asking: Vec<_> = self.kept.servers.iter().filter_map(asks).collect();
        for (id, since) in asking {
            let waiting = self.kept.map.alone_at(id, &self.live());
            let can_have_copies = self.settings.replicas > 1 && !self.staying().is_empty();
            if waiting > 0 && can_have_copies && now.since(since) < self.settings.lease {
                continue;
            }
            let is_missed = waiting > 0 && !self.settings.on_disk && self.newest().is_none();
            // The next map that is stored is the first without it.
            let number = self.kept.number + 1;
            let Some(server) = self.kept.servers.get_mut(&id) else { continue };
            if is_missed {
                server.going = Some(Going::Missed);
                self.kept.notices.push(ClusterNotice::Missed { server: id });
                continue;
            }
            (server.going, server.is_lost) = (Some(Going::Gone { number }), true);
            self.kept.notices.push(ClusterNotice::Goes { server: id, waiting });
            self.change(now, |map, servers, notices| {
                map.lost(id, servers, notices);
                Ok(())
            });
        }
    }

    /// Answers those that asked, after they were told what is in force: what becomes of their shards is stored by then.
    pub(super) fn tell_going(&mut self, orders: &mut Vec<(ServerId, ServerOrder)>) {
        let stored = self.kept.stored.number;
        for (id, server) in self.kept.servers.iter_mut().filter(|(_, server)| server.is_connected) {
            let is_missed = match server.going {
                Some(Going::Gone { number }) if stored >= number => false,
                Some(Going::Missed) => true,
                _ => continue,
            };
            if !std::mem::replace(&mut server.may_go, true) {
                orders.push((*id, ServerOrder::Go { is_missed }));
            }
        }
    }
}
