//! `slackline server` and `slackline worker`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slackline_core::config::{Config, Durability, Resolved};
use slackline_core::ids::ServerId;
use slackline_server::{Addresses, AddressesToCome, Keeps, ServerOptions, serve};
use slackline_worker::WorkerOptions;

use crate::cli::{CoordinatorArgs, ServerArgs, WorkerArgs};
use crate::failure::Failure;
use crate::resolve_clustered;

/// What a ready server says on standard output, before its address.
pub(crate) const READY: &str = " is ready: ";

/// What the line begins with by which a server that is started for a run is told where all servers are.
pub(crate) const ADDRESSES: &str = "addresses: ";

/// Whether the shards of a server that is killed are still somewhere: as a copy, on its disk or in a checkpoint.
pub(crate) fn survives(config: &Config) -> bool {
    let has_copies = config.cluster.replicas > 1 && config.servers > 1;
    let is_on_disk = config.cluster.durability == Durability::Disk || config.checkpoint.every.is_some();
    config.sync.is_none() && (has_copies || is_on_disk)
}

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
    let addresses = match (args.leash, config.cluster.addresses.is_empty()) {
        (true, true) => {
            let (told, addresses) = Addresses::to_come();
            hold_leash(Some(told));
            addresses
        }
        (leash, _) => {
            if leash {
                hold_leash(None);
            }
            Addresses::known(config.cluster.addresses.clone())
        }
    };
    let addresses = addresses.with_candidates(config.cluster.coordinators.clone());
    let keeps = match args.leash {
        false => Keeps::ForAnyone,
        // Started again by nobody but the run that it was started for.
        true if survives(config) => Keeps::ForRun { again: args.again },
        true => Keeps::Nothing,
    };
    let (keys, out) = (PathBuf::from(&config.cluster.keys), PathBuf::from(&config.out));
    let index = ServerId(args.index);
    let advertise = args.advertise.as_deref().map(dialled).transpose()?.map(str::to_owned);
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
    let options = ServerOptions {
        index,
        resolved,
        bind,
        addresses,
        keys,
        out,
        trace: args.trace,
        fresh: args.fresh,
        resume: args.resume.clone(),
        keeps,
        ready,
    };
    serve(options).map_err(|error| Failure::of(error.is_users(), error)).map(|_| 0)
}

pub(crate) fn coordinator(args: &CoordinatorArgs) -> Result<u8, Failure> {
    let resolved = resolve_clustered(&args.clustered)?;
    let config = &resolved.config;
    if config.coordinator() == ServerId(0) {
        let text = "cluster.store is \"local\", with which server 0 is the coordinator: start `slackline server`, or set cluster.store to \
                    etcd://HOST:PORT/PREFIX";
        return Err(Failure::user(text));
    }
    resolved.addresses().map_err(Failure::user)?;
    let Some(configured) = config.cluster.coordinators.get(args.index as usize).cloned() else {
        let (index, count) = (args.index, config.cluster.coordinators.len());
        let text = format!("--index {index}: cluster.coordinators has {count} candidates, counted from 0");
        return Err(Failure::user(text));
    };
    let bind = match &args.bind {
        Some(bind) => to_bind(bind)?,
        None => to_bind_of(&configured)?,
    };
    candidate(args, resolved, bind, configured)
}

#[cfg(feature = "etcd")]
fn candidate(
    args: &CoordinatorArgs,
    resolved: Resolved,
    bind: SocketAddr,
    configured: String,
) -> Result<u8, Failure> {
    let (keys, out) = (PathBuf::from(&resolved.config.cluster.keys), PathBuf::from(&resolved.config.out));
    let index = args.index;
    let ready = Box::new(move |local: SocketAddr| {
        let address = reachable(None, Some(&configured), local);
        if address != configured {
            tracing::warn!(
                "candidate {index} is reached at {address}, and others dial {configured}: correct cluster.coordinators"
            );
        }
        // Whoever started the process may not read what it says.
        let _ = writeln!(std::io::stdout(), "candidate {index}{READY}{address}");
        let _ = std::io::stdout().flush();
    });
    let options = slackline_server::CandidateOptions {
        index: index as usize,
        resolved,
        bind,
        keys,
        out,
        fresh: args.fresh,
        resume: args.resume.clone(),
        ready,
    };
    slackline_server::coordinate(options).map_err(|error| Failure::of(error.is_users(), error)).map(|_| 0)
}

#[cfg(not(feature = "etcd"))]
fn candidate(_: &CoordinatorArgs, _: Resolved, _: SocketAddr, _: String) -> Result<u8, Failure> {
    Err(Failure::user(
        "cluster.store is etcd, and this program was built without it: build it with `--features etcd`",
    ))
}

pub(crate) fn worker(args: &WorkerArgs) -> Result<u8, Failure> {
    let resolved = resolve_clustered(&args.clustered)?;
    let addresses = resolved.addresses().map_err(Failure::user)?.to_vec();
    let keys = PathBuf::from(&resolved.config.cluster.keys);
    if args.leash {
        hold_leash(None);
    }
    let options = WorkerOptions { resolved, addresses, keys, push_log: args.push_log.clone() };
    slackline_worker::run(options).map_err(|error| Failure::of(error.is_users(), error)).map(|()| 0)
}

/// Ends this process as a signal would when standard input ends: whoever held the other end is gone. A line on it tells where all servers are.
fn hold_leash(addresses: Option<AddressesToCome>) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if let (Some(addresses), Some(list)) = (&addresses, line.strip_prefix(ADDRESSES)) {
                addresses.tell(list.split_whitespace().map(str::to_owned).collect());
            }
        }
        let _ = kill(Pid::this(), Signal::SIGTERM);
    });
}

fn to_bind(text: &str) -> Result<SocketAddr, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::user(format!("--bind {text}: {error}; write HOST:PORT, such as 0.0.0.0:4400 or [::]:4400"))
    };
    let addresses: Vec<_> = text.to_socket_addrs().map_err(|error| failed(&error))?.collect();
    // A name can stand for addresses of a family that is switched off. Where none of them can be bound, the first one says why.
    let bindable = addresses.iter().find(|address| can_be_bound(address.ip()));
    bindable.or(addresses.first()).copied().ok_or_else(|| failed(&"the name has no address"))
}

fn can_be_bound(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// Refuses an `--advertise` that nobody could dial.
fn dialled(advertise: &str) -> Result<&str, Failure> {
    let host = if has_port(advertise) {
        advertise.rsplit_once(':').map_or(advertise, |(host, _)| host)
    } else {
        advertise
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_every = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    let is_odd = host.is_empty() || host.contains(|letter: char| letter.is_whitespace() || letter == '/');
    if is_every || is_odd {
        let text = format!(
            "--advertise {advertise}: nobody can dial that; give the name or address that workers reach this server at, with or \
             without a port"
        );
        return Err(Failure::user(text));
    }
    Ok(advertise)
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
    let all_loopback = named.iter().all(|address| address.ip().is_loopback());
    let loopback = named.iter().map(SocketAddr::ip).find(|ip| can_be_bound(*ip)).filter(|_| all_loopback);
    loopback.unwrap_or_else(|| {
        let every = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        if can_be_bound(every) { every } else { Ipv4Addr::UNSPECIFIED.into() }
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

    // Case ps-lite#139.
    #[test]
    fn what_nobody_could_dial_is_not_advertised() {
        for right in ["node7", "node7:99", "10.0.0.7", "fe80::1", "[fe80::1]:99", "ps-0.ps.svc"] {
            assert!(dialled(right).is_ok(), "{right}");
        }
        for wrong in ["", ":99", "0.0.0.0", "0.0.0.0:99", "::", "[::]:99", "a b", "https://a:1"] {
            assert!(dialled(wrong).is_err(), "{wrong}");
        }
    }

    // Case ps-lite#139: any form of an address, and any free port.
    #[test]
    fn a_port_of_zero_is_bound_to_a_free_one_under_every_form_of_address() {
        for form in ["127.0.0.1:0", "0.0.0.0:0", "localhost:0", "[::1]:0"] {
            let address = to_bind(form).unwrap();
            if !can_be_bound(address.ip()) {
                // This machine has no IPv6.
                continue;
            }
            let bound = UdpSocket::bind(address).unwrap().local_addr().unwrap();
            assert!(bound.port() > 0, "{form}");
            let reached = reachable(Some("node7"), None, bound);
            assert_eq!(reached, format!("node7:{}", bound.port()), "{form}");
        }
    }

    #[test]
    fn an_address_binds_itself() {
        assert_eq!(to_bind_of("10.1.2.3:44").unwrap(), "10.1.2.3:44".parse().unwrap());
        assert_eq!(to_bind_of("[::1]:44").unwrap(), "[::1]:44".parse().unwrap());
        assert!(to_bind_of("node7").is_err());
        assert!(to_bind("nonsense").is_err());
    }

    // Case 37 of the allreduce list (PCCL): some were reached on loopback and others not.
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
