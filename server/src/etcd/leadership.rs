//! Who leads: the candidate whose row is there. It is there as long as its lease is renewed.

use std::time::Duration;

use slackline_core::config::timers::{STORE_ATTEMPTS, STORE_RENEWALS};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::caller::Caller;
use super::protocol::{
    Compare, KeyValue, LEASE_GRANT, LEASE_REVOKE, Lease, LeaseGrantRequest, LeaseId, Nothing, RANGE,
    RangeRequest, RangeResponse, RequestOp, TXN, TxnRequest, TxnResponse,
};
use super::{EtcdError, Rows};

/// How long a renewal that failed is waited for before the next attempt.
const AGAIN: Duration = Duration::from_millis(100);

/// What came of a campaign.
#[derive(Debug)]
pub(crate) enum Campaign {
    /// This candidate leads.
    Won(Leadership),
    /// Another one does; what it calls itself.
    Led(String),
    /// Nobody does, and how the run ended is not what this candidate has seen of it any more: it must look again.
    Changed,
}

/// This candidate leads, until it says otherwise or is deposed.
#[derive(Debug)]
pub(crate) struct Leadership {
    caller: Caller,
    lease: i64,
    /// The revision in which its row was made: no other row `leader` ever has the same.
    revision: i64,
    lost: watch::Receiver<bool>,
    renewing: JoinHandle<()>,
}

impl Leadership {
    /// Makes the row, if there is none. `name` is what others are told of who leads; `over` is the revision of the row of that name that this
    /// candidate has seen, 0 for none: whoever led may have ended the run since, and another one must not begin.
    ///
    /// # Errors
    /// [`EtcdError`]; then no row is there, or one that goes with its lease.
    pub(crate) async fn campaign(
        mut caller: Caller,
        rows: &Rows,
        (name, lasts): (&str, Duration),
        over: i64,
    ) -> Result<Campaign, EtcdError> {
        let leader = rows.leader();
        // A look costs etcd no write; most of the time it is all that is needed.
        let found: RangeResponse = caller.call(RANGE, &RangeRequest::key(&leader)).await?;
        if let Some(row) = found.kvs.first() {
            return Ok(Campaign::Led(String::from_utf8_lossy(&row.value).into_owned()));
        }
        let since = Instant::now();
        let ttl = i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX);
        let lease: Lease = caller.call(LEASE_GRANT, &LeaseGrantRequest { ttl }).await?;
        let made = TxnRequest {
            compare: vec![Compare::created(&leader, 0), Compare::modified(&rows.over(), over)],
            success: vec![RequestOp::put(&leader, name, lease.id), RequestOp::get(&leader)],
            failure: vec![RequestOp::get(&leader)],
        };
        let outcome: Result<TxnResponse, EtcdError> = caller.call(TXN, &made).await;
        let row = outcome.map(|outcome| {
            let row = outcome.responses.into_iter().filter_map(|response| response.range).next();
            (outcome.succeeded, row.and_then(|range| range.kvs.into_iter().next()))
        });
        match row {
            Ok((true, Some(row))) => {
                Ok(Campaign::Won(Self::hold(caller, lease.id, row.create_revision, (since, lasts))))
            }
            lost => {
                // Where the answer was lost the row may be there: it goes with the lease, now or when nobody renews it.
                let _: Result<Nothing, EtcdError> =
                    caller.call(LEASE_REVOKE, &LeaseId { id: lease.id }).await;
                let name = |row: KeyValue| String::from_utf8_lossy(&row.value).into_owned();
                Ok(lost?.1.map_or(Campaign::Changed, |row| Campaign::Led(name(row))))
            }
        }
    }

    fn hold(caller: Caller, lease: i64, revision: i64, (since, lasts): (Instant, Duration)) -> Self {
        let (sender, lost) = watch::channel(false);
        let renewing = {
            // One member that hangs must not take the time in which another one would have answered.
            let caller = caller.clone().with_patience(lasts / STORE_ATTEMPTS);
            tokio::spawn(async move {
                renew(caller, lease, since, lasts).await;
                sender.send_replace(true);
            })
        };
        Self { caller, lease, revision, lost, renewing }
    }

    /// The fence: what every write compares.
    pub(super) const fn revision(&self) -> i64 {
        self.revision
    }

    /// Turns true when this candidate may not lead any more. A transaction that was refused says so earlier or later.
    pub(crate) fn lost(&self) -> watch::Receiver<bool> {
        self.lost.clone()
    }

    #[cfg(test)]
    pub(super) fn freeze(&self) {
        self.renewing.abort();
    }

    /// Says that all servers have heard how the run ended. As often as it is said it is the same.
    ///
    /// # Errors
    /// [`EtcdError`]; nothing is written where this candidate leads no more.
    pub(super) async fn say_told(&mut self, rows: &Rows) -> Result<(), EtcdError> {
        let told = TxnRequest {
            compare: vec![Compare::created(&rows.leader(), self.revision)],
            success: vec![RequestOp::put(&rows.told(), Vec::new(), 0)],
            failure: Vec::new(),
        };
        self.caller.call(TXN, &told).await.map(|_: TxnResponse| ())
    }

    /// Gives the leadership up, so that another candidate need not wait for the end of the lease.
    pub(crate) async fn resign(mut self) {
        self.renewing.abort();
        let _: Result<Nothing, EtcdError> = self.caller.call(LEASE_REVOKE, &LeaseId { id: self.lease }).await;
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        // Whoever drops it without a word leads no more once the lease is over.
        self.renewing.abort();
    }
}

/// Renews the lease until it is gone or cannot be renewed in time. Counted from before each renewal was sent: etcd counts from when it came.
async fn renew(mut caller: Caller, lease: i64, mut since: Instant, lasts: Duration) {
    loop {
        sleep(lasts / STORE_RENEWALS).await;
        let renewed = async {
            loop {
                let began = Instant::now();
                match caller.keep_alive(lease).await {
                    Ok(left) => return (left > 0).then_some(began),
                    Err(error) => tracing::debug!("the leadership is not renewed: {error}"),
                }
                sleep(AGAIN).await;
            }
        };
        match timeout_at(since + lasts, renewed).await {
            Ok(Some(began)) => since = began,
            Ok(None) | Err(_) => return,
        }
    }
}
