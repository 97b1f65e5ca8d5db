//! Bad comparison files: each is refused with file, line, field, what is allowed, and the nearest name.

use super::{FILE, Stage};
use crate::Mode;

/// What a comparison with this added is refused with.
fn refused(addition: &str) -> String {
    Stage::new(&format!("{FILE}\n{addition}")).problems()
}

/// What a comparison with this in the place of that is refused with.
fn replaced(from: &str, to: &str) -> String {
    assert!(FILE.contains(from), "{from}");
    Stage::new(&FILE.replace(from, to)).problems()
}

#[test]
fn a_comparison_needs_contestants_conditions_targets_and_a_budget() {
    assert_eq!(
        replaced("targets = { accuracies = [0.8] }\n", ""),
        "compare.toml:19: condition \"even\".targets: missing; give targets = { accuracies = [...] } or { losses = [...] }, here or for \
         the whole file\ncompare.toml:22: condition \"slow\".targets: missing; give targets = { accuracies = [...] } or { losses = [...] }, \
         here or for the whole file"
    );
    let text = replaced("[tune]\nrates = [0.05, 0.1, 0.5]\nseeds = [101, 102]\n", "");
    assert!(
        text.contains(
            "tune: missing; give [tune] with rates and seeds: every contestant gets the same tries"
        ),
        "{text}"
    );
    assert!(replaced("rates = [0.05, 0.1, 0.5]\n", "").contains("tune.rates: missing; give the rates"));
    assert!(
        replaced("[0.05, 0.1, 0.5]", "[0.05, -1]")
            .contains("tune.rates: expected numbers above 0, and it is -1")
    );
    assert!(replaced("[0.05, 0.1, 0.5]", "[0.1, 0.1]").contains("tune.rates: 0.1 stands twice"));
    let heading = &FILE[..FILE.find("[[contestant]]").unwrap()];
    let text = Stage::new(&format!("{heading}[tune]\nrates = [0.1]\nseeds = [9]\n")).problems();
    assert!(text.contains("contestant: expected two [[contestant]] or more, and it is 0 of them"), "{text}");
    assert!(replaced("seeds = [101, 102]", "seeds = [2]").contains("seed 2 is among the reported seeds"));
    assert!(
        replaced("accuracies = [0.8]", "accuracy = 0.8")
            .contains("targets.accuracy: unknown field; there are accuracies, losses")
    );
}

#[test]
fn a_condition_cannot_set_what_a_contestant_sets() {
    assert_eq!(
        replaced("\"stragglers.kind\" = \"permanent\"", "\"consistency.policy\" = \"asp\""),
        "compare.toml:25: condition \"slow\": consistency.policy is also set by the contestant \"bsp\"; one of them would have no effect"
    );
}

#[test]
fn contestants_do_the_same_work() {
    for key in ["train.epochs", "train.batch", "workers", "data.limit", "stragglers.factor"] {
        let text = replaced("{ \"sync.method\" = \"allreduce\" }", &format!("{{ \"{key}\" = 3 }}"));
        assert!(
            text.contains(&format!(
                "{key} is for the comparison to set, so that all contestants do the same work"
            )),
            "{text}"
        );
    }
    let text = replaced("{ \"sync.method\" = \"allreduce\" }", "{ \"optimizer.rate\" = 0.3 }");
    assert!(text.contains("contestant 3.set: optimizer.rate is for tune to set"), "{text}");
    let text = refused("[scale.small]\nset = { \"evaluate.accuracies\" = [0.5] }");
    assert!(text.contains("scale.small.set: evaluate.accuracies is for targets to set"), "{text}");
}

#[test]
fn names_are_known_and_stand_once() {
    assert!(replaced("name = \"ring\"", "name = \"bsp\"").contains("the name \"bsp\" stands twice"));
    assert!(replaced("name = \"slow\"", "name = \"even\"").contains("the name \"even\" stands twice"));
    let text = replaced("name = \"slow\"", "name = \"slow\"\ntune_at = \"evn\"");
    assert!(text.contains("condition \"slow\".tune_at: no condition \"evn\"; did you mean even?"), "{text}");
    let text = replaced("name = \"ring\"", "name = \"ring\"\nmay_fail = \"fast\"");
    assert!(
        text.contains("contestant \"ring\".may_fail: no condition \"fast\"; there are even, slow"),
        "{text}"
    );
    let text = refused("[scale.small]\nconditions = [\"evne\"]");
    assert!(text.contains("scale.small.conditions: no condition \"evne\"; did you mean even?"), "{text}");
}

#[test]
fn an_expectation_names_what_there_is() {
    let text = refused("[[expect]]\nclaim = \"x\"\nwinner_among = [\"bps\"]");
    assert!(text.contains("expect 1.winner_among: no contestant \"bps\"; did you mean bsp?"), "{text}");
    let text = refused("[[expect]]\nclaim = \"x\"\nwinner_among = [\"bsp\"]\nat = { condition = \"evn\" }");
    assert!(text.contains("expect 1.at: no condition \"evn\"; did you mean even?"), "{text}");
    let text = refused("[[expect]]\nclaim = \"x\"\ncolumn = \"waitng\"\nat_most = 1");
    assert!(text.contains("expect 1.column: no column \"waitng\"; did you mean waiting?"), "{text}");
    let text =
        refused("[[expect]]\nclaim = \"x\"\ncolumn = \"cost\"\nat = { contestant = \"rin\" }\nat_most = 1");
    assert!(text.contains("expect 1.at: no contestant \"rin\"; did you mean ring?"), "{text}");
    let text = refused("[[expect]]\nclaim = \"x\"\nwinner_among = [\"bsp\"]\nnot_in = [\"tiny\"]");
    assert!(text.contains("expect 1.not_in: no scale \"tiny\"; this file has virtual, real"), "{text}");
}

#[test]
fn what_the_configuration_refuses_is_told_with_its_line() {
    let text = replaced(
        "\"sync.method\" = \"allreduce\"",
        "\"sync.method\" = \"allreduce\", \"sync.topology\" = \"torus(3, 5)\"",
    );
    assert!(text.starts_with("compare.toml:18: sync.topology"), "{text}");
    let text = replaced("\"stragglers.kind\" = \"permanent\"", "\"stragglers.kind\" = \"permanet\"");
    assert!(text.starts_with("compare.toml:25: stragglers.kind"), "{text}");
}

#[test]
fn a_mode_that_leaves_nothing_is_refused() {
    let file = FILE.replace("name = \"even\"", "name = \"even\"\nset = { \"simulation.latency_s\" = 0.1 }");
    let file = file.replace("\"stragglers.kind\" = \"permanent\"", "\"simulation.loss\" = 0.1");
    let error = Stage::new(&file).read_as(None, Some(Mode::Run)).unwrap_err().to_string();
    assert!(
        error.ends_with("no condition is left to compare under (no namespaces here); use --virtual"),
        "{error}"
    );
}
