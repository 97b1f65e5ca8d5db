//! What a connection is allowed to have in flight, and how QUIC is set up for it.
//!
//! Two kinds of path are told apart. On the **near** path both ends are on one machine, and the loopback device takes a datagram
//! of 64 KiB: with it one connection moves two to four times what Ethernet-sized datagrams do, as the cost is per packet. On the
//! **far** path a connection begins with 1200 bytes and searches for more, up to what Ethernet takes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::CubicConfig;
use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use slackline_core::config::Transport;
use slackline_core::config::timers::KEEP_ALIVES;
use slackline_core::role::Role;

/// Payload of the largest datagram that IPv4 can carry: 65,535 less its header and UDP's.
const NEAR_V4_BYTES: u16 = 65_507;

/// The same for IPv6 on a loopback device of 65,536 bytes, whose header is not counted in the payload.
const NEAR_V6_BYTES: u16 = 65_488;

/// What Ethernet takes with either family and the usual tunnels left out.
const FAR_BYTES: u16 = 1452;

/// What every path of QUIC must take.
const SMALLEST_BYTES: u16 = 1200;

/// quinn hands the kernel up to ten segments at once, which must stay below 64 KiB together; the kernel refuses more, quinn does
/// not notice, and the datagrams are lost.
const SEGMENTED_BYTES_MAX: u16 = 6500;

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
            datagram_bytes: None,
            initial_window_bytes: MIB,
            stripe_bytes: MIB,
            streams: 4,
            stream_window_bytes: 3 * MIB,
            connection_window_bytes: 64 * MIB,
            send_window_bytes: 64 * MIB,
            session_bytes: 64 * MIB,
            socket_buffer_bytes: 4 * MIB,
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
            datagram_bytes: transport.datagram_bytes,
            initial_window_bytes: transport.initial_window_bytes,
            stripe_bytes: transport.stripe_bytes,
            streams: transport.streams,
            stream_window_bytes: transport.stream_window_bytes,
            connection_window_bytes: transport.connection_window_bytes,
            send_window_bytes: transport.send_window_bytes,
            session_bytes: transport.session_bytes,
            socket_buffer_bytes: transport.socket_buffer_bytes,
            idle_timeout: lease,
            keep_alive: lease / KEEP_ALIVES,
        }
    }

    /// Payload of the largest datagram that an endpoint must take in.
    pub(crate) fn receive_bytes(&self, near: bool) -> u16 {
        let largest = if near { NEAR_V4_BYTES } else { FAR_BYTES };
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

    /// `streams` of transfers may the peer have open at once.
    pub(crate) fn transport(&self, path: Path, streams: u32) -> Arc<TransportConfig> {
        let datagram = self.datagram(path);
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(datagram.largest);
        let mut congestion = CubicConfig::default();
        congestion.initial_window(self.initial_window(datagram.largest));

        let mut transport = TransportConfig::default();
        transport
            .initial_mtu(datagram.first)
            .mtu_discovery_config(Some(discovery))
            .enable_segmentation_offload(datagram.largest <= SEGMENTED_BYTES_MAX)
            .congestion_controller_factory(Arc::new(congestion))
            .initial_rtt(FIRST_ROUND_TRIP)
            .max_concurrent_uni_streams(streams.into())
            .max_concurrent_bidi_streams(BIDI_STREAMS.into())
            .stream_receive_window(var_int(self.stream_window_bytes))
            .receive_window(var_int(self.connection_window_bytes))
            .send_window(self.send_window(path))
            // A stripe that is complete early can be used early; in turns, all would be complete only at the end.
            .send_fairness(false)
            .keep_alive_interval(Some(self.keep_alive))
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            // Unreliable datagrams are no part of the protocol.
            .datagram_receive_buffer_size(None);
        Arc::new(transport)
    }

    /// On the near path nothing but the receiver's socket buffer holds what it has not got to yet: more in flight than fits in there is
    /// lost whenever it computes for a moment, and is waited for.
    const fn send_window(&self, path: Path) -> u64 {
        let fits = self.socket_buffer_bytes / 4 * 3;
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
            Path::Far => Datagram { first: SMALLEST_BYTES, largest: asked.unwrap_or(FAR_BYTES) },
        }
    }
}

/// Which path a connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Within the machine, IPv4.
    NearV4,
    /// Within the machine, IPv6.
    NearV6,
    /// Between machines.
    Far,
}

impl Path {
    /// The path to `remote` of a socket that has the address `local`, if that is known. An IPv4 address may come as an IPv6 one.
    pub(crate) fn to(remote: IpAddr, local: Option<IpAddr>) -> Self {
        let remote = remote.to_canonical();
        let near = remote.is_loopback() || local.map(|ip| ip.to_canonical()) == Some(remote);
        match (near, remote) {
            (true, IpAddr::V4(_)) => Self::NearV4,
            (true, IpAddr::V6(_)) => Self::NearV6,
            (false, _) => Self::Far,
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
            for datagram in [SMALLEST_BYTES, FAR_BYTES, NEAR_V6_BYTES, NEAR_V4_BYTES] {
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
        assert_eq!(Path::to(Ipv4Addr::LOCALHOST.into(), None), Path::NearV4);
        assert_eq!(Path::to(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), None), Path::NearV4);
        assert_eq!(Path::to(Ipv6Addr::LOCALHOST.into(), None), Path::NearV6);
        assert_eq!(Path::to(lan, Some(lan)), Path::NearV4);
        assert_eq!(Path::to(lan, Some(other)), Path::Far);
        assert_eq!(Path::to(lan, None), Path::Far);
    }

    #[test]
    fn a_far_path_begins_with_what_every_path_takes() {
        let jumbo = Settings { datagram_bytes: Some(8952), ..Settings::default() };
        let datagram = jumbo.datagram(Path::Far);
        assert_eq!((datagram.first, datagram.largest), (SMALLEST_BYTES, 8952));
        assert_eq!(jumbo.datagram(Path::NearV4).first, 8952);
        assert_eq!(Settings::default().datagram(Path::NearV6).first, NEAR_V6_BYTES);
    }
}
