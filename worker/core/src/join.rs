//! Becoming a member: greeting, join, registration; and the same again after a loss or when the lease ran
//! out.

use slackline_core::ids::{Clock, Incarnation, KeyRange, ServerId, ShardId, WorkerId};
use slackline_core::wire::{Join, Register, Text, ToServer, TransferHeader, TransferKind};

use crate::effect::Effect;
use crate::error::WorkerError;
use crate::notice::Notice;
use crate::session::State;
use crate::worker::{Member, Worker};

/// A clock above this is no count of iterations, and adding to it could overflow.
pub(crate) const CLOCK_MAX: u64 = 1 << 62;

impl Worker {
    /// A server has greeted: join there if this is still to be done, register otherwise.
    pub(crate) fn on_welcome(
        &mut self,
        server: ServerId,
        (protocol, answered, boot): (u32, ServerId, u64),
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&server) else { return Ok(()) };
        if session.state != State::Greeting {
            return Ok(());
        }
        let is_other = match session.welcome(protocol, answered, boot) {
            Ok(is_other) => is_other,
            Err(error) if self.is_indispensable(server) => return Err(error),
            Err(error) => {
                self.turned_away(server, error.to_string(), effects);
                return Ok(());
            }
        };
        if is_other && self.member.is_some() {
            effects.push(Effect::Notice(Notice::Restarted { server }));
            self.reopen_shards_on(server);
        }
        let Some(session) = self.sessions.get_mut(&server) else { return Ok(()) };
        if self.member.is_some() {
            self.register(server, effects);
        } else if server == self.settings.coordinator {
            let join = Join {
                layout_hash: self.settings.layout.hash(),
                config_hash: self.settings.config_hash,
                data_hash: self.settings.data_hash,
                sample_count: self.settings.sample_count,
                former: self.former,
                peers_at: self.settings.group.as_ref().map(|group| Text::new(&*group.peers_at)),
            };
            session.joining(now);
            session.send(ToServer::Join(join), now, effects);
        }
        Ok(())
    }

    /// The coordinator has let the worker in: register with it and look for the other servers.
    pub(crate) fn on_joined(
        &mut self,
        server: ServerId,
        worker: WorkerId,
        incarnation: Incarnation,
        clock: Clock,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        if self.state_of(server) != State::Joining {
            return Ok(());
        }
        self.member = Some(Member { worker, incarnation });
        self.former = None;
        if !self.is_grouped() {
            // In an allreduce the clock belongs to the values, which the worker has itself.
            self.clock = Clock(0);
            self.adopt(server, clock)?;
        }
        let clock = self.clock;
        effects.push(Effect::Notice(Notice::Joined { worker, incarnation, clock }));
        self.register(self.settings.coordinator, effects);
        let now = self.now;
        for (other, session) in &mut self.sessions {
            if *other != self.settings.coordinator {
                session.want(now);
                session.connect_if_due(now, effects);
            }
        }
        Ok(())
    }

    /// What the worker says of itself to every server.
    pub(crate) fn registration(&self) -> Register {
        let member = self.member.unwrap_or_default();
        Register {
            worker: member.worker,
            incarnation: member.incarnation,
            layout_hash: self.settings.layout.hash(),
            config_hash: self.settings.config_hash,
            // A push without an answer is of an earlier clock, and a shard that was restored can still need it.
            clock: self.cycle.pushing.as_ref().map_or(self.clock, |pushing| pushing.clock),
            batch_count: self.settings.batch_count,
            answered: self.answered(),
        }
    }

    fn register(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        if self.member.is_none() {
            return;
        }
        let (now, register) = (self.now, self.registration());
        if let Some(session) = self.sessions.get_mut(&server) {
            session.registering(now);
            session.send(ToServer::Register(register), now, effects);
        }
    }

    /// A server has registered the worker. What this server has not answered is sent, in the order in which
    /// it needs it.
    pub(crate) fn on_registered(
        &mut self,
        server: ServerId,
        has_values: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let (now, clock) = (self.now, self.clock);
        let has_shards = !self.shards_on(server).is_empty();
        let Some(session) = self.sessions.get_mut(&server) else { return Ok(()) };
        let is_again = session.is_registered();
        if !is_again && session.state != State::Registering {
            return Ok(());
        }
        if !has_values && clock > Clock(0) && has_shards {
            // Whoever enters above zero enters a run in which every shard has been read and changed. The coordinator has the state
            // restored, or fails the run.
            let since = *session.empty.get_or_insert(now);
            if now.since(since) >= self.settings.connect_timeout {
                return Err(WorkerError::Restarted { server });
            }
            self.come_again(server, effects);
            return Ok(());
        }
        if is_again {
            session.registrations = session.registrations.saturating_sub(1);
            if session.registrations == 0 {
                if !has_values {
                    self.send_initial(server, effects);
                }
                let arrived = self.settle_arrivals(server);
                self.resume(server, &arrived, effects);
            }
            return Ok(());
        }
        if session.registered(now) && (self.asking.has_begun() || self.group.is_present()) {
            effects.push(Effect::Notice(Notice::Resumed { server }));
        }
        if !has_values {
            self.send_initial(server, effects);
        }
        if self.is_grouped() {
            self.resume_group(effects);
            return Ok(());
        }
        self.settle_arrivals(server);
        let shards = self.shards_on(server);
        self.resume(server, &shards, effects);
        if server == self.settings.coordinator {
            self.resume_evaluated(effects);
            self.resume_asking(effects);
        }
        self.begin_asking(effects);
        Ok(())
    }

    /// The first work is asked for when every server that the worker needs has registered it.
    pub(crate) fn begin_asking(&mut self, effects: &mut Vec<Effect>) {
        let is_ready = self.is_registered(self.settings.coordinator)
            && self.owners().into_iter().all(|server| self.is_registered(server));
        if is_ready && !self.asking.has_begun() && !self.is_grouped() {
            self.ask(self.clock, effects);
        }
    }

    fn send_initial(&self, server: ServerId, effects: &mut Vec<Effect>) {
        for (shard, home) in self.shards.iter().filter(|(_, home)| home.server == server) {
            let header = self.header(TransferKind::Initial, *shard, home.keys);
            effects.push(Effect::SendInitial { server, header });
        }
    }

    /// A header of one stripe with the facts that every transfer of this worker has.
    pub(crate) fn header(&self, kind: TransferKind, shard: ShardId, keys: KeyRange) -> TransferHeader {
        let member = self.member.unwrap_or_default();
        TransferHeader {
            worker: member.worker,
            incarnation: member.incarnation,
            ..TransferHeader::plain(kind, shard, keys)
        }
    }

    /// Registering puts a worker into the clock table; if it has no work, it goes out again. An `Enter` that
    /// was perhaps not heard is repeated.
    pub(crate) fn resume_standing(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        let entering = self.sessions.get(&server).and_then(|session| session.entering);
        if self.finished {
            self.send(server, ToServer::Finish, effects);
        } else if let Some(clock) = entering {
            self.send(server, ToServer::Enter { clock }, effects);
        }
    }

    /// Takes over a clock that a server tells of, if it is above the own.
    pub(crate) fn adopt(&mut self, server: ServerId, clock: Clock) -> Result<(), WorkerError> {
        if clock.0 > CLOCK_MAX {
            return Err(WorkerError::OutOfPlace { server, what: "a clock beyond all bounds" });
        }
        if clock > self.clock {
            self.clock = clock;
            // It would be used at another clock than it was gated for.
            self.cycle.prefetch = None;
        }
        Ok(())
    }

    /// Back into the clock table of every shard, after having had no work.
    pub(crate) fn enter(
        &mut self,
        clock: Option<Clock>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        if let Some(clock) = clock {
            // This one counts even if it is lower: the others have perhaps not come so far yet.
            self.clock = Clock(0);
            self.adopt(self.settings.coordinator, clock)?;
        }
        self.finished = false;
        self.cycle.entered_after = self.cycle.sequence;
        let (clock, now) = (self.clock, self.now);
        let owners = self.owners();
        for (server, session) in &mut self.sessions {
            // A server that has nothing of this worker never shows that it has heard.
            session.entering =
                (*server == self.settings.coordinator || owners.contains(server)).then_some(clock);
            if session.is_registered() {
                session.send(ToServer::Enter { clock }, now, effects);
            }
        }
        Ok(())
    }

    /// The lease ran out. The coordinator has given the work to others; all of it is forgotten here, and the
    /// worker joins again under its old id.
    pub(crate) fn fence(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        effects.push(Effect::Notice(Notice::Fenced { server }));
        // If the old id itself is not accepted any more, the worker comes as a new one.
        self.former = self.member.take().map(|member| (member.worker, member.incarnation));
        self.recover_reports();
        self.forget_cycle(effects);
        self.forget_group(effects);
        self.forget_evaluation();
        self.asking.forget();
        self.finished = false;
        let now = self.now;
        for session in self.sessions.values_mut() {
            session.close(now, effects);
        }
        if let Some(coordinator) = self.sessions.get_mut(&self.settings.coordinator) {
            coordinator.retry(&self.settings, now, effects);
        }
    }
}
