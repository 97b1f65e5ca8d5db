//! The sweeps and comparisons that come with the program: each is read, resolved and small enough, whole and at the scale that is run on every change.

use std::path::PathBuf;

use crate::compare::{Comparison, Links, Ways};
use crate::{Mode, Overlay, Plan};

const SHIPPED: [&str; 9] = [
    "staleness",
    "stragglers",
    "momentum",
    "delay-correction",
    "barrier-zoo",
    "local-steps",
    "scale",
    "faults",
    "goodput",
];

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

#[test]
fn every_comparison_that_comes_with_the_program_is_ready_to_run() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../configs/experiments");
    for name in ["ps-vs-allreduce", "allreduce-wins"] {
        let file = folder.join(format!("{name}.toml"));
        let read = |scale: Option<&str>, mode| {
            let overlay = Overlay { scale: scale.map(str::to_owned), ..Overlay::default() };
            let none = || Some("no links here".to_owned());
            let ways = Ways { mode, links: &|| Links { no_rate: none(), no_delay: none() } };
            Comparison::read(&file, &overlay, ways).unwrap_or_else(|error| panic!("{error}"))
        };
        let whole = read(None, None);
        assert_eq!((whole.name(), whole.mode()), (name, Mode::Sim));
        assert!(whole.not_judged.is_empty() && whole.expectations.len() >= 5, "{name}");
        let small = read(Some("small"), None);
        assert!(
            small.not_judged.is_empty() && small.run_count() <= 500,
            "{name}: {} runs",
            small.run_count()
        );
        let real = read(None, Some(Mode::Run));
        assert!(!real.skipped.is_empty() && real.run_count() > 0, "{name}");
    }
    let file = folder.join("ps-vs-allreduce.toml");
    let overlay = Overlay { scale: Some("peers".to_owned()), ..Overlay::default() };
    let ways = Ways { mode: Some(Mode::Run), links: &Links::default };
    let peers = Comparison::read(&file, &overlay, ways).unwrap_or_else(|error| panic!("{error}"));
    assert!(peers.skipped.is_empty() && peers.contestants.len() == 4);
}
