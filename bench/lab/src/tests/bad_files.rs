//! Bad sweep files: each is refused with file, line, field, what is allowed, and the nearest name.

use std::fs;

use slackline_core::config::{Layer, SET_LAYER, Value};

use super::{SWEEP, Stage};
use crate::Overlay;

/// What a sweep with this added is refused with.
fn refused(addition: &str) -> String {
    Stage::new(&format!("{SWEEP}\n{addition}")).problems()
}

/// What a sweep with this in the place of that is refused with.
fn replaced(from: &str, to: &str) -> String {
    assert!(SWEEP.contains(from), "{from}");
    Stage::new(&SWEEP.replace(from, to)).problems()
}

#[test]
fn a_sweep_without_axes_seeds_or_values_is_refused() {
    let heading = &SWEEP[..SWEEP.find("[[axis]]").unwrap()];
    assert_eq!(
        Stage::new(heading).problems(),
        "sweep.toml:1: axis: no axis; a sweep needs at least one [[axis]], or points in [[list]]"
    );
    assert_eq!(
        replaced("seeds = [1, 2]", "seeds = []"),
        "sweep.toml:6: seeds: no seeds; give at least one, such as seeds = [1, 2, 3]"
    );
    assert_eq!(
        replaced("seeds = [1, 2]", ""),
        "sweep.toml:1: seeds: no seeds; give at least one, such as seeds = [1, 2, 3]"
    );
    assert_eq!(replaced("seeds = [1, 2]", "seeds = [1, 2, 1]"), "sweep.toml:6: seeds: 1 stands twice");
    assert_eq!(
        replaced("values = [16, 64]", "values = []"),
        "sweep.toml:16: axis \"batch\": empty; give at least one value"
    );
    assert_eq!(
        replaced("values = [16, 64]", "values = [16, 64, 16]"),
        "sweep.toml:16: axis \"batch\": the label \"16\" stands twice"
    );
    assert_eq!(
        replaced("label = \"inf\"", "label = \"0\""),
        "sweep.toml:8: axis \"bound\": the label \"0\" stands twice"
    );
    assert_eq!(
        replaced("values = [16, 64]", ""),
        "sweep.toml:16: axis \"batch\": needs either key and values, or points, each with label and set"
    );
    assert_eq!(
        refused("[[axis]]\nname = \"bound\"\nkey = \"train.epochs\"\nvalues = [1]"),
        "sweep.toml:20: axis \"bound\": the name \"bound\" stands twice"
    );
    assert_eq!(
        refused("[[axis]]\nname = \"again\"\nkey = \"train.batch\"\nvalues = [1]"),
        "sweep.toml:20: axis \"again\": train.batch is also set by the axis batch; one of them would have no effect"
    );
    assert_eq!(
        refused("[[list]]\nlabel = \"a\""),
        "sweep.toml:20: list: both [[axis]] and [[list]]: axes are multiplied with each other, a list stands alone"
    );
}

#[test]
fn an_unknown_name_is_refused_with_the_nearest() {
    assert_eq!(
        replaced("seeds =", "sedes = [1]\nseeds ="),
        "sweep.toml:6: sedes: unknown field; did you mean seeds?"
    );
    assert_eq!(
        replaced("mode = \"sim\"", "mode = \"fast\""),
        "sweep.toml:5: mode: expected \"sim\", \"timing\" or \"run\", and it is \"fast\""
    );
    assert_eq!(
        replaced("key = \"train.batch\"", "key = \"train.bacth\""),
        "sweep.toml:18: train.bacth = 16: unknown key; did you mean train.batch?\n\
         sweep.toml:18: train.bacth = 64: unknown key; did you mean train.batch?"
    );
    let text = replaced("\"consistency.policy\" = \"asp\"", "\"consistency.policy\" = \"apsp\"");
    assert!(
        text.starts_with("sweep.toml:13: consistency.policy = \"apsp\": expected \"bsp\", \"ssp\""),
        "{text}"
    );
    assert_eq!(
        refused("[set]\nseed = 3"),
        "sweep.toml:21: set: seed is for the sweep to set; list the seeds in seeds"
    );
}

#[test]
fn a_base_that_is_missing_or_wrong_is_named() {
    let text = replaced("base.toml", "bsae.toml");
    assert_eq!(
        text,
        "sweep.toml: base = \"bsae.toml\": cannot read bsae.toml: No such file or directory (os error 2); \
         the path is taken from the folder of the sweep file"
    );
    let stage = Stage::new(SWEEP);
    let base = stage.read("base.toml");
    fs::write(stage.path("base.toml"), base.replace("epochs = 2", "epochs = 0")).unwrap();
    assert_eq!(
        stage.problems(),
        "base.toml:7: train.epochs = 0: expected a whole number from 1 to 1000000 (passes over the data)"
    );
    fs::write(stage.path("base.toml"), "x = = 1").unwrap();
    assert!(stage.problems().starts_with("base.toml:1: not valid TOML: "), "{}", stage.problems());
    fs::remove_file(stage.path("sweep.toml")).unwrap();
    assert!(stage.problems().starts_with("sweep.toml: cannot read the sweep: No such file"));
}

#[test]
fn an_expectation_of_what_does_not_exist_is_refused() {
    let expect = |rest: &str| refused(&format!("[[expect]]\nclaim = \"x\"\n{rest}"));
    assert_eq!(
        expect("column = \"test_acuracy\"\nat_least = 0.5"),
        "sweep.toml:20: expect 1.column: no column \"test_acuracy\"; did you mean test_accuracy?"
    );
    assert_eq!(
        expect("column = \"time_to_accuracy_0.9\"\nat_least = 0.5"),
        "sweep.toml:20: expect 1.column: no column \"time_to_accuracy_0.9\"; evaluate.accuracies of the configuration \
         gives time_to_accuracy_0.8, samples_to_accuracy_0.8, clocks_to_accuracy_0.8"
    );
    assert_eq!(
        expect("column = \"time_s\"\nat = { bonud = \"4\" }\nat_least = 0.5"),
        "sweep.toml:23: expect 1.at: no axis \"bonud\"; did you mean bound?"
    );
    assert_eq!(
        expect("column = \"time_s\"\nat = { bound = [\"0\", \"5\"] }\nat_least = 0.5"),
        "sweep.toml:23: expect 1.at: the axis bound has no label \"5\"; did you mean 0?"
    );
    assert_eq!(
        expect("column = \"time_s\"\nalong = \"size\"\nmonotone = \"rising\""),
        "sweep.toml:20: expect 1.along: no axis \"size\"; there are bound, batch"
    );
    assert_eq!(
        expect("column = \"time_s\"\nalong = \"bound\"\nleast_among = [\"7\"]"),
        "sweep.toml:20: expect 1: the axis bound has no label \"7\"; did you mean 0?"
    );
}

#[test]
fn an_expectation_that_says_nothing_or_too_much_is_refused() {
    let expect = |rest: &str| refused(&format!("[[expect]]\nclaim = \"x\"\ncolumn = \"time_s\"\n{rest}"));
    assert_eq!(
        expect(""),
        "sweep.toml:20: expect 1: needs one of at_least, at_most, within, monotone, least_among, most_among, ascending"
    );
    assert_eq!(
        expect("at_least = 1\nmonotone = \"rising\""),
        "sweep.toml:24: expect 1.monotone: at_least and monotone cannot stand together; write two expectations"
    );
    assert_eq!(
        expect("at_least = 1\ntolerance = 0.1"),
        "sweep.toml:24: expect 1.tolerance: has no effect without monotone or ascending"
    );
    assert_eq!(
        expect("within = [2, 1]"),
        "sweep.toml:23: expect 1.within: expected [low, high], and it is [2, 1]"
    );
    assert_eq!(
        expect("along = \"bound\"\nat = { bound = \"0\" }\nmonotone = \"rising\""),
        "sweep.toml:20: expect 1.along: the axis bound cannot stand both in at and in along"
    );
    assert_eq!(
        expect("at_least = 1\nover = { bound = [\"0\", \"4\"] }"),
        "sweep.toml:24: expect 1.over: bound must name one label here, not several"
    );
    assert_eq!(
        expect("at_least = 1\nnot_in = [\"small\"]"),
        "sweep.toml:24: expect 1.not_in: no scale \"small\"; this file names none"
    );
    assert_eq!(
        refused("[[expect]]\nat_least = 1"),
        "sweep.toml:20: expect 1.claim: missing; give what is expected, in words\n\
         sweep.toml:20: expect 1.column: missing; give the column to look at"
    );
}

#[test]
fn tuning_must_not_judge_itself() {
    let tune = |rest: &str| refused(&format!("[tune]\n{rest}"));
    let whole = "rule = [{ least = \"time_s\" }]\ngrid = { \"optimizer.rate\" = [0.1, 0.2] }\n";
    assert_eq!(
        tune(&format!("{whole}seeds = [2]")),
        "sweep.toml:20: tune.seeds: seed 2 is among the reported seeds; choices made on a run must not be judged by it"
    );
    assert_eq!(
        tune(&format!("{whole}seeds = [9]\nat = {{ batch = [16, 64] }}")),
        "sweep.toml:24: tune.at: batch must name one label here, not several"
    );
    assert_eq!(
        tune("seeds = [9]\nrule = [{ least = \"tiem_s\" }]\ngrid = { \"optimizer.rate\" = [0.1] }"),
        "sweep.toml:22: tune.rule: no column \"tiem_s\"; did you mean time_s?"
    );
    assert_eq!(
        tune("seeds = [9]\nrule = [{ least = \"time_s\" }]\ngrid = { \"train.batch\" = [8] }"),
        "sweep.toml:23: tune.grid: train.batch is also set by the axis batch; one of them would have no effect"
    );
    assert_eq!(
        tune("seeds = [9]\nrule = [{ least = \"time_s\" }]\ngrid = { \"optimizer.rate\" = 0.1 }"),
        "sweep.toml:23: tune.grid.optimizer.rate: expected a list of values to try, and it is 0.1"
    );
    assert!(tune("seeds = [9]").contains("tune.rule: missing; give what decides"), "{}", tune("seeds = [9]"));
}

#[test]
fn too_many_runs_are_refused_before_any_is_checked() {
    let values: Vec<String> = (1..=6000).map(|value| value.to_string()).collect();
    let axis = format!("[[axis]]\nkey = \"train.epochs\"\nvalues = [{}]", values.join(", "));
    assert_eq!(
        refused(&axis),
        "sweep.toml:1: axis: 72000 runs, and 20000 are the most; take fewer points, seeds or tuning values"
    );
}

#[test]
fn a_scale_that_does_not_fit_is_refused() {
    let small = |rest: &str| refused(&format!("[scale.small]\n{rest}"));
    assert_eq!(
        small("axis = { bound = [\"0\", \"9\"] }"),
        "sweep.toml:21: scale.small.axis.bound: the axis bound (of scale small) has no label \"9\"; did you mean 0?"
    );
    assert_eq!(
        small("tune = { seeds = [9] }"),
        "sweep.toml:21: scale.small.tune: has no effect without [tune]"
    );
    let overlay = Overlay { scale: Some("smal".to_owned()), ..Overlay::default() };
    let stage = Stage::new(&format!("{SWEEP}\n[scale.small]\nseeds = [1]\n"));
    assert_eq!(
        stage.problems_at(&overlay),
        "sweep.toml: --set scale: no scale \"smal\"; this file has small"
    );
}

#[test]
fn what_is_set_by_hand_must_not_be_set_again() {
    let set = |key: &str, value: i64| Overlay {
        sets: vec![Layer { name: SET_LAYER.to_owned(), values: vec![(key.to_owned(), Value::Int(value))] }],
        ..Overlay::default()
    };
    let stage = Stage::new(SWEEP);
    assert_eq!(
        stage.problems_at(&set("train.batch", 8)),
        "sweep.toml: --set: --set train.batch: the axis batch sets this key; choose points with a scale, or change the file"
    );
    assert_eq!(
        stage.problems_at(&set("seed", 8)),
        "sweep.toml: --set: seed is for the sweep to set; list the seeds in seeds"
    );
    let plan = stage.plan_at(&set("train.epochs", 8)).unwrap();
    let run = plan.run(0, &[], 1, crate::Purpose::Reported).unwrap();
    assert_eq!(run.resolved.config.train.epochs, 8);
}
