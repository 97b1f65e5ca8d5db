//! A candidate for the coordinator: it stands by until it leads, leads until it is deposed or the run is over, and stands by again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::config::{Resolved, Store as Setting, timers};
use slackline_net::{CloseCode, Handshake, Identity, Listener, NetworkThread, Role, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::caller::Caller;
use super::leadership::Campaign;
use super::protocol::{
    Compare, RANGE, RangeRequest, RangeResponse, RequestOp, TXN, TxnRequest, TxnResponse, after,
};
use super::{EtcdError, Leadership, Rows, Store};
use crate::error::ServerError;
use crate::ledger::{Kept, Ledger, LedgerError};
use crate::links::Addresses;
use crate::start::{Ended, Found, Ground, Keeps, ServerOptions, work};

/// Peers that are turned away at once; more wait.
const TURNED_AWAY_AT_ONCE: usize = 64;

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
    caller: Caller,
    rows: Rows,
    name: String,
    lasts: Duration,
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
    loop {
        let net = NetworkThread::start("coordinator")?;
        let listener = {
            let _within = net.handle().enter();
            Listener::bind(bind, &identity, &network)?
        };
        // Where the system chose the port, it stays the same from now on.
        bind = listener.local_address();
        let name = format!(
            "candidate {index} at {}",
            config.cluster.coordinators.get(index).unwrap_or(&bind.to_string())
        );
        let standing = (
            etcd.clone(),
            Rows::new(&etcd.prefix, resolved.hash()),
            name.clone(),
            timers::store_lease(lease),
        );
        if let Some(ready) = ready.take() {
            ready(bind);
        }
        let (stood, found_over) = net.block_on(async move {
            let (etcd, rows, name, lasts) = standing;
            let caller = Caller::new(&etcd, lasts / 2)?;
            let mut standing = Standing { caller, rows, name, lasts, over, said: watch::Sender::default() };
            let stood = standing.stand_by(listener, fresh).await?;
            Ok::<_, ServerError>((stood, standing.over))
        })??;
        (over, fresh) = (found_over, false);
        let (listener, (store, kept, lost)) = match stood {
            Stood::Leads(leads) => *leads,
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
        let found = Found { ledger: Some(Ledger::Etcd(Box::new(store))), kept, ..Found::default() };
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
            resume: resume.clone().filter(|_| found.kept.is_none()),
            keeps: Keeps::ForAnyone,
            ready: Box::new(|_| {}),
        };
        let ground =
            Ground { net, identity: identity.clone(), network, listener: Some(listener), lost: Some(lost) };
        match work(options, found, ground) {
            Ok(Ended::Deposed) => {}
            Err(ServerError::Ledger(error @ (LedgerError::Etcd(_) | LedgerError::Deposed))) => {
                tracing::warn!("{name}: {error}; it stands by");
            }
            ended => return ended,
        }
    }
}

impl Standing {
    /// Turns everyone away until this candidate leads, the run is over or a signal comes.
    async fn stand_by(&mut self, listener: Listener, fresh: bool) -> Result<Stood, ServerError> {
        let listener = Arc::new(listener);
        let turning = tokio::spawn(turn_away(listener.clone(), self.said.subscribe()));
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let won = tokio::select! {
            won = self.campaign(fresh) => won?,
            _ = interrupt.recv() => return Ok(Stood::Interrupted),
            _ = terminate.recv() => return Ok(Stood::Interrupted),
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
                Err(error @ LedgerError::Unreadable { .. }) => return Err(error.into()),
                Err(error) => self.say(format!("{} cannot lead: {error}", self.name)),
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
