//! The order of the tree, checked: cores are pure, files open with what they are for and stay small, documents name what exists.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The pure crates and the only crates each may be built from, the standard library aside.
const PURE: [(&str, &str); 3] = [
    ("slackline-core", "common/core"),
    ("slackline-server-core", "server/core"),
    ("slackline-worker-core", "worker/core"),
];

/// What a pure crate may depend on directly.
const ALLOWED: [&str; 9] = [
    "bincode",
    "bytemuck",
    "pulp",
    "rand",
    "rand_chacha",
    "serde",
    "slackline-core",
    "thiserror",
    "xxhash-rust",
];

/// What must not be anywhere below a pure crate.
const BANNED_CRATES: [&str; 9] =
    ["tokio", "quinn", "quinn-proto", "dashmap", "rayon", "socket2", "mio", "config", "getrandom"];

/// What the source of a pure crate must not name.
const BANNED_WORDS: [&str; 14] = [
    "std::net",
    "std::fs",
    "std::thread",
    "std::env",
    "std::process",
    "std::io",
    "Instant",
    "SystemTime",
    "thread_rng",
    "rand::rng",
    "async fn",
    ".await",
    "HashMap",
    "unsafe ",
];

/// Lines of a file that has grown past one room.
const LINES_MAX: usize = 520;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

/// The source of a file without its tests and comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let before_tests = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("").to_owned();
    before_tests.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Whether `word` stands in `code` and not as the beginning of a longer one.
fn names(code: &str, word: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_');
    code.match_indices(word).any(|(at, _)| word.ends_with(' ') || ends(&code[at + word.len()..]))
}

#[test]
fn pure_crates_depend_on_nothing_that_touches_the_world() {
    for (name, folder) in PURE {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let section = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        for line in section.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let dependency = line.split(['.', ' ', '=']).next().unwrap();
            assert!(ALLOWED.contains(&dependency), "{name} may not depend on {dependency}");
        }
        let tree = Command::new(env!("CARGO"))
            .args([
                "tree",
                "--offline",
                "--edges",
                "normal",
                "--prefix",
                "none",
                "--format",
                "{p}",
                "-p",
                name,
            ])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        let tree = String::from_utf8(tree.stdout).unwrap();
        let below: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(below.contains(name));
        for banned in BANNED_CRATES {
            assert!(!below.contains(banned), "{banned} is below {name}");
        }
    }
}

#[test]
fn pure_sources_name_nothing_that_touches_the_world() {
    for (name, folder) in PURE {
        let files = sources(&root().join(folder).join("src"));
        assert!(!files.is_empty());
        for path in files.iter().filter(|path| !is_test(path)) {
            let code = code(path);
            for banned in BANNED_WORDS {
                assert!(!names(&code, banned), "{name}: {} names {banned}", path.display());
            }
        }
    }
}

#[test]
fn only_one_crate_names_quinn_and_only_one_module_calls_bincode() {
    for path in sources(&root()).iter().filter(|path| !is_test(path)) {
        let place = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let code = code(path);
        assert!(!code.contains("quinn::") || place.starts_with("common/net/"), "{place} names quinn");
        let calls = code.contains("bincode::encode") || code.contains("bincode::decode");
        assert!(!calls || place == "common/core/src/wire/mod.rs", "{place} calls bincode");
    }
}

#[test]
fn every_file_says_what_it_is_for_and_is_small_enough_to_walk() {
    for path in sources(&root()) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//!"), "{} does not open with what it is for", path.display());
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines: split it", path.display());
    }
}

/// The words between backquotes that look like paths of the tree.
fn paths_named(document: &str) -> Vec<String> {
    let words = document.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| {
        let plain = word.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-".contains(letter));
        plain && (word.contains('/') || [".rs", ".toml", ".py", ".sh"].iter().any(|end| word.ends_with(end)))
    };
    words.filter(is_path).map(str::to_owned).collect()
}

#[test]
fn the_documents_name_only_what_exists() {
    let documents = [
        "README.md",
        "ARCHITECTURE.md",
        "bench/README.md",
        "bench/peers/README.md",
        "configs/experiments/README.md",
    ];
    for document in documents {
        let text = fs::read_to_string(root().join(document)).unwrap();
        for named in paths_named(&text) {
            let folder = root().join(document).parent().unwrap().to_path_buf();
            let made_by_users = [
                "DIR/",
                "runs/",
                "keys/",
                "out/",
                "summary.json",
                "metrics.jsonl",
                "config.toml",
                "target/",
                "cluster.toml",
            ];
            if made_by_users.iter().any(|made| named.starts_with(made) || named.ends_with(made)) {
                continue;
            }
            let exists = root().join(&named).exists() || folder.join(&named).exists();
            assert!(exists, "{document} names {named}, which is not there");
        }
    }
}

/// The fields of the typed configuration, as `Section.field`, read off its declarations.
fn configuration_fields() -> BTreeSet<String> {
    let text = code(&root().join("common/core/src/config/mod.rs"));
    let mut fields = BTreeSet::new();
    let mut section = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
            section = Some(name.to_owned());
        } else if line == "}" {
            section = None;
        } else if let (Some(section), Some(field)) = (&section, line.strip_prefix("    pub "))
            && let Some((field, _)) = field.split_once(':')
        {
            fields.insert(format!("{section}.{field}"));
        }
    }
    fields
}

/// Whether `code` reads a field of this name; a method of the same name is none. (An atomic's `store` once hid a key of that name.)
fn reads(code: &str, field: &str) -> bool {
    let ends =
        |rest: &str| !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || "_(".contains(next));
    code.match_indices(field).any(|(at, _)| ends(&code[at + field.len()..]))
}

// Case 3.7, number 9: flags that were documented and read nowhere.
#[test]
fn every_key_of_the_configuration_is_read_by_somebody() {
    let outside: String = sources(&root())
        .into_iter()
        .filter(|path| !is_test(path) && !path.starts_with(root().join("common/core/src/config")))
        .filter(|path| !path.starts_with(root().join("tests")))
        .map(|path| code(&path))
        .collect();
    // What the configuration computes from its own fields counts when somebody asks for that.
    let own = code(&root().join("common/core/src/config/timers.rs"));
    let own = own + &code(&root().join("common/core/src/config/mod.rs")).replace("pub ", "");
    let fields = configuration_fields();
    assert!(fields.len() > 40, "the declarations were not understood: {fields:?}");
    let unread: Vec<&String> = fields
        .iter()
        .filter(|field| {
            let name = format!(".{}", field.split_once('.').unwrap().1);
            !reads(&outside, &name) && !reads(&own, &name)
        })
        .collect();
    assert!(unread.is_empty(), "read nowhere outside of the configuration: {unread:?}");
}
