//! What a connection is allowed to have in flight, and how QUIC is set up for it.
//!
//! Two kinds of path are told apart. On the **near** path both ends are on one machine, and the loopback device takes a datagram
//! of 64 KiB: with it one connection moves two to three times what Ethernet-sized datagrams do, as the cost is per packet. On the
//! **far** path a connection begins with 1200 bytes and searches for more, up to what the device takes that leads there: 1452 over
//! Ethernet, 8952 over jumbo frames.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use slackline_core::config::timers::KEEP_ALIVES;
use slackline_core::config::{Congestion, Transport};
use slackline_core::order::Priority;
use slackline_core::role::Role;
use slackline_core::wire::{TransferHeader, TransferKind};

use crate::congestion;

/// Payload of the largest datagram that IPv4 can carry: 65,535 less its header and UDP's.
const NEAR_V4_BYTES: u16 = 65_507;

/// The same for IPv6 on a loopback device of 65,536 bytes, whose header is not counted in the payload.
const NEAR_V6_BYTES: u16 = 65_488;

/// Headers of IP and UDP with either family.
const HEADERS_BYTES: u32 = 40 + 8;

/// What a device takes that does not say: Ethernet's.
const ETHERNET_MTU: u32 = 1500;

/// The largest that is searched for between machines: what jumbo frames take. Seven of them go in one call to the kernel.
const FAR_BYTES_MAX: u16 = 8952;

/// What every path of QUIC must take.
const SMALLEST_BYTES: u16 = 1200;

/// Up to here the kernel is given several datagrams at once. It takes 64 KiB in a call, and two are the least that saves one.
const SEGMENTED_BYTES_MAX: u16 = NEAR_V4_BYTES / 2;

/// How long a near path that lost several bursts in a row is used with small datagrams. Its datagrams were lost because the receiver did
/// not get to them, and not because of their size; QUIC's minute is for routes that have changed.
const NEAR_COOLDOWN: Duration = Duration::from_millis(100);

/// Streams of transfers that a peer may have open at once, where nothing else bounds what it makes this side hold.
pub(crate) const UNI_STREAMS: u32 = 256;

/// One control stream is all that is needed; a few more do no harm.
const BIDI_STREAMS: u32 = 4;

/// Before the round trip is known, how long to wait for the first answer. QUIC's 333 ms would ask a server that is just
/// starting only after 1, 3 and 7 seconds.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);

/// What a connection may use. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How a sender finds its rate.
    pub congestion: Congestion,
    /// Payload of one UDP datagram; none to choose by the path.
    pub datagram_bytes: Option<u16>,
    /// In flight on a connection that does not know its path yet. Raised to two datagrams where it is less.
    pub initial_window_bytes: u64,
    /// Least size of a stripe of a transfer.
    pub stripe_bytes: u64,
    /// Streams that one transfer is spread over at most.
    pub streams: u32,
    /// Unread bytes of one stream. quinn closes a connection whose one stream has more than 1024 gaps: 3 MiB of Ethernet
    /// datagrams cannot have that many, 64 MiB of them can at 2.3 % loss.
    pub stream_window_bytes: u64,
    /// Unread bytes of one connection: the bound on what a peer can make this process hold.
    pub connection_window_bytes: u64,
    /// Unacknowledged bytes of one connection.
    pub send_window_bytes: u64,
    /// What one session may make a server hold: see [`Settings::shares`].
    pub session_bytes: u64,
    /// Buffers asked for a UDP socket, each way.
    pub socket_buffer_bytes: u64,
    /// Which transfers go first.
    pub order: Priority,
    /// Bytes of a worker's transfers that are under way on one connection at once.
    pub credit_bytes: u64,
    /// Bytes a second that a worker pushes to one server at most; 0 for no bound.
    pub push_bytes_per_s: u64,
    /// A connection that hears nothing for this long is lost.
    pub idle_timeout: Duration,
    /// A quiet connection says something this often.
    pub keep_alive: Duration,
}

/// How what a session may make a server hold is divided, in bytes. Together less than all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Arrived and not read.
    pub unread: u64,
    /// Transfers that are being put together, or wait for their shard.
    pub arriving: u64,
    /// Values that the peer has not acknowledged.
    pub leaving: u64,
}

const MIB: u64 = 1 << 20;

impl Default for Settings {
    fn default() -> Self {
        Self {
            congestion: Congestion::Auto,
            datagram_bytes: None,
            initial_window_bytes: MIB,
            stripe_bytes: MIB,
            streams: 4,
            stream_window_bytes: 3 * MIB,
            connection_window_bytes: 64 * MIB,
            send_window_bytes: 64 * MIB,
            session_bytes: 64 * MIB,
            socket_buffer_bytes: 4 * MIB,
            order: Priority::Arrival,
            credit_bytes: 32 * MIB,
            push_bytes_per_s: 0,
            idle_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_millis(2500),
        }
    }
}

impl Settings {
    /// The settings of a run. A connection is lost after one lease of silence, and speaks four times in a lease.
    #[must_use]
    pub fn new(transport: &Transport, lease: Duration) -> Self {
        Self {
            congestion: transport.congestion,
            datagram_bytes: transport.datagram_bytes,
            initial_window_bytes: transport.initial_window_bytes,
            stripe_bytes: transport.stripe_bytes,
            streams: transport.streams,
            stream_window_bytes: transport.stream_window_bytes,
            connection_window_bytes: transport.connection_window_bytes,
            send_window_bytes: transport.send_window_bytes,
            session_bytes: transport.session_bytes,
            socket_buffer_bytes: transport.socket_buffer_bytes,
            order: transport.order,
            credit_bytes: transport.credit_bytes,
            push_bytes_per_s: transport.push_bytes_per_s,
            idle_timeout: lease,
            keep_alive: lease / KEEP_ALIVES,
        }
    }

    /// The rank of a transfer: the lowest goes first. Those between the workers of an allreduce have an order of their own.
    #[must_use]
    pub const fn rank(&self, header: &TransferHeader) -> u32 {
        match header.kind {
            TransferKind::Push | TransferKind::Initial | TransferKind::Values => {
                self.order.rank(header.shard)
            }
            _ => 0,
        }
    }

    /// Payload of the largest datagram that an endpoint must take in.
    pub(crate) fn receive_bytes(&self, near: bool) -> u16 {
        let largest = if near { NEAR_V4_BYTES } else { FAR_BYTES_MAX };
        // Never below what QUIC assumes of Ethernet: the other side may have other settings.
        self.datagram_bytes.unwrap_or(largest).max(1472)
    }

    /// The parts that [`Settings::session_bytes`] is divided into.
    #[must_use]
    pub const fn shares(&self) -> Shares {
        let eighth = self.session_bytes / 8;
        Shares { unread: 3 * eighth, arriving: 2 * eighth, leaving: 3 * eighth }
    }

    /// Streams of transfers that a peer may have open at a listener of this role. At a server, all of them unread must leave room in
    /// the connection's window: else what nobody reads yet would keep out what it waits for.
    pub(crate) const fn uni_streams(&self, role: Role) -> u32 {
        if !matches!(role, Role::Server) {
            return UNI_STREAMS;
        }
        let unread = self.shares().unread / self.stream_window_bytes;
        let fits = (self.connection_window_bytes / self.stream_window_bytes).saturating_sub(1);
        let streams = if unread < fits { unread } else { fits };
        match streams {
            0 => 1,
            1..256 => streams as u32,
            _ => UNI_STREAMS,
        }
    }

    /// For one side of a connection over `path`.
    pub(crate) fn transport(&self, path: Path, side: Side) -> Arc<TransportConfig> {
        let Side { streams, buffer_bytes, connects } = side;
        let datagram = self.datagram(path);
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(datagram.largest);
        if path.is_near() {
            discovery.black_hole_cooldown(NEAR_COOLDOWN);
        }
        let initial_window = self.initial_window(datagram.largest);

        let mut transport = TransportConfig::default();
        transport
            .initial_mtu(datagram.first)
            .mtu_discovery_config(Some(discovery))
            .enable_segmentation_offload(datagram.largest <= SEGMENTED_BYTES_MAX)
            .congestion_controller_factory(congestion::factory(
                self.congestion,
                path.is_near(),
                initial_window,
            ))
            .initial_rtt(FIRST_ROUND_TRIP)
            .max_concurrent_uni_streams(streams.into())
            .max_concurrent_bidi_streams(BIDI_STREAMS.into())
            .stream_receive_window(var_int(self.stream_window_bytes))
            .receive_window(var_int(self.connection_window_bytes))
            .send_window(self.send_window(path, buffer_bytes))
            // A stripe that is complete early can be used early; in turns, all would be complete only at the end.
            .send_fairness(false)
            // One side is enough: the other hears it, and it hears the answers.
            .keep_alive_interval(connects.then_some(self.keep_alive))
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            // Unreliable datagrams are no part of the protocol.
            .datagram_receive_buffer_size(None);
        Arc::new(transport)
    }

    /// On the near path nothing but the receiver's socket buffer holds what it has not got to yet: more in flight than fits in there is
    /// lost whenever it computes for a moment, and is waited for.
    const fn send_window(&self, path: Path, buffer_bytes: u64) -> u64 {
        let fits = buffer_bytes / 4 * 3;
        if path.is_near() && fits < self.send_window_bytes { fits } else { self.send_window_bytes }
    }

    /// The window must exceed a datagram, else quinn waits for room that never comes; CUBIC keeps two datagrams after a loss too.
    fn initial_window(&self, datagram: u16) -> u64 {
        self.initial_window_bytes.max(2 * u64::from(datagram))
    }

    fn datagram(&self, path: Path) -> Datagram {
        let asked = self.datagram_bytes.map(|bytes| bytes.clamp(SMALLEST_BYTES, NEAR_V4_BYTES));
        match path {
            Path::NearV4 => Datagram::fixed(asked.unwrap_or(NEAR_V4_BYTES)),
            Path::NearV6 => Datagram::fixed(asked.unwrap_or(NEAR_V6_BYTES).min(NEAR_V6_BYTES)),
            Path::Far { mtu } => {
                let largest = asked.unwrap_or_else(|| far_bytes(mtu.unwrap_or(ETHERNET_MTU)));
                Datagram { first: SMALLEST_BYTES, largest }
            }
        }
    }
}

/// What is different at the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    /// Streams of transfers that the peer may have open at once.
    pub(crate) streams: u32,
    /// Bytes that the system gives the socket to receive with.
    pub(crate) buffer_bytes: u64,
    /// Whether it is the one that connects.
    pub(crate) connects: bool,
}

/// Which path a connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Within the machine, IPv4.
    NearV4,
    /// Within the machine, IPv6.
    NearV6,
    /// Between machines.
    Far {
        /// The largest packet that the device takes which leads there, IP's header included, if that is known.
        mtu: Option<u32>,
    },
}

/// Payload of the largest datagram that is searched for where a packet has at most `mtu` bytes.
fn far_bytes(mtu: u32) -> u16 {
    let fits = u16::try_from(mtu.saturating_sub(HEADERS_BYTES)).unwrap_or(u16::MAX);
    fits.clamp(SMALLEST_BYTES, FAR_BYTES_MAX)
}

impl Path {
    /// The path to `remote` of a socket that has the address `local` and a device that takes `mtu` bytes, as far as they are known. An IPv4
    /// address may come as an IPv6 one.
    pub(crate) fn to(remote: IpAddr, local: Option<IpAddr>, mtu: Option<u32>) -> Self {
        let remote = remote.to_canonical();
        let near = remote.is_loopback() || local.map(|ip| ip.to_canonical()) == Some(remote);
        match (near, remote) {
            (true, IpAddr::V4(_)) => Self::NearV4,
            (true, IpAddr::V6(_)) => Self::NearV6,
            (false, _) => Self::Far { mtu },
        }
    }

    pub(crate) const fn is_near(self) -> bool {
        matches!(self, Self::NearV4 | Self::NearV6)
    }
}

/// The datagrams of a path: what to begin with, and what to search up to.
struct Datagram {
    first: u16,
    largest: u16,
}

impl Datagram {
    const fn fixed(bytes: u16) -> Self {
        Self { first: bytes, largest: bytes }
    }
}

fn var_int(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn the_initial_window_exceeds_every_datagram() {
        for window in [0, 1, 12_000, 65_507, MIB] {
            let settings = Settings { initial_window_bytes: window, ..Settings::default() };
            for datagram in [SMALLEST_BYTES, FAR_BYTES_MAX, NEAR_V6_BYTES, NEAR_V4_BYTES] {
                assert!(settings.initial_window(datagram) >= 2 * u64::from(datagram));
                assert!(settings.initial_window(datagram) >= window);
            }
        }
    }

    #[test]
    fn streams_that_nobody_reads_leave_room_for_those_that_are_read() {
        for session in [1, 8 * MIB, 64 * MIB, 4096 * MIB] {
            for (stream, connection) in
                [(3 * MIB, 64 * MIB), (MIB, 4 * MIB), (4 * MIB, 4 * MIB), (65_536, MIB)]
            {
                let settings = Settings {
                    session_bytes: session,
                    stream_window_bytes: stream,
                    connection_window_bytes: connection,
                    ..Settings::default()
                };
                let streams = u64::from(settings.uni_streams(Role::Server));
                assert!(streams == 1 || (streams + 1) * stream <= connection, "{settings:?}");
                assert!(streams == 1 || streams * stream <= settings.shares().unread, "{settings:?}");
            }
        }
        assert_eq!(Settings::default().uni_streams(Role::Server), 8);
        assert_eq!(Settings::default().uni_streams(Role::Worker), UNI_STREAMS);
    }

    #[test]
    fn a_path_within_the_machine_is_near_by_either_address() {
        let lan = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5));
        let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 6));
        let mtu = Some(1500);
        assert_eq!(Path::to(Ipv4Addr::LOCALHOST.into(), None, mtu), Path::NearV4);
        assert_eq!(Path::to(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), None, mtu), Path::NearV4);
        assert_eq!(Path::to(Ipv6Addr::LOCALHOST.into(), None, mtu), Path::NearV6);
        assert_eq!(Path::to(lan, Some(lan), mtu), Path::NearV4);
        assert_eq!(Path::to(lan, Some(other), mtu), Path::Far { mtu });
        assert_eq!(Path::to(lan, None, None), Path::Far { mtu: None });
    }

    #[test]
    fn a_far_path_begins_with_what_every_path_takes() {
        let jumbo = Settings { datagram_bytes: Some(8952), ..Settings::default() };
        let datagram = jumbo.datagram(Path::Far { mtu: Some(1500) });
        assert_eq!((datagram.first, datagram.largest), (SMALLEST_BYTES, 8952));
        assert_eq!(jumbo.datagram(Path::NearV4).first, 8952);
        assert_eq!(Settings::default().datagram(Path::NearV6).first, NEAR_V6_BYTES);
    }

    #[test]
    fn a_far_path_searches_up_to_what_its_device_takes() {
        let searched = |mtu| {
            let datagram = Settings::default().datagram(Path::Far { mtu });
            assert_eq!(datagram.first, SMALLEST_BYTES);
            datagram.largest
        };
        assert_eq!([searched(None), searched(Some(1500)), searched(Some(9000))], [1452, 1452, 8952]);
        // A tunnel; a device below what QUIC needs; one of 64 KiB that is not within the machine.
        assert_eq!(
            [searched(Some(1420)), searched(Some(576)), searched(Some(65_535))],
            [1372, 1200, FAR_BYTES_MAX]
        );
        assert!(Settings::default().receive_bytes(false) >= FAR_BYTES_MAX, "the other side must take it");
    }

    #[test]
    fn within_the_machine_no_more_is_in_flight_than_the_system_keeps() {
        let settings = Settings::default();
        let far = Path::Far { mtu: None };
        assert_eq!(settings.send_window(Path::NearV4, 4 * MIB), 3 * MIB);
        // The default of Linux, where more was asked for.
        assert_eq!(settings.send_window(Path::NearV6, 212_992), 159_744);
        assert_eq!(settings.send_window(far, 212_992), settings.send_window_bytes);
    }
}
