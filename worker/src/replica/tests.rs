//! Replicas with reductions between them, against the plain loop on one machine.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use slackline_core::aggregate::first_not_finite;
use slackline_core::collective::{Outgoing, Packing, Reduction, Schedule, Topology, buckets};
use slackline_core::config::{Layer, Value};
use slackline_core::ids::KeyRange;
use slackline_core::optimizer::{Optimizer, Step};
use tokio::sync::mpsc::{Receiver, channel};

use super::*;
use crate::compute::Gradients;
use crate::dataset::Split;
use crate::model;

const INPUTS: usize = 40;

/// Six tensors, of which two are larger than the smallest bucket.
fn config(more: &[(&str, &str)]) -> Config {
    let keys = [
        ("data.dataset", "\"digits\""),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[12, 30]"),
        ("workers", "2"),
        ("train.epochs", "1"),
        ("train.batch", "8"),
        ("train.microbatch", "4"),
        ("optimizer.kind", "\"momentum\""),
        ("optimizer.rate", "0.05"),
        ("optimizer.weight_decay", "0.01"),
        ("sync.method", "\"allreduce\""),
        ("sync.bucket_kib", "1"),
    ];
    let literal = |(key, value): &(&str, &str)| ((*key).to_owned(), Value::from_literal(value).unwrap());
    let layer = |name: &str, keys: &[(&str, &str)]| Layer {
        name: name.to_owned(),
        values: keys.iter().map(literal).collect(),
    };
    match Config::resolve(&[layer("test", &keys), layer("more", more)]) {
        Ok(resolved) => resolved.config,
        Err(problems) => panic!("{problems:?}"),
    }
}

fn dataset() -> Arc<Dataset> {
    let split = || Split { inputs: vec![0.5; 2 * INPUTS], labels: vec![0, 1] };
    Arc::new(Dataset { train: split(), test: split(), input_count: INPUTS as u64, class_count: 10 })
}

/// `count` samples of a long line of them, from `first` on.
fn batch(first: usize, count: usize) -> Batch {
    let mut batch = Batch::with_capacity(count, INPUTS);
    for sample in first..first + count {
        let inputs: Vec<f32> =
            (0..INPUTS).map(|input| ((sample * INPUTS + input) as f32 * 0.37).sin()).collect();
        batch.push(&inputs, (sample * 7 % 10) as u32);
    }
    batch
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

struct Member {
    replica: Replica,
    done: Receiver<ReplicaDone>,
}

impl Member {
    fn start(config: &Config, room: usize) -> Self {
        let (sender, done) = channel(room);
        Self { replica: Replica::start(config, &dataset(), sender).unwrap(), done }
    }

    fn next(&mut self) -> ReplicaDone {
        self.done.blocking_recv().unwrap()
    }

    fn send_step(&self, clock: u64, batch: Option<Batch>, share: f32) {
        let (generation, clock) = (Generation(1), Clock(clock));
        assert!(self.replica.send(ReplicaJob::Step { generation, clock, batch, worker: WorkerId(0), share }));
    }

    /// All buckets of a step, in order, and its loss.
    fn step(&mut self, clock: u64, batch: Option<Batch>, share: f32) -> (Vec<SharedValues>, f64) {
        let expected = batch.as_ref().map_or(0, Batch::samples);
        self.send_step(clock, batch, share);
        let mut all = Vec::new();
        loop {
            match self.next() {
                ReplicaDone::Bucket { bucket, packed, clock: of, .. } => {
                    assert_eq!((of, bucket as usize), (Clock(clock), all.len()));
                    all.push(packed);
                }
                ReplicaDone::Step { loss, samples, bad_key: None, batch, .. } => {
                    assert_eq!(samples as usize, expected);
                    assert_eq!(batch.map_or(0, |batch| batch.samples()), expected);
                    return (all, loss);
                }
                ReplicaDone::Spare(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn apply(&self, clock: u64, progress: f64, sums: Vec<Vec<SharedValues>>) {
        assert!(self.replica.send(ReplicaJob::Apply { clock: Clock(clock), progress, sums }));
    }

    fn values(&mut self) -> Vec<f32> {
        assert!(self.replica.send(ReplicaJob::Snapshot { at_samples: 5 }));
        loop {
            match self.next() {
                ReplicaDone::Snapshot { at_samples: 5, values } => return values,
                ReplicaDone::Spare(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn state(&mut self, clock: u64) -> Option<(Vec<f32>, Vec<f32>)> {
        let (generation, clock) = (Generation(1), Clock(clock));
        assert!(self.replica.send(ReplicaJob::State { generation, clock, reply: WorkerId(9) }));
        loop {
            match self.next() {
                ReplicaDone::State { reply: WorkerId(9), values, slots, is_right, .. } => {
                    return is_right.then_some((values, slots));
                }
                ReplicaDone::Spare(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn restore(&mut self, clock: u64, values: Vec<f32>, slots: Vec<f32>) -> bool {
        let (generation, clock) = (Generation(1), Clock(clock));
        assert!(self.replica.send(ReplicaJob::Restore { generation, clock, values, slots }));
        match self.next() {
            ReplicaDone::Restored { is_right, .. } => is_right,
            other => panic!("{other:?}"),
        }
    }
}

/// A group whose messages need no time.
struct Ring {
    schedule: Arc<Schedule>,
    part_lens: Vec<Vec<u64>>,
    members: Vec<Member>,
}

impl Ring {
    fn new(config: &Config, topology: Topology, members: u32) -> Self {
        let sync = config.sync.as_ref().unwrap();
        let data = dataset();
        let layout = model::build(&config.model, data.input_count, data.class_count, 1).layout().clone();
        let schedule = Arc::new(Schedule::new(topology, members).unwrap());
        let packing = Packing::new(schedule.parts());
        let cut = buckets(&layout, sync.bucket_bytes, sync.order);
        let part_lens = cut.iter().map(|bucket| packing.part_lens(bucket.keys)).collect();
        let members = (0..members).map(|_| Member::start(config, 64)).collect::<Vec<_>>();
        for member in &members {
            assert!(member.replica.send(ReplicaJob::Form { parts: schedule.parts() }));
        }
        Self { schedule, part_lens, members }
    }

    /// One iteration; returns the sum of the losses.
    fn iterate(&mut self, clock: u64, progress: f64, batches: Vec<Option<Batch>>, share: f32) -> f64 {
        let steps: Vec<_> = self
            .members
            .iter_mut()
            .zip(batches)
            .map(|(member, batch)| member.step(clock, batch, share))
            .collect();
        let mut sums: Vec<Vec<Vec<SharedValues>>> = self.members.iter().map(|_| Vec::new()).collect();
        for (bucket, lens) in self.part_lens.iter().enumerate() {
            let packed = steps.iter().map(|(buckets, _)| buckets[bucket].clone()).collect();
            for (sums, parts) in sums.iter_mut().zip(reduce(&self.schedule, lens, packed)) {
                sums.push(parts);
            }
        }
        for (member, sums) in self.members.iter().zip(sums) {
            member.apply(clock, progress, sums);
        }
        steps.iter().map(|(_, loss)| loss).sum()
    }

    fn values(&mut self) -> Vec<f32> {
        let all: Vec<_> = self.members.iter_mut().map(Member::values).collect();
        assert!(all.iter().all(|values| bits(values) == bits(&all[0])), "all copies are equal");
        all[0].clone()
    }
}

/// What each member has in the end.
fn reduce(schedule: &Arc<Schedule>, lens: &[u64], packed: Vec<SharedValues>) -> Vec<Vec<SharedValues>> {
    let mut under_way: Vec<(u32, Outgoing<SharedValues>)> = Vec::new();
    let mut members: Vec<_> = (0..schedule.members())
        .map(|position| Reduction::new(schedule.clone(), position, lens.to_vec()))
        .collect();
    let mut out = Vec::new();
    for (position, own) in (0..).zip(packed) {
        members[position as usize].own(own, &mut out).unwrap();
        under_way.extend(out.drain(..).map(|message| (position, message)));
    }
    while let Some((from, Outgoing { to, number, pieces, .. })) = under_way.pop() {
        let values = pieces.iter().flat_map(|piece| piece.as_ref().to_vec()).collect();
        members[to as usize].arrived(from, number, values, &mut out).unwrap();
        under_way.extend(out.drain(..).map(|message| (to, message)));
    }
    assert!(members.iter().all(Reduction::is_complete));
    members.into_iter().map(Reduction::into_parts).collect()
}

const STEPS: u64 = 25;

/// The loop that a worker with one server goes through, without either: values after [`STEPS`] steps of `samples` each.
fn plain_loop(config: &Config, samples: usize) -> Vec<f32> {
    let data = dataset();
    let model = model::build(&config.model, data.input_count, data.class_count, 1);
    let layout = model.layout();
    let mut values = vec![0.0; layout.len() as usize];
    model.initialize(config.seed, &mut values);
    let mut optimizer = Optimizer::new(config.optimizer, layout, KeyRange::new(0, layout.len()), 1);
    let mut gradients = Gradients::of(config, &data).unwrap();
    let mut gradient = vec![f32::NAN; values.len()];
    for clock in 0..STEPS {
        let batch = batch(clock as usize * samples, samples);
        gradients.compute(&values, batch.examples(), &mut gradient);
        optimizer.apply(&mut values, &gradient, &Step::fresh(clock as f64 / STEPS as f64, clock));
    }
    assert_eq!(first_not_finite(&values), None);
    values
}

fn alone(config: &Config) -> Vec<f32> {
    let mut one = Ring::new(config, Topology::Ring, 1);
    for clock in 0..STEPS {
        let all = vec![Some(batch(clock as usize * 8, 8))];
        assert!(one.iterate(clock, clock as f64 / STEPS as f64, all, 1.0) > 0.0);
    }
    one.values()
}

#[test]
fn a_replica_alone_is_the_plain_loop_bit_for_bit() {
    let expected = plain_loop(&config(&[]), 8);
    for more in
        [&[][..], &[("sync.bucket_kib", "0")], &[("sync.order", "\"forward\"")], &[("train.threads", "2")]]
    {
        assert_eq!(bits(&alone(&config(more))), bits(&expected), "{more:?}");
    }
}

fn together(config: &Config, topology: Topology, members: u32) -> Vec<f32> {
    let mut ring = Ring::new(config, topology, members);
    let each = 16 / members as usize;
    for clock in 0..STEPS {
        let of = |position| Some(batch(clock as usize * 16 + position as usize * each, each));
        let batches = (0..members).map(of).collect();
        ring.iterate(clock, clock as f64 / STEPS as f64, batches, 1.0 / members as f32);
    }
    ring.values()
}

#[test]
fn replicas_together_are_one_with_their_batches_together() {
    let expected = plain_loop(&config(&[("train.batch", "16")]), 16);
    for (topology, members) in [
        (Topology::Ring, 2),
        (Topology::HalvingDoubling, 2),
        (Topology::HalvingDoubling, 4),
        (Topology::Doubling, 4),
    ] {
        assert_eq!(
            bits(&together(&config(&[]), topology, members)),
            bits(&expected),
            "{topology} of {members}"
        );
    }
}

#[test]
fn buckets_and_their_order_change_no_bit() {
    let with = |kib: &str, order: &str| {
        let order = format!("\"{order}\"");
        let config = config(&[("sync.bucket_kib", kib), ("sync.order", &order), ("workers", "3")]);
        bits(&together(&config, Topology::Ring, 3))
    };
    let expected = with("0", "backward");
    for (kib, order) in [("1", "backward"), ("1", "forward"), ("2", "backward"), ("0", "forward")] {
        assert_eq!(with(kib, order), expected, "{kib} KiB {order}");
    }
}

#[test]
fn a_member_without_a_batch_adds_nothing() {
    let config = config(&[]);
    let mut ring = Ring::new(&config, Topology::Ring, 2);
    let mut one = Ring::new(&config, Topology::Ring, 1);
    for clock in 0..3 {
        let all = vec![Some(batch(clock as usize * 8, 8)), None];
        ring.iterate(clock, 0.0, all, 1.0);
        one.iterate(clock, 0.0, vec![Some(batch(clock as usize * 8, 8))], 1.0);
    }
    assert_eq!(ring.values(), one.values());
}

#[test]
fn buckets_come_one_by_one_and_no_more_once_the_step_is_given_up() {
    // With room for one message the thread stands still at the second until the first is taken.
    let mut member = Member::start(&config(&[]), 1);
    member.send_step(0, Some(batch(0, 8)), 1.0);
    assert!(matches!(member.next(), ReplicaDone::Bucket { bucket: 0, .. }));
    member.replica.abandon();
    let mut last = 0;
    loop {
        match member.next() {
            ReplicaDone::Bucket { bucket, .. } => last = bucket,
            ReplicaDone::Step { samples: 8, .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(last <= 2, "one was in the channel, and one on its way into it");
}

/// The longest times that can be configured: a wait that is not broken off never ends here.
const ENDLESS: [(&str, &str); 3] = [
    ("stragglers.kind", "\"permanent\""),
    ("stragglers.compute_s", "86400.0"),
    ("stragglers.factor", "1000000.0"),
];

#[test]
fn a_step_that_is_given_up_waits_no_more_and_an_older_one_does_not_begin() {
    let mut member = Member::start(&config(&ENDLESS), 16);
    member.send_step(0, Some(batch(0, 8)), 1.0);
    member.send_step(1, Some(batch(0, 8)), 1.0);
    assert!(member.replica.send(ReplicaJob::Form { parts: 2 }));
    member.send_step(2, Some(batch(0, 8)), 1.0);
    for of in [0, 1] {
        assert!(matches!(member.next(), ReplicaDone::Step { clock: Clock(clock), .. } if clock == of));
    }
    member.replica.abandon();
    assert!(matches!(member.next(), ReplicaDone::Step { clock: Clock(2), .. }));
    member.send_step(3, Some(batch(0, 8)), 1.0);
    // It joins the thread.
    drop(member.replica);
    assert!(matches!(member.done.blocking_recv(), Some(ReplicaDone::Step { clock: Clock(3), .. })));
    assert!(member.done.blocking_recv().is_none());
}

#[test]
fn no_bucket_comes_before_its_time() {
    let slow = [("stragglers.kind", "\"permanent\""), ("stragglers.compute_s", "0.01")];
    let mut member = Member::start(&config(&slow), 16);
    let began = Instant::now();
    member.send_step(0, Some(batch(0, 8)), 1.0);
    let mut times = Vec::new();
    while let ReplicaDone::Bucket { .. } = member.next() {
        times.push(began.elapsed());
    }
    // Factor 4; the last layer is a fourth of all keys and gives the first two buckets.
    let time = Duration::from_secs_f64(0.01 * 4.0 * 0.95);
    assert_eq!(times.len(), 6);
    assert!(times[0] >= time.mul_f64(1.0 / 3.0 + 2.0 / 3.0 * 0.26), "{times:?}");
    assert!(times[5] >= time, "{times:?}");
}

#[test]
fn another_member_can_go_on_from_the_state() {
    let config = config(&[]);
    let mut first = Ring::new(&config, Topology::Ring, 1);
    let iterate = |ring: &mut Ring, clock: u64| {
        ring.iterate(clock, 0.3, vec![Some(batch(clock as usize * 8, 8))], 1.0);
    };
    (0..4).for_each(|clock| iterate(&mut first, clock));
    // The sums of this one are not used, which is an iteration all the same.
    assert!(first.members[0].replica.send(ReplicaJob::Skip { clock: Clock(4) }));
    assert_eq!(first.members[0].state(4), None, "it has five iterations");
    let (values, slots) = first.members[0].state(5).unwrap();
    assert!(values.len() == slots.len() && slots.iter().any(|slot| *slot != 0.0));

    let mut second = Ring::new(&config, Topology::Ring, 1);
    iterate(&mut second, 0);
    let before = second.values();
    assert!(!second.members[0].restore(5, values[1..].to_vec(), slots.clone()));
    assert!(!second.members[0].restore(5, values.clone(), Vec::new()));
    assert_eq!(bits(&second.values()), bits(&before));
    assert!(second.members[0].restore(5, values, slots));
    for clock in 5..9 {
        iterate(&mut first, clock);
        iterate(&mut second, clock);
    }
    assert_eq!(bits(&first.values()), bits(&second.values()));
}

#[test]
fn a_value_that_is_not_finite_is_told_with_its_key() {
    let mut member = Member::start(&config(&[]), 16);
    let mut bad = Batch::with_capacity(1, INPUTS);
    bad.push(&[f32::NAN; INPUTS], 3);
    member.send_step(0, Some(bad), 1.0);
    let told = loop {
        match member.next() {
            ReplicaDone::Bucket { .. } => {}
            ReplicaDone::Step { bad_key, .. } => break bad_key,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(told, Some(0));
}

#[test]
fn a_panic_is_told() {
    let mut member = Member::start(&config(&[]), 16);
    let mut other = Batch::with_capacity(1, 3);
    other.push(&[0.0; 3], 0);
    member.send_step(0, Some(other), 1.0);
    assert!(matches!(member.next(), ReplicaDone::Ended));
    assert!(member.done.blocking_recv().is_none());
}

#[test]
fn buckets_are_packed_in_memory_that_goes_round() {
    let mut member = Member::start(&config(&[]), 16);
    // Somebody holds a buffer for one more step than the others, as a peer that acknowledges late does.
    let (mut held, mut seen, mut new) = (Vec::new(), BTreeSet::new(), Vec::new());
    for clock in 0..20 {
        let (packed, _) = member.step(clock, Some(batch(0, 8)), 1.0);
        new.push(packed.iter().filter(|packed| seen.insert(packed.as_ref().as_ptr().addr())).count());
        let sums = packed.iter().map(|packed| vec![packed.clone()]).collect();
        held = packed;
        member.apply(clock, 0.0, sums);
    }
    drop(held);
    assert_eq!(new[..2], [6, 6]);
    assert_eq!(new[3..], [0; 17], "nothing is allocated in the steady state");
}
