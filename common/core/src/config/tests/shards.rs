//! How many shards a model is cut into.

use super::*;

fn shards(over: &[(&str, &str)]) -> (usize, u64) {
    let partition = resolve(&[layer("b.toml", over)]).unwrap().config.partition();
    (partition.shards().count(), partition.shards().map(|(_, keys)| keys.len * 4).max().unwrap())
}

#[test]
fn no_shard_is_larger_than_wanted_while_there_may_be_more_of_them() {
    // 784 x 4000 and 4000 x 10 with biases: 12.7 MB.
    let large =
        [("model.kind", "\"mlp\""), ("model.widths", "[4000]"), ("data.dataset", "\"fashion-mnist\"")];
    let with = |more: &[(&'static str, &'static str)]| shards(&[&large[..], more].concat());
    assert_eq!(with(&[("servers", "1")]).0, 2);
    assert_eq!(with(&[("servers", "2")]).0, 2);
    let (count, largest) = with(&[("servers", "2"), ("cluster.shard_bytes", "1048576")]);
    assert!(count == 14 && largest <= 1 << 20, "{count} of at most {largest}");
    assert_eq!(with(&[("servers", "1"), ("cluster.shards_per_server", "5")]).0, 5);
    // There are no more than a server may have.
    let (count, largest) = with(&[("servers", "1"), ("cluster.shard_bytes", "65536")]);
    assert!(count == 195 && largest <= 65_536, "{count} of at most {largest}");
}
