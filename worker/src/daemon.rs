//! What a worker is started with, how it is put together, and what it can fail with.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::collective::buckets;
use slackline_core::config::{Config, OnBadGradient, OnNorm, Resolved};
use slackline_core::ids::{BatchIndex, Clock, KeyRange, Moment, ServerId};
use slackline_core::optimizer::Rule;
use slackline_core::schedule::DataOrder;
use slackline_core::wire::RefusalCode;
use slackline_net::{Connector, Identity, KeysError, NetworkStopped, NetworkThread, Settings};
use slackline_worker_core::{GroupSettings, Worker, WorkerError};
use tokio::sync::mpsc;

use crate::allreduce::Allreduce;
use crate::compute::Compute;
use crate::dataset::{self, DataSettings, Dataset, DatasetError};
use crate::driver::{Base, Driver, Road};
use crate::inbox::Inbox;
use crate::link::Links;
use crate::loader::{Loader, LoaderError};
use crate::model;
use crate::peers::{ListenError, PeerSettings, Peers};
use crate::push_log::{PushLogError, PushWriter};
use crate::replica::Replica;
use crate::servers::Servers;

/// Events that may wait for the driver; when it is full, connections are read no further.
const EVENTS_MAX: usize = 1024;

/// Time between two words to the coordinator about how far a worker of an allreduce is.
const STEP_REPORT: Duration = Duration::from_millis(250);

/// What a worker is started with.
pub struct WorkerOptions {
    /// The configuration of the run.
    pub resolved: Resolved,
    /// Addresses of the servers, in order.
    pub addresses: Vec<String>,
    /// Folder of the keys.
    pub keys: PathBuf,
    /// A file that every push and every answer is recorded in; see [`push_log`](crate::push_log).
    pub push_log: Option<PathBuf>,
}

/// Why a worker ended without finishing.
#[derive(Debug, thiserror::Error)]
pub enum WorkerFailure {
    /// The keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The data.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The loader.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// The machine gives no thread.
    #[error("the system gives no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The network thread is gone.
    #[error(transparent)]
    Stopped(#[from] NetworkStopped),
    /// A computing thread is gone.
    #[error("a computing thread has ended; see the log above")]
    ComputeEnded,
    /// A batch is to be computed with and is not there.
    #[error("{0} is not in memory where it is needed: a fault of this program")]
    BatchMissing(BatchIndex),
    /// The sums of an iteration are to be applied and are not there.
    #[error("the sums of {0} are not here where they are to be applied: a fault of this program")]
    SumsMissing(Clock),
    /// The place where a worker listens for the others.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The file that pushes are recorded in cannot be begun or continued.
    #[error("--push-log: {0}")]
    PushLogFile(#[from] PushLogError),
    /// Pushes cannot be recorded any more.
    #[error("the push log cannot be written any more: {0}; nothing is pushed without it")]
    PushLog(std::io::Error),
    /// The run.
    #[error("{error}{known}")]
    Worker {
        /// What the worker gave up for.
        error: WorkerError,
        /// What only this process knows about it, in words: the address that was dialled.
        known: String,
    },
}

impl WorkerFailure {
    /// Whether the one who started it can mend it (exit code 2), and not the world (1).
    #[must_use]
    pub const fn is_users(&self) -> bool {
        match self {
            Self::Keys(_) | Self::Dataset(_) | Self::Listen(_) | Self::PushLogFile(_) => true,
            Self::Worker { error, .. } => match error {
                WorkerError::Connect { .. }
                | WorkerError::Peer { .. }
                | WorkerError::Protocol { .. }
                | WorkerError::WrongServer { .. } => true,
                WorkerError::Refused { code, .. } => {
                    matches!(code, RefusalCode::Role | RefusalCode::Mismatch)
                }
                _ => false,
            },
            _ => false,
        }
    }
}

/// Runs a worker until its work is done; blocks the calling thread.
///
/// # Errors
/// [`WorkerFailure`]; nothing is left running.
pub fn run(options: WorkerOptions) -> Result<(), WorkerFailure> {
    let WorkerOptions { resolved, addresses, keys, push_log } = options;
    let config = &resolved.config;
    let identity = Identity::load(&keys, slackline_net::Role::Worker)?;
    let network = Settings::new(&config.transport, Duration::from_secs_f64(config.cluster.lease_s));
    let dataset = Arc::new(dataset::load(&DataSettings {
        spec: config.data.dataset,
        dir: config.data.dir.as_ref().map(PathBuf::from),
        limit: config.data.limit,
    })?);
    let (train, samples) = (&config.train, dataset.train.len() as u64);
    let order = DataOrder::new(config.seed, samples, config.cut().unit, train.epochs);
    let mut settings = worker_settings(&resolved, &dataset, &order);
    let batch_count = order.batch_count();
    let (loaded, batches_loaded) = mpsc::channel(EVENTS_MAX);
    let loader = Loader::start(dataset.clone(), order, move |index, units| {
        // Fails only when the driver has ended, and then nobody needs to know.
        let _ = loaded.blocking_send((index, units));
    })?;
    // A part of a gradient for each shard, and what else the two threads have done.
    let (done, jobs_done) = mpsc::channel(4 + config.partition().shard_count() as usize);
    let compute = Compute::start(config, &dataset, batch_count, done)?;
    let net = NetworkThread::start("network")?;
    let (events, tagged) = mpsc::channel(EVENTS_MAX);
    let mut inbox = Inbox::new(tagged, batches_loaded, jobs_done);
    let road = if config.sync.is_some() {
        let (allreduce, peers_at) = allreduce(&resolved, &dataset, &identity, network, &net, &mut inbox)?;
        settings.group = Some(group_settings(config, samples, peers_at));
        Road::Allreduce(Box::new(allreduce))
    } else {
        let log = push_log.map(|path| {
            let (logged, told) = mpsc::unbounded_channel();
            inbox.listen_to_log(told);
            PushWriter::start(&path, logged)
        });
        Road::Servers(Box::new(servers(config, &dataset, log.transpose()?)))
    };
    let partition = config.partition();
    let mut addresses: Vec<_> = addresses.into_iter().map(|address| vec![address]).collect();
    if config.coordinator() != ServerId(0) {
        addresses.push(config.cluster.coordinators.clone());
    }
    let links = Links::new(Connector::new(&identity, &network)?, addresses, network, &partition, events);
    let worker = Worker::new(settings, Moment(0));
    let driver = Driver::new(Base::new(worker, Instant::now(), links, loader, compute), road);
    let outcome = net.block_on(driver.run(inbox))?;
    net.stop();
    outcome
}

fn servers(config: &Config, dataset: &Dataset, log: Option<PushWriter>) -> Servers {
    let partition = config.partition();
    let mut initial = vec![0.0; KeyRange::new(0, partition.key_count()).len as usize];
    model::build(&config.model, dataset.input_count, dataset.class_count, 1)
        .initialize(config.seed, &mut initial);
    Servers::new(partition, initial, log, config.begins_early())
}

/// The worker's copy of the model and its way to the other workers; with what those are told to connect to.
fn allreduce(
    resolved: &Resolved,
    dataset: &Arc<Dataset>,
    identity: &Identity,
    network: Settings,
    net: &NetworkThread,
    inbox: &mut Inbox,
) -> Result<(Allreduce, String), WorkerFailure> {
    let config = &resolved.config;
    let Some(sync) = &config.sync else { return Err(WorkerFailure::ComputeEnded) };
    identity.can_listen()?;
    let layout = config.layout();
    let slots = match config.optimizer.rule {
        Rule::Sgd => 0,
        Rule::Momentum { .. } => layout.len(),
    };
    let settings = PeerSettings {
        layout_hash: layout.hash(),
        config_hash: resolved.hash(),
        buckets: buckets(&layout, sync.bucket_bytes, sync.order).into(),
        state_lens: [layout.len(), slots],
        lease: Duration::from_secs_f64(config.cluster.lease_s),
        network,
    };
    let (peers, news) = {
        let _within = net.handle().enter();
        Peers::bind(identity, &sync.listen, settings)?
    };
    let peers_at = peers_at(sync.advertise.as_deref(), peers.local_address());
    let (done, replica_done) = mpsc::channel(EVENTS_MAX);
    let replica = Replica::start(config, dataset, done)?;
    inbox.listen(replica_done, news);
    Ok((Allreduce::new(replica, peers), peers_at))
}

/// Where others are told to connect to: what is advertised; else the address that is listened on, or where that is any, its port at the
/// address that the coordinator sees.
fn peers_at(advertise: Option<&str>, listening: SocketAddr) -> String {
    let port = listening.port();
    match advertise {
        Some(host) => with_port(host, port),
        None if listening.ip().is_unspecified() => format!(":{port}"),
        None => listening.to_string(),
    }
}

/// What is advertised, with the port that is listened on where it has none.
fn with_port(host: &str, port: u16) -> String {
    let after_host = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    let is_bare_ipv6 = !host.starts_with('[') && host.matches(':').count() > 1;
    if is_bare_ipv6 {
        format!("[{host}]:{port}")
    } else if after_host.contains(':') {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    }
}

fn group_settings(config: &Config, samples: u64, peers_at: String) -> GroupSettings {
    GroupSettings {
        peers_at,
        unit: config.cut().unit,
        sample_total: samples.saturating_mul(config.train.epochs),
        evaluate_every: (config.evaluate.every_epochs * samples as f64) as u64,
        step_report: STEP_REPORT,
    }
}

fn worker_settings(
    resolved: &Resolved,
    dataset: &Dataset,
    order: &DataOrder,
) -> slackline_worker_core::Settings {
    let config = &resolved.config;
    slackline_worker_core::Settings {
        partition: config.partition(),
        layout: config.layout(),
        coordinator: config.coordinator(),
        config_hash: resolved.hash(),
        data_hash: dataset.fingerprint(),
        sample_count: dataset.train.len() as u64,
        batch_count: order.batch_count(),
        units_max: u32::try_from(config.cut().units_max()).unwrap_or(u32::MAX),
        prefetch: config.consistency.prefetch,
        begins_early: config.begins_early(),
        refreshes: config.consistency.policy.refreshes(),
        fragments: config.local.map_or(1, |local| local.fragments),
        steps: config.cluster.steps,
        has_copies: config.cluster.replicas > 1,
        lease: Duration::from_secs_f64(config.cluster.lease_s),
        connect_timeout: Duration::from_secs_f64(config.cluster.connect_timeout_s),
        wait_report: Duration::from_secs_f64(config.cluster.wait_report_s),
        group: None,
        stop_on_bad_gradient: config.consistency.on_bad_gradient == OnBadGradient::Stop,
        stop_on_norm: config.guard.on_norm == OnNorm::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_where_this_worker_listens_unless_it_says_otherwise() {
        for (listening, expected) in [
            ("0.0.0.0:44", ":44"),
            ("[::]:44", ":44"),
            ("127.0.0.2:44", "127.0.0.2:44"),
            ("[::1]:44", "[::1]:44"),
        ] {
            let listening = listening.parse().unwrap();
            assert_eq!(peers_at(None, listening), expected);
            assert_eq!(peers_at(Some("gpu-7"), listening), "gpu-7:44");
        }
    }

    #[test]
    fn what_is_advertised_gets_a_port_where_it_has_none() {
        for (host, expected) in [
            ("node7", "node7:44"),
            ("node7:99", "node7:99"),
            ("10.0.0.7", "10.0.0.7:44"),
            ("fe80::1", "[fe80::1]:44"),
            ("[fe80::1]", "[fe80::1]:44"),
            ("[fe80::1]:99", "[fe80::1]:99"),
        ] {
            assert_eq!(with_port(host, 44), expected);
        }
    }
}
