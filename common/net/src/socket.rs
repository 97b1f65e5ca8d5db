//! UDP sockets with buffers large enough for bursts of bulk transfers.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Once;

use socket2::{Domain, Protocol, Socket, Type};

use crate::error::BindError;
use crate::settings::Settings;

/// Opens a UDP socket on `address`; port 0 for any free one. An unspecified IPv6 address takes IPv4 too, where the system can.
pub(crate) fn bind(address: SocketAddr, settings: &Settings) -> Result<UdpSocket, BindError> {
    open(address, settings).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::Taken { address },
        io::ErrorKind::AddrNotAvailable => BindError::NotOurs { address },
        io::ErrorKind::PermissionDenied => BindError::Forbidden { address },
        _ => BindError::Other { address, source },
    })
}

fn open(address: SocketAddr, settings: &Settings) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        let both = address.ip().is_unspecified();
        // A system without IPv4-mapped addresses still serves IPv6.
        if let Err(error) = socket.set_only_v6(!both) {
            tracing::debug!(%error, "the socket takes IPv6 only");
        }
    }
    enlarge(&socket, settings.socket_buffer_bytes);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// A full burst must fit into the buffers, else the kernel drops what QUIC then sends again. A smaller buffer costs speed only.
fn enlarge(socket: &Socket, asked: u64) {
    let bytes = usize::try_from(asked).unwrap_or(usize::MAX).min(i32::MAX as usize);
    for (key, set, get) in [
        ("net.core.rmem_max", socket.set_recv_buffer_size(bytes), socket.recv_buffer_size()),
        ("net.core.wmem_max", socket.set_send_buffer_size(bytes), socket.send_buffer_size()),
    ] {
        // Linux reports twice what can be used: the other half is for its own records.
        let granted = get.unwrap_or(0) / if cfg!(target_os = "linux") { 2 } else { 1 };
        if set.is_err() || granted < bytes {
            warn_clamped(key, bytes, granted);
        }
    }
}

fn warn_clamped(key: &str, asked: usize, granted: usize) {
    static RECEIVE: Once = Once::new();
    static SEND: Once = Once::new();
    let once = if key.contains("rmem") { &RECEIVE } else { &SEND };
    once.call_once(|| {
        tracing::warn!(
            "the system grants UDP buffers of {granted} bytes, {asked} were asked for; transfers may be slower. \
             To allow them: sysctl -w {key}={asked}"
        );
    });
}
