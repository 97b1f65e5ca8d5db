//! What a worker tells the coordinator of an allreduce on its way, so that each report counts exactly once.
//!
//! One word at a time is without an answer; a renewal goes after it, whose answer shows that it was heard. A word that is repeated
//! after a loss is then the last that the coordinator has perhaps heard, and it knows it again by its being equal.

use std::collections::VecDeque;

use slackline_core::ids::{Clock, Generation, Moment};
use slackline_core::wire::{Evaluated, Report, Stepped, ToServer};

use super::Stage;
use crate::effect::Effect;
use crate::worker::Worker;

/// In how many parts an epoch is told of at least, where the coordinator's answers come fast enough.
const PARTS_OF_EPOCH: u64 = 10;

/// A message with a report.
#[derive(Clone, Debug)]
enum Word {
    Stepped(Stepped),
    Evaluated(Evaluated),
}

impl Word {
    fn message(&self) -> ToServer {
        match self {
            Self::Stepped(stepped) => ToServer::Stepped(stepped.clone()),
            Self::Evaluated(evaluated) => ToServer::Evaluated(evaluated.clone()),
        }
    }

    fn into_report(self) -> Option<Report> {
        match self {
            Self::Stepped(stepped) => stepped.report,
            Self::Evaluated(evaluated) => evaluated.report,
        }
    }
}

/// The words that the coordinator has perhaps not heard.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    waiting: VecDeque<Word>,
    /// Renewals that had gone to the coordinator before the first of them.
    mark: u64,
    /// What the last word about progress said.
    told: Option<(Generation, Clock)>,
    told_at: Moment,
    /// An evaluation begins: the figures beside it should not be older.
    is_wanted: bool,
}

impl Words {
    /// The next iteration is told of, however soon.
    pub(super) const fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Whether all is known to be heard.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Worker {
    /// Tells how far the worker is, if that is due.
    pub(super) fn tell_progress(&mut self, effects: &mut Vec<Effect>) {
        let (Some(settings), Some(present)) = (&self.settings.group, &self.group.present) else { return };
        let words = &self.group.words;
        let (generation, clock) = (present.group.generation, self.clock);
        let is_new = match present.stage {
            Stage::Over => words.told != Some((generation, clock)),
            Stage::Running => words.told.is_none_or(|(_, told)| told < clock) && clock > present.group.clock,
            Stage::Meeting | Stage::Probing | Stage::Measured | Stage::Fetching => false,
        };
        let is_due = words.is_wanted
            || self.has_much_to_tell(present.group.members.len() as u64)
            || present.stage == Stage::Over
            || self.now.since(words.told_at) >= settings.step_report;
        if !is_new || !is_due || !words.is_empty() {
            return;
        }
        let report = Some(self.record.take(self.now, self.ledger.take()));
        let words = &mut self.group.words;
        (words.told, words.told_at, words.is_wanted) = (Some((generation, clock)), self.now, false);
        let stepped = Stepped { generation, clock, units: self.group.units, report };
        self.tell(Word::Stepped(stepped), effects);
    }

    /// Whether what the members of the group have done since the last word is more than a tenth of an epoch. The mean loss over the last
    /// epoch is made of whole reports.
    fn has_much_to_tell(&self, members: u64) -> bool {
        let samples = self.record.samples().saturating_mul(members);
        samples.saturating_mul(PARTS_OF_EPOCH) > self.settings.sample_count
    }

    /// Tells the result of an evaluation.
    pub(crate) fn tell_evaluated(&mut self, evaluated: Evaluated, effects: &mut Vec<Effect>) {
        self.tell(Word::Evaluated(evaluated), effects);
    }

    fn tell(&mut self, word: Word, effects: &mut Vec<Effect>) {
        self.group.words.waiting.push_back(word);
        if self.group.words.waiting.len() == 1 {
            self.say_word(effects);
        }
    }

    /// Says the first word, if there is one and the session stands.
    pub(super) fn say_word(&mut self, effects: &mut Vec<Effect>) {
        let Some(word) = self.group.words.waiting.front() else { return };
        let Some(session) =
            self.sessions.get_mut(&self.settings.coordinator).filter(|session| session.is_registered())
        else {
            return;
        };
        self.group.words.mark = session.mark();
        session.send(word.message(), self.now, effects);
        session.renew(self.now, effects);
    }

    /// The coordinator has answered a renewal.
    pub(crate) fn on_renewed(&mut self, effects: &mut Vec<Effect>) {
        if self.has_heard_word() {
            self.group.words.waiting.pop_front();
            self.say_word(effects);
        }
    }

    fn has_heard_word(&self) -> bool {
        let words = &self.group.words;
        let session = self.sessions.get(&self.settings.coordinator);
        !words.is_empty() && session.is_some_and(|session| session.has_heard(words.mark))
    }

    /// Takes back the reports that were perhaps never heard.
    pub(super) fn recover_words(&mut self) {
        if self.has_heard_word() {
            self.group.words.waiting.pop_front();
        }
        for word in std::mem::take(&mut self.group.words.waiting) {
            word.into_report().iter().for_each(|report| self.record.recover(report));
        }
    }

    /// The worker goes: what was not said yet is said now. The first word is on its way already.
    pub(crate) fn say_all_words(&mut self, effects: &mut Vec<Effect>) {
        let words = std::mem::take(&mut self.group.words.waiting);
        if self.is_registered(self.settings.coordinator) {
            for word in words.iter().skip(1) {
                self.send(self.settings.coordinator, word.message(), effects);
            }
        }
    }
}
