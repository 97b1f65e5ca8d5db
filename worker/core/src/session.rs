//! The connection with one server: reaching it, losing it, keeping it alive.

use std::time::Duration;

use slackline_core::config::timers::{RENEWALS, RETRIES};
use slackline_core::ids::{Clock, Moment, ServerId};
use slackline_core::wire::{PROTOCOL, ToServer};

use crate::effect::Effect;
use crate::error::WorkerError;
use crate::notice::Notice;
use crate::settings::Settings;

/// From the first attempt to connect to the second; it doubles from there.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// The longest time from one attempt to the next.
const RETRY_LONGEST: Duration = Duration::from_secs(2);

/// How far a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not wanted yet, or not any more.
    Closed,
    /// The next attempt to connect is made then.
    Backoff { until: Moment },
    /// Waiting for the shell to connect.
    Connecting,
    /// Waiting for the server's first message.
    Greeting,
    /// Waiting to be let in; only with the coordinator.
    Joining,
    /// Waiting to be registered.
    Registering,
    /// The session speaks for this worker.
    Registered,
}

/// One server as the worker sees it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) server: ServerId,
    pub(crate) state: State,
    /// When `state` was entered; while the server is not reached, when that began.
    pub(crate) since: Moment,
    /// The process that the worker has registered with last.
    boot: Option<u64>,
    /// The process that greeted last.
    greeted_by: Option<u64>,
    /// From the beginning of the last attempt to that of the next at least; zero if it is to be made at once.
    delay: Duration,
    /// When the last attempt began.
    pub(crate) tried: Moment,
    /// When the last control message went out. Transfers do not count: a slow one is heard only when it is
    /// complete.
    last_sent: Moment,
    /// When anything came from the server, or the connection was made.
    last_heard: Moment,
    /// When the last renewal went out.
    last_renewed: Moment,
    /// Renewals sent, and those of them that are answered.
    renewals: (u64, u64),
    /// Registrations that were sent over a session that was registered already, and are not answered.
    pub(crate) registrations: u32,
    /// Since when the server answers that it is not ready.
    pub(crate) unready: Option<Moment>,
    /// Since when it has had no values where there must be some.
    pub(crate) empty: Option<Moment>,
    last_failure: String,
    /// When that failure was told.
    failure_told: Option<Moment>,
    /// The coordinator was asked whether this server or the worker is wrong.
    is_doubted: bool,
    /// An `Enter` that the server has not shown to know: it is sent again after a loss.
    pub(crate) entering: Option<Clock>,
    /// A pull has gone out by a message since the server registered the worker.
    pub(crate) has_pulled: bool,
}

impl Session {
    pub(crate) fn new(server: ServerId, now: Moment) -> Self {
        Self {
            server,
            state: State::Closed,
            since: now,
            boot: None,
            greeted_by: None,
            delay: Duration::ZERO,
            tried: now,
            last_sent: now,
            last_heard: now,
            last_renewed: now,
            renewals: (0, 0),
            registrations: 0,
            unready: None,
            empty: None,
            last_failure: "no answer".into(),
            failure_told: None,
            is_doubted: false,
            entering: None,
            has_pulled: false,
        }
    }

    /// Whether the session may carry messages of the cycle.
    pub(crate) fn is_registered(&self) -> bool {
        self.state == State::Registered
    }

    /// Whether there is a connection.
    pub(crate) const fn is_connected(&self) -> bool {
        matches!(self.state, State::Greeting | State::Joining | State::Registering | State::Registered)
    }

    /// Whether the server is looked for.
    pub(crate) const fn is_searching(&self) -> bool {
        matches!(self.state, State::Backoff { .. } | State::Connecting | State::Greeting)
    }

    fn turn(&mut self, state: State, now: Moment) {
        (self.state, self.since) = (state, now);
    }

    /// Sends a control message. The caller knows that there is a connection.
    pub(crate) fn send(&mut self, message: ToServer, now: Moment, effects: &mut Vec<Effect>) {
        self.last_sent = now;
        effects.push(Effect::Send { server: self.server, message });
    }

    /// The server is wanted: the first attempt to connect is made with the next tick at the latest.
    pub(crate) fn want(&mut self, now: Moment) {
        if self.state == State::Closed {
            self.turn(State::Backoff { until: now }, now);
        }
    }

    /// Makes another attempt: at once when the session had been good, else when a growing time has passed since the last one began. One that
    /// waited in vain for an answer has waited long enough.
    pub(crate) fn retry(&mut self, settings: &Settings, now: Moment, effects: &mut Vec<Effect>) {
        let since = if self.is_searching() { self.since } else { now };
        let wait = self.delay;
        // A server that comes back within a lease should be found within it.
        let longest = RETRY_LONGEST.min(settings.lease / RETRIES).max(RETRY_FIRST);
        self.delay = (wait * 2).clamp(RETRY_FIRST, longest);
        self.turn(State::Backoff { until: now.max(self.tried.after(wait)) }, since);
        self.connect_if_due(now, effects);
    }

    /// Connects when the wait before the next attempt is over.
    pub(crate) fn connect_if_due(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if let State::Backoff { until } = self.state
            && until <= now
        {
            self.delay = self.delay.max(RETRY_FIRST);
            self.tried = now;
            self.state = State::Connecting;
            effects.push(Effect::Connect { server: self.server });
        }
    }

    /// Closes the session from this side.
    pub(crate) fn close(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if self.is_connected() || self.state == State::Connecting {
            effects.push(Effect::Disconnect { server: self.server });
        }
        self.turn(State::Closed, now);
        (self.entering, self.unready, self.empty) = (None, None, None);
    }

    /// The connection stands; the server speaks first.
    pub(crate) fn connected(&mut self, now: Moment) {
        if self.state == State::Connecting {
            self.state = State::Greeting;
            self.last_heard = now;
            // What the connection before still owed will not come.
            self.renewals.0 = self.renewals.1;
        }
    }

    /// Something came from the server.
    pub(crate) const fn heard(&mut self, now: Moment) {
        self.last_heard = now;
    }

    /// A renewal was answered.
    pub(crate) fn renewed(&mut self) {
        self.renewals.1 = (self.renewals.1 + 1).min(self.renewals.0);
    }

    /// Marks a message that is sent now, for [`Self::has_heard`].
    pub(crate) const fn mark(&self) -> u64 {
        self.renewals.0
    }

    /// Whether the server has heard what was sent at a mark: it answers in order, and has answered a renewal that was sent later.
    pub(crate) const fn has_heard(&self, mark: u64) -> bool {
        self.renewals.1 > mark
    }

    /// An attempt failed. The same failure is told again only when some time has passed, and of a server that is not needed never.
    pub(crate) fn failed(
        &mut self,
        (reason, is_needed): (String, bool),
        settings: &Settings,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        if self.state == State::Connecting {
            self.tell_failure((reason, is_needed), settings, now, effects);
            self.retry(settings, now, effects);
        }
    }

    fn tell_failure(
        &mut self,
        (reason, is_needed): (String, bool),
        settings: &Settings,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let told = self.failure_told.filter(|_| self.last_failure == reason);
        if told.is_none_or(|told| is_needed && now.since(told) >= settings.wait_report) {
            self.failure_told = Some(now);
            self.last_failure.clone_from(&reason);
            effects.push(Effect::Notice(Notice::ConnectFailed { server: self.server, reason }));
        }
    }

    /// The server answers, and will not have the worker as things are: it is asked again, never without a pause, and the user hears why.
    pub(crate) fn turned_away(
        &mut self,
        failure: (String, bool),
        settings: &Settings,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_connected() {
            self.tell_failure(failure, settings, now, effects);
            self.delay = self.delay.max(RETRY_FIRST);
            self.come_again(settings, now, effects);
        }
    }

    /// The server answers, and will not have the worker yet: it is asked again, without a word to the user.
    pub(crate) fn come_again(&mut self, settings: &Settings, now: Moment, effects: &mut Vec<Effect>) {
        if self.is_connected() {
            self.unready.get_or_insert(now);
            effects.push(Effect::Disconnect { server: self.server });
            self.retry(settings, now, effects);
        }
    }

    /// Makes the connection anew, if there is one.
    pub(crate) fn reconnect(&mut self, settings: &Settings, now: Moment, effects: &mut Vec<Effect>) {
        if self.is_connected() {
            effects.push(Effect::Disconnect { server: self.server });
            self.retry(settings, now, effects);
        }
    }

    /// Notes that the server may be wrong. Returns whether that is news since the worker was last registered there.
    pub(crate) const fn doubt(&mut self) -> bool {
        !std::mem::replace(&mut self.is_doubted, true)
    }

    /// Whether the worker has ever been registered there.
    pub(crate) const fn was_registered(&self) -> bool {
        self.boot.is_some()
    }

    /// Time since anything came from the server.
    pub(crate) const fn silence(&self, now: Moment) -> Duration {
        now.since(self.last_heard)
    }

    /// Checks the server's first message. Returns whether it is another process than the worker was registered with.
    pub(crate) fn welcome(
        &mut self,
        protocol: u32,
        answered: ServerId,
        boot: u64,
    ) -> Result<bool, WorkerError> {
        let server = self.server;
        if protocol != PROTOCOL {
            return Err(WorkerError::Protocol { server, theirs: protocol });
        }
        if answered != server {
            return Err(WorkerError::WrongServer { server, answered });
        }
        self.greeted_by = Some(boot);
        Ok(self.boot.is_some_and(|before| before != boot))
    }

    /// The join was sent.
    pub(crate) fn joining(&mut self, now: Moment) {
        self.turn(State::Joining, now);
    }

    /// The registration was sent.
    pub(crate) fn registering(&mut self, now: Moment) {
        self.turn(State::Registering, now);
    }

    /// The server has registered the worker. Returns whether it had been registered there before.
    pub(crate) fn registered(&mut self, now: Moment) -> bool {
        self.turn(State::Registered, now);
        (self.unready, self.empty, self.registrations) = (None, None, 0);
        (self.last_renewed, self.failure_told, self.is_doubted) = (now, None, false);
        self.has_pulled = false;
        self.delay = Duration::ZERO;
        self.boot.replace(self.greeted_by.unwrap_or_default()).is_some()
    }

    /// What time brings: an attempt, the end of patience (where it has one), a sign of life.
    pub(crate) fn tick(
        &mut self,
        settings: &Settings,
        patience: Option<Duration>,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        self.connect_if_due(now, effects);
        if self.is_searching() && patience.is_some_and(|patience| now.since(self.since) >= patience) {
            return Err(WorkerError::Unreachable {
                server: self.server,
                waited: now.since(self.since),
                reason: self.last_failure.clone(),
            });
        }
        if self.awaits_answers() && now.since(self.last_heard) >= settings.lease {
            self.give_up(settings, now, effects);
        } else if self.is_registered() && self.renewal_due(settings) <= now {
            self.renew(now, effects);
        }
        Ok(())
    }

    /// Sends a sign of life, whose answer is one as well.
    pub(crate) fn renew(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        self.last_renewed = now;
        self.renewals.0 += 1;
        self.send(ToServer::Renew, now, effects);
    }

    /// Whether a server that lives must say something within a lease.
    const fn awaits_answers(&self) -> bool {
        matches!(self.state, State::Joining | State::Registering | State::Registered)
    }

    /// A renewal goes out when the server has not heard the worker, and also when the worker has not heard the server: its answer
    /// is then the only sign of life.
    fn renewal_due(&self, settings: &Settings) -> Moment {
        self.last_sent.min(self.last_heard.max(self.last_renewed)).after(settings.lease / RENEWALS)
    }

    /// The connection seems to stand, but the transport can take very long to learn that it does not: after a process was stopped
    /// for a while it reckons with a round trip as long as that.
    fn give_up(&mut self, settings: &Settings, now: Moment, effects: &mut Vec<Effect>) {
        let (server, silent) = (self.server, now.since(self.last_heard));
        effects.push(Effect::Notice(Notice::Silent { server, silent }));
        self.reconnect(settings, now, effects);
    }

    /// When the next tick is needed.
    pub(crate) fn deadline(&self, settings: &Settings, patience: Option<Duration>) -> Option<Moment> {
        let patience = patience.map(|patience| self.since.after(patience));
        match self.state {
            State::Closed => None,
            State::Joining | State::Registering => Some(self.last_heard.after(settings.lease)),
            State::Backoff { until } => Some(patience.map_or(until, |patience| until.min(patience))),
            State::Connecting | State::Greeting => patience,
            State::Registered => Some(self.renewal_due(settings).min(self.last_heard.after(settings.lease))),
        }
    }
}
