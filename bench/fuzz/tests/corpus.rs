//! The kept inputs of fuzzing through the functions that it calls: without its tools, in every test run.

use std::fs;
use std::path::Path;

use slackline_fuzz::{TARGETS, is_alive};

#[test]
fn every_kept_input_is_taken_or_refused_without_a_fault() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, read) in TARGETS {
        let mut inputs: Vec<_> = fs::read_dir(corpus.join(name))
            .unwrap_or_else(|error| panic!("corpus/{name}: {error}"))
            .map(|entry| entry.expect("an entry").path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "corpus/{name} is empty: the target would not be replayed");
        for input in inputs {
            println!("{name} {}", input.display());
            read(&fs::read(&input).expect("a kept input"));
        }
    }
    assert!(is_alive(), "the listener does not take an honest peer after all that");
}

#[test]
fn every_target_has_a_program_and_every_program_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/fuzz_targets");
    let mut programs: Vec<_> = fs::read_dir(folder)
        .expect("the programs")
        .map(|entry| {
            entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned()
        })
        .collect();
    programs.sort();
    let mut targets: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    targets.sort();
    assert_eq!(programs, targets);
}
