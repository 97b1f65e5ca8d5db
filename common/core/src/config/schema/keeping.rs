//! Keys of what is kept when something is lost, and of what is not let in: checkpoints and guards.

use super::{Absent, DAY_S, Key};
use crate::config::kind::Kind;

pub(super) const KEEPING: &[Key] = &[
    Key::new(
        "guard.norm_max",
        Kind::Float { min: 0.0, max: 1e30 },
        Absent::Default("0.0"),
        "",
        "Largest Euclidean norm of the part of a gradient that one shard takes. 0 puts no limit on it.",
    )
    .only_with("sync.method", &["server"]),
    Key::new(
        "guard.on_norm",
        Kind::Choice(&["drop", "clip", "stop"]),
        Absent::Default("\"drop\""),
        "",
        "What a gradient beyond guard.norm_max does. drop leaves it out and counts it; clip shortens it to the limit; stop ends the \
         run. Worker, iteration and tensor are named in any case.",
    )
    .only_with("sync.method", &["server"]),
    Key::new(
        "guard.pushes_per_s",
        Kind::Float { min: 0.0, max: 1e9 },
        Absent::Default("0.0"),
        "pushes per second",
        "Most pushes that a shard takes of one worker, over ten seconds; more are dropped, counted and named, and their worker pauses for a second before it goes on. 0 puts no limit on it.",
    )
    .only_with("sync.method", &["server"]),
    Key::new(
        "checkpoint.every_clocks",
        Kind::Int { min: 0, max: 1 << 40 },
        Absent::Default("0"),
        "clocks",
        "A checkpoint is made whenever the slowest worker has done so many iterations more, while training goes on. 0 makes none.",
    )
    .only_with("sync.method", &["server"])
    .beside_the_result(),
    Key::new(
        "checkpoint.at",
        Kind::OptionalText,
        Absent::Default("\"\""),
        "folder or URL",
        "Where checkpoints are kept; empty for the folder `checkpoints` among the results. Servers on several machines need a folder that \
         all of them see, or s3://bucket/prefix (in a program built with the feature s3; keys come from the AWS_ variables).",
    )
    .only_with("sync.method", &["server"])
    .beside_the_result(),
    Key::new(
        "checkpoint.keep",
        Kind::Int { min: 1, max: 10_000 },
        Absent::Default("3"),
        "checkpoints",
        "Older ones than the last so many are removed, each once a newer one is whole.",
    )
    .only_with("sync.method", &["server"])
    .beside_the_result(),
    Key::new(
        "checkpoint.kind",
        Kind::Choice(&["full", "priority", "incremental"]),
        Absent::Default("\"full\""),
        "",
        "full saves every value. priority saves checkpoint.share of the blocks, those that moved furthest since they were last saved, and \
         comes that much more often (SCAR). incremental saves the blocks that changed at all.",
    )
    .only_with("sync.method", &["server"])
    .beside_the_result(),
    Key::new(
        "checkpoint.share",
        Kind::Float { min: 0.001, max: 1.0 },
        Absent::Default("0.125"),
        "share of the blocks",
        "What one priority checkpoint saves. It is made every share times every_clocks clocks, so the bytes stay the same.",
    )
    .only_with("checkpoint.kind", &["priority"])
    .beside_the_result(),
    Key::new(
        "checkpoint.block",
        Kind::Int { min: 16, max: 1 << 24 },
        Absent::Default("1024"),
        "values",
        "Size of one block. Smaller blocks follow closer what moved, and cost more bookkeeping.",
    )
    .only_with("checkpoint.kind", &["priority", "incremental"])
    .beside_the_result(),
    Key::new(
        "checkpoint.report_after_s",
        Kind::Float { min: 0.1, max: DAY_S },
        Absent::Default("300.0"),
        "seconds",
        "A store that takes no checkpoint for so long is named in the log and in the status; training goes on.",
    )
    .only_with("sync.method", &["server"])
    .beside_the_result(),
];
