//! A candidate for the coordinator: it stands by until it leads, leads until it is deposed or the run is over, and stands by again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::config::{Etcd, Resolved, Store as Setting, timers};
use slackline_core::ids::ServerId;
use slackline_net::{Identity, Listener, NetworkThread, Role, Settings};
use tokio::sync::watch;
use tokio::time::sleep;

use super::caller::Caller;
use super::callers::{Answer, answer};
use super::leadership::Campaign;
use super::protocol::{Compare, KeyValue, RequestOp, TXN, TxnRequest, TxnResponse, after};
use super::{EtcdError, Leadership, Rows, Store};
use crate::error::ServerError;
use crate::ledger::{FAILED, Kept, Ledger, LedgerError};
use crate::links::Addresses;
use crate::peers;
use crate::signals::Signals;
use crate::start::{Ended, Found, Ground, Keeps, ServerOptions, work};

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

/// What a campaign ends with.
enum Won {
    /// This candidate leads.
    Leads(Box<Lead>),
    /// The run is over, with how it ended. Where whoever led has not told all servers before it died, that is left to this candidate,
    /// which leads for as long as it does.
    Over(String, Option<Leadership>),
}

/// What etcd has of how the run ended.
#[derive(Default)]
struct Ending {
    how: Option<KeyValue>,
    /// Whether all servers have heard of it.
    is_told: bool,
    /// Something is kept that a leader would go on with.
    is_kept: bool,
    /// The cluster whose run it is or was: where its candidates are, a line each.
    cluster: Option<String>,
}

impl Ending {
    /// The revision in which it was written; 0 for none.
    fn revision(&self) -> i64 {
        self.how.as_ref().map_or(0, |row| row.mod_revision)
    }

    /// Where the candidates are of another cluster whose run this is: there is something to go on with, or an end to tell of, and both are for
    /// them alone. What is left of a run whose end was told is in nobody's way.
    fn strangers(&self, coordinators: &[String]) -> Option<String> {
        let is_to_do = self.is_kept || (self.how.is_some() && !self.is_told);
        strangers(self.cluster.as_deref().filter(|_| is_to_do)?, coordinators)
    }

    /// How it ended, where that is an end of this candidate's own time: what everybody had heard of at the first look, whose revision is
    /// `before`, is of an earlier run.
    fn of_this_run(self, before: i64) -> Option<String> {
        let is_new = self.revision() != before;
        self.how.filter(|_| is_new).map(|row| String::from_utf8_lossy(&row.value).into_owned())
    }
}

/// Who stands by, and for what.
struct Standing {
    etcd: Etcd,
    caller: Caller,
    rows: Rows,
    name: String,
    lasts: Duration,
    cluster: Cluster,
    /// The revision of the row `over` that was there before this process: it is of an earlier run.
    over: Option<i64>,
    /// What was said last, so that each thing is said once; whoever calls hears it too.
    said: watch::Sender<Answer>,
}

/// Those whom a candidate speaks with.
#[derive(Clone)]
struct Cluster {
    /// Where candidates of this cluster are: whoever leads is one of them.
    coordinators: Vec<String>,
    servers: Vec<String>,
    coordinator: ServerId,
    lease: Duration,
    identity: Identity,
    network: Settings,
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
    let cluster = Cluster {
        coordinators: config.cluster.coordinators.clone(),
        servers: config.cluster.addresses.clone(),
        coordinator: config.coordinator(),
        lease,
        identity: identity.clone(),
        network,
    };
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
        let caller = {
            let _within = net.handle().enter();
            Caller::new(etcd, timers::store_lease(lease) / PATIENCE)?
        };
        let mut standing = Standing {
            etcd: etcd.clone(),
            caller,
            rows: Rows::new(&etcd.prefix, resolved.hash()),
            name: name.clone(),
            lasts: timers::store_lease(lease),
            cluster: cluster.clone(),
            over,
            said: watch::Sender::default(),
        };
        if let Some(ready) = ready.take() {
            ready(bind);
        }
        let signalled = signals.clone();
        let (stood, found_over) = net.block_on(async move {
            let stood = standing.stand_by(listener, fresh, signalled).await;
            (stood, standing.over)
        })?;
        (over, fresh) = (found_over, false);
        let stood = stood?;
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
    /// Turns everyone away until this candidate leads, the run is over and all are told, or a signal comes.
    async fn stand_by(
        &mut self,
        listener: Listener,
        fresh: bool,
        mut signals: Signals,
    ) -> Result<Stood, ServerError> {
        let listener = Arc::new(listener);
        let answering = tokio::spawn(answer(listener.clone(), self.said.subscribe()));
        let won = async {
            let won = self.campaign(fresh).await?;
            if let Won::Over(how, leadership) = won {
                if let Some(leadership) = leadership {
                    self.tell_all(&how, leadership).await;
                }
                return Ok(Won::Over(how, None));
            }
            Ok::<_, ServerError>(won)
        };
        let won = tokio::select! {
            biased;
            _ = signals.recv() => return Ok(Stood::Interrupted),
            won = won => won?,
        };
        answering.abort();
        // Its handle goes with the task: then this is the only one.
        let _ = answering.await;
        Ok(match won {
            Won::Leads(lead) => match Arc::try_unwrap(listener) {
                Ok(listener) => Stood::Leads(Box::new((listener, *lead))),
                Err(_) => {
                    return Err(ServerError::Etcd(
                        "the listener is in use: a fault of this program".to_owned(),
                    ));
                }
            },
            Won::Over(over, _) => Stood::Over(over),
        })
    }

    /// Does what is left of a run that is over, in the place of whoever led it: tells the servers, and for a lease whoever calls. A worker or
    /// server that lost its coordinator calls several times within it.
    async fn tell_all(&mut self, how: &str, mut leadership: Leadership) {
        tracing::warn!(
            "{}: {how}, and whoever led it was lost before the servers were told: it tells them",
            self.name
        );
        let Cluster { servers, coordinator, lease, identity, network, .. } = &self.cluster;
        self.said.send_replace(Answer::Over { server: *coordinator, how: how.to_owned() });
        tokio::join!(peers::stop(servers, identity, network, "the run is over"), sleep(*lease));
        if let Err(error) = leadership.say_told(&self.rows).await {
            tracing::warn!("{}: {error}; another candidate tells the servers once more", self.name);
        }
        leadership.resign().await;
    }

    /// Campaigns until it is won and what was kept is read, or the run is over.
    async fn campaign(&mut self, fresh: bool) -> Result<Won, ServerError> {
        let mut fresh = fresh;
        loop {
            match self.attempt(&mut fresh).await {
                Ok(Some(won)) => return Ok(won),
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
    async fn attempt(&mut self, fresh: &mut bool) -> Result<Option<Won>, LedgerError> {
        let failed = |error: EtcdError| LedgerError::Etcd(error.to_string());
        let ending = self.ending().await.map_err(failed)?;
        let (revision, is_told) = (ending.revision(), ending.is_told);
        // Before it campaigns: one that leads for a moment only would be taken for a stranger's leader by the candidates whose run it is.
        let strangers = ending.strangers(&self.cluster.coordinators).filter(|_| !*fresh);
        if let Some(at) = strangers {
            return Err(LedgerError::OtherCluster { rows: self.rows.all().to_owned(), at });
        }
        // An end that nobody was told of is still to be told, whoever led it; but whoever begins anew has done with it.
        let before = *self.over.get_or_insert(if is_told || *fresh { revision } else { 0 });
        let over = ending.of_this_run(before);
        if let (Some(how), true) = (&over, is_told) {
            return Ok(Some(Won::Over(how.clone(), None)));
        }
        let is_gone =
            std::mem::take(fresh) && self.forget().await.inspect_err(|_| *fresh = true).map_err(failed)?;
        let (seen, as_who) = (if is_gone { 0 } else { revision }, (self.name.as_str(), self.lasts));
        let campaign = Leadership::campaign(self.caller.clone(), &self.rows, as_who, seen);
        match (campaign.await.map_err(failed)?, over) {
            (Campaign::Led(by), over) => {
                if let Some(at) = stranger(&by, &self.cluster.coordinators) {
                    return Err(LedgerError::OtherCluster { rows: self.rows.all().to_owned(), at });
                }
                self.say(match over {
                    Some(how) => format!("{} stands by: {how}, and {by} tells the servers", self.name),
                    None => format!("{} stands by: {by} leads", self.name),
                });
                Ok(None)
            }
            (Campaign::Changed, _) => Ok(None),
            (Campaign::Won(leadership), Some(how)) => Ok(Some(Won::Over(how, Some(leadership)))),
            (Campaign::Won(leadership), None) => {
                let lost = leadership.lost();
                let (caller, rows) = (self.caller.clone(), self.rows.clone());
                let opened = Store::open(caller, rows, self.cluster.coordinators.clone(), leadership).await?;
                Ok(Some(Won::Leads(Box::new((opened.0, opened.1, lost)))))
            }
        }
    }

    /// How the run ended, where it did, and whose it is; all rows as they are at one moment.
    async fn ending(&mut self) -> Result<Ending, EtcdError> {
        let rows = [self.rows.over(), self.rows.told(), self.rows.snapshot(), self.rows.cluster()];
        let look = TxnRequest {
            compare: Vec::new(),
            success: rows.iter().map(|row| RequestOp::get(row)).collect(),
            failure: Vec::new(),
        };
        let found: TxnResponse = self.caller.call(TXN, &look).await?;
        let mut found = found.responses.into_iter().map(|response| {
            let range = response.range.unwrap_or_default();
            range.kvs.into_iter().next()
        });
        let mut next = || found.next().flatten();
        let (how, told, snapshot, cluster) = (next(), next(), next(), next());
        let revision = how.as_ref().map_or(0, |row| row.mod_revision);
        let is_told = told.is_some_and(|told| told.mod_revision > revision);
        let cluster = cluster.map(|row| String::from_utf8_lossy(&row.value).into_owned());
        Ok(Ending { how, is_told, is_kept: snapshot.is_some(), cluster })
    }

    /// Removes what is kept of the run, unless somebody leads it. Whether it is gone.
    async fn forget(&mut self) -> Result<bool, EtcdError> {
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
        Ok(done.succeeded)
    }

    fn say(&mut self, text: String) {
        let answer = Answer::StandsBy(text);
        if *self.said.borrow() != answer {
            if let Answer::StandsBy(text) = &answer {
                tracing::info!("{text}");
            }
            self.said.send_replace(answer);
        }
    }
}

/// Where a leader is that is no candidate of this cluster; its row says what it calls itself.
fn stranger(by: &str, coordinators: &[String]) -> Option<String> {
    let (_, at) = by.split_once(AT)?;
    (!coordinators.iter().any(|own| own == at)).then(|| at.to_owned())
}

/// Where the candidates of a cluster are that has none in common with this one: by one address a cluster knows its own run.
pub(super) fn strangers(theirs: &str, coordinators: &[String]) -> Option<String> {
    let is_own = theirs.lines().any(|at| coordinators.iter().any(|own| own == at));
    (!is_own).then(|| theirs.lines().collect::<Vec<_>>().join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Found by reading: a candidate of another cluster told its own servers of the end, so that nobody ever told those whose run it was.
    #[test]
    fn what_another_cluster_has_left_is_for_its_own_candidates_until_its_end_is_told() {
        let own = ["a:1".to_owned(), "b:1".to_owned()];
        let over = || Some(KeyValue::default());
        let left = |theirs: &str, how, is_told, is_kept| {
            Ending { how, is_told, is_kept, cluster: Some(theirs.to_owned()) }.strangers(&own)
        };
        let them = Some("c:1 or d:1".to_owned());
        assert_eq!(left("c:1\nd:1", None, false, true), them, "a run to go on with");
        assert_eq!(left("c:1\nd:1", over(), false, false), them, "an end to tell of");
        assert_eq!(left("c:1\nd:1", over(), true, false), None, "a run that is complete");
        assert_eq!(left("c:1\nd:1", over(), true, true), them, "one that failed and can go on");
        assert_eq!(left("c:1\nb:1", over(), false, true), None, "its own, with a candidate that has moved");
        assert_eq!(Ending::default().strangers(&own), None, "nothing");
    }

    #[test]
    fn a_leader_that_is_no_candidate_here_is_of_another_cluster() {
        let own = ["a:1".to_owned(), "b:1".to_owned()];
        assert_eq!(stranger("candidate 1 at b:1", &own), None);
        assert_eq!(stranger("candidate 1 at c:1", &own), Some("c:1".to_owned()));
        assert_eq!(stranger("", &own), None, "its row was gone by then");
    }
}
