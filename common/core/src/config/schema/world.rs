//! Keys of the world: slowness, the simulated machines and links, and QUIC.

use super::{Absent, DAY_S, GIB, KIB, Key, MIB};
use crate::config::kind::Kind;
use crate::limits::{STRIPE_COUNT_MAX, WORKER_COUNT_MAX};

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
    Key::new(
        "transport.datagram_bytes",
        Kind::IntOr { word: "auto", min: 1200, max: 65_507 },
        Absent::Default("\"auto\""),
        "bytes",
        "Payload of the largest UDP datagram. auto: 64 KiB between processes of one machine, elsewhere what the \
         path carries, up to Ethernet's 1452. A number is where the search ends instead: more for jumbo \
         frames; less makes more packets, each with its cost.",
    )
    .beside_the_result(),
    Key::new(
        "transport.initial_window_bytes",
        Kind::Int { min: 2 * KIB, max: GIB },
        Absent::Default("1048576"),
        "bytes",
        "What a new connection may have in flight before it knows the path; must exceed a datagram. Too \
         small makes the first pulls slow, too large loses packets on thin links.",
    )
    .beside_the_result(),
    Key::new(
        "transport.stripe_bytes",
        Kind::Int { min: 4 * KIB, max: GIB },
        Absent::Default("1048576"),
        "bytes",
        "Least size of one piece of a transfer. Small pieces cost headers; a transfer of less than two of them \
         is not spread over streams.",
    )
    .beside_the_result(),
    Key::new(
        "transport.streams",
        Kind::Int { min: 1, max: STRIPE_COUNT_MAX as i64 },
        Absent::Default("4"),
        "streams",
        "Streams that one transfer is spread over at most, so that a lost packet holds up only its own.",
    )
    .beside_the_result(),
    Key::new(
        "transport.stream_window_bytes",
        Kind::Int { min: 64 * KIB, max: 64 * MIB },
        Absent::Default("3145728"),
        "bytes",
        "What one stream may have unread at the receiver. Too small starves long links; far over 4 MiB, \
         heavy loss can leave more gaps in a stream than QUIC keeps, which closes the connection.",
    )
    .beside_the_result(),
    Key::new(
        "transport.connection_window_bytes",
        Kind::Int { min: 64 * KIB, max: 16 * GIB },
        Absent::Default("67108864"),
        "bytes",
        "What all streams of a connection may have unread together; at least stream_window_bytes. Bounds the \
         memory a peer can claim.",
    )
    .beside_the_result(),
    Key::new(
        "transport.send_window_bytes",
        Kind::Int { min: 64 * KIB, max: 16 * GIB },
        Absent::Default("67108864"),
        "bytes",
        "What a connection keeps until the other side has acknowledged it. Below rate times round-trip time \
         the link stays idle.",
    )
    .beside_the_result(),
    Key::new(
        "transport.session_bytes",
        Kind::Int { min: MIB, max: 16 * GIB },
        Absent::Default("67108864"),
        "bytes",
        "What one worker may make a server hold beside the shards' own state: three eighths of it has arrived and is not read, two are \
         pushes that are put together or wait for their shard, three are values on their way. What is beyond that waits at the worker, \
         and its time is counted as busy. Room for two shards there always is.",
    )
    .beside_the_result(),
    Key::new(
        "transport.socket_buffer_bytes",
        Kind::Int { min: 64 * KIB, max: GIB },
        Absent::Default("4194304"),
        "bytes",
        "Buffers asked of the system for the UDP socket. Too small drops bursts; the system may grant less \
         (net.core.rmem_max on Linux).",
    )
    .beside_the_result(),
];
