//! Keys of the run itself, the cluster, the data, the model and the work.

use super::{Absent, DAY_S, GIB, KIB, Key, MIB};
use crate::config::kind::Kind;
use crate::limits::{COORDINATOR_COUNT_MAX, SERVER_COUNT_MAX, SHARDS_PER_SERVER_MAX, WORKER_COUNT_MAX};

pub(super) const RUN: &[Key] = &[
    Key::new(
        "seed",
        Kind::Int { min: 0, max: i64::MAX },
        Absent::Default("1"),
        "",
        "Everything random follows from it: initial parameters and the order of samples. Two runs that \
         should be compared need the same one.",
    ),
    Key::new(
        "workers",
        Kind::Int { min: 1, max: WORKER_COUNT_MAX as i64 },
        Absent::Default("2"),
        "workers",
        "Workers that `run` starts, and that a cluster waits for before it trains. The samples of one clock \
         are workers times batch, so the rate that suits depends on it.",
    ),
    Key::new(
        "servers",
        Kind::Int { min: 1, max: SERVER_COUNT_MAX as i64 },
        Absent::Default("2"),
        "servers",
        "Servers that the parameters are spread over. More than the network needs only adds messages.",
    ),
    Key::new(
        "out",
        Kind::Text,
        Absent::Default("\"out\""),
        "folder",
        "Where results, the resolved configuration and the metrics of the run are written.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.addresses",
        Kind::TextList { len_max: SERVER_COUNT_MAX as usize },
        Absent::Default("[]"),
        "host:port",
        "Where each server is reached, server 0 first; IPv6 in brackets. Needed by `server`, `worker`, \
         `status` and `stop`; `run` chooses its own. A worker waits for a wrong one until connect_timeout_s \
         is over.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.keys",
        Kind::Text,
        Absent::Default("\"keys\""),
        "folder",
        "The certificates that `slackline keys init` made. `run` makes throw-away ones by itself.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.lease_s",
        Kind::Float { min: 0.5, max: DAY_S },
        Absent::Default("10.0"),
        "seconds",
        "A worker or a server that was not heard for so long is gone: it leaves the clock table, or its backup takes its place, and \
         the others go on. Too short expels those that only pause; too long is what everyone waits after a death. Every other \
         timer follows from it; `slackline config show` prints them.",
    ),
    Key::new(
        "cluster.connect_timeout_s",
        Kind::FloatOr { word: "auto", min: 0.1, max: DAY_S },
        Absent::Default("\"auto\""),
        "seconds",
        "How long a worker looks for a server before it gives up and names it. auto: six leases, which is time for another server to \
         take its place, or for itself to come back; with cluster.store = \"etcd://...\" at least twice as long as another coordinator needs to \
         take the place of a lost one.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.wait_report_s",
        Kind::FloatOr { word: "auto", min: 0.1, max: DAY_S },
        Absent::Default("\"auto\""),
        "seconds",
        "How often a wait is reported, with what it waits for. auto: half a lease.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.shards_per_server",
        Kind::Int { min: 1, max: SHARDS_PER_SERVER_MAX as i64 },
        Absent::Default("1"),
        "shards",
        "Shards of one server at least, each with a thread of its own. More than the cores it may use gains nothing but smaller pieces.",
    ),
    Key::new(
        "cluster.shard_bytes",
        Kind::Int { min: 64 * KIB, max: 16 * GIB },
        Absent::Default("8388608"),
        "bytes of values",
        "A server has as many more shards as make each at most so large, up to 256. A shard is what is pushed and pulled in one piece, \
         so this is what the buffers of a session are counted in: larger ones than an eighth of transport.session_bytes raise what a \
         worker may make a server hold.",
    ),
    Key::new(
        "cluster.pin_threads",
        Kind::Bool,
        Absent::Default("false"),
        "",
        "Whether the thread of each shard stays on one of the processors that its server may use, dealt out by the shards' numbers, so that \
         what it has in a cache of its own stays there.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.exit_when_done",
        Kind::Bool,
        Absent::Default("true"),
        "",
        "Whether a server ends when the run is complete. With false it stays up and answers `slackline status` \
         until `slackline stop`. `run` ends its servers in any case.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.min_workers",
        Kind::IntOr { word: "all", min: 1, max: WORKER_COUNT_MAX as i64 },
        Absent::Default("\"all\""),
        "workers",
        "Least number of workers; `workers` is how many are wanted. The run begins when those are there, or when the least number is \
         and nobody else came for a lease. While fewer are there later, no work is handed out, and the log says who is waited for. all: \
         the run begins with `workers`, and goes on with whoever is left.",
    ),
    Key::new(
        "cluster.replicas",
        Kind::Int { min: 1, max: 2 },
        Absent::Default("1"),
        "copies of each shard",
        "With 2, each shard has a backup on another server, which is given everything that its primary is given and takes its place \
         when that is lost. Costs every push a second time on the network, and memory for the second copy.",
    )
    .only_with("sync.method", &["server"]),
    Key::new(
        "cluster.durability",
        Kind::Choice(&["memory", "replicated", "disk"]),
        Absent::Default("\"memory\""),
        "",
        "What an acknowledged push has reached: memory, the primary's; replicated, the backup's too (needs cluster.replicas = 2); \
         disk, the server's disk, where a restarted server finds it.",
    )
    .only_with("sync.method", &["server"]),
    Key::new(
        "cluster.steps",
        Kind::Choice(&["parts", "whole"]),
        Absent::Default("\"parts\""),
        "",
        "parts applies a worker's push at each shard when it arrives there; a worker that dies in the middle leaves its last step at some \
         shards only. whole holds the pieces of a step until every shard has its own, so that all shards have the same steps.",
    )
    .only_with("sync.method", &["server"]),
    Key::new(
        "cluster.state",
        Kind::OptionalText,
        Absent::Default("\"\""),
        "folder",
        "Where each server keeps what it needs after its own restart, in a folder of its name; empty for `state` among the results. It must \
         lie on a disk of that machine, not on a shared one.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.store",
        Kind::Text,
        Absent::Default("\"local\""),
        "",
        "Where the coordinator's memory is kept. local: on the disk of server 0, which is the coordinator and must come back if it is \
         lost. etcd://host:port,host:port/prefix (etcds:// over TLS; in a program built with `--features etcd`): in etcd. Then the \
         coordinator is a process of its own, `slackline coordinator`, any number of them stand by, and any one machine may be lost.",
    )
    .beside_the_result()
    .only_with("sync.method", &["server"]),
    Key::new(
        "cluster.coordinators",
        Kind::TextList { len_max: COORDINATOR_COUNT_MAX },
        Absent::Default("[]"),
        "host:port",
        "Where each candidate for the coordinator is reached; with cluster.store = \"etcd://...\" only. Servers and workers try all of \
         them and stay with the one that leads.",
    )
    .beside_the_result()
    .only_with("sync.method", &["server"]),
    Key::new(
        "cluster.store_keys",
        Kind::OptionalText,
        Absent::Default("\"\""),
        "folder",
        "For etcds://: ca.pem, which etcd's certificate is checked against, and cert.pem with key.pem, which a candidate shows to etcd; or a folder of `slackline keys`, whose server certificate both show.",
    )
    .beside_the_result()
    .only_with("sync.method", &["server"]),
    Key::new(
        "data.dataset",
        Kind::Choice(&["digits", "fashion-mnist", "noise"]),
        Absent::Required("\"digits\""),
        "",
        "digits comes with the program; the files of fashion-mnist must be on the machine (data.dir); noise is drawn, for the \
         quadratic.",
    ),
    Key::new(
        "data.dir",
        Kind::OptionalText,
        Absent::Default("\"\""),
        "folder",
        "Where the files of fashion-mnist lie, and the only place where they are looked for. Empty for that of \
         Debian's package (/usr/share/datasets/fashion-mnist), else slackline/fashion-mnist in the user's \
         cache folder (~/.cache).",
    )
    .beside_the_result(),
    Key::new(
        "data.limit",
        Kind::IntOr { word: "all", min: 1, max: 1 << 40 },
        Absent::Default("\"all\""),
        "samples",
        "Trains on the first so many samples only, for quick trials. The test set stays whole.",
    ),
    Key::new(
        "data.dimensions",
        Kind::Int { min: 1, max: 65_536 },
        Absent::Default("8"),
        "values",
        "Size of one sample of noise, and so of the quadratic's point.",
    )
    .only_with("data.dataset", &["noise"]),
    Key::new(
        "data.samples",
        Kind::Int { min: 1, max: 10_000_000 },
        Absent::Default("10000"),
        "samples",
        "Samples of noise that one epoch goes through.",
    )
    .only_with("data.dataset", &["noise"]),
    Key::new(
        "model.kind",
        Kind::Choice(&["softmax", "mlp", "quadratic"]),
        Absent::Required("\"softmax\""),
        "",
        "softmax is one linear layer; mlp has rectified hidden layers before it; quadratic is a bowl with gradient noise, on which \
         much is known exactly: it needs data.dataset = \"noise\".",
    ),
    Key::new(
        "model.widths",
        Kind::IntList { min: 1, max: 65_536, len_max: 64 },
        Absent::Default("[]"),
        "values",
        "Width of each hidden layer of an mlp, input side first. softmax takes none.",
    ),
    Key::new(
        "model.condition",
        Kind::Float { min: 1.0, max: 1e9 },
        Absent::Default("100.0"),
        "",
        "Largest curvature of the quadratic, 1, divided by its smallest; those between are spread evenly in the logarithm.",
    )
    .only_with("model.kind", &["quadratic"]),
    Key::new(
        "model.noise",
        Kind::Float { min: 0.0, max: 1e6 },
        Absent::Default("0.02"),
        "",
        "Standard deviation of the quadratic's gradient noise a sample, at a curvature of 1. 0 makes every gradient exact.",
    )
    .only_with("model.kind", &["quadratic"]),
    Key::new(
        "train.epochs",
        Kind::Int { min: 1, max: 1_000_000 },
        Absent::Required("10"),
        "passes over the data",
        "Length of the run. The rate schedule is stretched over it.",
    ),
    Key::new(
        "train.batch",
        Kind::Int { min: 1, max: MIB },
        Absent::Required("32"),
        "samples per worker per iteration",
        "Larger batches push less often and make fewer, calmer steps. One clock takes workers times batch.",
    ),
    Key::new(
        "train.microbatch",
        Kind::Int { min: 0, max: MIB },
        Absent::Default("0"),
        "samples",
        "Computes a batch in pieces of this size, added in a fixed tree; must divide train.batch. 0 takes it whole, \
         or one piece a thread.",
    ),
    Key::new(
        "train.threads",
        Kind::Int { min: 1, max: 1024 },
        Absent::Default("1"),
        "threads",
        "Threads that one worker computes the pieces of a batch with; the bits do not depend on it when \
         train.microbatch is set. Workers of one machine share its cores.",
    ),
    Key::new(
        "train.overlap",
        Kind::Bool,
        Absent::Default("false"),
        "",
        "Sends each shard's part of a gradient as soon as the layers in it are through backward, while the layers before them are \
         still computed, and begins a gradient with the values of the first layers, while others are on their way. Nothing of what is \
         computed changes. More shards (cluster.shard_bytes) come and go earlier, and transport.order = \"front-first\" lets the first \
         layers go first. Values that are pulled ahead (consistency.prefetch) or anew (essp) are waited for as before. Not with whole \
         steps, local steps, sufficient factors or several train.threads, which wait for the whole gradient; with train.microbatch only \
         the last piece is pushed so, and only the first begins so. It pays where a link is waited for (bench/README.md), and costs \
         processors and memory: one more copy of the values. An allreduce has sync.order.",
    )
    .only_with("sync.method", &["server"]),
    Key::new(
        "train.proportional",
        Kind::Bool,
        Absent::Default("false"),
        "",
        "Gives each worker batches in proportion to its measured speed, train.batch on average, so that a worker that is \
         always slow holds nobody up. Equal speeds give equal batches. Under ssp, essp, dssp and asp a push then moves the values by \
         the rate times its share of train.batch.",
    ),
];
