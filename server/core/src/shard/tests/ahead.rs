//! Readers that pull for their next iteration while they compute this one.

use slackline_core::wire::Mark;

use super::*;

/// A worker that computes on one version and has pulled, or has what it pulled, for the iteration after it.
#[derive(Clone, Copy, Debug, Default)]
struct Piped {
    /// Iterations it has completed, which are the pushes it has sent.
    clock: u64,
    computing: Option<Version>,
    next: Option<Option<Version>>,
}

/// Such workers around one shard.
struct Pipes {
    policy: PolicySpec,
    shard: Shard,
    workers: Vec<Piped>,
    now: u64,
    requests: u64,
    staleness: Vec<u64>,
    in_flight: u64,
}

const fn name(index: usize) -> (WorkerId, Incarnation) {
    (WorkerId(index as u32), Incarnation(index as u64))
}

impl Pipes {
    fn new(policy: PolicySpec, workers: usize) -> Self {
        let (shard, workers) = (shard(policy), vec![Piped::default(); workers]);
        let (now, requests, in_flight) = (0, 0, 0);
        let mut pipes = Self { policy, shard, workers, now, requests, staleness: Vec::new(), in_flight };
        for index in 0..pipes.workers.len() {
            let (worker, incarnation) = name(index);
            pipes.event(ShardEvent::Enter {
                worker,
                incarnation,
                clock: Clock(0),
                standing: Standing::Active,
                batch_count: 1000,
                answered: Sequence(0),
            });
        }
        pipes.event(ShardEvent::Initialize(vec![0.0; KEYS as usize]));
        pipes.event(ShardEvent::Start);
        pipes
    }

    fn event(&mut self, event: ShardEvent) -> Vec<ShardEffect> {
        self.now += 1;
        let mut effects = Vec::new();
        self.shard.handle(Moment(self.now), event, &mut effects);
        self.shard.check_invariants();
        for effect in &effects {
            match effect {
                ShardEffect::Serve { reader: Some((worker, _)), kind, served, .. } => {
                    self.served(*worker, *kind, *served)
                }
                ShardEffect::Answer { pushed, .. } => match pushed.outcome {
                    PushOutcome::Applied { staleness, .. } | PushOutcome::Gathered { staleness, .. } => {
                        self.staleness.push(staleness);
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        effects
    }

    /// The read rule, at the clock at which the values are used: everyone's first c - s iterations, the reader's own among them, and all
    /// its own pushes but the last.
    fn served(&mut self, worker: WorkerId, kind: PullKind, served: Served) {
        let PullKind::Gated { clock, after, ahead } = kind else { panic!("{kind:?}") };
        let own = self.workers[worker.0 as usize];
        assert!(ahead <= 1 && after.0 + ahead == clock.0, "all its pushes but so many");
        assert!(own.clock >= after.0 && own.clock + 1 >= clock.0);
        let minimum = self.workers.iter().map(|other| other.clock).min().unwrap_or_default();
        assert_eq!((served.minimum, served.lead), (Clock(minimum), clock.0 - minimum));
        if let Some(staleness) = self.policy.staleness() {
            assert!(served.lead <= staleness, "{worker} reads at {clock} what has {minimum} of somebody");
        }
        assert_eq!(self.workers[worker.0 as usize].next.replace(Some(served.version)), Some(None));
    }

    /// A worker does the next thing it can do; false when it waits. It pulls ahead if it is to and has not.
    fn step(&mut self, index: usize, pulls_ahead: bool) -> bool {
        let (worker, incarnation) = name(index);
        let Piped { clock, computing, next } = self.workers[index];
        let session = SessionId(index as u64);
        match (computing, next) {
            (None, Some(None)) => return false,
            (None, Some(Some(version))) => {
                (self.workers[index].computing, self.workers[index].next) = (Some(version), None);
            }
            (Some(pulled), next) if next.is_some() || !pulls_ahead => {
                let is_in_flight = |worker: &Piped| {
                    u64::from(worker.computing.is_some()) + u64::from(matches!(worker.next, Some(Some(_))))
                };
                self.in_flight += self.workers.iter().map(is_in_flight).sum::<u64>() - 1;
                (self.workers[index].computing, self.workers[index].clock) = (None, clock + 1);
                self.event(ShardEvent::Push(Push {
                    session,
                    worker,
                    incarnation,
                    sequence: Sequence(clock + 1),
                    clock: Clock(clock),
                    pulled,
                    batch: BatchIndex(clock * self.workers.len() as u64 + index as u64),
                    samples: 4,
                    reply: 0,
                    have: 0,
                    gradient: Some(vec![1.0; KEYS as usize].into()),
                }));
            }
            (computing, _) => {
                let ahead = u64::from(computing.is_some());
                let kind = PullKind::Gated { clock: Clock(clock + ahead), after: Sequence(clock), ahead };
                self.requests += 1;
                let (reader, request) = (Some((worker, incarnation)), self.requests);
                self.workers[index].next = Some(None);
                self.event(ShardEvent::Pull { session, reader, request, have: 0, kind });
            }
        }
        true
    }

    /// Everybody ends what it has begun, and nobody hangs.
    fn drain(&mut self) {
        let last = self.workers.iter().map(|worker| worker.clock).max().unwrap_or_default() + 2;
        let is_over =
            |worker: &Piped| worker.clock >= last && worker.computing.is_none() && worker.next.is_none();
        while !self.workers.iter().all(is_over) {
            let open: Vec<_> =
                (0..self.workers.len()).filter(|index| !is_over(&self.workers[*index])).collect();
            let moved = open.iter().filter(|index| self.step(**index, false)).count();
            assert!(moved > 0, "nobody can go on: {:?}", self.workers);
            for (index, worker) in self.workers.clone().iter().enumerate() {
                if is_over(worker) {
                    self.event(ShardEvent::Finish { worker: name(index).0 });
                    // Whoever has no work is in nobody's way.
                    self.workers[index].clock = u64::MAX >> 1;
                }
            }
        }
    }
}

fn reading_ahead() -> impl Strategy<Value = PolicySpec> {
    prop_oneof![
        (1..4_u64).prop_map(|staleness| PolicySpec::Ssp { staleness }),
        (1..4_u64).prop_map(|staleness| PolicySpec::Essp { staleness }),
        (1..3_u64, 0..4_u64).prop_map(|(low, more)| PolicySpec::Dssp { low, high: low + more }),
        Just(PolicySpec::Asp),
        prop::option::of(1..6_u32).prop_map(|count| PolicySpec::Buffer { count }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    // Laws 2, 3 and 4 of bounded staleness, with two iterations of each worker in flight: what is read is no staler than the bound at the clock
    // at which it is used, a gradient meets at most (P - 1)(2s + 1) versions of others and one of its own worker, and each apply ages exactly the gradients
    // that are in flight.
    #[test]
    fn what_is_read_ahead_keeps_the_laws(
        policy in reading_ahead(),
        workers in 1..6_usize,
        picks in prop::collection::vec((0..6_usize, any::<bool>()), 0..300),
    ) {
        let mut pipes = Pipes::new(policy, workers);
        for (index, pulls_ahead) in picks {
            pipes.step(index % workers, pulls_ahead);
        }
        pipes.drain();
        let most = pipes.staleness.iter().max().copied().unwrap_or_default();
        if let Some(bound) = policy.version_bound(workers as u64, 1) {
            prop_assert!(most <= bound, "{} > {}", most, bound);
        }
        if !policy.takes_means() {
            prop_assert_eq!(pipes.staleness.iter().sum::<u64>(), pipes.in_flight);
        }
    }
}

#[test]
fn a_worker_alone_that_reads_ahead_computes_on_all_but_its_last_push() {
    let mut pipes = Pipes::new(PolicySpec::Ssp { staleness: 1 }, 1);
    for _ in 0..40 {
        assert!(pipes.step(0, true), "its own bound never holds it");
    }
    let (first, rest) = pipes.staleness.split_at(1);
    assert_eq!(first, [0]);
    assert!(rest.len() > 10 && rest.iter().all(|staleness| *staleness == 1), "{rest:?}");
}

// A pull at clock c said that c iterations are complete: a cut would not have waited for the one that is computed meanwhile.
#[test]
fn a_pull_ahead_does_not_say_that_its_iterations_are_complete() {
    let mut pipes = Pipes::new(PolicySpec::Asp, 1);
    let (worker, incarnation) = name(0);
    pipes.step(0, true);
    pipes.step(0, true);
    let mark = Mark { number: 1, cuts: vec![(worker, Clock(1))], rest: None };
    pipes.event(ShardEvent::Mark(mark));
    pipes.step(0, true);
    assert_eq!(pipes.workers[0].next, Some(Some(Version(0))), "it was served at clock 1");
    assert_eq!(pipes.shard.table().clock_of(worker), Some(Clock(0)));
    assert_eq!(pipes.shard.open_cut(), Some((1, vec![worker])));
    let push = Push {
        session: SessionId(0),
        worker,
        incarnation,
        sequence: Sequence(1),
        clock: Clock(0),
        pulled: Version(0),
        batch: BatchIndex(0),
        samples: 4,
        reply: 0,
        have: 0,
        gradient: Some(vec![1.0; KEYS as usize].into()),
    };
    let effects = pipes.event(ShardEvent::Push(push));
    let cut = effects.iter().find_map(|effect| match effect {
        ShardEffect::Cut { state, .. } => Some(state.version),
        _ => None,
    });
    assert_eq!(cut, Some(Version(1)), "the push of clock 0 is below the cut");
}
