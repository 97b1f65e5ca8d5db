//! What a checkpoint and a journal say of a shard beside its arrays.

use std::sync::Arc;

use slackline_core::config::{Absent, Config, KEYS, Key, Layer, Value};
use slackline_core::consistency::Standing;
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, ServerId, SessionId, Version, WorkerId,
};
use slackline_server::parts;
use slackline_server_core::shard::{FormerShard, Push, ShardState, StateArray};
use slackline_server_core::{Shard, ShardEvent, ShardSettings};

/// A shard of the run that the reference describes.
fn settings() -> ShardSettings {
    let given = |key: &Key| match key.absent {
        Absent::Required(literal) => {
            Some((key.path.to_owned(), Value::from_literal(literal).expect("the reference gives a value")))
        }
        Absent::Default(_) => None,
    };
    let layer = Layer { name: "fuzzing".to_owned(), values: KEYS.iter().filter_map(given).collect() };
    let config = Config::resolve(&[layer]).expect("all keys without a default").config;
    parts::shards(ServerId(0), &config).into_iter().next().expect("server 0 has a shard")
}

/// The first two numbers of an input are the version and the clock beside the facts.
const NUMBERS: usize = 16;

/// Facts of a shard, after its version and its clock.
pub(crate) fn facts(bytes: &[u8]) {
    let Some((numbers, facts)) = bytes.split_first_chunk::<NUMBERS>() else { return };
    let word =
        |at: usize| numbers[at..at + 8].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let (version, clock) = (Version(word(0)), Clock(word(8)));
    let settings = settings();
    let (shard, keys) = (settings.id, settings.keys);
    let arrays = || {
        let array = |name: &str| StateArray { name: name.to_owned(), values: zeros(keys) };
        vec![array("values")]
    };
    let former = FormerShard { shard, keys, version, clock, facts: facts.to_vec(), waiting: Vec::new() };
    match ShardState::join((shard, keys), arrays(), vec![former], true) {
        Ok(joined) => drop((joined.state.hash(), joined.lost)),
        Err(error) => drop(error.to_string()),
    }
    let state = ShardState { shard, keys, version, clock, facts: facts.to_vec(), arrays: arrays() };
    match Shard::restore(settings, state) {
        // What was taken in can be kept again.
        Ok(shard) => drop(shard.state()),
        Err(error) => drop(error.to_string()),
    }
}

fn zeros(keys: KeyRange) -> Arc<Vec<f32>> {
    Arc::new(vec![0.0; keys.as_indices().len()])
}

/// Facts of a shard that has taken the push of one worker, as the target reads them.
#[must_use]
pub fn sample() -> Vec<u8> {
    let settings = settings();
    let keys = settings.keys;
    let mut shard = Shard::new(settings);
    let (worker, incarnation, sequence) = (WorkerId(0), Incarnation(1), Sequence(1));
    let values = zeros(keys);
    let (clock, standing, answered) = (Clock(0), Standing::Active, Sequence(0));
    let push = Push {
        session: SessionId(1),
        worker,
        incarnation,
        sequence,
        clock,
        pulled: Version(0),
        batch: BatchIndex(0),
        samples: 1,
        reply: 0,
        have: 0,
        gradient: Some(values.to_vec().into()),
    };
    let enter = ShardEvent::Enter { worker, incarnation, clock, standing, batch_count: 9, answered };
    for event in [enter, ShardEvent::Start, ShardEvent::Initialize(values.to_vec()), ShardEvent::Push(push)] {
        shard.handle(Moment(1), event, &mut Vec::new());
    }
    let state = shard.state();
    [&state.version.0.to_le_bytes()[..], &state.clock.0.to_le_bytes(), &state.facts].concat()
}
