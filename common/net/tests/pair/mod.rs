//! Two ends of real QUIC on loopback, for the tests beside this folder.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use slackline_core::ids::{Incarnation, KeyRange, Sequence, ServerId, ShardId, WorkerId};
use slackline_core::wire::{PROTOCOL, ToPeer, TransferHeader, TransferKind};
use slackline_net::{
    Connection, Connector, ControlReceiver, ControlSender, Identity, Listener, Role, Settings, keys,
};
use tempfile::TempDir;

/// Longer than anything takes that works.
pub const WITHIN: Duration = Duration::from_secs(10);

/// The default settings, with buffers that every system grants.
pub fn settings() -> Settings {
    Settings { socket_buffer_bytes: 1 << 20, ..Settings::default() }
}

pub fn key_directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    keys::init(directory.path()).unwrap();
    directory
}

pub fn identity(keys: &TempDir, role: Role) -> Identity {
    Identity::load(keys.path(), role).unwrap()
}

pub fn listener(keys: &TempDir, address: &str, settings: &Settings) -> Listener {
    Listener::bind(address.parse().unwrap(), &identity(keys, Role::Server), settings).unwrap()
}

pub fn connector(keys: &TempDir, role: Role, settings: &Settings) -> Connector {
    Connector::new(&identity(keys, role), settings).unwrap()
}

/// One side of a session.
pub struct End {
    pub connection: Connection,
    pub sender: ControlSender,
    pub receiver: ControlReceiver,
}

pub fn welcome() -> ToPeer {
    ToPeer::Welcome { protocol: PROTOCOL, server: ServerId(0), boot: 77 }
}

/// Takes the next peer that completes its handshake, and welcomes it.
pub async fn serve_one(listener: &Listener) -> End {
    loop {
        let handshake = listener.accept().await.unwrap();
        let Ok(connection) = handshake.complete().await else { continue };
        let (mut sender, receiver) = connection.open_control().await.unwrap();
        sender.send(&welcome()).await.unwrap();
        return End { connection, sender, receiver };
    }
}

pub async fn dial(connector: &Connector, address: SocketAddr) -> End {
    let connection = connector.connect(&address.to_string(), WITHIN).await.unwrap();
    let (sender, mut receiver) = connection.accept_control().await.unwrap();
    assert_eq!(receiver.receive::<ToPeer>().await.unwrap(), Some(welcome()));
    End { connection, sender, receiver }
}

/// A server and a worker that have met. The first two keep the sockets and files alive.
pub struct Pair {
    pub listener: Listener,
    pub connector: Connector,
    pub server: End,
    pub worker: End,
}

pub async fn pair(settings: &Settings) -> Pair {
    let keys = key_directory();
    let listener = listener(&keys, "127.0.0.1:0", settings);
    let connector = connector(&keys, Role::Worker, settings);
    let address = listener.local_address();
    let (server, worker) = tokio::join!(serve_one(&listener), dial(&connector, address));
    Pair { listener, connector, server, worker }
}

/// A push of `keys`; its stripe fields are what a sender of the whole would write.
pub fn push(keys: KeyRange) -> TransferHeader {
    TransferHeader {
        worker: WorkerId(1),
        incarnation: Incarnation(1),
        sequence: Sequence(1),
        samples: 1,
        ..TransferHeader::plain(TransferKind::Push, ShardId(0), keys)
    }
}
