//! The loop: what is due next happens, and every law is asked.

use std::collections::BTreeMap;

use slackline_core::ids::{Moment, ShardId};
use slackline_core::partition::Partition;
use slackline_core::schedule::DataOrder;
use slackline_server_core::ControlEvent;
use slackline_server_core::Shard;
use slackline_server_core::control::End;

use super::agenda::{Agenda, Happening};
use super::chance::Chance;
use super::network::Connection;
use super::problem::Problem;
use super::scenario::{Scenario, Weather};
use super::servers::Server;
use super::sight::{Law, PushKey, Sight, Verdict, Violation};
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
    pub(crate) order: DataOrder,
    pub(crate) partition: Partition,
    pub(crate) servers: Vec<Server>,
    pub(crate) processes: Vec<Process>,
    pub(crate) connections: Vec<Connection>,
    /// What every worker truly sent.
    pub(crate) sent: BTreeMap<(PushKey, ShardId), Vec<f32>>,
    pub(crate) trace: Trace,
    pub(crate) fenced: u64,
    laws: Vec<Box<dyn Law>>,
}

/// What came out of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The final values, flat.
    pub(crate) values: Vec<f32>,
    pub(crate) events: u64,
    pub(crate) ended: Moment,
    pub(crate) fenced: u64,
    pub(crate) repeated: u64,
    pub(crate) connections: usize,
    pub(crate) lines: Vec<String>,
    pub(crate) exits: Vec<Life>,
}

impl World {
    pub(crate) fn new(scenario: Scenario, problem: Box<dyn Problem>, trace: Trace) -> Self {
        let Scenario { seed, samples, epochs, servers, shards_per_server, .. } = scenario;
        let laws =
            if scenario.reboot.is_some() { Vec::new() } else { invariants::all(&scenario, problem.as_ref()) };
        let mut world = Self {
            now: Moment(0),
            agenda: Agenda::default(),
            chance: Chance::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            weather: scenario.weather,
            order: DataOrder::new(seed, samples, scenario.cut().unit, epochs),
            partition: Partition::new(problem.layout().len(), servers, shards_per_server),
            servers: Vec::new(),
            processes: Vec::new(),
            connections: Vec::new(),
            sent: BTreeMap::new(),
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
            let new = self.new_server(server, boot);
            self.servers.push(new);
            self.agenda.at(self.now, Happening::ServerTick { server, boot });
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
        self.agenda.at(self.now.after(self.scenario.storm), Happening::Calm);
    }

    /// Runs to the end, or to the first law that is broken.
    pub(crate) fn run(mut self) -> Result<Outcome, Violation> {
        let mut events = 0;
        while !self.is_over() {
            let Some((when, what)) = self.agenda.pop() else { return Err(liveness::stuck(&self)) };
            self.now = when;
            events += 1;
            liveness::check(&self, events)?;
            self.happen(what)?;
        }
        let shards: BTreeMap<ShardId, &Shard> = self
            .servers
            .iter()
            .flat_map(|server| server.shards.iter().map(|(id, shard)| (*id, shard)))
            .collect();
        let shards: Vec<&Shard> = shards.into_values().collect();
        let record = self.servers[0].control.record();
        let recorded = record.map_or(0, |record| record.progress(self.now).samples);
        for law in &mut self.laws {
            law.see(&Sight::Over { scenario: &self.scenario, shards: &shards, recorded })?;
        }
        Ok(Outcome {
            values: shards.iter().filter_map(|shard| shard.values()).flatten().copied().collect(),
            events,
            ended: self.now,
            fenced: self.fenced,
            repeated: self.servers[0].control.batches_repeated(),
            connections: self.connections.len(),
            exits: self.processes.iter().map(|process| process.life.clone()).collect(),
            lines: if let Trace::Kept(lines) = self.trace { lines } else { Vec::new() },
        })
    }

    fn is_over(&self) -> bool {
        let nobody = self.processes.iter().all(|process| process.life != Life::Running);
        if self.scenario.reboot.is_some() {
            return nobody && self.processes.len() >= self.scenario.workers as usize;
        }
        nobody && self.servers[0].end == Some(End::Complete) && self.servers.iter().all(|server| !server.up)
    }

    /// Asks every law.
    pub(crate) fn see(&mut self, sight: &Sight<'_>) -> Verdict {
        self.laws.iter_mut().try_for_each(|law| law.see(sight))
    }

    fn happen(&mut self, what: Happening) -> Verdict {
        let process = match &what {
            Happening::WorkerTick { process, .. }
            | Happening::Loaded { process, .. }
            | Happening::Computed { process }
            | Happening::Measured { process, .. } => Some(*process),
            _ => None,
        };
        if process.is_some_and(|process| self.is_put_off(process, &what)) {
            return Ok(());
        }
        let is_present = |server: usize, boot| self.servers[server].boot == boot;
        match what {
            Happening::AtServer { connection, what } => self.at_server(connection, what),
            Happening::AtWorker { connection, what } => self.reach_worker(connection, what),
            Happening::AtShard { server, boot, shard, event, origin } if is_present(server, boot) => {
                self.at_shard(server, shard, event, origin)
            }
            Happening::HasValues { server, boot, shard } if is_present(server, boot) => {
                self.control_event(server, ControlEvent::HasValues { shard })
            }
            Happening::AtShard { .. } | Happening::HasValues { .. } => Ok(()),
            Happening::ServerTick { server, boot } => self.server_tick(server, boot),
            Happening::WorkerTick { process, wake } => self.worker_tick(process, wake),
            Happening::Loaded { process, batch } => self.loaded(process, batch),
            Happening::Computed { process } => self.computed(process),
            Happening::Measured { process, at_samples } => {
                let event =
                    slackline_worker_core::Event::EvaluationReady { at_samples, loss: 0.5, accuracy: 0.5 };
                self.worker_event(process, event)
            }
            Happening::Stop { server } => self.stop_server(server),
            Happening::Start => self.start_process(),
            Happening::Reboot { server } => self.reboot(server),
            Happening::Mishap => self.mishap(),
            Happening::Calm => self.calm(),
        }
    }
}
