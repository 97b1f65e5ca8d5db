//! A look at the shards: for a status, and for what the log says of waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::ids::{Moment, Sequence, ServerId, SessionId, ShardId, WorkerId};
use slackline_core::limits::{STATUS_ROWS_MAX, WAIT_ROWS_MAX};
use slackline_core::wire::{HeldRow, MemberRow, ShardRow, Status};
use slackline_server_core::waits::{Journal, Wait, Waiting, merged, of_held, of_links, rows};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::owner::{Note, Owner};
use crate::session::Shared;

/// How long the shards may take to answer, all together. One that is busy for longer is left out.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a shard answers.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The shard.
    pub(crate) row: ShardRow,
    /// The pulls that it holds.
    pub(crate) held: Vec<HeldRow>,
    /// How long its answers have waited for the copies that count, and for which backup; none for the disk.
    pub(crate) unconfirmed: Option<(Duration, Option<ServerId>)>,
    /// Workers whose steps wait here for the word that the other shards have them, each with its first.
    pub(crate) staged: Vec<(WorkerId, Sequence)>,
}

/// What control knows of waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// What it waits for itself.
    pub(crate) waits: Vec<Waiting>,
    /// How long ago each member was heard.
    pub(crate) heard: BTreeMap<WorkerId, Duration>,
}

/// Asks all shards at once; the answers in their order.
async fn look(owners: Vec<(ShardId, Owner)>) -> Vec<Rows> {
    let mut asking = JoinSet::new();
    for (_, Owner { notes, .. }) in owners.into_iter().take(STATUS_ROWS_MAX) {
        // The wait for a place in a full inbox is part of it.
        asking.spawn(timeout(PATIENCE, async move {
            let (answer, rows) = oneshot::channel();
            notes.send(Note::Look(answer)).await.ok()?;
            rows.await.ok().flatten()
        }));
    }
    let mut rows = Vec::new();
    while let Some(ended) = asking.join_next().await {
        if let Ok(Ok(Some(answer))) = ended {
            rows.push(answer);
        }
    }
    rows.sort_by_key(|rows: &Rows| rows.row.shard);
    rows
}

/// What the shards and the links wait for: pulls held for at least `least`, copies, steps, slow peers.
fn waits_of(
    all: &[Rows],
    links: &[(String, Duration)],
    least: Duration,
    heard: impl Fn(WorkerId) -> Option<Duration>,
) -> Vec<Waiting> {
    let mut waits = of_links(links);
    for Rows { row, held, unconfirmed, staged } in all {
        waits.extend(of_held(held, least, &heard));
        if let Some((since, backup)) = *unconfirmed
            && since >= least
        {
            waits.push(Waiting { wait: Wait::Unconfirmed { shards: vec![row.shard], backup }, since });
        }
        waits.extend(staged.iter().copied().map(|(worker, step)| {
            let wait = Wait::Staged { worker, step, shards: vec![row.shard], heard: heard(worker) };
            Waiting { wait, since: Duration::ZERO }
        }));
    }
    waits
}

/// Fills in the shards' rows and sends the status to all who have asked on that session by then.
pub(crate) async fn send_status(session: SessionId, mut status: Status, shared: Arc<Shared>) {
    let all = look(shared.owners()).await;
    let heard = |worker| {
        let row = status.members.iter().find(|row: &&MemberRow| row.worker == worker)?;
        Some(Duration::from_millis(row.heard_ms))
    };
    let waits = rows(&merged(waits_of(&all, &shared.directory.round_trips(), Duration::ZERO, heard)));
    status.waits.extend(waits);
    status.waits.sort_by_key(|wait| std::cmp::Reverse(wait.since_ms));
    status.waits.truncate(WAIT_ROWS_MAX);
    for Rows { row, held, .. } in all {
        status.shards.push(row);
        status.held.extend(held);
    }
    // The rows of all shards together must fit one message.
    status.held.truncate(STATUS_ROWS_MAX);
    shared.directory.end_status(session, status);
}

/// Says every `every` what is waited for: each wait once with all its names, and what goes on in one line.
pub(crate) async fn report_waits(shared: Arc<Shared>, every: Duration, told: watch::Receiver<Told>) {
    let (began, mut journal) = (Instant::now(), Journal::default());
    loop {
        tokio::time::sleep(every).await;
        let all = look(shared.owners()).await;
        let Told { waits, heard } = told.borrow().clone();
        let heard = |worker| heard.get(&worker).copied();
        let seen = waits_of(&all, &shared.directory.round_trips(), every, heard);
        for line in news(&mut journal, Moment(0).after(began.elapsed()), every, waits.into_iter().chain(seen))
        {
            tracing::warn!("{line}");
        }
    }
}

/// The lines of one report. A step that waits is said only when it still does at the next one: most wait for a moment.
fn news(
    journal: &mut Journal,
    now: Moment,
    least: Duration,
    waits: impl Iterator<Item = Waiting>,
) -> Vec<String> {
    let mut waits = merged(waits);
    journal.date(now, &mut waits);
    waits.retain(|waiting| !matches!(waiting.wait, Wait::Staged { .. }) || waiting.since >= least);
    journal.news(&waits)
}

#[cfg(test)]
mod tests {
    use slackline_core::ids::{KeyRange, Version};

    use super::*;

    fn shard(number: u32, staged: &[(u32, u64)], unconfirmed_s: u64) -> Rows {
        Rows {
            row: ShardRow {
                shard: ShardId(number),
                keys: KeyRange::new(0, 1),
                version: Version(0),
                minimum: None,
                has_values: true,
            },
            held: Vec::new(),
            unconfirmed: (unconfirmed_s > 0)
                .then_some((Duration::from_secs(unconfirmed_s), Some(ServerId(2)))),
            staged: staged.iter().map(|(worker, step)| (WorkerId(*worker), Sequence(*step))).collect(),
        }
    }

    #[test]
    fn a_step_that_waits_for_a_moment_is_not_said_and_one_that_stays_is() {
        let every = Duration::from_secs(5);
        let mut journal = Journal::default();
        let mut say = |seconds, staged: &[(u32, u64)]| {
            let seen = waits_of(&[shard(1, staged, 0), shard(2, staged, 0)], &[], every, |_| None);
            news(&mut journal, Moment(0).after(Duration::from_secs(seconds)), every, seen.into_iter())
        };
        assert_eq!(say(0, &[(3, 1)]), [] as [&str; 0]);
        let line = "shard 1, shard 2 have a step of worker 3 and no word that the others have it";
        assert_eq!(say(5, &[(3, 2)]), [] as [&str; 0], "another step than at the last look");
        assert_eq!(say(10, &[(3, 2)]), [format!("{line} (5.0 s)")]);
        assert_eq!(say(15, &[(3, 2)]), [format!("still {line} (10.0 s)")]);
        assert_eq!(say(20, &[]), ["nothing is waited for any more"]);
    }

    #[test]
    fn a_backup_that_does_not_confirm_is_named_once_for_all_its_shards() {
        let waits = merged(waits_of(
            &[shard(1, &[], 6), shard(2, &[], 7), shard(3, &[], 1)],
            &[],
            Duration::from_secs(5),
            |_| None,
        ));
        assert_eq!(waits.len(), 1);
        assert_eq!(waits[0].wait.to_string(), "shard 1, shard 2 wait for server 2 to confirm its copy");
        assert_eq!(waits[0].since, Duration::from_secs(7));
    }
}
