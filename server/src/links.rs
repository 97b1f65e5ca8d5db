//! The ways of this server to the others: to the coordinator, which every other server speaks with, and to the backups of its shards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use slackline_core::config::timers::SERVER_RETRIES;
use slackline_core::ids::ServerId;
use slackline_core::wire::{PROTOCOL, ToPeer};
use slackline_net::{
    CloseCode, Connection, ConnectionError, Connector, ControlReceiver, ControlSender, Identity, KeysError,
    Settings,
};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long one attempt to reach a server may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The first wait before another attempt; each is twice as long as the one before.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Where the servers are, in order; empty until it is known. A coordinator that is none of them has an address for each of its candidates.
#[derive(Clone, Debug)]
pub struct Addresses {
    servers: watch::Receiver<Vec<String>>,
    candidates: Vec<String>,
}

/// Says later where the servers are.
#[derive(Debug)]
pub struct AddressesToCome(watch::Sender<Vec<String>>);

impl Addresses {
    /// They are here.
    #[must_use]
    pub fn known(addresses: Vec<String>) -> Self {
        Self { servers: watch::channel(addresses).1, candidates: Vec::new() }
    }

    /// The same, with the candidates for the coordinator, which stands behind all servers in the count.
    #[must_use]
    pub fn with_candidates(self, candidates: Vec<String>) -> Self {
        Self { candidates, ..self }
    }

    /// They will be told.
    #[must_use]
    pub fn to_come() -> (AddressesToCome, Self) {
        let (sender, receiver) = watch::channel(Vec::new());
        (AddressesToCome(sender), Self { servers: receiver, candidates: Vec::new() })
    }

    /// The addresses that one server may be at, as far as they are known now.
    pub(crate) fn of(&self, server: ServerId) -> Vec<String> {
        let servers = self.servers.borrow();
        match servers.get(server.0 as usize) {
            Some(address) => vec![address.clone()],
            None if server.0 as usize == servers.len() => self.candidates.clone(),
            None => Vec::new(),
        }
    }

    /// All of them, as far as they are known now.
    pub(crate) fn all(&self) -> Vec<String> {
        self.servers.borrow().clone()
    }

    /// Whether nobody will ever tell them.
    pub(crate) fn are_missing(&self) -> bool {
        self.servers.borrow().is_empty() && self.servers.has_changed().is_err()
    }
}

impl AddressesToCome {
    /// Here they are.
    pub fn tell(&self, addresses: Vec<String>) {
        self.0.send_replace(addresses);
    }
}

/// Makes connections to other servers.
#[derive(Debug)]
pub(crate) struct Links {
    connector: Connector,
    addresses: Addresses,
    /// Nobody is to be reached any more.
    closed: AtomicBool,
    /// Longest wait between two attempts: others must not wait much longer for this server than for its lease.
    longest_pause: Duration,
}

impl Links {
    pub(crate) fn new(
        identity: &Identity,
        network: &Settings,
        addresses: Addresses,
        lease: Duration,
    ) -> Result<Self, KeysError> {
        let connector = Connector::new(identity, network)?;
        Ok(Self {
            connector,
            addresses,
            closed: AtomicBool::new(false),
            longest_pause: (lease / SERVER_RETRIES).clamp(FIRST_PAUSE, Duration::from_secs(1)),
        })
    }

    /// The longest wait before another attempt.
    pub(crate) const fn longest_pause(&self) -> Duration {
        self.longest_pause
    }

    /// Where the servers are, as far as it is known now.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses.all()
    }

    /// Connects to a server and is welcomed, however long it takes. Waits longer after each attempt that fails.
    pub(crate) async fn reach(&self, server: ServerId) -> Reached {
        let mut pause = FIRST_PAUSE;
        let mut said = None;
        loop {
            if self.closed.load(Ordering::Relaxed) {
                // The task that waits ends with the process.
                std::future::pending::<()>().await;
            }
            let began = Instant::now();
            match self.reach_once(server).await {
                Ok(reached) => {
                    if said.is_some() {
                        tracing::info!("{server} is reached again");
                    }
                    return reached;
                }
                // Once for each reason: an outage of an hour is two lines.
                Err(_) if self.closed.load(Ordering::Relaxed) => continue,
                Err(reason) if pause >= self.longest_pause && said.as_ref() != Some(&reason) => {
                    tracing::warn!("{server} is not reached: {reason}");
                    said = Some(reason);
                }
                Err(reason) => tracing::debug!("{server} is not reached: {reason}"),
            }
            // One that waited in vain for an answer has waited long enough.
            tokio::time::sleep_until((began + pause).into()).await;
            pause = (2 * pause).min(self.longest_pause);
        }
    }

    /// One attempt. Several addresses are tried at once: all candidates but one turn this server away, and one that is frozen says nothing.
    async fn reach_once(&self, server: ServerId) -> Result<Reached, String> {
        let addresses = self.addresses.of(server);
        let mut attempts: FuturesUnordered<_> =
            addresses.iter().map(|address| self.reach_at(server, address)).collect();
        let mut reasons = Vec::new();
        while let Some(outcome) = attempts.next().await {
            match outcome {
                Ok(reached) => return Ok(reached),
                Err(reason) => reasons.push(reason),
            }
        }
        // In whatever order they came, the same reasons are the same text: they are said once.
        reasons.sort_unstable();
        Err(if reasons.is_empty() { "its address is not known yet".to_owned() } else { reasons.join("; ") })
    }

    async fn reach_at(&self, server: ServerId, address: &str) -> Result<Reached, String> {
        let connection =
            self.connector.connect(address, PATIENCE).await.map_err(|error| error.to_string())?;
        let welcomed = async {
            let (sender, mut receiver) = connection.accept_control().await?;
            Ok::<_, ConnectionError>((receiver.receive::<ToPeer>().await?, sender, receiver))
        };
        let (welcome, sender, receiver) = timeout(PATIENCE, welcomed)
            .await
            .map_err(|_| "it is connected and says nothing".to_owned())?
            .map_err(|error| error.to_string())?;
        match welcome {
            Some(ToPeer::Welcome { protocol: PROTOCOL, server: found, .. }) if found == server => {
                Ok(Reached { connection, sender, receiver })
            }
            Some(ToPeer::Welcome { protocol: PROTOCOL, server: found, .. }) => Err(format!(
                "{found} is at {address}, and cluster.addresses says that {server} is: correct it there"
            )),
            Some(ToPeer::Welcome { protocol, .. }) => Err(format!(
                "it speaks protocol {protocol}, and this server {PROTOCOL}: use the same version for all"
            )),
            Some(ToPeer::Refused(refusal)) => Err(refusal.text.shown()),
            _ => Err("it does not begin with a welcome".to_owned()),
        }
    }

    /// Ends all connections that this server has made.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.connector.close(CloseCode::Done, "the server ends").await;
    }
}

/// A server that was reached.
pub(crate) struct Reached {
    pub(crate) connection: Connection,
    pub(crate) sender: ControlSender,
    pub(crate) receiver: ControlReceiver,
}
