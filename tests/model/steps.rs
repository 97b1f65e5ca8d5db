//! Steps that are whole over two shards: whoever vanishes when, both shards have the same steps of everybody in the end.
//!
//! **Real:** [`Shard`] with its stage for pieces, its gate and its windows. **Written down here:** workers that push to both shards, send
//! their commits once both have said that their piece is staged, and may vanish at any point, with what they sent arriving or not; the
//! coordinator, which removes who vanished at each shard, hears both shards' doubts and resolves them by the rule of `control/cluster`: apply
//! through the furthest step that any shard has applied. **Left out:** time, sessions that change, copies.

use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};

use slackline_core::config::Steps;
use slackline_core::ids::{Clock, Moment, Sequence, SessionId, WorkerId};
use slackline_core::wire::{Doubt, PullKind, PushOutcome};
use slackline_server_core::shard::Held;
use slackline_server_core::{Shard, ShardEffect, ShardEvent};
use stateright::{Model, Property};

use crate::ledger::{BOUND, Ledger, Print, incarnation};

const NOW: Moment = Moment(1);
const SHARDS: usize = 2;

/// One model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    ledger: Ledger,
    vanish: u8,
}

/// The models that are checked.
pub(crate) fn variants(is_large: bool) -> Vec<Variant> {
    let of = |name, workers, pushes, vanish| Variant {
        name,
        ledger: Ledger { workers, pushes, others: pushes },
        vanish,
    };
    let mut all = vec![
        of("whole steps, one worker vanishes", 3, 1, 1),
        of("whole steps of two workers, both may vanish", 2, 2, 2),
    ];
    if is_large {
        all.push(of("whole steps, two of three vanish", 3, 2, 2));
    }
    all
}

/// What a worker waits for at each shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Its pull is to be sent.
    Pull,
    /// Its pull waits.
    Pulled,
    /// It has the values, its push is under way.
    Push,
    /// Its piece is staged.
    Staged,
    /// Its commit is under way.
    Commit,
    /// Its push was answered.
    Answered,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Worker {
    stages: [Stage; SHARDS],
    done: u64,
    vanished: bool,
    /// The shards that have removed it.
    removed: [bool; SHARDS],
    doubts: [Option<u64>; SHARDS],
    resolved: [bool; SHARDS],
}

/// Everything.
#[derive(Clone)]
pub(crate) struct State {
    shards: [Shard; SHARDS],
    workers: Vec<Worker>,
    acknowledged: u64,
    vanish: u8,
    broken: Option<String>,
}

/// What can happen next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// What a worker has on its way to a shard arrives: pull, push or commit.
    Arrive(usize, usize),
    /// A worker vanishes.
    Vanish(usize),
    /// A shard is told that a worker is gone.
    Remove(usize, usize),
    /// A shard is told what becomes of the pieces of a worker that is gone.
    Resolve(usize, usize),
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.shards.each_ref().map(|shard| shard.values().map(<[f32]>::to_vec));
        f.debug_struct("State")
            .field("values", &values)
            .field("workers", &self.workers)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let _ = write!(Print(state), "{:?}", self.shards.each_ref().map(facts));
        (&self.workers, self.acknowledged, self.vanish, &self.broken).hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        format!("{:?}", self.shards.each_ref().map(facts))
            == format!("{:?}", other.shards.each_ref().map(facts))
            && (&self.workers, self.vanish, &self.broken) == (&other.workers, other.vanish, &other.broken)
    }
}

/// All that tells one shard from another: its state, the sessions of pieces included, and the pulls that wait.
fn facts(shard: &Shard) -> (u64, Vec<Held>) {
    (shard.state().hash(), shard.held().copied().collect())
}

impl Variant {
    fn shard_event(&self, state: &mut State, shard: usize, event: ShardEvent) {
        let mut effects = Vec::new();
        state.shards[shard].handle(NOW, event, &mut effects);
        state.shards[shard].check_invariants();
        for effect in effects {
            self.perform(state, shard, effect);
        }
    }

    fn perform(&self, state: &mut State, shard: usize, effect: ShardEffect) {
        match effect {
            ShardEffect::Staged { session, sequence } => {
                let worker = &mut state.workers[session.0 as usize];
                if worker.stages[shard] == Stage::Push && sequence.0 == worker.done + 1 {
                    worker.stages[shard] = Stage::Staged;
                    if worker.stages == [Stage::Staged; SHARDS] {
                        worker.stages = [Stage::Commit; SHARDS];
                    }
                }
            }
            ShardEffect::Serve { session, values, .. } => {
                let worker = session.0 as usize;
                self.check_read(state, worker, &values.words);
                let stages = &mut state.workers[worker].stages;
                stages[shard] = Stage::Push;
            }
            ShardEffect::Answer { session, pushed } => {
                let number = session.0 as usize;
                if state.workers[number].vanished {
                    return;
                }
                if !matches!(pushed.outcome, PushOutcome::Applied { .. }) {
                    state.broken = Some(format!("worker {number} is told {pushed:?}"));
                    return;
                }
                state.acknowledged |= 1 << self.ledger.key(number as u32, pushed.sequence.0);
                let worker = &mut state.workers[number];
                worker.stages[shard] = Stage::Answered;
                if worker.stages == [Stage::Answered; SHARDS] {
                    worker.done += 1;
                    if worker.done < self.ledger.pushes {
                        worker.stages = [Stage::Pull; SHARDS];
                    }
                }
            }
            ShardEffect::Doubt(Doubt { worker, applied, .. }) => {
                state.workers[worker.0 as usize].doubts[shard] = Some(applied.0);
            }
            _ => {}
        }
    }

    /// The bound, and that nothing is in the values twice.
    fn check_read(&self, state: &mut State, reader: usize, values: &[f32]) {
        let inside = match self.ledger.read(values) {
            Ok(inside) => inside,
            Err(text) => return state.broken = Some(text),
        };
        let clock = state.workers[reader].done;
        for (id, other) in state.workers.iter().enumerate() {
            let needs = if id == reader { clock } else { clock.saturating_sub(BOUND) };
            let lacks = (1..=needs).find(|push| inside & (1 << self.ledger.key(id as u32, *push)) == 0);
            if let (Some(push), false) = (lacks, other.vanished) {
                state.broken = Some(format!("worker {reader} at {clock} reads without push {push} of {id}"));
                return;
            }
        }
    }

    fn arrive(&self, state: &mut State, number: usize, shard: usize) {
        let (id, session) = (number as u32, SessionId(number as u64));
        let worker = &mut state.workers[number];
        let sequence = worker.done + 1;
        let event = match worker.stages[shard] {
            Stage::Pull => {
                worker.stages[shard] = Stage::Pulled;
                let kind =
                    PullKind::Gated { clock: Clock(worker.done), after: Sequence(worker.done), ahead: 0 };
                let reader = Some((WorkerId(id), incarnation(id)));
                ShardEvent::Pull { session, reader, request: worker.done, have: 0, kind }
            }
            Stage::Push => self.ledger.push(session, id, sequence),
            _ => ShardEvent::Commit {
                worker: WorkerId(id),
                incarnation: incarnation(id),
                sequence: Sequence(sequence),
            },
        };
        self.shard_event(state, shard, event);
    }

    /// The step through which a worker that is gone is applied, once both shards have said how far they are.
    fn through(worker: &Worker) -> Option<u64> {
        worker.doubts.iter().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    fn is_over(&self, state: &State) -> bool {
        state.workers.iter().all(|worker| {
            let is_done = worker.done == self.ledger.pushes && !worker.vanished;
            is_done || worker.resolved == [true; SHARDS]
        })
    }

    fn agrees(&self, state: &State) -> bool {
        let inside = |shard: &Shard| self.ledger.read(shard.values().unwrap_or_default());
        let [left, right] = state.shards.each_ref().map(inside);
        !self.is_over(state) || (left == right && left.is_ok_and(|bits| state.acknowledged & !bits == 0))
    }

    fn is_enabled(&self, state: &State, action: &Action) -> bool {
        match *action {
            Action::Arrive(worker, shard) => {
                let worker = &state.workers[worker];
                let stage = worker.stages[shard];
                let pulls_both = worker.stages.iter().all(|stage| *stage >= Stage::Push);
                let is_under_way = match stage {
                    Stage::Pull => !worker.vanished,
                    Stage::Push => pulls_both,
                    Stage::Commit => true,
                    _ => false,
                };
                is_under_way && !worker.removed[shard]
            }
            Action::Vanish(worker) => {
                let worker = &state.workers[worker];
                state.vanish > 0 && !worker.vanished && worker.done < self.ledger.pushes
            }
            Action::Remove(worker, shard) => {
                let worker = &state.workers[worker];
                worker.vanished && !worker.removed[shard]
            }
            Action::Resolve(worker, shard) => {
                let worker = &state.workers[worker];
                Self::through(worker).is_some() && !worker.resolved[shard]
            }
        }
    }
}

impl Stage {
    const fn order(self) -> u8 {
        match self {
            Self::Pull => 0,
            Self::Pulled => 1,
            Self::Push => 2,
            Self::Staged => 3,
            Self::Commit => 4,
            Self::Answered => 5,
        }
    }
}

impl PartialOrd for Stage {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.order().cmp(&other.order()))
    }
}

impl Model for Variant {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let shards = [0, 1].map(|shard| Shard::new(self.ledger.shard(shard, Steps::Whole)));
        let worker = Worker {
            stages: [Stage::Pull; SHARDS],
            done: 0,
            vanished: false,
            removed: [false; SHARDS],
            doubts: [None; SHARDS],
            resolved: [false; SHARDS],
        };
        let workers = vec![worker; self.ledger.workers as usize];
        let mut state = State { shards, workers, acknowledged: 0, vanish: self.vanish, broken: None };
        for shard in 0..SHARDS {
            for event in self.ledger.opening() {
                self.shard_event(&mut state, shard, event);
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        let of_shards = |worker| {
            (0..SHARDS).flat_map(move |shard| {
                [Action::Arrive(worker, shard), Action::Remove(worker, shard), Action::Resolve(worker, shard)]
            })
        };
        let all =
            (0..state.workers.len()).flat_map(|worker| of_shards(worker).chain([Action::Vanish(worker)]));
        actions.extend(all.filter(|action| self.is_enabled(state, action)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Arrive(worker, shard) => self.arrive(&mut state, worker, shard),
            Action::Vanish(worker) => {
                state.vanish -= 1;
                state.workers[worker].vanished = true;
            }
            Action::Remove(worker, shard) => {
                state.workers[worker].removed[shard] = true;
                let event = ShardEvent::Remove { worker: WorkerId(worker as u32) };
                self.shard_event(&mut state, shard, event);
            }
            Action::Resolve(worker, shard) => {
                let through = Sequence(Self::through(&state.workers[worker]).unwrap_or_default());
                state.workers[worker].resolved[shard] = true;
                let (id, incarnation) = (WorkerId(worker as u32), incarnation(worker as u32));
                let event = ShardEvent::Resolve { worker: id, incarnation, through };
                self.shard_event(&mut state, shard, event);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing counts twice and nothing is read too early", |_, state: &State| {
                state.broken.is_none()
            }),
            Property::always(
                "in the end all shards have all that was acknowledged, and the same",
                Self::agrees,
            ),
            Property::always("what is not over goes on", |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !actions.is_empty() || model.is_over(state) || state.broken.is_some()
            }),
            Property::eventually("the run is over", |model: &Self, state: &State| model.is_over(state)),
            Property::sometimes("a step is applied although its worker vanished", |_, state: &State| {
                state.workers.iter().any(|worker| worker.vanished && worker.doubts.contains(&Some(1)))
            }),
        ]
    }
}
