//! Every kind of mistake, with the line that a user reads.

use super::*;

#[test]
fn every_mistake_has_its_line() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("train.bacth", "32")], "b.toml: train.bacth = 32: unknown key; did you mean train.batch?"),
        (
            &[("kubernetes", "true")],
            "b.toml: kubernetes = true: unknown key; `slackline config reference` lists all keys",
        ),
        (
            &[("consistency", "\"bsp\"")],
            "b.toml: consistency = \"bsp\": a section, not a key; its keys are policy, staleness, low, \
             high, backup, quorum, grace_s, prefetch, delay, delay_strength, drop_at, on_bad_gradient",
        ),
        (&[("seed", "-1")], "b.toml: seed = -1: expected a whole number from 0 to 9223372036854775807"),
        (&[("workers", "0")], "b.toml: workers = 0: expected a whole number from 1 to 16384 (workers)"),
        (&[("servers", "1025")], "b.toml: servers = 1025: expected a whole number from 1 to 1024 (servers)"),
        (
            &[("train.batch", "32.0")],
            "b.toml: train.batch = 32.0: expected a whole number from 1 to 1048576 (samples per \
             worker per iteration)",
        ),
        (
            &[("cluster.lease_s", "0.1")],
            "b.toml: cluster.lease_s = 0.1: expected a number from 0.5 to 86400 (seconds)",
        ),
        (
            &[("optimizer.rate", "nan")],
            "b.toml: optimizer.rate = nan: expected a number from 0.000001 to 1000",
        ),
        (
            &[("optimizer.rate", "inf")],
            "b.toml: optimizer.rate = inf: expected a number from 0.000001 to 1000",
        ),
        (
            &[("cluster.exit_when_done", "\"yes\"")],
            "b.toml: cluster.exit_when_done = \"yes\": expected true or false",
        ),
        (
            &[("out", "\"\"")],
            "b.toml: out = \"\": expected a text that is not empty, without control characters (folder)",
        ),
        (&[("data.dir", "1")], "b.toml: data.dir = 1: expected a text without control characters (folder)"),
        (
            &[("data.dataset", "\"mnist\"")],
            "b.toml: data.dataset = \"mnist\": expected \"digits\", \"fashion-mnist\" or \"noise\"",
        ),
        (
            &[("data.limit", "0")],
            "b.toml: data.limit = 0: expected \"all\" or a whole number from 1 to 1099511627776 (samples)",
        ),
        (
            &[("consistency.policy", "\"ssb\"")],
            "b.toml: consistency.policy = \"ssb\": expected \"bsp\", \"ssp\", \"essp\", \"dssp\", \"asp\", \
             \"backup\", \"quorum\" or \"buffer\"",
        ),
        (
            &[("evaluate.accuracies", "[0.9, 1.5]")],
            "b.toml: evaluate.accuracies = [0.9, 1.5]: expected a list of at most 64 numbers from 0 to 1 \
             (share of the test set)",
        ),
        (
            &[("model.kind", "\"mlp\""), ("model.widths", "[64, 0]")],
            "b.toml: model.widths = [64, 0]: expected a list of at most 64 whole numbers from 1 to \
             65536 (values)",
        ),
        (
            &[("model.kind", "\"mlp\"")],
            "default: model.widths = []: an mlp needs at least one hidden layer; give the widths, or \
             model.kind = \"softmax\"",
        ),
        (
            &[("model.widths", "[64]")],
            "b.toml: model.widths = [64]: softmax has no hidden layers; give model.widths = [], or \
             model.kind = \"mlp\"",
        ),
        (
            &[("train.microbatch", "7")],
            "b.toml: train.microbatch = 7: must divide train.batch = 32, or be 0 for the whole batch",
        ),
        (
            &[("model.kind", "\"quadratic\"")],
            "b.toml: model.kind = \"quadratic\": the quadratic goes with data.dataset = \"noise\", and noise with \
             nothing else",
        ),
        (
            &[("optimizer.momentum_per", "\"ordered\""), ("optimizer.nesterov", "true")],
            "b.toml: optimizer.momentum_per = \"ordered\": ordered momentum has no form of Nesterov; set \
             optimizer.nesterov = false",
        ),
        (
            &[("local.mode", "\"difference\""), ("local.fragments", "3")],
            "b.toml: local.fragments = 3: at most 2: there are no more shards (servers times \
             cluster.shards_per_server)",
        ),
        (
            &[("consistency.policy", "\"dssp\""), ("consistency.high", "0")],
            "b.toml: consistency.high = 0: must be at least consistency.low",
        ),
        (
            &[("consistency.policy", "\"backup\""), ("consistency.backup", "2")],
            "b.toml: consistency.backup = 2: at most 1: there are no more workers, less the one that a clock cannot \
             do without",
        ),
        (
            &[("consistency.policy", "\"quorum\""), ("consistency.quorum", "3")],
            "b.toml: consistency.quorum = 3: at most 2: there are no more workers",
        ),
        (
            &[("train.overlap", "true"), ("train.threads", "2")],
            "b.toml: train.overlap = true: goes with train.threads = 1: several threads have all parts of their sum at the end; leave \
             one of the two out",
        ),
        (
            &[("train.overlap", "true"), ("local.mode", "\"difference\"")],
            "b.toml: train.overlap = true: goes without local.mode: what local steps push is known after the last of them; leave one of \
             the two out",
        ),
        (
            &[("train.overlap", "true"), ("cluster.steps", "\"whole\"")],
            "b.toml: train.overlap = true: goes without cluster.steps = \"whole\", where the pieces of a step wait for each other; \
             leave one of the two out",
        ),
        (
            &[("train.overlap", "true"), ("codec.push", "\"sufficient-factor\"")],
            "b.toml: train.overlap = true: goes without codec.push = \"sufficient-factor\": what a gradient is made of is known when \
             all of it is; leave one of the two out",
        ),
        (
            &[("consistency.prefetch", "1"), ("consistency.policy", "\"bsp\"")],
            "b.toml: consistency.prefetch = 1: goes with ssp, essp, dssp, asp and buffer: under the others a pull waits for the very \
             push that would be missing; set consistency.prefetch = 0, or another consistency.policy",
        ),
        (
            &[("consistency.prefetch", "1"), ("consistency.staleness", "0")],
            "b.toml: consistency.prefetch = 1: what is pulled ahead is stale, and the bound is below that; set \
             consistency.staleness = 1 or more, or consistency.prefetch = 0",
        ),
        (
            &[("consistency.prefetch", "1"), ("local.mode", "\"difference\"")],
            "b.toml: consistency.prefetch = 1: goes without local.mode: local steps begin where the servers are after the last \
             push; raise local.steps where pulls take long",
        ),
        (
            &[("consistency.prefetch", "1"), ("consistency.delay", "\"compensate\"")],
            "b.toml: consistency.prefetch = 1: goes without consistency.delay = \"compensate\" and \"compensate-adaptive\": a shard \
             keeps the values that a worker read last, and here these are not those that its next gradient was computed on",
        ),
        (
            &[("consistency.prefetch", "1"), ("consistency.drop_at", "1")],
            "b.toml: consistency.prefetch = 1: what is pulled ahead is stale, and consistency.drop_at drops that; set \
             consistency.drop_at = 2 or more, or 0",
        ),
        (
            &[("cluster.min_workers", "3")],
            "b.toml: cluster.min_workers = 3: at most 2: there are no more workers",
        ),
        (
            &[("cluster.replicas", "2"), ("servers", "1")],
            "b.toml: cluster.replicas = 2: at most 1: there are no more servers, and no server holds two copies of a shard",
        ),
        (
            &[("cluster.durability", "\"replicated\"")],
            "b.toml: cluster.durability = \"replicated\": replicated needs cluster.replicas = 2: without a backup there is no \
             second copy to wait for",
        ),
        // Case torchtitan#2899.
        (
            &[("cluster.replicas", "2"), ("cluster.lease_s", "4.0"), ("cluster.connect_timeout_s", "8.0")],
            "b.toml: cluster.connect_timeout_s = 8.0: too short: putting a backup in a server's place takes 8 s (it follows from \
             cluster.lease_s), and this must be longer; give more than that, or \"auto\"",
        ),
        (
            &[("cluster.store", "\"etcd://a\""), ("cluster.coordinators", "[\"b:1\"]")],
            "b.toml: cluster.store = \"etcd://a\": expected \"local\", or etcd://host:port,host:port/prefix (etcds:// for TLS), with ports \
             from 1 to 65535 (IPv6 as [::1]:2379)",
        ),
        (
            &[("cluster.store", "\"etcd://a:1\"")],
            "default: cluster.coordinators = []: cluster.store is etcd, so the coordinator is a process of its own: give the host:port of \
             each candidate (two or more, so that one may be lost)",
        ),
        (
            &[("cluster.coordinators", "[\"b:1\"]")],
            "b.toml: cluster.coordinators = [\"b:1\"]: needs cluster.store = \"etcd://...\": with the local store server 0 is the \
             coordinator",
        ),
        (
            &[("cluster.store", "\"etcds://a:1\""), ("cluster.coordinators", "[\"b:1\"]")],
            "default: cluster.store_keys = \"\": etcds:// needs the folder with ca.pem, cert.pem and key.pem that etcd accepts, or one of \
             `slackline keys`",
        ),
        (
            &[
                ("cluster.connect_timeout_s", "5.0"),
                ("cluster.lease_s", "3.0"),
                ("cluster.store", "\"etcd://a:1\""),
                ("cluster.coordinators", "[\"b:1\"]"),
            ],
            "b.toml: cluster.connect_timeout_s = 5.0: too short: putting another coordinator in the place of a lost one takes 11 s (it \
             follows from cluster.lease_s), and this must be longer; give more than that, or \"auto\"",
        ),
        (
            &[
                ("checkpoint.every_clocks", "50"),
                ("cluster.store", "\"etcd://a:1\""),
                ("cluster.coordinators", "[\"b:1\"]"),
            ],
            "default: checkpoint.at = \"\": cluster.store is etcd, so the checkpoints must lie where every server and every candidate reaches \
             them: give a folder that all of them share, or s3://bucket/prefix",
        ),
        (
            &[("checkpoint.at", "\"gs://abc\"")],
            "b.toml: checkpoint.at = \"gs://abc\": expected a folder, file:///folder or s3://bucket/prefix",
        ),
        (
            &[("guard.on_norm", "\"clip\"")],
            "b.toml: guard.on_norm = \"clip\": needs a guard.norm_max above 0: without a limit no norm is beyond it",
        ),
        // Shards of 320 and 330 keys.
        (
            &[("codec.push", "\"relative-k\""), ("codec.budget_bytes", "32")],
            "b.toml: codec.budget_bytes = 32: does not hold a value of each of the 2 shards; the least is 33",
        ),
        (
            &[("stragglers.kind", "\"recorded\"")],
            "default: stragglers.file = \"\": stragglers.kind = \"recorded\" needs a file",
        ),
        (
            &[("simulation.incidents", "[\"worker 1 crash at 3\", \"worker 2 crash at 3\"]")],
            "b.toml: simulation.incidents = [\"worker 1 crash at 3\", \"worker 2 crash at 3\"]: entry 1 is no incident of \
             this run; write \"worker 1 crash at 30 for 10\" or \"server 0 pause at 5 for 2\", with a process that the run \
             has",
        ),
        (
            &[("transport.datagram_bytes", "1199")],
            "b.toml: transport.datagram_bytes = 1199: expected \"auto\" or a whole number from 1200 \
             to 65507 (bytes)",
        ),
        (
            &[("transport.initial_window_bytes", "65507")],
            "b.toml: transport.initial_window_bytes = 65507: must exceed one datagram, which auto may find \
             to be 65507 bytes (transport.datagram_bytes)",
        ),
        (
            &[("transport.connection_window_bytes", "65536")],
            "b.toml: transport.connection_window_bytes = 65536: must be at least \
             transport.stream_window_bytes = 3145728",
        ),
        (
            &[("sync.method", "\"allreduce\""), ("workers", "6"), ("sync.topology", "\"torus(2, 2)\"")],
            "b.toml: sync.topology = \"torus(2, 2)\": torus(2, 2) has 4 places for 6 workers; these fit: torus(1, 6), torus(2, 3), \
             torus(3, 2), torus(6, 1)",
        ),
        (
            &[("sync.method", "\"allreduce\""), ("workers", "6"), ("sync.topology", "\"hierarchical(4)\"")],
            "b.toml: sync.topology = \"hierarchical(4)\": hierarchical(4) does not divide 6 workers; these do: hierarchical(1), \
             hierarchical(2), hierarchical(3), hierarchical(6)",
        ),
        (
            &[("sync.method", "\"allreduce\""), ("sync.topology", "\"star\"")],
            "b.toml: sync.topology = \"star\": not a topology; there are ring, halving-doubling, doubling, hierarchical(k), torus(x, \
             y) and auto, with sizes from 1, for example torus(4, 2)",
        ),
        (
            &[("sync.method", "\"allreduce\""), ("local.mode", "\"difference\"")],
            "b.toml: sync.method = \"allreduce\": goes without local.mode, train.proportional, consistency.delay and \
             consistency.drop_at: all workers make each step together",
        ),
        (
            &[("sync.method", "\"allreduce\""), ("workers", "513")],
            "b.toml: workers = 513: at most 512: there are no more workers that one allreduce takes",
        ),
        (
            &[("sync.method", "\"allreduce\""), ("sync.listen", "\"localhost:0\"")],
            "b.toml: sync.listen = \"localhost:0\": expected an address and a port, such as \"0.0.0.0:0\" or \"[::]:7100\"",
        ),
        (
            &[("sync.method", "\"allreduce\""), ("sync.advertise", "\"a:0\"")],
            "b.toml: sync.advertise = \"a:0\": expected host:port with a port from 1 to 65535 (IPv6 as [::1]:7000)",
        ),
        (
            &[("cluster.addresses", "[\"a:1\"]")],
            "b.toml: cluster.addresses = [\"a:1\"]: 1 addresses for 2 servers; give one for each server, \
             in order, or none for `run`",
        ),
        (
            &[("cluster.addresses", "[\"a:1\", \"b:0\"]")],
            "b.toml: cluster.addresses = [\"a:1\", \"b:0\"]: address 1 is not host:port with a port from 1 \
             to 65535 (IPv6 as [::1]:7000)",
        ),
        (
            &[("cluster.addresses", "[\"a:1\", \"a:1\"]")],
            "b.toml: cluster.addresses = [\"a:1\", \"a:1\"]: servers 0 and 1 have the same address",
        ),
        (
            &[("cluster.addresses", "[\"a:1\", 2]")],
            "b.toml: cluster.addresses = [\"a:1\", 2]: expected a list of at most 1024 texts, none of them \
             empty (host:port)",
        ),
    ];
    for (settings, line) in cases {
        assert_eq!(resolve(&[layer("b.toml", settings)]), Err(vec![(*line).to_owned()]));
    }
}
