//! The loop: what is due next happens, and every law is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slackline_core::config::Durability;
use slackline_core::ids::{Generation, Incarnation, Moment, SessionId, ShardId, WorkerId};
use slackline_core::layout::Layout;
use slackline_core::partition::Partition;
use slackline_core::schedule::DataOrder;
use slackline_server_core::assign::Position;
use slackline_server_core::control::End;
use slackline_server_core::{ControlEvent, HostEvent, Shard};

use super::agenda::{Agenda, Happening};
use super::chance::Chance;
use super::counts::Counts;
use super::feeds::Feed;
use super::lineage::{Lineage, Loaded, Told};
use super::machines::Machine;
use super::network::{Connection, Peer};
use super::observers::Observers;
use super::problem::Problem;
use super::resume::Left;
use super::scenario::{Scenario, Weather};
use super::servers::Server;
use super::sight::{self, Law, PushKey, Sight, Verdict, Violation};
use super::store::Store;
use super::trace::Trace;
use super::workers::{Life, Process};
use crate::invariants::{self, liveness};

/// Everything there is.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: Moment,
    pub(crate) agenda: Agenda,
    pub(crate) chance: Chance,
    pub(crate) weather: Weather,
    pub(crate) problem: Box<dyn Problem>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) order: DataOrder,
    pub(crate) partition: Partition,
    pub(crate) servers: Vec<Server>,
    pub(crate) processes: Vec<Process>,
    pub(crate) connections: Vec<Connection>,
    /// What every worker truly sent.
    pub(crate) sent: BTreeMap<(PushKey, ShardId), Vec<f32>>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) feeds: Vec<Feed>,
    /// Pairs between which there is no way until a moment.
    pub(crate) parted: Vec<(Peer, usize, Moment)>,
    pub(crate) lineages: BTreeMap<ShardId, Lineage>,
    pub(crate) told: Told,
    /// States that were loaded for hosts that do not lead yet.
    pub(crate) loaded: BTreeMap<(usize, u64, ShardId), Loaded>,
    pub(crate) store: Store,
    /// Whom each session of a server's process spoke for, and which worker's process it was.
    pub(crate) speakers: BTreeMap<(usize, u64, SessionId), (WorkerId, Incarnation)>,
    pub(crate) session_of: BTreeMap<(usize, u64, SessionId), usize>,
    /// Who let effects of a generation out.
    pub(crate) led_by: BTreeMap<(ShardId, Generation), (usize, u64)>,
    /// How each server has ended.
    pub(crate) ends: Vec<Option<End>>,
    /// When the last word of a server's hosts reaches its control.
    pub(crate) said_last: BTreeMap<usize, Moment>,
    /// Manifests on their way to the store.
    pub(crate) committing: BTreeMap<u64, Vec<(ShardId, Vec<u8>)>>,
    /// The coordinator knows of a checkpoint, for certain.
    pub(crate) knows_checkpoint: bool,
    pub(crate) observers: Observers,
    /// The worker of each incarnation that a process was told to be.
    pub(crate) joined: BTreeMap<Incarnation, WorkerId>,
    /// Where the run goes on, if it does.
    pub(crate) resumed: Option<Position>,
    /// Servers that lost their disk.
    pub(crate) disks_lost: BTreeSet<usize>,
    pub(crate) counts: Counts,
    pub(crate) trace: Trace,
    pub(crate) fenced: u64,
    pub(crate) laws: Vec<Box<dyn Law>>,
}

/// What came out of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The final values, flat.
    pub(crate) values: Vec<f32>,
    pub(crate) events: u64,
    pub(crate) ended: Moment,
    pub(crate) repeated: u64,
    pub(crate) connections: usize,
    pub(crate) joined: BTreeMap<Incarnation, WorkerId>,
    pub(crate) counts: Counts,
    /// Why the run could not be finished, where its state was lost.
    pub(crate) failure: Option<String>,
    pub(crate) lines: Vec<String>,
}

impl World {
    /// The world of a run that begins, or goes on from what its former life, if it has one, has left.
    ///
    /// # Panics
    /// Where that life breaks a law.
    pub(crate) fn new(scenario: Scenario, problem: Box<dyn Problem>, trace: Trace) -> Self {
        let left = Left::of(&scenario, problem, &trace);
        let Left { problem, store, position } =
            left.unwrap_or_else(|violation| panic!("in the life before, {violation}"));
        let Scenario { seed, samples, epochs, servers, shards_per_server, .. } = scenario;
        let laws = invariants::all(&scenario, problem.as_ref());
        let mut world = Self {
            now: Moment(0),
            agenda: Agenda::default(),
            chance: Chance::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            weather: scenario.weather,
            order: DataOrder::new(seed, samples, scenario.cut().unit, epochs),
            layout: Arc::new(problem.layout().clone()),
            partition: Partition::new(problem.layout().len(), servers, shards_per_server),
            servers: Vec::new(),
            processes: Vec::new(),
            connections: Vec::new(),
            sent: BTreeMap::new(),
            machines: Vec::new(),
            feeds: Vec::new(),
            parted: Vec::new(),
            lineages: BTreeMap::new(),
            told: BTreeMap::new(),
            loaded: BTreeMap::new(),
            store,
            observers: Observers::new(seed),
            joined: BTreeMap::new(),
            resumed: position,
            speakers: BTreeMap::new(),
            session_of: BTreeMap::new(),
            led_by: BTreeMap::new(),
            ends: Vec::new(),
            said_last: BTreeMap::new(),
            committing: BTreeMap::new(),
            knows_checkpoint: false,
            disks_lost: BTreeSet::new(),
            counts: Counts::default(),
            trace,
            fenced: 0,
            laws,
            problem,
            scenario,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        for server in 0..self.scenario.servers as usize {
            let boot = 100 + server as u64;
            self.machines
                .push(Machine { ahead: self.chance.between(0, 100_000_000_000), ..Machine::default() });
            self.ends.push(None);
            let new = self.new_server(server, boot);
            self.servers.push(new);
            self.agenda.at(self.now, Happening::Begin { server, boot });
        }
        for _ in 0..self.scenario.workers {
            let when = self.now.after(self.chance.micros(0, 300_000));
            self.agenda.at(when, Happening::Start);
        }
        if self.weather.mishap_pause > 0 {
            let when = self.now.after(self.chance.micros(0, self.weather.mishap_pause));
            self.agenda.at(when, Happening::Mishap);
        }
        if let Some((server, when)) = self.scenario.reboot {
            self.agenda.at(self.now.after(when), Happening::Reboot { server });
        }
        if let Some((server, when, length)) = self.scenario.freeze {
            self.agenda.at(self.now.after(when), Happening::Freeze { server, length });
        }
        self.agenda.at(self.now.after(self.scenario.storm), Happening::Calm);
        self.open_observers();
    }

    /// Runs to the end, or to the first law that is broken.
    pub(crate) fn run(mut self) -> Result<Outcome, Violation> {
        let mut events = 0;
        while !self.is_over() {
            self.step(&mut events)?;
        }
        let ended = self.now;
        while let Some((when, what)) = self.agenda.pop() {
            if matches!(what, Happening::AtHost { .. }) {
                self.now = when;
                self.happen(what)?;
            }
        }
        let failure = self.failure()?;
        self.copies_are_equal()?;
        let shards: Vec<&Shard> = self.lineages.values().map(|lineage| &lineage.twin).collect();
        let record = self.servers[0].control.record();
        let recorded = record.map_or(0, |record| record.progress(self.time_of(0)).samples);
        if failure.is_none() {
            for law in &mut self.laws {
                law.see(&Sight::Over { scenario: &self.scenario, shards: &shards, recorded })?;
            }
        }
        Ok(Outcome {
            values: shards.iter().filter_map(|shard| shard.values()).flatten().copied().collect(),
            events,
            ended,
            repeated: self.servers[0].control.batches_repeated(),
            connections: self.connections.len(),
            joined: self.joined,
            counts: Counts { fences: self.fenced, lost_runs: u64::from(failure.is_some()), ..self.counts },
            failure,
            lines: if let Trace::Kept(lines) = self.trace { lines } else { Vec::new() },
        })
    }

    /// What is due next happens.
    pub(crate) fn step(&mut self, events: &mut u64) -> Result<(), Violation> {
        let Some((when, what)) = self.agenda.pop() else { return Err(liveness::stuck(self)) };
        self.now = when;
        *events += 1;
        liveness::check(self, *events)?;
        self.happen(what)
    }

    pub(crate) fn is_over(&self) -> bool {
        let nobody = self.processes.iter().all(|process| process.life != Life::Running);
        nobody && self.ends.iter().all(Option::is_some)
    }

    /// Why the run has failed, if it has; that must be for a state that is truly gone.
    fn failure(&self) -> Result<Option<String>, Violation> {
        let text = match &self.ends[0] {
            Some(End::Complete) => return Ok(None),
            Some(End::Failed(text)) => text.clone(),
            other => format!("the coordinator has ended with {other:?}"),
        };
        // A copy that is alone, or not yet in step, can be lost; what is on a disk cannot, whoever took over meanwhile.
        let may_lose = self.scenario.durability != Durability::Disk || !self.disks_lost.is_empty();
        // Where nothing waits for the backup, one that takes over from a server that was only cut off can have nothing.
        let takes_over = self.scenario.durability == Durability::Memory && self.counts.promotions > 0;
        // A run with a checkpoint goes on from that.
        let is_lost = (self.counts.crashes > 0 || takes_over)
            && !self.knows_checkpoint
            && text.contains("has no state");
        sight::holds("runs do not fail", may_lose && is_lost, || text.clone())?;
        Ok(Some(text))
    }

    /// Asks every law.
    pub(crate) fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        self.laws.iter_mut().try_for_each(|law| law.see(sight))
    }

    fn happen(&mut self, what: Happening) -> Verdict {
        if let Some(server) = self.server_of(&what)
            && self.is_server_put_off(server, &what)
        {
            return Ok(());
        }
        let process = match &what {
            Happening::WorkerTick { process, .. }
            | Happening::Loaded { process, .. }
            | Happening::Part { process, .. }
            | Happening::Computed { process }
            | Happening::Measured { process, .. } => Some(*process),
            _ => None,
        };
        if process.is_some_and(|process| self.is_put_off(process, &what)) {
            return Ok(());
        }
        let is_present = |server: usize, boot| self.servers[server].up && self.servers[server].boot == boot;
        // A server that ends takes what it was given before: the last steps of workers that are gone come with the word of the end.
        let ends_with = |server: usize, boot, event: &HostEvent| {
            matches!(event, HostEvent::Shard(_))
                && self.ends[server].is_some()
                && self.servers[server].boot == boot
        };
        match what {
            Happening::AtHost { boot, server, ref event, .. }
                if !is_present(server, boot) && !ends_with(server, boot, event) =>
            {
                Ok(())
            }
            Happening::Said { boot, server, .. }
            | Happening::Written { boot, server, .. }
            | Happening::Synced { boot, server, .. }
            | Happening::Load { boot, server, .. }
            | Happening::Saved { boot, server, .. }
            | Happening::ServerTick { boot, server }
            | Happening::Report { boot, server }
            | Happening::Begin { boot, server }
                if !is_present(server, boot) =>
            {
                Ok(())
            }
            Happening::Noted { boot, .. } | Happening::Kept { boot, .. } | Happening::Sealed { boot, .. }
                if !is_present(0, boot) =>
            {
                Ok(())
            }
            Happening::AtServer { connection, what } => self.at_server(connection, what),
            Happening::AtWorker { connection, what } => self.reach_worker(connection, what),
            Happening::AtHost { server, shard, event, origin, .. } => {
                self.at_host(server, shard, event, origin)
            }
            Happening::Said { server, event, .. } => self.control_event(server, *event),
            Happening::Feed { feed, what } => {
                self.moved(feed, what);
                Ok(())
            }
            Happening::Written { server, shard, index, upto, .. } => {
                self.written(server, shard, index, upto);
                Ok(())
            }
            Happening::Synced { server, shard, upto, .. } => {
                self.synced(server, shard, upto);
                Ok(())
            }
            Happening::Load { server, shard, place, .. } => {
                self.fetch(server, shard, &place);
                Ok(())
            }
            Happening::Saved { server, number, state, .. } => self.part_saved(server, number, *state),
            Happening::Noted { upto, .. } => self.noted_to(upto),
            Happening::Kept { number, .. } => self.control_event(0, ControlEvent::Persisted { number }),
            Happening::Sealed { number, .. } => self.sealed(number),
            Happening::Report { server, boot } => self.report_to_coordinator(server, boot),
            Happening::Begin { server, boot } => self.begin_server(server, boot),
            Happening::ServerTick { server, boot } => self.server_tick(server, boot),
            Happening::WorkerTick { process, wake } => self.worker_tick(process, wake),
            Happening::Loaded { process, batch } => self.loaded(process, batch),
            Happening::Part { process, sequence, shard } => self.part_is_final(process, sequence, shard),
            Happening::Computed { process } => self.computed(process),
            Happening::Measured { process, at_samples } => {
                let event =
                    slackline_worker_core::Event::EvaluationReady { at_samples, loss: 0.5, accuracy: 0.5 };
                self.worker_event(process, event)
            }
            Happening::Look { observer, server } => self.look(observer, server),
            Happening::Stop { server } => self.stop_server(server),
            Happening::Start => self.start_process(),
            Happening::Reboot { server } => self.reboot(server),
            Happening::Freeze { server, length } => {
                self.freeze_until(server, self.now.after(length));
                Ok(())
            }
            Happening::Mishap => self.mishap(),
            Happening::Calm => self.calm(),
        }
    }

    /// The server that something happens to.
    fn server_of(&self, what: &Happening) -> Option<usize> {
        match what {
            Happening::AtServer { connection, .. } => Some(self.connections[*connection].server),
            Happening::AtHost { server, .. }
            | Happening::Said { server, .. }
            | Happening::Written { server, .. }
            | Happening::Synced { server, .. }
            | Happening::Load { server, .. }
            | Happening::Saved { server, .. }
            | Happening::ServerTick { server, .. }
            | Happening::Report { server, .. }
            | Happening::Look { server, .. }
            | Happening::Stop { server } => Some(*server),
            Happening::Noted { .. } | Happening::Kept { .. } | Happening::Sealed { .. } => Some(0),
            Happening::Feed { feed, what } => Some(self.end_of(*feed, what)),
            _ => None,
        }
    }
}
