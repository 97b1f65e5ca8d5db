//! The shell of a worker in the simulated world: its loader, its computing thread, its clock.

use std::collections::BTreeSet;
use std::time::Duration;

use slackline_core::config::Steps;
use slackline_core::ids::{BatchIndex, Clock, Generation, Moment, ServerId};
use slackline_core::partition::Partition;
use slackline_core::wire::RefusalCode;
use slackline_worker_core::{Effect, Event, GroupSettings, Settings, Worker, WorkerError};

use crate::agenda::{Happening, Inward};
use crate::peers::Form;
use crate::replica::{Replica, layout};
use crate::scenario::Scenario;
use crate::world::{Verdict, World, holds};

/// How a process is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Life {
    Running,
    Crashed,
    Exited(Result<(), WorkerError>),
}

/// One worker process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) worker: Worker,
    pub(crate) life: Life,
    pub(crate) frozen_until: Moment,
    /// The present connection to the coordinator.
    pub(crate) link: Option<usize>,
    pub(crate) replica: Replica,
    pub(crate) form: Option<Form>,
    /// Who has said that it formed a group, also before this one did.
    pub(crate) hellos: BTreeSet<(Generation, usize)>,
    loaded: BTreeSet<BatchIndex>,
    is_evaluating: bool,
    wake: u64,
    /// It was told to go.
    pub(crate) interrupted: bool,
    /// Nothing passes between it and other workers.
    pub(crate) is_unreachable: bool,
    /// Longest time of a gradient, in microseconds.
    pub(crate) pace: u64,
}

fn settings(scenario: &Scenario) -> Settings {
    let layout = layout(scenario.keys);
    Settings {
        partition: Partition::new(layout.len(), 1, 1),
        layout,
        config_hash: 1,
        coordinator: ServerId(0),
        data_hash: 1,
        sample_count: scenario.samples,
        batch_count: scenario.unit_count(),
        units_max: 1,
        prefetch: 0,
        begins_early: false,
        refreshes: false,
        fragments: 1,
        lease: scenario.lease,
        connect_timeout: Duration::from_secs(20),
        wait_report: scenario.lease * 5,
        group: Some(GroupSettings {
            peers_at: ":4000".to_owned(),
            unit: scenario.unit,
            sample_total: scenario.sample_total(),
            evaluate_every: (scenario.evaluate_every_epochs * scenario.samples as f64) as u64,
            step_report: scenario.lease / 8,
        }),
        stop_on_bad_gradient: false,
        stop_on_norm: false,
        steps: Steps::Parts,
        has_copies: false,
    }
}

impl World {
    /// A worker process starts.
    pub(crate) fn start_process(&mut self) -> Verdict {
        if self.end.is_some() {
            return Ok(());
        }
        let slowness = self.chance.between(1, 4);
        self.processes.push(Process {
            worker: Worker::new(settings(&self.scenario), self.now),
            life: Life::Running,
            frozen_until: self.now,
            link: None,
            replica: Replica::new(&self.scenario),
            form: None,
            hellos: BTreeSet::new(),
            loaded: BTreeSet::new(),
            is_evaluating: false,
            wake: 0,
            interrupted: false,
            is_unreachable: false,
            pace: self.scenario.compute * slowness / 4,
        });
        self.worker_event(self.processes.len() - 1, Event::Tick { wire_sent: 0, wire_received: 0 })
    }

    /// A worker process starts that reaches the coordinator and no other worker.
    pub(crate) fn start_unreachable(&mut self) -> Verdict {
        let process = self.processes.len();
        self.start_process()?;
        if let Some(state) = self.processes.get_mut(process) {
            state.is_unreachable = true;
        }
        Ok(())
    }

    /// A worker takes an event.
    pub(crate) fn worker_event(&mut self, process: usize, event: Event) -> Verdict {
        let now = self.now;
        if self.processes[process].life != Life::Running {
            return Ok(());
        }
        let is_tick = matches!(event, Event::Tick { .. });
        self.trace.line(now, format_args!("process {process} < {event:?}"));
        let mut effects = Vec::new();
        self.processes[process].worker.handle(now, event, &mut effects);
        for effect in effects {
            self.trace.line(now, format_args!("process {process} > {effect:?}"));
            self.perform(process, effect)?;
        }
        let state = &mut self.processes[process];
        state.worker.check_invariants();
        let worker = &state.worker;
        state.loaded.retain(|batch| worker.wants_batch(*batch));
        if let (Some(deadline), Life::Running) = (worker.next_deadline(), &state.life) {
            holds("no busy waiting", !is_tick || deadline > now, || {
                format!("process {process} wants a tick at {deadline:?}, at {now:?}: {worker:?}")
            })?;
            state.wake += 1;
            let wake = state.wake;
            self.agenda.at(deadline.max(now), Happening::WorkerTick { process, wake });
        }
        Ok(())
    }

    pub(crate) fn worker_tick(&mut self, process: usize, wake: u64) -> Verdict {
        if self.processes[process].wake != wake {
            return Ok(());
        }
        self.worker_event(process, Event::Tick { wire_sent: self.now.0 / 1000, wire_received: 0 })
    }

    /// The shell has something to say.
    pub(crate) fn local(&mut self, process: usize, event: Event) -> Verdict {
        let state = &mut self.processes[process];
        match &event {
            Event::BatchLoaded { batch } => _ = state.loaded.insert(*batch),
            Event::EvaluationReady { at_samples, .. } => {
                state.is_evaluating = false;
                self.is_evaluated |= *at_samples == self.scenario.sample_total();
            }
            _ => {}
        }
        self.worker_event(process, event)
    }

    pub(crate) fn later(&mut self, process: usize, longest: u64, event: Event) {
        let when = self.now.after(self.chance.micros(100, longest.max(200)));
        self.agenda.at(when, Happening::Local { process, event });
    }

    fn perform(&mut self, process: usize, effect: Effect) -> Verdict {
        match effect {
            Effect::Connect { .. } => self.dial(process),
            Effect::Disconnect { .. } => {
                if let Some(link) = self.processes[process].link.take() {
                    self.hang_up(link);
                }
            }
            Effect::Send { message, .. } => {
                if let Some(link) = self.processes[process].link {
                    self.send_inward(link, Inward::Message(message));
                }
            }
            Effect::LoadBatch { batch, .. } => self.later(process, 20_000, Event::BatchLoaded { batch }),
            Effect::Evaluate { at_samples, last } => return self.evaluate(process, at_samples, last),
            Effect::Form { group, position } => return self.form(process, group, position),
            Effect::Dissolve { .. } => self.close_form(process),
            Effect::Probe { generation } => {
                let figures = slackline_core::wire::LinkFigures {
                    latency_s: self.chance.between(10, 5_000) as f64 * 1e-6,
                    bytes_per_s: self.chance.between(1_000_000, 1_000_000_000) as f64,
                };
                self.later(process, 30_000, Event::Measured { generation, figures });
            }
            Effect::FetchState { generation, source, clock } => {
                self.fetch(process, generation, source, clock)
            }
            Effect::Step { generation, clock, batch, share } => {
                let is_loaded = batch.is_none_or(|batch| self.processes[process].loaded.remove(&batch));
                holds("shell", is_loaded, || format!("process {process} steps without {batch:?}"))?;
                return self.step(process, (generation, clock), batch.map(|batch| batch.0), share);
            }
            Effect::Apply { generation, clock, progress } => {
                return self.apply(process, (generation, clock), Some(progress));
            }
            Effect::Skip { generation, clock } => return self.apply(process, (generation, clock), None),
            Effect::Notice(_) => {}
            Effect::Exit(result) => return self.exited(process, result),
            other => return holds("shell", false, || format!("process {process} wants {other:?}")),
        }
        Ok(())
    }

    fn evaluate(&mut self, process: usize, at_samples: u64, last: bool) -> Verdict {
        let state = &mut self.processes[process];
        let is_alone = !std::mem::replace(&mut state.is_evaluating, true);
        let (clock, had) = (state.replica.clock, state.replica.history.len() as u64);
        let is_point = if last {
            at_samples == self.scenario.sample_total() && had == self.scenario.unit_count()
        } else {
            self.points.contains(&at_samples)
        };
        holds("evaluations", is_alone && is_point, || {
            format!("process {process} evaluates {had} units ({clock}) as {at_samples} samples, last: {last}")
        })?;
        let event = Event::EvaluationReady { at_samples, loss: 0.5, accuracy: 0.5 };
        self.later(process, 2 * self.scenario.compute, event);
        Ok(())
    }

    fn exited(&mut self, process: usize, result: Result<(), WorkerError>) -> Verdict {
        if let Some(link) = self.processes[process].link.take() {
            self.hang_up(link);
        }
        self.close_form(process);
        let state = &mut self.processes[process];
        // One whom others did not meet twice; in a storm that can be anybody who is new.
        let is_unmet = state.is_unreachable || self.scenario.weather.mishap_pause > 0;
        let turned_away = match &result {
            Err(WorkerError::Refused { code: RefusalCode::Mismatch, text, .. }) => {
                self.turned_away += 1;
                self.turned_away_wrongly += u64::from(!state.is_unreachable);
                is_unmet && text.contains("look at sync.advertise and the firewall")
            }
            Err(WorkerError::Refused { code, .. }) => {
                matches!(code, RefusalCode::RunOver | RefusalCode::Full)
            }
            _ => false,
        };
        let is_whole = state.replica.history.len() as u64 == self.scenario.unit_count();
        let expected = self.end.is_some()
            || turned_away
            || state.interrupted
            || (result.is_ok() && (is_whole || self.is_evaluated));
        let text =
            format!("process {process} ended with {result:?} and {} units", state.replica.history.len());
        state.life = Life::Exited(result);
        holds("workers do not give up", expected, || text)
    }
}

/// How a place in a run is told.
pub(crate) fn place(clock: Clock, history: &[u64]) -> String {
    format!("{clock}, {} units", history.len())
}
