//! The loop: what is due next happens, and what must hold is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fmt::Write;
use std::time::Duration;

use slackline_core::config::Steps;
use slackline_core::consistency::PolicySpec;
use slackline_core::ids::{Clock, Generation, Moment, ServerId, SessionId, WorkerId};
use slackline_core::schedule::Cut;
use slackline_core::wire::{BatchResult, Fate, Work};
use slackline_server_core::assign::{Assigner, Plan};
use slackline_server_core::control::{AllreduceSettings, CoordinatorSettings, End};
use slackline_server_core::record::{Asked, Figures};
use slackline_server_core::{Control, ControlEvent, ControlSettings};
use slackline_worker_core::Event;

use crate::agenda::{Agenda, Happening};
use crate::chance::Chance;
use crate::link::Link;
use crate::process::{Life, Process, place};
use crate::replica::{Ledger, layout};
use crate::scenario::{Scenario, Weather};
use crate::trace::Trace;

/// A law that does not hold.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) law: &'static str,
    pub(crate) text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.text)
    }
}

pub(crate) type Verdict = Result<(), Violation>;

/// A violation unless something holds.
pub(crate) fn holds(law: &'static str, is_so: bool, text: impl FnOnce() -> String) -> Verdict {
    if is_so { Ok(()) } else { Err(Violation { law, text: text() }) }
}

/// Everything there is.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: Moment,
    pub(crate) agenda: Agenda,
    pub(crate) chance: Chance,
    pub(crate) weather: Weather,
    pub(crate) trace: Trace,
    pub(crate) control: Control,
    pub(crate) end: Option<End>,
    pub(crate) sessions: BTreeMap<SessionId, usize>,
    pub(crate) session_last: SessionId,
    pub(crate) links: Vec<Link>,
    pub(crate) processes: Vec<Process>,
    /// From when on what two processes send each other within a group is lost.
    pub(crate) cuts: BTreeMap<(usize, usize, Generation), Moment>,
    pub(crate) ledger: Ledger,
    /// Samples at which runs with servers evaluate.
    pub(crate) points: BTreeSet<u64>,
    /// Workers whose lease ran out.
    pub(crate) expired: BTreeSet<WorkerId>,
    pub(crate) taken_over: u64,
    /// Workers that were refused for what they are or have.
    pub(crate) turned_away: u64,
    /// Those of them that nothing was wrong with but the weather.
    pub(crate) turned_away_wrongly: u64,
    /// The final values are evaluated.
    pub(crate) is_evaluated: bool,
    /// When a run that is not elastic must have ended, since a worker is lost.
    pub(crate) ends_by: Option<Moment>,
}

/// What came out of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    pub(crate) figures: Figures,
    /// The final values, where anybody has them.
    pub(crate) values: Option<Vec<f32>>,
    pub(crate) events: u64,
    pub(crate) ended: Moment,
    pub(crate) expired: usize,
    pub(crate) completed: u64,
    /// How often a member took values and optimizer state over from another.
    pub(crate) taken_over: u64,
    pub(crate) turned_away: u64,
    pub(crate) turned_away_wrongly: u64,
    pub(crate) evaluated: BTreeSet<u64>,
    pub(crate) lines: Vec<String>,
}

impl World {
    pub(crate) fn new(scenario: Scenario, trace: Trace) -> Self {
        let mut world = Self {
            now: Moment(0),
            agenda: Agenda::default(),
            chance: Chance::new(scenario.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            weather: scenario.weather,
            trace,
            control: Control::new(control_settings(&scenario), Moment(0)),
            end: None,
            sessions: BTreeMap::new(),
            session_last: SessionId(0),
            links: Vec::new(),
            processes: Vec::new(),
            cuts: BTreeMap::new(),
            ledger: Ledger::default(),
            points: points(&scenario),
            expired: BTreeSet::new(),
            taken_over: 0,
            turned_away: 0,
            turned_away_wrongly: 0,
            is_evaluated: false,
            ends_by: None,
            scenario,
        };
        world.agenda.at(Moment(0), Happening::CoordinatorTick);
        for _ in 0..world.scenario.workers {
            let when = world.now.after(world.chance.micros(0, 300_000));
            world.agenda.at(when, Happening::Start);
        }
        if let Some(from) = world.scenario.unreachable_from {
            world.agenda.at(Moment(0).after(from), Happening::StartUnreachable);
        }
        if world.weather.mishap_pause > 0 {
            let when = world.now.after(world.chance.micros(0, world.weather.mishap_pause));
            world.agenda.at(when, Happening::Mishap);
        }
        world.agenda.at(world.now.after(world.scenario.storm), Happening::Calm);
        world
    }

    /// Runs to the end, or to the first law that is broken.
    pub(crate) fn run(mut self) -> Result<Outcome, Violation> {
        let mut events = 0;
        while self.end.is_none() || !self.running().is_empty() {
            let Some((when, what)) = self.agenda.pop() else {
                return Err(Violation { law: "liveness", text: format!("nothing happens\n{}", self.dump()) });
            };
            self.now = when;
            events += 1;
            self.check_time(events)?;
            self.happen(what)?;
        }
        let values = self.check_final_values()?;
        let end = self.end.clone().unwrap_or(End::Complete);
        let policy = PolicySpec::Bsp;
        let asked = Asked { policy, prefetch: 0, workers: 1, accuracies: &[], losses: &[], whole: true };
        let record = self.control.record();
        let figures = record.map(|record| record.figures(self.now, &asked));
        let Some(figures) = figures else {
            return Err(Violation { law: "record", text: "there is none".to_owned() });
        };
        let evaluated = record.into_iter().flat_map(|record| record.evaluations()).map(|one| one.samples);
        Ok(Outcome {
            evaluated: evaluated.collect(),
            end,
            figures,
            values,
            events,
            ended: self.now,
            expired: self.expired.len(),
            completed: self.ledger.completed,
            taken_over: self.taken_over,
            turned_away: self.turned_away,
            turned_away_wrongly: self.turned_away_wrongly,
            lines: if let Trace::Kept(lines) = self.trace { lines } else { Vec::new() },
        })
    }

    fn happen(&mut self, what: Happening) -> Verdict {
        if let Some(process) = what.process() {
            let until = self.processes[process].frozen_until;
            if until > self.now {
                self.agenda.at(until, what);
                return Ok(());
            }
        }
        match what {
            Happening::AtCoordinator { link, what } => self.at_coordinator(link, what),
            Happening::AtWorker { link, what } => self.at_worker(link, what),
            Happening::AtPeer { from, to, generation, what } => self.at_peer(from, to, generation, what),
            Happening::PeerLost { process, other, generation } => self.peer_lost(process, other, generation),
            Happening::MeetLate { process, generation, is_for_called } => {
                self.meet_late(process, generation, is_for_called)
            }
            Happening::Local { process, event } => self.local(process, event),
            Happening::Bucket { process, generation, clock, bucket } => {
                self.bucket_ready(process, generation, (clock, bucket))
            }
            Happening::Computed { process, generation, clock } => self.computed(process, generation, clock),
            Happening::CoordinatorTick => {
                if self.end.is_none() {
                    self.agenda.at(self.now.after(self.scenario.lease / 20), Happening::CoordinatorTick);
                }
                self.control_event(ControlEvent::Tick)
            }
            Happening::WorkerTick { process, wake } => self.worker_tick(process, wake),
            Happening::Start => self.start_process(),
            Happening::StartUnreachable => self.start_unreachable(),
            Happening::Mishap => self.mishap(),
            Happening::Calm => self.calm(),
        }
    }

    /// Once nothing goes wrong any more the run ends, within a bound; and one that is not elastic ends with its first lost worker.
    fn check_time(&self, events: u64) -> Verdict {
        let work = Duration::from_micros(2 * self.scenario.compute) * self.scenario.unit_count() as u32;
        let bound = self.scenario.storm + work + self.scenario.lease * 40;
        let is_late = self.now.since(Moment(0)) > bound || events > 1_000_000;
        holds("liveness", !is_late, || format!("not over after {events} events\n{}", self.dump()))?;
        let goes_on = self.end.is_none() && !self.is_evaluated;
        let is_lost = goes_on && self.ends_by.is_some_and(|latest| latest < self.now);
        holds("a lost worker ends the run", !is_lost, || format!("and it goes on\n{}", self.dump()))
    }

    /// The coordinator says how the run ends.
    pub(crate) fn see_end(&self, end: &End) -> Verdict {
        let has_mishaps = self.scenario.weather.mishap_pause > 0;
        let text = match end {
            End::Complete => {
                let progress = self.control.record().map(|record| record.progress(self.now).samples);
                let total = self.scenario.sample_total();
                return holds("record", progress == Some(total), || {
                    format!("{progress:?} of {total} samples")
                });
            }
            End::Stopped(text) | End::Failed(text) | End::Refused(text) => text,
        };
        let has_done = self.control.record().is_some_and(|record| record.progress(self.now).samples > 0);
        let is_named = self.processes.iter().any(|process| {
            let worker = process.worker.member().map(|(worker, _)| worker);
            let is_gone = process.life != Life::Running || process.interrupted;
            let is_lost = worker.is_some_and(|worker| is_gone || self.expired.contains(&worker));
            is_lost && worker.is_some_and(|worker| text.starts_with(&format!("{worker} ")))
        }) || self.expired.iter().any(|worker| text.starts_with(&format!("{worker} ")));
        let expected = if text.contains("cannot go on without it") {
            !self.scenario.elastic && is_named
        } else if text.contains("groups in a row") {
            // Connections were lost faster than groups could form; of a run that goes on with others only as long as it has done nothing.
            has_mishaps && !(self.scenario.elastic && has_done)
        } else {
            has_mishaps && text.starts_with("all workers that have the values")
        };
        holds("endings", expected, || format!("the run ended with: {text}\n{}", self.dump()))
    }

    /// Whoever has all units has the same values.
    fn check_final_values(&self) -> Result<Option<Vec<f32>>, Violation> {
        let mut values: Option<&Vec<f32>> = None;
        for (index, process) in self.processes.iter().enumerate() {
            let is_done = process.life == Life::Exited(Ok(())) && !process.interrupted;
            if !is_done {
                continue;
            }
            let history = &process.replica.history;
            let is_once = history.iter().copied().eq(0..history.len() as u64);
            holds("each unit once", is_once, || format!("process {index} ends with {history:?}"))?;
            if !self.is_done(index) {
                continue;
            }
            let own = &process.replica.values;
            let is_same = values
                .is_none_or(|other| other.iter().map(|v| v.to_bits()).eq(own.iter().map(|v| v.to_bits())));
            holds("one line", is_same, || format!("process {index} ends with other values"))?;
            values = Some(own);
        }
        Ok(values.cloned())
    }

    /// Who waits for whom.
    pub(crate) fn dump(&self) -> String {
        let mut text =
            format!("at {:.3} s, end {:?}\n{:?}\n", self.now.0 as f64 / 1e9, self.end, self.control);
        for (index, process) in self.processes.iter().enumerate() {
            let replica = place(process.replica.clock, &process.replica.history);
            let _ = writeln!(text, "process {index}: {:?} {replica}", process.life);
            if process.life == Life::Running {
                let form = process.form.as_ref().map(|form| (&form.group.generation, &form.others));
                let _ = writeln!(text, "  {:?}\n  in {form:?}", process.worker);
            }
        }
        text
    }

    /// Whether a process has done all that there is for it to do.
    pub(crate) fn is_done(&self, process: usize) -> bool {
        self.processes[process].replica.history.len() as u64 == self.scenario.unit_count()
    }

    pub(crate) fn interrupt(&mut self, process: usize) -> Verdict {
        self.processes[process].interrupted = true;
        self.worker_event(process, Event::Interrupt)
    }
}

fn control_settings(scenario: &Scenario) -> ControlSettings {
    let layout = layout(scenario.keys);
    ControlSettings {
        server: ServerId(0),
        workers: scenario.workers,
        min_workers: None,
        lease: scenario.lease,
        layout_hash: layout.hash(),
        layout_text: layout.to_string(),
        config_hash: 1,
        boot: 100,
        servers: 1,
        shards: Vec::new(),
        steps: Steps::Parts,
        disk: Vec::new(),
        on_disk: false,
        stop_on_bad_gradient: false,
        coordinator_at: ServerId(0),
        coordinator: Some(CoordinatorSettings {
            policy: PolicySpec::Bsp,
            cut: cut(scenario),
            epochs: scenario.epochs,
            evaluate_every_epochs: scenario.evaluate_every_epochs,
            blind_loss: 1.0,
            sync: Some(AllreduceSettings {
                topology: scenario.topology,
                elastic: scenario.elastic,
                bucket_bytes: scenario.bucket_bytes.max(64),
            }),
            replicas: 1,
            keeps_map: false,
            checkpoint_every: None,
            resume: None,
        }),
    }
}

const fn cut(scenario: &Scenario) -> Cut {
    Cut { unit: scenario.unit, units: 1, proportional: false }
}

/// Where the assigner of a run with servers has evaluations made.
fn points(scenario: &Scenario) -> BTreeSet<u64> {
    let every = (scenario.evaluate_every_epochs * scenario.samples as f64) as u64;
    let (cut, sample_total) = (cut(scenario), scenario.sample_total());
    let mut assigner = Assigner::new(Plan { cut, sample_total, evaluate_every: every, ordered: true });
    let worker = WorkerId(0);
    assigner.enter(worker);
    assigner.begin();
    let mut points = BTreeSet::new();
    for clock in 0..scenario.unit_count() {
        let done = clock.checked_sub(1).map(slackline_core::ids::BatchIndex);
        let result = |batch| BatchResult {
            number: clock,
            batch,
            clock: Clock(clock - 1),
            fate: Fate::Done { compute_us: 0 },
        };
        let results: Vec<BatchResult> = done.map(result).into_iter().collect();
        assigner.ask(worker, Clock(clock), &results);
        let mut grants = Vec::new();
        assigner.settle(|| Clock(0), &mut grants);
        points.extend(grants.iter().filter_map(|(_, work)| match work {
            Work::Batch { evaluate, .. } => *evaluate,
            _ => None,
        }));
    }
    points
}
