//! Many workers that are members and do nothing but renew their leases.

use std::io::BufRead;
use std::path::PathBuf;
use std::time::Duration;

use slackline_core::wire::ToServer;
use slackline_net::NetworkThread;

use super::{BenchError, Cell, Worker, say};

/// Becomes all workers of the cell, one after another. Says `warm` with the first, and `done` with the last, which it waits with until it is
/// told `go`; then they stay until standard input ends.
///
/// # Errors
/// A server did not let one in, or the network failed.
pub fn run(cell: &Cell, addresses: Vec<String>, keys: PathBuf) -> Result<(), BenchError> {
    let resolved = cell.resolve()?;
    let net = NetworkThread::start("workers").map_err(BenchError::system("no network thread"))?;
    let renewed_every = resolved.config.timers().renewal;
    let mut lines = std::io::stdin().lock().lines();
    for number in 0..cell.workers {
        if number == 1 {
            let _ = lines.next();
        }
        let (resolved, addresses, keys) = (resolved.clone(), addresses.clone(), keys.clone());
        net.block_on(async move {
            let worker = Worker::enter_all(&resolved, &addresses, &keys).await?;
            tokio::spawn(stay(worker, renewed_every));
            Ok::<(), BenchError>(())
        })??;
        if number == 0 {
            say("warm");
        }
    }
    say("done");
    lines.for_each(drop);
    Ok(())
}

async fn stay(mut worker: Worker, renewed_every: Duration) {
    loop {
        tokio::time::sleep(renewed_every).await;
        for server in 0..worker.links.len() {
            if worker.send(server, &ToServer::Renew).await.is_err() {
                return;
            }
        }
        // What it is told in between it need not know.
        while worker.arrivals.try_recv().is_ok() {}
    }
}
