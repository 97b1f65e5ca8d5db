//! For tests: a small configuration, and two ends of a real connection on loopback.

use std::time::Duration;

use slackline_core::config::{Config, Layer, Resolved, Value};
use slackline_core::ids::{KeyRange, ShardId};
use slackline_core::wire::{Dtype, TransferHeader, TransferKind};
use slackline_net::{Connection, Connector, Identity, Listener, Role, Settings, keys};
use tempfile::TempDir;

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
    let keys = KeyRange::new(0, len);
    TransferHeader {
        kind: TransferKind::Values,
        dtype: Dtype::F32,
        shard: ShardId(0),
        worker: Default::default(),
        incarnation: Default::default(),
        sequence: Default::default(),
        clock: Default::default(),
        version: Default::default(),
        batch: Default::default(),
        lead: 0,
        samples: 0,
        stripe_count: 1,
        keys,
        stripe: keys,
        held_us: 0,
    }
}
