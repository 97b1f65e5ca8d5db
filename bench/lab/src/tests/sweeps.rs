//! Whole sweeps over invented runs: the grid, resuming, determinism, tuning, failures.

use std::fs;

use super::{Invented, SWEEP, Stage};
use crate::{LabError, Overlay, Purpose, Results};

#[test]
fn a_grid_is_every_combination_of_its_axes() {
    let stage = Stage::new(SWEEP);
    let plan = stage.plan().unwrap();
    assert_eq!(plan.shown(), "fake: 6 points along bound, batch, 2 seeds, 12 runs");
    let label = |point: usize| {
        plan.labels(point)
            .into_iter()
            .map(|(axis, label)| format!("{axis}={label}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let labels: Vec<String> = (0..plan.points()).map(label).collect();
    assert_eq!(
        labels,
        [
            "bound=0 batch=16",
            "bound=0 batch=64",
            "bound=4 batch=16",
            "bound=4 batch=64",
            "bound=inf batch=16",
            "bound=inf batch=64"
        ]
    );
    let run = plan.run(3, &[], 2, Purpose::Reported).unwrap();
    assert_eq!(run.resolved.config.train.batch, 64);
    assert_eq!(run.resolved.config.seed, 2);
    let hash = format!("{:016x}", run.resolved.hash());
    assert_eq!(run.slug, format!("bound-4_batch-64_seed-2_{hash}"));
}

#[test]
fn a_list_is_an_axis_of_whole_points() {
    let heading = &SWEEP[..SWEEP.find("[[axis]]").unwrap()];
    let list = "[[list]]\nlabel = \"a\"\nset.workers = 3\n[[list]]\nlabel = 7\nset = { workers = 4, \"train.batch\" = 8 }\n";
    let plan = Stage::new(&format!("{heading}{list}")).plan().unwrap();
    assert_eq!(plan.shown(), "fake: 2 points along point, 2 seeds, 4 runs");
    let run = plan.run(1, &[], 1, Purpose::Reported).unwrap();
    assert_eq!((run.labels[0].1.as_str(), run.resolved.config.workers), ("7", 4));
}

#[test]
fn a_scale_takes_its_part_of_the_sweep() {
    let scale = "[scale.small]\nseeds = [5]\nset = { \"train.epochs\" = 1 }\n\
                 axis = { bound = [\"0\", \"inf\"], batch = [8] }\n";
    let stage = Stage::new(&format!("{SWEEP}\n{scale}"));
    let overlay = Overlay { scale: Some("small".to_owned()), ..Overlay::default() };
    let plan = stage.plan_at(&overlay).unwrap();
    assert_eq!(plan.shown(), "fake: 2 points along bound, batch, 1 seed, 2 runs");
    let run = plan.run(1, &[], 5, Purpose::Reported).unwrap();
    assert_eq!((run.resolved.config.train.epochs, run.resolved.config.train.batch), (1, 8));
    assert_eq!(stage.plan().unwrap().run_count(), 12);
}

#[test]
fn a_finished_run_is_not_run_again() {
    let stage = Stage::new(SWEEP);
    let first = Invented::default();
    let results = stage.execute("out", &first, 2, false).unwrap();
    assert_eq!((first.made(), results.points.len()), (12, 6));
    let second = Invented::default();
    assert_eq!(stage.execute("out", &second, 2, false).unwrap(), results);
    assert_eq!((second.made(), second.taken.into_inner()), (0, 12));
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_stopped() {
    let stage = Stage::new(SWEEP);
    let interrupted = Invented { stop_after: Some(5), ..Invented::default() };
    let error = stage.execute("out", &interrupted, 1, false).unwrap_err();
    assert_eq!(error.to_string(), "stopped with 5 of 12 runs finished; go on with --resume");
    let error = stage.execute("out", &Invented::default(), 1, false).unwrap_err();
    let folder = stage.path("out").display().to_string();
    assert_eq!(
        error.to_string(),
        format!(
            "{folder} holds an interrupted sweep; go on with --resume, or choose another folder with --out"
        )
    );
    // A run that was cut in the middle left a summary that is not whole, or that of another configuration.
    let cut = stage.path("out/runs").join(&interrupted.made.lock().unwrap()[0]).join("summary.json");
    let text = fs::read_to_string(&cut).unwrap();
    fs::write(&cut, &text[..text.len() / 2]).unwrap();
    let resumed = Invented::default();
    let results = stage.execute("out", &resumed, 1, true).unwrap();
    assert_eq!((resumed.made(), resumed.taken.into_inner()), (8, 4));
    let at_once = stage.execute("other", &Invented::default(), 1, false).unwrap();
    assert_eq!(results, at_once);
    assert_eq!(stage.read("out/report.html"), stage.read("other/report.html"));
}

#[test]
fn a_folder_of_another_sweep_is_refused() {
    let stage = Stage::new(SWEEP);
    stage.execute("out", &Invented::default(), 1, false).unwrap();
    fs::write(stage.path("sweep.toml"), SWEEP.replace("seeds = [1, 2]", "seeds = [1, 2, 3]")).unwrap();
    let error = stage.execute("out", &Invented::default(), 1, false).unwrap_err();
    assert!(matches!(error, LabError::OtherVersion { .. }), "{error}");
    assert!(error.to_string().contains("--resume keeps the runs that are the same"), "{error}");
    let more = Invented::default();
    stage.execute("out", &more, 1, true).unwrap();
    assert_eq!((more.made(), more.taken.into_inner()), (6, 12));
    fs::write(stage.path("sweep.toml"), SWEEP.replace("name = \"fake\"", "name = \"real\"")).unwrap();
    for resume in [false, true] {
        let error = stage.execute("out", &Invented::default(), 1, resume).unwrap_err();
        assert!(error.to_string().ends_with(
            "holds results of the sweep \"fake\", not of \"real\"; choose another folder with --out"
        ));
    }
}

#[test]
fn new_expectations_need_no_new_runs() {
    let stage = Stage::new(SWEEP);
    stage.execute("out", &Invented::default(), 1, false).unwrap();
    let expectation = "\n# moved lines\n[[expect]]\nclaim = \"x\"\ncolumn = \"time_s\"\nat = { bound = \"0\" }\nat_most = 1\n";
    fs::write(stage.path("sweep.toml"), format!("{SWEEP}{expectation}")).unwrap();
    let again = Invented::default();
    let results = stage.execute("out", &again, 1, false).unwrap();
    assert_eq!((again.made(), results.verdicts.len()), (0, 2));
}

#[test]
fn the_results_do_not_depend_on_the_jobs() {
    let tuned = format!(
        "{SWEEP}\n[tune]\nseeds = [9]\nrule = [{{ most = \"test_accuracy\" }}]\ngrid = {{ \"optimizer.rate\" = [0.1, 0.2] }}\n"
    );
    let stage = Stage::new(&tuned);
    for (out, jobs) in [("one", 1), ("three", 3), ("many", 64)] {
        stage.execute(out, &Invented::default(), jobs, false).unwrap();
        for file in ["results.json", "results.csv", "report.html"] {
            assert_eq!(stage.read(&format!("one/{file}")), stage.read(&format!("{out}/{file}")), "{file}");
        }
    }
}

const TUNE: &str = "
[tune]
seeds = [8, 9]
rule = [{ least = \"time_to_accuracy_0.8\" }, { most = \"test_accuracy\" }]
grid = { \"optimizer.rate\" = [0.01, 0.1, 0.25, 1.0] }
";

#[test]
fn tuning_chooses_by_its_rule_on_its_own_seeds() {
    let stage = Stage::new(&format!("{SWEEP}{TUNE}"));
    let runner = Invented::default();
    let results = stage.execute("out", &runner, 2, false).unwrap();
    assert_eq!(runner.made(), 6 * 4 * 2 + 12);
    // Rate 1 is fastest to diverge, 0.25 is nearest to the best one; at bound 0 nobody reaches 0.8, so accuracy decides.
    for point in &results.points {
        assert_eq!(point.tuned["optimizer.rate"], "0.25");
    }
    let tuning = results.tuning.unwrap();
    assert_eq!(tuning.rule, "least time_to_accuracy_0.8, then most test_accuracy");
    let first = &tuning.choices[0];
    assert_eq!((first.chosen, first.candidates[2].figures[0]), (2, None));
    assert_eq!(first.candidates[3].figures, [None, None]);
    assert_eq!(first.at_edge, Vec::<String>::new());
    let slugs = runner.made.lock().unwrap();
    assert!(
        slugs.iter().any(|slug| slug.starts_with("tuning_bound-0_batch-16_rate-0.01_seed-8_")),
        "{slugs:?}"
    );
}

#[test]
fn points_share_the_choice_that_is_made_at_one_label() {
    let stage = Stage::new(&format!("{SWEEP}{TUNE}at = {{ batch = 16 }}\n"));
    assert_eq!(stage.plan().unwrap().run_count(), 3 * 4 * 2 + 12);
    let runner = Invented::default();
    let results = stage.execute("out", &runner, 2, false).unwrap();
    assert_eq!(runner.made(), 3 * 4 * 2 + 12);
    let tuning = results.tuning.unwrap();
    assert_eq!(tuning.choices.len(), 3);
    assert!(tuning.rule.ends_with("; chosen at batch = 16"), "{}", tuning.rule);
    assert_eq!(results.points[1].tuned["optimizer.rate"], "0.25");
}

#[test]
fn a_run_that_fails_is_recorded_and_the_sweep_goes_on() {
    let stage = Stage::new(SWEEP);
    let results = stage
        .execute("out", &Invented { fails: Some("bound-4_batch-16_seed-2"), ..Invented::default() }, 2, false)
        .unwrap();
    let failures: Vec<&str> = results.failures().map(|(_, text)| text).collect();
    assert_eq!(failures, ["the disk, \"full\""]);
    let failed = &results.points[2];
    assert_eq!(failed.mean("time_s").unwrap_err(), "no figure: the run of seed 2 failed");
    assert_eq!(stage.read(&format!("out/{}/failure.txt", failed.runs[1].folder)), "the disk, \"full\"\n");
    assert!(stage.read("out/results.csv").contains("\"the disk, \"\"full\"\"\""));
    assert!(stage.read("out/report.html").contains("the disk, &quot;full&quot;"));
    // It is tried again, and nothing else is.
    let again = Invented::default();
    let results = stage.execute("out", &again, 2, false).unwrap();
    assert_eq!((again.made(), results.failures().count()), (1, 0));
}

#[test]
fn a_run_that_diverges_is_a_figure() {
    let stage =
        Stage::new(&SWEEP.replace("[[axis]]\nname", "[set]\n\"optimizer.rate\" = 1.0\n[[axis]]\nname"));
    let results = stage.execute("out", &Invented::default(), 2, false).unwrap();
    assert_eq!(results.failures().count(), 0);
    assert_eq!(results.points[0].mean("diverged"), Ok(1.0));
    assert_eq!(results.points[0].mean("diverged_clock"), Ok(7.0));
}

#[test]
fn the_results_are_read_as_they_were_written() {
    let stage = Stage::new(SWEEP);
    let results = stage.execute("out", &Invented::default(), 2, false).unwrap();
    assert_eq!(Results::read(&stage.path("out")).unwrap(), results);
    fs::write(stage.path("out/results.json"), "{").unwrap();
    assert!(matches!(Results::read(&stage.path("out")), Err(LabError::Damaged { .. })));
    assert!(matches!(Results::read(&stage.path("none")), Err(LabError::NoResults { .. })));
}

#[test]
fn a_derived_column_compares_runs_of_one_seed() {
    let derived = "
[[derived]]
name = \"extra_s\"
column = \"time_s\"
minus = { bound = \"inf\" }

[[derived]]
name = \"kept\"
column = \"time_s\"
over = { bound = \"0\", batch = 16 }

[[expect]]
claim = \"the bound of 4 costs four seconds\"
column = \"extra_s\"
at = { bound = \"4\" }
within = [4.0, 4.0]
";
    let stage = Stage::new(&format!("{SWEEP}{derived}"));
    let results = stage.execute("out", &Invented::default(), 2, false).unwrap();
    assert!(results.failed().next().is_none() && results.verdicts.len() == 2);
    let figures = |point: usize, column: &str| -> Vec<f64> {
        results.points[point].runs.iter().map(|run| run.figures[column]).collect()
    };
    assert_eq!(figures(0, "extra_s"), [24.0, 24.0]);
    assert_eq!(figures(2, "kept"), [21.0 / 41.0, 22.0 / 42.0]);
    assert_eq!(results.column("extra_s").unwrap().unit, "s");
    assert!(stage.read("out/results.csv").contains("extra_s"));
}

#[test]
fn a_derived_column_of_nothing_is_refused() {
    for (derived, expected) in [
        ("name = \"x\"\ncolumn = \"time\"\nminus = { bound = \"0\" }", "no column \"time\""),
        ("name = \"x\"\ncolumn = \"time_s\"", "derived 1.minus: missing"),
        ("name = \"x\"\ncolumn = \"time_s\"\nminus = { bound = \"9\" }", "the axis bound has no label \"9\""),
        (
            "name = \"time_s\"\ncolumn = \"time_s\"\nminus = { bound = \"0\" }",
            "the name \"time_s\" stands twice",
        ),
        (
            "name = \"x\"\ncolumn = \"time_s\"\nminus = { bound = [\"0\", \"4\"] }",
            "bound must name one label",
        ),
    ] {
        let problems = Stage::new(&format!("{SWEEP}\n[[derived]]\n{derived}\n")).problems();
        assert!(problems.contains(expected), "{derived}: {problems}");
    }
}
