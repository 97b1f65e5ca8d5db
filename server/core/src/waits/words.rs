//! The words for each wait.

use std::fmt;
use std::time::Duration;

use slackline_core::limits::PLACES_MAX;
use slackline_core::wire::Lack;

use super::{Unsaved, Wait};

/// Ids that one line names.
const NAMED_MAX: usize = 4;

/// `a, b, c and 5 more`.
fn names<T: fmt::Display>(ids: &[T]) -> String {
    let named: Vec<String> = ids.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match ids.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

pub(super) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn last_heard(f: &mut fmt::Formatter<'_>, heard: Option<Duration>) -> fmt::Result {
    heard.map_or(Ok(()), |heard| write!(f, ", last heard {} ago", seconds(heard)))
}

fn located(f: &mut fmt::Formatter<'_>, address: &str) -> fmt::Result {
    if address.is_empty() { Ok(()) } else { write!(f, "; it is at {address}") }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers { here, needs, is_least, missing } => {
                let count = here.len();
                let of = if *is_least { " (min_workers)" } else { " here" };
                write!(f, "waiting for workers: {count} of {needs}{of}")?;
                if !missing.is_empty() {
                    write!(f, ", {} missing", names(missing))?;
                }
                if count > 0 { write!(f, " (here: {})", names(here)) } else { Ok(()) }
            }
            Self::Gathering { here, wanted, left } => write!(
                f,
                "waiting for workers: {here} of {wanted} here, enough to begin in {} if nobody else comes",
                seconds(*left)
            ),
            Self::NobodyLeft { batches: 0 } => {
                f.write_str("no worker is left to make the final evaluation: waiting for a worker to join")
            }
            Self::NobodyLeft { batches } => {
                write!(f, "no worker is left and {batches} batches are to do: waiting for a worker to join")
            }
            Self::Regrouping { generation, missing } => {
                write!(f, "{generation} is dissolved and waits for {}", names(missing))
            }
            Self::Held { worker, clock, reason, shards, heard } => {
                write!(f, "{worker} at {clock} {reason}")?;
                last_heard(f, *heard)?;
                write!(f, " ({})", names(shards))
            }
            Self::Silent { server, address, is_gone, silent, needed_by } => {
                write!(f, "{server} is silent for {} (its process may be stopped)", seconds(*silent))?;
                if *is_gone {
                    f.write_str(", its lease is over")?;
                }
                if !needed_by.is_empty() {
                    let needs = if needed_by.len() > 1 { "need" } else { "needs" };
                    let workers = needed_by.iter().map(|(worker, clock)| format!("{worker} at {clock}"));
                    write!(f, "; {} {needs} its shards", names(&workers.collect::<Vec<_>>()))?;
                }
                located(f, address)
            }
            Self::Coordinator { server, address, silent } => {
                write!(
                    f,
                    "{server}, the coordinator, is silent for {} (its process may be stopped)",
                    seconds(*silent)
                )?;
                located(f, address)
            }
            Self::Lack { shards, primary, lack } => {
                let (shards, many) = (names(shards), shards.len() > 1);
                let (has, waits) = if many { ("have", "wait") } else { ("has", "waits") };
                match lack {
                    Lack::Primary => {
                        write!(f, "{shards} {has} no server and {waits} for {primary} to come back")
                    }
                    Lack::State => write!(f, "{shards} {waits} for {primary} to load the state"),
                    Lack::Backup => write!(f, "{shards} {has} no backup: no other server is there for one"),
                    Lack::Step { backup } => write!(f, "{shards}: {backup} is being given a copy"),
                    Lack::Copy { former } => write!(
                        f,
                        "{shards} {waits} for {primary} to come back, which has the only copy: {former} was restarted without it"
                    ),
                    Lack::Room => write!(
                        f,
                        "{shards} {has} no backup: every other server that is there has all the {PLACES_MAX} shards and copies that \
                         one can have"
                    ),
                }
            }
            Self::Trouble { server, text } => write!(f, "{server}: {text}"),
            Self::SlowLink { peer, round_trip, median } => write!(
                f,
                "the link to {peer} is slow: {:.1} ms there and back, {:.1} ms for half of the peers",
                round_trip.as_secs_f64() * 1e3,
                median.as_secs_f64() * 1e3
            ),
            Self::Staged { worker, shards, heard, .. } => {
                let has = if shards.len() > 1 { "have" } else { "has" };
                write!(f, "{} {has} a step of {worker} and no word that the others have it", names(shards))?;
                last_heard(f, *heard)
            }
            Self::Checkpoint { number, is_last, lacks } => {
                let last = if *is_last { ", the last of the run," } else { "" };
                write!(f, "checkpoint {number}{last} {lacks}")
            }
            Self::Unconfirmed { shards, backup } => {
                let waits = if shards.len() > 1 { "wait" } else { "waits" };
                match backup {
                    Some(backup) => write!(f, "{} {waits} for {backup} to confirm its copy", names(shards)),
                    None => write!(f, "{} {waits} for the disk", names(shards)),
                }
            }
        }
    }
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning => f.write_str("cannot be begun yet: not all shards can be told of it"),
            Self::Cut { worker, at, needs } => {
                write!(f, "waits for {worker} at {at} to reach {needs}, where it is cut")
            }
            Self::Parts { server, shards } => {
                let parts = if shards.len() > 1 { "parts" } else { "part" };
                write!(f, "waits for {server} to write its {parts} to the store ({})", names(shards))
            }
            Self::Results => f.write_str("waits for what workers have to tell of the batches before its cut"),
            Self::Manifest => f.write_str("waits for its manifest to be written to the store"),
        }
    }
}
