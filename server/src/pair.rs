//! For tests: a small configuration, and two ends of a real connection on loopback.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use slackline_core::config::{Config, Layer, Resolved, Value};
use slackline_core::ids::{KeyRange, Moment, ServerId, ShardId};
use slackline_core::wire::{Status, TransferHeader, TransferKind, WaitRow};
use slackline_net::{Connection, Connector, Identity, Listener, Role, Settings, keys};
use slackline_server_core::{Control, ControlEvent};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};

use crate::directory::Directory;
use crate::door::Unheard;
use crate::journal;
use crate::links::{Addresses, Links};
use crate::parts::control_settings;
use crate::performer::Surroundings;
use crate::processors::Processors;
use crate::session::Shared;
use crate::words::Word;

/// The smallest run.
pub(crate) fn resolved() -> Resolved {
    let keys = [
        ("workers", "1"),
        ("data.dataset", "\"digits\""),
        ("model.kind", "\"softmax\""),
        ("train.epochs", "1"),
        ("train.batch", "32"),
        ("optimizer.rate", "0.03"),
    ];
    let value = |(key, value): (&str, &str)| (key.to_owned(), Value::from_literal(value).unwrap());
    let layer = Layer { name: "test".to_owned(), values: keys.into_iter().map(value).collect() };
    Config::resolve(&[layer]).unwrap()
}

/// Keys of a throw-away cluster.
pub(crate) fn key_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    keys::init(folder.path()).unwrap();
    folder
}

/// A listener on any free port; within a runtime.
pub(crate) fn listener(folder: &TempDir) -> Listener {
    let identity = Identity::load(folder.path(), Role::Server).unwrap();
    Listener::bind("127.0.0.1:0".parse().unwrap(), &identity, &Settings::default()).unwrap()
}

/// What the owners of a server without peers share; within a runtime.
pub(crate) fn surroundings(folder: &TempDir, words: mpsc::UnboundedSender<Word>) -> Surroundings {
    surroundings_at(folder, words, Addresses::known(Vec::new()))
}

/// The same with servers at `addresses`.
pub(crate) fn surroundings_at(
    folder: &TempDir,
    words: mpsc::UnboundedSender<Word>,
    addresses: Addresses,
) -> Surroundings {
    let identity = Identity::load(folder.path(), Role::Server).unwrap();
    let lease = Duration::from_secs(1);
    let links = Links::new(&identity, &Settings::default(), addresses, lease).unwrap();
    Surroundings {
        server: ServerId(0),
        config_hash: resolved().hash(),
        began: Instant::now(),
        directory: Arc::new(Directory::new(1)),
        buffers: slackline_server_core::Buffers::default(),
        words,
        runtime: tokio::runtime::Handle::current(),
        links: Arc::new(links),
        lease,
        journals: folder.path().join("state"),
        disk: Arc::new(journal::Real),
        saver: None,
        processors: Processors::default(),
    }
}

/// What its sessions share.
pub(crate) fn shared(control: mpsc::Sender<ControlEvent>, surroundings: &Surroundings) -> Shared {
    Shared {
        directory: surroundings.directory.clone(),
        owners: RwLock::default(),
        control,
        network: Settings::default(),
        config_hash: surroundings.config_hash,
        payload_max: 1 << 20,
        standstill: watch::Sender::default(),
        unheard: Unheard::default(),
    }
}

/// A status of the smallest run, with so many waits in it.
pub(crate) fn status(waits: usize) -> Status {
    let mut status = Control::new(control_settings(ServerId(0), &resolved(), 1), Moment(0)).status(Moment(0));
    status.waits = vec![WaitRow::new(Duration::ZERO, "a wait".to_owned()); waits];
    status
}

/// A server's and an observer's end of one connection.
pub(crate) struct Pair {
    pub(crate) server: Connection,
    pub(crate) peer: Connection,
    _listener: Listener,
    _connector: Connector,
}

impl Pair {
    pub(crate) async fn meet() -> Self {
        let folder = key_folder();
        let listener = listener(&folder);
        let identity = Identity::load(folder.path(), Role::Observer).unwrap();
        let connector = Connector::new(&identity, &Settings::default()).unwrap();
        let address = listener.local_address().to_string();
        let (server, peer) = tokio::join!(
            async {
                let connection = listener.accept().await.unwrap().complete().await.unwrap();
                let (mut sender, _receiver) = connection.open_control().await.unwrap();
                sender.send(&slackline_core::wire::ToPeer::Goodbye).await.unwrap();
                connection
            },
            async { connector.connect(&address, Duration::from_secs(20)).await.unwrap() }
        );
        Self { server, peer, _listener: listener, _connector: connector }
    }
}

/// The header of values of the first `len` keys.
pub(crate) fn values_header(len: u64) -> TransferHeader {
    TransferHeader::plain(TransferKind::Values, ShardId(0), KeyRange::new(0, len))
}
