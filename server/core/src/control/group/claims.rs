//! What members say of themselves, held against what is possible.

use slackline_core::collective::Topology;
use slackline_core::ids::{Clock, Generation, Moment, WorkerId};
use slackline_core::limits::ADDRESS_BYTES_MAX;
use slackline_core::wire::{Group, Ready, RefusalCode, Stepped, Text, Trouble};

use super::{Groups, Standing};
use crate::notice::Notice;

/// Why something that a worker said cannot be.
pub(in super::super) type Claim = (RefusalCode, String);

/// Groups in a row without an iteration after which the run is given up: two workers that reach the coordinator and not each other
/// would go on for ever. A newcomer does not end a run so: see `newcomers`.
const BARREN_MAX: u32 = 8;

impl Groups {
    /// Where other workers reach one: what it said, at the host that it is seen at where it named none.
    pub(in super::super) fn address(peers_at: Option<&Text>, seen_at: &str) -> Result<Text, Claim> {
        let mismatch = |text: String| (RefusalCode::Mismatch, text);
        let Some(peers_at) = peers_at.map(Text::shown) else {
            let text = "the worker does not say where other workers reach it, and an allreduce needs that: start the same \
                        version of slackline everywhere, and see sync.listen";
            return Err(mismatch(text.to_owned()));
        };
        let parts =
            peers_at.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
        let Some((host, port)) = parts else {
            let text = format!(
                "other workers cannot reach a worker at \"{peers_at}\": set sync.advertise to host:port, or leave it empty"
            );
            return Err(mismatch(text));
        };
        let host = if host.is_empty() { host_of(seen_at) } else { host.to_owned() };
        let address = format!("{host}:{port}");
        if address.len() > ADDRESS_BYTES_MAX {
            let text = format!(
                "the address that other workers are to use has {} bytes, {ADDRESS_BYTES_MAX} are the most: set sync.advertise to a \
                 shorter one, for example the IP address",
                address.len()
            );
            return Err(mismatch(text));
        }
        Ok(Text::new(address))
    }

    /// A member is in no group any more, or in none yet.
    pub(in super::super) fn ready(
        &mut self,
        now: Moment,
        worker: WorkerId,
        ready: &Ready,
    ) -> Result<(), Claim> {
        let Ready { generation, clock, units, measured } = *ready;
        self.check(worker, generation, clock, units)?;
        let is_trained = self.is_trained();
        let (is_measuring, present) = (self.is_measuring(), self.generation());
        let Some(party) = self.parties.get(&worker) else { return Ok(()) };
        match party.standing {
            // It comes again, as words do when their answer was lost.
            Standing::Ready => return Ok(()),
            Standing::Grouped if generation < present => return Ok(()),
            Standing::Arriving if generation == Generation(0) && clock > Clock(0) => {
                let text = format!("{worker} was in no group and says that it has completed {clock}");
                return Err((RefusalCode::Mismatch, text));
            }
            Standing::Arriving if is_trained => {
                return Err((RefusalCode::RunOver, "the run is complete".to_owned()));
            }
            _ => {}
        }
        let (is_member, stays_behind) = match &self.group {
            Some(group) if party.standing == Standing::Grouped => {
                let stays_behind = (clock, units) == (party.clock, party.units) && clock < group.clock;
                if !stays_behind {
                    self.check_line(group, worker, clock, units)?;
                }
                (true, stays_behind)
            }
            _ => (false, false),
        };
        // A worker that comes back from the newest group has the values of that group: none went on without it.
        let returns = party.standing == Standing::Arriving
            && generation == present
            && self.group.as_ref().is_some_and(|group| self.check_line(group, worker, clock, units).is_ok());
        let began = self.group.as_ref().map_or(Clock(0), |group| group.clock);
        let is_believed = !party.is_doubtful || clock > began;
        if is_member && clock > began {
            self.progress(units);
        }
        if let Some(party) = self.parties.get_mut(&worker) {
            (party.clock, party.units, party.standing) = (clock, units, Standing::Ready);
            // All begin with the same values; what else a newcomer has can be of a group that went on without it.
            party.holds = match (is_member, stays_behind) {
                (false, _) => clock == Clock(0) || returns,
                (true, true) => party.holds,
                (true, false) => is_believed,
            };
            party.served |= returns;
            party.measured = measured.filter(|figures| {
                let (latency, rate) = (figures.latency_s, figures.bytes_per_s);
                latency.is_finite() && latency >= 0.0 && rate.is_finite() && rate > 0.0
            });
        }
        if is_member && self.is_open && !is_measuring {
            self.dissolve(now);
        }
        Ok(())
    }

    /// A member cannot go on within its group. Of a group that is no more it says nothing new.
    pub(in super::super) fn trouble(
        &mut self,
        now: Moment,
        worker: WorkerId,
        trouble: &Trouble,
    ) -> Result<(), Claim> {
        self.check_generation(worker, trouble.generation)?;
        let is_present = self.is_open && trouble.generation == self.generation();
        let unit_count = self.unit_count();
        let is_inside =
            |party: &super::Party| party.standing == Standing::Grouped && party.units < unit_count;
        if !is_present || !self.parties.get(&worker).is_some_and(is_inside) {
            return Ok(());
        }
        let (with, reason) = (trouble.worker, trouble.reason.shown());
        if with == worker || self.group.as_ref().is_none_or(|group| group.position_of(with).is_none()) {
            let text = format!("{worker} has trouble with {with}, which is in no group with it");
            return Err((RefusalCode::Mismatch, text));
        }
        if !self.leave_out(worker, with, &reason) {
            self.barren += 1;
        }
        if self.barren >= BARREN_MAX {
            let (one, other) = (self.named(worker), self.named(with));
            self.failure.get_or_insert(format!(
                "{BARREN_MAX} groups in a row ended before their first iteration, the last since {one} had trouble with {other}: \
                 {reason}; see that all workers reach each other (sync.listen, sync.advertise)"
            ));
        }
        let generation = trouble.generation;
        self.notices.push(Notice::Trouble { generation, worker, with, reason });
        self.dissolve(now);
        Ok(())
    }

    /// A member says how far it is; of its present group it does so once it has the values. Returns whether it is news: a word
    /// that comes again counts once.
    pub(in super::super) fn stepped(
        &mut self,
        now: Moment,
        worker: WorkerId,
        stepped: &Stepped,
    ) -> Result<bool, Claim> {
        let Stepped { generation, clock, units, .. } = *stepped;
        self.check(worker, generation, clock, units)?;
        let Some(party) = self.parties.get(&worker) else { return Ok(false) };
        if party.stepped.as_ref() == Some(stepped) {
            return Ok(false);
        }
        let is_present = generation == self.generation() && party.standing == Standing::Grouped;
        // What it says of former groups changes nothing but the figures.
        let group = self.group.as_ref().filter(|group| is_present && clock >= group.clock);
        let has_gone_on = group.is_some_and(|group| clock > group.clock);
        let counts = group.is_some();
        if let Some(group) = group {
            self.check_line(group, worker, clock, units)?;
        }
        if let Some(party) = self.parties.get_mut(&worker) {
            party.stepped = Some(stepped.clone());
            if counts {
                (party.clock, party.units) = (clock, units);
                (party.holds, party.is_doubtful) = (true, false);
            }
        }
        if has_gone_on {
            self.progress(units);
            if self.is_open {
                self.recovered(now);
            }
        }
        Ok(true)
    }

    /// The result of an evaluation. Returns whether it is the first of its kind: after a loss another member can come by the same
    /// place again.
    pub(in super::super) fn evaluated(&mut self, worker: WorkerId, at_samples: u64) -> Result<bool, Claim> {
        let Some(plan) = self.plan else { return Ok(false) };
        if at_samples == plan.sample_total {
            return Ok(!std::mem::replace(&mut self.has_final, true));
        }
        if at_samples == 0 || at_samples > plan.sample_total || plan.evaluate_every == 0 {
            let total = plan.sample_total;
            let text = format!(
                "{worker} evaluated at {at_samples} samples, where a run of {total} has no evaluation"
            );
            return Err((RefusalCode::Mismatch, text));
        }
        Ok(self.evaluations.insert(at_samples / plan.evaluate_every))
    }

    fn check(&self, worker: WorkerId, generation: Generation, clock: Clock, units: u64) -> Result<(), Claim> {
        self.check_generation(worker, generation)?;
        let unit_count = self.unit_count();
        // An iteration takes one unit at least.
        if units > unit_count || clock.0 > units || (units > 0 && clock == Clock(0)) {
            let text =
                format!("{worker} says that {clock} stands for {units} units, in a run of {unit_count}");
            return Err((RefusalCode::Mismatch, text));
        }
        Ok(())
    }

    fn check_generation(&self, worker: WorkerId, generation: Generation) -> Result<(), Claim> {
        let present = self.generation();
        if generation > present {
            let text = format!("{worker} speaks of {generation}, and the newest group is {present}");
            return Err((RefusalCode::OutOfPlace, text));
        }
        Ok(())
    }

    /// Units follow from the clock within a group.
    fn check_line(&self, group: &Group, worker: WorkerId, clock: Clock, units: u64) -> Result<(), Claim> {
        let unit_count = self.unit_count();
        let before_last = clock.0.checked_sub(1).map(Clock).filter(|last| *last >= group.clock);
        let is_beyond =
            before_last.is_some_and(|last| group.unit_of(last, 0).is_none_or(|unit| unit >= unit_count));
        let expected = group.unit_of(clock, 0).map(|unit| unit.min(unit_count));
        if is_beyond || expected != Some(units) {
            let Group { generation, clock: began, units: from, .. } = group;
            let members = group.members.len();
            let text = format!(
                "{worker} says that {clock} stands for {units} units; {generation} of {members} workers began with {from} units at \
                 {began}, and the run has {unit_count}"
            );
            return Err((RefusalCode::Mismatch, text));
        }
        Ok(())
    }

    /// The newest group is over: all its members are to say that they are ready.
    pub(super) fn dissolve(&mut self, now: Moment) {
        if std::mem::replace(&mut self.is_open, false) {
            self.dissolved = now;
            for party in self.parties.values_mut() {
                party.told_end = false;
            }
        }
    }

    /// Whether the newest group works, and does not only measure.
    pub(super) fn is_working(&self) -> bool {
        self.is_open && self.group.as_ref().is_some_and(|group| group.topology != Topology::Auto)
    }
}

/// The host of an address as a session has it.
fn host_of(seen_at: &str) -> String {
    match seen_at.parse::<core::net::SocketAddr>() {
        Ok(address) => match address.ip().to_canonical() {
            core::net::IpAddr::V4(ip) => ip.to_string(),
            core::net::IpAddr::V6(ip) => format!("[{ip}]"),
        },
        // Not of the internet: of a simulated world.
        Err(_) => seen_at.to_owned(),
    }
}
