//! What goes wrong while the storm lasts.

use crate::agenda::Happening;
use crate::process::Life;
use crate::scenario::Weather;
use crate::world::{Verdict, World};

/// Processes that one world may see; a bound on its length, not on the cores.
const PROCESSES_MAX: usize = 14;

impl World {
    /// The next thing that goes wrong.
    pub(crate) fn mishap(&mut self) -> Verdict {
        if self.weather.mishap_pause == 0 || self.end.is_some() {
            return Ok(());
        }
        let when = self.now.after(self.chance.micros(50_000, self.weather.mishap_pause));
        self.agenda.at(when, Happening::Mishap);
        let running = self.running();
        let Some(process) = self.chance.pick(&running) else { return Ok(()) };
        let kinds = if self.weather.processes_fail { 12 } else { 5 };
        // Before something is done, nothing shows which of two that do not meet is to blame.
        let has_done = self.control.record().is_some_and(|record| record.progress(self.now).samples > 0);
        let takes_others = self.scenario.elastic && has_done && self.processes.len() < PROCESSES_MAX;
        match self.chance.between(0, kinds) {
            0..=2 => self.cut_one(),
            3 | 4 => self.part_from_one(process),
            5 => self.cut_all_of(process),
            6 | 7 => self.crash(process),
            8 | 9 => self.freeze(process),
            10 if self.processes.len() < PROCESSES_MAX => return self.start_process(),
            11 if takes_others => {
                self.trace.line(self.now, format_args!("! one starts that meets nobody"));
                return self.start_unreachable();
            }
            _ => {
                self.replace(700);
                return self.interrupt(process);
            }
        }
        Ok(())
    }

    fn cut_one(&mut self) {
        let live = |(_, link): &(usize, &crate::link::Link)| link.is_live();
        let live: Vec<usize> = self.links.iter().enumerate().filter(live).map(|(index, _)| index).collect();
        if let Some(link) = self.chance.pick(&live) {
            self.trace.line(self.now, format_args!("! link {link} is cut"));
            self.cut_link(link);
        }
    }

    /// A worker and one other lose each other: both learn it some time later, if the group lasts so long.
    fn part_from_one(&mut self, process: usize) {
        let Some(form) = &self.processes[process].form else { return };
        let (generation, others) = (form.group.generation, form.others.iter().copied().collect::<Vec<_>>());
        let Some(other) = self.chance.pick(&others) else { return };
        self.trace.line(self.now, format_args!("! processes {process} and {other} lose each other"));
        self.lose_each_other(process, other, generation);
    }

    fn lose_each_other(&mut self, process: usize, other: usize, generation: slackline_core::ids::Generation) {
        let lease = self.scenario.lease.as_micros() as u64;
        self.cut_peers(process, other, generation);
        for (one, lost) in [(process, other), (other, process)] {
            let when = self.now.after(self.chance.micros(0, lease));
            self.agenda.at(when, Happening::PeerLost { process: one, other: lost, generation });
        }
    }

    fn part_from_all(&mut self, process: usize) {
        let Some(form) = &self.processes[process].form else { return };
        let generation = form.group.generation;
        for other in form.others.clone() {
            self.lose_each_other(process, other, generation);
        }
    }

    fn cut_all_of(&mut self, process: usize) {
        self.trace.line(self.now, format_args!("! process {process} loses its network"));
        if let Some(link) = self.processes[process].link {
            self.cut_link(link);
        }
        self.part_from_all(process);
    }

    /// A process is gone without a word.
    pub(crate) fn crash(&mut self, process: usize) {
        self.trace.line(self.now, format_args!("! process {process} crashes"));
        self.part_from_all(process);
        self.processes[process].life = Life::Crashed;
        if let Some(link) = self.processes[process].link.take() {
            self.fall_silent(link);
        }
        let is_missed = self.processes[process].form.is_some() && !self.is_done(process);
        if is_missed && !self.scenario.elastic && self.control.is_started() {
            // Its last word may be on its way; the coordinator looks at leases twenty times a lease.
            let lease = self.scenario.lease;
            let last = std::time::Duration::from_millis(20);
            self.ends_by.get_or_insert(self.now.after(lease + lease / 20 + last));
        }
        self.replace(800);
    }

    /// Another process takes the place of one that is gone, some time later.
    fn replace(&mut self, thousandths: u64) {
        let started = self.control.is_started();
        if (self.chance.happens(thousandths) || !started) && self.processes.len() < PROCESSES_MAX {
            let when = self.now.after(self.chance.micros(1_000, 2_000_000));
            self.agenda.at(when, Happening::Start);
        }
    }

    fn freeze(&mut self, process: usize) {
        let lease = self.scenario.lease.as_micros() as u64;
        let until = self.now.after(self.chance.micros(lease / 10, 3 * lease));
        self.trace.line(self.now, format_args!("! process {process} freezes until {until:?}"));
        let state = &mut self.processes[process];
        state.frozen_until = state.frozen_until.max(until);
        let link = state.link.filter(|_| self.chance.happens(500));
        link.into_iter().for_each(|link| self.cut_link(link));
        if self.chance.happens(500) {
            self.part_from_all(process);
        }
    }

    /// The storm is over: links are quick, and there are as many workers as the run began with, or is to begin with.
    pub(crate) fn calm(&mut self) -> Verdict {
        self.trace.line(self.now, format_args!("! nothing goes wrong from here on"));
        self.weather = Weather::CALM;
        let wanted = self.scenario.workers as usize;
        let stays = |process: &usize| {
            let state = &self.processes[*process];
            !state.interrupted && !state.is_unreachable
        };
        let staying = self.running().into_iter().filter(stays).count();
        for _ in staying..wanted {
            self.start_process()?;
        }
        Ok(())
    }
}
