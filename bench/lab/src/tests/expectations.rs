//! Expectations, judged on invented runs: what holds, what fails, and by how much.

use super::{Invented, SWEEP, Stage};
use crate::Verdict;

/// The verdicts of a sweep with these expectations. Times: bound 0 takes 40 s plus the seed, 4 takes 20, inf takes 16.
fn judged(rest: &str) -> Vec<Verdict> {
    let stage = Stage::new(&format!("{SWEEP}\n[[expect]]\nclaim = \"x\"\n{rest}"));
    stage.execute("out", &Invented::default(), 2, false).unwrap().verdicts
}

fn check(rest: &str, holds: bool, expected: &str, found: &str, short_by: Option<f64>) {
    let verdicts = judged(&format!("at = {{ batch = 16 }}\n{rest}"));
    let [verdict] = verdicts.as_slice() else { panic!("{verdicts:?}") };
    assert_eq!((verdict.holds, verdict.expected.as_str(), verdict.found.as_str()), (holds, expected, found));
    match (verdict.short_by, short_by) {
        (Some(a), Some(b)) => assert!((a - b).abs() < 1e-9, "{a} {b}"),
        (a, b) => assert_eq!(a, b),
    }
}

#[test]
fn a_bound_holds_or_says_how_much_is_missing() {
    let at = |rest: &str| format!("column = \"time_s\"\nat.bound = \"4\"\n{rest}");
    let check = |rest: &str, holds, expected: &str, found: &str, short_by| {
        let verdicts = judged(&format!("at.batch = 16\n{}", at(rest)));
        let [verdict] = verdicts.as_slice() else { panic!("{verdicts:?}") };
        assert_eq!(
            (verdict.holds, verdict.expected.as_str(), verdict.found.as_str(), verdict.short_by),
            (holds, expected, found, short_by)
        );
        assert_eq!(verdict.at, "bound = 4, batch = 16");
    };
    check("at_least = 21.5", true, "at least 21.5", "21.5", None);
    check("at_least = 22", false, "at least 22", "21.5", Some(0.5));
    check("at_most = 20", false, "at most 20", "21.5", Some(1.5));
    check("within = [20, 22]", true, "within [20, 22]", "21.5", None);
    check("at_least = 22\nat_most = 30", false, "within [22, 30]", "21.5", Some(0.5));
    check(
        "over = { bound = \"0\" }\nat_most = 0.5",
        false,
        "at most 0.5 times that at bound = 0, batch = 16",
        "0.5181 (21.5 over 41.5)",
        Some(21.5 / 41.5 - 0.5),
    );
}

#[test]
fn a_direction_holds_along_its_axis() {
    let along = |rest: &str| format!("column = \"time_s\"\nalong = \"bound\"\n{rest}");
    let steps = "0: 41.5, 4: 21.5, inf: 17.5";
    check(&along("monotone = \"falling\""), true, "falling along bound", steps, None);
    check(&along("monotone = \"rising\""), false, "rising along bound", steps, Some(20.0));
    // Half of the largest is tolerated, and the step is 20 of 41.5.
    check(
        &along("monotone = \"rising\"\ntolerance = 0.5"),
        true,
        "rising along bound (tolerance 50 %)",
        steps,
        None,
    );
}

#[test]
fn the_best_along_an_axis_is_among_those_named() {
    let along = |rest: &str| format!("column = \"test_accuracy\"\nalong = \"bound\"\n{rest}");
    check(&along("most_among = [\"4\"]"), true, "the most along bound at 4", "0.7515 at 4", None);
    check(
        &along("most_among = [\"0\", \"inf\"]"),
        false,
        "the most along bound at 0 or inf",
        "0.7515 at 4, and 0.7215 at inf",
        Some(0.03),
    );
    check(&along("least_among = \"0\""), true, "the least along bound at 0", "0.7015 at 0", None);
}

#[test]
fn points_come_in_the_order_that_was_expected() {
    let rows = "ascending = [{ bound = \"inf\" }, { bound = \"4\" }, { bound = \"0\" }]";
    check(
        &format!("column = \"time_s\"\n{rows}"),
        true,
        "inf <= 4 <= 0",
        "inf: 17.5, 4: 21.5, 0: 41.5",
        None,
    );
    check(
        &format!("column = \"test_accuracy\"\n{rows}"),
        false,
        "inf <= 4 <= 0",
        "inf: 0.7215, 4: 0.7515, 0: 0.7015",
        Some(0.05),
    );
}

#[test]
fn an_axis_that_is_not_chosen_is_gone_through() {
    let verdicts = judged("column = \"time_s\"\nat = { bound = [\"0\", \"4\"] }\nat_most = 30");
    let rows: Vec<(&str, bool)> =
        verdicts.iter().map(|verdict| (verdict.at.as_str(), verdict.holds)).collect();
    assert_eq!(
        rows,
        [
            ("bound = 0, batch = 16", false),
            ("bound = 0, batch = 64", false),
            ("bound = 4, batch = 16", true),
            ("bound = 4, batch = 64", true),
        ]
    );
}

#[test]
fn a_point_without_a_figure_at_every_seed_has_none() {
    // At rate 0.1 no run reaches 0.8.
    check(
        "column = \"time_to_accuracy_0.8\"\nalong = \"bound\"\nmonotone = \"falling\"",
        false,
        "falling along bound",
        "0: no figure at any seed",
        None,
    );
}

#[test]
fn a_scale_judges_what_it_has_the_points_for() {
    let expect =
        |claim: &str, rest: &str| format!("[[expect]]\nclaim = \"{claim}\"\ncolumn = \"time_s\"\n{rest}\n");
    let sweep = [
        SWEEP,
        &expect("without inf", "at = { bound = [\"0\", \"inf\"] }\nat_most = 99"),
        &expect("one of them is there", "along = \"bound\"\nleast_among = [\"4\", \"inf\"]"),
        &expect("needs inf", "at = { bound = \"inf\" }\nat_most = 99"),
        &expect("compares with inf", "at = { bound = \"0\" }\nover = { bound = \"inf\" }\nat_most = 99"),
        &expect("walks over inf", "ascending = [{ bound = \"inf\" }, { bound = \"0\" }]"),
        &expect("too small", "at_most = 0\nnot_in = \"small\""),
        "[[expect]]\nclaim = \"another threshold\"\ncolumn = \"time_to_accuracy_0.8\"\nat_most = 0\n",
        "[scale.small]\naxis = { bound = [\"0\", \"4\"], batch = [8] }\nset = { \"evaluate.accuracies\" = [0.5] }\n",
    ];
    let overlay = crate::Overlay { scale: Some("small".to_owned()), ..crate::Overlay::default() };
    let plan = Stage::new(&sweep.concat()).plan_at(&overlay).unwrap();
    let judged: Vec<&str> = plan.expectations.iter().map(|expectation| expectation.claim.as_str()).collect();
    assert_eq!(judged, ["without inf", "one of them is there"]);
    assert_eq!(
        plan.not_judged,
        ["needs inf", "compares with inf", "walks over inf", "too small", "another threshold"]
    );
}
