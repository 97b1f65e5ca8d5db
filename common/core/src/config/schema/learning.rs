//! Keys of learning: optimizer, local steps, consistency, and what is measured.

use super::{Absent, DAY_S, Key};
use crate::config::kind::Kind;
use crate::limits::WORKER_COUNT_MAX;

pub(super) const LEARNING: &[Key] = &[
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
        "optimizer.momentum_per",
        Kind::Choice(&["push", "clock", "ordered"]),
        Absent::Default("\"push\""),
        "",
        "Where each push is applied alone, momentum per push fades workers times faster over the data than under bsp. push: \
         takes momentum as it is given. clock: takes its workers-th root, so that as much is left after one clock as under bsp. \
         ordered: the velocity fades once a clock, and each gradient counts as if it had come in the clock it was pulled in (OrMo). \
         All are the same with one worker, and where a clock's mean is applied.",
    )
    .only_with("optimizer.kind", &["momentum"]),
    Key::new(
        "optimizer.decay_per",
        Kind::Choice(&["clock", "push"]),
        Absent::Default("\"clock\""),
        "",
        "Where each push is applied alone: clock lets a push decay by its share of a clock (one in workers), so that the weights \
         shrink over the data as under bsp; push lets every push decay in full, workers times as much.",
    ),
    Key::new(
        "local.mode",
        Kind::Choice(&["off", "difference", "elastic"]),
        Absent::Default("\"off\""),
        "",
        "off: a worker pushes the gradient of each batch. difference: it takes local.steps steps of [optimizer] on its own, one a \
         batch, and pushes how far it came (local SGD, SparkNet, DiLoCo). elastic: it keeps values of its own, which the servers' \
         and it draw towards each other (EASGD). With either, [optimizer] works in the workers and local.outer on the servers.",
    ),
    Key::new(
        "local.steps",
        Kind::Int { min: 1, max: 100_000 },
        Absent::Default("16"),
        "batches per iteration",
        "Local steps between two pushes. More save bytes and waiting; too many let the workers drift apart.",
    )
    .only_with("local.mode", &["difference", "elastic"]),
    Key::new(
        "local.outer",
        Kind::Choice(&["average", "sgd", "nesterov"]),
        Absent::Default("\"average\""),
        "",
        "What the servers do with the mean difference: average takes it as it is, sgd scales it by outer_rate, nesterov keeps a \
         velocity.",
    )
    .only_with("local.mode", &["difference"]),
    Key::new(
        "local.outer_rate",
        Kind::Float { min: 1e-6, max: 100.0 },
        Absent::Default("0.7"),
        "",
        "Rate of the servers' step along the mean difference. Under a policy that applies pushes one by one, divide it by the \
         number of workers.",
    )
    .only_with("local.outer", &["sgd", "nesterov"]),
    Key::new(
        "local.outer_momentum",
        Kind::Float { min: 0.0, max: 0.9999 },
        Absent::Default("0.9"),
        "share",
        "Share of the servers' velocity kept each step.",
    )
    .only_with("local.outer", &["nesterov"]),
    Key::new(
        "local.fragments",
        Kind::Int { min: 1, max: 1024 },
        Absent::Default("1"),
        "fragments",
        "Pushes and pulls the parameters in so many parts, one an iteration in turn: a fragment is the shards whose number leaves \
         the same remainder. Spreads the bytes over time; at most the number of shards.",
    )
    .only_with("local.mode", &["difference"]),
    Key::new(
        "local.elasticity",
        Kind::Float { min: 1e-6, max: 1.0 },
        Absent::Default("0.1"),
        "share",
        "Share of the distance by which a worker's values and the servers' move towards each other at each exchange (alpha = rate \
         times rho). For all workers together about 0.9 is usual. Under a policy that takes means the servers move by the mean of the \
         workers' moves, not their sum. Too high makes both swing.",
    )
    .only_with("local.mode", &["elastic"]),
    Key::new(
        "consistency.policy",
        Kind::Choice(&["bsp", "ssp", "essp", "dssp", "asp", "backup", "quorum", "buffer"]),
        Absent::Default("\"ssp\""),
        "",
        "Who may read what, and what becomes of a push. A mean a clock, where a rate as for one worker with a workers times \
         larger batch suits: bsp (all workers step together), backup (the slowest few of a clock are dropped), quorum (the mean of the \
         first few gradients, those come late count in the next), buffer (the same, and readers never wait). Each push alone at \
         the full rate, where a rate up to workers times smaller suits: ssp (a fast worker may lead by the staleness bound), essp (the \
         same bound; values are published anew while a worker still waits), dssp (the bound moves between two), asp (no bound).",
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
    .only_with("consistency.policy", &["ssp", "essp"]),
    Key::new(
        "consistency.low",
        Kind::Int { min: 0, max: 1_000_000 },
        Absent::Default("1"),
        "iterations",
        "Bound that dssp holds workers at unless letting them go on is foreseen to shorten their waiting.",
    )
    .only_with("consistency.policy", &["dssp"]),
    Key::new(
        "consistency.high",
        Kind::Int { min: 0, max: 1_000_000 },
        Absent::Default("8"),
        "iterations",
        "Bound that dssp never exceeds; at least consistency.low, and with both equal it is ssp.",
    )
    .only_with("consistency.policy", &["dssp"]),
    Key::new(
        "consistency.backup",
        Kind::Int { min: 0, max: WORKER_COUNT_MAX as i64 },
        Absent::Default("1"),
        "workers",
        "A clock closes without so many of its pushes: the latest are dropped, counted, and their batches done again. Fewer than \
         the workers; 0 is bsp.",
    )
    .only_with("consistency.policy", &["backup"]),
    Key::new(
        "consistency.quorum",
        Kind::IntOr { word: "all", min: 1, max: WORKER_COUNT_MAX as i64 },
        Absent::Default("\"all\""),
        "gradients",
        "So many gradients make one step. Never more than there are workers; all of them, under quorum, is bsp.",
    )
    .only_with("consistency.policy", &["quorum", "buffer"]),
    Key::new(
        "consistency.grace_s",
        Kind::Float { min: 0.0, max: DAY_S },
        Absent::Default("0.0"),
        "seconds",
        "How long a quorum that is complete still waits for the others.",
    )
    .only_with("consistency.policy", &["quorum"]),
    Key::new(
        "consistency.prefetch",
        Kind::Int { min: 0, max: 1 },
        Absent::Default("0"),
        "iterations",
        "1 pulls the values of the next iteration while this one is computed, so that a pull takes no time of its own unless it takes \
         longer than the gradient. They lack the worker's own last push, which is one more version of staleness, and counts towards \
         the bound: it needs consistency.staleness or consistency.low of 1 at least, and goes with ssp, essp, dssp, asp and buffer. \
         Costs a second buffer of the model's size in the worker.",
    )
    .only_with("sync.method", &["server"]),
    Key::new(
        "consistency.delay",
        Kind::Choice(&["none", "inverse", "inverse-root", "compensate", "compensate-adaptive"]),
        Absent::Default("\"none\""),
        "",
        "What a gradient's staleness (versions between its pull and its apply) does to it. none: nothing. inverse: the rate is \
         divided by it, above one. inverse-root: by the root of one more than it (FedBuff). compensate: DC-ASGD, which corrects the \
         gradient for what the values moved meanwhile. compensate-adaptive: with a strength that follows the gradients' size. All are the \
         same without staleness.",
    ),
    Key::new(
        "consistency.delay_strength",
        Kind::Float { min: 0.0, max: 1e6 },
        Absent::Default("0.04"),
        "",
        "Lambda of DC-ASGD: 0 corrects nothing. The adaptive one is divided by the root of the mean square of the gradient and \
         stands a larger value (2).",
    )
    .only_with("consistency.delay", &["compensate", "compensate-adaptive"]),
    Key::new(
        "consistency.drop_at",
        Kind::Int { min: 0, max: i64::MAX },
        Absent::Default("0"),
        "versions",
        "A gradient this stale is dropped, counted, and its batch done again (Ringmaster's R); 1 takes fresh ones only, 0 drops none.",
    ),
    Key::new(
        "consistency.on_bad_gradient",
        Kind::Choice(&["drop", "stop"]),
        Absent::Default("\"drop\""),
        "",
        "What a gradient with a nan or an infinity does: its push is dropped and counted and its batch is lost, \
         or it stops the run. Either way it is never applied, and worker, clock and tensor are named. In an allreduce it makes the whole \
         sum so: all workers leave that iteration out.",
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
        "evaluate.losses",
        Kind::FloatList { min: 0.0, max: 1e9, len_max: 64 },
        Absent::Default("[]"),
        "mean loss on the test set",
        "For each of these, the time until the test loss first fell to it is reported. No finer than every_epochs.",
    ),
    Key::new(
        "metrics.every_s",
        Kind::Float { min: 0.01, max: DAY_S },
        Absent::Default("1.0"),
        "seconds",
        "How often a row of metrics is written.",
    )
    .beside_the_result(),
];
