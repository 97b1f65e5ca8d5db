//! The simulated world: what is due next happens, until the run is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::config::{Config, Resolved};
use slackline_core::ids::{BatchIndex, Clock, Generation, Moment, ShardId};
use slackline_core::layout::Layout;
use slackline_core::partition::Partition;
use slackline_core::schedule::DataOrder;
use slackline_core::wire::{Progress, TransferHeader};
use slackline_server_core::control::End;
use slackline_server_core::shard::Snapshot;
use slackline_server_core::{ControlEffect, ControlEvent, HostEffect, ShardEvent, ShardSettings};
use slackline_worker_core::{Effect, Event};

use crate::agenda::{Agenda, Slab};
use crate::allreduce::{Among, Commons, GroupPlan, Parcel};
use crate::coordinator::Linked;
use crate::disks::{Disk, Done};
use crate::engine::Engine;
use crate::failure::SimFailure;
use crate::feeds::{Fed, Feed};
use crate::hosts::At;
use crate::links::{LinkCosts, Links, duration};
use crate::mishaps::{Casualty, Fates};
use crate::network::{Connection, Inward, Outward, Transfer};
use crate::results::{Results, Tally};
use crate::servers::{Former, Server};
use crate::sizes::Sizes;
use crate::store::Store;
use crate::timeline::Timeline;
use crate::uplinks::Uplinks;
use crate::workers::Process;

/// Happenings between two looks at the real time.
const LOOK_EVERY: u32 = 1000;

/// Real time between two shows of the progress.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// Something that happens at a moment.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A worker process starts.
    Start { slot: usize },
    /// Something reaches the server's end of a connection.
    AtServer { connection: usize, what: Inward },
    /// Something reaches the worker's end of a connection.
    AtWorker { connection: usize, what: Outward },
    /// The first byte of a transfer reaches the receiver's link.
    Reaches { transfer: u32 },
    /// A machine's uplink has sent a transfer.
    Left { machine: usize, life: u64 },
    /// A transfer is complete.
    Complete { transfer: u32 },
    /// The owner of a shard is done with what came before an event.
    AtShard { at: At, boot: u64, event: Box<ShardEvent> },
    /// The clock of a shard, due at a moment.
    ShardTick { at: At, boot: u64, due: Moment },
    /// Control hears something of its own server's parts.
    Told { server: usize, boot: u64, event: Box<ControlEvent> },
    /// Something passes between a server and the coordinator.
    Linked { server: usize, number: u64, what: Linked },
    /// Something happens to the feed of a backup.
    AtFeed { feed: usize, what: Fed },
    /// A disk is done with something.
    DiskDone { at: At, boot: u64, done: Box<Done> },
    /// The clock of a server's loop, due at a moment.
    ServerTick { server: usize, boot: u64, due: Moment },
    /// The clock of a worker's loop; an older timer is void.
    WorkerTick { process: usize, timer: u64 },
    /// A batch is in memory.
    Loaded { process: usize, batch: BatchIndex },
    /// The gradient with this number is computed.
    Computed { process: usize, number: u64 },
    /// A shard's part of it is final.
    Part { process: usize, number: u64, shard: ShardId },
    /// Some of the gradient with this number may exist, at a member of a group.
    Proceeds { process: usize, number: u64 },
    /// The first byte of a transfer between two workers reaches the receiver's link.
    ParcelReaches { parcel: u32 },
    /// A transfer between two workers is complete.
    ParcelComplete { parcel: u32 },
    /// Something small between the members of a group.
    Among { process: usize, generation: Generation, what: Among },
    /// An evaluation is done.
    Measured { process: usize, at_samples: u64, loss: f64, accuracy: f64 },
    /// One of the configured incidents begins.
    Befalls { incident: usize },
    /// A process that stood still goes on, unless it has to stand still for longer by now.
    Wakes { whom: Sleeper },
    /// A server that crashed starts again.
    Reboot { server: usize },
    /// All processes start again.
    Restart,
    /// A machine fails by chance.
    Fails { whom: Casualty },
}

/// A process that can stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sleeper {
    Process(usize),
    Server(usize),
}

/// What does not change while the run lasts.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) resolved: Resolved,
    /// The division that the cores see. Without gradients each shard is as small as can be.
    pub(crate) partition: Partition,
    /// The layout that belongs to it.
    pub(crate) layout: Arc<Layout>,
    /// Bytes of each shard's values as they would go over the wire.
    pub(crate) shard_bytes: Vec<u64>,
    /// What payloads come to where there are none; see [`Sizes`].
    pub(crate) sizes: Option<Sizes>,
    pub(crate) config_hash: u64,
    pub(crate) data_hash: u64,
    pub(crate) sample_count: u64,
    pub(crate) order: DataOrder,
    pub(crate) lease: Duration,
    /// The settings of all shards; none in an allreduce.
    pub(crate) shards: BTreeMap<ShardId, ShardSettings>,
    /// Seconds for each byte of gradient that a shard applies; zero for none.
    pub(crate) apply_s: f64,
    /// Seconds for each byte of a server's disk; zero for none.
    pub(crate) disk_s: f64,
    /// The allreduce; none where parameters lie on servers.
    pub(crate) group: Option<GroupPlan>,
    /// How often a server looks at the time.
    pub(crate) tick: Duration,
}

impl Plan {
    pub(crate) const fn config(&self) -> &Config {
        &self.resolved.config
    }

    /// Bytes of a push over the wire.
    pub(crate) fn pushed_bytes(&self, header: &TransferHeader) -> u64 {
        self.sizes.as_ref().map_or(header.payload_bytes(), |sizes| sizes.pushed[header.shard.0 as usize])
    }

    /// Bytes of values over the wire. Without gradients it is known that nothing has changed, but not which of the blocks have.
    pub(crate) fn pulled_bytes(&self, shard: ShardId, values: &Snapshot) -> u64 {
        match &self.sizes {
            Some(_) if values.words.is_empty() => 0,
            Some(sizes) => sizes.pulled[shard.0 as usize],
            None => 4 * values.words.len() as u64,
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Complete,
    Failed(String),
}

/// What is counted beside what the workers report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Events that any core took.
    pub(crate) events: u64,
    /// Bytes of gradients sent and of values received, by the true sizes of the shards.
    pub(crate) bytes_pushed: u64,
    pub(crate) bytes_pulled: u64,
    /// Bytes of gradients and states that primaries gave to their backups.
    pub(crate) bytes_fed: u64,
    /// Over all applied pushes, the other pulls at the same shard whose pushes were still to come.
    pub(crate) in_flight: u64,
    /// Gradients being computed now.
    pub(crate) computing: u64,
}

/// Everything there is.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) agenda: Agenda<Happening>,
    pub(crate) links: Links,
    pub(crate) uplinks: Uplinks,
    pub(crate) servers: Vec<Server>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) feeds: Vec<Feed>,
    pub(crate) store: Store,
    /// What the coordinator's server, which crashed, has kept.
    pub(crate) ledger: Option<Vec<u8>>,
    /// What the run had taken when all its processes came back; none if they never went.
    pub(crate) wall_before: Option<Duration>,
    /// So much of it the record does not know, since it began again.
    pub(crate) wall_unknown: Duration,
    /// The servers find each other before the run begins: it takes no time.
    pub(crate) is_opening: bool,
    /// When machines fail.
    pub(crate) fates: Fates,
    pub(crate) processes: Vec<Process>,
    /// The present process of each worker's machine.
    pub(crate) slots: Vec<Option<usize>>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) transfers: Slab<Transfer>,
    /// Transfers between workers.
    pub(crate) parcels: Slab<Parcel>,
    pub(crate) commons: Commons,
    pub(crate) engine: Engine,
    pub(crate) timeline: Timeline,
    pub(crate) results: Results,
    pub(crate) counts: Counts,
    pub(crate) tally: Tally,
    /// The clock of the first gradient whose loss was not a finite number.
    pub(crate) diverged: Option<Clock>,
    /// What the first worker that failed said.
    pub(crate) blamed: Option<String>,
    /// When something other than the passing of time last happened, and when a gradient was computed last.
    pub(crate) stirred: Moment,
    pub(crate) worked: Moment,
    /// Those that stand still, with what has happened to them meanwhile.
    pub(crate) asleep: BTreeMap<Sleeper, Vec<Happening>>,
    /// Incidents and restarts that are still to come.
    pub(crate) pending: usize,
    pub(crate) over: Option<Over>,
    pub(crate) scratch: Scratch,
}

/// Lists of effects, kept so that an event allocates none.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) control: Vec<ControlEffect>,
    pub(crate) host: Vec<HostEffect>,
    pub(crate) worker: Vec<Effect>,
}

impl World {
    pub(crate) fn new(plan: Plan, engine: Engine, timeline: Timeline, results: Results) -> Self {
        let config = plan.config();
        let (workers, servers) = (config.workers as usize, config.servers as usize);
        let costs = LinkCosts {
            bandwidth: config.simulation.bandwidth,
            latency: duration(config.simulation.latency_s),
            loss: config.simulation.loss,
        };
        let links = Links::new(costs, workers + servers, config.seed);
        let uplinks = Uplinks::new(config.transport.order, workers + servers);
        let fates = Fates::new(config);
        let tally = Tally::new(config);
        Self {
            agenda: Agenda::new(),
            links,
            uplinks,
            servers: Vec::new(),
            disks: (0..servers).map(|_| Disk::default()).collect(),
            feeds: Vec::new(),
            store: Store::default(),
            ledger: None,
            wall_before: None,
            wall_unknown: Duration::ZERO,
            is_opening: true,
            pending: fates.incidents(),
            fates,
            processes: Vec::new(),
            slots: vec![None; workers],
            connections: Vec::new(),
            transfers: Slab::default(),
            parcels: Slab::default(),
            commons: Commons::default(),
            engine,
            timeline,
            results,
            counts: Counts::default(),
            tally,
            diverged: None,
            blamed: None,
            stirred: Moment(0),
            worked: Moment(0),
            asleep: BTreeMap::new(),
            over: None,
            scratch: Scratch::default(),
            plan,
        }
    }

    /// The servers start and find each other; then the workers do, and whatever befalls them can.
    fn open(&mut self) -> Result<(), SimFailure> {
        for server in 0..self.disks.len() {
            self.boot(server, server as u64 + 1, Former::None);
        }
        while let Some(what) = self.agenda.next_now() {
            self.happen(what)?;
        }
        self.is_opening = false;
        for slot in 0..self.slots.len() {
            self.agenda.at(Moment(0), Happening::Start { slot });
        }
        self.foretell();
        Ok(())
    }

    /// How long a control message between two servers is on its way.
    pub(crate) const fn way(&self) -> Duration {
        if self.is_opening { Duration::ZERO } else { self.links.latency() }
    }

    pub(crate) const fn now(&self) -> Moment {
        self.agenda.now()
    }

    /// The machine of a worker's slot; servers come after all workers.
    pub(crate) const fn machine_of_server(&self, server: usize) -> usize {
        self.slots.len() + server
    }

    /// Runs to the end; `see` is shown the progress every now and then.
    ///
    /// # Errors
    /// A computing thread is gone, a file cannot be written, or nothing moves any more.
    pub(crate) fn run(&mut self, see: &mut dyn FnMut(&Progress)) -> Result<Over, SimFailure> {
        let mut seen = Instant::now();
        self.open()?;
        loop {
            for _ in 0..LOOK_EVERY {
                if let Some(over) = self.over.take() {
                    return Ok(over);
                }
                let Some(what) = self.agenda.next() else {
                    return Ok(Over::Failed("nothing is left that could happen".to_owned()));
                };
                self.happen(what)?;
            }
            if seen.elapsed() >= SHOW_EVERY {
                seen = Instant::now();
                let record = self.servers[0].control.record();
                record.iter().for_each(|record| see(&record.progress(self.now())));
            }
        }
    }

    fn happen(&mut self, what: Happening) -> Result<(), SimFailure> {
        let Some(what) = self.unless_asleep(what) else { return Ok(()) };
        match what {
            Happening::Start { slot } => self.start_process(slot),
            Happening::AtServer { connection, what } => self.at_server(connection, what),
            Happening::AtWorker { connection, what } => self.at_worker(connection, what),
            Happening::Reaches { transfer } => self.reaches(transfer),
            Happening::Left { machine, life } => self.has_left(machine, life),
            Happening::Complete { transfer } => self.complete(transfer),
            Happening::AtShard { at, boot, event } if self.is_process(at.server(), boot) => {
                self.at_shard(at, *event)
            }
            Happening::ShardTick { at, boot, due } if self.is_process(at.server(), boot) => {
                self.shard_tick(at, due)
            }
            Happening::Told { server, boot, event } if self.is_process(server, boot) => {
                self.control_event(server, *event);
            }
            Happening::DiskDone { at, boot, done } if self.is_process(at.server(), boot) => {
                self.disk_is_done(at, *done);
            }
            // What was meant for a former process is void.
            Happening::AtShard { .. }
            | Happening::ShardTick { .. }
            | Happening::Told { .. }
            | Happening::DiskDone { .. } => {}
            Happening::Linked { server, number, what } => self.linked(server, number, what),
            Happening::AtFeed { feed, what } => self.at_feed(feed, what),
            Happening::ServerTick { server, boot, due } => self.server_tick(server, boot, due)?,
            Happening::WorkerTick { process, timer } => self.worker_tick(process, timer),
            Happening::Loaded { process, batch } => self.worker_event(process, Event::BatchLoaded { batch }),
            Happening::Computed { process, number } => self.computed(process, number)?,
            Happening::Part { process, number, shard } => self.part_is_final(process, number, shard)?,
            Happening::Proceeds { process, number } => self.proceeds(process, number)?,
            Happening::ParcelReaches { parcel } => self.parcel_reaches(parcel),
            Happening::ParcelComplete { parcel } => self.parcel_complete(parcel),
            Happening::Among { process, generation, what } => self.among(process, generation, what),
            Happening::Measured { process, at_samples, loss, accuracy } => {
                self.worker_event(process, Event::EvaluationReady { at_samples, loss, accuracy });
            }
            Happening::Befalls { incident } => self.befalls(incident),
            Happening::Wakes { whom } => self.wakes(whom)?,
            Happening::Reboot { server } => self.reboot(server),
            Happening::Restart => self.restart(),
            Happening::Fails { whom } => self.fails(whom),
        }
        self.take_failure()
    }

    /// What happens to a process that stands still happens when it goes on, in the same order.
    fn unless_asleep(&mut self, what: Happening) -> Option<Happening> {
        if self.asleep.is_empty() {
            return Some(what);
        }
        match self.whom(&what).and_then(|whom| self.asleep.get_mut(&whom)) {
            None => Some(what),
            Some(held) => {
                held.push(what);
                None
            }
        }
    }

    /// The process that something happens to, if it has to be awake for it.
    fn whom(&self, what: &Happening) -> Option<Sleeper> {
        Some(match what {
            Happening::AtServer { connection, .. } => Sleeper::Server(self.connections[*connection].server),
            Happening::AtWorker { connection, .. } => Sleeper::Process(self.connections[*connection].process),
            Happening::Complete { transfer } => {
                let transfer = self.transfers.get(*transfer)?;
                let link = &self.connections[transfer.connection];
                if transfer.cargo.is_inward() {
                    Sleeper::Server(link.server)
                } else {
                    Sleeper::Process(link.process)
                }
            }
            Happening::ParcelComplete { parcel } => Sleeper::Process(self.parcels.get(*parcel)?.to),
            Happening::AtShard { at, .. }
            | Happening::ShardTick { at, .. }
            | Happening::DiskDone { at, .. } => Sleeper::Server(at.server()),
            Happening::Told { server, .. } | Happening::ServerTick { server, .. } => Sleeper::Server(*server),
            Happening::Linked { what, .. } if what.is_at_coordinator() => Sleeper::Server(0),
            Happening::Linked { server, .. } => Sleeper::Server(*server),
            Happening::AtFeed { feed, what } => Sleeper::Server(self.server_of_feed(*feed, *what)?),
            Happening::WorkerTick { process, .. }
            | Happening::Loaded { process, .. }
            | Happening::Among { process, .. }
            | Happening::Measured { process, .. } => Sleeper::Process(*process),
            // What is computed stands still as well, and ends so much later.
            Happening::Computed { .. }
            | Happening::Part { .. }
            | Happening::Proceeds { .. }
            | Happening::ParcelReaches { .. }
            | Happening::Start { .. }
            | Happening::Left { .. }
            | Happening::Reaches { .. }
            | Happening::Befalls { .. }
            | Happening::Wakes { .. }
            | Happening::Reboot { .. }
            | Happening::Restart
            | Happening::Fails { .. } => return None,
        })
    }

    /// A process goes on, and hears all that it has missed before anything else happens.
    fn wakes(&mut self, whom: Sleeper) -> Result<(), SimFailure> {
        if self.wakes_at(whom) > self.now() {
            return Ok(());
        }
        let held = self.asleep.remove(&whom).unwrap_or_default();
        held.into_iter().try_for_each(|what| self.happen(what))
    }

    /// A run in which nobody is left, or in which nothing moves, does not end by itself: it is said here what it waits for.
    pub(crate) fn look_for_life(&mut self) {
        let is_alive = self.processes.iter().any(Process::is_running);
        if !is_alive && self.pending == 0 && self.over.is_none() {
            let is_done = self.servers[0].control.record().is_some_and(|record| record.is_complete());
            let blamed = self.blamed.take();
            let text = blamed.unwrap_or_else(|| "no worker is left, and none comes back".to_owned());
            // Whoever is still a member then is dead: the coordinator would only wait for its lease.
            self.over = Some(if is_done { Over::Complete } else { Over::Failed(text) });
        }
    }

    /// What a server's end means for the run.
    pub(crate) fn server_ends(&mut self, server: usize, end: End) {
        self.servers[server].up = false;
        if server == 0 {
            self.over = Some(match end {
                End::Complete => Over::Complete,
                End::Stopped(text) | End::Failed(text) | End::Refused(text) => Over::Failed(text),
            });
        }
    }

    fn take_failure(&mut self) -> Result<(), SimFailure> {
        self.results.take_failure().map_or(Ok(()), |error| Err(error.into()))
    }
}
