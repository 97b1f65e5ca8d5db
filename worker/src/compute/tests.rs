//! What the computing threads hand over, and when.

use super::*;
use crate::dataset::Split;
use slackline_core::config::{Layer, Value};
use tokio::sync::mpsc::{Receiver, channel};

fn config(more: &[(&str, &str)]) -> Config {
    let keys = [
        ("data.dataset", "\"digits\""),
        ("model.kind", "\"softmax\""),
        ("train.epochs", "1"),
        ("train.batch", "2"),
        ("optimizer.kind", "\"sgd\""),
        ("optimizer.rate", "0.5"),
    ];
    let values = keys
        .iter()
        .chain(more)
        .map(|(key, value)| ((*key).to_owned(), Value::from_literal(value).unwrap()))
        .collect();
    Config::resolve(&[Layer { name: "test".to_owned(), values }]).unwrap().config
}

fn start(more: &[(&str, &str)]) -> (Compute, Receiver<Done>) {
    let split = || Split { inputs: vec![0.5; 128], labels: vec![0, 1] };
    let dataset = Dataset { train: split(), test: split(), input_count: 64, class_count: 10 };
    let (done, jobs_done) = channel(4);
    (Compute::start(&config(more), &Arc::new(dataset), 4, done).unwrap(), jobs_done)
}

/// A job of `samples` samples; the values are the model's size, and all `value`.
fn job(sequence: u64, samples: u32, value: f32) -> GradientJob {
    let mut batch = Batch::with_capacity(1, 64);
    for sample in 0..samples {
        batch.push(&[0.01 * (sample + 1) as f32; 64], sample % 10);
    }
    let place = Place { clock: Clock(sequence - 1), batch: BatchIndex(sequence - 1), ..Place::default() };
    let (values, gradient) = (vec![value; 650], vec![f32::NAN; 650]);
    GradientJob {
        sequence: Sequence(sequence),
        place,
        batch,
        buffer: Buffer::First,
        values,
        here: ByShard::new(),
        missing: Vec::new(),
        waited: Duration::ZERO,
        gradient,
        unused: Vec::new(),
        spare: Vec::new(),
        packed: Vec::new(),
        told: Vec::new(),
    }
}

fn gradient(done: Option<Done>) -> (Vec<f32>, f64) {
    match done {
        Some(Done::Gradient { job, loss, bad_key: None }) => (job.gradient, loss),
        other => panic!("a gradient and not {other:?}"),
    }
}

#[test]
fn a_panic_in_the_gradient_thread_is_told() {
    let (compute, mut done) = start(&[]);
    // Values that the model cannot be made of.
    assert!(compute.gradient(GradientJob { values: Vec::new(), ..job(1, 1, 0.0) }));
    assert!(matches!(done.blocking_recv(), Some(Done::Ended)));
    // The other thread goes on.
    assert!(compute.evaluation(EvaluationJob { at_samples: 0, values: Vec::new() }));
    assert!(matches!(done.blocking_recv(), Some(Done::Ended)));
    assert!(done.blocking_recv().is_none(), "nothing else keeps the channel open");
}

#[test]
fn an_end_that_is_wanted_is_not_told() {
    let (compute, mut done) = start(&[]);
    drop(compute);
    assert!(done.blocking_recv().is_none());
}

#[test]
fn a_gradient_takes_at_least_its_drawn_time() {
    let slow = [("stragglers.kind", "\"permanent\""), ("stragglers.compute_s", "0.02")];
    let (compute, mut done) = start(&slow);
    let began = Instant::now();
    // Factor 4, and half as many samples again as a batch has.
    assert!(compute.gradient(job(1, 3, 0.0)));
    gradient(done.blocking_recv());
    assert!(began.elapsed() >= Duration::from_secs_f64(0.02 * 4.0 * 1.5 * 0.95));
}

/// The longest times that can be configured: a wait that is not broken off never ends here.
const ENDLESS: [(&str, &str); 3] = [
    ("stragglers.kind", "\"permanent\""),
    ("stragglers.compute_s", "86400.0"),
    ("stragglers.factor", "1000000.0"),
];

#[test]
fn an_abandoned_gradient_comes_at_once_and_the_next_waits_again() {
    let (compute, mut done) = start(&ENDLESS);
    for sequence in 1..4 {
        assert!(compute.gradient(job(sequence, 2, 0.0)));
        // Before or after the thread has begun: the job of that number is meant either way.
        compute.abandon(Sequence(sequence - 1));
        compute.abandon(Sequence(sequence));
        assert!(gradient(done.blocking_recv()).1 > 0.0, "it was computed anyway");
    }
    assert!(compute.gradient(job(4, 2, 0.0)));
    assert!(compute.evaluation(EvaluationJob { at_samples: 0, values: vec![0.0; 650] }));
    assert!(matches!(done.blocking_recv(), Some(Done::Evaluation { .. })), "the gradient still waits");
}

#[test]
fn the_end_of_the_process_breaks_a_delay_off() {
    let (compute, mut done) = start(&ENDLESS);
    assert!(compute.gradient(job(1, 2, 0.0)));
    // It joins the thread.
    drop(compute);
    gradient(done.blocking_recv());
    assert!(done.blocking_recv().is_none());
}

const LOCAL: [(&str, &str); 2] = [("local.mode", "\"difference\""), ("local.steps", "2")];

#[test]
fn local_steps_push_the_way_that_gradients_lead() {
    let (plain, mut plain_done) = start(&[]);
    let (local, mut local_done) = start(&LOCAL);
    // One batch of two samples at a time, at the values that the one before led to.
    let mut values = vec![0.0; 650];
    let mut losses = 0.0;
    for first in [0, 2] {
        let whole = job(1, 4, 0.0);
        let mut batch = Batch::with_capacity(2, 64);
        for sample in first..first + 2 {
            let examples = whole.batch.examples();
            batch.push(&examples.inputs()[sample * 64..][..64], examples.labels()[sample]);
        }
        assert!(plain.gradient(GradientJob { batch, values: values.clone(), ..job(1, 0, 0.0) }));
        let (slope, loss) = gradient(plain_done.blocking_recv());
        losses += loss / 2.0;
        values.iter_mut().zip(slope).for_each(|(value, slope)| *value -= 0.5 * slope);
    }
    assert!(local.gradient(job(1, 4, 0.0)));
    let (pushed, loss) = gradient(local_done.blocking_recv());
    assert!(pushed.iter().zip(&values).all(|(pushed, value)| *pushed == 0.0 - value));
    assert!((loss - losses).abs() < 1e-12);
}

#[test]
fn local_values_belong_to_one_life_and_an_abandoned_push_comes_later() {
    let shards = [("local.fragments", "2"), ("cluster.shards_per_server", "2"), ("servers", "1")];
    let keys: Vec<_> = LOCAL.into_iter().chain(shards).collect();
    let (compute, mut done) = start(&keys);
    let mut step = |sequence, incarnation, is_after_unsent| {
        let mut job = job(sequence, 4, 0.0);
        job.place.incarnation = Incarnation(incarnation);
        job.place.is_after_unsent = is_after_unsent;
        assert!(compute.gradient(job));
        let length = |part: &[f32]| part.iter().map(|value| value * value).sum::<f32>().sqrt();
        let (pushed, _) = gradient(done.blocking_recv());
        (length(&pushed[..320]), length(&pushed[336..]))
    };
    let (first, rest) = step(1, 1, false);
    assert!(first > 0.0 && rest == 0.0);
    assert!(step(2, 1, false).1 > 0.0);
    // Clock 2 again pushes the first fragment: what was taken back is in it.
    let kept = step(3, 1, false).0;
    let later = step(3, 1, true).0;
    assert!(later > kept);
    assert_eq!(step(1, 2, false).0, first, "a new life begins at the pulled values");
}

#[test]
fn parts_are_handed_over_before_the_gradient_and_are_parts_of_it() {
    let hidden = [
        ("model.kind", "\"mlp\""),
        ("model.widths", "[16, 64]"),
        ("cluster.shards_per_server", "4"),
        ("servers", "1"),
    ];
    let computed = |overlap: &str| {
        let more = [&hidden[..], &[("train.overlap", overlap)]].concat();
        let keys = config(&more).layout().len() as usize;
        let (compute, mut done) = start(&more);
        let whole = job(1, 2, 0.1);
        let place = Place { pushed: (0..4).map(ShardId).collect(), ..whole.place };
        let (values, gradient) =
            ((0..keys).map(|key| (key % 7) as f32 * 0.1).collect(), vec![f32::NAN; keys]);
        assert!(compute.gradient(GradientJob { place, values, gradient, ..whole }));
        let mut parts = Vec::new();
        loop {
            match done.blocking_recv() {
                Some(Done::Part { sequence: Sequence(1), shard, payload, samples: 2 }) => {
                    parts.push((shard, payload))
                }
                Some(Done::Gradient { job, bad_key: None, .. }) => return (parts, job.gradient, job.told),
                other => panic!("{other:?}"),
            }
        }
    };
    let (parts, gradient, told) = computed("true");
    let (none, same, _) = computed("false");
    assert_eq!((none.len(), &gradient), (0, &same), "nothing of what is computed changes");
    let shards: Vec<_> = parts.iter().map(|(shard, _)| shard.0).collect();
    assert!(shards.contains(&3) && !shards.contains(&0), "{shards:?}: the last layer's is first");
    let partition = config(&hidden).partition();
    for (shard, payload) in &parts {
        assert_eq!(payload.values().unwrap(), &gradient[partition.range(*shard).as_indices()]);
        assert!(told.contains(shard));
    }
}

/// A network in four shards whose values lie apart from each other, with what it computes where they are together.
struct Apart {
    config: Vec<(&'static str, &'static str)>,
    partition: Partition,
    values: Vec<f32>,
    gradient: Vec<f32>,
}

impl Apart {
    fn new() -> Self {
        let config = vec![
            ("model.kind", "\"mlp\""),
            ("model.widths", "[16, 64]"),
            ("cluster.shards_per_server", "4"),
            ("servers", "1"),
            ("train.overlap", "true"),
        ];
        let partition = self::config(&config).partition();
        let values: Vec<f32> = (0..partition.key_count()).map(|key| (key % 7) as f32 * 0.1).collect();
        let mut apart = Self { config, partition, values, gradient: Vec::new() };
        let (compute, mut done) = start(&apart.config);
        assert!(compute.gradient(GradientJob { values: apart.values.clone(), ..apart.job(&[], &[]) }));
        apart.gradient = gradient(done.blocking_recv()).0;
        apart
    }

    fn of(&self, shard: u32) -> Vec<f32> {
        self.values[self.partition.range(ShardId(shard)).as_indices()].to_vec()
    }

    fn job(&self, here: &[u32], missing: &[u32]) -> GradientJob {
        let keys = self.values.len();
        GradientJob {
            values: vec![9.0; keys],
            here: here.iter().map(|shard| (ShardId(*shard), self.of(*shard))).collect(),
            missing: missing.iter().copied().map(ShardId).collect(),
            gradient: vec![f32::NAN; keys],
            ..job(1, 2, 0.0)
        }
    }
}

#[test]
fn values_that_come_while_it_is_computed_make_the_same_gradient_and_all_memory_comes_back() {
    let apart = Apart::new();
    let (compute, mut done) = start(&apart.config);
    assert!(compute.gradient(apart.job(&[0], &[1, 2, 3])));
    for shard in [3, 1, 2] {
        compute.deliver(ShardId(shard), apart.of(shard));
    }
    match done.blocking_recv() {
        Some(Done::Gradient { job, bad_key: None, .. }) => {
            assert_eq!(job.gradient, apart.gradient);
            assert_eq!(job.here, (0..4).map(|shard| (ShardId(shard), apart.of(shard))).collect::<ByShard>());
            assert_eq!(job.values, apart.values, "they are in their place for who looks at them later");
        }
        other => panic!("{other:?}"),
    }
    assert!(compute.leftover().is_empty());
}

// A worker takes no gradient before its values have come, and waits for another for ever.
#[test]
fn a_gradient_that_asks_for_no_values_is_ready_when_they_have_come_all_the_same() {
    let apart = Apart::new();
    let (compute, mut done) = start(&apart.config);
    let batch = Batch::with_capacity(1, 64);
    assert!(compute.gradient(GradientJob { batch, ..apart.job(&[0], &[1, 2, 3]) }));
    for shard in 1..4 {
        compute.deliver(ShardId(shard), apart.of(shard));
    }
    match done.blocking_recv() {
        Some(Done::Gradient { job, .. }) => assert_eq!((job.here.len(), job.values), (4, apart.values)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gradient_that_lacks_values_ends_when_it_is_abandoned_and_with_the_process() {
    let apart = Apart::new();
    let (compute, mut done) = start(&apart.config);
    assert!(compute.gradient(apart.job(&[0], &[1, 2, 3])));
    compute.deliver(ShardId(1), apart.of(1));
    compute.abandon(Sequence(1));
    match done.blocking_recv() {
        Some(Done::Gradient { job, .. }) => {
            compute.deliver(ShardId(3), apart.of(3));
            let back: Vec<_> = job.here.into_keys().chain(compute.leftover().into_keys()).collect();
            assert_eq!(back.into_iter().collect::<BTreeSet<_>>(), [0, 1, 3].map(ShardId).into());
        }
        other => panic!("{other:?}"),
    }
    assert!(compute.gradient(GradientJob { sequence: Sequence(2), ..apart.job(&[0], &[1, 2, 3]) }));
    // It joins the thread.
    drop(compute);
}

// One part is finite and one is not: what is final before the rest leaves, and the whole is named for what it is.
#[test]
fn a_gradient_of_which_a_part_is_not_finite_is_named() {
    let apart = Apart::new();
    let (compute, mut done) = start(&apart.config);
    // The first layer's weights are nothing, and its units are on whatever comes in; the slopes of those weights are beyond any number.
    let mut values = vec![0.0; apart.values.len()];
    values[1024..1040].fill(1.0);
    values[1040..2064].fill(0.1);
    values[2128..2768].iter_mut().enumerate().for_each(|(place, value)| *value = (place % 10) as f32);
    let mut bad = GradientJob { values, ..apart.job(&[], &[]) };
    bad.place.pushed = (0..4).map(ShardId).collect();
    bad.batch = Batch::with_capacity(1, 64);
    bad.batch.push(&[f32::MAX; 64], 1);
    assert!(compute.gradient(bad));
    let mut left = Vec::new();
    loop {
        match done.blocking_recv() {
            Some(Done::Part { shard, payload, .. }) => {
                assert!(payload.values().unwrap().iter().all(|value| value.is_finite()));
                left.push(shard);
            }
            Some(Done::Gradient { bad_key, .. }) => {
                assert_eq!((left, bad_key), (vec![ShardId(2), ShardId(3)], Some(0)));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_part_that_is_not_finite_does_not_leave() {
    let more = [
        ("model.kind", "\"mlp\""),
        ("model.widths", "[16, 64]"),
        ("cluster.shards_per_server", "4"),
        ("servers", "1"),
        ("train.overlap", "true"),
    ];
    let keys = config(&more).layout().len() as usize;
    let (compute, mut done) = start(&more);
    let whole = job(1, 2, 0.0);
    let place = Place { pushed: (0..4).map(ShardId).collect(), ..whole.place };
    assert!(compute.gradient(GradientJob {
        place,
        values: vec![f32::NAN; keys],
        gradient: vec![0.0; keys],
        ..whole
    }));
    match done.blocking_recv() {
        Some(Done::Gradient { bad_key: Some(_), .. }) => {}
        other => panic!("{other:?}"),
    }
}
