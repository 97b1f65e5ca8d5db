//! Which transfer of a machine goes next, where those of the first layers go before others (`transport.order`).
//!
//! A machine's uplink carries one transfer at a time. Where transfers go as they come nothing waits here: each is given its time on the link
//! at once ([`crate::links`]). Otherwise those that the link has no time for yet wait by rank, over all connections of the machine.

use slackline_core::ids::{Moment, ShardId};
use slackline_core::order::{Priority, Queue};

use crate::network::Cargo;
use crate::world::{Happening, World};

/// What a transfer takes of the credit: one is under way at a time.
const WHOLE: u64 = 1;

/// The transfers that wait for one machine's uplink.
#[derive(Debug)]
struct Uplink {
    /// Another number is another process: what is still said of the one before is void.
    life: u64,
    queue: Queue<(usize, Cargo)>,
}

impl Uplink {
    fn new(life: u64) -> Self {
        Self { life, queue: Queue::new(WHOLE, None) }
    }
}

/// Those of all machines.
#[derive(Debug)]
pub(crate) struct Uplinks {
    order: Priority,
    machines: Vec<Uplink>,
}

impl Uplinks {
    pub(crate) fn new(order: Priority, machines: usize) -> Self {
        Self { order, machines: (0..machines).map(|_| Uplink::new(0)).collect() }
    }

    /// Whether any transfer can go before one that came earlier.
    pub(crate) const fn have_ranks(&self) -> bool {
        matches!(self.order, Priority::FrontFirst)
    }
}

impl World {
    /// A transfer is to go, in its turn.
    pub(crate) fn queue_up(&mut self, machine: usize, shard: ShardId, connection: usize, cargo: Cargo) {
        let rank = self.uplinks.order.rank(shard);
        self.uplinks.machines[machine].queue.put(rank, (WHOLE, 0), (connection, cargo));
        self.leave_next(machine);
    }

    /// A machine's uplink has sent a transfer.
    pub(crate) fn has_left(&mut self, machine: usize, life: u64) {
        if self.uplinks.machines[machine].life == life {
            self.uplinks.machines[machine].queue.done(WHOLE);
            self.leave_next(machine);
        }
    }

    fn leave_next(&mut self, machine: usize) {
        let now = self.now();
        let Uplink { life, queue } = &mut self.uplinks.machines[machine];
        let life = *life;
        if let Some((_, (connection, cargo))) = queue.take(now) {
            let free: Moment = self.set_off(machine, connection, cargo);
            self.agenda.at(free, Happening::Left { machine, life });
        }
    }

    /// A machine starts anew: nothing is on its way out, and nothing waits.
    pub(crate) fn reset_links(&mut self, machine: usize) {
        self.links.reset(machine);
        let uplink = &mut self.uplinks.machines[machine];
        *uplink = Uplink::new(uplink.life + 1);
    }
}
