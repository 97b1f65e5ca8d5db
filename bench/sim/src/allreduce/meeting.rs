//! A group comes together, measures, hands over its state, and falls apart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use slackline_core::collective::Topology;
use slackline_core::ids::{Clock, Generation, Moment, WorkerId};
use slackline_core::wire::{Group, LinkFigures};
use slackline_worker_core::Event;

use super::form::Form;
use super::parcels::{Among, Load};
use super::{Member, Peer};
use crate::world::{Happening, World};

/// Bytes that are sent to measure a way.
const PROBE_BYTES: u64 = 1 << 20;

/// Shortest time that a probe is taken to need beside its way: links without a bound would come out as infinitely fast.
const PROBE_MIN: Duration = Duration::from_nanos(1);

impl World {
    /// A worker connects to the members of its group that it exchanges anything with.
    pub(crate) fn form(&mut self, process: usize, group: Group, position: u32) {
        let generation = group.generation;
        let form = self.form_of(&group);
        let count = group.members.len() as u32;
        let mut linked: BTreeSet<u32> = match &form {
            Some(form) => form.schedule.neighbours(position),
            None => [(position + 1) % count.max(1), (position + count.max(1) - 1) % count.max(1)].into(),
        };
        // Only the core knows whether it will need the source.
        linked.extend(group.source.and_then(|source| group.position_of(source)));
        linked.remove(&position);
        let processes = group.members.iter().map(|member| self.process_of(member.worker)).collect();
        let member = Member {
            group,
            position,
            processes,
            form,
            to_meet: linked.clone(),
            linked,
            is_met: false,
            step: None,
            rounds: BTreeMap::new(),
            sums: None,
        };
        self.leave_group(process);
        if let Some(peer) = &mut self.processes[process].peer {
            peer.member = Some(Box::new(member));
        }
        self.meet_those_who_are_there(process, generation);
    }

    /// The form of a group, which its members share.
    fn form_of(&mut self, group: &Group) -> Option<Arc<Form>> {
        if group.topology == Topology::Auto {
            return None;
        }
        if let Some(form) = self.commons.form(group.generation) {
            return Some(form);
        }
        let plan = self.plan.group.as_ref()?;
        let form = Form::new(plan, group.generation, group.topology, group.members.len() as u32).ok()?;
        let form = Arc::new(form);
        self.commons.keep_form(&form);
        Some(form)
    }

    /// The process that is a worker now.
    fn process_of(&self, worker: WorkerId) -> Option<usize> {
        let is_it = |process: &usize| {
            let process = &self.processes[*process];
            process.is_running() && process.worker.member().is_some_and(|(id, _)| id == worker)
        };
        self.slots.iter().filter_map(|slot| *slot).find(is_it)
    }

    /// Two that are both in the group have met after one round trip.
    fn meet_those_who_are_there(&mut self, process: usize, generation: Generation) {
        let (now, latency) = (self.now(), self.links.latency());
        let met_at = now.after(2 * latency);
        let Some(member) = self.member(process, generation) else { return };
        let (position, linked, others) = (member.position, member.linked.clone(), member.processes.clone());
        let mut meets = |process, position| {
            self.agenda.at(met_at, Happening::Among { process, generation, what: Among::Meets { position } });
        };
        for (place, other) in others.iter().enumerate() {
            let Some(other) = other.filter(|other| *other != process) else { continue };
            let Some(peer) = &mut self.processes[other].peer else { continue };
            let Some(theirs) = peer.member_of(generation) else { continue };
            if linked.contains(&(place as u32)) || theirs.linked.contains(&position) {
                meets(process, place as u32);
                meets(other, position);
            }
        }
        if linked.is_empty() {
            meets(process, position);
        }
        let deadline = now.after(self.plan.lease);
        self.agenda.at(deadline, Happening::Among { process, generation, what: Among::NotReached });
    }

    pub(super) fn meets(&mut self, process: usize, generation: Generation, position: u32) {
        let Some(member) = self.member(process, generation) else { return };
        member.to_meet.remove(&position);
        if member.to_meet.is_empty() && !std::mem::replace(&mut member.is_met, true) {
            self.worker_event(process, Event::Met { generation });
        }
    }

    /// A lease is over since the group was formed.
    pub(super) fn not_reached(&mut self, process: usize, generation: Generation) {
        let lease = self.plan.lease.as_secs_f64();
        let Some(member) = self.member(process, generation) else { return };
        if let Some(missing) = member.to_meet.first().copied() {
            let (worker, reason) = (member.worker_at(missing), format!("not reached for {lease:.1} s"));
            self.worker_event(process, Event::PeerTrouble { generation, worker, reason });
        }
    }

    /// A worker's group is over. What it was sending goes no further.
    pub(crate) fn dissolve(&mut self, process: usize, generation: Generation) {
        if self.member(process, generation).is_some() {
            self.leave_group(process);
        }
    }

    /// A process is in no group any more.
    pub(crate) fn leave_group(&mut self, process: usize) {
        let state = &mut self.processes[process];
        let Some(peer) = &mut state.peer else { return };
        let was_computing = peer.computing().is_some();
        let is_reducing = peer.member.take().is_some_and(|member| !member.rounds.is_empty());
        // What is due for the gradient under way is void.
        state.number += 1;
        let slot = state.slot;
        if is_reducing {
            self.reset_links(slot);
        }
        self.counts.computing -= u64::from(was_computing);
    }

    /// A process is silent from now on: those that it is connected to learn it after a lease without a sign of life.
    pub(crate) fn falls_silent_to_peers(&mut self, process: usize) {
        let idle = self.now().after(self.plan.lease);
        let Some(peer) = &self.processes[process].peer else { return };
        let Some(member) = &peer.member else { return };
        let (generation, position) = (member.group.generation, member.position);
        let (linked, others) = (member.linked.clone(), member.processes.clone());
        for (place, other) in others.into_iter().enumerate() {
            let Some(other) = other.filter(|other| *other != process) else { continue };
            let Some(theirs) = self.member(other, generation) else { continue };
            if linked.contains(&(place as u32)) || theirs.linked.contains(&position) {
                let what = Among::Silent { process, position };
                self.agenda.at(idle, Happening::Among { process: other, generation, what });
            }
        }
    }

    /// A crashed process tells nobody anything any more.
    pub(crate) fn crash_peer(&mut self, process: usize) {
        self.falls_silent_to_peers(process);
        self.leave_group(process);
        let now = self.now();
        if let Some(peer) = &mut self.processes[process].peer {
            peer.gone_at = Some(now);
        }
    }

    /// Nothing has come from another member for a lease, if that still holds.
    pub(super) fn hears_nothing(&mut self, process: usize, generation: Generation, from: (usize, u32)) {
        let lease = self.plan.lease.as_secs_f64();
        let other = &self.processes[from.0];
        if other.is_running() && other.paused_until <= self.now() {
            return;
        }
        let Some(member) = self.member(process, generation) else { return };
        let (worker, reason) = (member.worker_at(from.1), format!("no word for {lease:.1} s"));
        self.worker_event(process, Event::PeerTrouble { generation, worker, reason });
    }

    /// A worker measures the way to its right neighbour, while all others do the same.
    pub(crate) fn probe(&mut self, process: usize, generation: Generation) {
        let since = self.now();
        let Some(member) = self.member(process, generation) else { return };
        let right = (member.position + 1) % member.group.members.len().max(1) as u32;
        match member.process_at(right).filter(|right| *right != process) {
            Some(right) => {
                self.carry_parcel((process, right), generation, PROBE_BYTES, Load::Probe { since })
            }
            // Whoever is alone has no way to measure.
            None => self.agenda.at(
                since,
                Happening::Among { process, generation, what: Among::Probed { took: Duration::ZERO } },
            ),
        }
    }

    /// The answer to a probe is here, so long after it was sent.
    pub(super) fn probed(&mut self, process: usize, generation: Generation, took: Duration) {
        let latency = self.links.latency();
        let lasted = took.saturating_sub(2 * latency).max(PROBE_MIN);
        let figures = LinkFigures {
            latency_s: latency.as_secs_f64(),
            bytes_per_s: PROBE_BYTES as f64 / lasted.as_secs_f64(),
        };
        if self.member(process, generation).is_some() {
            self.worker_event(process, Event::Measured { generation, figures });
        }
    }

    /// A worker asks another one for its values and optimizer state.
    pub(crate) fn fetch_state(
        &mut self,
        process: usize,
        generation: Generation,
        source: WorkerId,
        clock: Clock,
    ) {
        let when = self.now().after(self.links.latency());
        let Some(member) = self.member(process, generation) else { return };
        let position = member.group.position_of(source);
        if let Some(source) = position.and_then(|position| member.process_at(position)) {
            let what = Among::WantsState { by: process, clock };
            self.agenda.at(when, Happening::Among { process: source, generation, what });
        }
    }

    /// Another worker wants this one's state.
    pub(super) fn gives_state(
        &mut self,
        process: usize,
        generation: Generation,
        (by, clock): (usize, Clock),
    ) {
        let bytes = self.plan.group.as_ref().map_or(0, |plan| plan.state_bytes);
        let Some(peer) = &mut self.processes[process].peer else { return };
        let state = Arc::clone(&peer.replica);
        let Some(member) = peer.member_of(generation) else { return };
        if state.clock == clock {
            self.carry_parcel((process, by), generation, bytes, Load::State(state));
        } else {
            let what = Among::HasNoState { position: member.position };
            let when = self.now().after(self.links.latency());
            self.agenda.at(when, Happening::Among { process: by, generation, what });
        }
    }

    /// A process's part in a group, while it is in that group.
    pub(super) fn member(&mut self, process: usize, generation: Generation) -> Option<&mut Member> {
        self.processes[process].peer.as_mut().and_then(|peer| peer.member_of(generation))
    }

    /// What a new process has: the initial values.
    pub(crate) fn new_peer(&mut self) -> Option<Peer> {
        let plan = self.plan.group.as_ref()?;
        Some(Peer::new(self.commons.initial(plan, &self.engine, self.plan.config())))
    }

    /// What happens between the workers of a group.
    pub(crate) fn among(&mut self, process: usize, generation: Generation, what: Among) {
        match what {
            Among::Meets { position } => self.meets(process, generation, position),
            Among::NotReached => self.not_reached(process, generation),
            Among::Silent { process: whom, position } => {
                self.hears_nothing(process, generation, (whom, position));
            }
            Among::Probed { took } => self.probed(process, generation, took),
            Among::WantsState { by, clock } => self.gives_state(process, generation, (by, clock)),
            Among::HasNoState { position } => {
                self.peer_trouble(
                    process,
                    generation,
                    position,
                    &"it has other values than the group begins with",
                );
            }
        }
    }

    /// Whether what left a process at this moment of its link could have left it.
    pub(super) fn was_sent(&self, process: usize) -> bool {
        let gone_at = self.processes[process].peer.as_ref().and_then(|peer| peer.gone_at);
        gone_at.is_none_or(|at: Moment| self.now() <= at.after(self.links.latency()))
    }
}
