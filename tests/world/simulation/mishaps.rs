//! What goes wrong while the storm lasts.

use slackline_worker_core::Event;

use super::agenda::Happening;
use super::scenario::Weather;
use super::sight::{Sight, Verdict};
use super::workers::Life;
use super::world::World;

/// Processes that one world may see; a bound on its length, not on the cores.
const PROCESSES_MAX: usize = 16;

impl World {
    /// The next thing that goes wrong.
    pub(crate) fn mishap(&mut self) -> Verdict {
        if self.weather.mishap_pause == 0 {
            return Ok(());
        }
        let when = self.now.after(self.chance.micros(10_000, self.weather.mishap_pause));
        self.agenda.at(when, Happening::Mishap);
        if self.weather.servers_fail
            && self.chance.happens(if self.weather.processes_fail { 400 } else { 700 })
        {
            return self.server_mishap();
        }
        let running = self.running();
        let kinds = if self.weather.processes_fail { 11 } else { 3 };
        match self.chance.between(0, kinds) {
            0..=3 => self.cut_one(),
            4 | 5 => self.crash(&running),
            6 | 7 => self.freeze(&running),
            8 => self.start_another(),
            9 => self.interrupt(&running),
            10 => self.cut_all_of(&running),
            _ => self.slow_down(&running),
        }
    }

    pub(crate) fn running(&self) -> Vec<usize> {
        let is_running = |(_, process): &(usize, &super::workers::Process)| process.life == Life::Running;
        self.processes.iter().enumerate().filter(is_running).map(|(index, _)| index).collect()
    }

    fn cut_one(&mut self) -> Verdict {
        let live = |(_, link): &(usize, &super::network::Connection)| link.worker_end && link.server_end;
        let live: Vec<usize> =
            self.connections.iter().enumerate().filter(live).map(|(index, _)| index).collect();
        if let Some(connection) = self.chance.pick(&live) {
            self.trace.line(self.now, format_args!("! connection {connection} is cut"));
            self.cut(connection);
        }
        Ok(())
    }

    fn cut_all_of(&mut self, running: &[usize]) -> Verdict {
        let Some(process) = self.chance.pick(running) else { return Ok(()) };
        self.trace.line(self.now, format_args!("! process {process} loses its network"));
        let links: Vec<usize> = self.processes[process].links.values().copied().collect();
        for connection in links {
            self.cut(connection);
        }
        Ok(())
    }

    fn crash(&mut self, running: &[usize]) -> Verdict {
        let Some(process) = self.chance.pick(running) else { return Ok(()) };
        self.trace.line(self.now, format_args!("! process {process} crashes"));
        self.counts.worker_crashes += 1;
        self.processes[process].life = Life::Crashed;
        let links: Vec<usize> = self.processes[process].links.values().copied().collect();
        for connection in links {
            self.fall_silent(connection);
        }
        self.replace(800);
        self.see(&Sight::Disturbed)
    }

    /// Another process takes the place of one that is gone, some time later.
    fn replace(&mut self, thousandths: u64) {
        let started = self.servers[0].control.is_started();
        if (self.chance.happens(thousandths) || !started) && self.processes.len() < PROCESSES_MAX {
            let when = self.now.after(self.chance.micros(1_000, 2_000_000));
            self.agenda.at(when, Happening::Start);
        }
    }

    fn freeze(&mut self, running: &[usize]) -> Verdict {
        // As with servers, nobody freezes twice at once.
        let Some(process) = self.chance.pick(running) else { return Ok(()) };
        if self.processes[process].frozen_until > self.now {
            return Ok(());
        }
        let lease = self.scenario.lease.as_micros() as u64;
        let until = self.now.after(self.chance.micros(lease / 10, 3 * lease));
        self.trace.line(self.now, format_args!("! process {process} freezes until {until:?}"));
        self.counts.worker_freezes += 1;
        let state = &mut self.processes[process];
        state.frozen_until = until;
        let links: Vec<usize> = state.links.values().copied().collect();
        for connection in links {
            if self.chance.happens(500) {
                self.cut(connection);
            }
        }
        self.see(&Sight::Disturbed)
    }

    fn start_another(&mut self) -> Verdict {
        if self.processes.len() < PROCESSES_MAX {
            self.trace.line(self.now, format_args!("! another process starts"));
            self.counts.changes += 1;
            self.see(&Sight::Changed)?;
            self.start_process()?;
        }
        Ok(())
    }

    fn interrupt(&mut self, running: &[usize]) -> Verdict {
        let Some(process) = self.chance.pick(running) else { return Ok(()) };
        // Told a second time, it goes at once, and nobody knows what became of its last step.
        let is_polite = !self.processes[process].interrupted;
        self.counts.changes += u64::from(is_polite);
        self.see(if is_polite { &Sight::Changed } else { &Sight::Disturbed })?;
        self.replace(700);
        self.processes[process].interrupted = true;
        self.worker_event(process, Event::Interrupt)
    }

    fn slow_down(&mut self, running: &[usize]) -> Verdict {
        if let Some(process) = self.chance.pick(running) {
            let factor = self.chance.between(1, 8);
            self.processes[process].pace = (self.processes[process].pace * factor).min(600_000);
            if self.chance.happens(300) {
                let jump = self.chance.micros(1_000, 2_000_000).as_nanos() as u64;
                self.trace
                    .line(self.now, format_args!("! the clock of process {process} jumps by {jump} ns"));
                self.processes[process].ahead += jump;
                self.counts.clock_jumps += 1;
            }
        }
        Ok(())
    }

    /// The storm is over: links are quick, and there are enough workers to finish.
    pub(crate) fn calm(&mut self) -> Verdict {
        self.trace.line(self.now, format_args!("! nothing goes wrong from here on"));
        self.weather = Weather { mishap_pause: 0, ..Weather::CALM };
        self.calm_servers();
        self.ensure_workers()
    }

    /// Once nothing goes wrong any more there are enough workers to finish.
    pub(crate) fn ensure_workers(&mut self) -> Verdict {
        if self.ends[0].is_some() || self.weather.mishap_pause > 0 {
            return Ok(());
        }
        let started = self.servers[0].control.is_started();
        let least = self.scenario.min_workers.unwrap_or(1);
        let wanted = if started { least } else { self.scenario.workers } as usize;
        let staying =
            self.running().into_iter().filter(|process| !self.processes[*process].interrupted).count();
        for _ in staying..wanted {
            self.start_process()?;
        }
        Ok(())
    }
}
