//! Two workers of one clock: one waits in a pull that the other's push releases.
//!
//! Both run in this process, on its one network thread, so that one clock measures from the push to the values.

use std::io::BufRead;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use slackline_net::NetworkThread;

use super::{BenchError, Cell, Worker, say};

/// Clocks before those that count.
const WARM_CLOCKS: u32 = 20;

/// How long the second worker computes: long enough that the pull of the first one is with the server.
const COMPUTES: Duration = Duration::from_millis(2);

/// Runs both to their end. Says `warm`; for every `go N` on standard input it does N clocks, and says `done` with the microseconds of each.
///
/// # Errors
/// A server did not do as it should, or the network failed.
pub fn run(cell: &Cell, addresses: Vec<String>, keys: PathBuf) -> Result<(), BenchError> {
    let resolved = cell.resolve()?;
    let net = NetworkThread::start("workers").map_err(BenchError::system("no network thread"))?;
    let warming = async move {
        // The first one in is worker 0, which brings the values; work is given when both are there.
        let mut first = Worker::enter_all(&resolved, &addresses, &keys).await?;
        let mut second = Worker::enter_all(&resolved, &addresses, &keys).await?;
        tokio::try_join!(first.await_others(), second.await_others())?;
        let mut pair = (first, second);
        for _ in 0..WARM_CLOCKS {
            clock(&mut pair).await?;
        }
        Ok::<_, BenchError>(pair)
    };
    let mut pair = net.block_on(warming)??;
    say("warm");
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(BenchError::system("standard input"))?;
        let clocks = line.strip_prefix("go ").and_then(|count| count.parse::<u32>().ok());
        let clocks = clocks.ok_or_else(|| BenchError::Protocol(format!("\"{line}\" says nothing to do")))?;
        let counting = async move {
            let mut took = Vec::new();
            for _ in 0..clocks {
                took.push((clock(&mut pair).await?.as_secs_f64() * 1e6).to_string());
            }
            Ok::<_, BenchError>((pair, took))
        };
        let took;
        (pair, took) = net.block_on(counting)??;
        say(&format!("done {}", took.join(" ")));
    }
    Ok(())
}

/// One clock of both; how long the values took from the second one's push on.
async fn clock((first, second): &mut (Worker, Worker)) -> Result<Duration, BenchError> {
    first.push_all();
    first.pull_all().await?;
    tokio::time::sleep(COMPUTES).await;
    second.push_all();
    let began = Instant::now();
    first.settle().await?;
    let took = began.elapsed();
    second.pull_all().await?;
    second.settle().await?;
    Ok(took)
}
