//! A candidate for the coordinator: it stands by until it leads, leads until it is deposed or the run is over, and stands by again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::config::{Etcd, Resolved, Store as Setting, timers};
use slackline_net::{CloseCode, Handshake, Identity, Listener, NetworkThread, Role, Settings};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::caller::Caller;
use super::leadership::Campaign;
use super::protocol::{
    Compare, RANGE, RangeRequest, RangeResponse, RequestOp, TXN, TxnRequest, TxnResponse, after,
};
use super::{EtcdError, Leadership, Rows, Store};
use crate::error::ServerError;
use crate::ledger::{FAILED, Kept, Ledger, LedgerError};
use crate::links::Addresses;
use crate::signals::Signals;
use crate::start::{Ended, Found, Ground, Keeps, ServerOptions, work};

/// Peers that are turned away at once; more wait.
const TURNED_AWAY_AT_ONCE: usize = 64;

/// Members of etcd that a call can ask, one after the other, within the life of a leadership.
const PATIENCE: u32 = 2;

/// What stands between the name of a candidate and its address.
const AT: &str = " at ";

/// Looks at who leads, within the life of a leadership.
const LOOKS: u32 = 8;

/// What a candidate is started with.
pub struct CandidateOptions {
    /// Which of `cluster.coordinators` it is.
    pub index: usize,
    /// The configuration of the run.
    pub resolved: Resolved,
    /// The address to bind.
    pub bind: SocketAddr,
    /// Folder of the keys.
    pub keys: PathBuf,
    /// Folder of the results, written by whoever leads.
    pub out: PathBuf,
    /// Whether what etcd has of the run is removed; not while another candidate leads it.
    pub fresh: bool,
    /// The folder or URL of checkpoints that a run without memory in etcd goes on from; empty for those that it makes itself.
    pub resume: Option<String>,
    /// Told the address that was bound, once peers can connect.
    pub ready: Box<dyn FnOnce(SocketAddr) + Send>,
}

/// How standing by ended.
enum Stood {
    Leads(Box<(Listener, Lead)>),
    Over(String),
    Interrupted,
}

/// What a leader begins with: what it writes to, what was kept, and what turns true when it leads no more.
type Lead = (Store, Option<Kept>, watch::Receiver<bool>);

/// What a campaign ends with: this candidate leads, or the run is over, with why.
type Outcome = Result<Lead, String>;

/// Who stands by, and for what.
struct Standing {
    etcd: Etcd,
    caller: Caller,
    rows: Rows,
    name: String,
    lasts: Duration,
    /// Where candidates of this cluster are: whoever leads is one of them.
    coordinators: Vec<String>,
    /// The revision of the row `over` that was there before this process: it is of an earlier run.
    over: Option<i64>,
    /// What was said last, so that each thing is said once; whoever is turned away hears it too.
    said: watch::Sender<String>,
}

/// Runs a candidate until the run is over or a signal ends it; blocks the calling thread.
///
/// # Errors
/// [`ServerError`]; nothing is left running.
pub fn coordinate(options: CandidateOptions) -> Result<Ended, ServerError> {
    let CandidateOptions { index, resolved, mut bind, keys, out, fresh: wants_fresh, resume, ready } =
        options;
    let signals = Signals::listen()?;
    let config = &resolved.config;
    let Setting::Etcd(etcd) = &config.cluster.store else {
        let text =
            "cluster.store is \"local\": server 0 is the coordinator; start `slackline server --index 0`";
        return Err(ServerError::Etcd(text.to_owned()));
    };
    let identity = Identity::load(&keys, Role::Server)?;
    let lease = Duration::from_secs_f64(config.cluster.lease_s);
    let network = Settings::new(&config.transport, lease);
    let (mut ready, mut over, mut fresh) = (Some(ready), None, wants_fresh);
    while !signals.has_come() {
        let net = NetworkThread::start("coordinator")?;
        let listener = {
            let _within = net.handle().enter();
            Listener::bind(bind, &identity, &network)?
        };
        // Where the system chose the port, it stays the same from now on.
        bind = listener.local_address();
        let name = format!(
            "candidate {index}{AT}{}",
            config.cluster.coordinators.get(index).unwrap_or(&bind.to_string())
        );
        let standing = (
            etcd.clone(),
            Rows::new(&etcd.prefix, resolved.hash()),
            name.clone(),
            timers::store_lease(lease),
            config.cluster.coordinators.clone(),
            signals.clone(),
        );
        if let Some(ready) = ready.take() {
            ready(bind);
        }
        let (stood, found_over) = net.block_on(async move {
            let (etcd, rows, name, lasts, coordinators, signals) = standing;
            let caller = Caller::new(&etcd, lasts / PATIENCE)?;
            let said = watch::Sender::default();
            let mut standing = Standing { etcd, caller, rows, name, lasts, coordinators, over, said };
            let stood = standing.stand_by(listener, fresh, signals).await?;
            Ok::<_, ServerError>((stood, standing.over))
        })??;
        (over, fresh) = (found_over, false);
        let (listener, (store, kept, lost)) = match stood {
            Stood::Leads(leads) => *leads,
            // It ends as the one who led.
            Stood::Over(text) if text.starts_with(FAILED) => return Err(ServerError::Run(text)),
            Stood::Over(text) => {
                tracing::info!("{name} ends: {text}");
                return Ok(Ended::Well);
            }
            Stood::Interrupted => return Ok(Ended::Interrupted),
        };
        tracing::info!(
            "{name} leads{}",
            if kept.is_some() { ", and goes on where another one was" } else { "" }
        );
        let goes_on = kept.as_ref().is_some_and(Kept::is_begun);
        let found = Found { goes_on, ledger: Some(Ledger::Etcd(Box::new(store))), kept, ..Found::default() };
        let addresses = Addresses::known(config.cluster.addresses.clone());
        let options = ServerOptions {
            index: config.coordinator(),
            resolved: resolved.clone(),
            bind,
            addresses,
            keys: keys.clone(),
            out: out.clone(),
            trace: false,
            fresh: wants_fresh && found.kept.is_none(),
            resume: resume.clone(),
            keeps: Keeps::ForAnyone,
            ready: Box::new(|_| {}),
        };
        let (listener, signals) = (Some(listener), signals.clone());
        let ground = Ground { net, identity: identity.clone(), network, listener, lost: Some(lost), signals };
        match work(options, found, ground) {
            Ok(Ended::Deposed) => {}
            Err(ServerError::Ledger(error @ (LedgerError::Etcd(_) | LedgerError::Deposed))) => {
                tracing::warn!("{name}: {error}; it stands by");
            }
            ended => return ended,
        }
    }
    Ok(Ended::Interrupted)
}

impl Standing {
    /// Turns everyone away until this candidate leads, the run is over or a signal comes.
    async fn stand_by(
        &mut self,
        listener: Listener,
        fresh: bool,
        mut signals: Signals,
    ) -> Result<Stood, ServerError> {
        let listener = Arc::new(listener);
        let turning = tokio::spawn(turn_away(listener.clone(), self.said.subscribe()));
        let won = tokio::select! {
            biased;
            _ = signals.recv() => return Ok(Stood::Interrupted),
            won = self.campaign(fresh) => won?,
        };
        turning.abort();
        // Its handle goes with the task: then this is the only one.
        let _ = turning.await;
        Ok(match won {
            Ok(lead) => match Arc::try_unwrap(listener) {
                Ok(listener) => Stood::Leads(Box::new((listener, lead))),
                Err(_) => {
                    return Err(ServerError::Etcd(
                        "the listener is in use: a fault of this program".to_owned(),
                    ));
                }
            },
            Err(over) => Stood::Over(over),
        })
    }

    /// Campaigns until it is won and what was kept is read, or the run is over, which is what the inner error says.
    async fn campaign(&mut self, fresh: bool) -> Result<Outcome, ServerError> {
        let mut fresh = fresh;
        loop {
            match self.attempt(&mut fresh).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                Err(error @ (LedgerError::Unreadable { .. } | LedgerError::OtherCluster { .. })) => {
                    return Err(error.into());
                }
                Err(error) => {
                    self.say(format!("{} cannot lead: {error}", self.name));
                    // The keys may have been changed since they were read; where they are being changed, the next time reads them.
                    if let Ok(caller) = Caller::new(&self.etcd, self.lasts / PATIENCE) {
                        self.caller = caller;
                    }
                }
            }
            sleep(self.lasts / LOOKS).await;
        }
    }

    /// One look at etcd.
    async fn attempt(&mut self, fresh: &mut bool) -> Result<Option<Outcome>, LedgerError> {
        let failed = |error: EtcdError| LedgerError::Etcd(error.to_string());
        let range = RangeRequest::key(&self.rows.over());
        let found: RangeResponse = self.caller.call(RANGE, &range).await.map_err(failed)?;
        let over = found.kvs.into_iter().next();
        let revision = over.as_ref().map_or(0, |row| row.mod_revision);
        // What is there at the first look is of a run before this process.
        let before = *self.over.get_or_insert(revision);
        if let Some(row) = over.filter(|_| before != revision) {
            return Ok(Some(Err(String::from_utf8_lossy(&row.value).into_owned())));
        }
        if *fresh {
            self.forget().await.map_err(failed)?;
            *fresh = false;
        }
        let campaign = Leadership::campaign(self.caller.clone(), &self.rows, &self.name, self.lasts);
        match campaign.await.map_err(failed)? {
            Campaign::Led(by) => {
                if let Some(at) = stranger(&by, &self.coordinators) {
                    return Err(LedgerError::OtherCluster { rows: self.rows.all().to_owned(), at });
                }
                self.say(format!("{} stands by: {by} leads", self.name));
                Ok(None)
            }
            Campaign::Won(leadership) => {
                let lost = leadership.lost();
                let opened = Store::open(self.caller.clone(), self.rows.clone(), leadership).await?;
                Ok(Some(Ok((opened.0, opened.1, lost))))
            }
        }
    }

    /// Removes what is kept of the run, unless somebody leads it.
    async fn forget(&mut self) -> Result<(), EtcdError> {
        let all = self.rows.all();
        let transaction = TxnRequest {
            compare: vec![Compare::created(&self.rows.leader(), 0)],
            success: vec![RequestOp::delete(all, after(all))],
            failure: Vec::new(),
        };
        let done: TxnResponse = self.caller.call(TXN, &transaction).await?;
        if !done.succeeded {
            tracing::warn!("--fresh: {} is led by another candidate: nothing is removed", self.name);
        }
        Ok(())
    }

    fn say(&mut self, text: String) {
        if *self.said.borrow() != text {
            tracing::info!("{text}");
            self.said.send_replace(text);
        }
    }
}

/// Where a leader is that is no candidate of this cluster; its row says what it calls itself.
fn stranger(by: &str, coordinators: &[String]) -> Option<String> {
    let (_, at) = by.split_once(AT)?;
    (!coordinators.iter().any(|own| own == at)).then(|| at.to_owned())
}

/// Tells whoever connects that this candidate does not lead, so that the next one is tried at once.
async fn turn_away(listener: Arc<Listener>, said: watch::Receiver<String>) {
    let places = Arc::new(Semaphore::new(TURNED_AWAY_AT_ONCE));
    while let Some(handshake) = listener.accept().await {
        let Ok(place) = places.clone().try_acquire_owned() else {
            handshake.refuse();
            continue;
        };
        let why = said.borrow().clone();
        tokio::spawn(async move {
            turn_one_away(handshake, &why).await;
            drop(place);
        });
    }
}

async fn turn_one_away(handshake: Handshake, why: &str) {
    // Whoever has no certificate of this cluster learns nothing.
    if let Ok(connection) = handshake.complete().await {
        let why = if why.is_empty() { "this candidate for the coordinator stands by" } else { why };
        connection.close(CloseCode::StandsBy, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_is_no_candidate_here_is_of_another_cluster() {
        let own = ["a:1".to_owned(), "b:1".to_owned()];
        assert_eq!(stranger("candidate 1 at b:1", &own), None);
        assert_eq!(stranger("candidate 1 at c:1", &own), Some("c:1".to_owned()));
        assert_eq!(stranger("", &own), None, "its row was gone by then");
    }
}
