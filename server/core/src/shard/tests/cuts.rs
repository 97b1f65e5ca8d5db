//! Cuts: exactly what is below them, at every shard, while the shards go on as if there were none.

use slackline_core::wire::Mark;

use super::pair::{Life, PUSHES, taken, wide};
use super::*;

const LIVES: usize = 6;

#[derive(Clone, Debug)]
struct Walker {
    life: Life,
    /// What each of the two shards has of it; its clock is the further one.
    sent: [u64; 2],
    /// Its removal, at each shard.
    gone: [bool; 2],
    last: Option<u64>,
}

/// Two shards with a twin each that hears of no mark.
struct World3 {
    shards: [[Shard; 2]; 2],
    cuts: [Option<ShardState>; 2],
    missed: [bool; 2],
    walkers: Vec<Walker>,
    now: u64,
    whole: bool,
}

impl World3 {
    fn new(policy: PolicySpec, workers: usize, whole: bool) -> Self {
        let steps = if whole { Steps::Whole } else { Steps::Parts };
        let shard = || Shard::new(wide(policy, steps, LIVES));
        let walker =
            |index| Walker { life: Life::new(index, index), sent: [0; 2], gone: [false; 2], last: None };
        let mut world = Self {
            shards: [[shard(), shard()], [shard(), shard()]],
            cuts: [None, None],
            missed: [false; 2],
            walkers: (0..workers).map(walker).collect(),
            now: 0,
            whole,
        };
        for shard in 0..2 {
            for index in 0..workers {
                world.event(shard, world.walkers[index].life.enter(0, Standing::Active));
            }
            world.event(shard, ShardEvent::Initialize(vec![0.0; LIVES * PUSHES as usize]));
            world.event(shard, ShardEvent::Start);
        }
        world
    }

    fn event(&mut self, shard: usize, event: ShardEvent) {
        self.now += 1;
        let mut effects = Vec::new();
        let [marked, plain] = &mut self.shards[shard];
        if !matches!(event, ShardEvent::Mark(_)) {
            plain.handle(Moment(self.now), event.clone(), &mut Vec::new());
        }
        marked.handle(Moment(self.now), event, &mut effects);
        marked.check_members();
        marked.check_cut();
        assert_eq!(marked.state().hash(), plain.state().hash(), "a cut changes nothing");
        for effect in effects {
            match effect {
                ShardEffect::Cut { state, .. } => assert!(self.cuts[shard].replace(*state).is_none()),
                ShardEffect::CutMissed { .. } => self.missed[shard] = true,
                _ => {}
            }
        }
    }

    fn clock(&self, index: usize) -> u64 {
        let [first, second] = self.walkers[index].sent;
        first.max(second)
    }

    /// The next push of a worker comes to a shard; where steps are whole, only with its commit.
    fn push(&mut self, index: usize, shard: usize) {
        let Walker { life, sent, gone, last } = self.walkers[index].clone();
        let sequence = sent[shard] + 1;
        let is_over = last.is_some_and(|last| sequence > last) || sequence >= PUSHES;
        // A worker is at most two steps further with one shard than with the other.
        let has_room = self.shards[shard][0].members.get(&life.worker).is_some_and(Member::has_room);
        if gone[shard] || is_over || !has_room || sequence > sent[1 - shard] + 2 {
            return;
        }
        self.walkers[index].sent[shard] = sequence;
        self.event(shard, ShardEvent::Push(life.push(sequence, sequence - 1, LIVES)));
        if self.whole {
            let Life { worker, incarnation } = life;
            self.event(shard, ShardEvent::Commit { worker, incarnation, sequence: Sequence(sequence) });
        }
    }

    /// A worker pushes no more, and is removed at each shard once that has all of it.
    fn remove(&mut self, index: usize, shard: usize) {
        let last = self.clock(index);
        let walker = &mut self.walkers[index];
        let last = *walker.last.get_or_insert(last);
        if walker.sent[shard] == last && !walker.gone[shard] {
            walker.gone[shard] = true;
            let Life { worker, incarnation } = walker.life;
            self.event(shard, ShardEvent::Remove { worker });
            if self.whole {
                self.event(shard, ShardEvent::Resolve { worker, incarnation, through: Sequence(last) });
            }
        }
    }

    fn pull(&mut self, index: usize, shard: usize) {
        let Walker { life: Life { worker, incarnation }, sent, .. } = self.walkers[index].clone();
        let (clock, after) = (Clock(sent[shard]), Sequence(sent[shard]));
        let kind = PullKind::Gated { clock, after, ahead: 0 };
        let (session, reader) = (SessionId(incarnation.0), Some((worker, incarnation)));
        self.event(shard, ShardEvent::Pull { session, reader, request: self.now, have: 0, kind });
    }

    fn act(&mut self, index: usize, action: u8, shard: usize) {
        match action {
            0 => self.remove(index, shard),
            1 => self.event(shard, ShardEvent::Tick),
            2 => self.pull(index, shard),
            _ => self.push(index, shard),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn both_cuts_have_exactly_what_is_below_and_the_shards_never_notice(
        policy in policies(), workers in 1..5_usize, whole in any::<bool>(), rest in any::<bool>(),
        before in prop::collection::vec((0..5_usize, 0..20_u8, 0..2_usize), 0..60),
        margin in 0..6_u64,
        between in prop::collection::vec((0..5_usize, 0..20_u8), 0..12),
        after in prop::collection::vec((0..5_usize, 0..20_u8, 0..2_usize), 0..80),
    ) {
        let mut world = World3::new(policy, workers, whole);
        for (index, action, shard) in before {
            world.act(index % workers, action, shard);
        }
        let clocks: Vec<u64> = (0..workers).map(|index| world.clock(index)).collect();
        let cut = |index: usize| if rest { clocks.iter().max().unwrap() + margin } else { clocks[index] + margin };
        let cuts = (0..workers).map(|index| (WorkerId(index as u32), Clock(cut(index))));
        let mark = Mark { number: 1, cuts: if rest { Vec::new() } else { cuts.collect() }, rest: rest.then(|| Clock(cut(0))) };
        world.event(0, ShardEvent::Mark(mark.clone()));
        for (index, action) in between {
            world.act(index % workers, action, 1);
        }
        world.event(1, ShardEvent::Mark(mark));
        for (index, action, shard) in after {
            world.act(index % workers, action, shard);
        }
        // All come past the cut.
        for index in (0..PUSHES as usize * workers).map(|turn| turn % workers) {
            for shard in 0..2 {
                if world.walkers[index].sent[shard] < cut(index) + 1 {
                    world.push(index, shard);
                }
                if world.walkers[index].last.is_some() {
                    world.remove(index, shard);
                }
            }
        }
        // Without a marker that comes too late nothing is missed, and who stays past the cut completes it.
        let mut sets = Vec::new();
        for shard in 0..2 {
            prop_assert_eq!(world.missed[shard], world.cuts[shard].is_none());
            let Some(state) = &world.cuts[shard] else { continue };
            let live = taken(&world.shards[shard][0].state());
            let below = |key: &usize| {
                let (life, sequence) = (key / PUSHES as usize, key % PUSHES as usize);
                (sequence as u64) < cut(life)
            };
            let set = taken(state);
            prop_assert_eq!(&set, &live.into_iter().filter(below).collect());
            let restored = Shard::restore(wide(policy, if whole { Steps::Whole } else { Steps::Parts }, LIVES), state.clone()).unwrap();
            prop_assert_eq!(restored.staged_count(), 0);
            sets.push(set);
        }
        prop_assert!(!world.missed[0]);
        if let [first, second] = &sets[..] && !matches!(policy, PolicySpec::Backup { late: 1.. }) {
            prop_assert_eq!(first, second);
        }
    }
}

fn marked(shard: &mut Shard, number: u64, cut: u64) -> Vec<ShardEffect> {
    let mut effects = Vec::new();
    let mark = Mark { number, cuts: Vec::new(), rest: Some(Clock(cut)) };
    shard.handle(Moment(1), ShardEvent::Mark(mark), &mut effects);
    effects
}

#[test]
fn a_cut_below_what_was_taken_in_is_missed_and_a_new_one_ends_the_old() {
    let mut world = World3::new(PolicySpec::Bsp, 2, false);
    world.push(0, 0);
    world.push(0, 0);
    let shard = &mut world.shards[0][0];
    assert!(matches!(&marked(shard, 1, 1)[..], [ShardEffect::CutMissed { number: 1 }]));
    assert!(marked(shard, 2, 5).is_empty());
    assert!(marked(shard, 2, 5).is_empty(), "a mark that is repeated begins nothing");
    assert!(matches!(&marked(shard, 3, 7)[..], [ShardEffect::CutMissed { number: 2 }]));
    assert_eq!(shard.open_cut(), Some((3, vec![WorkerId(0), WorkerId(1)])));
}

#[test]
fn a_bsp_cut_is_the_state_in_which_that_clock_begins() {
    let mut world = World3::new(PolicySpec::Bsp, 2, false);
    world.event(0, ShardEvent::Mark(Mark { number: 1, cuts: Vec::new(), rest: Some(Clock(2)) }));
    for _ in 0..3 {
        world.push(0, 1);
        world.push(0, 0);
    }
    let (mut reference, mut effects) = (World3::new(PolicySpec::Bsp, 2, false), Vec::new());
    for _ in 0..2 {
        for index in 0..2 {
            reference.push(index, 1);
            reference.push(index, 0);
            world.push(1, 1);
            world.push(1, 0);
        }
    }
    marked(&mut reference.shards[0][0], 1, 2).into_iter().for_each(|effect| effects.push(effect));
    let Some(ShardEffect::Cut { state, .. }) = effects.pop() else { panic!("all are past it") };
    let cut = world.cuts[0].clone().unwrap();
    assert_eq!((cut.version, cut.clock), (Version(2), Clock(2)));
    assert_eq!(cut.array("values"), state.array("values"));
}
