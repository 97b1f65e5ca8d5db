//! Claims about loading: files, the environment, `--set`, and the configurations that come with the project.

#![allow(clippy::unwrap_used)]

use slackline_core::config::{Absent, KEYS, reference_toml};

use super::*;

/// A small whole configuration.
const SMALL: &str = "\
seed = 7
[data]
dataset = \"digits\"
[model]
kind = \"softmax\"
[train]
epochs = 2
batch = 32
[optimizer]
rate = 0.1
";

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("configs")
}

/// Loads `text` as a file called `a.toml`; messages come back with the bare name.
fn load_text(text: &[u8], sets: &[&str], variables: &[(&str, &str)]) -> Result<Resolved, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    std::fs::write(&path, text).unwrap();
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
    let before = format!("{}/", folder.path().display());
    load(&path, &sets, variables).map_err(|error| error.to_string().replace(&before, ""))
}

fn check(text: &str, sets: &[&str], variables: &[(&str, &str)], line: &str) {
    assert_eq!(load_text(text.as_bytes(), sets, variables).map(|_| ()), Err(line.to_owned()));
}

#[test]
fn every_configuration_of_the_project_resolves_and_says_what_it_shows() {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(configs()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            assert!(std::fs::read_to_string(&path).unwrap().starts_with("# "), "{}", path.display());
            load(&path, &[], []).unwrap_or_else(|error| panic!("{error}"));
            names.push(path.file_name().unwrap().to_owned());
        }
    }
    for name in ["reference.toml", "quickstart.toml", "fashion-mlp.toml", "fashion-softmax.toml"] {
        assert!(names.iter().any(|found| found == name), "{name}");
    }
}

/// `UPDATE_REFERENCE=1 cargo test reference` writes the file anew.
#[test]
fn the_reference_file_is_the_rendering_of_the_schema() {
    let path = configs().join("reference.toml");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, reference_toml()).unwrap();
    }
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(
        file == reference_toml(),
        "configs/reference.toml is out of date: set UPDATE_REFERENCE=1 and run again"
    );
}

#[test]
fn the_reference_file_changes_no_default() {
    let required = |key: &&slackline_core::config::Key| matches!(key.absent, Absent::Required(_));
    let sets: Vec<_> =
        KEYS.iter().filter(required).map(|key| format!("{}={}", key.path, key.absent.literal())).collect();
    let sets: Vec<_> = sets.iter().map(String::as_str).collect();
    let reference = load(&configs().join("reference.toml"), &[], []).unwrap();
    assert_eq!(load_text(b"", &sets, &[]).unwrap().config, reference.config);
}

#[test]
fn the_environment_lies_over_the_file_and_set_over_both() {
    let variables = [
        ("SLACKLINE__TRAIN__BATCH", "64"),
        ("SLACKLINE__OUT", "2026"),
        ("SLACKLINE__SERVERS", "1"),
        ("SLACKLINE__CLUSTER__ADDRESSES", "['[::1]:7000']"),
        ("SLACKLINE_LOG", "debug"),
        ("HOME", "/root"),
    ];
    let sets = ["train.batch=128", "train.batch=0x100", "transport.datagram_bytes=auto", " data.dir = x y "];
    let resolved = load_text(SMALL.as_bytes(), &sets, &variables).unwrap();
    let config = &resolved.config;
    assert_eq!((config.train.batch, config.out.as_str(), config.seed), (256, "2026", 7));
    assert_eq!(config.cluster.addresses, ["[::1]:7000"]);
    assert_eq!(config.data.dir.as_deref(), Some("x y"));
    let origin = |path| resolved.origin(path).unwrap().to_owned();
    assert_eq!(origin("train.batch"), "--set");
    assert_eq!(origin("out"), "SLACKLINE__OUT");
    assert!(origin("seed").ends_with("a.toml"));
    assert_eq!(origin("workers"), "default");
}

#[test]
fn a_mistake_in_the_file_is_named_with_its_line() {
    let text = SMALL.replace("batch = 32", "batch = 0");
    let line = "expected a whole number from 1 to 1048576 (samples per worker per iteration)";
    check(&text, &["train.batch=8"], &[], &format!("a.toml:8: train.batch = 0: {line}"));
    check(
        &SMALL.replace("rate", "lr_rate"),
        &["optimizer.rate=1"],
        &[],
        "a.toml:10: optimizer.lr_rate = 0.1: unknown key; `slackline config reference` lists all keys",
    );
    check(
        &format!("{SMALL}\n[oops]\n"),
        &[],
        &[],
        "a.toml:12: oops = {..}: unknown key; `slackline config reference` lists all keys",
    );
    check(
        &format!("\"train.batch\" = 3\n{SMALL}"),
        &[],
        &[],
        "a.toml:1: \"train.batch\" = 3: unknown key; did you mean train.batch?",
    );
    check(
        &format!("{SMALL}[train.batch.size]\nmax = 2\n").replace("batch = 32\n", ""),
        &["train.batch=1"],
        &[],
        "a.toml:11: train.batch.size.max = 2: unknown key; `slackline config reference` lists all keys",
    );
}

#[test]
fn a_mistake_in_the_environment_is_named_by_its_variable() {
    check(
        SMALL,
        &[],
        &[("SLACKLINE__TRAIN__BACTH", "64")],
        "SLACKLINE__TRAIN__BACTH: train.bacth = 64: unknown key; did you mean train.batch?",
    );
    check(
        SMALL,
        &[],
        &[("SLACKLINE__WORKERS", "many")],
        "SLACKLINE__WORKERS: workers = \"many\": expected a whole number from 1 to 16384 (workers)",
    );
    check(
        SMALL,
        &[],
        &[("SLACKLINE__SEED", "1\nworkers = 3")],
        "SLACKLINE__SEED: seed = \"1\\nworkers = 3\": expected a whole number from 0 to 9223372036854775807",
    );
    check(
        SMALL,
        &[],
        &[("SLACKLINE__", "1")],
        "SLACKLINE__:  = 1: unknown key; `slackline config reference` lists all keys",
    );
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_text_is_named() {
    use std::os::unix::ffi::OsStringExt;
    let variable = ("SLACKLINE__OUT".into(), OsString::from_vec(vec![0xff]));
    let path = configs().join("quickstart.toml");
    let error = load(&path, &[], [variable]).unwrap_err();
    assert_eq!(error.to_string(), "SLACKLINE__OUT: out: the value is not valid UTF-8");
}

#[test]
fn a_mistake_in_set_is_named() {
    check(
        SMALL,
        &["train.batch"],
        &[],
        "--set: train.batch: expected KEY=VALUE, for example --set train.batch=64",
    );
    check(SMALL, &["epochs=4"], &[], "--set: epochs = 4: unknown key; did you mean train.epochs?");
    check(
        SMALL,
        &["seed=1.5"],
        &[],
        "--set: seed = 1.5: expected a whole number from 0 to 9223372036854775807",
    );
    check(
        SMALL,
        &["consistency.policy=asp", "consistency.staleness=4"],
        &[],
        "--set: consistency.staleness = 4: has no effect, since consistency.policy = \"asp\" (it \
         needs \"ssp\" or \"essp\")",
    );
}

#[test]
fn every_problem_of_every_layer_comes_in_one_answer() {
    let text = SMALL.replace("rate = 0.1", "rate = -1").replace("seed = 7", "seed = true");
    let error = load_text(text.as_bytes(), &["nonsense", "a=b"], &[("SLACKLINE__X", "1")]).unwrap_err();
    let starts =
        ["a.toml:1: seed", "a.toml:10: optimizer.rate", "--set: nonsense", "SLACKLINE__X: x", "--set: a = "];
    assert_eq!(error.lines().count(), starts.len(), "{error}");
    assert!(error.lines().zip(starts).all(|(line, start)| line.starts_with(start)), "{error}");
}

#[test]
fn each_required_key_dropped_from_the_file_is_one_line() {
    for key in KEYS.iter().filter(|key| matches!(key.absent, Absent::Required(_))) {
        let name = format!("{} = ", key.name());
        let kept: Vec<_> = SMALL.lines().filter(|line| !line.starts_with(&name)).collect();
        assert_eq!(kept.len() + 1, SMALL.lines().count(), "{name}");
        let (path, variable, literal) = (key.path, key.variable(), key.absent.literal());
        let line = format!(
            "a.toml: {path}: missing, and it has no default; write it in the file, or give {variable} or \
             --set {path}={literal}"
        );
        check(&kept.join("\n"), &[], &[], &line);
        // What the message advises does help.
        let text = kept.join("\n");
        assert!(load_text(text.as_bytes(), &[], &[(&variable, literal)]).is_ok());
        assert!(load_text(text.as_bytes(), &[&format!("{path}={literal}")], &[]).is_ok());
    }
}

#[test]
fn a_file_that_is_no_configuration_is_one_or_two_lines() {
    for (text, part) in [
        (b"seed = \n".as_slice(), "a.toml:1:8: not valid TOML: "),
        (b"seed = 1\nseed = 2\n", "a.toml:2:1: not valid TOML: duplicate key"),
        (b"seed = 99999999999999999999\n", "a.toml: not valid TOML: number too large"),
        (b"\xff\xfe", "a.toml: cannot read the configuration: invalid utf-8"),
        ("x = ".repeat(300_000).as_bytes(), "a.toml: over 1048576 bytes"),
        (format!("x = {}", "[".repeat(100_000)).as_bytes(), "a.toml:1:"),
    ] {
        let error = load_text(text, &[], &[]).unwrap_err();
        assert!(error.starts_with(part) && error.lines().count() <= 2 && error.len() < 300, "{error}");
    }
    let missing = load(Path::new("no/such.toml"), &[], []).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "no/such.toml: no such file (configs/quickstart.toml is one to begin with)"
    );
    let folder = load(&configs(), &[], []).unwrap_err().to_string();
    assert!(folder.contains("configs: cannot read the configuration"), "{folder}");
}

#[test]
fn the_saved_configuration_resolves_to_the_same_one() {
    let sets =
        ["out=a \"b\" \\ c\u{2028}", "optimizer.rate=1e-5", "evaluate.accuracies=[0.1, 1]", "data.limit=100"];
    for name in ["reference.toml", "quickstart.toml", "fashion-mlp.toml", "fashion-softmax.toml"] {
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let resolved = load(&configs().join(name), &sets, []).unwrap();
        for text in [resolved.to_toml(), resolved.show()] {
            let again = load_text(text.as_bytes(), &[], &[]).unwrap();
            assert_eq!((&again.config, again.hash()), (&resolved.config, resolved.hash()), "{text}");
            assert_eq!(again.to_toml(), resolved.to_toml());
        }
    }
}
