//! The values of the model and the optimizer's state, of which every worker has all.
//!
//! All members of a group have the same bits, so what one of them has made of them is lent to the others: memory and time of a step
//! do not grow with the workers. [`Sharing::Verified`] makes each its own and compares.

use std::collections::VecDeque;
use std::sync::Arc;

use slackline_core::aggregate::first_not_finite;
use slackline_core::config::Config;
use slackline_core::ids::{Clock, Generation, KeyRange};
use slackline_core::optimizer::{Optimizer, Step};

use super::form::{Form, GroupPlan};
use crate::engine::{Engine, Snapshot};
use crate::world::World;

/// Iterations whose results are kept: the one that the last members finish, and the next.
const KEPT: usize = 2;

/// Whether members make their own copies of what must be equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The first makes it, the others take it.
    #[default]
    Shared,
    /// Each makes its own; what differs from the first one's is counted.
    #[cfg_attr(not(test), expect(dead_code, reason = "the proof that sharing changes nothing"))]
    Verified,
}

/// Values and optimizer state after a number of iterations; empty where nothing is computed.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) clock: Clock,
    pub(super) values: Arc<Vec<f32>>,
    optimizer: Option<Optimizer>,
}

impl Replica {
    /// What the sums of an iteration make of it.
    fn applied(&self, sums: &Sums, step: &Step) -> Self {
        let mut next = self.clone();
        next.clock.0 += 1;
        if let Some(optimizer) = &mut next.optimizer {
            let mut values = self.values.to_vec();
            optimizer.apply(&mut values, &sums.flat, step);
            next.values = Arc::new(values);
        }
        next
    }

    fn skipped(&self) -> Self {
        Self { clock: Clock(self.clock.0 + 1), ..self.clone() }
    }

    fn has_the_bits_of(&self, other: &Self) -> bool {
        let slots = |replica: &Self| replica.optimizer.as_ref().map(|optimizer| bits(optimizer.slots()));
        bits(&self.values) == bits(&other.values) && slots(self) == slots(other) && self.clock == other.clock
    }
}

/// What an iteration came to.
pub(super) struct Sums {
    /// In the order of the keys; empty where nothing is computed.
    pub(super) flat: Vec<f32>,
    pub(super) bad_key: Option<u64>,
}

impl Sums {
    pub(super) fn new(flat: Vec<f32>) -> Self {
        let bad_key = first_not_finite(&flat).map(|key| key as u64);
        Self { flat, bad_key }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Which iteration of which group.
type Place = (Generation, Clock);

/// What members hold in common.
#[derive(Default)]
pub(crate) struct Commons {
    pub(crate) sharing: Sharing,
    /// How often something differed that must be equal, and how often it was compared.
    pub(crate) differing: u64,
    pub(crate) compared: u64,
    initial: Option<Arc<Replica>>,
    forms: VecDeque<Arc<Form>>,
    sums: VecDeque<(Place, Arc<Sums>)>,
    /// Before and after.
    replicas: VecDeque<(Place, Arc<Replica>, Arc<Replica>)>,
}

impl Commons {
    pub(super) fn form(&self, generation: Generation) -> Option<Arc<Form>> {
        self.forms.iter().find(|form| form.generation == generation).cloned()
    }

    pub(super) fn keep_form(&mut self, form: &Arc<Form>) {
        keep(&mut self.forms, Arc::clone(form));
    }

    /// The state before the first iteration.
    pub(super) fn initial(&mut self, plan: &GroupPlan, engine: &Engine, config: &Config) -> Arc<Replica> {
        let make = || {
            let all = KeyRange::new(0, plan.layout.len());
            let (values, optimizer) = match engine {
                Engine::Timing { .. } => (Vec::new(), None),
                Engine::Real(_) => {
                    let optimizer = Optimizer::new(config.optimizer, &plan.layout, all, 1);
                    (engine.initial(all).to_vec(), Some(optimizer))
                }
            };
            Arc::new(Replica { clock: Clock(0), values: Arc::new(values), optimizer })
        };
        Arc::clone(self.initial.get_or_insert_with(make))
    }

    /// The sums of an iteration, which `make` puts together.
    pub(super) fn sums(&mut self, place: Place, make: impl FnOnce() -> Sums) -> Arc<Sums> {
        let known = self.sums.iter().find(|(of, _)| *of == place).map(|(_, sums)| Arc::clone(sums));
        match (known, self.sharing) {
            (Some(known), Sharing::Shared) => known,
            (Some(known), Sharing::Verified) => {
                let own = make();
                self.compared += 1;
                self.differing += u64::from(bits(&own.flat) != bits(&known.flat));
                Arc::new(own)
            }
            (None, _) => {
                let made = Arc::new(make());
                keep(&mut self.sums, (place, Arc::clone(&made)));
                made
            }
        }
    }

    /// What becomes of a member's state in an iteration, which `make` reckons.
    fn next(
        &mut self,
        place: Place,
        before: &Arc<Replica>,
        make: impl FnOnce(&Replica) -> Replica,
    ) -> Arc<Replica> {
        let is_shared = self.sharing == Sharing::Shared;
        let is_it =
            |of: &Place, from: &Arc<Replica>| *of == place && (!is_shared || Arc::ptr_eq(from, before));
        let known = self.replicas.iter().find(|(of, from, _)| is_it(of, from)).map(|(.., to)| Arc::clone(to));
        match known {
            Some(known) if is_shared => known,
            Some(known) => {
                let own = make(before);
                self.compared += 1;
                self.differing += u64::from(!own.has_the_bits_of(&known));
                Arc::new(own)
            }
            None => {
                let made = Arc::new(make(before));
                keep(&mut self.replicas, (place, Arc::clone(before), Arc::clone(&made)));
                made
            }
        }
    }
}

fn keep<T>(kept: &mut VecDeque<T>, new: T) {
    if kept.len() == KEPT {
        kept.pop_front();
    }
    kept.push_back(new);
}

impl World {
    /// A worker applies the sums of an iteration to its own values.
    pub(crate) fn apply_sums(&mut self, process: usize, place: Place, progress: f64) {
        let Some(peer) = &mut self.processes[process].peer else { return };
        let Some(member) = peer.member_of(place.0) else { return };
        let Some((_, sums)) = member.sums.take().filter(|(clock, _)| *clock == place.1) else { return };
        let step = Step::fresh(progress, place.1.0);
        peer.replica = self.commons.next(place, &peer.replica, |before| before.applied(&sums, &step));
        let bytes = self.plan.group.as_ref().map_or(0, |plan| 4 * plan.layout.len());
        self.busy(process, bytes);
    }

    /// A worker leaves the sums of an iteration alone.
    pub(crate) fn skip_sums(&mut self, process: usize, place: Place) {
        let Some(peer) = &mut self.processes[process].peer else { return };
        if let Some(member) = peer.member_of(place.0) {
            member.sums = None;
            peer.replica = self.commons.next(place, &peer.replica, Replica::skipped);
        }
    }

    /// A worker's own values, where it has any.
    pub(crate) fn own_values(&self, process: usize) -> Option<Snapshot> {
        let peer = self.processes[process].peer.as_ref()?;
        Some(vec![(slackline_core::ids::ShardId(0), Arc::clone(&peer.replica.values))])
    }
}
