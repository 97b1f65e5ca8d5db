//! What goes wrong with servers: they crash and come back, freeze, lose each other, their clocks jump, their disks are slow or full.

use slackline_core::config::Durability;
use slackline_core::ids::Moment;
use slackline_server_core::ControlEvent;

use super::agenda::Happening;
use super::disk::Disk;
use super::network::{Connection, Peer};
use super::sight::{Sight, Verdict};
use super::world::World;

/// Why a server ends that was told to.
pub(crate) const TOLD_TO_GO: &str = "told to go";

impl World {
    /// The next thing that goes wrong with a server.
    pub(crate) fn server_mishap(&mut self) -> Verdict {
        self.see(&Sight::Disturbed)?;
        let server = self.chance.between(0, self.servers.len() as u64 - 1) as usize;
        let lease = self.scenario.lease.as_micros() as u64;
        match self.chance.between(0, 9) {
            0..=2 if self.may_be_told_to_go(server) && self.chance.happens(400) => {
                self.tell_to_go(server);
                Ok(())
            }
            0..=2 => self.crash_server(server),
            3 | 4 => self.freeze_server(server, lease),
            5 | 6 => self.part(server, lease),
            7 => {
                self.counts.clock_jumps += 1;
                let jump = self.chance.micros(1_000, 2 * lease).as_nanos() as u64;
                self.trace.line(self.now, format_args!("! the clock of server {server} jumps by {jump} ns"));
                self.machines[server].ahead += jump;
                Ok(())
            }
            8 => {
                self.counts.slow_disks += 1;
                let until = self.now.after(self.chance.micros(100_000, 3 * lease));
                self.machines[server].disk.slow_until = until;
                Ok(())
            }
            _ => {
                self.counts.full_disks += 1;
                let until = self.now.after(self.chance.micros(100_000, 3 * lease));
                self.trace
                    .line(self.now, format_args!("! the disk of server {server} is full until {until:?}"));
                self.machines[server].disk.full_until = until;
                Ok(())
            }
        }
    }

    /// Whether the run goes on or waits for a server that is told to go, whatever its copies are at: then its disk has what it has.
    fn may_be_told_to_go(&self, server: usize) -> bool {
        let is_there = self.servers[server].up && self.ends[server].is_none();
        server != 0 && is_there && self.scenario.durability == Durability::Disk
    }

    /// A server is told to go: its process ends when the coordinator lets it, and comes back as after a crash.
    fn tell_to_go(&mut self, server: usize) {
        self.counts.told_to_go += 1;
        self.trace.line(self.now, format_args!("! server {server} is told to go"));
        let (boot, event) =
            (self.servers[server].boot, ControlEvent::Leave { reason: TOLD_TO_GO.to_owned() });
        self.agenda.at(self.now, Happening::Said { server, boot, event: Box::new(event) });
    }

    /// A server's process dies; it comes back some time later, perhaps on another machine.
    pub(crate) fn crash_server(&mut self, server: usize) -> Verdict {
        if !self.servers[server].up || self.ends[server].is_some() {
            return Ok(());
        }
        self.counts.crashes += 1;
        self.trace.line(self.now, format_args!("! server {server} crashes"));
        self.see(&Sight::Disturbed)?;
        self.servers[server].up = false;
        let of_it = |(_, link): &(usize, &Connection)| {
            link.server == server || matches!(link.peer, Peer::Server(from, _) if from == server)
        };
        let links: Vec<usize> =
            self.connections.iter().enumerate().filter(of_it).map(|(index, _)| index).collect();
        for link in links {
            if self.connections[link].server == server {
                self.connections[link].server_end = false;
                self.cut(link);
            } else {
                self.fall_silent(link);
            }
        }
        for feed in self.feeds_of(server) {
            self.cut_feed(feed);
        }
        let mut chance = self.chance.clone();
        self.machines[server].disk.crash(&mut chance);
        self.chance = chance;
        self.machines[server].frozen_until = Moment(0);
        // The coordinator's disk is the memory of the run.
        if server != 0 && self.chance.happens(250) {
            self.counts.disks_lost += 1;
            self.trace.line(self.now, format_args!("! the disk of server {server} is lost"));
            self.machines[server].disk = Disk::default();
            self.disks_lost.insert(server);
        }
        let when = self.now.after(self.chance.micros(100_000, 4_000_000));
        self.agenda.at(when, Happening::Reboot { server });
        Ok(())
    }

    /// A server that has just taken over, where disks count, dies perhaps before its disk has what it took over: only that of the primary
    /// before it has all then.
    pub(crate) fn may_fail_soon(&mut self, server: usize) {
        if self.weather.mishap_pause > 0 && self.chance.happens(300) {
            let when = self.now.after(self.chance.micros(1, self.weather.disk));
            self.agenda.at(when, Happening::Reboot { server });
        }
    }

    fn freeze_server(&mut self, server: usize, lease: u64) -> Verdict {
        // What is put off would be put off again, behind what came after it.
        if !self.servers[server].up || self.machines[server].frozen_until > self.now {
            return Ok(());
        }
        let until = self.now.after(self.chance.micros(lease / 10, 3 * lease));
        self.freeze_until(server, until);
        let links = self.links_of(server);
        for link in links {
            if self.chance.happens(300) {
                self.cut(link);
            }
        }
        for feed in self.feeds_of(server) {
            if self.chance.happens(300) {
                self.cut_feed(feed);
            }
        }
        if self.scenario.durability == Durability::Replicated && self.chance.happens(300) {
            // The one before it dies meanwhile, whose copies are here at first.
            let count = self.servers.len();
            let other = (server + count - 1) % count;
            let when = self.now.after(self.chance.micros(1, lease));
            self.agenda.at(when, Happening::Reboot { server: other });
        }
        Ok(())
    }

    pub(crate) fn freeze_until(&mut self, server: usize, until: Moment) {
        self.counts.freezes += 1;
        self.trace.line(self.now, format_args!("! server {server} freezes until {until:?}"));
        self.machines[server].frozen_until = until;
    }

    fn links_of(&self, server: usize) -> Vec<usize> {
        let of_it = |(_, link): &(usize, &Connection)| {
            let is_live = link.worker_end && link.server_end;
            is_live && (link.server == server || matches!(link.peer, Peer::Server(from, _) if from == server))
        };
        self.connections.iter().enumerate().filter(of_it).map(|(index, _)| index).collect()
    }

    /// There is no way for a while between a server and another, or between it and a worker.
    fn part(&mut self, server: usize, lease: u64) -> Verdict {
        let until = self.now.after(self.chance.micros(lease / 10, 3 * lease));
        let running = self.running();
        let other =
            (server + 1 + self.chance.between(0, self.servers.len() as u64) as usize) % self.servers.len();
        let peer = if other == server || self.chance.happens(300) {
            let Some(process) = self.chance.pick(&running) else { return Ok(()) };
            Peer::Process(process)
        } else {
            Peer::Server(other, 0)
        };
        self.counts.partings += 1;
        self.trace
            .line(self.now, format_args!("! no way between {peer:?} and server {server} until {until:?}"));
        let now = self.now;
        self.parted.retain(|(.., until)| *until > now);
        self.parted.push((peer, server, until));
        let links: Vec<usize> = (0..self.connections.len())
            .filter(|link| {
                let link = &self.connections[*link];
                link.worker_end && link.server_end && self.is_parted(link.peer, link.server)
            })
            .collect();
        for link in links {
            self.cut(link);
        }
        for feed in self.feeds_of(server) {
            let (from, boot) = self.feeds[feed].from;
            if self.is_parted(Peer::Server(from, boot), self.feeds[feed].to) {
                self.cut_feed(feed);
            }
        }
        Ok(())
    }

    /// Nothing is wrong with any server any more.
    pub(crate) fn calm_servers(&mut self) {
        self.parted.clear();
        for machine in &mut self.machines {
            machine.disk.slow_until = self.now;
            machine.disk.full_until = self.now;
        }
    }

    /// A server comes back as another process.
    pub(crate) fn reboot(&mut self, server: usize) -> Verdict {
        if self.ends[server].is_some() || self.servers[server].up {
            return if self.servers[server].up { self.crash_server(server) } else { Ok(()) };
        }
        let boot = self.servers[server].boot + 1000;
        self.trace.line(self.now, format_args!("! server {server} is back, as {boot}"));
        self.counts.coordinator_restarts += u64::from(server == 0);
        self.machines[server].ahead = self.chance.between(0, 100_000_000_000);
        let begun = self.new_server(server, boot);
        self.servers[server] = begun;
        self.begin_server(server, boot)?;
        let is_calm = self.now.since(Moment(0)) > self.scenario.storm;
        if server == 0 && is_calm { self.ensure_workers() } else { Ok(()) }
    }
}
