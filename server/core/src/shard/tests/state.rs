//! A shard that is restored from its state is the same shard; damaged states end in errors.

use super::crowd::{Crowd, settings};
use super::*;

/// Two shards that are told the same, and must say the same.
struct Twins {
    crowd: Crowd,
    first: Shard,
    second: Option<Shard>,
    now: u64,
}

impl Twins {
    fn new(settings: ShardSettings, workers: usize) -> Self {
        let keys = settings.keys.len;
        let mut twins =
            Self { crowd: Crowd::new(workers, keys), first: Shard::new(settings), second: None, now: 0 };
        let beginning = twins.crowd.beginning();
        twins.all(beginning);
        twins
    }

    fn all(&mut self, events: Vec<ShardEvent>) {
        for event in events {
            self.event(event);
        }
    }

    fn event(&mut self, event: ShardEvent) {
        self.now += 100_000_000;
        let (mut effects, mut others) = (Vec::new(), Vec::new());
        self.first.handle(Moment(self.now), event.clone(), &mut effects);
        self.first.check_invariants();
        effects.iter().for_each(|effect| self.crowd.hear(effect));
        if let Some(second) = &mut self.second {
            second.handle(Moment(self.now), event, &mut others);
            second.check_invariants();
            // Buffers that a state shares are given back by whoever has them last.
            let said = |effects: &[ShardEffect]| -> Vec<String> {
                let said = effects.iter().filter(|effect| !matches!(effect, ShardEffect::Recycle(_)));
                said.map(|effect| format!("{effect:?}")).collect()
            };
            assert_eq!(said(&effects), said(&others));
            assert_eq!(self.first.state(), second.state());
            assert_eq!(self.first.next_deadline(), second.next_deadline());
        }
    }

    fn steps(&mut self, picks: &[(usize, u8)]) {
        for (index, action) in picks.iter().copied() {
            if action == 4 {
                self.event(ShardEvent::Tick);
            }
            let events = self.crowd.next(index, action);
            self.all(events);
        }
    }
}

fn picks(most: usize) -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((0..4_usize, 0..24_u8), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_restored_shard_goes_on_as_the_one_it_was_taken_from(settings in settings(), workers in 1..5_usize, before in picks(120), after in picks(80)) {
        let mut twins = Twins::new(settings.clone(), workers);
        twins.steps(&before);
        let state = twins.first.state();
        let restored = Shard::restore(settings, state.clone()).unwrap();
        prop_assert_eq!(&restored.state(), &state);
        prop_assert_eq!(restored.state().hash(), state.hash());
        twins.second = Some(restored);
        // Both are copies that take over: sessions and pulls that waited are gone, and whoever waits asks again.
        let members = twins.crowd.members();
        twins.event(ShardEvent::Lead { members, started: true });
        let again = twins.crowd.move_over();
        twins.all(again);
        twins.steps(&after);
        prop_assert_eq!(twins.first.state().hash(), twins.second.unwrap().state().hash());
    }

    #[test]
    fn a_damaged_state_is_refused_or_harmless(settings in settings(), before in picks(60), after in picks(40), place in any::<prop::sample::Index>(), value in any::<u8>(), kind in 0..5_u8) {
        let mut twins = Twins::new(settings.clone(), 3);
        twins.steps(&before);
        let mut state = twins.first.state();
        let mut harmless = false;
        match kind {
            0 => { let place = place.index(state.facts.len()); state.facts[place] = value; }
            1 => state.facts.truncate(place.index(state.facts.len())),
            2 => harmless = state.arrays.pop().is_some_and(|array| array.name == "values"),
            3 => { let place = place.index(state.arrays.len()); state.arrays[place].values = Arc::new(vec![0.0; value as usize % 5]); }
            _ => state.arrays.push(StateArray { name: "read.0".to_owned(), values: Arc::new(vec![0.0; 5]) }),
        }
        let damaged = Shard::restore(settings, state);
        if kind != 0 && !harmless { prop_assert!(damaged.is_err()); }
        // A byte that was changed can still say something that makes sense, and then the shard must live with it.
        let Ok(mut shard) = damaged else { return Ok(()) };
        let mut now = twins.now;
        for (index, action) in after {
            for event in twins.crowd.next(index, action) {
                now += 1;
                shard.handle(Moment(now), event.clone(), &mut Vec::new());
                twins.event(event);
            }
        }
    }
}

#[test]
fn a_state_of_another_shard_or_configuration_is_named() {
    let state = shard(PolicySpec::Asp).state();
    let other = ShardState { shard: ShardId(7), ..state.clone() };
    let settings = |policy| ShardSettings {
        id: ShardId(0),
        keys: KeyRange::new(0, KEYS),
        layout: Arc::new({
            let mut layout = Layout::new();
            layout.parameter("weight", &[KEYS], false);
            layout
        }),
        policy,
        delay: DelaySpec::default(),
        optimizer: sgd(),
        workers: 1,
        batch: None,
        steps: Steps::Parts,
        guard: config::Guard::default(),
        pull: CodecKind::F32,
        buffers: Default::default(),
    };
    let wrong = Shard::restore(settings(PolicySpec::Asp), other).err().unwrap();
    assert!(wrong.to_string().contains("shard 7"), "{wrong}");
    let wrong = Shard::restore(settings(PolicySpec::Dssp { low: 1, high: 2 }), state).err().unwrap();
    assert!(wrong.to_string().contains("another policy"), "{wrong}");
}

#[test]
fn making_a_state_copies_no_array_and_the_shard_goes_on_without_it() {
    let mut world = World::new(PolicySpec::Asp, 1);
    world.step(0);
    let state = world.shard.state();
    let values = state.array("values").unwrap();
    assert_eq!(values.as_ptr(), world.shard.values().unwrap().as_ptr());
    world.step(0);
    assert_eq!((values[0], world.shard.values().unwrap()[0]), (0.0, -1.0));
}
