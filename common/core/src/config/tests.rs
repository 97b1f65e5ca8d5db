//! Claims about the configuration as a whole.

mod fields;
mod mistakes;
mod shards;

use proptest::prelude::*;

use super::schema::Absent;
use super::*;

/// A layer of `key = literal` pairs.
pub(super) fn layer(name: &str, settings: &[(&str, &str)]) -> Layer {
    let read = |(key, literal): &(&str, &str)| ((*key).to_owned(), Value::from_literal(literal).unwrap());
    Layer { name: name.to_owned(), values: settings.iter().map(read).collect() }
}

/// The keys without a default, as the reference gives them.
fn required() -> Layer {
    let given = |key: &Key| match key.absent {
        Absent::Required(literal) => Some((key.path.to_owned(), Value::from_literal(literal).unwrap())),
        Absent::Default(_) => None,
    };
    Layer { name: "a.toml".to_owned(), values: KEYS.iter().filter_map(given).collect() }
}

pub(super) fn resolve(layers: &[Layer]) -> Result<Resolved, Vec<String>> {
    let all: Vec<_> = [&[required()], layers].concat();
    Config::resolve(&all).map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

/// Reads back what `to_toml` and `reference_toml` write: sections and one-line literals.
fn read_back(text: &str) -> Layer {
    let mut section = String::new();
    let mut values = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.strip_suffix(']').unwrap());
        } else {
            let (key, literal) = line.split_once(" = ").unwrap();
            values.push((format!("{section}{key}"), Value::from_literal(literal).unwrap()));
        }
    }
    Layer { name: "saved.toml".to_owned(), values }
}

#[test]
fn every_default_and_example_is_allowed_in_its_canonical_form() {
    for key in KEYS {
        let literal = key.absent.literal();
        let value = key.kind.admit(&Value::from_literal(literal).unwrap());
        assert_eq!(value.map(|value| value.to_string()).as_deref(), Some(literal), "{}", key.path);
        assert_eq!(key_of(key.path), Some(key), "{} stands once", key.path);
        assert!(SECTIONS.iter().any(|(name, _)| *name == key.section()), "{}", key.path);
        assert_eq!(key.path, key.path.to_lowercase(), "the environment has lower-case keys only");
        assert!(!key.path.contains("__"), "two underscores part the sections of a variable");
        assert!(!key.effect.is_empty());
        if let Some((on, values)) = key.only_with {
            let Kind::Choice(words) = key_of(on).unwrap().kind else { panic!("{on} is no choice") };
            assert!(values.iter().all(|value| words.contains(value)));
        }
    }
}

#[test]
fn the_reference_holds_every_key_at_its_default() {
    let reference = Config::resolve(&[read_back(&reference_toml())]).unwrap();
    assert_eq!(reference.config, resolve(&[]).unwrap().config);
    for key in KEYS {
        assert_eq!(reference.origin(key.path), Some("saved.toml"), "{}", key.path);
    }
}

#[test]
fn the_ends_of_every_range_fit_their_field() {
    for key in KEYS {
        let ends: Vec<Value> = match key.kind {
            Kind::Int { min, max } | Kind::IntOr { min, max, .. } => vec![Value::Int(min), Value::Int(max)],
            Kind::Float { min, max } | Kind::FloatOr { min, max, .. } => {
                vec![Value::Float(min), Value::Float(max)]
            }
            _ => continue,
        };
        for end in ends {
            let layer = Layer { name: "b.toml".to_owned(), values: vec![(key.path.to_owned(), end.clone())] };
            // Some ends break a rule between keys; what must not happen is a range problem or a panic.
            if let Err(problems) = Config::resolve(&[required(), layer]) {
                let ranges = problems.iter().any(|problem| matches!(problem.fault, Fault::NotAllowed { .. }));
                assert!(!ranges, "{} = {end}", key.path);
            }
        }
    }
}

/// Each wrong setting with the one line that it gives.
#[test]
fn each_required_key_is_missed_by_name() {
    let whole = required();
    assert!(!whole.values.is_empty());
    for dropped in 0..whole.values.len() {
        let mut layer = whole.clone();
        let (path, _) = layer.values.remove(dropped);
        let problems = Config::resolve(&[layer]).unwrap_err();
        let key = key_of(&path).unwrap();
        let line = format!(
            "a.toml: {path}: missing, and it has no default; write it in the file, or give {} or \
             --set {path}={}",
            key.variable(),
            key.absent.literal()
        );
        assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [line]);
    }
}

#[test]
fn all_problems_come_at_once_also_those_of_replaced_values() {
    let layers = [
        layer("b.toml", &[("train.batch", "0"), ("sed", "2"), ("train.microbatch", "7")]),
        layer("--set", &[("train.batch", "64"), ("seed", "\"x\"")]),
    ];
    let problems = resolve(&layers).unwrap_err();
    let starts = ["b.toml: train.batch = 0", "b.toml: sed = 2", "--set: seed = \"x\""];
    assert_eq!(problems.len(), 3, "a rule on a key with a problem of its own is left out: {problems:?}");
    assert!(problems.iter().zip(starts).all(|(problem, start)| problem.starts_with(start)), "{problems:?}");
}

#[test]
fn a_problem_is_one_short_line_whatever_was_given() {
    let key = "x\ny".repeat(500);
    let nasty =
        Layer { name: "b\n.toml".to_owned(), values: vec![(key, Value::Text("\n\u{2028}".repeat(500)))] };
    for line in resolve(&[nasty]).unwrap_err() {
        assert!(!line.contains('\n') && line.len() < 300, "{line}");
    }
}

#[test]
fn a_later_layer_wins_and_is_named() {
    let layers = [
        layer("b.toml", &[("train.batch", "64"), ("seed", "2")]),
        layer("SLACKLINE__SEED", &[("seed", "3")]),
        layer("--set", &[("seed", "4"), ("seed", "5")]),
    ];
    let resolved = resolve(&layers).unwrap();
    assert_eq!((resolved.config.seed, resolved.config.train.batch, resolved.config.workers), (5, 64, 2));
    let origins = ["seed", "train.batch", "train.epochs", "workers", "sed"].map(|path| resolved.origin(path));
    assert_eq!(origins, [Some("--set"), Some("b.toml"), Some("a.toml"), Some("default"), None]);
    let shown = resolved.show();
    assert!(shown.starts_with(&format!("{:<44} # --set\n", "seed = 5")), "{shown}");
    let settings = shown.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(settings.count(), KEYS.len());
    assert!(shown.contains("# Timers, each derived"), "{shown}");
}

#[test]
fn a_void_setting_is_let_pass_in_a_file_and_refused_by_hand() {
    let asp = layer("b.toml", &[("consistency.policy", "\"asp\""), ("consistency.staleness", "4")]);
    let resolved = resolve(std::slice::from_ref(&asp)).unwrap();
    assert_eq!(resolved.config.consistency.policy, PolicySpec::Asp);
    assert!(resolved.show().contains("# b.toml, no effect with consistency.policy = \"asp\""));

    let by_hand = layer("--set", &[("consistency.staleness", "3")]);
    let line = "--set: consistency.staleness = 3: has no effect, since consistency.policy = \"asp\" \
                (it needs \"ssp\" or \"essp\")";
    assert_eq!(resolve(&[asp, by_hand]), Err(vec![line.to_owned()]));
}

#[test]
fn an_allreduce_has_nothing_to_copy_to_keep_or_to_guard() {
    let allreduce = layer("b.toml", &[("sync.method", "\"allreduce\"")]);
    for (key, value) in [
        ("cluster.replicas", "2"),
        ("cluster.durability", "\"disk\""),
        ("cluster.steps", "\"whole\""),
        ("checkpoint.every_clocks", "5"),
        ("guard.norm_max", "1.0"),
        ("codec.push", "\"top-k\""),
        ("codec.pull", "\"bf16\""),
    ] {
        let line = format!(
            "--set: {key} = {value}: has no effect, since sync.method = \"allreduce\" (it needs \"server\")"
        );
        assert_eq!(resolve(&[allreduce.clone(), layer("--set", &[(key, value)])]), Err(vec![line]));
    }
}

#[test]
fn the_fingerprint_follows_what_is_computed() {
    let base = resolve(&[]).unwrap().hash();
    let hash = |settings: &[(&str, &str)]| resolve(&[layer("b.toml", settings)]).unwrap().hash();
    assert_eq!(hash(&[("out", "\"elsewhere\""), ("cluster.keys", "\"k\""), ("data.dir", "\"d\"")]), base);
    assert_eq!(hash(&[("cluster.addresses", "[\"a:1\", \"b:1\"]")]), base);
    assert_eq!(hash(&[("cluster.lease_s", "10")]), base, "10 and 10.0 are one value");
    assert_eq!(hash(&[("consistency.staleness", "2")]), base, "a default that is spelt out");
    for other in
        [("seed", "2"), ("consistency.staleness", "3"), ("optimizer.rate", "0.031"), ("workers", "3")]
    {
        assert_ne!(hash(&[other]), base, "{other:?}");
    }
    let bsp = ("consistency.policy", "\"bsp\"");
    assert_eq!(hash(&[bsp, ("consistency.staleness", "7")]), hash(&[bsp]), "a bound without effect");
}

#[test]
fn addresses_are_asked_for_by_name() {
    let line = "default: cluster.addresses = []: needed by `server` and `worker`: host:port of \
                each of the 2 servers, server 0 first";
    assert_eq!(resolve(&[]).unwrap().addresses().unwrap_err().to_string(), line);
    let given = layer("b.toml", &[("cluster.addresses", "[\"a:1\", \"[::1]:2\"]")]);
    assert_eq!(resolve(&[given]).unwrap().addresses().unwrap(), ["a:1", "[::1]:2"]);
}

#[test]
fn every_word_of_a_choice_means_another_thing() {
    for key in KEYS {
        let Kind::Choice(words) = key.kind else { continue };
        let configs: Vec<Config> = words
            .iter()
            .map(|word| {
                let company: &[(&str, &str)] = match (key.path, *word) {
                    ("model.kind", "mlp") => &[("model.widths", "[8]")],
                    ("model.kind", "quadratic") => &[("data.dataset", "\"noise\"")],
                    ("data.dataset", "noise") => &[("model.kind", "\"quadratic\"")],
                    ("sync.order", _) => &[("sync.method", "\"allreduce\"")],
                    ("local.outer", _) => &[("local.mode", "\"difference\"")],
                    ("cluster.durability", "replicated") => &[("cluster.replicas", "2")],
                    ("guard.on_norm", _) => &[("guard.norm_max", "1.0")],
                    ("stragglers.kind", "recorded") => &[("stragglers.file", "\"a.csv\"")],
                    _ => &[],
                };
                let word = format!("\"{word}\"");
                resolve(&[layer("b.toml", &[&[(key.path, word.as_str())], company].concat())]).unwrap().config
            })
            .collect();
        for (index, config) in configs.iter().enumerate() {
            assert!(!configs[..index].contains(config), "{} = {}", key.path, words[index]);
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-2_i64..2000).prop_map(Value::Int),
        any::<f64>().prop_map(Value::Float),
        (0.0..2.0).prop_map(Value::Float),
        any::<String>().prop_map(Value::Text),
        prop::sample::select(vec![
            "",
            "mlp",
            "softmax",
            "bsp",
            "asp",
            "auto",
            "all",
            "sgd",
            "h:1",
            "[::1]:9",
            "allreduce",
            "torus(1, 2)"
        ])
        .prop_map(|word| Value::Text(word.to_owned())),
        Just(Value::Table),
    ];
    leaf.prop_recursive(2, 8, 4, |element| prop::collection::vec(element, 0..4).prop_map(Value::List))
}

fn any_layer() -> impl Strategy<Value = Layer> {
    let known = prop::sample::select(KEYS).prop_map(|key| key.path.to_owned());
    let key = prop_oneof![8 => known, 1 => any::<String>(), 1 => "[a-z]{1,9}\\.[a-z_]{1,12}"];
    let name = prop_oneof![Just("--set".to_owned()), any::<String>()];
    (name, prop::collection::vec((key, any_value()), 0..6)).prop_map(|(name, values)| Layer { name, values })
}

proptest! {
    #[test]
    fn no_layer_panics_and_what_resolves_is_saved_whole(
        layers in prop::collection::vec(any_layer(), 0..4),
        with_required in any::<bool>(),
    ) {
        let mut all = layers;
        if with_required {
            all.insert(0, required());
        }
        match Config::resolve(&all) {
            Ok(resolved) => {
                let _ = resolved.show();
                // Texts that need escapes are read back by a whole TOML parser, in the program's own tests.
                if !resolved.to_toml().contains('\\') && !resolved.to_toml().contains("\\\"") {
                    let again = Config::resolve(&[read_back(&resolved.to_toml())]).unwrap();
                    prop_assert_eq!(&again.config, &resolved.config);
                    prop_assert_eq!(again.hash(), resolved.hash());
                }
            }
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                for problem in problems {
                    let line = problem.to_string();
                    prop_assert!(!line.contains('\n'));
                }
            }
        }
    }
}
