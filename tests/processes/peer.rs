//! A peer made by hand: it says what no program of ours would say.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use slackline_core::config::Resolved;
use slackline_core::ids::{Clock, Incarnation, KeyRange, Sequence, ShardId, WorkerId};
use slackline_core::wire::{
    Join, Refusal, RefusalCode, Register, ToPeer, ToServer, TransferHeader, TransferKind, WireError,
};
use slackline_net::{
    ConnectError, Connection, Connector, ControlReceiver, ControlSender, Identity, Message, Role, Settings,
    SharedValues, transfer,
};
use slackline_worker::dataset::{self, DataSettings};
use tokio::runtime::Runtime;

use crate::process::PATIENCE;

/// Any bytes in a frame.
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Message for Raw {
    fn to_bytes(&self) -> Result<Vec<u8>, WireError> {
        Ok(self.0.clone())
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        Ok(Self(bytes.to_vec()))
    }
}

/// One connection to a server.
pub(crate) struct Peer {
    /// All peers of one crowd move while any of them does something.
    runtime: Rc<Runtime>,
    connection: Connection,
    sender: ControlSender,
    receiver: ControlReceiver,
    settings: Settings,
    /// Keeps the sockets.
    connector: Rc<Connector>,
    /// Of the server.
    address: String,
}

/// What a worker of a run says of itself.
pub(crate) struct Papers {
    join: Join,
    batch_count: u64,
}

impl Papers {
    pub(crate) fn of(run: &Resolved) -> Self {
        let (layout_hash, config_hash) = (run.config.layout().hash(), run.hash());
        let data = &run.config.data;
        let dataset =
            dataset::load(&DataSettings { spec: data.dataset, dir: None, limit: data.limit }).unwrap();
        let (data_hash, sample_count) = (dataset.fingerprint(), dataset.train.len() as u64);
        let join = Join { layout_hash, config_hash, data_hash, sample_count, former: None, peers_at: None };
        let train = &run.config.train;
        Self { join, batch_count: (sample_count * train.epochs).div_ceil(train.batch) }
    }
}

impl Peer {
    /// Connects with the keys of a role.
    pub(crate) fn connect(keys: &Path, role: Role, address: &str) -> Result<Self, ConnectError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let settings = Settings { idle_timeout: Duration::from_secs(30), ..Settings::default() };
        let identity = Identity::load(keys, role).unwrap();
        let connector = Connector::new(&identity, &settings).unwrap();
        Self::over(Rc::new(runtime), Rc::new(connector), settings, address)
    }

    /// Another of its kind, beside it.
    pub(crate) fn another(&self, address: &str) -> Result<Self, ConnectError> {
        Self::over(self.runtime.clone(), self.connector.clone(), self.settings, address)
    }

    fn over(
        runtime: Rc<Runtime>,
        connector: Rc<Connector>,
        settings: Settings,
        address: &str,
    ) -> Result<Self, ConnectError> {
        let (connection, (sender, receiver)) = runtime.block_on(async {
            let connection = connector.connect(address, Duration::from_secs(20)).await?;
            let control = connection.accept_control().await.unwrap();
            Ok((connection, control))
        })?;
        let address = address.to_owned();
        let mut peer = Self { runtime, connection, sender, receiver, settings, connector, address };
        let welcome = peer.next();
        assert!(matches!(welcome, Some(ToPeer::Welcome { .. })), "{welcome:?}");
        Ok(peer)
    }

    pub(crate) fn say(&mut self, message: &impl Message) {
        self.runtime.block_on(self.sender.send(message)).unwrap();
    }

    /// The same where the server may have ended the session already.
    pub(crate) fn say_if_open(&mut self, message: &impl Message) {
        let _ = self.runtime.block_on(self.sender.send(message));
    }

    /// The next message; none once the server has ended the session.
    pub(crate) fn next(&mut self) -> Option<ToPeer> {
        self.runtime.block_on(async {
            let answer = tokio::time::timeout(PATIENCE, self.receiver.receive()).await;
            answer.expect("the server says nothing").ok().flatten()
        })
    }

    /// Waits until the server has closed the connection, and returns what it said about that.
    pub(crate) fn closed(&self) -> String {
        let closed = async { tokio::time::timeout(PATIENCE, self.connection.closed()).await };
        self.runtime.block_on(closed).expect("the connection stays open").to_string()
    }

    /// Becomes a worker of the run as a real one does, on the coordinator.
    pub(crate) fn join(&mut self, run: &Resolved) -> (WorkerId, Incarnation) {
        self.join_with(&Papers::of(run))
    }

    /// The same, as often as the server has not all of its shards yet, which can be so when it has just begun.
    pub(crate) fn join_with(&mut self, papers: &Papers) -> (WorkerId, Incarnation) {
        let (mut former, end) = (papers.join.former, Instant::now() + PATIENCE);
        loop {
            let (member, answer) = self.join_once(papers, former);
            match answer {
                Some(ToPeer::Registered { .. }) => return member,
                Some(ToPeer::Refused(Refusal { code: RefusalCode::NotReady, .. }))
                    if Instant::now() < end =>
                {
                    *self = self.another(&self.address).unwrap();
                    former = Some(member);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn join_once(
        &mut self,
        Papers { join, batch_count }: &Papers,
        former: Option<(WorkerId, Incarnation)>,
    ) -> ((WorkerId, Incarnation), Option<ToPeer>) {
        let Join { layout_hash, config_hash, .. } = *join;
        self.say(&ToServer::Join(Join { former, ..join.clone() }));
        let joined = self.next();
        let Some(ToPeer::Joined { worker, incarnation, clock }) = joined else { panic!("{joined:?}") };
        let (batch_count, answered) = (*batch_count, Sequence(0));
        let register =
            Register { worker, incarnation, layout_hash, config_hash, clock, batch_count, answered };
        self.say(&ToServer::Register(register));
        ((worker, incarnation), self.next())
    }

    /// Sends a push with `values` for `keys`.
    pub(crate) fn push(&self, header: TransferHeader, values: Vec<f32>) {
        let values = SharedValues::from(values);
        // It fails where the server ends the connection before it has all.
        let _ = self.runtime.block_on(transfer::send(&self.connection, header, &values, &self.settings));
    }
}

/// The header of a first push, for a test to spoil.
pub(crate) fn push_header(
    (worker, incarnation): (WorkerId, Incarnation),
    shard: ShardId,
    keys: KeyRange,
) -> TransferHeader {
    TransferHeader {
        worker,
        incarnation,
        sequence: Sequence(1),
        clock: Clock(1),
        samples: 1,
        ..TransferHeader::plain(TransferKind::Push, shard, keys)
    }
}
