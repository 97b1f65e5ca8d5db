//! Who belongs to the next group, where it begins, and how its members are arranged.

use slackline_core::collective::Topology;
use slackline_core::collective::cost::{Rates, choose};
use slackline_core::ids::{Clock, Moment, WorkerId};
use slackline_core::wire::{Group, GroupMember, LinkFigures};

use super::{Groups, Party, Standing};
use crate::notice::Notice;

/// Seconds a byte that is added. It is the memory's, not the network's, nearly the same for all topologies, and not measured.
const GAMMA_S_PER_BYTE: f64 = 2.5e-10;

/// Groups that are made to measure before ring is taken unmeasured.
const MEASURINGS_MAX: u32 = 3;

impl Groups {
    /// What follows from where the members stand: the group ends for somebody new, or the next one is formed.
    pub(in super::super) fn settle(&mut self, now: Moment) {
        if !self.begun || self.failure.is_some() {
            return;
        }
        if self.is_working() && self.parties.values().any(Party::is_wanted) {
            self.dissolve(now);
        }
        let is_inside = |party: &Party| party.standing == Standing::Grouped && !party.leaves;
        if self.parties.values().any(is_inside) {
            return;
        }
        self.is_open = false;
        if !self.survivors().any(|party| !party.is_aside) {
            // Nobody is left to go on without those that were left out.
            self.parties.values_mut().for_each(|party| party.is_aside = false);
        }
        if self.is_fresh() {
            if self.ready_count() >= self.workers {
                self.form(now, Clock(0), 0);
            }
            return;
        }
        let newest =
            self.survivors().filter(|party| party.is_wanted()).map(|party| (party.clock, party.units)).max();
        match newest {
            // Those who are ready wait for more; the log says so.
            Some(_) if self.ready_count() < self.least => {}
            Some((clock, units)) => self.form(now, clock, units),
            // Those who leave have done everything.
            None if self.parties.values().any(|party| party.leaves) || self.is_over() => {}
            None => self.fail_without_values(),
        }
    }

    /// Whether no iteration was completed by a group that anybody is left of: all who come can begin with the initial values.
    fn is_fresh(&self) -> bool {
        let began = self.group.as_ref().map_or(Clock(0), |group| group.clock);
        self.survivors().next().is_none() && began == Clock(0) && self.done == 0
    }

    /// Those who can stand for what the run has reached. One that had not got the newest values when their only holder was lost
    /// stands for its own: its group cannot have completed anything without it.
    fn survivors(&self) -> impl Iterator<Item = &Party> {
        let stands = |party: &&Party| party.standing == Standing::Ready && party.served && party.holds;
        self.parties.values().filter(stands)
    }

    fn form(&mut self, now: Moment, clock: Clock, units: u64) {
        let ready = Party::is_wanted;
        let members: Vec<GroupMember> = self
            .parties
            .iter()
            .filter(|(_, party)| ready(party))
            .map(|(worker, party)| {
                let Party { incarnation, address, .. } = party;
                GroupMember { worker: *worker, incarnation: *incarnation, address: address.clone() }
            })
            .collect();
        if !self.settings.elastic {
            let is_surplus = |party: &Party| !ready(party) && !party.served;
            let surplus = self.parties.iter().filter(|(_, party)| is_surplus(party));
            self.surplus.extend(surplus.map(|(worker, _)| *worker));
        }
        let has = |party: &Party| ready(party) && party.holds && party.clock == clock;
        let first = self.parties.iter().find(|(_, party)| has(party)).map(|(worker, _)| *worker);
        let somebody_lacks = self.parties.values().any(|party| ready(party) && !has(party));
        let source = first.filter(|_| somebody_lacks);
        let topology = self.arrange(members.len() as u32);
        let generation = self.generation().next();
        for party in self.parties.values_mut().filter(|party| ready(party)) {
            party.is_doubtful = !has(party) && (party.is_doubtful || party.clock >= clock);
            // The initial values of a newcomer are worth nothing in a run that is further.
            party.holds &= party.served || has(party);
            (party.standing, party.served, party.measured) = (Standing::Grouped, true, None);
            (party.told_group, party.told_end, party.told_over) = (false, false, false);
        }
        self.repeated += self.done.saturating_sub(units);
        self.done = units;
        self.has_worked |= topology != Topology::Auto;
        let count = members.len() as u32;
        self.notices.push(Notice::Grouped { generation, members: count, topology, clock, source });
        self.group = Some(Group { run: self.run, generation, topology, members, clock, units, source });
        (self.is_open, self.is_proven) = (true, false);
        let losses = self.losses.iter_mut();
        losses.for_each(|loss| loss.clock = clock);
        if self.is_trained() {
            // No iteration follows that could show that the others are back at work.
            self.recovered(now);
        }
    }

    /// The topology of a group of so many.
    fn arrange(&mut self, members: u32) -> Topology {
        let wanted = self.settings.topology;
        if wanted == Topology::Auto {
            return if members == 1 { Topology::Ring } else { self.choose(members) };
        }
        match wanted.fits(members) {
            Ok(()) => wanted,
            Err(misfit) => {
                let text = misfit.to_string();
                self.notices.push(Notice::Misfit { wanted, text });
                Topology::Ring
            }
        }
    }

    /// The best one by what was measured; where nothing was yet, the group is to measure.
    fn choose(&mut self, members: u32) -> Topology {
        let measured: Vec<LinkFigures> = self.parties.values().filter_map(|party| party.measured).collect();
        let latency = median(measured.iter().map(|figures| figures.latency_s));
        let rate = median(measured.iter().map(|figures| figures.bytes_per_s));
        if let (Some(alpha_s), Some(rate)) = (latency, rate) {
            let beta_s_per_byte = 1.0 / rate;
            self.rates = Some(Rates { alpha_s, beta_s_per_byte, gamma_s_per_byte: GAMMA_S_PER_BYTE });
        }
        if self.rates.is_none() && self.measurings < MEASURINGS_MAX {
            self.measurings += 1;
            return Topology::Auto;
        }
        let choice = self.rates.and_then(|rates| choose(members, self.settings.bucket_bytes, rates).ok());
        let (topology, why) = match choice {
            Some(choice) => (choice.topology, choice.why),
            None => (Topology::Ring, "ring, since no latency and no rate could be measured".to_owned()),
        };
        if self.chosen.as_ref().is_none_or(|(before, _)| *before != topology) {
            self.notices.push(Notice::Chosen { text: why.clone() });
        }
        self.chosen = Some((topology, why));
        topology
    }

    /// Members whose leave can be answered: nobody of their group needs them any more.
    pub(in super::super) fn dismissed(&self) -> Vec<WorkerId> {
        if self.is_open && self.parties.values().any(|party| self.lacks_units(party)) {
            return Vec::new();
        }
        self.parties.iter().filter(|(_, party)| party.leaves).map(|(worker, _)| *worker).collect()
    }
}

/// The middle one; of an even number, the lower of the two.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}
