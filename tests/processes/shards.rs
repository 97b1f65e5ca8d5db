//! As many shards as a server may have.

use crate::cluster::Cluster;
use crate::runs::{number, run_as};
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

// Layer by layer while backward goes on, or all at the end: the same gradients, whatever their way.
#[test]
fn parts_that_leave_before_their_gradient_change_no_bit_of_a_run() {
    let stage = Stage::new();
    let over = [
        ("workers", "2"),
        ("servers", "2"),
        ("consistency.policy", "\"bsp\""),
        ("cluster.shards_per_server", "4"),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[32, 64]"),
    ];
    // Sparse pushes make sparse answers to pulls: patches of values that were lent and given back.
    for codec in ["codec.push=f32", "codec.push=int8", "codec.push=top-k"] {
        let figures = ["true", "false"].map(|overlap| {
            let set = format!("train.overlap={overlap}");
            let more = ["--set", codec, "--set", "codec.error_feedback=false", "--set", &set];
            // Plain values keep nothing.
            let more = if codec.ends_with("f32") { [&more[..2], &more[4..]].concat() } else { more.to_vec() };
            let summary = run_as(&stage, "run", &format!("{}-{overlap}", &codec[11..]), &over, &more);
            ["/final/test_loss", "/bytes/pushed", "/pushes/applied"]
                .map(|path| summary.pointer(path).unwrap().to_string())
        });
        assert_eq!(figures[0], figures[1], "{codec}");
    }
}

// A part that is final while the push before it is not answered waits, and then goes as it was written: once it went under the header of plain
// values, which the transfer does not match.
#[test]
fn parts_that_must_wait_for_the_whole_go_as_they_were_written() {
    let stage = Stage::new();
    let over = [
        ("workers", "2"),
        ("servers", "2"),
        ("consistency.prefetch", "1"),
        ("cluster.shards_per_server", "4"),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[32, 64]"),
    ];
    let more = ["--set", "codec.push=int8", "--set", "train.overlap=true"];
    let summary = run_as(&stage, "run", "waiting", &over, &more);
    assert_eq!(number(&summary, "/pushes/applied"), 8.0 * number(&summary, "/iterations"), "{summary}");
}
