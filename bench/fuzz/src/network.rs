//! The listening socket: datagrams of strangers, raw and as first packets whose protection is right.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::sync::OnceLock;
use std::time::Duration;

use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::Version;
use rustls::{Side, quic};
use slackline_core::ids::ServerId;
use slackline_core::wire::{PROTOCOL, ToPeer};
use slackline_net::{Connector, Handshake, Identity, Listener, Role, Settings, keys};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

/// After so many inputs the listener is made anew, so that half-open connections do not pile up.
const INPUTS_MAX: u32 = 5000;

/// Turns of the network's thread that an input is given: enough to read its datagrams and to answer.
const TURNS: usize = 24;

/// Datagrams of one input.
const DATAGRAMS_MAX: usize = 8;

/// The least that a first packet may have (RFC 9000, section 14.1).
const FIRST_BYTES_MIN: usize = 1200;

/// Bytes of a packet's authentication tag, and of what its header is protected by.
const TAG: usize = 16;
const SAMPLE: usize = 16;

struct Server {
    runtime: Runtime,
    listener: Listener,
    stranger: UdpSocket,
    address: SocketAddr,
    handshakes: Vec<AbortHandle>,
    inputs: u32,
}

fn key_folder() -> &'static TempDir {
    static KEYS: OnceLock<TempDir> = OnceLock::new();
    KEYS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder for keys");
        keys::init(folder.path()).expect("new keys");
        folder
    })
}

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

impl Server {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let identity = Identity::load(key_folder().path(), Role::Server).expect("the server's keys");
        let address = "127.0.0.1:0".parse().expect("an address");
        let listener = {
            let _inside = runtime.enter();
            Listener::bind(address, &identity, &Settings::default()).expect("a socket")
        };
        let address = listener.local_address();
        let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        Self { runtime, listener, stranger, address, handshakes: Vec::new(), inputs: 0 }
    }

    /// Gives the listener its turns, and completes what handshakes there are.
    fn turn(&mut self) {
        let Self { runtime, listener, handshakes, .. } = self;
        runtime.block_on(async {
            for _ in 0..TURNS {
                tokio::select! {
                    biased;
                    Some(handshake) = listener.accept() => handshakes.push(tokio::spawn(greet(handshake)).abort_handle()),
                    () = tokio::task::yield_now() => {}
                }
            }
        });
        if handshakes.len() > 64 {
            handshakes.drain(..).for_each(|task| task.abort());
        }
    }
}

async fn greet(handshake: Handshake) {
    let Ok(connection) = handshake.complete().await else { return };
    let Ok((mut sender, _receiver)) = connection.open_control().await else { return };
    let _ = sender.send(&ToPeer::Welcome { protocol: PROTOCOL, server: ServerId(0), boot: 1 }).await;
    connection.closed().await;
}

fn with_server(act: impl FnOnce(&mut Server)) {
    SERVER.with_borrow_mut(|server| {
        if server.as_ref().is_some_and(|server| server.inputs >= INPUTS_MAX) {
            *server = None;
        }
        let server = server.get_or_insert_with(Server::start);
        server.inputs += 1;
        act(server);
    });
}

/// Datagrams, each behind its length in two bytes.
pub(crate) fn datagrams(bytes: &[u8]) {
    with_server(|server| {
        let mut rest = bytes;
        for _ in 0..DATAGRAMS_MAX {
            let Some((length, after)) = rest.split_first_chunk() else { break };
            let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
            let (datagram, after) = after.split_at(length);
            // The kernel may have no room for it, as on a real network.
            let _ = server.stranger.send_to(datagram, server.address);
            rest = after;
        }
        server.turn();
    });
}

/// The frames of a first packet, such as a piece of a TLS hello; they come as a stranger's who knows the protocol well.
pub(crate) fn handshake(bytes: &[u8]) {
    with_server(|server| {
        server.inputs += 1;
        // Each input is a connection of its own: two of one name would be one.
        let id = (u64::from(server.inputs) << 32 | u64::from(std::process::id())).to_be_bytes();
        if let Some(datagram) = first_packet(id, bytes) {
            let _ = server.stranger.send_to(&datagram, server.address);
        }
        server.turn();
    });
}

/// A first packet with these frames, protected as RFC 9001 says (section 5.2), padded to the size that is asked for.
fn first_packet(id: [u8; 8], frames: &[u8]) -> Option<Vec<u8>> {
    const NUMBER_BYTES: usize = 4;
    let suite = TLS13_AES_128_GCM_SHA256.tls13()?.quic_suite()?;
    let quic::Keys { local, .. } = suite.keys(&id, Side::Client, Version::V1);
    let frames = frames.get(..frames.len().min(1300))?;
    // Header: form, version, the two connection ids, no token, the length, the number.
    let mut header = vec![0xc3, 0, 0, 0, 1, 8];
    header.extend_from_slice(&id);
    header.extend_from_slice(&[8]);
    header.extend_from_slice(&id);
    header.push(0);
    let before_payload = header.len() + 2 + NUMBER_BYTES;
    let mut payload = frames.to_vec();
    payload.resize(payload.len().max(FIRST_BYTES_MIN.saturating_sub(before_payload + TAG)), 0);
    let length = u16::try_from(NUMBER_BYTES + payload.len() + TAG).ok()?;
    header.extend_from_slice(&(0x4000 | length).to_be_bytes());
    let number_at = header.len();
    header.extend_from_slice(&[0; NUMBER_BYTES]);

    let tag = local.packet.encrypt_in_place(0, &header, &mut payload).ok()?;
    let mut packet = header;
    packet.extend_from_slice(&payload);
    packet.extend_from_slice(tag.as_ref());
    let sample: [u8; SAMPLE] = *packet.get(number_at + NUMBER_BYTES..)?.first_chunk()?;
    let (first, rest) = packet.split_first_mut()?;
    let number = rest.get_mut(number_at - 1..number_at - 1 + NUMBER_BYTES)?;
    local.header.encrypt_in_place(&sample, first, number).ok()?;
    Some(packet)
}

/// Whether the listener that took all inputs of this thread still lets an honest peer in.
#[must_use]
pub fn is_alive() -> bool {
    let mut is_alive = false;
    with_server(|server| {
        let identity = Identity::load(key_folder().path(), Role::Worker).expect("the worker's keys");
        let connector = Connector::new(&identity, &Settings::default()).expect("a connector");
        let address = server.address.to_string();
        let Server { runtime, listener, .. } = server;
        is_alive = runtime.block_on(async {
            let serve = async {
                while let Some(handshake) = listener.accept().await {
                    tokio::spawn(greet(handshake));
                }
            };
            tokio::select! {
                () = serve => false,
                outcome = connector.connect(&address, Duration::from_secs(20)) => outcome.is_ok(),
            }
        });
    });
    is_alive
}
