//! One worker of a cell: it joins, brings the initial values, and then pushes and pulls without computing.
//!
//! It says `warm` when it has done its first rounds. For every `go N` on standard input it does N rounds, and says `done` with the
//! microseconds that its pushes waited for servers, the bytes that its own code copied, and the microseconds of each round. It ends when standard
//! input does.
//!
//! Where checkpoints are made, it also tells the coordinator of every round, between the rounds, since their marks follow what is done.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use slackline_core::codec::Encoding;
use slackline_core::config::Resolved;
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Sequence, ServerId, ShardId, Version, WorkerId,
};
use slackline_core::wire::{
    Ask, BatchResult, Fate, Join, Pull, PullKind, PushOutcome, RefusalCode, Register, ToPeer, ToServer,
    TransferHeader, TransferKind, Work,
};
use slackline_net::{
    Connection, Connector, ControlSender, Destination, Identity, NetworkThread, Role, Settings, SharedValues,
    count, transfer,
};
use slackline_worker::packing::{Packer, Part};
use tokio::sync::mpsc;

use super::{BenchError, Cell, RATE, Way, say};
use arrivals::Arrival;

mod arrivals;
pub mod held;
pub mod idle;

/// Rounds before those that count: the windows grow and the buffers are made in them.
const WARM_ROUNDS: u32 = 2;

/// What a value may be off, as a share: the rate is small beside a value that many pushes have made, and each of them is rounded.
const TOLERANCE: f32 = 4e-3;

/// How long a server is left alone that does not know its shards yet.
const AGAIN: Duration = Duration::from_millis(20);

/// How long a server is looked for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Samples that the coordinator is told there are: enough for the one batch that each worker asks for.
const SAMPLES: u64 = 1 << 32;

/// Batches that the servers are told the run has; only the schedule of the rate depends on it, and that is constant.
const BATCHES: u64 = 1 << 40;

/// Runs the worker to its end.
///
/// # Errors
/// A server did not do as it should, or the network failed.
pub fn run(cell: &Cell, addresses: Vec<String>, keys: PathBuf) -> Result<(), BenchError> {
    let (resolved, way) = (cell.resolve()?, cell.way);
    let net = NetworkThread::start("worker").map_err(BenchError::system("no network thread"))?;
    let warming = async move {
        let mut worker = Worker::begin(&resolved, &addresses, &keys).await?;
        worker.way = way;
        for _ in 0..WARM_ROUNDS {
            worker.round().await?;
            worker.tell().await?;
        }
        Ok::<Worker, BenchError>(worker)
    };
    let mut worker = net.block_on(warming)??;
    say("warm");
    // The worker holds its connections until the processes have been looked at.
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("standard input"))?;
        let rounds = line.strip_prefix("go ").and_then(|count| count.parse::<u32>().ok());
        let rounds = rounds.ok_or_else(|| BenchError::Protocol(format!("\"{line}\" says nothing to do")))?;
        let counting = async move {
            worker.busy_us = 0;
            let copied = count::copied_bytes();
            let mut took = Vec::new();
            for _ in 0..rounds {
                let began = Instant::now();
                worker.round().await?;
                took.push(began.elapsed().as_micros().to_string());
                worker.tell().await?;
            }
            Ok::<_, BenchError>((worker, count::copied_bytes() - copied, took))
        };
        let (copied, took);
        (worker, copied, took) = net.block_on(counting)??;
        say(&format!("done {} {copied} {}", worker.busy_us, took.join(" ")));
    }
    worker.check()
}

/// A shard, and what this worker knows of it.
struct Shard {
    id: ShardId,
    keys: KeyRange,
    server: usize,
    /// The version that was pulled last.
    version: Version,
    /// What is still to come in this round: the values, and the answer to the push.
    awaits: (bool, bool),
}

struct Link {
    connection: Connection,
    control: ControlSender,
}

struct Worker {
    member: (WorkerId, Incarnation),
    /// The same, once it has joined.
    former: Option<(WorkerId, Incarnation)>,
    network: Settings,
    links: Vec<Link>,
    shards: Vec<Shard>,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    gradient: SharedValues,
    /// What writes it; none where it goes as it is.
    packer: Option<Packer>,
    values: Destination,
    /// Rounds completed.
    clock: Clock,
    /// Pulls so far, of all shards together.
    pulls: u64,
    /// The batch that this round stands for.
    batch: BatchIndex,
    /// What a round is.
    way: Way,
    /// Whether the coordinator is told of every round.
    tells: bool,
    /// Microseconds that pushes waited for servers since that was said last.
    busy_us: u64,
}

impl Worker {
    async fn begin(resolved: &Resolved, addresses: &[String], keys: &Path) -> Result<Self, BenchError> {
        let mut worker = Self::enter_all(resolved, addresses, keys).await?;
        worker.await_others().await?;
        Ok(worker)
    }

    /// Becomes a member of all servers.
    async fn enter_all(resolved: &Resolved, addresses: &[String], keys: &Path) -> Result<Self, BenchError> {
        let config = &resolved.config;
        let network = Settings::new(&config.transport, Duration::from_secs_f64(config.cluster.lease_s));
        let connector = Connector::new(&Identity::load(keys, Role::Worker)?, &network)?;
        let partition = config.partition();
        let shards: Vec<Shard> = partition
            .shards()
            .map(|(id, keys)| {
                let ServerId(server) = partition.server_of(id);
                Shard { id, keys, server: server as usize, version: Version(0), awaits: (false, false) }
            })
            .collect();
        let flat = KeyRange::new(0, config.layout().len());
        let values = Destination::from(vec![0.0; flat.len as usize]);
        let (told, arrivals) = mpsc::unbounded_channel();
        let mut worker = Self {
            member: Default::default(),
            former: None,
            network,
            links: Vec::new(),
            shards,
            arrivals,
            gradient: SharedValues::from(vec![1.0; flat.len as usize]),
            packer: Packer::of(config),
            values,
            clock: Clock(0),
            pulls: 0,
            batch: BatchIndex(0),
            way: Way::Both,
            tells: config.checkpoint.every.is_some(),
            busy_us: 0,
        };
        for (server, address) in addresses.iter().enumerate() {
            worker.enter(resolved, &connector, server, address, &told).await?;
        }
        Ok(worker)
    }

    /// Becomes a member of a server, once that knows its shards.
    async fn enter(
        &mut self,
        resolved: &Resolved,
        connector: &Connector,
        server: usize,
        address: &str,
        told: &mpsc::UnboundedSender<Arrival>,
    ) -> Result<(), BenchError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let entered = self.enter_once(resolved, connector, server, address, told).await;
            if !matches!(entered, Err(BenchError::NotReady)) || Instant::now() > end {
                return entered;
            }
            // What is still said over that connection is its end.
            self.links.truncate(server);
            while !matches!(self.arrivals.recv().await, Some(Arrival::Failed(_)) | None) {}
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Connects to a server and becomes a member of it; worker 0 brings its shards their values.
    async fn enter_once(
        &mut self,
        resolved: &Resolved,
        connector: &Connector,
        server: usize,
        address: &str,
        told: &mpsc::UnboundedSender<Arrival>,
    ) -> Result<(), BenchError> {
        let failed = BenchError::network("connecting");
        let connection = connector.connect(address, PATIENCE).await.map_err(|error| failed(&error))?;
        let (control, receiver) = connection.accept_control().await.map_err(|error| failed(&error))?;
        let transfers = arrivals::take_transfers(connection.clone(), self.values.clone(), told.clone());
        tokio::spawn(arrivals::read(receiver, told.clone()));
        tokio::spawn(transfers);
        self.links.push(Link { connection, control });
        let (layout_hash, config_hash) = (resolved.config.layout().hash(), resolved.hash());
        if server == 0 {
            let join = Join {
                layout_hash,
                config_hash,
                data_hash: 0,
                sample_count: SAMPLES,
                former: self.former,
                peers_at: None,
            };
            self.send(server, &ToServer::Join(join)).await?;
            self.member = loop {
                match self.message().await? {
                    ToPeer::Joined { worker, incarnation, .. } => break (worker, incarnation),
                    other => welcome_only(&other)?,
                }
            };
            self.former = Some(self.member);
        }
        let (worker, incarnation) = self.member;
        let (clock, batch_count) = (Clock(0), BATCHES);
        let answered = Sequence(0);
        let register =
            Register { worker, incarnation, layout_hash, config_hash, clock, batch_count, answered };
        self.send(server, &ToServer::Register(register)).await?;
        loop {
            match self.message().await? {
                ToPeer::Registered { .. } => break,
                other => welcome_only(&other)?,
            }
        }
        if worker == WorkerId(0) {
            for shard in self.shards.iter().filter(|shard| shard.server == server) {
                let zeros = SharedValues::from(vec![0.0; shard.keys.len as usize]);
                self.transfer(shard, TransferKind::Initial, None, zeros);
            }
        }
        Ok(())
    }

    /// Asks for work, which no worker is given before all have asked; then pulls for the first time, which the servers hold until
    /// they have values.
    async fn await_others(&mut self) -> Result<(), BenchError> {
        self.ask(Vec::new()).await?;
        self.pull_all().await?;
        self.settle().await
    }

    /// Pushes and pulls every shard, or does one of the two. The pull goes out behind the push, and the server holds it until the push is
    /// applied.
    async fn round(&mut self) -> Result<(), BenchError> {
        if self.way != Way::Pull {
            self.push_all().await?;
        }
        if self.way != Way::Push {
            self.pull_all().await?;
        }
        self.settle().await
    }

    /// What a codec writes, it writes on another thread, while what it has written before is on its way.
    async fn push_all(&mut self) -> Result<(), BenchError> {
        for shard in &self.shards {
            let part = self.gradient.slice(shard.keys.as_indices());
            let Some(mut packer) = self.packer.take() else {
                self.transfer(shard, TransferKind::Push, None, part);
                continue;
            };
            let (worker, id) = (self.member.0, shard.id);
            let packing = tokio::task::spawn_blocking(move || {
                let payload = packer.pack(
                    worker,
                    id,
                    Part { gradient: part.as_ref(), values: None, factors: &[] },
                    Vec::new(),
                );
                (packer, payload)
            });
            let packed = packing.await.map_err(|error| BenchError::Protocol(error.to_string()))?;
            self.packer = Some(packed.0);
            let encoding = packed.1.encoding();
            self.transfer(shard, TransferKind::Push, Some(encoding), packed.1.into_words().into());
        }
        self.clock = self.clock.next();
        self.shards.iter_mut().for_each(|shard| shard.awaits.1 = true);
        Ok(())
    }

    async fn pull_all(&mut self) -> Result<(), BenchError> {
        self.pulls += 1;
        for index in 0..self.shards.len() {
            self.shards[index].awaits.0 = true;
            self.pull(index).await?;
        }
        Ok(())
    }

    /// Tells the coordinator of the round that is done, where it has need of that.
    async fn tell(&mut self) -> Result<(), BenchError> {
        if !self.tells {
            return Ok(());
        }
        let clock = Clock(self.clock.0 - 1);
        let (number, batch, fate) = (self.clock.0, self.batch, Fate::Done { compute_us: 0 });
        self.ask(vec![BatchResult { number, batch, clock, fate }]).await
    }

    /// Asks for work, and waits for it.
    async fn ask(&mut self, results: Vec<BatchResult>) -> Result<(), BenchError> {
        let ask = Ask { clock: self.clock, results, report: None };
        self.send(0, &ToServer::Ask(ask)).await?;
        loop {
            match self.message().await? {
                ToPeer::Work(Work::Batch { batch, .. }) => break self.batch = batch,
                other => welcome_only(&other)?,
            }
        }
        Ok(())
    }

    fn transfer(&self, shard: &Shard, kind: TransferKind, encoding: Option<Encoding>, values: SharedValues) {
        let (worker, incarnation) = self.member;
        let sequence = if kind == TransferKind::Push { Sequence(self.clock.0 + 1) } else { Sequence(0) };
        let header = TransferHeader {
            worker,
            incarnation,
            sequence,
            clock: self.clock,
            version: shard.version,
            batch: self.batch,
            samples: 1,
            ..TransferHeader::plain(kind, shard.id, shard.keys)
        };
        let header = encoding.map_or(header, |encoding| header.with_payload(encoding, values.len() as u64));
        let (connection, network) = (self.links[shard.server].connection.clone(), self.network);
        tokio::spawn(async move {
            // What does not go out is never answered, and the lost connection is told by its other tasks.
            let _ = transfer::send(&connection, header, &values, &network).await;
        });
    }

    async fn pull(&mut self, index: usize) -> Result<(), BenchError> {
        let Shard { id, server, .. } = self.shards[index];
        let kind = PullKind::Gated { clock: self.clock, after: Sequence(self.clock.0), ahead: 0 };
        let pull = Pull { shard: id, request: self.pulls, have: 0, kind };
        self.send(server, &ToServer::Pull(pull)).await
    }

    /// Waits until nothing of this round is to come any more.
    async fn settle(&mut self) -> Result<(), BenchError> {
        while self.shards.iter().any(|shard| shard.awaits != (false, false)) {
            match self.arrival().await? {
                Arrival::Values { shard, version } => {
                    if let Some(shard) = self.shards.iter_mut().find(|known| known.id == shard) {
                        (shard.version, shard.awaits.0) = (version, false);
                    }
                }
                Arrival::Message(ToPeer::Pushed(pushed)) => {
                    if !matches!(pushed.outcome, PushOutcome::Applied { .. } | PushOutcome::Gathered { .. }) {
                        return Err(BenchError::Protocol(format!("a push was not applied: {pushed:?}")));
                    }
                    self.busy_us += pushed.busy_us;
                    if let Some(shard) = self.shards.iter_mut().find(|known| known.id == pushed.shard) {
                        shard.awaits.1 = false;
                    }
                }
                Arrival::Message(other) => welcome_only(&other)?,
                Arrival::Failed(_) => {}
            }
        }
        Ok(())
    }

    async fn send(&mut self, server: usize, message: &ToServer) -> Result<(), BenchError> {
        let sent = self.links[server].control.send(message).await;
        sent.map_err(|error| BenchError::network("sending")(&error))
    }

    async fn arrival(&mut self) -> Result<Arrival, BenchError> {
        match self.arrivals.recv().await {
            Some(Arrival::Failed(reason)) => Err(BenchError::network("receiving")(&reason)),
            Some(arrival) => Ok(arrival),
            None => Err(BenchError::network("receiving")(&"all connections have ended")),
        }
    }

    async fn message(&mut self) -> Result<ToPeer, BenchError> {
        match self.arrival().await? {
            Arrival::Message(message) => Ok(message),
            _ => Err(BenchError::Protocol("values came unasked".to_owned())),
        }
    }

    /// Whether the values are those of their versions: each push subtracts the rate from each of them.
    fn check(self) -> Result<(), BenchError> {
        let values = self.values.take();
        for shard in &self.shards {
            let part = &values[shard.keys.as_indices()];
            let wanted = -RATE * shard.version.0 as f32;
            let wrong = part.iter().find(|value| (**value - wanted).abs() > wanted.abs() * TOLERANCE);
            if let Some(wrong) = wrong {
                let (id, version) = (shard.id, shard.version);
                return Err(BenchError::Protocol(format!("{id}, {version}: {wrong} is not {wanted}")));
            }
        }
        Ok(())
    }
}

/// A server's greeting tells nothing that is needed here; any other message was not asked for.
fn welcome_only(message: &ToPeer) -> Result<(), BenchError> {
    match message {
        ToPeer::Welcome { .. } => Ok(()),
        ToPeer::Refused(refusal) if refusal.code == RefusalCode::NotReady => Err(BenchError::NotReady),
        ToPeer::Refused(refusal) => Err(BenchError::Protocol(refusal.text.shown())),
        other => Err(BenchError::Protocol(format!("a message that was not asked for: {other:?}"))),
    }
}
