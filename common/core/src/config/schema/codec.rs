//! Keys of how gradients and values are written on their way.

use super::{Absent, Key};
use crate::config::kind::Kind;

/// Without servers nothing is pushed or pulled.
const SERVERS: (&str, &[&str]) = ("sync.method", &["server"]);

pub(super) const CODEC: &[Key] = &[
    Key::new(
        "codec.push",
        Kind::Choice(&[
            "f32",
            "f16",
            "bf16",
            "int8",
            "one-bit",
            "top-k",
            "relative-k",
            "random-k",
            "qsgd",
            "power-sgd",
            "sufficient-factor",
            "significance",
            "rows",
        ]),
        Absent::Default("\"f32\""),
        "",
        "How gradients are written. f32 as they are. f16, bf16: two bytes a value. int8: one, with a scale a block. one-bit: the sign, \
         with two magnitudes a block. top-k, random-k: a share of the values. relative-k: those that move their parameter by the largest \
         share of itself, as many as a budget holds. qsgd: few levels, rounded at random. power-sgd: matrices \
         as sums of few outer products. sufficient-factor: gradients of fully-connected layers as the vectors that they are made of, \
         where those are fewer (exact but for rounding; a batch that is computed in one piece by one thread). significance: values that move their parameter by a share of itself. rows: \
         rows of matrices that are not all zero (exact).",
    )
    .only_with(SERVERS.0, SERVERS.1),
    Key::new(
        "codec.pull",
        Kind::Choice(&["f32", "f16", "bf16", "int8"]),
        Absent::Default("\"f32\""),
        "",
        "How values are written that are pulled for training: in four bytes, in two or in one. Servers keep them in four, and those that \
         are evaluated come in four.",
    )
    .only_with(SERVERS.0, SERVERS.1),
    Key::new(
        "codec.error_feedback",
        Kind::Bool,
        Absent::Default("true"),
        "",
        "Whether a worker keeps what a lossy codec.push leaves out and adds it to its next gradient, in one more buffer of the model's \
         size. Without it top-k and one-bit may not come to the minimum at all.",
    )
    .only_with(
        "codec.push",
        &[
            "f16",
            "bf16",
            "int8",
            "one-bit",
            "top-k",
            "relative-k",
            "random-k",
            "qsgd",
            "power-sgd",
            "significance",
        ],
    ),
    Key::new(
        "codec.share",
        Kind::Float { min: 1e-6, max: 1.0 },
        Absent::Default("0.01"),
        "",
        "The share of a shard's values that top-k and random-k send.",
    )
    .only_with("codec.push", &["top-k", "random-k"]),
    Key::new(
        "codec.budget_bytes",
        Kind::Int { min: 16, max: 1 << 40 },
        Absent::Default("65536"),
        "bytes",
        "What relative-k may make a whole gradient come to, frames aside. A shard has a part by its keys, which holds one of its values at \
         least.",
    )
    .only_with("codec.push", &["relative-k"]),
    Key::new(
        "codec.floor",
        Kind::Float { min: 1e-9, max: 1e6 },
        Absent::Default("0.01"),
        "",
        "Parameters nearer to zero count as this where relative-k divides by them. Far below their usual size, those near zero are sent \
         first, and training is slower; above all of them the largest values are sent, as by top-k.",
    )
    .only_with("codec.push", &["relative-k"]),
    Key::new(
        "codec.block",
        Kind::Int { min: 32, max: 1 << 16 },
        Absent::Default("1024"),
        "values",
        "Values that share a scale where they are written as int8. Smaller loses less and costs four bytes a block.",
    ),
    Key::new(
        "codec.levels",
        Kind::Int { min: 1, max: 127 },
        Absent::Default("7"),
        "",
        "Levels above zero that qsgd rounds to: 1 takes two bits a value, 7 four, 127 eight.",
    )
    .only_with("codec.push", &["qsgd"]),
    Key::new(
        "codec.rank",
        Kind::Int { min: 1, max: 64 },
        Absent::Default("4"),
        "",
        "Outer products that power-sgd writes a matrix as. More lose less and cost more time and bytes.",
    )
    .only_with("codec.push", &["power-sgd"]),
    Key::new(
        "codec.threshold",
        Kind::Float { min: 0.0, max: 1.0 },
        Absent::Default("0.01"),
        "",
        "Share of a parameter's value that its update must come to before significance sends it; after t pushes this over the root of t. \
         The update is the gradient times optimizer.rate.",
    )
    .only_with("codec.push", &["significance"]),
    Key::new(
        "codec.stochastic",
        Kind::Bool,
        Absent::Default("false"),
        "",
        "Whether bf16 rounds at random, so that the mean of many roundings is right, and not to the nearest.",
    ),
];
