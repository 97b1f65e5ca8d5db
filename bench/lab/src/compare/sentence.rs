//! Who wins under a condition, by how much, with what spread: one plain sentence, and a tie is called one.
//!
//! What is compared is the time to the target, by medians over the seeds. Two tie when their spreads (least to most over the seeds)
//! overlap, or when the medians differ by less than [`CLOSE`] or by less than the time between two evaluations, which is the finest that
//! a time to a target can be. Whoever misses the target at a seed cannot win over one who always reaches it.

use super::standing::{Entry, Family, Middle};
use crate::judge::short;

/// Medians that differ by less than this share tie.
pub(crate) const CLOSE: f64 = 0.05;

/// The rule in words, for reports.
pub(crate) const RULE: &str = "The winner has the least median time to the target among those who reach it at every seed. Two tie \
when their spreads over the seeds (least to most) overlap, or their medians differ by less than 5 % or than the time between two evaluations.";

/// Who comes first, and what is said about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// One, or all who tie with the best; nobody where the target was not reached at every seed by any.
    pub(crate) first: Vec<String>,
    pub(crate) sentence: String,
}

/// Whether two cannot be told apart; `a` has the lesser median, and `apart` seconds lie between its evaluations.
fn ties(a: Middle, b: Middle, apart: f64) -> bool {
    let (Some(best), Some(other)) = (a.median, b.median) else { return false };
    b.min <= a.max || other < best * (1.0 + CLOSE) || other - best < apart
}

/// Compares the entries of one condition, whose runs were evaluated so many times.
pub(crate) fn outcome(entries: &[Entry], target: &str, seeds: usize, evaluations: f64) -> Outcome {
    let mut times: Vec<(&Entry, Middle)> =
        entries.iter().filter_map(|entry| entry.time().map(|time| (entry, time))).collect();
    // Among equals the first one of the file.
    times.sort_by(|(_, a), (_, b)| a.median.unwrap_or(f64::MAX).total_cmp(&b.median.unwrap_or(f64::MAX)));
    let Some((best, time)) = times.first().copied() else {
        return Outcome { first: Vec::new(), sentence: nobody(entries, target, seeds) };
    };
    let length = best.figures.get("time_s").and_then(|middle| middle.median).unwrap_or(0.0);
    let apart = length / evaluations.max(1.0);
    let (first, behind): (Vec<_>, Vec<_>) = times
        .iter()
        .copied()
        .partition(|(entry, other)| std::ptr::eq(*entry, best) || ties(time, *other, apart));
    let mut sentence = if first.len() == 1 {
        format!("{} wins: {target} after {}", best.contestant, shown(time))
    } else {
        let names: Vec<String> =
            first.iter().map(|(entry, time)| format!("{} ({})", entry.contestant, shown(*time))).collect();
        format!("A tie in the time to {target}: {}", listed(&names))
    };
    match behind.first() {
        Some((entry, other)) => {
            let how = if first.len() == 1 { "sooner than the next" } else { "sooner than the next in line" };
            sentence += &format!(
                ", {how}, {} ({}), by a factor of {}",
                entry.contestant,
                shown(*other),
                ratio(*other, time)
            );
        }
        None if first.len() < entries.len() => sentence += "; nobody else reached it at every seed",
        None if first.len() == 1 => {}
        None => sentence += "; nobody is behind",
    }
    sentence += &others(best, time, &first, &behind);
    let first = first.into_iter().map(|(entry, _)| entry.contestant.clone()).collect();
    Outcome { first, sentence: sentence + "." }
}

/// The best of the families that are neither first nor named as the next.
fn others(best: &Entry, time: Middle, first: &[(&Entry, Middle)], behind: &[(&Entry, Middle)]) -> String {
    let mut text = String::new();
    for (family, name) in
        [(Family::Server, "parameter server"), (Family::Allreduce, "allreduce"), (Family::Outside, "peer")]
    {
        let is_named = first.iter().chain(behind.first()).any(|(entry, _)| entry.family == family);
        let found = behind.iter().find(|(entry, _)| entry.family == family);
        if let Some((entry, other)) = found.filter(|_| !is_named && best.family != family) {
            let (who, ratio) = (&entry.contestant, ratio(*other, time));
            text += &format!("; the best {name}, {who}, takes {ratio} times as long ({})", shown(*other));
        }
    }
    text
}

fn nobody(entries: &[Entry], target: &str, seeds: usize) -> String {
    let nearest =
        entries.iter().filter(|entry| entry.reached() > 0).rev().max_by_key(|entry| entry.reached());
    let text = match nearest {
        Some(entry) => format!(
            "Nobody reached {target} at every seed, so nobody wins; {} did at {} of {seeds}",
            entry.contestant,
            entry.reached()
        ),
        None => format!("Nobody reached {target}, so nobody wins"),
    };
    text + "."
}

/// `12.3 s [12.1..12.9]`.
fn shown(time: Middle) -> String {
    let median = time.median.map_or_else(|| "?".to_owned(), short);
    if time.count > 1 {
        format!("{median} s [{}..{}]", short(time.min), short(time.max))
    } else {
        format!("{median} s")
    }
}

fn ratio(a: Middle, b: Middle) -> String {
    match (a.median, b.median) {
        (Some(a), Some(b)) if b > 0.0 => format!("{:.2}", a / b),
        _ => "?".to_owned(),
    }
}

/// `a, b and c`.
fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}
