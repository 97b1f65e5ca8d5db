//! Going: because the work is done, because of a signal, or because of an error.

use std::collections::BTreeSet;
use std::time::Duration;

use slackline_core::ids::{Moment, ServerId};
use slackline_core::wire::{Leave, Outcome, Text, ToServer};

use crate::effect::Effect;
use crate::error::WorkerError;
use crate::session::State;
use crate::worker::Worker;

/// How long the answers to a step are waited for by a worker that was told to end. Whoever starts workers gives them five seconds.
const STEP_WAIT: Duration = Duration::from_millis(2500);

/// How long the servers' goodbyes are waited for, and the answers of a server that is away.
const GOODBYE_WAIT: Duration = Duration::from_secs(2);

/// The worker has said that it goes.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    pub(crate) deadline: Moment,
    outcome: Outcome,
    /// They hear it once the coordinator has: what a server says of a worker that left must not overtake what the worker itself says of its
    /// last batches, or those are done again by others.
    untold: BTreeSet<ServerId>,
    awaited: BTreeSet<ServerId>,
    result: Result<(), WorkerError>,
}

impl Worker {
    /// The run is over.
    pub(crate) fn leave_done(&mut self, effects: &mut Vec<Effect>) {
        self.leave(Outcome::Done, Ok(()), effects);
    }

    /// A signal came. The step that is on its way is completed first, so that its batch is not done again by others. At the second signal
    /// nothing is waited for any more.
    pub(crate) fn on_interrupt(&mut self, effects: &mut Vec<Effect>) {
        if self.leaving.is_some() {
            self.exit(effects);
        } else if self.stopping.is_some() {
            self.leave_interrupted(effects);
            self.exit(effects);
        } else {
            self.stopping = Some(self.now);
        }
    }

    /// When a worker that was told to end does not wait for its step any longer.
    pub(crate) fn stopping_deadline(&self) -> Option<Moment> {
        let since = self.stopping?;
        let pushing = self.cycle.pushing.as_ref()?;
        let is_there = pushing.unanswered.iter().all(|shard| self.ready_server_of(*shard).is_some());
        Some(since.after(if is_there { STEP_WAIT } else { GOODBYE_WAIT }))
    }

    /// Whoever was told to end goes as soon as its step is complete, or cannot be.
    pub(crate) fn leave_if_settled(&mut self, effects: &mut Vec<Effect>) {
        if self.leaving.is_none()
            && self.stopping.is_some()
            && self.stopping_deadline().is_none_or(|deadline| deadline <= self.now)
        {
            self.leave_interrupted(effects);
        }
    }

    /// Goes because of a signal; what the coordinator has not been told of the last batch is said before.
    pub(crate) fn leave_interrupted(&mut self, effects: &mut Vec<Effect>) {
        if self.leaving.is_some() {
            return;
        }
        if self.asking.has_result() && self.is_registered(self.settings.coordinator) {
            self.ask(self.clock, effects);
        }
        let unfinished =
            self.cycle.pushing.as_ref().map(|pushing| Outcome::Unfinished { batch: pushing.batch });
        self.leave(unfinished.unwrap_or(Outcome::Interrupted), Ok(()), effects);
    }

    /// Gives up, and says why.
    pub(crate) fn fail(&mut self, error: WorkerError, effects: &mut Vec<Effect>) {
        if self.leaving.is_none() {
            let text = Text::new(error.to_string());
            let outcome = match error {
                WorkerError::BadGradient { .. }
                | WorkerError::BadSum { .. }
                | WorkerError::BeyondNorm { .. } => Outcome::BadGradient(text),
                _ => Outcome::Failed(text),
            };
            self.leave(outcome, Err(error), effects);
        }
    }

    fn leave(&mut self, outcome: Outcome, result: Result<(), WorkerError>, effects: &mut Vec<Effect>) {
        let now = self.now;
        if outcome != Outcome::Done {
            self.dissolve(effects);
        }
        self.say_all_words(effects);
        let registered = self.sessions.iter().filter(|(_, session)| session.is_registered());
        let awaited: BTreeSet<ServerId> = registered.map(|(server, _)| *server).collect();
        let (mut untold, is_done) = (awaited.clone(), awaited.is_empty());
        let coordinator = self.settings.coordinator;
        if untold.remove(&coordinator) {
            // Only one server may count what has happened since the last report.
            let report = Some(self.record.take(now, self.ledger.take()));
            self.say_leave(coordinator, Leave { outcome: outcome.clone(), report }, effects);
        }
        let deadline = now.after(GOODBYE_WAIT);
        let waits = awaited.contains(&coordinator);
        self.leaving = Some(Leaving { deadline, outcome, untold, awaited, result });
        if !waits {
            self.tell_others(effects);
        }
        if is_done {
            self.exit(effects);
        }
    }

    fn say_leave(&mut self, server: ServerId, leave: Leave, effects: &mut Vec<Effect>) {
        if let Some(session) = self.sessions.get_mut(&server).filter(|session| session.is_registered()) {
            session.send(ToServer::Leave(leave), self.now, effects);
        }
    }

    /// The coordinator knows that the worker goes, or cannot be told: the other servers hear it.
    fn tell_others(&mut self, effects: &mut Vec<Effect>) {
        let Some(leaving) = &mut self.leaving else { return };
        let outcome = leaving.outcome.clone();
        for server in std::mem::take(&mut leaving.untold) {
            self.say_leave(server, Leave { outcome: outcome.clone(), report: None }, effects);
        }
    }

    /// A server has said goodbye, or will never say it.
    pub(crate) fn on_gone(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        if let Some(session) = self.sessions.get_mut(&server) {
            session.state = State::Closed;
        }
        if server == self.settings.coordinator {
            self.tell_others(effects);
        }
        if let Some(leaving) = &mut self.leaving {
            leaving.awaited.remove(&server);
            if leaving.awaited.is_empty() {
                self.exit(effects);
            }
        }
    }

    /// Whether the time for goodbyes is over.
    pub(crate) fn leave_if_late(&mut self, effects: &mut Vec<Effect>) {
        if self.leaving.as_ref().is_some_and(|leaving| leaving.deadline <= self.now) {
            self.exit(effects);
        }
    }

    fn exit(&mut self, effects: &mut Vec<Effect>) {
        self.tell_others(effects);
        if let Some(leaving) = &self.leaving
            && !self.has_exited
        {
            self.has_exited = true;
            effects.push(Effect::Exit(leaving.result.clone()));
        }
    }
}
