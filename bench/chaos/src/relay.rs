//! A link between a process and a server that can be cut, lose packets, delay them and let few bytes through: a relay of UDP datagrams on this machine.
//!
//! Network namespaces with netem do the same in the kernel, where it has netem; this works on any machine and for any user. Each process
//! reaches each server through a relay of its own, so one link can be bad while the others are good.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// The largest datagram that UDP can carry.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// Packets that are on their way in one direction while the link delays them; more are lost, as on a full router.
const DELAYED_MAX: usize = 8192;

/// Ways back to peers that one relay keeps. A process that comes back has another port.
const PEERS_MAX: usize = 32;

/// What a link does to packets now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weather {
    /// Nothing passes.
    pub is_cut: bool,
    /// Share of the packets that are lost.
    pub loss: f64,
    /// How much later each comes.
    pub delay: Duration,
    /// Bytes of a second that pass in each direction, one packet after another; none where they take no time.
    pub rate: Option<u32>,
}

/// A handle to change what a link does.
#[derive(Clone, Debug)]
pub struct Link {
    weather: Arc<Mutex<Weather>>,
    passed: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Link {
    /// Changes what happens to packets from now on.
    pub fn set(&self, weather: Weather) {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }

    /// Packets that passed and packets that were lost on purpose.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.passed.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }

    fn weather(&self) -> Weather {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A relay in front of one server.
#[derive(Debug)]
pub struct Relay {
    /// Where the process connects to.
    pub address: SocketAddr,
    /// What the link does.
    pub link: Link,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    /// Opens a relay on a free port of the loopback to `server`; what is lost follows from `seed`.
    ///
    /// # Errors
    /// When there is no free port.
    pub async fn open(server: SocketAddr, seed: u64) -> std::io::Result<Self> {
        let front = Arc::new(UdpSocket::bind(("127.0.0.1", 0)).await?);
        let address = front.local_addr()?;
        let link = Link { weather: Arc::default(), passed: Arc::default(), lost: Arc::default() };
        let task = tokio::spawn(relay(front, server, link.clone(), seed));
        Ok(Self { address, link, task })
    }
}

/// The way of one peer's packets to the server and back.
struct Way {
    out: Lane,
    used: Instant,
    back: JoinHandle<()>,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.back.abort();
    }
}

async fn relay(front: Arc<UdpSocket>, server: SocketAddr, link: Link, seed: u64) {
    let mut ways: BTreeMap<SocketAddr, Way> = BTreeMap::new();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    let mut opened = 0;
    loop {
        // An error on a UDP socket is news of an earlier packet (its port was closed); the next one may pass.
        let Ok((length, peer)) = front.recv_from(&mut buffer).await else { continue };
        if !ways.contains_key(&peer) {
            opened += 1;
            forget_oldest(&mut ways);
            let Ok(way) = open_way(&front, peer, server, &link, seed ^ (opened << 32)).await else {
                continue;
            };
            ways.insert(peer, way);
        }
        if let Some(way) = ways.get_mut(&peer) {
            way.used = Instant::now();
            way.out.pass(&buffer[..length]).await;
        }
    }
}

fn forget_oldest(ways: &mut BTreeMap<SocketAddr, Way>) {
    if ways.len() >= PEERS_MAX
        && let Some(oldest) = ways.iter().min_by_key(|(_, way)| way.used).map(|(peer, _)| *peer)
    {
        ways.remove(&oldest);
    }
}

async fn open_way(
    front: &Arc<UdpSocket>,
    peer: SocketAddr,
    server: SocketAddr,
    link: &Link,
    seed: u64,
) -> std::io::Result<Way> {
    let outside = Arc::new(UdpSocket::bind(("127.0.0.1", 0)).await?);
    outside.connect(server).await?;
    let out = Lane::new(Destination::Server(outside.clone()), link.clone(), seed);
    let mut home = Lane::new(Destination::Peer(front.clone(), peer), link.clone(), !seed);
    let back = tokio::spawn(async move {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            match outside.recv(&mut buffer).await {
                Ok(length) => home.pass(&buffer[..length]).await,
                // The server's port is closed at the moment; do not spin while it is.
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    Ok(Way { out, used: Instant::now(), back })
}

#[derive(Clone)]
enum Destination {
    Server(Arc<UdpSocket>),
    Peer(Arc<UdpSocket>, SocketAddr),
}

impl Destination {
    /// Waits only while the socket's buffer is full. A packet that cannot be sent is lost, as on a link.
    async fn send(&self, packet: &[u8]) {
        let _ = match self {
            Self::Server(socket) => socket.send(packet).await,
            Self::Peer(socket, peer) => socket.send_to(packet, *peer).await,
        };
    }
}

/// One direction of a way.
struct Lane {
    destination: Destination,
    link: Link,
    chance: ChaCha8Rng,
    /// Packets that are to leave later, in order.
    delayed: mpsc::Sender<(Instant, Vec<u8>)>,
    /// When the last of them leaves: no packet overtakes another when the delay is taken back.
    last: Instant,
    sending: JoinHandle<()>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.sending.abort();
    }
}

impl Lane {
    fn new(destination: Destination, link: Link, seed: u64) -> Self {
        let (delayed, mut waiting) = mpsc::channel::<(Instant, Vec<u8>)>(DELAYED_MAX);
        let sending = tokio::spawn({
            let destination = destination.clone();
            async move {
                while let Some((at, packet)) = waiting.recv().await {
                    sleep_until(at).await;
                    destination.send(&packet).await;
                }
            }
        });
        Self {
            destination,
            link,
            chance: ChaCha8Rng::seed_from_u64(seed),
            delayed,
            last: Instant::now(),
            sending,
        }
    }

    async fn pass(&mut self, packet: &[u8]) {
        let weather = self.link.weather();
        let is_lost = weather.is_cut || (weather.loss > 0.0 && self.chance.random_bool(weather.loss));
        if is_lost {
            self.link.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.link.passed.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let takes = weather.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(packet.len() as f64 / f64::from(rate.max(1)))
        });
        // The line is busy with what came before: a burst waits for itself.
        let at = (now + weather.delay).max(self.last) + takes;
        if at <= now {
            self.destination.send(packet).await;
        } else if self.delayed.try_send((at, packet.to_vec())).is_ok() {
            self.last = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends every packet back, and a peer that reaches it through a relay.
    async fn stage() -> (Relay, UdpSocket) {
        let server = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
        let relay = Relay::open(server.local_addr().unwrap(), 1).await.unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 64];
            loop {
                let (length, from) = server.recv_from(&mut buffer).await.unwrap();
                server.send_to(&buffer[..length], from).await.unwrap();
            }
        });
        let peer = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
        peer.connect(relay.address).await.unwrap();
        (relay, peer)
    }

    async fn echo(peer: &UdpSocket, number: u8) -> Option<u8> {
        peer.send(&[number]).await.unwrap();
        let mut buffer = [0; 1];
        let answer = tokio::time::timeout(Duration::from_millis(200), peer.recv(&mut buffer)).await;
        answer.ok().map(|_| buffer[0])
    }

    #[tokio::test]
    async fn packets_pass_both_ways_unless_the_link_is_cut() {
        let (relay, peer) = stage().await;
        assert_eq!(echo(&peer, 1).await, Some(1));
        relay.link.set(Weather { is_cut: true, ..Weather::default() });
        assert_eq!(echo(&peer, 2).await, None);
        relay.link.set(Weather::default());
        assert_eq!(echo(&peer, 3).await, Some(3));
        assert_eq!(relay.link.counts(), (4, 1));
    }

    #[tokio::test]
    async fn loss_takes_its_share() {
        let (relay, peer) = stage().await;
        relay.link.set(Weather { loss: 0.5, ..Weather::default() });
        for number in 0..200 {
            peer.send(&[number]).await.unwrap();
            // Each packet is counted before the next is sent, so that no buffer decides.
            while relay.link.counts().0 + relay.link.counts().1 < u64::from(number) + 1 {
                tokio::task::yield_now().await;
            }
        }
        let (passed, lost) = relay.link.counts();
        assert!(lost > 60 && passed > 60, "{lost} of {} were lost", passed + lost);
    }

    #[tokio::test]
    async fn a_packet_takes_its_time_on_a_line_of_few_bytes_and_waits_for_those_before_it() {
        let (relay, peer) = stage().await;
        relay.link.set(Weather { rate: Some(5_000), ..Weather::default() });
        let began = Instant::now();
        for number in 0..4 {
            peer.send(&[number; 50]).await.unwrap();
        }
        let mut buffer = [0; 50];
        for number in 0..4 {
            peer.recv(&mut buffer).await.unwrap();
            assert_eq!(buffer[0], number);
        }
        // Four packets on the way there, and the last of them back.
        assert!(began.elapsed() >= Duration::from_millis(50), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_delay_holds_packets_and_keeps_their_order() {
        let (relay, peer) = stage().await;
        relay.link.set(Weather { delay: Duration::from_millis(30), ..Weather::default() });
        let began = Instant::now();
        for number in 0..20 {
            peer.send(&[number]).await.unwrap();
        }
        let mut buffer = [0; 1];
        for number in 0..10 {
            peer.recv(&mut buffer).await.unwrap();
            assert_eq!(buffer[0], number);
        }
        relay.link.set(Weather::default());
        peer.send(&[20]).await.unwrap();
        for number in 10..=20 {
            peer.recv(&mut buffer).await.unwrap();
            assert_eq!(buffer[0], number);
        }
        assert!(began.elapsed() >= Duration::from_millis(60), "once on each way");
    }
}
