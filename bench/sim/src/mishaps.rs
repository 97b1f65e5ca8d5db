//! What befalls the processes: the incidents of the configuration.

use slackline_core::config::{Incident, What, Whom};
use slackline_core::ids::Moment;

use crate::links::duration;
use crate::world::{Happening, Sleeper, World};

impl World {
    /// An incident begins.
    pub(crate) fn befalls(&mut self, index: usize) {
        self.pending -= 1;
        let Some(incident) = self.plan.config().simulation.incidents.get(index).copied() else { return };
        let Incident { whom, what, for_s, .. } = incident;
        let until = for_s.map(|seconds| self.now().after(duration(seconds)));
        match whom {
            Whom::Worker(worker) => self.befalls_worker(worker as usize, what, until),
            Whom::Server(server) => self.befalls_server(server as usize, what, until),
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
