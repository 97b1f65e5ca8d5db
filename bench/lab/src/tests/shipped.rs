//! The sweeps that come with the program: each is read, resolved and small enough, whole and at the scale that is run on every change.

use std::path::PathBuf;

use crate::{Overlay, Plan};

const SHIPPED: [&str; 7] =
    ["staleness", "stragglers", "momentum", "delay-correction", "barrier-zoo", "local-steps", "scale"];

#[test]
fn every_sweep_that_comes_with_the_program_is_ready_to_run() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../configs/experiments");
    for name in SHIPPED {
        let file = folder.join(format!("{name}.toml"));
        let whole = Plan::read(&file, &Overlay::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(whole.name(), name);
        assert!(whole.not_judged.is_empty() && whole.expectations.len() >= 3, "{name}");
        let overlay = Overlay { scale: Some("small".to_owned()), ..Overlay::default() };
        let small = Plan::read(&file, &overlay).unwrap_or_else(|error| panic!("{error}"));
        assert!(!small.expectations.is_empty(), "{name}");
        assert!(small.run_count() <= 100 && whole.run_count() <= 1000, "{name}: {} runs", whole.run_count());
    }
}
