//! As many shards as a server may have.

use crate::cluster::Cluster;
use crate::stage::Stage;

#[test]
fn a_server_with_all_the_shards_it_may_have_trains() {
    let stage = Stage::new();
    // 4810 values: more than one block of 16 for each of 256 shards, so that none is empty.
    let over = [
        ("servers", "1"),
        ("cluster.shards_per_server", "256"),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[64]"),
    ];
    let cluster = Cluster::start(&stage, &over);
    cluster.still_trains();
    let summary = cluster.summary();
    assert_eq!(summary["shards"], 256, "{summary}");
    let count = |path: &str| summary.pointer(path).unwrap().as_u64().unwrap();
    assert_eq!(count("/pushes/applied"), 256 * count("/iterations"), "{summary}");
}
