//! Who wins: sentences, ties, targets that are not reached, runs that fail, expectations.

use super::{FILE, Stage, World};
use crate::compare::{Standing, told};

/// The sentence about the first condition, where the three take these times.
fn sentence(times: [f64; 3]) -> String {
    let world =
        World::of(&[("bsp", "even", times[0]), ("ssp 4", "even", times[1]), ("ring", "even", times[2])]);
    Stage::new(FILE).standing(&world).rows[0].sentence.clone()
}

#[test]
fn a_winner_is_told_with_the_factor_and_the_spread() {
    assert_eq!(
        sentence([40.0, 20.0, 30.0]),
        "ssp 4 wins: 80 % accuracy after 20.4 s [20.2..20.6], sooner than the next, ring (30.6 s [30.3..30.9]), by a factor of 1.50."
    );
    assert_eq!(
        sentence([40.0, 60.0, 20.0]),
        "ring wins: 80 % accuracy after 20.4 s [20.2..20.6], sooner than the next, bsp (40.8 s [40.4..41.2]), by a factor of 2.00."
    );
}

#[test]
fn the_best_of_the_other_kind_is_told_where_it_is_not_the_next() {
    assert!(
        sentence([30.0, 20.0, 60.0])
            .ends_with("the best allreduce, ring, takes 3.00 times as long (61.2 s [60.6..61.8]).")
    );
}

#[test]
fn a_tie_is_called_a_tie() {
    // Within 5 %, though the spreads do not meet.
    assert_eq!(
        sentence([40.0, 20.9, 20.0]),
        "A tie in the time to 80 % accuracy: ring (20.4 s [20.2..20.6]) and ssp 4 (21.32 s [21.11..21.53]), sooner than the next in \
         line, bsp (40.8 s [40.4..41.2]), by a factor of 2.00."
    );
    let all = sentence([20.0, 20.1, 20.2]);
    assert!(
        all.starts_with("A tie in the time to 80 % accuracy: bsp (") && all.ends_with("; nobody is behind."),
        "{all}"
    );
}

#[test]
fn overlapping_spreads_tie_whatever_the_medians_say() {
    // Seeds far apart spread from 20.2 s to 40 s.
    let file = FILE.replace("seeds = [1, 2, 3]", "seeds = [1, 20, 100]");
    let world = World::of(&[("bsp", "even", 40.0), ("ssp 4", "even", 20.0), ("ring", "even", 25.0)]);
    let standing = Stage::new(&file.replace("[101, 102]", "[103]")).standing(&world);
    assert_eq!(standing.rows[0].first, ["ssp 4", "ring"]);
    assert!(standing.rows[0].sentence.starts_with("A tie"), "{}", standing.rows[0].sentence);
}

#[test]
fn no_difference_is_finer_than_the_time_between_two_evaluations() {
    // Ten evaluations in 40 s: 20 s and 23 s cannot be told apart, 20 s and 26 s can.
    let file = FILE.replace("seeds = [1, 2, 3]", "seeds = [1]\nset = { \"evaluate.every_epochs\" = 0.2 }");
    let world = World::of(&[("bsp", "even", 26.0), ("ssp 4", "even", 20.0), ("ring", "even", 23.0)]);
    assert_eq!(Stage::new(&file).standing(&world).rows[0].first, ["ssp 4", "ring"]);
}

#[test]
fn who_misses_the_target_at_a_seed_cannot_win() {
    let world = World { misses: vec![("ssp 4", "even", 2)], ..World::usual() };
    let standing = Stage::new(FILE).standing(&world);
    let row = &standing.rows[0];
    assert_eq!((row.first.clone(), row.entries[1].reached()), (vec!["ring".to_owned()], 2));
    let text = told(&standing);
    assert!(text.contains("not reached in 1 of 3 seeds (else 20.2..20.6)"), "{text}");
    let all = ["bsp", "ssp 4", "ring"].map(|who| [1, 2, 3].map(|seed| (who, "even", seed)));
    let nobody = World { misses: all.concat(), ..World::usual() };
    let standing = Stage::new(FILE).standing(&nobody);
    assert_eq!(standing.rows[0].sentence, "Nobody reached 80 % accuracy, so nobody wins.");
    assert!(told(&standing).contains("not reached in 3 of 3 seeds"));
}

#[test]
fn a_run_that_fails_is_a_result_where_it_may() {
    let lost = || World { fails: Some(("ring", "slow")), ..World::usual() };
    let standing = Stage::new(FILE).standing(&lost());
    assert_eq!(standing.failures().count(), 3);
    let file = FILE.replace("name = \"ring\"", "name = \"ring\"\nmay_fail = [\"slow\"]");
    let expect = "[[expect]]\nclaim = \"x\"\nat = { contestant = \"ring\", condition = \"slow\" }\n";
    let stage = Stage::new(&format!(
        "{file}\n{expect}column = \"failed\"\nat_least = 1\n{expect}column = \"samples_per_s\"\nat_least = 0\n"
    ));
    let standing = stage.standing(&lost());
    assert_eq!(standing.failures().count(), 0);
    assert_eq!(standing.verdicts.iter().map(|verdict| verdict.holds).collect::<Vec<_>>(), [true, false]);
    let row = &standing.rows[1];
    assert!(row.notes.contains(&"ring: worker 1 was lost at clock 7".to_owned()), "{:?}", row.notes);
    assert!(!row.entries[2].at_edge && told(&standing).contains("failed"));
    assert!(
        row.sentence.starts_with("A tie")
            && row.sentence.ends_with("; nobody else reached it at every seed."),
        "{}",
        row.sentence
    );
}

fn judged(expectation: &str) -> Standing {
    Stage::new(&format!("{FILE}\n[[expect]]\nclaim = \"x\"\n{expectation}")).standing(&World::usual())
}

#[test]
fn expectations_are_judged_by_winners_and_medians() {
    for (expectation, holds) in [
        ("winner_among = [\"ssp 4\"]\nat = { condition = \"even\" }", true),
        ("winner_among = [\"bsp\", \"ring\"]\nat = { condition = \"even\" }", false),
        ("winner_among = [\"ssp 4\", \"ring\"]", true),
        (
            "column = \"samples_per_s\"\nat = { contestant = \"ssp 4\", condition = \"slow\" }\nover = { contestant = \"bsp\" }\nwithin = [0.98, 1.02]",
            true,
        ),
        (
            "column = \"time_to_target\"\nat = { contestant = \"ring\", condition = \"even\" }\nover = { contestant = \"ssp 4\" }\nat_most = 1.4",
            false,
        ),
        ("column = \"waiting\"\nwithin = [0.199, 0.201]", true),
        (
            "column = \"time_to_target\"\nalong = \"contestant\"\nleast_among = [\"ssp 4\"]\nat = { condition = \"even\" }",
            true,
        ),
    ] {
        let standing = judged(expectation);
        assert_eq!(standing.failed().count() == 0, holds, "{expectation}: {:?}", standing.verdicts);
    }
    let standing = judged("winner_among = [\"bsp\"]\nat = { condition = \"even\" }");
    let verdict = standing.failed().next().unwrap();
    assert_eq!((verdict.expected.as_str(), verdict.found.as_str()), ("the winner is bsp", "ssp 4"));
}

#[test]
fn a_tie_wins_where_all_who_tie_are_named() {
    let world = || World::of(&[("bsp", "even", 20.0), ("ssp 4", "even", 20.1), ("ring", "even", 40.0)]);
    for (among, failed) in [("[\"bsp\"]", 1), ("[\"bsp\", \"ssp 4\"]", 0)] {
        let expectation =
            format!("[[expect]]\nclaim = \"x\"\nwinner_among = {among}\nat = {{ condition = \"even\" }}");
        let standing = Stage::new(&format!("{FILE}\n{expectation}")).standing(&world());
        assert_eq!(standing.failed().count(), failed, "{:?}", standing.verdicts);
    }
}
