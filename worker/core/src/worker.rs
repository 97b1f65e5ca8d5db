//! The worker: its state, and which part of it an event concerns.

use std::collections::BTreeMap;
use std::time::Duration;

use slackline_core::ids::{BatchIndex, Clock, Incarnation, Moment, ServerId, ShardId, WorkerId};
use slackline_core::wire::{Evaluated, Guarded, Refusal, RefusalCode, ToPeer, ToServer};

use crate::buffers::Contents;
use crate::effect::Effect;
use crate::error::WorkerError;
use crate::evaluation::Evaluation;
use crate::event::Event;
use crate::group::Grouping;
use crate::iteration::{Cycle, Gradient};
use crate::leave::Leaving;
use crate::ledger::{Category, Ledger};
use crate::notice::Notice;
use crate::place::Home;
use crate::record::Record;
use crate::session::{Session, State};
use crate::settings::Settings;
use crate::waits::Reported;
use crate::work::Asking;

/// What the coordinator made of this worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Member {
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: Incarnation,
}

/// One worker. It has no parameters and no data of its own: it can go and come back at any time.
#[derive(Clone, Debug)]
pub struct Worker {
    pub(crate) settings: Settings,
    /// The shards that have keys.
    pub(crate) shards: BTreeMap<ShardId, Home>,
    pub(crate) now: Moment,
    /// The coordinator, every server that has ever had a shard with keys, and where shards have copies all others too.
    pub(crate) sessions: BTreeMap<ServerId, Session>,
    pub(crate) member: Option<Member>,
    /// What the worker was before its lease ran out.
    pub(crate) former: Option<(WorkerId, Incarnation)>,
    /// Iterations completed, or more where a server has moved the worker up.
    pub(crate) clock: Clock,
    /// Number of the last pull.
    pub(crate) request_last: u64,
    pub(crate) contents: Contents,
    pub(crate) asking: Asking,
    /// The worker has told the servers that it has no work.
    pub(crate) finished: bool,
    /// The first work has come.
    pub(crate) has_started: bool,
    pub(crate) cycle: Cycle,
    pub(crate) evaluation: Evaluation,
    /// The worker's part in an allreduce.
    pub(crate) group: Grouping,
    /// Results of evaluations that the coordinator has perhaps not heard, each with the renewals that had gone there before it.
    pub(crate) evaluated: Vec<(Evaluated, u64)>,
    pub(crate) ledger: Ledger,
    pub(crate) record: Record,
    pub(crate) waits_reported: Reported,
    /// The guard that was told of last, and when.
    pub(crate) guard_told: Option<(Guarded, Moment)>,
    /// Until then no batch is begun: what it pushes would come too often.
    pub(crate) paused_until: Option<Moment>,
    /// When the worker was told to end: it completes the step that is on its way first.
    pub(crate) stopping: Option<Moment>,
    pub(crate) leaving: Option<Leaving>,
    pub(crate) has_exited: bool,
}

impl Worker {
    /// A worker that begins with its first [`Event::Tick`], which is due at once.
    #[must_use]
    pub fn new(settings: Settings, now: Moment) -> Self {
        let partition = &settings.partition;
        let shards =
            partition.shards().map(|(shard, keys)| (shard, Home::new(partition.server_of(shard), keys)));
        // In an allreduce the servers hold nothing.
        let shards: BTreeMap<_, _> = shards.filter(|_| settings.group.is_none()).collect();
        let mut coordinator = Session::new(settings.coordinator, now);
        coordinator.want(now);
        let mut sessions = BTreeMap::from([(settings.coordinator, coordinator)]);
        let copies = 0..if settings.has_copies { partition.server_count() } else { 0 };
        let owners = shards.values().map(|home: &Home| home.server);
        for server in owners.chain(copies.map(ServerId)) {
            sessions.entry(server).or_insert_with(|| Session::new(server, now));
        }
        Self {
            settings,
            shards,
            now,
            sessions,
            member: None,
            former: None,
            clock: Clock(0),
            request_last: 0,
            contents: Contents::default(),
            asking: Asking::default(),
            finished: false,
            has_started: false,
            cycle: Cycle::default(),
            evaluation: Evaluation::Free,
            group: Grouping::default(),
            evaluated: Vec::new(),
            ledger: Ledger::default(),
            record: Record::new(now),
            waits_reported: Reported::new(),
            guard_told: None,
            paused_until: None,
            stopping: None,
            leaving: None,
            has_exited: false,
        }
    }

    /// Takes in one event and appends what is to be done to `effects`, in order. `now` does not go back; if
    /// it does, it is taken as standing still.
    pub fn handle(&mut self, now: Moment, event: Event, effects: &mut Vec<Effect>) {
        if self.has_exited {
            return;
        }
        self.now = self.now.max(now);
        self.ledger.advance(self.now);
        let outcome = if self.leaving.is_some() {
            self.route_leaving(&event, effects);
            Ok(())
        } else {
            self.route(event, effects).and_then(|()| self.step(effects))
        };
        match outcome {
            // Whoever was told to end does not mind.
            Err(_) if self.stopping.is_some() => self.leave_interrupted(effects),
            Err(error) => self.fail(error, effects),
            Ok(()) => self.leave_if_settled(effects),
        }
        let quiet = self.waits_for_work();
        self.asking.quiet_since = quiet.then(|| self.asking.quiet_since.unwrap_or(self.now));
        self.ledger.enter(self.category(), self.now);
    }

    /// The latest moment for the next [`Event::Tick`]; none once the worker has ended.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        if self.has_exited {
            return None;
        }
        if let Some(leaving) = &self.leaving {
            return Some(leaving.deadline);
        }
        let deadline = |session: &Session| session.deadline(&self.settings, self.patience(session));
        let sessions = self.sessions.values().filter_map(deadline);
        sessions.chain(self.wait_deadline()).chain(self.stopping_deadline()).chain(self.paused_until).min()
    }

    /// The worker's id and incarnation, while it is a member.
    #[must_use]
    pub fn member(&self) -> Option<(WorkerId, Incarnation)> {
        self.member.map(|member| (member.worker, member.incarnation))
    }

    /// Iterations the worker has completed.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Whether a batch that was asked for will still be computed with. A batch in memory that is not wanted any more can be
    /// thrown away: if it is ever given again, it is asked for again.
    #[must_use]
    pub fn wants_batch(&self, batch: BatchIndex) -> bool {
        self.asking.holds(batch)
            || self.cycle.iteration.as_ref().is_some_and(|iteration| iteration.batch == batch)
            || self.group.wants(batch.0)
    }

    fn route(&mut self, event: Event, effects: &mut Vec<Effect>) -> Result<(), WorkerError> {
        match event {
            Event::Connected { server } => {
                if let Some(session) = self.sessions.get_mut(&server) {
                    session.connected(self.now);
                }
            }
            Event::ConnectFailed { server, reason, obstacle } => {
                return self.on_connect_failed(server, reason, obstacle, effects);
            }
            Event::Lost { server } => self.on_lost(server, effects),
            Event::Message { server, message } => return self.on_message(server, message, effects),
            Event::ValuesArrived { server, shard, request, served, bytes } => {
                self.heard(server);
                // What comes from where a shard was before is not taken.
                if self.shards.get(&shard).is_some_and(|home| home.server == server) {
                    self.on_values(shard, request, (served, bytes), effects);
                }
            }
            Event::BatchLoaded { batch } => self.on_loaded(batch),
            Event::PartReady { sequence, part, samples } => self.on_part(sequence, part, samples),
            Event::GradientReady { sequence, bad_key, loss, samples, waited_us, packed } => {
                let gradient = Gradient { compute_us: 0, bad_key, loss, samples };
                self.on_gradient(sequence, (gradient, waited_us), packed, effects);
            }
            Event::EvaluationReady { at_samples, loss, accuracy } => {
                self.on_evaluation(at_samples, (loss, accuracy), effects);
            }
            event @ (Event::Met { .. }
            | Event::Measured { .. }
            | Event::StateArrived { .. }
            | Event::StepComputed { .. }
            | Event::Gathered { .. }
            | Event::Reduced { .. }
            | Event::PeerTrouble { .. }
            | Event::PeerRefused { .. }) => return self.on_group_event(event, effects),
            Event::Tick { wire_sent, wire_received } => {
                return self.on_tick(wire_sent, wire_received, effects);
            }
            Event::Interrupt => self.on_interrupt(effects),
            Event::Broken { reason } => return Err(WorkerError::Broken { reason }),
        }
        Ok(())
    }

    /// Once the worker goes, only what ends the waiting for goodbyes matters.
    fn route_leaving(&mut self, event: &Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Message { server, message: ToPeer::Goodbye | ToPeer::Refused(_) }
            | Event::ConnectFailed { server, .. }
            | Event::Lost { server } => self.on_gone(*server, effects),
            Event::Tick { .. } => self.leave_if_late(effects),
            Event::Interrupt => self.on_interrupt(effects),
            _ => {}
        }
    }

    fn on_message(
        &mut self,
        server: ServerId,
        message: ToPeer,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        // A session speaks for the worker only once it is registered; what comes earlier belongs to an older
        // one.
        let is_registered = self.is_registered(server);
        self.heard(server);
        match message {
            ToPeer::Welcome { protocol, server: answered, boot } => {
                self.on_welcome(server, (protocol, answered, boot), effects)
            }
            ToPeer::Joined { worker, incarnation, clock } => {
                self.on_joined(server, worker, incarnation, clock, effects)
            }
            ToPeer::Registered { has_values } => self.on_registered(server, has_values, effects),
            ToPeer::Work(work) if is_registered => self.on_work(server, work, effects),
            ToPeer::Pushed(pushed) if is_registered => self.on_pushed(server, pushed, effects),
            ToPeer::Overtaken { open } if is_registered => {
                if self.owners().contains(&server) {
                    self.on_overtaken(open, effects);
                }
                Ok(())
            }
            ToPeer::Staged { shard, sequence } if is_registered => {
                self.on_staged(server, shard, sequence, effects)
            }
            ToPeer::Placed(places) if is_registered => self.on_placed(server, places, effects),
            ToPeer::Group(group) if is_registered => self.on_group(server, group, effects),
            ToPeer::Regroup { generation } if is_registered => self.on_regroup(server, generation, effects),
            ToPeer::Refused(refusal) => self.on_refused(server, refusal, effects),
            ToPeer::Renewed if is_registered => {
                if let Some(session) = self.sessions.get_mut(&server) {
                    session.renewed();
                }
                self.on_renewed(effects);
                Ok(())
            }
            ToPeer::Work(_)
            | ToPeer::Pushed(_)
            | ToPeer::Renewed
            | ToPeer::Overtaken { .. }
            | ToPeer::Group(_)
            | ToPeer::Regroup { .. }
            | ToPeer::Staged { .. }
            | ToPeer::Placed(_)
            | ToPeer::Cluster(_)
            | ToPeer::Status(_)
            | ToPeer::Goodbye => Ok(()),
        }
    }

    fn on_refused(
        &mut self,
        server: ServerId,
        refusal: Refusal,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        match self.state_of(server) {
            State::Closed | State::Backoff { .. } | State::Connecting => Ok(()),
            State::Greeting | State::Joining | State::Registering | State::Registered => {
                let is_own = self.needs(server);
                match refusal.code {
                    RefusalCode::Fenced if is_own => {
                        self.fence(server, effects);
                        return Ok(());
                    }
                    // A server that was away can have missed what became of its shards, and of the workers.
                    RefusalCode::NotReady | RefusalCode::Fenced => {
                        self.come_again(server, effects);
                        return Ok(());
                    }
                    _ if !self.is_final(server, refusal.code) => {
                        let reason = format!("it refuses this worker: {}", refusal.text.shown());
                        self.turned_away(server, reason, effects);
                        return Ok(());
                    }
                    _ => {}
                }
                self.on_gone(server, effects);
                Err(WorkerError::Refused { server, code: refusal.code, text: refusal.text.shown() })
            }
        }
    }

    fn on_lost(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        let is_needed = self.needs(server);
        let Some(session) = self.sessions.get_mut(&server) else { return };
        if session.is_connected() {
            effects.push(Effect::Notice(Notice::Lost { server }));
            session.retry(&self.settings, self.now, effects);
        } else {
            // It can be lost before it was told to stand: an attempt that failed.
            let reason = ("the connection was lost at once".into(), is_needed);
            session.failed(reason, &self.settings, self.now, effects);
        }
    }

    fn on_tick(&mut self, sent: u64, received: u64, effects: &mut Vec<Effect>) -> Result<(), WorkerError> {
        self.record.wire_totals(sent, received);
        self.paused_until = self.paused_until.filter(|until| self.now < *until);
        for server in self.servers() {
            let patience = self.sessions.get(&server).and_then(|session| self.patience(session));
            if let Some(session) = self.sessions.get_mut(&server) {
                session.tick(&self.settings, patience, self.now, effects)?;
            }
        }
        self.report_waits(effects);
        Ok(())
    }

    /// What the worker's time is spent on now; none before its first work and after its last.
    fn category(&self) -> Option<Category> {
        if !self.has_started || self.leaving.is_some() {
            None
        } else if self.evaluation.is_blocking() {
            Some(Category::Evaluate)
        } else if self.is_grouped() {
            self.group.category()
        } else {
            Some(self.cycle.category())
        }
    }

    /// Sends a control message if the session is registered. If it is not, the message is part of what is
    /// sent when it is.
    pub(crate) fn send(&mut self, server: ServerId, message: ToServer, effects: &mut Vec<Effect>) {
        if let Some(session) = self.sessions.get_mut(&server)
            && session.is_registered()
        {
            session.send(message, self.now, effects);
        }
    }

    /// How long a server is looked for: without end where the worker can do without it, and where it was registered before. Whether the
    /// run can go on without that server's shards is known to the coordinator; if that cannot be reached either, nobody knows.
    fn patience(&self, session: &Session) -> Option<Duration> {
        let is_new = !session.was_registered() && self.needs(session.server);
        (is_new || session.server == self.settings.coordinator).then_some(self.settings.connect_timeout)
    }

    /// A server will not have the worker yet.
    pub(crate) fn come_again(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        if let Some(session) = self.sessions.get_mut(&server) {
            session.come_again(&self.settings, self.now, effects);
        }
    }

    fn heard(&mut self, server: ServerId) {
        if let Some(session) = self.sessions.get_mut(&server) {
            session.heard(self.now);
        }
    }

    /// Whether the session with a server speaks for this worker.
    pub(crate) fn is_registered(&self, server: ServerId) -> bool {
        self.sessions.get(&server).is_some_and(Session::is_registered)
    }

    pub(crate) fn state_of(&self, server: ServerId) -> State {
        self.sessions.get(&server).map_or(State::Closed, |session| session.state)
    }

    /// The servers that the worker has to do with.
    pub(crate) fn servers(&self) -> Vec<ServerId> {
        self.sessions.keys().copied().collect()
    }

    /// A server has shown that it knows the worker's entry.
    pub(crate) fn heard_entered(&mut self, server: ServerId) {
        if let Some(session) = self.sessions.get_mut(&server) {
            session.entering = None;
        }
    }
}
