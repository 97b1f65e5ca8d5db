//! A look at the shards: for a status, and for the log when pulls wait for long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::ids::{SessionId, ShardId};
use slackline_core::limits::STATUS_ROWS_MAX;
use slackline_core::wire::{HeldRow, ShardRow, Status, ToPeer};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::directory::Outgoing;
use crate::owner::{Owner, Task};
use crate::session::Shared;

/// How long the shards may take to answer, all together. One that is busy for longer is left out.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a shard answers.
pub(crate) type Rows = (ShardRow, Vec<HeldRow>);

/// Asks all shards at once; the answers in their order.
async fn look(owners: &BTreeMap<ShardId, Owner>) -> Vec<Rows> {
    let mut asking = JoinSet::new();
    for owner in owners.values().take(STATUS_ROWS_MAX) {
        let inbox = owner.inbox.clone();
        // The wait for a place in a full inbox is part of it.
        asking.spawn(timeout(PATIENCE, async move {
            let (answer, rows) = oneshot::channel();
            inbox.send(Task::Look(answer)).await.ok()?;
            rows.await.ok()
        }));
    }
    let mut rows = Vec::new();
    while let Some(ended) = asking.join_next().await {
        if let Ok(Ok(Some(answer))) = ended {
            rows.push(answer);
        }
    }
    rows.sort_by_key(|(row, _)| row.shard);
    rows
}

/// Fills in the shards' rows and sends the status to all who have asked on that session by then.
pub(crate) async fn send_status(session: SessionId, mut status: Status, shared: Arc<Shared>) {
    for (row, held) in look(&shared.owners).await {
        status.shards.push(row);
        status.held.extend(held);
    }
    // The rows of all shards together must fit one message.
    status.held.truncate(STATUS_ROWS_MAX);
    for _ in 0..shared.directory.end_status(session) {
        shared.directory.send(session, Outgoing::Message(ToPeer::Status(Box::new(status.clone()))));
    }
}

/// Says every `every` which pulls have been held for longer than that: one line a shard, and again only when it has changed.
pub(crate) async fn report_holds(shared: Arc<Shared>, every: Duration) {
    let mut said = BTreeMap::new();
    loop {
        tokio::time::sleep(every).await;
        for (row, held) in look(&shared.owners).await {
            if let Some(line) = news(&mut said, row.shard, &held, every) {
                tracing::info!(shard = row.shard.0, "{line}");
            }
        }
    }
}

/// What is to be said about a shard's held pulls; `said` keeps what was said of each, without the time.
fn news(
    said: &mut BTreeMap<ShardId, String>,
    shard: ShardId,
    held: &[HeldRow],
    least: Duration,
) -> Option<String> {
    let mut long = held.iter().filter(|held| u128::from(held.since_ms) >= least.as_millis());
    let Some(first) = long.next() else {
        said.remove(&shard);
        return None;
    };
    let what = format!("{shard}: {} at {} {}", first.worker, first.clock, first.reason);
    let more = match long.count() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let line = format!("{what} ({:.1} s){more}", first.since_ms as f64 / 1000.0);
    let key = what + &more;
    (said.insert(shard, key.clone()) != Some(key)).then_some(line)
}

#[cfg(test)]
mod tests {
    use slackline_core::consistency::HoldReason;
    use slackline_core::ids::{Clock, WorkerId};

    use super::*;

    fn held(worker: u32, since_ms: u64) -> HeldRow {
        let reason = HoldReason::Clock { slowest: WorkerId(2), at: Clock(3), needs: Clock(5) };
        HeldRow { worker: WorkerId(worker), shard: ShardId(0), clock: Clock(7), since_ms, reason }
    }

    #[test]
    fn a_long_hold_is_said_with_its_names_once_until_it_changes() {
        let mut said = BTreeMap::new();
        let mut say = |rows: &[HeldRow]| news(&mut said, ShardId(0), rows, Duration::from_secs(5));
        assert_eq!(say(&[held(1, 4999)]), None);
        let line = say(&[held(1, 6200)]).unwrap();
        assert_eq!(
            line,
            "shard 0: worker 1 at clock 7 waits for worker 2 at clock 3 to reach clock 5 (6.2 s)"
        );
        assert_eq!(say(&[held(1, 11_200)]), None);
        let line = say(&[held(1, 16_200), held(3, 5000), held(4, 100)]).unwrap();
        assert!(line.ends_with("to reach clock 5 (16.2 s), and 1 more"), "{line}");
        assert_eq!(say(&[]), None);
        assert!(say(&[held(1, 6200)]).is_some(), "it waits anew");
    }
}
