//! Allreduces without training: the connections and reductions of a worker by themselves, for measuring them.
//!
//! An [`Exchange`] is one member. It [binds](Exchange::bind), learns the others' addresses from whoever set it up,
//! [meets](Exchange::meet) them, and [sums](Exchange::sum) buffers with them. All of it must run within the network's runtime.

use std::net::SocketAddr;
use std::time::Duration;

use slackline_core::collective::{Misfit, Order, Schedule, Topology, buckets};
use slackline_core::ids::{Clock, Generation, Incarnation, WorkerId};
use slackline_core::layout::Layout;
use slackline_core::wire::{Group, GroupMember, Text};
use slackline_net::{Identity, Settings};
use slackline_worker_core::Event;
use tokio::sync::mpsc;

use crate::peers::{ListenError, News, PeerSettings, Peers, Told};
use crate::replica::Handout;

/// What all members must have alike, and how this one works.
#[derive(Clone, Debug)]
pub struct ExchangeOptions {
    /// Where to listen for the others: `address:port`.
    pub listen: String,
    /// The tensors that a buffer is made of.
    pub layout: Layout,
    /// As `sync.bucket_kib`, in bytes.
    pub bucket_bytes: u64,
    /// As `sync.order`.
    pub order: Order,
    /// How long the others are waited for.
    pub lease: Duration,
    /// The network.
    pub network: Settings,
}

/// Why the members could not sum.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// This member cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The topology is not for so many members.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The others were not met, were lost, or did not do as they should.
    #[error("{0}")]
    Others(String),
}

/// One member of an allreduce.
#[derive(Debug)]
pub struct Exchange {
    peers: Peers,
    news: mpsc::UnboundedReceiver<News>,
    handout: Handout,
    /// Sums complete.
    clock: Clock,
}

/// Buckets that are being summed at once: enough that there is always something to send, and few enough for the processor's cache.
const UNDER_WAY_MAX: usize = 4;

/// There is one group for as long as the exchange lives.
const GENERATION: Generation = Generation(1);

impl Exchange {
    /// Listens for the others.
    ///
    /// # Errors
    /// The address cannot be had, or the keys do not let workers connect to each other.
    pub fn bind(identity: &Identity, options: ExchangeOptions) -> Result<Self, ExchangeError> {
        let ExchangeOptions { listen, layout, bucket_bytes, order, lease, network } = options;
        let cut = buckets(&layout, bucket_bytes, order);
        let settings = PeerSettings {
            layout_hash: layout.hash(),
            config_hash: 0,
            buckets: cut.clone().into(),
            state_lens: [layout.len(), 0],
            lease,
            network,
        };
        let (peers, news) = Peers::bind(identity, &listen, settings)?;
        Ok(Self { peers, news, handout: Handout::new(cut), clock: Clock(0) })
    }

    /// Where it listens, with the port that was given.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.peers.local_address()
    }

    /// Meets the others, who are at these addresses; this member is the one at `position`.
    ///
    /// # Errors
    /// The topology is not for so many, or somebody was not met within a lease.
    pub async fn meet(
        &mut self,
        addresses: &[String],
        position: u32,
        topology: Topology,
    ) -> Result<(), ExchangeError> {
        let schedule = Schedule::new(topology, addresses.len() as u32)?;
        self.handout.set_parts(schedule.parts());
        let member = |(worker, address): (u32, &String)| GroupMember {
            worker: WorkerId(worker),
            incarnation: Incarnation(1),
            address: Text::new(address),
        };
        let group = Group {
            run: 1,
            generation: GENERATION,
            topology,
            members: (0..).zip(addresses).map(member).collect(),
            clock: self.clock,
            units: 0,
            source: None,
        };
        self.peers.form(group, position)?;
        self.peers.tell_sums();
        while !matches!(self.told().await?, Told::Event(Event::Met { .. })) {}
        Ok(())
    }

    /// Replaces the values by their sums over all members, who must all do so. The values are as many as the layout's.
    ///
    /// # Errors
    /// Somebody was lost, or sent what does not belong there.
    ///
    /// # Panics
    /// When there are fewer values than the layout has: a fault of the caller.
    pub async fn sum(&mut self, values: &mut [f32]) -> Result<(), ExchangeError> {
        let clock = self.clock;
        self.peers.begin(GENERATION);
        self.handout.begin();
        self.handout.complete(&(0..values.len()));
        let mut under_way = 0;
        loop {
            while under_way < UNDER_WAY_MAX
                && let Some((bucket, packed)) = self.handout.pack(values, 1.0)
            {
                self.peers.own(GENERATION, clock, bucket, packed);
                under_way += 1;
                // What is packed goes out while the rest is being packed.
                tokio::task::yield_now().await;
            }
            match self.told().await? {
                Told::Summed { bucket, parts } => {
                    self.handout.unpack_one(bucket, &parts, values);
                    let spare = self.handout.not_lent(parts);
                    self.peers.reclaim(spare);
                    under_way -= 1;
                }
                Told::Event(Event::Reduced { .. }) => break,
                _ => {}
            }
        }
        self.clock = clock.next();
        Ok(())
    }

    /// Says goodbye.
    pub async fn close(self) {
        self.peers.close(true).await;
    }

    async fn told(&mut self) -> Result<Told, ExchangeError> {
        while let Some(news) = self.news.recv().await {
            match self.peers.take(news) {
                Some(Told::Event(Event::PeerTrouble { reason, .. } | Event::PeerRefused { reason })) => {
                    return Err(ExchangeError::Others(reason));
                }
                Some(told) => return Ok(told),
                None => {}
            }
        }
        Err(ExchangeError::Others("the network's thread has ended".to_owned()))
    }
}
