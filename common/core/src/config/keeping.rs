//! The rules between the keys of members, copies, checkpoints and guards.

use std::time::Duration;

use super::problem::Fault;
use super::resolve::Entries;
use super::rules::is_allreduce;
use super::timers::{self, PROMOTION};

/// What a place for checkpoints may be.
const CHECKPOINT_PLACE: &str = "a folder, file:///folder or s3://bucket/prefix";

/// Checks them with `rule`, which takes the keys of a rule and the rule.
pub(super) fn keeping(rule: &mut impl FnMut(&[&str], &dyn Fn(&Entries) -> Option<Fault>)) {
    rule(&["cluster.min_workers", "workers"], &least);
    rule(&["cluster.replicas", "servers", "sync.method"], &copies);
    rule(&["cluster.durability", "cluster.replicas", "sync.method"], &replicated);
    rule(&["cluster.connect_timeout_s", "cluster.lease_s", "cluster.replicas", "sync.method"], &search);
    rule(&["cluster.connect_timeout_s", "cluster.lease_s", "cluster.store", "sync.method"], &takeover);
    rule(&["checkpoint.at"], &|entries| {
        let wrong = !is_checkpoint_place(entries.text("checkpoint.at"));
        wrong.then_some(Fault::NotAStore { expected: CHECKPOINT_PLACE })
    });
    rule(&["checkpoint.at", "checkpoint.every_clocks", "cluster.store", "sync.method"], &shared);
    rule(&["guard.on_norm", "guard.norm_max", "sync.method"], &norm);
}

fn least(entries: &Entries) -> Option<Fault> {
    let workers: i64 = entries.int("workers");
    let least: i64 = entries.number("cluster.min_workers")?;
    (least > workers).then_some(Fault::TooMany { most: workers, of: "workers" })
}

fn copies(entries: &Entries) -> Option<Fault> {
    let (copies, servers): (i64, i64) = (entries.int("cluster.replicas"), entries.int("servers"));
    (!is_allreduce(entries) && copies > servers)
        .then_some(Fault::TooMany { most: servers, of: "servers, and no server holds two copies of a shard" })
}

fn replicated(entries: &Entries) -> Option<Fault> {
    let is_alone = entries.int::<i64>("cluster.replicas") < 2;
    let wants = entries.text("cluster.durability") == "replicated";
    (!is_allreduce(entries) && wants && is_alone).then_some(Fault::Unfit {
        rule: "replicated needs cluster.replicas = 2: without a backup there is no second copy to wait for",
    })
}

/// A worker that gives a lost server up before its backup can have taken its place would make the backup useless.
fn search(entries: &Entries) -> Option<Fault> {
    let search = entries.float_or("cluster.connect_timeout_s")?;
    let promotion = entries.float("cluster.lease_s") * f64::from(PROMOTION);
    let has_backups = !is_allreduce(entries) && entries.int::<i64>("cluster.replicas") > 1;
    let inner_s = Duration::from_secs_f64(promotion).as_secs_f64();
    (has_backups && search <= promotion)
        .then_some(Fault::Nesting { inner: "putting a backup in a server's place", inner_s })
}

/// The same for another coordinator in the place of a lost one.
fn takeover(entries: &Entries) -> Option<Fault> {
    let search = Duration::from_secs_f64(entries.float_or("cluster.connect_timeout_s")?);
    let has_candidates = !is_allreduce(entries) && entries.text("cluster.store") != "local";
    let takeover = timers::takeover(Duration::from_secs_f64(entries.float("cluster.lease_s")));
    (has_candidates && search <= takeover).then_some(Fault::Nesting {
        inner: "putting another coordinator in the place of a lost one",
        inner_s: takeover.as_secs_f64(),
    })
}

/// The folder among the results, which is the default, is another one for each candidate and each server.
fn shared(entries: &Entries) -> Option<Fault> {
    let is_apart = !is_allreduce(entries) && entries.text("cluster.store") != "local";
    let is_made = entries.int::<i64>("checkpoint.every_clocks") > 0;
    (is_apart && is_made && entries.text("checkpoint.at").is_empty()).then_some(Fault::Unfit {
        rule: "cluster.store is etcd, so the checkpoints must lie where every server and every candidate reaches them: give a folder that \
               all of them share, or s3://bucket/prefix",
    })
}

fn norm(entries: &Entries) -> Option<Fault> {
    let acts = entries.text("guard.on_norm") != "drop";
    let has_limit = entries.float("guard.norm_max") > 0.0;
    (!is_allreduce(entries) && acts && !has_limit).then_some(Fault::Unfit {
        rule: "needs a guard.norm_max above 0: without a limit no norm is beyond it",
    })
}

/// Whether `text` is empty, the path of a folder, or a URL that a store of objects has.
fn is_checkpoint_place(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return true };
    match scheme {
        "file" => rest.starts_with('/'),
        "s3" => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            is_bucket(bucket) && is_path(prefix)
        }
        _ => false,
    }
}

/// S3's rule for names: 3 to 63 small letters, digits, dots and dashes, a letter or a digit at both ends.
fn is_bucket(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [name.bytes().next(), name.bytes().next_back()];
    (3..=63).contains(&name.len())
        && name.bytes().all(|byte| is_plain(byte) || matches!(byte, b'.' | b'-'))
        && ends.into_iter().flatten().all(is_plain)
}

/// Names with slashes between them and no steps up; empty is one too.
pub(super) fn is_path(text: &str) -> bool {
    let is_name = |name: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'=');
        !name.is_empty() && name != "." && name != ".." && name.bytes().all(allowed)
    };
    let text = text.strip_suffix('/').unwrap_or(text);
    text.is_empty() || text.split('/').all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_go_to_a_folder_or_a_bucket() {
        for right in ["", "a/b", "/mnt/x y", "file:///a", "s3://abc", "s3://a-b.c/run/1/"] {
            assert!(is_checkpoint_place(right), "{right}");
        }
        for wrong in
            ["s3://", "s3://ab", "s3://ABC", "s3://-ab", "gs://abc", "file://a", "://", "s3://abc/../x"]
        {
            assert!(!is_checkpoint_place(wrong), "{wrong}");
        }
    }
}
