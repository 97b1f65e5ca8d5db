//! Keys of how gradients come together: on parameter servers, or by an allreduce between the workers.

use super::{Absent, Key, MIB};
use crate::config::kind::Kind;

/// What makes the other keys of the section have an effect.
const ALLREDUCE: (&str, &[&str]) = ("sync.method", &["allreduce"]);

pub(super) const SYNC: &[Key] = &[
    Key::new(
        "sync.method",
        Kind::Choice(&["server", "allreduce"]),
        Absent::Default("\"server\""),
        "",
        "server: parameters live on the servers, and workers push and pull. allreduce: every worker has all parameters, and all \
         average the gradients of each iteration among themselves; only the first server is used, for membership and results, and \
         consistency.policy has no effect. One slow or lost worker then stops all others.",
    ),
    Key::new(
        "sync.topology",
        Kind::Text,
        Absent::Default("\"ring\""),
        "",
        "Who sends what to whom: ring (fewest bytes, most steps), halving-doubling (as few bytes, few steps), doubling (fewest steps, \
         most bytes; for small models), hierarchical(k) (groups of k workers, a ring of their leaders), torus(x, y) (x times y workers, \
         both directions at once), auto (chosen from the latency and rate that are measured at the start).",
    )
    .only_with(ALLREDUCE.0, ALLREDUCE.1),
    Key::new(
        "sync.bucket_kib",
        Kind::Int { min: 0, max: MIB },
        Absent::Default("1024"),
        "KiB",
        "Gradients of neighbouring tensors travel together until there are so many of them. Smaller begins earlier and sends more \
         messages; 0 sends all at once when the last one is computed. It changes no bit of the result.",
    )
    .only_with(ALLREDUCE.0, ALLREDUCE.1),
    Key::new(
        "sync.order",
        Kind::Choice(&["backward", "forward"]),
        Absent::Default("\"backward\""),
        "",
        "backward sends the last layers first, each as soon as its gradient exists, while the others are computed; forward sends the \
         first layers first, once all are computed. It changes no bit of the result.",
    )
    .only_with(ALLREDUCE.0, ALLREDUCE.1),
    Key::new(
        "sync.elastic",
        Kind::Bool,
        Absent::Default("false"),
        "",
        "Whether the others go on from the last completed iteration when a worker is lost, and take in new ones. With false a lost \
         worker ends the run.",
    )
    .only_with(ALLREDUCE.0, ALLREDUCE.1),
    Key::new(
        "sync.listen",
        Kind::Text,
        Absent::Default("\"0.0.0.0:0\""),
        "address:port",
        "Where a worker listens for the other workers; port 0 takes a free one. `run` listens on the loopback only.",
    )
    .only_with(ALLREDUCE.0, ALLREDUCE.1)
    .beside_the_result(),
    Key::new(
        "sync.advertise",
        Kind::OptionalText,
        Absent::Default("\"\""),
        "host:port",
        "What the other workers are told to connect to; empty for sync.listen, or where that is every address, for the one that the \
         first server sees this worker at. A wrong one is named by whoever dials it.",
    )
    .only_with(ALLREDUCE.0, ALLREDUCE.1)
    .beside_the_result(),
];
