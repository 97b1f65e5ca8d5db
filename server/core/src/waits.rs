//! What is waited for, in words: who waits for whom, at which clock, since when, and when that one was last heard.
//!
//! The words are made here and nowhere else, so that the status and the log say the same, and a cause that shows in many places (a pull
//! at each of sixty shards, say) is one line. [`Journal`] decides what of it is news.

mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slackline_core::consistency::HoldReason;
use slackline_core::ids::{Clock, Generation, Moment, Sequence, ServerId, ShardId, WorkerId};
use slackline_core::limits::WAIT_ROWS_MAX;
use slackline_core::wire::{HeldRow, Lack, PlaceRow, ServerRow, WaitRow};

/// A link is slow when its round trip is so many times the median of all.
const SLOW_TIMES: u32 = 10;

/// No link is called slow below this round trip: what the median of a loopback is, is nobody's trouble.
const SLOW_LEAST: Duration = Duration::from_millis(20);

/// One thing that is waited for.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// What.
    pub wait: Wait,
    /// For how long.
    pub since: Duration,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// The run cannot begin, or hands out no work: too few workers.
    Workers {
        /// Workers here.
        here: Vec<WorkerId>,
        /// Workers needed.
        needs: u32,
        /// Whether `needs` is `cluster.min_workers`, and not all workers.
        is_least: bool,
        /// The ids that are missing, where they have one.
        missing: Vec<WorkerId>,
    },
    /// The least number of workers is here, and others may come for a while yet.
    Gathering {
        /// Workers here.
        here: u32,
        /// Workers that are wanted.
        wanted: u32,
        /// How long it goes on without them.
        left: Duration,
    },
    /// The run has begun, and no worker is there any more.
    NobodyLeft {
        /// Batches still to do; none where the final evaluation is.
        batches: u64,
    },
    /// A dissolved group of an allreduce waits for members that have not said that they are ready.
    Regrouping {
        /// Which.
        generation: Generation,
        /// For whom.
        missing: Vec<WorkerId>,
    },
    /// A pull is held.
    Held {
        /// Who pulls.
        worker: WorkerId,
        /// Its clock.
        clock: Clock,
        /// Why.
        reason: HoldReason,
        /// At which shards.
        shards: Vec<ShardId>,
        /// How long ago the one that it waits for was heard, where that is known.
        heard: Option<Duration>,
    },
    /// A server says nothing, within its lease or after it.
    Silent {
        /// Which.
        server: ServerId,
        /// Its address, empty where it is not known.
        address: String,
        /// Whether its lease is over.
        is_gone: bool,
        /// For how long.
        silent: Duration,
        /// The workers that cannot go on without it, with their clocks.
        needed_by: Vec<(WorkerId, Clock)>,
    },
    /// The coordinator says nothing to this server.
    Coordinator {
        /// Which server it is.
        server: ServerId,
        /// Its address, empty where it is not known.
        address: String,
        /// For how long.
        silent: Duration,
    },
    /// Shards lack something.
    Lack {
        /// Which.
        shards: Vec<ShardId>,
        /// The server that answers for them, or should.
        primary: ServerId,
        /// What.
        lack: Lack,
    },
    /// A server needs a person.
    Trouble {
        /// Which.
        server: ServerId,
        /// What for.
        text: String,
    },
    /// The link to a peer is far slower than the others.
    SlowLink {
        /// To whom.
        peer: String,
        /// Its round trip.
        round_trip: Duration,
        /// That of half the others.
        median: Duration,
    },
    /// Pieces of steps wait for the word that every shard has its own.
    Staged {
        /// Whose.
        worker: WorkerId,
        /// The first of them: of a worker that works another one is there at every look.
        step: Sequence,
        /// At which shards.
        shards: Vec<ShardId>,
        /// How long ago the worker was heard, where that is known.
        heard: Option<Duration>,
    },
    /// A checkpoint is not whole.
    Checkpoint {
        /// Its number.
        number: u64,
        /// Whether it is that of the final values: the run ends after it.
        is_last: bool,
        /// What it lacks.
        lacks: Unsaved,
    },
    /// Answers wait for the copies that count.
    Unconfirmed {
        /// At which shards.
        shards: Vec<ShardId>,
        /// The backup that has not confirmed; none for the disk.
        backup: Option<ServerId>,
    },
}

/// What a checkpoint lacks.
#[derive(Clone, Debug, PartialEq)]
pub enum Unsaved {
    /// It could not be begun yet.
    Beginning,
    /// A worker has not come to its cut.
    Cut {
        /// The one that is furthest back.
        worker: WorkerId,
        /// Where it is.
        at: Clock,
        /// Its cut.
        needs: Clock,
    },
    /// A server has not written its parts.
    Parts {
        /// Which.
        server: ServerId,
        /// The shards that it has to save.
        shards: Vec<ShardId>,
    },
    /// What workers have to tell of the batches before the cut.
    Results,
    /// All parts are in the store, the manifest is not.
    Manifest,
}

impl Wait {
    /// What it is about, without what changes while it lasts: two waits with one cause are one. Part of it is the kind, so no two kinds
    /// share a cause.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            Self::Workers { needs, missing, .. } => format!("workers {needs} {missing:?}"),
            Self::Gathering { .. } => "gathering".to_owned(),
            Self::NobodyLeft { .. } => "nobody".to_owned(),
            Self::Regrouping { generation, missing } => format!("group {generation} {missing:?}"),
            Self::Held { worker, clock, reason, .. } => format!("held {worker} {clock} {reason}"),
            Self::Silent { server, is_gone, .. } => format!("silent {server} {is_gone}"),
            Self::Coordinator { server, .. } => format!("coordinator {server}"),
            Self::Lack { primary, lack, .. } => format!("lack {primary} {lack:?}"),
            Self::Trouble { server, text } => format!("trouble {server} {text}"),
            Self::SlowLink { peer, .. } => format!("link {peer}"),
            Self::Staged { worker, step, .. } => format!("staged {worker} {step}"),
            Self::Checkpoint { number, lacks, .. } => {
                let lacks = match lacks {
                    // The clock of a worker rises while it is waited for.
                    Unsaved::Cut { worker, .. } => format!("cut {worker}"),
                    Unsaved::Parts { server, .. } => format!("parts {server}"),
                    Unsaved::Beginning | Unsaved::Results | Unsaved::Manifest => format!("{lacks:?}"),
                };
                format!("checkpoint {number} {lacks}")
            }
            Self::Unconfirmed { backup, .. } => format!("unconfirmed {backup:?}"),
        }
    }

    /// The shards, of a wait that has some.
    fn shards(&mut self) -> Option<&mut Vec<ShardId>> {
        match self {
            Self::Held { shards, .. }
            | Self::Lack { shards, .. }
            | Self::Staged { shards, .. }
            | Self::Checkpoint { lacks: Unsaved::Parts { shards, .. }, .. }
            | Self::Unconfirmed { shards, .. } => Some(shards),
            _ => None,
        }
    }
}

/// One wait a cause, the longest first, at most [`WAIT_ROWS_MAX`].
#[must_use]
pub fn merged(waits: impl IntoIterator<Item = Waiting>) -> Vec<Waiting> {
    let mut causes: BTreeMap<String, Waiting> = BTreeMap::new();
    for mut waiting in waits {
        let cause = waiting.wait.cause();
        match causes.get_mut(&cause) {
            None => {
                causes.insert(cause, waiting);
            }
            Some(known) => {
                known.since = known.since.max(waiting.since);
                if let (Some(known), Some(more)) = (known.wait.shards(), waiting.wait.shards()) {
                    known.append(more);
                    known.sort_unstable();
                    known.dedup();
                }
            }
        }
    }
    let mut waits: Vec<Waiting> = causes.into_values().collect();
    // A stable sort: waits that began together keep the order of their causes.
    waits.sort_by_key(|waiting| std::cmp::Reverse(waiting.since));
    waits.truncate(WAIT_ROWS_MAX);
    waits
}

/// The rows of a status.
#[must_use]
pub fn rows(waits: &[Waiting]) -> Vec<WaitRow> {
    waits.iter().map(|waiting| WaitRow::new(waiting.since, waiting.wait.to_string())).collect()
}

/// The waits of pulls that have been held for at least so long; `heard` tells how long ago a worker was heard.
pub fn of_held<'a>(
    held: &'a [HeldRow],
    least: Duration,
    heard: impl Fn(WorkerId) -> Option<Duration> + 'a,
) -> impl Iterator<Item = Waiting> + 'a {
    held.iter().filter_map(move |row| {
        let since = Duration::from_millis(row.since_ms);
        let awaited = match row.reason {
            HoldReason::Clock { slowest, .. } => heard(slowest),
            _ => None,
        };
        let HeldRow { worker, shard, clock, reason, .. } = *row;
        let wait = Wait::Held { worker, clock, reason, shards: vec![shard], heard: awaited };
        (since >= least).then_some(Waiting { wait, since })
    })
}

/// The waits that the rows of servers and places tell: a server is called silent after `quiet` without a word. `workers` are those that
/// need every shard, with their clocks.
pub fn of_cluster<'a>(
    servers: &'a [ServerRow],
    places: &'a [PlaceRow],
    workers: &'a [(WorkerId, Clock)],
    quiet: Duration,
) -> impl Iterator<Item = Waiting> + 'a {
    let of_server = move |row: &ServerRow| {
        let silent = Duration::from_millis(row.heard_ms.unwrap_or(0));
        let server = row.server;
        let needed_by = if row.primaries > 0 { workers.to_vec() } else { Vec::new() };
        let (address, is_gone) = (row.address.shown(), !row.is_alive);
        let wait = Wait::Silent { server, address, is_gone, silent, needed_by };
        let silence = (row.heard_ms.is_some() && (silent >= quiet || !row.is_alive))
            .then_some(Waiting { wait, since: silent });
        let text = row.trouble.shown();
        let trouble = (!text.is_empty())
            .then_some(Waiting { wait: Wait::Trouble { server, text }, since: Duration::ZERO });
        silence.into_iter().chain(trouble)
    };
    let of_place = |row: &PlaceRow| Waiting {
        wait: Wait::Lack { shards: vec![row.shard], primary: row.primary, lack: row.lack },
        since: Duration::from_millis(row.since_ms),
    };
    servers.iter().flat_map(of_server).chain(places.iter().map(of_place))
}

/// The peers whose round trip is far beyond that of the others; fewer than three tell nothing.
#[must_use]
pub fn of_links(round_trips: &[(String, Duration)]) -> Vec<Waiting> {
    let mut sorted: Vec<Duration> = round_trips.iter().map(|(_, round_trip)| *round_trip).collect();
    sorted.sort_unstable();
    let Some(median) = sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() >= 3) else {
        return Vec::new();
    };
    let limit = (median * SLOW_TIMES).max(SLOW_LEAST);
    let slow = round_trips.iter().filter(|(_, round_trip)| *round_trip > limit);
    slow.map(|(peer, round_trip)| Waiting {
        wait: Wait::SlowLink { peer: peer.clone(), round_trip: *round_trip, median },
        since: Duration::ZERO,
    })
    .collect()
}

/// What was said of the waits before, so that the log says each once, and that it goes on in one line.
#[derive(Debug, Default)]
pub struct Journal {
    said: BTreeSet<String>,
    /// When the causes that bring no time of their own were first seen.
    first: BTreeMap<String, Moment>,
}

impl Journal {
    /// The lines to log now: each wait that is new, then one for all that go on. Called every `cluster.wait_report_s`.
    pub fn news(&mut self, waits: &[Waiting]) -> Vec<String> {
        let causes: BTreeSet<String> = waits.iter().map(|waiting| waiting.wait.cause()).collect();
        let is_new = |waiting: &&Waiting| !self.said.contains(&waiting.wait.cause());
        let mut lines: Vec<String> =
            waits.iter().filter(is_new).map(|Waiting { wait, since }| line(wait, *since)).collect();
        let old: Vec<&Waiting> = waits.iter().filter(|waiting| !is_new(waiting)).collect();
        match old.as_slice() {
            [] => {}
            [one] => lines.push(format!("still {}", line(&one.wait, one.since))),
            [longest, rest @ ..] => {
                lines.push(format!("still {}, and {} more", line(&longest.wait, longest.since), rest.len()));
            }
        }
        let over = self.said.difference(&causes).count();
        if over > 0 && causes.is_empty() {
            lines.push("nothing is waited for any more".to_owned());
        }
        self.said = causes;
        lines
    }

    /// Gives the waits that brought no time the one since they were first seen here.
    pub fn date(&mut self, now: Moment, waits: &mut [Waiting]) {
        let mut seen = BTreeMap::new();
        for waiting in waits.iter_mut().filter(|waiting| waiting.since.is_zero()) {
            let cause = waiting.wait.cause();
            let first = self.first.get(&cause).copied().unwrap_or(now);
            waiting.since = now.since(first);
            seen.insert(cause, first);
        }
        self.first = seen;
    }
}

fn line(wait: &Wait, since: Duration) -> String {
    format!("{wait} ({})", words::seconds(since))
}

#[cfg(test)]
mod tests;
