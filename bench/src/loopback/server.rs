//! One server of a cell: the daemon, until standard input ends.

use std::io::BufRead;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slackline_core::ids::ServerId;
use slackline_server::{Addresses, Keeps, ServerOptions, serve};

use super::{BenchError, Cell, say};

/// Serves until standard input ends. Says `ready ADDRESS` on standard output; takes the addresses of all servers, with commas between
/// them, from the first line of standard input.
///
/// # Errors
/// The configuration is refused, or the server failed.
pub fn run(cell: &Cell, index: u32, bind: IpAddr, keys: PathBuf, out: PathBuf) -> Result<(), BenchError> {
    let ready = Box::new(|address: SocketAddr| say(&format!("ready {address}")));
    let bind = SocketAddr::new(bind, 0);
    let (others, addresses) = Addresses::to_come();
    let options = ServerOptions {
        index: ServerId(index),
        resolved: cell.resolve()?,
        bind,
        keys,
        out,
        trace: false,
        addresses,
        fresh: true,
        resume: None,
        keeps: Keeps::Nothing,
        ready,
    };
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            others.tell(line.split(',').map(str::to_owned).collect());
        }
        // Whoever holds the other end has what it wants, or is gone.
        let _ = kill(Pid::this(), Signal::SIGTERM);
    });
    serve(options)?;
    Ok(())
}
