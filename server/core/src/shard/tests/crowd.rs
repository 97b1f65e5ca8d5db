//! A crowd of workers that speaks in events and listens to effects: for tests of shards and of hosts.

use super::*;

/// What one of them does.
#[derive(Clone, Debug, PartialEq)]
enum Doing {
    Ready,
    Pulling,
    Computing,
    /// Its push waits for its answer; whether it was said to be staged.
    Pushed {
        staged: bool,
    },
    Finished,
}

#[derive(Clone, Debug)]
struct Walker {
    incarnation: u64,
    clock: u64,
    sequence: u64,
    pulled: Version,
    doing: Doing,
    push: Option<Push>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    walkers: Vec<Walker>,
    incarnations: u64,
    requests: u64,
    session: u64,
    keys: u64,
    /// First answers, by worker, incarnation and sequence.
    pub(crate) answers: BTreeMap<(u32, u64, u64), PushOutcome>,
}

impl Crowd {
    pub(crate) fn new(count: usize, keys: u64) -> Self {
        let walker = |index| Walker {
            incarnation: index,
            clock: 0,
            sequence: 0,
            pulled: Version(0),
            doing: Doing::Ready,
            push: None,
        };
        let walkers: Vec<Walker> = (0..count as u64).map(walker).collect();
        Self { walkers, incarnations: count as u64, requests: 0, session: 0, keys, answers: BTreeMap::new() }
    }

    /// The events with which a run begins.
    pub(crate) fn beginning(&self) -> Vec<ShardEvent> {
        let mut events: Vec<_> =
            (0..self.walkers.len()).map(|index| self.enter(index, Standing::Active)).collect();
        events.push(ShardEvent::Initialize((0..self.keys).map(|key| key as f32 * 0.25).collect()));
        events.push(ShardEvent::Start);
        events
    }

    pub(crate) fn members(&self) -> Vec<(WorkerId, Incarnation, Clock)> {
        let member = |(index, walker): (usize, &Walker)| {
            (WorkerId(index as u32), Incarnation(walker.incarnation), Clock(walker.clock))
        };
        self.walkers.iter().enumerate().map(member).collect()
    }

    fn enter(&self, index: usize, standing: Standing) -> ShardEvent {
        let walker = &self.walkers[index];
        ShardEvent::Enter {
            worker: WorkerId(index as u32),
            incarnation: Incarnation(walker.incarnation),
            clock: Clock(walker.clock),
            standing,
            batch_count: 500,
            answered: Sequence(0),
        }
    }

    fn session(&self, index: usize) -> SessionId {
        SessionId(self.session * 1_000_000 + self.walkers[index].incarnation)
    }

    /// Whose session it is; none for that of a former life.
    fn speaker(&self, session: SessionId) -> Option<usize> {
        self.walkers.iter().position(|walker| walker.incarnation == session.0 % 1_000_000)
    }

    fn pull(&mut self, index: usize) -> ShardEvent {
        self.requests += 1;
        let walker = &self.walkers[index];
        let reader = Some((WorkerId(index as u32), Incarnation(walker.incarnation)));
        let kind = PullKind::Gated { clock: Clock(walker.clock), after: Sequence(walker.sequence), ahead: 0 };
        ShardEvent::Pull { session: self.session(index), reader, request: self.requests, have: 0, kind }
    }

    fn commit(&self, index: usize) -> ShardEvent {
        let walker = &self.walkers[index];
        ShardEvent::Commit {
            worker: WorkerId(index as u32),
            incarnation: Incarnation(walker.incarnation),
            sequence: Sequence(walker.sequence),
        }
    }

    /// What a worker does next; none while it waits.
    pub(crate) fn next(&mut self, index: usize, action: u8) -> Vec<ShardEvent> {
        let index = index % self.walkers.len();
        let worker = WorkerId(index as u32);
        let session = self.session(index);
        match (self.walkers[index].doing.clone(), action) {
            (_, 0) => self.walkers[index].push.clone().map(ShardEvent::Push).into_iter().collect(),
            (_, 1) => {
                self.incarnations += 1;
                let clock = self.walkers.iter().map(|walker| walker.clock).min().unwrap_or(0);
                let (incarnation, sequence, pulled, doing) = (self.incarnations, 0, Version(0), Doing::Ready);
                self.walkers[index] = Walker { incarnation, clock, sequence, pulled, doing, push: None };
                vec![ShardEvent::Remove { worker }, self.enter(index, Standing::Joining)]
            }
            (Doing::Ready, 2) => {
                self.walkers[index].doing = Doing::Finished;
                vec![ShardEvent::Finish { worker }]
            }
            (Doing::Finished, _) => {
                self.walkers[index].doing = Doing::Ready;
                vec![ShardEvent::Reenter { worker, clock: Clock(self.walkers[index].clock) }]
            }
            (Doing::Ready, _) => {
                self.walkers[index].doing = Doing::Pulling;
                vec![self.pull(index)]
            }
            (Doing::Computing, _) => {
                let workers = self.walkers.len() as u64;
                let walker = &mut self.walkers[index];
                let value = |key| ((walker.clock * 31 + index as u64 * 7 + key) % 11) as f32 - 5.0;
                let push = Push {
                    session,
                    worker,
                    incarnation: Incarnation(walker.incarnation),
                    sequence: Sequence(walker.sequence + 1),
                    clock: Clock(walker.clock),
                    pulled: walker.pulled,
                    batch: BatchIndex(walker.clock * workers + index as u64),
                    samples: 4,
                    reply: 0,
                    have: 0,
                    gradient: (action != 3).then(|| (0..self.keys).map(value).collect()),
                };
                (walker.clock, walker.sequence) = (walker.clock + 1, walker.sequence + 1);
                (walker.doing, walker.push) = (Doing::Pushed { staged: false }, Some(push.clone()));
                vec![ShardEvent::Push(push)]
            }
            (Doing::Pushed { staged: true }, _) => vec![self.commit(index)],
            (Doing::Pushed { staged: false } | Doing::Pulling, _) => Vec::new(),
        }
    }

    pub(crate) fn hear(&mut self, effect: &ShardEffect) {
        match effect {
            ShardEffect::Answer { session, pushed } => {
                let Some(index) = self.speaker(*session) else { return };
                let walker = &mut self.walkers[index];
                let is_current = walker.push.as_ref().is_some_and(|push| push.sequence == pushed.sequence);
                if pushed.outcome == PushOutcome::Fenced || !is_current {
                    return;
                }
                let key = (index as u32, walker.incarnation, pushed.sequence.0);
                let first = self.answers.entry(key).or_insert(pushed.outcome);
                assert_eq!(*first, pushed.outcome, "a retry gets the first answer");
                walker.clock = walker.clock.max(pushed.clock.0);
                if matches!(walker.doing, Doing::Pushed { .. }) && walker.sequence == pushed.sequence.0 {
                    walker.doing = Doing::Ready;
                }
            }
            ShardEffect::Staged { session, sequence } => {
                let Some(index) = self.speaker(*session) else { return };
                let walker = &mut self.walkers[index];
                if walker.sequence == sequence.0 && walker.doing == (Doing::Pushed { staged: false }) {
                    walker.doing = Doing::Pushed { staged: true };
                }
            }
            ShardEffect::Serve { reader: Some((worker, incarnation)), served, .. } => {
                let walker = &mut self.walkers[worker.0 as usize];
                if walker.incarnation == incarnation.0 && walker.doing == Doing::Pulling {
                    (walker.doing, walker.pulled) = (Doing::Computing, served.version);
                }
            }
            _ => {}
        }
    }

    /// What everyone says to the server that answers for the shard from now on.
    pub(crate) fn move_over(&mut self) -> Vec<ShardEvent> {
        self.session += 1;
        let mut events = Vec::new();
        for index in 0..self.walkers.len() {
            let session = self.session(index);
            match self.walkers[index].doing.clone() {
                Doing::Pulling => events.push(self.pull(index)),
                Doing::Pushed { staged } => {
                    let push = self.walkers[index].push.as_mut().map(|push| {
                        push.session = session;
                        push.clone()
                    });
                    events.extend(push.map(ShardEvent::Push));
                    if staged {
                        events.push(self.commit(index));
                    }
                }
                Doing::Ready | Doing::Computing | Doing::Finished => {}
            }
        }
        events
    }
}

pub(crate) fn delays() -> impl Strategy<Value = DelaySpec> {
    let treatment = prop_oneof![
        Just(Treatment::None),
        Just(Treatment::Inverse),
        Just(Treatment::Compensate { strength: 0.01 }),
        Just(Treatment::CompensateAdaptive { strength: 0.01 }),
    ];
    (treatment, prop::option::of(2..9_u64)).prop_map(|(treatment, drop_at)| DelaySpec { treatment, drop_at })
}

pub(crate) fn settings() -> impl Strategy<Value = ShardSettings> {
    let rules = prop_oneof![
        Just(Rule::Sgd),
        Just(Rule::Momentum { momentum: 0.9, nesterov: true, per: Per::Push }),
        Just(Rule::Momentum { momentum: 0.9, nesterov: false, per: Per::Ordered }),
    ];
    let limits = (any::<bool>(), prop::option::of(4.0..40.0_f32));
    (policies(), delays(), rules, any::<bool>(), limits).prop_map(
        |(policy, delay, rule, whole, (clip, norm_max))| {
            let steps = if whole { Steps::Whole } else { Steps::Parts };
            let mut layout = Layout::new();
            layout.parameter("weight", &[2], true);
            layout.parameter("bias", &[3], false);
            ShardSettings {
                id: ShardId(3),
                keys: KeyRange::new(0, 5),
                layout: Arc::new(layout),
                policy,
                delay,
                optimizer: OptimizerSpec { rule, rate: 0.01, weight_decay: 0.1, ..sgd() },
                workers: 4,
                batch: None,
                steps,
                buffers: Default::default(),
                pull: CodecKind::F32,
                guard: config::Guard {
                    norm_max,
                    on_norm: if clip { OnNorm::Clip } else { OnNorm::Drop },
                    pushes_per_s: None,
                },
            }
        },
    )
}
