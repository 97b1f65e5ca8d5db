//! What a simulated allreduce comes to, against bsp and against a reckoning by hand, and what befalls its workers.
#![allow(clippy::unwrap_used)]

mod common;

use common::{number, resolved, run, timing};
use serde_json::Value as Json;
use slackline_core::aggregate::weighted_mean;
use slackline_core::config::Config;
use slackline_core::ids::{BatchIndex, KeyRange};
use slackline_core::optimizer::{Optimizer, Step};
use slackline_core::schedule::DataOrder;
use slackline_sim::{Options, Outcome, simulate};
use slackline_worker::dataset::{self, DataSettings};
use slackline_worker::model::{self, Batch, Evaluation};

type Keys<'a> = &'a [(&'a str, &'a str)];

/// The digits, with what is asked for.
fn digits(workers: &str, more: Keys<'_>) -> Outcome {
    let base = [("workers", workers), ("servers", "1"), ("stragglers.kind", "\"exp\"")];
    run(&[&base[..], more].concat()).unwrap_or_else(|failure| panic!("{failure}"))
}

fn allreduce(workers: &str, topology: &str, more: Keys<'_>) -> Outcome {
    let topology = format!("\"{topology}\"");
    let base = [("sync.method", "\"allreduce\""), ("sync.topology", topology.as_str())];
    digits(workers, &[&base[..], more].concat())
}

fn loss(outcome: &Outcome) -> f64 {
    number(outcome, "/final/test_loss")
}

/// Models and optimizers that a run is compared with.
const LEARNERS: [Keys<'static>; 3] = [
    &[],
    &[
        ("model.kind", "\"mlp\""),
        ("model.widths", "[24, 16]"),
        ("optimizer.kind", "\"momentum\""),
        ("optimizer.weight_decay", "0.001"),
        ("optimizer.schedule", "\"cosine\""),
        ("optimizer.warmup", "0.1"),
    ],
    &[
        ("model.kind", "\"mlp\""),
        ("model.widths", "[32]"),
        ("optimizer.kind", "\"momentum\""),
        ("optimizer.nesterov", "true"),
        ("train.epochs", "3"),
    ],
];

#[test]
fn an_allreduce_of_powers_of_two_is_bsp_bit_for_bit() {
    for learner in LEARNERS {
        for workers in ["1", "2", "4", "8"] {
            let bsp = digits(workers, &[learner, &[("consistency.policy", "\"bsp\"")]].concat());
            let topologies = ["halving-doubling", "doubling", "ring"];
            for topology in topologies.into_iter().take(if workers <= "2" { 3 } else { 2 }) {
                let all = allreduce(workers, topology, learner);
                for path in ["/final/test_loss", "/final/test_accuracy", "/samples"] {
                    assert_eq!(
                        number(&all, path),
                        number(&bsp, path),
                        "{topology}, {workers} workers: {path}"
                    );
                }
            }
        }
    }
}

#[test]
fn other_numbers_and_topologies_differ_from_bsp_by_rounding_only() {
    for learner in LEARNERS {
        for (workers, topologies) in [
            ("3", &["ring", "halving-doubling"][..]),
            ("4", &["ring", "torus(2, 2)", "hierarchical(2)"]),
            ("5", &["ring", "doubling"]),
            ("6", &["torus(3, 2)", "hierarchical(3)"]),
        ] {
            let bsp = loss(&digits(workers, &[learner, &[("consistency.policy", "\"bsp\"")]].concat()));
            for topology in topologies {
                let all = loss(&allreduce(workers, topology, learner));
                assert!((all - bsp).abs() < 1e-5, "{topology}, {workers} workers: {all}, not {bsp}");
            }
        }
    }
}

#[test]
fn neither_buckets_nor_their_order_change_a_bit() {
    let links = [("simulation.bandwidth_mbps", "5.0"), ("simulation.latency_s", "0.001")];
    for (workers, topology) in
        [("4", "ring"), ("3", "halving-doubling"), ("4", "torus(2, 2)"), ("6", "hierarchical(2)")]
    {
        let of = |bucket, order| {
            let keys = [("sync.bucket_kib", bucket), ("sync.order", order)];
            loss(&allreduce(workers, topology, &[LEARNERS[1], &links, &keys].concat()))
        };
        let once = of("0", "\"backward\"");
        for (bucket, order) in
            [("1", "\"backward\""), ("4", "\"backward\""), ("1", "\"forward\""), ("0", "\"forward\"")]
        {
            assert_eq!(of(bucket, order), once, "{topology}, {workers} workers, {bucket} KiB, {order}");
        }
    }
}

/// The summary without the real time.
fn told(outcome: &Outcome) -> String {
    let mut summary = outcome.summary.clone();
    summary["wall_s"] = Json::Null;
    summary.to_string()
}

#[test]
fn the_same_seed_gives_the_same_summary_on_any_number_of_threads() {
    let config = resolved(&[
        ("sync.method", "\"allreduce\""),
        ("sync.topology", "\"ring\""),
        ("sync.elastic", "true"),
        ("sync.bucket_kib", "4"),
        ("workers", "5"),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[32]"),
        ("optimizer.kind", "\"momentum\""),
        ("stragglers.kind", "\"exp\""),
        ("evaluate.every_epochs", "0.5"),
        ("simulation.bandwidth_mbps", "20.0"),
        ("simulation.latency_s", "0.001"),
        ("simulation.loss", "0.01"),
        ("simulation.apply_mbps", "200.0"),
        ("simulation.incidents", "[\"worker 1 crash at 0.3 for 0.9\", \"worker 2 pause at 0.4 for 0.1\"]"),
        ("cluster.lease_s", "0.5"),
    ]);
    let of = |threads| told(&simulate(&config, &Options { threads, ..Options::default() }).unwrap());
    let once = of(1);
    for threads in [1, 2, 4] {
        assert_eq!(of(threads), once, "{threads} threads");
    }
}

#[test]
fn timing_only_tells_the_time_of_the_run_with_gradients() {
    for topology in ["ring", "halving-doubling", "torus(2, 2)", "auto"] {
        let topology = format!("\"{topology}\"");
        let keys = [
            ("sync.method", "\"allreduce\""),
            ("sync.topology", topology.as_str()),
            ("sync.bucket_kib", "2"),
            ("workers", "4"),
            ("model.kind", "\"mlp\""),
            ("model.widths", "[32, 16]"),
            ("stragglers.kind", "\"lognormal\""),
            ("simulation.bandwidth_mbps", "5.0"),
            ("simulation.latency_s", "0.002"),
            ("simulation.loss", "0.05"),
            ("evaluate.every_epochs", "0.5"),
        ];
        let (with, without) = (run(&keys).unwrap(), timing(&keys));
        for path in ["/virtual_s", "/samples_per_s", "/time", "/pushes", "/bytes", "/events", "/iterations"] {
            assert_eq!(with.summary.pointer(path), without.summary.pointer(path), "{topology}: {path}");
        }
        assert!(number(&with, "/final/test_accuracy") > 0.1);
        assert!(without.summary["final"]["test_accuracy"].is_null());
    }
}

#[test]
fn the_slowest_sets_the_pace_as_under_bsp() {
    let stragglers: [Keys<'_>; 4] = [
        &[("stragglers.kind", "\"exp\"")],
        &[("stragglers.kind", "\"permanent\""), ("stragglers.factor", "4.0")],
        &[
            ("stragglers.kind", "\"transient\""),
            ("stragglers.probability", "0.05"),
            ("stragglers.factor", "10.0"),
        ],
        &[("stragglers.kind", "\"rotating\""), ("stragglers.factor", "4.0"), ("stragglers.burst", "5")],
    ];
    for kind in stragglers {
        let of = |policy: Keys<'_>| {
            let base = [
                ("workers", "8"),
                ("servers", "1"),
                ("train.batch", "1"),
                ("train.epochs", "4"),
                ("stragglers.compute_s", "1.0"),
                ("evaluate.every_epochs", "0.0"),
            ];
            number(&timing(&[&base[..], policy, kind].concat()), "/samples_per_s")
        };
        let (all, bsp) = (of(&[("sync.method", "\"allreduce\"")]), of(&[("consistency.policy", "\"bsp\"")]));
        assert!((all / bsp - 1.0).abs() < 1e-3, "{kind:?}: {all} samples/s, {bsp} under bsp");
    }
}

/// Four workers, half a second a step, a lease of five seconds.
const STEADY: Keys<'_> = &[
    ("sync.method", "\"allreduce\""),
    ("workers", "4"),
    ("train.epochs", "20"),
    ("stragglers.compute_s", "0.5"),
    ("stragglers.jitter", "0.0"),
    ("cluster.lease_s", "5.0"),
];

#[test]
fn a_lost_worker_ends_a_rigid_run_with_its_name_within_a_lease() {
    for incident in ["worker 2 crash at 20.1", "worker 2 pause at 20.1 for 60.0"] {
        let incidents = format!("[\"{incident}\"]");
        let failure = run(&[STEADY, &[("simulation.incidents", incidents.as_str())]].concat()).unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("worker 2") && text.contains("sync.elastic"), "{incident}: {text}");
        let slackline_sim::SimFailure::Run { virtual_s, .. } = failure else { panic!("{failure}") };
        assert!((20.1..20.1 + 5.0 + 0.5 + 0.5).contains(&virtual_s), "{incident}: {virtual_s} s");
    }
}

#[test]
fn a_pause_shorter_than_a_lease_only_takes_its_time() {
    let of = |incidents| timing(&[STEADY, &[("simulation.incidents", incidents)]].concat());
    let (calm, short) = (of("[]"), of("[\"worker 1 pause at 20.1 for 2.0\"]"));
    let cost = number(&short, "/virtual_s") - number(&calm, "/virtual_s");
    assert!((cost - 2.0).abs() < 0.01, "{cost} s");
    assert_eq!(number(&short, "/samples"), number(&calm, "/samples"));
}

const ELASTIC: (&str, &str) = ("sync.elastic", "true");

#[test]
fn an_elastic_run_goes_on_without_a_lost_worker_and_says_what_it_cost() {
    let of = |incidents| run(&[STEADY, &[ELASTIC, ("simulation.incidents", incidents)]].concat()).unwrap();
    let (calm, killed) = (of("[]"), of("[\"worker 2 crash at 20.1\"]"));
    let (before, after) = (number(&calm, "/virtual_s"), number(&killed, "/virtual_s"));
    // What is left after the 40 steps of the first 20 seconds is done by three instead of four.
    let rounds = (before - 20.0) / 0.5;
    let expected = 20.0 + (4.0 / 3.0 * rounds).ceil() * 0.5;
    let cost = after - expected;
    assert!((4.0..=6.5).contains(&cost), "{before} s became {after} s: {cost} s beyond {expected} s");
    assert_eq!(number(&killed, "/samples"), number(&calm, "/samples"), "all units are used");
    let recoveries = killed.summary["recoveries"].as_array().unwrap();
    assert_eq!(recoveries.len(), 1, "{recoveries:?}");
    assert_eq!(recoveries[0]["worker"], 2);
    assert!((4.0..=6.5).contains(&recoveries[0]["seconds"].as_f64().unwrap()), "{recoveries:?}");
}

/// The final test loss of so many steps of four workers and the rest of three, reckoned without servers, groups or time.
fn by_hand(config: &Config, steps_of_four: u64) -> f64 {
    let data = DataSettings { spec: config.data.dataset, dir: None, limit: None };
    let dataset = dataset::load(&data).unwrap();
    let (inputs, classes, batch) = (dataset.input_count, dataset.class_count, config.train.batch as usize);
    let mut order =
        DataOrder::new(config.seed, dataset.train.len() as u64, config.train.batch, config.train.epochs);
    let mut model = model::build(&config.model, inputs, classes, batch);
    let (layout, size) = (config.layout(), config.layout().len());
    let mut values = vec![0.0; size as usize];
    model.initialize(config.seed, &mut values);
    let mut optimizer = Optimizer::new(config.optimizer, &layout, KeyRange::new(0, size), 1);
    let (mut unit, mut clock, mut picked, mut examples) =
        (0, 0, Vec::new(), Batch::with_capacity(batch, inputs as usize));
    while unit < order.batch_count() {
        let end = (unit + if clock < steps_of_four { 4 } else { 3 }).min(order.batch_count());
        let (mut gradients, mut counts) = (Vec::new(), Vec::new());
        for index in unit..end {
            order.samples(BatchIndex(index), 1, &mut picked);
            examples.clear();
            for (inputs, label) in picked.iter().filter_map(|sample| dataset.train_sample(*sample)) {
                examples.push(inputs, label);
            }
            let mut gradient = vec![0.0; size as usize];
            model.gradient(&values, examples.examples(), &mut gradient);
            gradients.push(gradient);
            counts.push(picked.len() as u32);
        }
        weighted_mean(&mut gradients, &counts);
        let progress = unit as f64 / order.batch_count() as f64;
        optimizer.apply(&mut values, &gradients[0], &Step::fresh(progress, clock));
        (unit, clock) = (end, clock + 1);
    }
    let mut total = Evaluation::default();
    for piece in dataset.test_examples().pieces(batch) {
        total.add(model.evaluate(&values, piece));
    }
    total.loss()
}

#[test]
fn an_elastic_run_comes_to_what_its_members_come_to_by_hand() {
    for learner in LEARNERS {
        let more = [ELASTIC, ("simulation.incidents", "[\"worker 1 crash at 8.1\"]"), ("train.epochs", "3")];
        let keys = [STEADY, learner, &more].concat();
        let outcome = run(&keys).unwrap();
        // Half a second a step, and each is reported.
        let clock = outcome.summary["recoveries"][0]["clock"].as_u64().unwrap();
        assert_eq!(clock, 16);
        let config = &resolved(&keys).config;
        let by_hand: Vec<f64> = (clock - 1..=clock + 1).map(|steps| by_hand(config, steps)).collect();
        // A membership that changes a step sooner or later makes a difference.
        let differs = |loss: f64| (loss - number(&outcome, "/final/test_loss")).abs() > 1e-5;
        let differing: Vec<bool> = by_hand.iter().map(|loss| differs(*loss)).collect();
        assert_eq!(differing, [true, false, true], "{by_hand:?} {}", loss(&outcome));
    }
}

#[test]
fn a_worker_that_comes_back_takes_over_the_state_and_joins() {
    let momentum = [("optimizer.kind", "\"momentum\""), ("optimizer.rate", "0.03")];
    let of = |incidents| {
        run(&[STEADY, &momentum, &[ELASTIC, ("simulation.incidents", incidents)]].concat()).unwrap()
    };
    let (calm, gone, back) =
        (of("[]"), of("[\"worker 2 crash at 20.1\"]"), of("[\"worker 2 crash at 20.1 for 30.0\"]"));
    let time = |outcome: &Outcome| number(outcome, "/virtual_s");
    assert!(time(&back) < time(&gone) - 5.0, "{} {} {}", time(&calm), time(&back), time(&gone));
    assert_eq!(number(&back, "/samples"), number(&calm, "/samples"));
    assert_eq!(back.summary["workers_time"].as_array().unwrap().len(), 5, "it is a new worker");
    assert!(loss(&back).is_finite());
}

#[test]
fn a_worker_that_slept_for_longer_than_a_lease_joins_the_others_again() {
    let of = |incidents| run(&[STEADY, &[ELASTIC, ("simulation.incidents", incidents)]].concat()).unwrap();
    let (calm, slept) = (of("[]"), of("[\"worker 1 pause at 20.1 for 12.0\"]"));
    assert_eq!(number(&slept, "/samples"), number(&calm, "/samples"));
    assert_eq!(slept.summary["workers_time"].as_array().unwrap().len(), 4, "it is the same worker");
    let cost = number(&slept, "/virtual_s") - number(&calm, "/virtual_s");
    // The others waited for a lease, and had one less for seven seconds more.
    assert!((4.0..=5.75 + 7.0 / 4.0 + 1.0).contains(&cost), "{cost} s");
}

#[test]
fn a_coordinator_that_stands_still_holds_nobody_up() {
    let of = |incidents| timing(&[STEADY, &[("simulation.incidents", incidents)]].concat());
    let (calm, paused) = (of("[]"), of("[\"server 0 pause at 20.0 for 3.0\"]"));
    for path in ["/samples", "/virtual_s", "/bytes/pushed"] {
        assert_eq!(number(&paused, path), number(&calm, path), "{path}");
    }
}

#[test]
fn the_timeline_tells_computing_waiting_and_reducing_apart() {
    let folder = tempfile::tempdir().unwrap();
    let config = resolved(&[
        ("sync.method", "\"allreduce\""),
        ("workers", "4"),
        ("stragglers.kind", "\"exp\""),
        ("simulation.bandwidth_mbps", "20.0"),
    ]);
    let out = Some(folder.path().to_owned());
    let outcome = simulate(&config, &Options { out, ..Options::default() }).unwrap();
    let text = std::fs::read_to_string(folder.path().join("timeline.jsonl")).unwrap();
    let spans: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seconds = |what: &str| -> f64 {
        let of = |span: &&Json| span["what"] == what;
        let long = |span: &Json| span["end_s"].as_f64().unwrap() - span["start_s"].as_f64().unwrap();
        spans.iter().filter(of).map(long).sum()
    };
    let (compute, wait, push) = (seconds("compute"), seconds("wait"), seconds("push"));
    let whole = compute + wait + push;
    for (spent, path) in [(compute, "/time/compute"), (wait, "/time/wait_for_clock"), (push, "/time/push")] {
        let share = number(&outcome, path);
        assert!(
            spent > 0.0 && (spent / whole - share).abs() < 0.03,
            "{path}: {share}, and {} drawn",
            spent / whole
        );
    }
}
