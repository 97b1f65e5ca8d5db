//! Times and throughput of a run with faults, against one without.

use std::collections::{BTreeMap, BTreeSet};

use slackline_chaos::plan::{What, Whom};
use slackline_chaos::presence::{Span, longest_gap, longest_stall, presences, worker_seconds};
use slackline_chaos::report::{Befallen, Stalls, Throughput};
use slackline_core::config::Config;
use slackline_core::ids::{BatchIndex, ShardId};

use super::follow::{Answer, Seen};
use super::storm::Storm;

/// Seconds at the beginning and at the end of a calm run that do not count: workers come and go one after the other there.
const EDGE_S: f64 = 1.0;

/// An answer that is seen so shortly after a server was lost was under way before: the logs are looked at every 20 ms.
const UNDER_WAY_S: f64 = 0.06;

/// What is measured.
pub(super) struct Measured {
    pub(super) faults: Vec<Befallen>,
    pub(super) throughput: Option<Throughput>,
    pub(super) stalls: Option<Stalls>,
    pub(super) samples_each_s: Vec<u64>,
}

pub(super) fn measure(calm: &Storm, rough: &Storm, config: &Config) -> Measured {
    let shards = config.partition().shards().count();
    let mut faults = rough.faults.clone();
    for fault in &mut faults {
        fault.recovery_s = recovery_s(fault, &rough.seen.answers);
    }
    let absent: Vec<Vec<Span>> =
        (0..config.workers).map(|worker| absences((Whom::Worker, worker), &faults)).collect();
    let happened = faults.iter().filter(|fault| fault.left_out.is_none());
    let from_s = happened.clone().map(|fault| fault.was.from_s).fold(f64::INFINITY, f64::min);
    let to_s = happened.map(|fault| fault.was.to_s).fold(0.0, f64::max);
    let window = Span { from_s, to_s };
    let away: Vec<Span> = absences((Whom::Server, 0), &faults)
        .into_iter()
        .map(|span| Span { to_s: span.to_s + config.cluster.lease_s, ..span })
        .collect();
    let parts = presences(&away, window);
    let done = done(&rough.seen, shards);
    let workers = config.workers as usize;
    // The machine may have been busier with something else in one of them: what is kept is held against the better.
    let before: Vec<_> = done.iter().copied().filter(|(at_s, _)| *at_s < from_s).collect();
    let rates = [rate(&self::done(&calm.seen, shards)), rate(&before)];
    let calm_rate = rates.into_iter().flatten().max_by(f64::total_cmp);
    let throughput = calm_rate.filter(|_| window.length_s() > 0.0).map(|rate| {
        let kept = |parts: &[Span]| {
            let there: f64 = parts.iter().map(|part| worker_seconds(workers, &absent, *part)).sum();
            let samples: u64 = parts.iter().map(|part| samples(&done, *part)).sum();
            samples as f64 / (there / workers as f64 * rate)
        };
        Throughput {
            calm_samples_per_s: rate,
            window_s: window.length_s(),
            samples: samples(&done, window),
            workers_there: worker_seconds(workers, &absent, window) / window.length_s(),
            kept: kept(&parts),
            kept_overall: kept(&[window]),
            coordinator_away_s: window.length_s() - parts.iter().map(Span::length_s).sum::<f64>(),
        }
    });
    let stalls = stalls(&rough.seen.answers, &absent, window, &parts);
    let samples_each_s = each_second(&done);
    Measured { faults, throughput, stalls, samples_each_s }
}

/// When one was dead, frozen or cut off, or could keep nothing.
fn absences(victim: (Whom, u32), faults: &[Befallen]) -> Vec<Span> {
    let is_its = |fault: &&Befallen| {
        (fault.fault.whom, fault.fault.index) == victim
            && fault.fault.takes_away()
            && fault.left_out.is_none()
    };
    faults.iter().filter(is_its).map(|fault| fault.was).collect()
}

/// When which batch was done: answered as applied by all shards, for the first time. With its samples.
fn done(seen: &Seen, shards: usize) -> Vec<(f64, u32)> {
    let mut answered: BTreeMap<_, BTreeSet<ShardId>> = BTreeMap::new();
    let mut batches: BTreeSet<BatchIndex> = BTreeSet::new();
    let mut done = Vec::new();
    for answer in seen.answers.iter().filter(|answer| answer.is_applied) {
        let by = answered.entry(answer.step).or_default();
        if by.insert(answer.shard)
            && by.len() == shards
            && let Some((batch, samples)) = seen.batches.get(&answer.step)
            && batches.insert(*batch)
        {
            done.push((answer.at_s, *samples));
        }
    }
    done
}

fn samples(done: &[(f64, u32)], window: Span) -> u64 {
    let within = done.iter().filter(|(at_s, _)| (window.from_s..window.to_s).contains(at_s));
    within.map(|(_, samples)| u64::from(*samples)).sum()
}

fn each_second(done: &[(f64, u32)]) -> Vec<u64> {
    let mut seconds = Vec::new();
    for (at_s, samples) in done {
        // Times rise, and a run is bounded.
        let second = *at_s as usize;
        seconds.resize(seconds.len().max(second + 1), 0);
        seconds[second] += u64::from(*samples);
    }
    seconds
}

/// Samples per second of a run without faults.
fn rate(done: &[(f64, u32)]) -> Option<f64> {
    let (first, last) = (done.first()?.0, done.last()?.0);
    let window = Span { from_s: first + EDGE_S, to_s: last - EDGE_S };
    (window.length_s() > 0.0).then(|| samples(done, window) as f64 / window.length_s())
}

/// `parts` are those of the window in which stalls count.
fn stalls(answers: &[Answer], absent: &[Vec<Span>], window: Span, parts: &[Span]) -> Option<Stalls> {
    let last_s = answers.last()?.at_s;
    if window.length_s() <= 0.0 {
        return None;
    }
    let until_last = |part: &Span| Span { to_s: part.to_s.min(last_s).max(part.from_s), ..*part };
    let longest = |spans: &mut dyn Iterator<Item = (Span, u32)>| {
        spans.max_by(|one, other| one.0.length_s().total_cmp(&other.0.length_s()))
    };
    let all: Vec<f64> = answers.iter().map(|answer| answer.at_s).collect();
    let anywhere = longest(&mut parts.iter().map(|part| (longest_gap(&all, until_last(part)), 0)));
    let of_each = longest(&mut absent.iter().zip(0..).flat_map(|(absences, worker)| {
        let its = answers.iter().filter(|answer| answer.process == worker);
        let times: Vec<f64> = its.map(|answer| answer.at_s).collect();
        let stall = move |part| (longest_stall(&times, absences, until_last(part)), worker);
        parts.iter().map(stall).collect::<Vec<_>>()
    }));
    let (of_one, worker) = of_each?;
    Some(Stalls { anywhere: anywhere?.0, overall: longest_gap(&all, until_last(&window)), of_one, worker })
}

/// How long it took until things went on; none where it cannot be told, or where nothing stopped.
fn recovery_s(fault: &Befallen, answers: &[Answer]) -> Option<f64> {
    if fault.left_out.is_some() || !matches!(fault.fault.what, What::Kill | What::Freeze | What::Cut) {
        return None;
    }
    let Span { from_s, to_s } = fault.was;
    if fault.fault.whom == Whom::Worker {
        let back = answers.iter().find(|answer| answer.process == fault.fault.index && answer.at_s >= to_s);
        return Some(back?.at_s - to_s);
    }
    let mut leaders = BTreeMap::new();
    for answer in answers.iter().take_while(|answer| answer.at_s < from_s) {
        leaders.insert(answer.shard, answer.server.0);
    }
    let its = leaders.iter().filter(|(_, server)| **server == fault.fault.index).map(|(shard, _)| *shard);
    let mut longest = None;
    for shard in its {
        let again =
            answers.iter().find(|answer| answer.shard == shard && answer.at_s >= from_s + UNDER_WAY_S)?;
        longest = Some(f64::max(longest.unwrap_or_default(), again.at_s - from_s));
    }
    longest
}
