//! The codecs that checked entries ask for, and whether a budget holds what it must.

use super::problem::Fault;
use super::resolve::Entries;
use super::rules::is_allreduce;
use super::{Codec, division, typed};
use crate::codec::{CodecKind, CodecSpec, least_budget};
use crate::partition::Partition;

pub(super) fn of(entries: &Entries) -> Codec {
    if is_allreduce(entries) {
        return Codec::PLAIN;
    }
    let share = || entries.float("codec.share") as f32;
    let kind = |key| match entries.text(key) {
        "f16" => CodecKind::F16,
        "bf16" => CodecKind::Bf16 { stochastic: entries.flag("codec.stochastic") },
        "int8" => CodecKind::Int8 { block: entries.int("codec.block") },
        "one-bit" => CodecKind::OneBit,
        "top-k" => CodecKind::TopK { share: share() },
        "relative-k" => CodecKind::RelativeK {
            budget: entries.int("codec.budget_bytes"),
            floor: entries.float("codec.floor") as f32,
        },
        "random-k" => CodecKind::RandomK { share: share() },
        "qsgd" => CodecKind::Qsgd { levels: entries.int("codec.levels") },
        "power-sgd" => CodecKind::PowerSgd { rank: entries.int("codec.rank") },
        "sufficient-factor" => CodecKind::SufficientFactor,
        "significance" => {
            // What is compared is the gradient; the update is that times the rate.
            let threshold = entries.float("codec.threshold") / entries.float("optimizer.rate");
            CodecKind::Significance { threshold: threshold as f32 }
        }
        "rows" => CodecKind::Rows,
        _ => CodecKind::F32,
    };
    let push = kind("codec.push");
    let error_feedback = push.is_lossy() && entries.flag("codec.error_feedback");
    Codec { push: CodecSpec { kind: push, error_feedback }, pull: kind("codec.pull") }
}

/// Checks the keys with `rule`, which takes the keys of a rule and the rule.
pub(super) fn check(rule: &mut impl FnMut(&[&str], &dyn Fn(&Entries) -> Option<Fault>)) {
    let keys = [
        "codec.budget_bytes",
        "codec.push",
        "sync.method",
        "servers",
        "cluster.shards_per_server",
        "cluster.shard_bytes",
        "data.dataset",
        "data.dimensions",
        "data.samples",
        "data.limit",
        "model.kind",
        "model.widths",
        "model.condition",
        "model.noise",
    ];
    rule(&keys, &budget);
}

/// A budget has room for a value of every shard.
fn budget(entries: &Entries) -> Option<Fault> {
    if entries.text("codec.push") != "relative-k" || is_allreduce(entries) {
        return None;
    }
    let partition = partition(entries);
    let all = partition.key_count();
    let least = partition.shards().map(|(_, keys)| least_budget(keys.len, all)).max().unwrap_or(0);
    (entries.int::<u64>("codec.budget_bytes") < least)
        .then_some(Fault::Budget { least, shards: partition.shards().count() })
}

fn partition(entries: &Entries) -> Partition {
    let dataset = typed::data(entries).dataset;
    let layout = typed::model(entries).layout(dataset.input_count(), dataset.class_count());
    let (per_server, bytes) = (entries.int("cluster.shards_per_server"), entries.int("cluster.shard_bytes"));
    division(layout.len(), entries.int("servers"), per_server, bytes)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{layer, resolve};
    use super::*;

    const PUSH: (&str, &str) = ("codec.push", "\"relative-k\"");

    fn problems(over: &[(&str, &str)]) -> Vec<String> {
        resolve(&[layer("b.toml", over)]).err().unwrap_or_default()
    }

    #[test]
    fn the_least_budget_that_is_let_in_holds_a_value_a_shard() {
        for (servers, per_server) in [(1_u64, 1_u64), (2, 3), (5, 8), (1024, 1)] {
            let (servers_text, per_server_text) = (servers.to_string(), per_server.to_string());
            let keys = |budget: &str| {
                let shards = [
                    ("servers", servers_text.as_str()),
                    ("cluster.shards_per_server", per_server_text.as_str()),
                ];
                problems(&[&[PUSH, ("codec.budget_bytes", budget)], &shards[..]].concat())
            };
            let refused = keys("16").concat();
            let least = refused.rsplit(' ').next().and_then(|least| least.parse::<u64>().ok()).unwrap_or(16);
            assert_eq!(keys(&least.to_string()), Vec::<String>::new(), "{servers} x {per_server}");
            if least > 16 {
                assert_eq!(keys(&(least - 1).to_string()).len(), 1, "{servers} x {per_server}");
            }
        }
    }

    #[test]
    fn a_budget_is_only_that_of_its_codec() {
        let by_hand = layer("--set", &[("codec.budget_bytes", "5000")]);
        let line = "--set: codec.budget_bytes = 5000: has no effect, since codec.push = \"top-k\" (it needs \"relative-k\")";
        assert_eq!(
            resolve(&[layer("b.toml", &[("codec.push", "\"top-k\"")]), by_hand]),
            Err(vec![line.to_owned()])
        );
        // An allreduce has no shards.
        assert_eq!(
            problems(&[PUSH, ("codec.budget_bytes", "16"), ("sync.method", "\"allreduce\"")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn the_budget_and_the_floor_reach_their_fields() {
        let keys = [PUSH, ("codec.budget_bytes", "5001"), ("codec.floor", "0.25")];
        let codec = resolve(&[layer("b.toml", &keys)]).unwrap().config.codec;
        let kind = CodecKind::RelativeK { budget: 5001, floor: 0.25 };
        assert_eq!(codec.push, CodecSpec { kind, error_feedback: true });
    }
}
