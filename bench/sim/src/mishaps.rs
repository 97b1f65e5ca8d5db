//! What befalls the processes: the incidents of the configuration, and failures by chance.

use slackline_core::config::{Config, Incident, What, Whom};
use slackline_core::ids::Moment;
use slackline_core::stragglers::Draws;

use crate::links::duration;
use crate::world::{Happening, Sleeper, World};

/// The stream of chance that incidents are drawn from, and the first of those of the machines, which go downwards from there; the others
/// under the same seed never count so far.
const INCIDENT_STREAM: u64 = u64::MAX - (1 << 20);
const FAILURE_STREAM: u64 = u64::MAX - (1 << 30);

/// A machine that fails by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Casualty {
    Worker(usize),
    Server(usize),
}

/// When machines fail, drawn from the run's seed: the same for every policy and every way to recover.
#[derive(Debug)]
pub(crate) struct Fates {
    /// Nothing of them is left to be drawn.
    incidents: Vec<Incident>,
    workers: Vec<Fate>,
    servers: Vec<Fate>,
    down_s: f64,
}

#[derive(Debug)]
struct Fate {
    chance: Draws,
    mean_s: f64,
}

impl Fate {
    /// How long the machine stays up.
    fn draw(&mut self) -> f64 {
        self.mean_s * self.chance.exponential()
    }
}

impl Fates {
    pub(crate) fn new(config: &Config) -> Self {
        let simulation = &config.simulation;
        let incidents =
            (0..).zip(&simulation.incidents).map(|(place, incident)| drawn(config, place, *incident));
        let fates = |mean_s: Option<f64>, first: u64, machines: u32| {
            let fate = |machine| {
                let stream = FAILURE_STREAM - first - u64::from(machine);
                Some(Fate { chance: Draws::at(config.seed, stream, 0), mean_s: mean_s? })
            };
            (0..machines).map_while(fate).collect()
        };
        Self {
            incidents: incidents.collect(),
            workers: fates(simulation.worker_mtbf_s, 0, config.workers),
            servers: fates(simulation.server_mtbf_s, 1 << 20, config.servers),
            down_s: simulation.down_s,
        }
    }

    pub(crate) const fn incidents(&self) -> usize {
        self.incidents.len()
    }

    /// Whether anything can befall a process.
    pub(crate) const fn are_calm(&self) -> bool {
        self.incidents.is_empty() && self.workers.is_empty() && self.servers.is_empty()
    }

    fn of(&mut self, whom: Casualty) -> Option<&mut Fate> {
        match whom {
            Casualty::Worker(slot) => self.workers.get_mut(slot),
            Casualty::Server(server) => self.servers.get_mut(server),
        }
    }
}

/// An incident with what is drawn of it.
fn drawn(config: &Config, place: u64, incident: Incident) -> Incident {
    let mut chance = Draws::at(config.seed, INCIDENT_STREAM, place);
    let (first, last) = incident.at_s;
    let at = first + chance.uniform() * (last - first);
    let mut among = |count: u32| (chance.uniform() * f64::from(count)) as u32;
    let whom = match incident.whom {
        Whom::Worker(None) => Whom::Worker(Some(among(config.workers))),
        Whom::Server(None) => Whom::Server(Some(among(config.servers))),
        whom => whom,
    };
    Incident { whom, at_s: (at, at), ..incident }
}

impl World {
    /// Puts everything that is known to befall somebody on the agenda.
    pub(crate) fn foretell(&mut self) {
        for (index, incident) in self.fates.incidents.iter().enumerate() {
            let when = Moment(0).after(duration(incident.at_s.0));
            self.agenda.at(when, Happening::Befalls { incident: index });
        }
        let workers = (0..self.fates.workers.len()).map(Casualty::Worker);
        let servers = (0..self.fates.servers.len()).map(Casualty::Server);
        for whom in workers.chain(servers) {
            self.foretell_next(whom, 0.0);
        }
    }

    /// Draws when a machine fails next, once it is up again after so many seconds.
    fn foretell_next(&mut self, whom: Casualty, down_s: f64) {
        let now = self.now();
        if let Some(fate) = self.fates.of(whom) {
            let when = now.after(duration(down_s + fate.draw()));
            self.agenda.at(when, Happening::Fails { whom });
        }
    }

    /// A machine fails by chance, and comes back.
    pub(crate) fn fails(&mut self, whom: Casualty) {
        let down_s = self.fates.down_s;
        let back = Some(self.now().after(duration(down_s)));
        match whom {
            Casualty::Worker(slot) => {
                let process = self.slots.get(slot).copied().flatten();
                if process.is_some_and(|process| self.processes[process].is_running()) {
                    self.befalls_worker(slot, What::Crash, back);
                }
            }
            Casualty::Server(server) => self.befalls_server(server, What::Crash, back),
        }
        self.foretell_next(whom, down_s);
    }

    /// An incident begins.
    pub(crate) fn befalls(&mut self, index: usize) {
        self.pending -= 1;
        let Some(incident) = self.fates.incidents.get(index).copied() else { return };
        let Incident { whom, what, for_s, .. } = incident;
        let until = for_s.map(|seconds| self.now().after(duration(seconds)));
        match whom {
            Whom::Worker(worker) => self.befalls_worker(worker.unwrap_or(0) as usize, what, until),
            Whom::Server(server) => self.befalls_server(server.unwrap_or(0) as usize, what, until),
            Whom::Run => self.befalls_run(until),
        }
        self.look_for_life();
    }

    fn befalls_worker(&mut self, slot: usize, what: What, until: Option<Moment>) {
        let Some(Some(process)) = self.slots.get(slot).copied() else { return };
        match (what, until) {
            (What::Pause, until) => self.falls_asleep(Sleeper::Process(process), until.unwrap_or_default()),
            (What::Crash, until) => {
                if let Some(back) = until {
                    self.pending += 1;
                    self.agenda.at(back, Happening::Start { slot });
                }
                self.asleep.remove(&Sleeper::Process(process));
                self.crash_process(process);
            }
        }
    }

    fn befalls_server(&mut self, server: usize, what: What, until: Option<Moment>) {
        let Some(state) = self.servers.get(server) else { return };
        match (what, until) {
            (_, _) if !state.up => {}
            (What::Pause, until) => self.falls_asleep(Sleeper::Server(server), until.unwrap_or_default()),
            (What::Crash, until) => {
                if let Some(back) = until {
                    self.pending += 1;
                    self.agenda.at(back, Happening::Reboot { server });
                }
                self.asleep.remove(&Sleeper::Server(server));
                self.crash_server(server);
            }
        }
    }

    /// All processes are gone at once, and come back together.
    fn befalls_run(&mut self, until: Option<Moment>) {
        let record = self.servers[0].control.record();
        let wall = record.map_or_else(Default::default, |record| record.wall(self.now()));
        if let Some(back) = until {
            self.wall_before = Some(wall + self.wall_unknown + back.since(self.now()));
            self.pending += 1 + self.slots.len();
            self.agenda.at(back, Happening::Restart);
        }
        self.asleep.clear();
        self.crash_all();
    }

    /// A process stands still until a moment, or for longer if it had to anyway.
    fn falls_asleep(&mut self, whom: Sleeper, until: Moment) {
        if until <= self.wakes_at(whom).max(self.now()) {
            return;
        }
        match whom {
            Sleeper::Process(process) => self.pause_process(process, until),
            Sleeper::Server(server) => self.servers[server].paused_until = until,
        }
        self.asleep.entry(whom).or_default();
        self.agenda.at(until, Happening::Wakes { whom });
    }

    /// Until when a process stands still; a moment that is over where it does not.
    pub(crate) fn wakes_at(&self, whom: Sleeper) -> Moment {
        match whom {
            Sleeper::Process(process) => self.processes[process].paused_until,
            Sleeper::Server(server) => self.servers[server].paused_until,
        }
    }
}
