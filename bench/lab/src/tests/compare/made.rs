//! How comparisons are made: the equal budget, resuming, the same result for any number of jobs, scales, skipped conditions, reports.

use std::collections::BTreeMap;
use std::fs;

use super::{FILE, Stage, World};
use crate::compare::Invited;
use crate::{LabError, Mode, Purpose, report};

#[test]
fn every_contestant_gets_the_same_tries() {
    // Rate, seed and epochs of every try, by contestant and condition.
    type Tries = Vec<(String, u64, u64)>;
    let stage = Stage::new(FILE);
    let world = World::usual();
    let standing = stage.standing(&world);
    let mut tries: BTreeMap<(String, String), Tries> = BTreeMap::new();
    for run in world.made.lock().unwrap().iter().filter(|run| run.purpose == Purpose::Tuning) {
        let key = (run.labels[0].1.clone(), run.labels[1].1.clone());
        let epochs = run.resolved.config.train.epochs;
        tries.entry(key).or_default().push((run.tuned[0].1.to_string(), run.seed, epochs));
    }
    assert_eq!(tries.len(), 6);
    for tries in tries.values_mut() {
        tries.sort();
        let expected = ["0.05", "0.1", "0.5"]
            .iter()
            .flat_map(|rate| [101, 102].map(|seed| ((*rate).to_owned(), seed, 2)));
        assert_eq!(*tries, expected.collect::<Vec<_>>());
    }
    assert_eq!((standing.budget.runs, world.made()), (6, 6 * 6 + 6 * 3));
    // The rate of least time is taken, and no seed of the tuning is compared.
    for entry in standing.rows.iter().flat_map(|row| &row.entries) {
        assert_eq!((entry.rate.as_str(), entry.at_edge), ("0.1", false));
        assert!(entry.runs.iter().all(|run| [1, 2, 3].contains(&run.seed)));
    }
}

#[test]
fn a_best_rate_at_the_edge_is_told() {
    let stage = Stage::new(&FILE.replace("[0.05, 0.1, 0.5]", "[0.1, 0.2, 0.5]"));
    let standing = stage.standing(&World::usual());
    let note = "best rates at the edge of what was tried, so that better ones may lie beyond: bsp 0.1, ssp 4 0.1, ring 0.1";
    assert!(standing.rows[0].notes.contains(&note.to_owned()), "{:?}", standing.rows[0].notes);
}

#[test]
fn rates_can_be_chosen_once() {
    for (file, tuned) in [
        (FILE.replace("[tune]", "[tune]\nat = \"even\""), 3),
        (FILE.replace("name = \"slow\"", "name = \"slow\"\ntune_at = \"even\""), 3),
        (FILE.replace("[0.05, 0.1, 0.5]", "[0.1]"), 0),
    ] {
        let stage = Stage::new(&file);
        let world = World::usual();
        assert_eq!(stage.comparison().run_count(), tuned * 6 + 18);
        stage.standing(&world);
        let made = world.made.lock().unwrap();
        let is_tuning = |run: &&crate::RunSpec| run.purpose == Purpose::Tuning;
        assert_eq!(made.iter().filter(is_tuning).count() as u64, tuned * 6);
        assert!(made.iter().filter(is_tuning).all(|run| run.labels[1].1 == "even"));
    }
}

#[test]
fn the_result_does_not_depend_on_the_jobs() {
    let stage = Stage::new(FILE);
    for (out, jobs) in [("one", 1), ("three", 3), ("many", 64)] {
        stage.execute(out, &World::usual(), (jobs, false), &Invited::Nobody, None).unwrap();
        for file in ["results.json", "results.csv", "report.html"] {
            assert_eq!(stage.text(&format!("one/{file}")), stage.text(&format!("{out}/{file}")), "{file}");
        }
    }
}

#[test]
fn an_interrupted_comparison_goes_on_where_it_stopped() {
    let stage = Stage::new(FILE);
    let stopped = World { stop_after: Some(20), ..World::usual() };
    let error = stage.execute("out", &stopped, (1, false), &Invited::Nobody, None).unwrap_err();
    assert_eq!(error.to_string(), "stopped with 20 of 54 runs finished; go on with --resume");
    let error = stage.execute("out", &World::usual(), (1, false), &Invited::Nobody, None).unwrap_err();
    assert!(error.to_string().ends_with(
        "holds an interrupted comparison; go on with --resume, or choose another folder with --out"
    ));
    let resumed = World::usual();
    let standing = stage.execute("out", &resumed, (1, true), &Invited::Nobody, None).unwrap();
    assert_eq!(resumed.made(), 34);
    assert_eq!(
        standing,
        stage.execute("other", &World::usual(), (1, false), &Invited::Nobody, None).unwrap()
    );
    fs::write(stage.path("compare.toml"), FILE.replace("seeds = [1, 2, 3]", "seeds = [1, 2]")).unwrap();
    let error = stage.execute("out", &World::usual(), (1, false), &Invited::Nobody, None).unwrap_err();
    assert!(
        matches!(error, LabError::OtherVersion { .. })
            && error.to_string().contains("other contestants, conditions")
    );
}

#[test]
fn a_scale_is_a_part_with_a_task_of_its_own() {
    let scale = "[[expect]]\nclaim = \"needs slow\"\nwinner_among = [\"ring\"]\nat = { condition = \"slow\" }\n\
                 [[expect]]\nclaim = \"too small\"\nwinner_among = [\"bsp\"]\nnot_in = \"small\"\n\
                 [[expect]]\nclaim = \"in real time\"\nwinner_among = [\"bsp\"]\nnot_in = \"virtual\"\n\
                 [scale.small]\nseeds = [5]\ncontestants = [\"bsp\", \"ring\"]\nconditions = [\"even\"]\ntargets = { losses = [0.5] }\n\
                 tune = { rates = [0.1, 0.2], seeds = [6] }\nset = { \"train.epochs\" = 1 }\n";
    let stage = Stage::new(&format!("{FILE}\n{scale}"));
    let small = stage.read_as(Some("small"), None).unwrap();
    assert_eq!(small.run_count(), 2 * 2 + 2);
    assert_eq!(small.not_judged, ["needs slow", "too small", "in real time"]);
    assert_eq!(
        small.shown(),
        "fake: 2 contestants, 1 condition, 1 seed, virtual time; 6 runs, 2 of them to tune each contestant under each condition"
    );
    let config = small.config(0, 0).unwrap();
    assert_eq!((config.train.epochs, config.evaluate.losses), (1, vec![0.5]));
}

#[test]
fn what_cannot_be_real_is_skipped_with_a_line() {
    let more = "[[condition]]\nname = \"thin\"\nset = { \"simulation.bandwidth_mbps\" = 100 }\n\
                [[condition]]\nname = \"lost\"\nset = { \"simulation.incidents\" = [\"worker 1 crash at 3 for 2\"] }\n\
                [[expect]]\nclaim = \"thin\"\nwinner_among = [\"ring\"]\nat = { condition = \"thin\" }\n";
    let stage = Stage::new(&FILE.replace("[tune]", &format!("{more}[tune]")));
    assert!(stage.comparison().skipped.is_empty());
    let real = stage.read_as(None, Some(Mode::Run)).unwrap();
    let skipped = "skipped: thin: no namespaces here\nskipped: lost: what befalls a process (simulation.incidents) happens in virtual \
                   time only";
    assert!(real.shown().ends_with(skipped), "{}", real.shown());
    assert_eq!(real.not_judged, ["thin"]);
    let standing =
        stage.execute("out", &World::usual(), (1, false), &Invited::Nobody, Some(Mode::Run)).unwrap();
    assert_eq!((standing.rows.len(), standing.skipped.len()), (2, 2));
    let html = stage.text("out/report.html");
    assert!(html.contains("skipped: no namespaces here"), "{html}");
}

#[test]
fn the_report_has_every_condition_and_is_drawn_again() {
    let stage = Stage::new(FILE);
    stage.standing(&World::usual());
    let html = stage.text("out/report.html");
    for title in ["Who wins", "Expectations", "even", "slow", "The figures", "Tuning", "Commands"] {
        assert!(html.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    crate::tests::reports::check_tags(&html);
    assert_eq!(html.matches("<figure>").count(), 2);
    assert!(html.contains("Equal tuning budget: each contestant tries 3 rates (0.05, 0.1, 0.5)"));
    assert!(!html.contains("NaN") && !html.contains("could not be drawn") && !html.contains("<script"));
    fs::remove_file(stage.path("out/report.html")).unwrap();
    report(&stage.path("out")).unwrap();
    assert_eq!(stage.text("out/report.html"), html);
    let csv = stage.text("out/results.csv");
    let rows: Vec<&str> = csv.split("\r\n").filter(|row| !row.is_empty()).collect();
    assert_eq!(rows.len(), 1 + 2 * 3 * 3);
    assert!(
        rows[0].starts_with("condition,contestant,rate,seed,time_to_target,samples_per_s,"),
        "{}",
        rows[0]
    );
}
