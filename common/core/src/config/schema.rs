//! The one table of all keys. Checking, the reference file, `config show` and the fingerprint are read off
//! it.

use super::kind::Kind;
use crate::limits::{SERVER_COUNT_MAX, STRIPE_COUNT_MAX, WORKER_COUNT_MAX};

/// One key of the configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// `section.name`, or a bare name for the run itself.
    pub path: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What stands where no layer gives it.
    pub absent: Absent,
    /// The unit, empty for words and flags.
    pub unit: &'static str,
    /// What it does, and what a wrong value does.
    pub effect: &'static str,
    /// Another key, and those of its values with which this key has an effect at all.
    pub only_with: Option<(&'static str, &'static [&'static str])>,
    /// Whether it may change what a run computes, and so belongs to the run's fingerprint.
    pub in_fingerprint: bool,
}

/// What stands for a key that no layer gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// This literal.
    Default(&'static str),
    /// Nothing: it must be given. The literal is an example.
    Required(&'static str),
}

impl Absent {
    /// The literal of the default or of the example.
    #[must_use]
    pub const fn literal(self) -> &'static str {
        match self {
            Self::Default(literal) | Self::Required(literal) => literal,
        }
    }
}

impl Key {
    const fn new(
        path: &'static str,
        kind: Kind,
        absent: Absent,
        unit: &'static str,
        effect: &'static str,
    ) -> Self {
        Self { path, kind, absent, unit, effect, only_with: None, in_fingerprint: true }
    }

    const fn only_with(mut self, path: &'static str, values: &'static [&'static str]) -> Self {
        self.only_with = Some((path, values));
        self
    }

    const fn beside_the_result(mut self) -> Self {
        self.in_fingerprint = false;
        self
    }

    /// The section, empty for the run itself.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// The name within the section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}__{}", self.path.to_uppercase().replace('.', "__"))
    }
}

/// What the names of environment variables begin with, two underscores following.
pub const VARIABLE_PREFIX: &str = "SLACKLINE";

/// The sections in the order of the reference file, each with what it is about.
pub const SECTIONS: &[(&str, &str)] = &[
    ("", "The run."),
    ("cluster", "Who belongs to the run and how long they wait for each other."),
    ("data", "What is trained on."),
    ("model", "What is trained."),
    ("train", "How much of it, and in which pieces."),
    ("optimizer", "What a gradient does to the parameters."),
    ("consistency", "How far workers may run apart."),
    ("evaluate", "When the model is measured on the test set."),
    ("metrics", "What is recorded while it trains."),
    ("transport", "QUIC. The defaults suit machines of one site; raise the windows for long fast links."),
];

const KIB: i64 = 1 << 10;
const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
/// A day: longer waits are mistakes of unit.
const DAY_S: f64 = 86_400.0;

/// Every key, section by section in the order of [`SECTIONS`].
pub const KEYS: &[Key] = &[
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
        "A worker that was not heard for so long leaves the clock table, and the others go on. Too short \
         expels workers that only pause; too long is what everyone waits after a death.",
    ),
    Key::new(
        "cluster.connect_timeout_s",
        Kind::Float { min: 0.1, max: DAY_S },
        Absent::Default("60.0"),
        "seconds",
        "How long a worker looks for a server before it gives up and names it.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.wait_report_s",
        Kind::Float { min: 0.1, max: DAY_S },
        Absent::Default("5.0"),
        "seconds",
        "How often a wait is reported, with what it waits for.",
    )
    .beside_the_result(),
    Key::new(
        "cluster.shards_per_server",
        Kind::Int { min: 1, max: 256 },
        Absent::Default("1"),
        "shards",
        "Shards of one server, each with a thread of its own. More than the cores it may use gains nothing.",
    ),
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
        "data.dataset",
        Kind::Choice(&["digits", "fashion-mnist"]),
        Absent::Required("\"digits\""),
        "",
        "digits comes with the program; the files of fashion-mnist must be on the machine (data.dir).",
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
        "model.kind",
        Kind::Choice(&["softmax", "mlp"]),
        Absent::Required("\"softmax\""),
        "",
        "softmax is one linear layer; mlp has rectified hidden layers before it.",
    ),
    Key::new(
        "model.widths",
        Kind::IntList { min: 1, max: 65_536, len_max: 64 },
        Absent::Default("[]"),
        "values",
        "Width of each hidden layer of an mlp, input side first. softmax takes none.",
    ),
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
        "optimizer.kind",
        Kind::Choice(&["sgd", "momentum"]),
        Absent::Default("\"momentum\""),
        "",
        "sgd keeps no state; momentum keeps one velocity a parameter on the server. High momentum and much \
         staleness add up: lower one of them when the loss swings.",
    ),
    Key::new(
        "optimizer.rate",
        Kind::Float { min: 1e-6, max: 1000.0 },
        Absent::Required("0.03"),
        "",
        "Learning rate at the top of the schedule, per push under ssp and asp, per clock under bsp. Too high \
         diverges, and sooner the more stale the gradients are; too low wastes the run.",
    ),
    Key::new(
        "optimizer.momentum",
        Kind::Float { min: 0.0, max: 0.9999 },
        Absent::Default("0.9"),
        "share",
        "Share of the velocity kept each step. The steady step is the rate divided by 1 - momentum.",
    )
    .only_with("optimizer.kind", &["momentum"]),
    Key::new(
        "optimizer.nesterov",
        Kind::Bool,
        Absent::Default("false"),
        "",
        "Looks ahead along the velocity.",
    )
    .only_with("optimizer.kind", &["momentum"]),
    Key::new(
        "optimizer.weight_decay",
        Kind::Float { min: 0.0, max: 1.0 },
        Absent::Default("0.0"),
        "per step, before the rate",
        "Added to the gradient as decay times value; biases are left out. Too high holds the model at zero.",
    ),
    Key::new(
        "optimizer.schedule",
        Kind::Choice(&["constant", "linear", "cosine"]),
        Absent::Default("\"constant\""),
        "",
        "How the rate falls from its top after the warm-up, over what is left of the run.",
    ),
    Key::new(
        "optimizer.warmup",
        Kind::Float { min: 0.0, max: 1.0 },
        Absent::Default("0.0"),
        "share of the run",
        "The rate rises to its top over this share. Helps large batches and many workers at the start.",
    ),
    Key::new(
        "optimizer.final_rate",
        Kind::Float { min: 0.0, max: 1.0 },
        Absent::Default("0.0"),
        "share of the rate",
        "What is left of the rate at the end. 0 lets the last steps change nothing.",
    )
    .only_with("optimizer.schedule", &["linear", "cosine"]),
    Key::new(
        "consistency.policy",
        Kind::Choice(&["bsp", "ssp", "asp"]),
        Absent::Default("\"ssp\""),
        "",
        "bsp: all workers step together, one mean gradient a clock. ssp: a fast worker may lead by the \
         staleness bound. asp: no bound, and no promise about what a gradient was computed on.",
    ),
    Key::new(
        "consistency.staleness",
        Kind::Int { min: 0, max: 1_000_000 },
        Absent::Default("2"),
        "iterations",
        "A worker at clock c reads only values with every live worker's first c - staleness iterations in \
         them. Higher waits less and learns less from each gradient; it does not help a worker that is \
         always slow.",
    )
    .only_with("consistency.policy", &["ssp"]),
    Key::new(
        "consistency.on_bad_gradient",
        Kind::Choice(&["drop", "stop"]),
        Absent::Default("\"drop\""),
        "",
        "What a gradient with a nan or an infinity does: its push is dropped and counted and its batch is lost, \
         or it stops the run. Either way it is never applied, and worker, clock and tensor are named.",
    ),
    Key::new(
        "evaluate.every_epochs",
        Kind::Float { min: 0.0, max: 1_000_000.0 },
        Absent::Default("1.0"),
        "passes over the data",
        "How often the test set is measured; 0 only at the end. Often costs time on whoever measures.",
    ),
    Key::new(
        "evaluate.accuracies",
        Kind::FloatList { min: 0.0, max: 1.0, len_max: 64 },
        Absent::Default("[]"),
        "share of the test set",
        "For each of these, the time until the test accuracy first reached it is reported. No finer than \
         every_epochs.",
    ),
    Key::new(
        "metrics.every_s",
        Kind::Float { min: 0.01, max: DAY_S },
        Absent::Default("1.0"),
        "seconds",
        "How often a row of metrics is written.",
    )
    .beside_the_result(),
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
        "transport.socket_buffer_bytes",
        Kind::Int { min: 64 * KIB, max: GIB },
        Absent::Default("4194304"),
        "bytes",
        "Buffers asked of the system for the UDP socket. Too small drops bursts; the system may grant less \
         (net.core.rmem_max on Linux).",
    )
    .beside_the_result(),
];

/// The key of this path.
#[must_use]
pub fn key_of(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}
