//! `slackline server` and `slackline worker`.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slackline_core::ids::ServerId;
use slackline_server::{ServerOptions, serve};
use slackline_worker::WorkerOptions;

use crate::cli::{ServerArgs, WorkerArgs};
use crate::failure::Failure;
use crate::resolve_clustered;

/// What a ready server says on standard output, before its address.
pub(crate) const READY: &str = " is ready: ";

pub(crate) fn server(args: &ServerArgs) -> Result<u8, Failure> {
    let resolved = resolve_clustered(&args.clustered)?;
    let config = &resolved.config;
    if args.index >= config.servers {
        let text = format!("--index {}: the run has {} servers, counted from 0", args.index, config.servers);
        return Err(Failure::user(text));
    }
    let configured = config.cluster.addresses.get(args.index as usize).cloned();
    let bind = match (&args.bind, &configured) {
        (Some(bind), _) => to_bind(bind)?,
        (None, Some(address)) => to_bind_of(address)?,
        (None, None) => {
            let problem = resolved.addresses().err().map_or_else(String::new, |problem| problem.to_string());
            return Err(Failure::user(format!("{problem}; or give --bind HOST:PORT")));
        }
    };
    if args.leash {
        hold_leash();
    }
    let (keys, out) = (PathBuf::from(&config.cluster.keys), PathBuf::from(&config.out));
    let index = ServerId(args.index);
    let advertise = args.advertise.clone();
    let ready = Box::new(move |local: SocketAddr| {
        let address = reachable(advertise.as_deref(), configured.as_deref(), local);
        let bound = if address == local.to_string() { String::new() } else { format!(" (bound to {local})") };
        if let Some(entry) = configured.filter(|entry| *entry != address) {
            tracing::warn!(
                "{index} is reached at {address}, and workers dial {entry}: correct cluster.addresses"
            );
        }
        // Whoever started the process may not read what it says.
        let _ = writeln!(std::io::stdout(), "{index}{READY}{address}{bound}");
        let _ = std::io::stdout().flush();
    });
    let options = ServerOptions { index, resolved, bind, keys, out, trace: args.trace, ready };
    serve(options).map_err(|error| Failure::of(error.is_users(), error)).map(|_| 0)
}

pub(crate) fn worker(args: &WorkerArgs) -> Result<u8, Failure> {
    let resolved = resolve_clustered(&args.clustered)?;
    let addresses = resolved.addresses().map_err(Failure::user)?.to_vec();
    let keys = PathBuf::from(&resolved.config.cluster.keys);
    if args.leash {
        hold_leash();
    }
    let options = WorkerOptions { resolved, addresses, keys };
    slackline_worker::run(options).map_err(|error| Failure::of(error.is_users(), error)).map(|()| 0)
}

/// Ends this process as a signal would when standard input ends: whoever held the other end is gone.
fn hold_leash() {
    std::thread::spawn(|| {
        let mut nothing = [0; 64];
        while matches!(std::io::stdin().read(&mut nothing), Ok(count) if count > 0) {}
        let _ = kill(Pid::this(), Signal::SIGTERM);
    });
}

fn to_bind(text: &str) -> Result<SocketAddr, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::user(format!("--bind {text}: {error}; write HOST:PORT, such as 0.0.0.0:4400 or [::]:4400"))
    };
    let mut addresses = text.to_socket_addrs().map_err(|error| failed(&error))?;
    addresses.next().ok_or_else(|| failed(&"the name has no address"))
}

/// What to bind for an entry of cluster.addresses: the address itself where it is one. A name that stands for this machine alone
/// binds the loopback address that it stands for; any other binds every address, since it may stand for one that only others see.
fn to_bind_of(entry: &str) -> Result<SocketAddr, Failure> {
    if let Ok(address) = entry.parse::<SocketAddr>() {
        return Ok(address);
    }
    let port = entry.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let port = port.ok_or_else(|| Failure::user(format!("cluster.addresses: {entry} has no port")))?;
    let named: Vec<_> = entry.to_socket_addrs().map_or_else(|_| Vec::new(), Iterator::collect);
    Ok(SocketAddr::new(to_bind_among(&named), port))
}

fn to_bind_among(named: &[SocketAddr]) -> IpAddr {
    // A family that is switched off has names all the same.
    let can_be_bound = |ip: &IpAddr| UdpSocket::bind((*ip, 0)).is_ok();
    let all_loopback = named.iter().all(|address| address.ip().is_loopback());
    let loopback = named.iter().map(SocketAddr::ip).find(can_be_bound).filter(|_| all_loopback);
    loopback.unwrap_or_else(|| {
        let every = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        if can_be_bound(&every) { every } else { Ipv4Addr::UNSPECIFIED.into() }
    })
}

/// The address that others reach a server at: what was said, else the host of the configuration, else what was bound.
fn reachable(advertise: Option<&str>, configured: Option<&str>, local: SocketAddr) -> String {
    let host_of = |entry: &str| entry.rsplit_once(':').map(|(host, _)| host.to_owned());
    match (advertise, configured) {
        (Some(said), _) if has_port(said) => said.to_owned(),
        (Some(host), _) if host.contains(':') && !host.starts_with('[') => {
            format!("[{host}]:{}", local.port())
        }
        (Some(host), _) => format!("{host}:{}", local.port()),
        (None, Some(entry)) if local.ip().is_unspecified() || stands_for(entry, local.ip()) => {
            host_of(entry).map_or_else(|| local.to_string(), |host| format!("{host}:{}", local.port()))
        }
        _ => local.to_string(),
    }
}

fn stands_for(entry: &str, ip: IpAddr) -> bool {
    entry.to_socket_addrs().is_ok_and(|mut named| named.any(|address| address.ip() == ip))
}

fn has_port(text: &str) -> bool {
    let after_host = text.rsplit_once(']').map_or(text, |(_, rest)| rest);
    let is_bare_ipv6 = !text.starts_with('[') && text.matches(':').count() > 1;
    !is_bare_ipv6 && after_host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Case 50: host names were not accepted, the wrong interface was picked, binding failed behind a service address.
    #[test]
    fn names_and_addresses_of_both_families_can_be_advertised() {
        let local: SocketAddr = "0.0.0.0:4400".parse().unwrap();
        for (advertise, configured, expected) in [
            (Some("node7"), None, "node7:4400"),
            (Some("node7:99"), None, "node7:99"),
            (Some("10.0.0.7"), Some("node7:4400"), "10.0.0.7:4400"),
            (Some("fe80::1"), None, "[fe80::1]:4400"),
            (Some("[fe80::1]"), None, "[fe80::1]:4400"),
            (Some("[fe80::1]:99"), None, "[fe80::1]:99"),
            (None, Some("node7:0"), "node7:4400"),
            (None, None, "0.0.0.0:4400"),
        ] {
            assert_eq!(reachable(advertise, configured, local), expected, "{advertise:?} {configured:?}");
        }
    }

    #[test]
    fn an_address_binds_itself() {
        assert_eq!(to_bind_of("10.1.2.3:44").unwrap(), "10.1.2.3:44".parse().unwrap());
        assert_eq!(to_bind_of("[::1]:44").unwrap(), "[::1]:44".parse().unwrap());
        assert!(to_bind_of("node7").is_err());
        assert!(to_bind("nonsense").is_err());
    }

    #[test]
    fn a_name_binds_loopback_alone_only_where_it_stands_for_nothing_else() {
        let bound = to_bind_of("localhost:44").unwrap();
        assert!(bound.ip().is_loopback() && bound.port() == 44, "{bound}");
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 44);
        let loopback = address("127.0.0.1");
        assert_eq!(to_bind_among(&[loopback]), loopback.ip());
        for named in [&[][..], &[address("192.0.2.1")], &[loopback, address("192.0.2.1")]] {
            assert!(to_bind_among(named).is_unspecified(), "{named:?}");
        }
        assert!(to_bind_of("no-such-name.invalid:44").unwrap().ip().is_unspecified());
    }

    #[test]
    fn a_server_on_loopback_is_reached_under_its_name() {
        let local: SocketAddr = "127.0.0.1:4400".parse().unwrap();
        assert_eq!(reachable(None, Some("localhost:4400"), local), "localhost:4400");
        assert_eq!(reachable(None, Some("192.0.2.1:4400"), local), "127.0.0.1:4400");
    }
}
