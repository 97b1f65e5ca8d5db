//! The order and the rate of pushes.

use crate::runs::{number, run_as};
use crate::stage::Stage;

#[test]
fn pushes_go_no_faster_than_they_may_and_in_any_order_come_to_the_same() {
    let stage = Stage::new();
    let over = [
        ("workers", "2"),
        ("servers", "2"),
        ("cluster.shards_per_server", "3"),
        ("consistency.policy", "\"bsp\""),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[64, 32]"),
        ("train.epochs", "1"),
    ];
    let plain = run_as(&stage, "run", "plain", &over, &[]);
    let more = ["transport.order=front-first", "transport.credit_bytes=4096", "transport.push_mbit=2"];
    let more: Vec<&str> = more.iter().flat_map(|set| ["--set", *set]).collect();
    let slow = run_as(&stage, "run", "slow", &over, &more);
    for path in ["/final/test_loss", "/bytes/pushed", "/pushes/applied"] {
        assert_eq!(plain.pointer(path).unwrap(), slow.pointer(path).unwrap(), "{path}");
    }
    // Of four connections one has at least a quarter of the bytes. A bucket begins full and may be overdrawn by a push.
    let bytes = number(&slow, "/bytes/pushed") / 4.0;
    let least = (bytes - 100_000.0) / 250_000.0;
    let took = number(&slow, "/wall_s");
    assert!(took >= least && least > 0.3, "{bytes} bytes in {took} s, and not in {least}");
}
