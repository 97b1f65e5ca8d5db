//! Answers that leave out what the reader has already.

use slackline_core::codec::{Encoding, Patch, Payload};

use super::*;

/// Four blocks and a part of a fifth.
const MANY: usize = 4 * BLOCK + 100;

fn settings(pull: CodecKind) -> ShardSettings {
    let mut layout = Layout::new();
    layout.parameter("weight", &[MANY as u64], false);
    ShardSettings {
        id: ShardId(0),
        keys: KeyRange::new(0, MANY as u64),
        layout: Arc::new(layout),
        policy: PolicySpec::Asp,
        delay: DelaySpec::default(),
        optimizer: sgd(),
        workers: 1,
        batch: None,
        steps: Steps::Parts,
        guard: config::Guard::default(),
        pull,
        buffers: Default::default(),
    }
}

/// Places that a worker reads into: two for training, and one for evaluations.
const PLACES: usize = 3;

/// A worker, with what lies in its buffers and the pull that it came with.
struct Reader {
    index: u32,
    places: Vec<(u64, Vec<f32>)>,
    sequence: u64,
}

/// A shard and its readers, of whom the last one always wants all.
struct Desk {
    settings: ShardSettings,
    shard: Shard,
    readers: Vec<Reader>,
    requests: u64,
    kept: Option<ShardState>,
    now: u64,
    /// Words of the last answer.
    words: usize,
}

impl Desk {
    fn new(pull: CodecKind) -> Self {
        let settings = settings(pull);
        let reader = |index| Reader { index, places: vec![(0, vec![f32::NAN; MANY]); PLACES], sequence: 0 };
        let mut desk = Self {
            shard: Shard::new(settings.clone()),
            settings,
            readers: (0..3).map(reader).collect(),
            requests: 0,
            kept: None,
            now: 0,
            words: 0,
        };
        for index in 0..3 {
            desk.tell(ShardEvent::Enter {
                worker: WorkerId(index),
                incarnation: Incarnation(1),
                clock: Clock(0),
                standing: Standing::Active,
                batch_count: 10,
                answered: Sequence(0),
            });
        }
        desk.tell(ShardEvent::Initialize((0..MANY).map(|key| key as f32).collect()));
        desk.tell(ShardEvent::Start);
        desk
    }

    fn tell(&mut self, event: ShardEvent) -> Vec<ShardEffect> {
        let mut effects = Vec::new();
        self.now += 1;
        self.shard.handle(Moment(self.now), event, &mut effects);
        self.shard.check_invariants();
        effects
    }

    /// A step of ones in some blocks, or something that is no step.
    fn push(&mut self, reader: usize, blocks: &[usize], fault: Option<f32>) -> PushOutcome {
        let mut gradient = vec![0.0; MANY];
        for block in blocks {
            gradient[block * BLOCK..MANY.min((block + 1) * BLOCK)].fill(1.0);
        }
        gradient[3] = fault.unwrap_or(gradient[3]);
        let reader = &mut self.readers[reader];
        reader.sequence += 1;
        let push = Push {
            session: SessionId(1),
            worker: WorkerId(reader.index),
            incarnation: Incarnation(1),
            sequence: Sequence(reader.sequence),
            clock: Clock(0),
            pulled: Version(0),
            batch: BatchIndex(0),
            samples: 1,
            reply: 0,
            have: 0,
            gradient: (!blocks.is_empty()).then(|| gradient.into()),
        };
        let effects = self.tell(ShardEvent::Push(push));
        let answer = |effect: &ShardEffect| match effect {
            ShardEffect::Answer { pushed, .. } => Some(pushed.outcome),
            _ => None,
        };
        effects.iter().find_map(answer).expect("a push is answered")
    }

    /// A reader pulls, and puts what comes to its place. It names what lies there unless it wants all.
    fn pull(&mut self, reader: usize, place: usize, wants_all: bool) -> Vec<f32> {
        self.requests += 1;
        let (request, name) = (self.requests, (WorkerId(self.readers[reader].index), Incarnation(1)));
        let (lies, before) = self.readers[reader].places[place].clone();
        let have = if wants_all { 0 } else { lies };
        let gated = PullKind::Gated { clock: Clock(0), after: Sequence(0), ahead: 0 };
        let kind = if place + 1 == PLACES { PullKind::Snapshot } else { gated };
        let pull = ShardEvent::Pull { session: SessionId(1), reader: Some(name), request, have, kind };
        let effects = self.tell(pull);
        let [ShardEffect::Serve { values, .. }] = &effects[..] else { panic!("{effects:?}") };
        self.words = values.words.len();
        let words = values.words.to_vec();
        let mut now = before;
        match values.encoding {
            Encoding::Blocks => Patch::new(MANY, words).unwrap().write_to(&mut now),
            encoding => Payload::new(encoding, MANY, words).unwrap().decode_into(&mut now),
        }
        self.readers[reader].places[place] = (request, now.clone());
        now
    }

    /// Another copy takes over, with all that this one has, or with what was kept of it once.
    fn take_over(&mut self, goes_back: bool) {
        let state = if goes_back { self.kept.clone() } else { None };
        let state = state.unwrap_or_else(|| self.shard.state());
        self.shard = Shard::restore(self.settings.clone(), state).unwrap();
        self.lead();
    }

    fn lead(&mut self) {
        let members = (0..3).map(|index| (WorkerId(index), Incarnation(1), Clock(0))).collect();
        self.tell(ShardEvent::Lead { members, started: true });
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // Whatever a reader has, and whatever became of the shard since: what it puts together is what whoever wants all is sent.
    #[test]
    fn what_a_reader_puts_together_is_what_is_there(
        pull in prop::sample::select(vec![CodecKind::F32, CodecKind::F16]),
        picks in prop::collection::vec((0..12_u8, 0..2_usize, 0..PLACES, 0..32_u8), 0..60),
    ) {
        let mut desk = Desk::new(pull);
        for (action, reader, place, some) in picks {
            match action {
                0..4 => {
                    let blocks: Vec<usize> = (0..5).filter(|block| some >> block & 1 == 1).collect();
                    desk.push(reader, &blocks, None);
                }
                4 => {
                    desk.push(reader, &[0], Some(f32::NAN));
                }
                5 => desk.kept = Some(desk.shard.state()),
                6 => desk.take_over(some % 2 == 0),
                7 => desk.lead(),
                _ => {
                    let mine = desk.pull(reader, place, some == 0);
                    let all = desk.pull(2, place, true);
                    prop_assert_eq!(bits(&mine), bits(&all));
                    // Twice the same: nothing is sent.
                    desk.pull(reader, place, false);
                    prop_assert_eq!(desk.words, 0);
                }
            }
        }
    }
}

#[test]
fn what_did_not_change_the_values_needs_none_sent() {
    for pull in [CodecKind::F32, CodecKind::F16] {
        let mut desk = Desk::new(pull);
        for place in 0..PLACES {
            desk.pull(0, place, false);
            assert!(desk.words > 0, "the first time all of them are sent");
        }
        assert_eq!(desk.push(0, &[], None), PushOutcome::Nothing);
        assert!(matches!(desk.push(0, &[1], Some(f32::NAN)), PushOutcome::NotFinite { .. }));
        for place in 0..PLACES {
            desk.pull(0, place, false);
            assert_eq!(desk.words, 0, "{pull:?} {place}");
        }
        assert!(matches!(desk.push(1, &[0, 1, 2, 3, 4], None), PushOutcome::Applied { .. }));
        desk.pull(0, 0, false);
        let all = if pull == CodecKind::F32 { MANY } else { MANY / 2 };
        assert_eq!(desk.words, all);
    }
}

// The version alone would say that nothing has changed.
#[test]
fn another_history_has_other_values_under_the_same_version() {
    let mut desk = Desk::new(CodecKind::F32);
    desk.kept = Some(desk.shard.state());
    desk.push(0, &[1], None);
    let former = desk.pull(0, 0, false);
    desk.take_over(true);
    desk.push(1, &[2], None);
    assert_eq!(desk.shard.version(), Version(1));
    let mine = desk.pull(0, 0, false);
    assert_eq!(desk.words, MANY);
    assert_ne!(bits(&mine), bits(&former));
    assert_eq!(bits(&mine), bits(desk.shard.values().unwrap()));
    // A copy that goes on with the same values does not know what its forerunner has answered either.
    desk.take_over(false);
    desk.pull(0, 0, false);
    assert_eq!(desk.words, MANY);
}

#[test]
fn an_answer_is_remembered_for_its_own_reader_and_life() {
    let mut desk = Desk::new(CodecKind::F32);
    desk.pull(0, 0, false);
    // What lies at another reader says nothing of this one's.
    desk.readers[1].places[0] = desk.readers[0].places[0].clone();
    desk.pull(1, 0, false);
    assert_eq!(desk.words, MANY);
    // Nor do former answers that there were too many since.
    let first = desk.readers[0].places[0].clone();
    (0..4).for_each(|_| drop(desk.pull(0, 1, false)));
    desk.readers[0].places[0] = first;
    desk.pull(0, 0, false);
    assert_eq!(desk.words, MANY);
    let enter = ShardEvent::Enter {
        worker: WorkerId(0),
        incarnation: Incarnation(2),
        clock: Clock(0),
        standing: Standing::Joining,
        batch_count: 10,
        answered: Sequence(0),
    };
    desk.tell(enter);
    let (session, reader, kind) = (SessionId(1), Some((WorkerId(0), Incarnation(2))), PullKind::Snapshot);
    let have = desk.readers[0].places[0].0;
    let effects = desk.tell(ShardEvent::Pull { session, reader, request: 99, have, kind });
    assert!(matches!(&effects[..], [ShardEffect::Serve { values, .. }] if values.words.len() == MANY));
}
