//! Every key, at the field that it is for.

use super::*;
use crate::codec::{CodecKind, CodecSpec};
use crate::consistency::Treatment;
use crate::local::Outer;
use crate::optimizer::{Per, RateSchedule, Rule, Shape};
use crate::order::Priority;
use crate::stragglers::Slowness;

/// Every key at a value that no other key of its type has, so that two fields read from one key would show.
fn unlike_any_default() -> Layer {
    layer(
        "b.toml",
        &[
            ("seed", "11"),
            ("workers", "12"),
            ("servers", "2"),
            ("out", "\"o\""),
            ("cluster.addresses", "[\"a:1\", \"b:1\"]"),
            ("cluster.keys", "\"k\""),
            ("cluster.lease_s", "13"),
            ("cluster.connect_timeout_s", "44.5"),
            ("cluster.wait_report_s", "15.5"),
            ("cluster.shards_per_server", "16"),
            ("cluster.shard_bytes", "65537"),
            ("cluster.pin_threads", "true"),
            ("cluster.exit_when_done", "false"),
            ("cluster.min_workers", "6"),
            ("cluster.replicas", "2"),
            ("cluster.durability", "\"replicated\""),
            ("cluster.steps", "\"whole\""),
            ("cluster.state", "\"s\""),
            ("cluster.store", "\"etcds://a:2/p\""),
            ("cluster.coordinators", "[\"c:1\", \"d:1\"]"),
            ("cluster.store_keys", "\"e\""),
            ("data.dataset", "\"fashion-mnist\""),
            ("data.dir", "\"d\""),
            ("data.limit", "17"),
            ("data.dimensions", "27"),
            ("data.samples", "28"),
            ("model.kind", "\"mlp\""),
            ("model.widths", "[18, 19]"),
            ("model.condition", "29.5"),
            ("model.noise", "30.5"),
            ("train.epochs", "20"),
            ("train.batch", "22"),
            ("train.microbatch", "11"),
            ("train.threads", "23"),
            // It goes without local steps: it has a test of its own.
            ("train.overlap", "false"),
            ("train.proportional", "true"),
            ("optimizer.kind", "\"momentum\""),
            ("optimizer.rate", "0.25"),
            ("optimizer.momentum", "0.5"),
            ("optimizer.nesterov", "true"),
            ("optimizer.weight_decay", "0.125"),
            ("optimizer.schedule", "\"cosine\""),
            ("optimizer.warmup", "0.0625"),
            ("optimizer.final_rate", "0.03125"),
            ("optimizer.momentum_per", "\"clock\""),
            ("optimizer.decay_per", "\"push\""),
            ("local.mode", "\"difference\""),
            ("local.steps", "31"),
            ("local.outer", "\"nesterov\""),
            ("local.outer_rate", "0.375"),
            ("local.outer_momentum", "0.625"),
            ("local.fragments", "7"),
            ("local.elasticity", "0.875"),
            ("consistency.policy", "\"ssp\""),
            ("consistency.staleness", "24"),
            ("consistency.low", "32"),
            ("consistency.high", "33"),
            ("consistency.backup", "8"),
            ("consistency.quorum", "9"),
            ("consistency.grace_s", "34.5"),
            // What is pulled ahead goes without much of what stands here: it has a test of its own.
            ("consistency.prefetch", "0"),
            ("consistency.delay", "\"compensate\""),
            ("consistency.delay_strength", "0.1875"),
            ("consistency.drop_at", "35"),
            ("consistency.on_bad_gradient", "\"stop\""),
            // An allreduce goes without much of what stands here: it has a test of its own.
            ("sync.method", "\"server\""),
            ("sync.topology", "\"torus(3, 4)\""),
            ("sync.bucket_kib", "40"),
            ("sync.order", "\"forward\""),
            ("sync.elastic", "true"),
            ("sync.listen", "\"[::1]:41\""),
            ("sync.advertise", "\"b:42\""),
            ("codec.push", "\"top-k\""),
            ("codec.pull", "\"int8\""),
            ("codec.error_feedback", "false"),
            ("codec.share", "0.125"),
            ("codec.budget_bytes", "54"),
            ("codec.floor", "0.015625"),
            ("codec.block", "50"),
            ("codec.levels", "51"),
            ("codec.rank", "52"),
            ("codec.threshold", "0.0625"),
            ("codec.stochastic", "true"),
            ("guard.norm_max", "43.5"),
            ("guard.on_norm", "\"clip\""),
            ("guard.pushes_per_s", "45.5"),
            ("checkpoint.every_clocks", "46"),
            ("checkpoint.at", "\"c\""),
            ("checkpoint.keep", "47"),
            ("checkpoint.kind", "\"priority\""),
            ("checkpoint.share", "0.5"),
            ("checkpoint.block", "48"),
            ("checkpoint.report_after_s", "49.5"),
            ("evaluate.every_epochs", "0.75"),
            ("evaluate.accuracies", "[0.9, 1]"),
            ("evaluate.losses", "[0.7]"),
            ("metrics.every_s", "25.5"),
            ("stragglers.kind", "\"transient\""),
            ("stragglers.compute_s", "36.5"),
            ("stragglers.jitter", "0.4375"),
            ("stragglers.sigma", "2.5"),
            ("stragglers.alpha", "3.5"),
            ("stragglers.probability", "0.6875"),
            ("stragglers.factor", "37.5"),
            ("stragglers.burst", "38"),
            ("stragglers.slow", "10"),
            ("stragglers.file", "\"f\""),
            ("simulation.bandwidth_mbps", "8"),
            ("simulation.latency_s", "39.5"),
            ("simulation.loss", "0.3125"),
            ("simulation.apply_mbps", "16"),
            ("simulation.disk_mbps", "24"),
            ("simulation.worker_mtbf_s", "50.5"),
            ("simulation.server_mtbf_s", "51.5"),
            ("simulation.down_s", "52.5"),
            ("simulation.incidents", "[\"worker 1 crash at 30 for 10\"]"),
            ("transport.bandwidth_mbit", "53.5"),
            ("transport.round_trip_ms", "54.5"),
            ("transport.congestion", "\"newreno\""),
            ("transport.datagram_bytes", "1452"),
            ("transport.initial_window_bytes", "100001"),
            ("transport.stripe_bytes", "100002"),
            ("transport.streams", "26"),
            ("transport.stream_window_bytes", "100003"),
            ("transport.connection_window_bytes", "100004"),
            ("transport.send_window_bytes", "100005"),
            ("transport.session_bytes", "8388609"),
            ("transport.socket_buffer_bytes", "100006"),
            ("transport.order", "\"front-first\""),
            ("transport.credit_bytes", "100007"),
            ("transport.push_mbit", "8.0"),
        ],
    )
}

#[test]
fn every_key_reaches_its_field() {
    let layer = unlike_any_default();
    assert_eq!(layer.values.len(), KEYS.len());
    let expected = Config {
        seed: 11,
        workers: 12,
        servers: 2,
        out: "o".to_owned(),
        cluster: Cluster {
            addresses: vec!["a:1".to_owned(), "b:1".to_owned()],
            keys: "k".to_owned(),
            lease_s: 13.0,
            connect_timeout_s: 44.5,
            wait_report_s: 15.5,
            shards_per_server: 16,
            shard_bytes: 65_537,
            pin_threads: true,
            exit_when_done: false,
            min_workers: Some(6),
            replicas: 2,
            durability: Durability::Replicated,
            steps: Steps::Whole,
            state: Some("s".to_owned()),
            store: Store::Etcd(Etcd {
                endpoints: vec!["a:2".to_owned()],
                prefix: "p".to_owned(),
                keys: Some("e".to_owned()),
            }),
            coordinators: vec!["c:1".to_owned(), "d:1".to_owned()],
        },
        data: Data { dataset: DatasetSpec::FashionMnist, dir: Some("d".to_owned()), limit: Some(17) },
        model: ModelSpec::Mlp { widths: vec![18, 19] },
        train: Train {
            epochs: 20,
            batch: 22,
            microbatch: 11,
            threads: 23,
            overlap: false,
            proportional: true,
        },
        optimizer: OptimizerSpec {
            rule: Rule::Momentum { momentum: 0.5, nesterov: true, per: Per::Clock },
            rate: 0.25,
            weight_decay: 0.125,
            decay_per_clock: false,
            schedule: RateSchedule { shape: Shape::Cosine, warmup: 0.0625, final_share: 0.03125 },
        },
        local: Some(LocalSpec {
            steps: 31,
            outer: Outer::Nesterov { rate: 0.375, momentum: 0.625 },
            fragments: 7,
            elastic: None,
        }),
        consistency: Consistency {
            policy: PolicySpec::Ssp { staleness: 24 },
            prefetch: 0,
            delay: DelaySpec { treatment: Treatment::Compensate { strength: 0.1875 }, drop_at: Some(35) },
            on_bad_gradient: OnBadGradient::Stop,
        },
        sync: None,
        codec: Codec {
            push: CodecSpec { kind: CodecKind::TopK { share: 0.125 }, error_feedback: false },
            pull: CodecKind::Int8 { block: 50 },
        },
        guard: Guard { norm_max: Some(43.5), on_norm: OnNorm::Clip, pushes_per_s: Some(45.5) },
        checkpoint: Checkpoint {
            every: Some(23),
            at: Some("c".to_owned()),
            keep: 47,
            kind: CheckpointKind::Priority { share: 0.5 },
            block: 48,
            report_after: Duration::from_millis(49_500),
        },
        evaluate: Evaluate { every_epochs: 0.75, accuracies: vec![0.9, 1.0], losses: vec![0.7] },
        metrics: Metrics { every_s: 25.5 },
        stragglers: Stragglers {
            compute_s: 36.5,
            jitter: 0.4375,
            slowness: Slowness::Transient { probability: 0.6875, factor: 37.5 },
        },
        stragglers_file: None,
        simulation: Simulation {
            bandwidth: Some(1e6),
            latency_s: 39.5,
            loss: 0.3125,
            apply_bytes_per_s: Some(2e6),
            disk_bytes_per_s: Some(3e6),
            incidents: vec![Incident {
                whom: Whom::Worker(Some(1)),
                what: What::Crash,
                at_s: (30.0, 30.0),
                for_s: Some(10.0),
            }],
            worker_mtbf_s: Some(50.5),
            server_mtbf_s: Some(51.5),
            down_s: 52.5,
        },
        transport: Transport {
            congestion: Congestion::NewReno,
            datagram_bytes: Some(1452),
            initial_window_bytes: 100_001,
            stripe_bytes: 100_002,
            streams: 26,
            stream_window_bytes: 100_003,
            connection_window_bytes: 100_004,
            send_window_bytes: 100_005,
            session_bytes: 8_388_609,
            socket_buffer_bytes: 100_006,
            order: Priority::FrontFirst,
            credit_bytes: 100_007,
            push_bytes_per_s: 1_000_000,
        },
    };
    let resolved = Config::resolve(&[layer]).unwrap();
    assert_eq!(resolved.config, expected);
    let again = Config::resolve(&[read_back(&resolved.to_toml())]).unwrap();
    assert_eq!((&again.config, again.hash()), (&expected, resolved.hash()));
}

#[test]
fn layers_are_computed_on_as_they_come_unless_values_are_pulled_ahead_or_anew() {
    let of = |more: &[(&str, &str)]| {
        let keys = [&[("train.overlap", "true"), ("cluster.shards_per_server", "2")][..], more].concat();
        let config = resolve(&[layer("b.toml", &keys)]).unwrap().config;
        (config.train.overlap, config.begins_early())
    };
    assert_eq!(of(&[("consistency.policy", "\"bsp\"")]), (true, true));
    assert_eq!(of(&[("consistency.policy", "\"asp\"")]), (true, true));
    assert_eq!(of(&[("consistency.policy", "\"asp\""), ("consistency.prefetch", "1")]), (true, false));
    assert_eq!(of(&[("consistency.policy", "\"essp\""), ("consistency.staleness", "2")]), (true, false));
    assert_eq!(of(&[("sync.method", "\"allreduce\"")]), (false, false), "a file made for more goes as well");
    let single = [("train.overlap", "true"), ("servers", "1"), ("cluster.shards_per_server", "1")];
    assert!(!resolve(&[layer("b.toml", &single)]).unwrap().config.begins_early(), "one shard comes at once");
    assert!(!resolve(&[layer("b.toml", &[])]).unwrap().config.begins_early());
}

#[test]
fn values_are_pulled_ahead_under_the_policies_that_allow_it() {
    let of = |policy: &str, more: &[(&str, &str)]| {
        let keys = [("consistency.policy", policy), ("consistency.prefetch", "1")];
        resolve(&[layer("b.toml", &[&keys[..], more].concat())]).map(|resolved| resolved.config)
    };
    for (policy, bound) in [
        ("\"ssp\"", Some("consistency.staleness")),
        ("\"essp\"", Some("consistency.staleness")),
        ("\"dssp\"", Some("consistency.low")),
        ("\"asp\"", None),
        ("\"buffer\"", None),
    ] {
        let keys: Vec<_> = bound.iter().map(|key| (*key, "1")).collect();
        let config = of(policy, &keys).unwrap();
        assert_eq!(config.consistency.prefetch, 1, "{policy}");
        assert!(config.policy_text().starts_with("prefetch(1) + "), "{policy}");
        assert!(config.consistency.policy.prefetch_max() >= 1, "{policy}");
        let Some(key) = bound else { continue };
        let problem = of(policy, &[(key, "0")]).unwrap_err().concat();
        assert!(problem.contains(key) && problem.contains("consistency.prefetch = 1"), "{problem}");
    }
    for policy in ["\"bsp\"", "\"backup\"", "\"quorum\""] {
        assert!(of(policy, &[]).unwrap_err().concat().contains("another consistency.policy"), "{policy}");
    }
    assert_eq!(of("\"asp\"", &[("sync.method", "\"allreduce\"")]).unwrap().consistency.prefetch, 0);
}

#[test]
fn every_key_of_an_allreduce_reaches_its_field() {
    let resolve = |more: &[(&str, &str)]| {
        let mut layer = unlike_any_default();
        let keys =
            [("sync.method", "\"allreduce\""), ("local.mode", "\"off\""), ("train.proportional", "false")];
        let alone = [("consistency.delay", "\"none\""), ("consistency.drop_at", "0")];
        for (key, value) in keys.iter().chain(&alone).chain(more) {
            layer.values.retain(|(name, _)| name != key);
            layer.values.push(((*key).to_owned(), Value::from_literal(value).unwrap()));
        }
        Config::resolve(&[layer]).unwrap().config
    };
    let expected = Allreduce {
        topology: Topology::Torus { x: 3, y: 4 },
        bucket_bytes: 40 << 10,
        order: Order::Forward,
        elastic: true,
        listen: "[::1]:41".to_owned(),
        advertise: Some("b:42".to_owned()),
    };
    assert_eq!(resolve(&[]).sync.as_ref(), Some(&expected));
    let one = ("cluster.addresses", "[\"a:1\"]");
    let more = [("servers", "1"), one, ("sync.order", "\"backward\""), ("sync.advertise", "\"\"")];
    let other = Allreduce { order: Order::Backward, advertise: None, ..expected };
    let config = resolve(&more);
    assert_eq!((config.cluster.replicas, config.cluster.durability), (1, Durability::Memory));
    assert_eq!((config.cluster.steps, config.guard.norm_max), (Steps::Parts, None));
    assert_eq!(config.guard.pushes_per_s, None);
    assert_eq!(config.checkpoint.every, None, "an allreduce has no shards that could be kept");
    assert_eq!(config.sync.as_ref(), Some(&other));
    assert_eq!(config.policy_text(), "elastic allreduce(torus(3, 4))");
}

#[test]
fn an_allreduce_needs_one_server_whatever_the_file_says() {
    let run = [("sync.method", "\"allreduce\""), ("servers", "3"), ("workers", "2")];
    let config = resolve(&[layer("b.toml", &run)]).unwrap().config;
    for addresses in ["[\"a:1\"]", "[\"a:1\", \"b:1\", \"c:1\"]"] {
        let with = [&run[..], &[("cluster.addresses", addresses)]].concat();
        assert!(resolve(&[layer("b.toml", &with)]).is_ok(), "{addresses}");
    }
    assert_eq!((config.servers, config.sync.map(|sync| sync.topology)), (1, Some(Topology::Ring)));
}
