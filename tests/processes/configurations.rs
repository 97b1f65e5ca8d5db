//! What is said before anything runs: configurations, flags, help.

use crate::cluster::{Cluster, configuration};
use crate::process::Ended;
use crate::stage::{REPOSITORY, Stage};

/// The user's mistake: exit code 2, a line or two, with these words in them.
fn is_told(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code, 2, "{}", ended.error);
    assert!(ended.error.lines().count() <= 2, "{}", ended.error);
    for word in words {
        assert!(ended.error.contains(word), "{word} is not in {}", ended.error);
    }
}

#[test]
fn a_mistake_in_the_configuration_is_named_with_its_place() {
    // Case 51: a value that was missing gave a cryptic crash or a hang.
    let stage = Stage::new();
    let good = configuration(&[]);
    let config = stage.write("run.toml", &good);
    let unknown = stage.write("unknown.toml", &format!("{good}optimizer.rat = 0.1\n"));
    let wrong = stage.write("wrong.toml", &configuration(&[("train.epochs", "\"four\"")]));
    let wrong_line = configuration(&[("train.epochs", "\"four\"")]).lines().count();
    let without: String = good
        .lines()
        .filter(|line| !line.starts_with("train.epochs"))
        .map(|line| format!("{line}\n"))
        .collect();
    let missing = stage.write("missing.toml", &without);
    let torn = stage.write("torn.toml", "[train\nepochs = 4\n");
    for command in
        [&["run"][..], &["worker"], &["status"], &["stop"], &["server", "--index", "0"], &["config", "check"]]
    {
        let run = |more: &[&str]| stage.run(&[command, more].concat());
        is_told(&run(&["nowhere.toml"]), &["nowhere.toml: no such file"]);
        is_told(&run(&[&unknown]), &["unknown.toml", "optimizer.rat", "optimizer.rate"]);
        is_told(&run(&[&wrong]), &[&format!("wrong.toml:{wrong_line}"), "train.epochs", "four"]);
        is_told(&run(&[&missing]), &["train.epochs"]);
        is_told(&run(&[&torn]), &["torn.toml:1", "not valid TOML"]);
        is_told(&run(&[&config, "--set", "train.batch=-1"]), &["train.batch", "-1", "--set"]);
        is_told(&run(&[&config, "--set", "train.batch"]), &["train.batch", "--set"]);
    }
    assert!(stage.living().is_empty());
}

#[test]
fn a_port_that_is_taken_is_told() {
    // Case 50.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let taken = &cluster.addresses[0];
    let arguments = ["server", &cluster.config, "--index", "1", "--log", "warn", "--bind", taken];
    is_told(&stage.run(&arguments), &[taken, "another process listens there"]);
    cluster.still_trains();
}

#[test]
fn a_flag_that_makes_no_sense_is_told() {
    let stage = Stage::new();
    let config = stage.write("run.toml", &configuration(&[]));
    assert_eq!(stage.run(&["keys", "init", "keys"]).code, 0);
    let server = |more: &[&str]| stage.run(&[&["server", &config, "--log", "warn"], more].concat());
    for bind in ["nonsense", "127.0.0.1", "127.0.0.1:99999", ":::"] {
        is_told(&server(&["--index", "0", "--bind", bind]), &["--bind", bind, "HOST:PORT"]);
    }
    is_told(
        &server(&["--index", "0", "--bind", "192.0.2.1:0"]),
        &["192.0.2.1:0", "not an address of this machine"],
    );
    is_told(&server(&["--index", "2", "--bind", "127.0.0.1:0"]), &["--index 2", "2 servers"]);
    is_told(&server(&["--index", "0"]), &["cluster.addresses", "--bind"]);
    is_told(&stage.run(&["worker", &config]), &["cluster.addresses"]);
    is_told(&stage.run(&["status", &config, "--role", "king"]), &["--role king"]);
    for log in ["???", "loud", "warn,loud", "slackline_net=loud"] {
        is_told(&stage.run(&["run", &config, "--log", log]), &["--log", log]);
    }
    is_told(&stage.run(&["run", &config, "--set", " = 3"]), &["--set", " = 3", "KEY=VALUE"]);
    is_told(&stage.run(&["run", &config, "--keys", "keys"]), &["--keys keys", "makes its own keys"]);
    for own in ["cluster.keys=keys", "cluster.addresses=[]", "cluster.exit_when_done=false"] {
        let (key, _) = own.split_once('=').unwrap();
        is_told(&stage.run(&["run", &config, "--set", own]), &["--set", key, "has no effect"]);
    }
    is_told(&stage.run(&["stop", &config]), &["cluster.addresses"]);
    is_told(&stage.run(&["keys", "init", "keys"]), &["keys", "already holds an authority"]);
}

#[test]
fn every_command_has_help() {
    let stage = Stage::new();
    for command in ["run", "server", "worker", "status", "stop", "keys", "config"] {
        let ended = stage.run(&[command, "--help"]);
        assert!(ended.code == 0 && ended.output.contains("Usage: slackline"), "{command}: {}", ended.output);
        assert!(!ended.output.contains("--leash"), "a flag that is not for people");
        let all = stage.run(&["--help"]);
        assert!(all.output.contains(command), "{}", all.output);
    }
    let nothing = stage.run(&[]);
    assert_eq!(nothing.code, 2, "{}", nothing.error);
}

#[test]
fn a_configuration_is_shown_with_the_origin_of_every_value() {
    let stage = Stage::new();
    let config = stage.write("run.toml", &configuration(&[]));
    let arguments = ["config", "show", &config, "--set", "train.batch=8", "--seed", "5"];
    let shown = stage
        .start_with("config show", &arguments, |command| {
            command.env("SLACKLINE__OPTIMIZER__MOMENTUM", "0.5");
        })
        .end_well();
    for (key, value, origin) in [
        ("batch", "8", "--set"),
        ("seed", "5", "--set"),
        ("epochs", "4", "run.toml"),
        ("momentum", "0.5", "SLACKLINE__OPTIMIZER__MOMENTUM"),
        ("microbatch", "0", "default"),
    ] {
        let row = shown.output.lines().find(|line| line.contains(&format!("{key} = {value}")));
        assert!(
            row.is_some_and(|row| row.contains(origin)),
            "{key} = {value} of {origin}:\n{}",
            shown.output
        );
    }
}

#[test]
fn the_reference_is_the_file_that_is_shipped() {
    let stage = Stage::new();
    let printed = stage.run(&["config", "reference"]);
    let shipped = std::fs::read_to_string(format!("{REPOSITORY}/configs/reference.toml")).unwrap();
    assert_eq!(printed.output, shipped);
    for name in ["quickstart", "fashion-softmax", "fashion-mlp"] {
        let checked = stage.run(&["config", "check", &format!("{REPOSITORY}/configs/{name}.toml")]);
        assert_eq!(checked.code, 0, "{}", checked.error);
    }
}
