//! Bytes one way between two processes, with nothing of parameters around them: QUIC with our settings, and plain TCP.
//!
//! The same bytes go over QUIC's bare streams, over TCP, and as pushes and pulls of a model, in turns within one run: what is lost between them is the
//! cost of what is around the bytes.

use std::io::{BufRead, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use slackline_core::ids::ServerId;
use slackline_core::wire::{PROTOCOL, ToPeer};
use slackline_net::{Connection, Connector, Identity, Listener, NetworkThread, Role, Settings, bare};

use super::children::Placed;
use super::{BenchError, Cell, say};
use crate::processes::Processes;

/// How long a server is looked for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that are given to TCP at once.
const CHUNK_BYTES: usize = 1 << 20;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Carrier {
    /// QUIC, encrypted, with the settings of the cell.
    Quic,
    /// TCP, neither encrypted nor authenticated, as the system has it.
    Tcp,
}

/// A server and a client between which bytes go.
pub(super) struct Pair {
    processes: Processes,
}

/// What it took to carry bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    /// From the word to the client until the server had all.
    pub wall: Duration,
    /// Processor seconds of the side that sends, and of the one that receives; none where the system does not tell.
    pub processor_seconds: Option<(f64, f64)>,
    /// Payload of the datagrams that the path was used with in the end, in bytes; none where it was not asked.
    pub datagram_bytes: Option<u16>,
}

impl Pair {
    /// Starts both, and waits until they are connected.
    pub(super) fn start(carrier: Carrier, cell: &Cell, placed: &Placed) -> Result<Self, BenchError> {
        let mut processes = Processes::new();
        let name = if carrier == Carrier::Quic { "quic" } else { "tcp" };
        let spawn = |processes: &mut Processes, role: &str, via: &[String], extra: &[&str]| {
            let mut command = Processes::this_program_via(via)?;
            command.args([role, "--carrier", name]).arg("--keys").arg(&placed.keys).args(extra);
            command.args(cell.sets.iter().flat_map(|set| ["--set", set]));
            processes.spawn(format!("{role} {name}"), command)
        };
        spawn(&mut processes, "raw-server", &placed.server_via, &["--bind", &placed.bind.to_string()])?;
        let address = processes.each_says(0..1, "ready")?.remove(0);
        spawn(&mut processes, "raw-client", &placed.worker_via, &["--address", &address])?;
        processes.each_says(1..2, "warm")?;
        Ok(Self { processes })
    }

    /// Sends bytes over so many streams.
    pub(super) fn carry(&mut self, streams: u32, bytes: u64) -> Result<Carried, BenchError> {
        let used = |processes: &Processes| {
            processes.processor_seconds_of(1..2).zip(processes.processor_seconds_of(0..1))
        };
        let before = used(&self.processes);
        self.processes.tell(1..2, &format!("go {streams} {bytes}"))?;
        let said = self.processes.each_says(1..2, "done")?.remove(0);
        let mut words = said.split(' ');
        let wall = words.next().and_then(|word| word.parse().ok()).map(Duration::from_micros);
        let wall = wall.ok_or_else(|| BenchError::Protocol(format!("\"{said}\" is no time")))?;
        let datagram_bytes = words.next().and_then(|word| word.parse().ok());
        let after = used(&self.processes);
        let processor_seconds =
            before.zip(after).map(|(before, after)| (after.0 - before.0, after.1 - before.1));
        Ok(Carried { wall, processor_seconds, datagram_bytes })
    }

    pub(super) fn end(self) -> Result<(), BenchError> {
        self.processes.end()
    }
}

fn settings(cell: &Cell) -> Result<Settings, BenchError> {
    let config = cell.resolve()?.config;
    Ok(Settings::new(&config.transport, Duration::from_secs_f64(config.cluster.lease_s)))
}

/// The receiving side, until standard input ends. Says `ready ADDRESS`.
///
/// # Errors
/// The configuration is refused, or there is no such address.
pub fn serve(carrier: Carrier, cell: &Cell, bind: IpAddr, keys: &Path) -> Result<(), BenchError> {
    let net = NetworkThread::start("raw-server").map_err(BenchError::system("no network thread"))?;
    let address = SocketAddr::new(bind, 0);
    match carrier {
        Carrier::Quic => {
            let (settings, identity) = (settings(cell)?, Identity::load(keys, Role::Server)?);
            let bound = net.block_on(async move { Listener::bind(address, &identity, &settings) })?;
            let listener = bound.map_err(|error| BenchError::network("listening")(&error))?;
            say(&format!("ready {}", listener.local_address()));
            net.handle().spawn(take_quic(listener));
        }
        Carrier::Tcp => {
            let listener = TcpListener::bind(address).map_err(BenchError::system("listening"))?;
            let local = listener.local_addr().map_err(BenchError::system("the address of a socket"))?;
            say(&format!("ready {local}"));
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    std::thread::spawn(move || take_tcp(stream));
                }
            });
        }
    }
    // Whoever holds the other end has what it wants, or is gone.
    std::io::stdin().lock().lines().for_each(drop);
    Ok(())
}

async fn take_quic(listener: Listener) {
    while let Some(handshake) = listener.accept().await {
        let Ok(connection) = handshake.complete().await else { continue };
        tokio::spawn(async move {
            // The other side takes the connection for good with the first message.
            let Ok((mut control, _receiver)) = connection.open_control().await else { return };
            let welcome = ToPeer::Welcome { protocol: PROTOCOL, server: ServerId(0), boot: 0 };
            if control.send(&welcome).await.is_ok() {
                bare::take(&connection).await;
            }
        });
    }
}

/// Reads a stream to its end, and answers.
fn take_tcp(mut stream: TcpStream) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
    let _ = stream.write_all(&[1]);
}

/// The sending side. Says `warm` when it is connected; for every `go STREAMS BYTES` on standard input it sends, and says
/// `done MICROSECONDS` and, over QUIC, the payload of the path's datagrams.
///
/// # Errors
/// The server cannot be reached, or the network failed.
pub fn send(carrier: Carrier, cell: &Cell, address: String, keys: PathBuf) -> Result<(), BenchError> {
    let net = NetworkThread::start("raw-client").map_err(BenchError::system("no network thread"))?;
    let connection = match carrier {
        Carrier::Quic => {
            let (settings, identity, address) =
                (settings(cell)?, Identity::load(&keys, Role::Worker)?, address.clone());
            let connecting = async move {
                let connector = Connector::new(&identity, &settings)?;
                let connection = connector.connect(&address, PATIENCE).await;
                Ok::<_, BenchError>((
                    connection.map_err(|error| BenchError::network("connecting")(&error))?,
                    connector,
                ))
            };
            Some(net.block_on(connecting)??)
        }
        Carrier::Tcp => None,
    };
    say("warm");
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("standard input"))?;
        let numbers: Vec<u64> = line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
        let [streams, bytes] = numbers[..] else {
            return Err(BenchError::Protocol(format!("\"{line}\" says nothing to do")));
        };
        let began = Instant::now();
        match &connection {
            Some((connection, _)) => send_quic(&net, connection, streams as u32, bytes)?,
            None => send_tcp(&address, streams, bytes)?,
        }
        let took = began.elapsed().as_micros();
        match &connection {
            Some((connection, _)) => say(&format!("done {took} {}", connection.datagram_bytes())),
            None => say(&format!("done {took}")),
        }
    }
    Ok(())
}

fn send_quic(
    net: &NetworkThread,
    connection: &Connection,
    streams: u32,
    bytes: u64,
) -> Result<(), BenchError> {
    let connection = connection.clone();
    let sent = net.block_on(async move { bare::send(&connection, streams, bytes).await })?;
    sent.map_err(|error| BenchError::network("sending")(&error))
}

fn send_tcp(address: &str, streams: u64, bytes: u64) -> Result<(), BenchError> {
    let one = || {
        let mut stream = TcpStream::connect(address)?;
        let (chunk, mut left) = (vec![0; CHUNK_BYTES], bytes / streams.max(1));
        while left > 0 {
            let part = left.min(CHUNK_BYTES as u64);
            stream.write_all(&chunk[..part as usize])?;
            left -= part;
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.read_exact(&mut [0])
    };
    let sent: std::io::Result<()> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..streams.max(1)).map(|_| scope.spawn(one)).collect();
        all.into_iter()
            .try_for_each(|one| one.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
    });
    sent.map_err(BenchError::system("sending over TCP"))
}
