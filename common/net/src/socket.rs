//! UDP sockets with buffers large enough for bursts of bulk transfers, and the way that leads to a peer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Once;

use socket2::{Domain, Protocol, Socket, Type};

use crate::error::BindError;
use crate::settings::Settings;

/// Opens a UDP socket on `address`; port 0 for any free one. An unspecified IPv6 address takes IPv4 too, where the system can. Also returns
/// the bytes that the system keeps for it until they are read.
pub(crate) fn bind(address: SocketAddr, settings: &Settings) -> Result<(UdpSocket, u64), BindError> {
    open(address, settings).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::Taken { address },
        io::ErrorKind::AddrNotAvailable => BindError::NotOurs { address },
        io::ErrorKind::PermissionDenied => BindError::Forbidden { address },
        _ => BindError::Other { address, source },
    })
}

fn open(address: SocketAddr, settings: &Settings) -> io::Result<(UdpSocket, u64)> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        let both = address.ip().is_unspecified();
        // A system without IPv4-mapped addresses still serves IPv6.
        if let Err(error) = socket.set_only_v6(!both) {
            tracing::debug!(%error, "the socket takes IPv6 only");
        }
    }
    let buffers = enlarge(&socket, settings.socket_buffer_bytes);
    socket.bind(&address.into())?;
    Ok((socket.into(), buffers.receive as u64))
}

/// What the system gives a socket, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Buffers {
    receive: usize,
    send: usize,
}

/// A full burst must fit into the buffers, else the kernel drops what QUIC then sends again. A smaller buffer costs speed only.
fn enlarge(socket: &Socket, asked: u64) -> Buffers {
    let bytes = usize::try_from(asked).unwrap_or(usize::MAX).min(i32::MAX as usize / 2);
    // What these say is not asked: what counts is what is there afterwards.
    let _ = (socket.set_recv_buffer_size(bytes), socket.set_send_buffer_size(bytes));
    let mut buffers = granted(socket);
    if buffers.receive < bytes || buffers.send < bytes {
        beyond_the_limit(socket, bytes);
        buffers = granted(socket);
    }
    if let Some(warning) = warning(bytes, buffers) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::warn!("{warning}"));
    }
    buffers
}

fn granted(socket: &Socket) -> Buffers {
    // Linux reports twice what can be used: the other half is for its own records.
    let share = if cfg!(target_os = "linux") { 2 } else { 1 };
    Buffers {
        receive: socket.recv_buffer_size().unwrap_or(0) / share,
        send: socket.send_buffer_size().unwrap_or(0) / share,
    }
}

/// Who may configure the network may have more than the system's limit (CAP_NET_ADMIN, socket(7)); nobody else gets anything by this.
#[cfg(target_os = "linux")]
fn beyond_the_limit(socket: &Socket, bytes: usize) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, bytes);
    let _ = sockopt::set_socket_send_buffer_size_force(socket, bytes);
}

#[cfg(not(target_os = "linux"))]
fn beyond_the_limit(_: &Socket, _: usize) {}

/// What to tell where less was granted than `asked`, with what to do about it; nothing where all was.
fn warning(asked: usize, buffers: Buffers) -> Option<String> {
    let Buffers { receive, send } = buffers;
    let short: Vec<&str> = [("net.core.rmem_max", receive < asked), ("net.core.wmem_max", send < asked)]
        .iter()
        .filter_map(|(key, is_short)| is_short.then_some(*key))
        .collect();
    if short.is_empty() {
        return None;
    }
    let settings: Vec<String> = short.iter().map(|key| format!("{key}={asked}")).collect();
    Some(format!(
        "the system grants UDP buffers of {receive} bytes for receiving and {send} for sending, {asked} were asked for \
         (transport.socket_buffer_bytes): transfers may be slower. To allow them: sysctl -w {}",
        settings.join(" ")
    ))
}

/// How this machine would send to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Route {
    /// The address that it would send from.
    pub(crate) source: Option<IpAddr>,
    /// The largest packet that the way takes as far as this machine knows: its own device, or less that a router has told of.
    pub(crate) mtu: Option<u32>,
}

/// The route to `remote`. Connecting a UDP socket sends nothing: it only chooses the way.
pub(crate) fn route_to(remote: SocketAddr) -> Route {
    let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
    let any: IpAddr =
        if remote.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let connected = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(remote).map(|()| socket));
    let Ok(socket) = connected else { return Route::default() };
    Route {
        source: socket.local_addr().ok().map(|address| address.ip()),
        mtu: mtu(&socket, remote.is_ipv6()),
    }
}

#[cfg(target_os = "linux")]
fn mtu(socket: &UdpSocket, is_v6: bool) -> Option<u32> {
    use rustix::net::sockopt;
    if is_v6 { sockopt::ipv6_mtu(socket) } else { sockopt::ip_mtu(socket) }.ok()
}

#[cfg(not(target_os = "linux"))]
fn mtu(_: &UdpSocket, _: bool) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_names_both_directions_and_only_what_is_to_be_set() {
        let asked = 4_194_304;
        let text = |receive, send| warning(asked, Buffers { receive, send });
        assert_eq!(text(asked, asked), None);
        let both = text(212_992, 106_496).unwrap();
        assert!(
            both.contains("of 212992 bytes for receiving and 106496 for sending, 4194304 were"),
            "{both}"
        );
        assert!(both.ends_with("sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304"), "{both}");
        let one = text(asked, 106_496).unwrap();
        assert!(one.ends_with("sysctl -w net.core.wmem_max=4194304"), "{one}");
        let other = text(212_992, asked).unwrap();
        assert!(other.ends_with("sysctl -w net.core.rmem_max=4194304"), "{other}");
    }

    #[test]
    fn what_is_granted_is_read_back() {
        let settings = Settings { socket_buffer_bytes: 100_000, ..Settings::default() };
        let (socket, granted) = bind((Ipv4Addr::LOCALHOST, 0).into(), &settings).unwrap();
        assert!(granted > 0);
        let buffers = self::granted(&socket.into());
        assert_eq!(buffers.receive as u64, granted);
    }

    #[test]
    fn the_way_to_this_machine_begins_here() {
        let route = route_to((Ipv4Addr::LOCALHOST, 9).into());
        assert_eq!(route.source, Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(route_to((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 9).into()), route);
        if cfg!(target_os = "linux") {
            assert!(route.mtu.is_some_and(|mtu| mtu >= 1280), "{route:?}");
        }
    }
}
