//! What a run with faults has shown: `chaos.json` for programs, a table for reading, and verdicts on what must hold and what is aimed at.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::plan::{What, Whom};
use crate::presence::{Span, median_and_worst};
use crate::schedule::Fault;

/// Throughput of those who were there, against the calm run's, that is aimed at.
pub const KEPT_AIM: f64 = 0.95;

/// A fault as it happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Befallen {
    /// What was planned.
    #[serde(flatten)]
    pub fault: Fault,
    /// When it was, in seconds since training began.
    pub was: Span,
    /// From its beginning, or for a worker from its end, to the first answer afterwards: see [`Befallen::recovery`].
    pub recovery_s: Option<f64>,
    /// Why it was left out; none where it happened.
    pub left_out: Option<String>,
}

impl Befallen {
    /// `kill of a worker` and so on.
    #[must_use]
    pub fn name(&self) -> String {
        let what = match self.fault.what {
            What::Kill => "kill",
            What::Freeze => "freeze",
            What::Cut => "cut",
            What::Loss => "loss",
            What::Delay => "delay",
            What::FullDisk => "full disk",
        };
        let whom = if self.fault.whom == Whom::Worker { "worker" } else { "server" };
        format!("{what} of a {whom}")
    }

    /// What its recovery time is, in words.
    #[must_use]
    pub const fn recovery(whom: Whom) -> &'static str {
        match whom {
            Whom::Worker => "from its end until a push of that worker is answered",
            Whom::Server => "from its beginning until pushes of all shards that it led are answered again",
        }
    }
}

/// How many samples were done, and how many could have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Throughput {
    /// Samples per second without faults: of the calm run, or of the calm before the first fault where that is more.
    pub calm_samples_per_s: f64,
    /// Seconds of the faults, from the first to the end of the last.
    pub window_s: f64,
    /// Samples done in that time; a batch that is done again counts once.
    pub samples: u64,
    /// Workers that were alive and reachable, on average.
    pub workers_there: f64,
    /// Samples done, against what those who were there give without faults, while the coordinator was there.
    pub kept: f64,
    /// The same over the whole window. A coordinator that keeps its map on its own disk must come back itself: until then a server's loss
    /// cannot be mended, and what lies on its own server waits.
    pub kept_overall: f64,
    /// Seconds that the coordinator was away, or back for less than a lease.
    pub coordinator_away_s: f64,
}

/// Times without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stalls {
    /// The longest in which no push was answered anywhere, while the coordinator was there.
    pub anywhere: Span,
    /// The same over the whole window.
    pub overall: Span,
    /// The longest of one worker that was alive and reachable, while the coordinator was there.
    pub of_one: Span,
    /// That worker.
    pub worker: u32,
}

/// What the replay has shown of one shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ShardReport {
    /// The shard.
    pub shard: u32,
    /// Its final version.
    pub version: u64,
    /// Updates that workers were told of.
    pub answered: u64,
    /// Answered and not in the final values.
    pub lost: Vec<String>,
    /// In the final values more than once.
    pub doubled: Vec<String>,
    /// Versions that nothing explains.
    pub unexplained: u64,
    /// Versions whose answer a killed worker did not hear, and which were found among what it had sent.
    pub filled: u64,
    /// Values whose bits differ from those of the replay.
    pub differing: u64,
    /// The furthest that a reader was ahead.
    pub lead_max: u64,
    /// Reads beyond the bound, or without the reader's own pushes.
    pub breaches: u64,
    /// The first of them.
    pub first_breach: Option<String>,
}

/// What the servers' own traces have shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TraceReport {
    /// Traces that begin with their shard, and could be checked.
    pub checked: u64,
    /// Traces of copies that took over: they begin in the middle.
    pub later: u64,
    /// Laws that were broken, the first few in words.
    pub violations: u64,
    /// The first few.
    pub first: Vec<String>,
    /// Why traces that should have been checked could not be.
    pub unread: Vec<String>,
}

/// A process that ended otherwise than it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exit {
    /// Which.
    pub name: String,
    /// How, with its last words.
    pub how: String,
}

/// Whether something holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// What.
    pub what: &'static str,
    /// Whether it does.
    pub holds: bool,
    /// The figure.
    pub figure: String,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The command that does the same again.
    pub command: String,
    /// Workers and servers.
    pub cluster: (u32, u32),
    /// The lease, in seconds.
    pub lease_s: f64,
    /// Why the run was not complete, if it was not.
    pub broken_off: Option<String>,
    /// What happened, in order.
    pub faults: Vec<Befallen>,
    /// None where nothing was answered.
    pub throughput: Option<Throughput>,
    /// None where nothing was answered.
    pub stalls: Option<Stalls>,
    /// Samples done in each second since training began.
    pub samples_each_s: Vec<u64>,
    /// The shards; empty where there is no last checkpoint.
    pub shards: Vec<ShardReport>,
    /// Steps that some shards have and others have not.
    pub disagreements: Vec<String>,
    /// Whether shards must have the same steps.
    pub steps_are_whole: bool,
    /// Batches: used, of how many, and used again.
    pub batches: (u64, u64, u64),
    /// None where none was looked at.
    pub traces: Option<TraceReport>,
    /// Processes that ended otherwise than they should.
    pub exits: Vec<Exit>,
    /// Final accuracy with faults, and without.
    pub accuracy: (Option<f64>, Option<f64>),
    /// Samples that the accuracy is measured on.
    pub test_samples: u64,
}

/// The report as it is written: with its verdicts.
#[derive(Debug, Serialize)]
struct Written<'a> {
    must_hold: Vec<Verdict>,
    aims: Vec<Verdict>,
    #[serde(flatten)]
    report: &'a Report,
}

impl Report {
    /// What must hold, whatever befalls a cluster.
    #[must_use]
    pub fn must_hold(&self) -> Vec<Verdict> {
        let sum = |of: fn(&ShardReport) -> u64| self.shards.iter().map(of).sum::<u64>();
        let has_values = !self.shards.is_empty();
        let count = |what, found: u64, of: &str| Verdict {
            what,
            holds: has_values && found == 0,
            figure: if has_values { format!("{found}{of}") } else { "no last checkpoint".to_owned() },
        };
        let answered = format!(" of {} acknowledged", sum(|shard| shard.answered));
        let (used, all, again) = self.batches;
        let mut verdicts = vec![
            Verdict {
                what: "the run is complete",
                holds: self.broken_off.is_none(),
                figure: self.broken_off.clone().unwrap_or_else(|| "yes".to_owned()),
            },
            count("updates lost", sum(|shard| shard.lost.len() as u64), &answered),
            count("updates applied twice", sum(|shard| shard.doubled.len() as u64), ""),
            count("versions that nothing sent explains", sum(|shard| shard.unexplained), ""),
            count("values that differ from the replay", sum(|shard| shard.differing), ""),
            count("reads beyond the policy's bound", sum(|shard| shard.breaches), ""),
        ];
        if self.steps_are_whole {
            verdicts.push(count("steps that not all shards have", self.disagreements.len() as u64, ""));
        }
        verdicts.push(Verdict {
            what: "batches left out",
            holds: has_values && used == all,
            figure: format!("{} of {all}, {again} done again", all.saturating_sub(used)),
        });
        verdicts.extend(self.traces.as_ref().map(|traces| Verdict {
            what: "violations in the servers' traces",
            holds: traces.violations == 0 && traces.unread.is_empty(),
            figure: match traces.unread.first() {
                Some(why) => why.clone(),
                None => format!("{} in {} traces", traces.violations, traces.checked),
            },
        }));
        verdicts.push(Verdict {
            what: "processes that ended badly",
            holds: self.exits.is_empty(),
            figure: self.exits.len().to_string(),
        });
        verdicts
    }

    /// What is aimed at, and depends on how busy the machine is.
    #[must_use]
    pub fn aims(&self) -> Vec<Verdict> {
        let mut aims = Vec::new();
        aims.extend(self.throughput.map(|throughput| Verdict {
            what: "throughput kept, at least 95 %",
            holds: throughput.kept >= KEPT_AIM,
            figure: format!("{:.1} %", 100.0 * throughput.kept),
        }));
        let two = 2.0 * self.lease_s;
        let stall = |what, span: Span| Verdict {
            what,
            holds: span.length_s() < two,
            figure: format!("{:.2} s of {two:.2} s, at {:.1} s", span.length_s(), span.from_s),
        };
        aims.extend(self.stalls.iter().flat_map(|stalls| {
            [
                stall("longest stall of all, under two leases", stalls.anywhere),
                stall("longest stall of one worker, under two leases", stalls.of_one),
            ]
        }));
        if let (Some(with), Some(without)) = self.accuracy {
            // Two standard deviations of the difference of two measured shares.
            let noise = 2.0 * (2.0 * without * (1.0 - without) / self.test_samples.max(1) as f64).sqrt();
            aims.push(Verdict {
                what: "final accuracy, within noise of the calm run's",
                holds: with >= without - noise,
                figure: format!(
                    "{:.2} % against {:.2} %, noise {:.2} %",
                    100.0 * with,
                    100.0 * without,
                    100.0 * noise
                ),
            });
        }
        aims
    }

    /// The text of `chaos.json`.
    #[must_use]
    pub fn json(&self) -> String {
        let written = Written { must_hold: self.must_hold(), aims: self.aims(), report: self };
        // Numbers, texts and lists: nothing that JSON cannot say, but a number that is not finite, which it says as null.
        let mut text = serde_json::to_string_pretty(&written).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Faults by name: how many, and the recovery times.
    fn by_kind(&self) -> BTreeMap<String, (u64, Vec<f64>, Whom)> {
        let mut kinds: BTreeMap<String, (u64, Vec<f64>, Whom)> = BTreeMap::new();
        for fault in self.faults.iter().filter(|fault| fault.left_out.is_none()) {
            let (count, times, _) =
                kinds.entry(fault.name()).or_insert_with(|| (0, Vec::new(), fault.fault.whom));
            *count += 1;
            times.extend(fault.recovery_s);
        }
        kinds
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (workers, servers) = self.cluster;
        writeln!(f, "cluster        {workers} workers, {servers} servers, lease {} s", self.lease_s)?;
        writeln!(f, "\n{:<22} {:>5}   recovery: median, worst", "faults", "count")?;
        for (name, (count, times, _)) in self.by_kind() {
            let times = median_and_worst(times)
                .map_or_else(|| "-".to_owned(), |(median, worst)| format!("{median:.2} s, {worst:.2} s"));
            writeln!(f, "{name:<22} {count:>5}   {times}")?;
        }
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        self.faults
            .iter()
            .filter_map(|fault| fault.left_out.as_deref())
            .for_each(|why| *reasons.entry(why).or_default() += 1);
        for (why, count) in reasons {
            writeln!(f, "left out       {count}: {why}")?;
        }
        for whom in [Whom::Worker, Whom::Server] {
            writeln!(f, "recovery of a {whom:?}: {}", Befallen::recovery(whom))?;
        }
        if let Some(throughput) = self.throughput {
            let Throughput { calm_samples_per_s, window_s, samples, workers_there, kept_overall, .. } =
                throughput;
            writeln!(
                f,
                "\nthroughput     {samples} samples in {window_s:.1} s with {workers_there:.2} workers there on average; {calm_samples_per_s:.0} \
                 samples/s without faults: {:.1} % kept",
                100.0 * kept_overall
            )?;
            if throughput.coordinator_away_s > 0.0 {
                let longest = self.stalls.map_or(0.0, |stalls| stalls.overall.length_s());
                writeln!(
                    f,
                    "coordinator    away, or with a full disk, for {:.1} s, a lease after each time included: it keeps its map on its own disk, so \
                     the run waits for it; those times do not count below; the longest stall with them is {longest:.2} s",
                    throughput.coordinator_away_s
                )?;
            }
        }
        let filled: u64 = self.shards.iter().map(|shard| shard.filled).sum();
        if filled > 0 {
            writeln!(f, "filled         {filled} versions whose worker was killed before it heard of them")?;
        }
        writeln!(f)?;
        for (title, verdicts) in [("must hold", self.must_hold()), ("aims", self.aims())] {
            for Verdict { what, holds, figure } in verdicts {
                writeln!(f, "{title:<10} {} {what}: {figure}", if holds { "yes" } else { "NO " })?;
            }
        }
        self.details(f)
    }
}

/// Details of one kind that are shown; the file has all.
const SHOWN_MAX: usize = 8;

impl Report {
    /// What is wrong, one by one.
    fn details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for shard in &self.shards {
            let name = format!("shard {}", shard.shard);
            for (what, steps) in [("lost", &shard.lost), ("applied twice", &shard.doubled)] {
                steps.iter().take(SHOWN_MAX).try_for_each(|step| writeln!(f, "{name}: {step} was {what}"))?;
            }
            if let Some(first) = &shard.first_breach {
                writeln!(f, "{name}: {first}")?;
            }
        }
        for step in self.disagreements.iter().take(SHOWN_MAX) {
            writeln!(f, "{step}")?;
        }
        for violation in self.traces.iter().flat_map(|traces| &traces.first).take(SHOWN_MAX) {
            writeln!(f, "trace: {violation}")?;
        }
        for Exit { name, how } in &self.exits {
            writeln!(f, "{name}: {how}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let fault = Fault {
            at_s: 1.0,
            for_s: 2.0,
            what: What::FullDisk,
            whom: Whom::Server,
            index: 1,
            share: 0.0,
            delay_s: 0.0,
        };
        let span = |from_s, to_s| Span { from_s, to_s };
        Report {
            command: "slackline chaos a --plan b --seed 7".to_owned(),
            cluster: (8, 3),
            lease_s: 1.0,
            broken_off: None,
            faults: vec![Befallen { fault, was: span(5.0, 7.0), recovery_s: Some(0.3), left_out: None }],
            throughput: Some(Throughput { kept: 0.97, ..Throughput::default() }),
            stalls: Some(Stalls {
                anywhere: span(5.0, 6.5),
                overall: span(5.0, 6.5),
                of_one: span(5.0, 6.75),
                worker: 3,
            }),
            samples_each_s: vec![2560; 30],
            shards: vec![ShardReport { answered: 100, ..ShardReport::default() }],
            disagreements: Vec::new(),
            steps_are_whole: true,
            batches: (100, 100, 2),
            traces: Some(TraceReport::default()),
            exits: Vec::new(),
            accuracy: (Some(0.95), Some(0.955)),
            test_samples: 360,
        }
    }

    fn broken(report: &Report) -> Vec<&'static str> {
        report.must_hold().into_iter().chain(report.aims()).filter(|v| !v.holds).map(|v| v.what).collect()
    }

    #[test]
    fn everything_holds_when_nothing_is_wrong() {
        assert!(broken(&report()).is_empty(), "{:?}", broken(&report()));
        let text = report().to_string();
        assert!(text.contains("full disk of a server") && text.contains("0 of 100 acknowledged"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(json["faults"][0]["what"], "full-disk");
        assert_eq!(json["must_hold"][1]["holds"], true);
    }

    #[test]
    fn each_thing_that_is_wrong_has_its_verdict() {
        type Case = (fn(&mut Report), &'static str);
        let cases: [Case; 9] = [
            (|report| report.broken_off = Some("late".to_owned()), "the run is complete"),
            (|report| report.shards[0].lost.push("push 3".to_owned()), "updates lost"),
            (|report| report.shards[0].doubled.push("push 3".to_owned()), "updates applied twice"),
            (|report| report.shards[0].differing = 1, "values that differ from the replay"),
            (|report| report.shards[0].breaches = 1, "reads beyond the policy's bound"),
            (|report| report.disagreements.push("x".to_owned()), "steps that not all shards have"),
            (|report| report.batches.0 = 99, "batches left out"),
            (|report| report.throughput = Some(Throughput::default()), "throughput kept, at least 95 %"),
            (|report| report.accuracy.0 = Some(0.5), "final accuracy, within noise of the calm run's"),
        ];
        for (break_it, what) in cases {
            let mut report = report();
            break_it(&mut report);
            assert_eq!(broken(&report), [what]);
        }
        let nothing = Report { shards: Vec::new(), ..report() };
        assert!(broken(&nothing).contains(&"updates lost"), "nothing is proven without final values");
    }
}
