//! Keys of the world: slowness, and the simulated machines and links.

use super::{Absent, DAY_S, Key};
use crate::config::kind::Kind;
use crate::limits::WORKER_COUNT_MAX;

pub(super) const WORLD: &[Key] = &[
    Key::new(
        "stragglers.kind",
        Kind::Choice(&["none", "exp", "lognormal", "pareto", "transient", "rotating", "permanent", "recorded"]),
        Absent::Default("\"none\""),
        "",
        "How much slower than stragglers.compute_s each iteration of each worker is, drawn from the seed. exp, lognormal and \
         pareto have mean one; transient makes an iteration slow now and then, rotating one worker after another, permanent always the \
         first ones; recorded takes the times of a file. A real worker waits until its gradient has taken that long; with none it \
         does not wait.",
    ),
    Key::new(
        "stragglers.compute_s",
        Kind::Float { min: 1e-6, max: DAY_S },
        Absent::Default("0.02"),
        "seconds",
        "Time of the gradient of train.batch samples where nothing is slow; smaller and larger batches take their share. In virtual \
         time it is the cost of a gradient also with kind none. recorded times are taken as they are.",
    ),
    Key::new(
        "stragglers.jitter",
        Kind::Float { min: 0.0, max: 0.99 },
        Absent::Default("0.05"),
        "share",
        "Every time is multiplied by a factor drawn evenly from 1 - jitter to 1 + jitter. 0 makes workers move in step.",
    )
    .only_with("stragglers.kind", &["none", "transient", "rotating", "permanent"]),
    Key::new(
        "stragglers.sigma",
        Kind::Float { min: 0.0, max: 5.0 },
        Absent::Default("0.5"),
        "",
        "Standard deviation of the logarithm.",
    )
    .only_with("stragglers.kind", &["lognormal"]),
    Key::new(
        "stragglers.alpha",
        Kind::Float { min: 1.01, max: 100.0 },
        Absent::Default("1.5"),
        "",
        "Tail index: the nearer to one, the longer the longest times.",
    )
    .only_with("stragglers.kind", &["pareto"]),
    Key::new(
        "stragglers.probability",
        Kind::Float { min: 0.0, max: 1.0 },
        Absent::Default("0.05"),
        "",
        "Probability that an iteration is slow.",
    )
    .only_with("stragglers.kind", &["transient"]),
    Key::new(
        "stragglers.factor",
        Kind::Float { min: 1.0, max: 1e6 },
        Absent::Default("4.0"),
        "",
        "How many times longer what is slow takes.",
    )
    .only_with("stragglers.kind", &["transient", "rotating", "permanent"]),
    Key::new(
        "stragglers.burst",
        Kind::Int { min: 1, max: 1_000_000_000 },
        Absent::Default("5"),
        "iterations",
        "How long one worker is slow before it is the next one's turn.",
    )
    .only_with("stragglers.kind", &["rotating"]),
    Key::new(
        "stragglers.slow",
        Kind::Int { min: 0, max: WORKER_COUNT_MAX as i64 },
        Absent::Default("1"),
        "workers",
        "How many workers are always slow.",
    )
    .only_with("stragglers.kind", &["permanent"]),
    Key::new(
        "stragglers.file",
        Kind::OptionalText,
        Absent::Default("\"\""),
        "file",
        "Recorded times as CSV with the header worker,iteration,seconds; every worker's iterations count from 0 without holes. Gone \
         through again from its start when the run is longer.",
    )
    .only_with("stragglers.kind", &["recorded"]),
    Key::new(
        "simulation.bandwidth_mbps",
        Kind::Float { min: 0.0, max: 1e9 },
        Absent::Default("0.0"),
        "megabits per second",
        "What each machine's link carries, each way. 0 puts no limit on it.",
    ),
    Key::new(
        "simulation.latency_s",
        Kind::Float { min: 0.0, max: DAY_S },
        Absent::Default("0.0"),
        "seconds",
        "How long a bit is on its way, one way.",
    ),
    Key::new(
        "simulation.loss",
        Kind::Float { min: 0.0, max: 0.9 },
        Absent::Default("0.0"),
        "share of the packets",
        "Packets that must be sent again: they cost their bytes once more, and a transfer that lost any a round trip.",
    ),
    Key::new(
        "simulation.apply_mbps",
        Kind::Float { min: 0.0, max: 1e9 },
        Absent::Default("0.0"),
        "megabits per second",
        "Gradients that one shard applies. 0 puts no limit on it.",
    ),
    Key::new(
        "simulation.disk_mbps",
        Kind::Float { min: 0.0, max: 1e9 },
        Absent::Default("0.0"),
        "megabits per second",
        "What each server's disk takes and gives: journals (cluster.durability = \"disk\") and parts of checkpoints. 0 puts no limit on it.",
    ),
    Key::new(
        "simulation.incidents",
        Kind::TextList { len_max: 1024 },
        Absent::Default("[]"),
        "",
        "What befalls the processes, each as \"worker 1 crash at 30 for 10\" (back after 10 s), \"worker 1 crash at 30\" \
         (for good), \"server 0 pause at 5 for 2\" or \"server 1 crash at 9\"; times in seconds of virtual time. \"at 9..14\" draws the \
         time from the seed, \"server any\" and \"worker any\" one of them. \
         \"run crash at 9 for 2\" ends all processes at once; they go on from their disks (cluster.durability = \"disk\"), else from the \
         newest checkpoint, else from the beginning.",
    ),
    Key::new(
        "simulation.worker_mtbf_s",
        Kind::Float { min: 0.0, max: 1e9 },
        Absent::Default("0.0"),
        "seconds",
        "Mean time between two crashes of a worker's machine while it is up, exponentially distributed and drawn from the seed. 0 for none.",
    ),
    Key::new(
        "simulation.server_mtbf_s",
        Kind::Float { min: 0.0, max: 1e9 },
        Absent::Default("0.0"),
        "seconds",
        "The same for each server.",
    )
    .only_with("sync.method", &["server"]),
    Key::new(
        "simulation.down_s",
        Kind::Float { min: 0.0, max: DAY_S },
        Absent::Default("10.0"),
        "seconds",
        "After such a crash the process is started again so much later.",
    ),
];
