//! Real QUIC on loopback between workers, and workers that do what they must not.

mod faults;
mod reducing;
mod strangers;
mod together;

use std::time::Duration;

use slackline_core::collective::{Bucket, Topology};
use slackline_core::ids::{Clock, Generation, Incarnation, KeyRange, Sequence, ShardId, WorkerId};
use slackline_core::wire::{
    Group, GroupMember, Hello, PROTOCOL, PeerMessage, Text, TransferHeader, TransferKind,
};
use slackline_net::{
    Connection, Connector, ControlReceiver, ControlSender, Identity, Role, Settings, keys, transfer,
};
use slackline_worker_core::Event;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::reducing::header;
use super::{News, PeerSettings, Peers, Told};

/// Longer than anything takes that works.
const WITHIN: Duration = Duration::from_secs(20);

/// Keys of all buckets together: odd, and more than a block for each of a few parts.
const KEYS: u64 = 3001;

pub(super) fn key_directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    keys::init(directory.path()).unwrap();
    directory
}

fn identity(keys: &TempDir, role: Role) -> Identity {
    Identity::load(keys.path(), role).unwrap()
}

fn network() -> Settings {
    Settings { socket_buffer_bytes: 1 << 20, stripe_bytes: 1 << 10, ..Settings::default() }
}

/// Two buckets; a lease that does not run out.
fn settings() -> PeerSettings {
    let bucket = |index, start, len| Bucket { index, keys: KeyRange::new(start, len) };
    PeerSettings {
        layout_hash: 11,
        config_hash: 12,
        buckets: [bucket(0, 1000, KEYS - 1000), bucket(1, 0, 1000)].into(),
        state_lens: [KEYS, KEYS],
        lease: WITHIN,
        network: network(),
    }
}

/// A short lease, for what only ends with it.
fn hasty() -> PeerSettings {
    PeerSettings { lease: Duration::from_millis(300), ..settings() }
}

/// One worker.
struct Member {
    peers: Peers,
    news: mpsc::UnboundedReceiver<News>,
}

impl Member {
    fn new(keys: &TempDir, settings: PeerSettings) -> Self {
        let (peers, news) = Peers::bind(&identity(keys, Role::Worker), "127.0.0.1:0", settings).unwrap();
        Self { peers, news }
    }

    /// Waits until so many were turned away.
    async fn has_turned_away(&self, total: u64) {
        let until = async {
            while self.peers.count.total() < total {
                tokio::task::yield_now().await;
            }
        };
        timeout(WITHIN, until).await.expect("fewer were turned away");
        assert_eq!(self.peers.count.total(), total);
    }

    fn address(&self) -> String {
        self.peers.local_address().to_string()
    }

    /// The next thing that the driver is told.
    async fn next(&mut self) -> Told {
        loop {
            let news = timeout(WITHIN, self.news.recv()).await.expect("nothing is told any more").unwrap();
            if let Some(told) = self.peers.take(news) {
                return told;
            }
        }
    }

    async fn event(&mut self) -> Event {
        match self.next().await {
            Told::Event(event) => event,
            told => panic!("{told:?}"),
        }
    }

    async fn met(&mut self) {
        let event = self.event().await;
        assert!(matches!(event, Event::Met { .. }), "{event:?}");
    }

    /// The worker that there is trouble with, and why.
    async fn trouble(&mut self) -> (WorkerId, String) {
        match self.event().await {
            Event::PeerTrouble { worker, reason, .. } => (worker, reason),
            event => panic!("{event:?}"),
        }
    }
}

/// The first group, of workers at these addresses.
fn group(topology: Topology, addresses: &[String]) -> Group {
    let member = |(index, address): (usize, &String)| GroupMember {
        worker: WorkerId(index as u32),
        incarnation: Incarnation(index as u64 + 1),
        address: Text::new(address.as_str()),
    };
    Group {
        run: 77,
        generation: Generation(1),
        topology,
        members: addresses.iter().enumerate().map(member).collect(),
        clock: Clock(0),
        units: 0,
        source: None,
    }
}

/// Workers that have met.
async fn company(keys: &TempDir, topology: Topology, count: u32) -> Vec<Member> {
    let mut members: Vec<Member> = (0..count).map(|_| Member::new(keys, settings())).collect();
    let addresses: Vec<String> = members.iter().map(Member::address).collect();
    for (position, member) in (0..).zip(&mut members) {
        member.peers.form(group(topology, &addresses), position).unwrap();
    }
    for member in &mut members {
        member.met().await;
    }
    members
}

/// What worker 1 says to worker 0 in the first group.
fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        run: 77,
        generation: Generation(1),
        layout_hash: 11,
        config_hash: 12,
        worker: WorkerId(1),
        incarnation: Incarnation(2),
    }
}

/// Somebody with a worker's key who does as the test says.
struct Raw {
    /// Keeps the socket.
    _connector: Connector,
    connection: Connection,
    sender: ControlSender,
    receiver: ControlReceiver,
}

impl Raw {
    async fn call(keys: &TempDir, address: &str) -> Self {
        let connector = Connector::to(&identity(keys, Role::Worker), Role::Worker, &network()).unwrap();
        let connection = connector.connect(address, WITHIN).await.unwrap();
        let (sender, receiver) = connection.accept_control().await.unwrap();
        Self { _connector: connector, connection, sender, receiver }
    }

    async fn receive(&mut self) -> PeerMessage {
        timeout(WITHIN, self.receiver.receive()).await.unwrap().unwrap().unwrap()
    }

    async fn say(&mut self, message: PeerMessage) {
        self.sender.send(&message).await.unwrap();
    }

    /// Sends values as worker 1 would in the first group, changed by the test.
    async fn transfer(&self, values: Vec<f32>, change: impl FnOnce(&mut TransferHeader)) {
        let mut header = header(WorkerId(1), Generation(1), KeyRange::new(0, values.len() as u64));
        header.kind = TransferKind::Part;
        change(&mut header);
        // It fails where the other side does not read it.
        let _ = transfer::send(&self.connection, header, &values.into(), &network()).await;
    }

    /// A part of the ring of two: its number, of a bucket at a clock.
    async fn part(&self, clock: u64, bucket: u32, number: u64, values: Vec<f32>) {
        self.transfer(values, |header| {
            (header.clock, header.shard, header.sequence) = (Clock(clock), ShardId(bucket), Sequence(number));
        })
        .await;
    }
}

/// Worker 0 of a ring of two, and worker 1 in the test's hands; they have met.
async fn beside_raw(keys: &TempDir, settings: PeerSettings) -> (Member, Raw) {
    let mut member = Member::new(keys, settings);
    let addresses = [member.address(), "127.0.0.1:9".to_owned()];
    member.peers.form(group(Topology::Ring, &addresses), 0).unwrap();
    let mut raw = Raw::call(keys, &addresses[0]).await;
    assert!(matches!(raw.receive().await, PeerMessage::Hello(hello) if hello.worker == WorkerId(0)));
    raw.say(PeerMessage::Hello(hello())).await;
    member.met().await;
    (member, raw)
}
