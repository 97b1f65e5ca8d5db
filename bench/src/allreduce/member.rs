//! One member of a cell.
//!
//! It says `ready ADDRESS`, reads the addresses of all members, meets them, and says `warm` after its first sums. Then for each line on
//! standard input it sums once and says `done` with the nanoseconds that took. It ends when standard input does.

use std::io::BufRead;
use std::path::Path;
use std::time::{Duration, Instant};

use slackline_core::collective::Order;
use slackline_core::layout::Layout;
use slackline_net::{Identity, NetworkThread, Role, Settings};
use slackline_worker::exchange::{Exchange, ExchangeOptions};

use super::Cell;
use crate::BenchError;
use crate::processes::say;

/// Sums before those that count: the windows grow and the buffers are made in them.
const WARM_SUMS: u32 = 4;

/// Values of one tensor: small ones, so that buckets come as close to their size as can be.
const TENSOR_VALUES: u64 = 4096;

/// How long the others are waited for: nobody is expected to be lost here.
const LEASE: Duration = Duration::from_secs(30);

/// Runs the member to its end.
///
/// # Errors
/// The others were not met or were lost, or a sum is wrong.
pub fn run(cell: &Cell, position: u32, keys: &Path) -> Result<(), BenchError> {
    let identity = Identity::load(keys, Role::Worker)?;
    let network = Settings { idle_timeout: LEASE, keep_alive: LEASE / 4, ..Settings::default() };
    let net = NetworkThread::start("member").map_err(BenchError::system("no network thread"))?;
    let options = ExchangeOptions {
        listen: "127.0.0.1:0".to_owned(),
        layout: layout(cell.mib << 18),
        bucket_bytes: cell.bucket_kib << 10,
        order: Order::Forward,
        lease: LEASE,
        network,
    };
    let exchange = net.block_on(async move { Exchange::bind(&identity, options) })??;
    say(&format!("ready {}", exchange.local_address()));
    let Some(addresses) = line()? else { return Ok(()) };
    let addresses: Vec<String> = addresses.split_whitespace().map(str::to_owned).collect();
    let (topology, ranks) = (cell.topology, cell.ranks);
    let mut member = Member { exchange, values: vec![0.0; (cell.mib << 18) as usize], position, ranks };
    member = net.block_on(async move {
        member.exchange.meet(&addresses, position, topology).await?;
        for _ in 0..WARM_SUMS {
            member.check().await?;
        }
        Ok::<_, BenchError>(member)
    })??;
    say("warm");
    while line()?.is_some() {
        let took;
        (member, took) = net.block_on(member.sum())??;
        say(&format!("done {}", took.as_nanos()));
    }
    net.block_on(async move {
        member.check().await?;
        member.exchange.close().await;
        Ok::<_, BenchError>(())
    })?
}

struct Member {
    exchange: Exchange,
    values: Vec<f32>,
    position: u32,
    ranks: u32,
}

impl Member {
    /// Sums zeros once, and says how long it took: it costs what any sum costs, and the buffer need not be filled again.
    async fn sum(mut self) -> Result<(Self, Duration), BenchError> {
        let began = Instant::now();
        self.exchange.sum(&mut self.values).await?;
        Ok((self, began.elapsed()))
    }

    /// Sums once and looks at all sums; leaves zeros.
    async fn check(&mut self) -> Result<(), BenchError> {
        let own = pattern(1, self.position);
        self.values.chunks_mut(PATTERN).for_each(|block| block.copy_from_slice(&own[..block.len()]));
        self.exchange.sum(&mut self.values).await?;
        let expected = pattern(self.ranks, self.ranks * (self.ranks - 1) / 2);
        if !self.values.chunks(PATTERN).all(|block| *block == expected[..block.len()]) {
            return Err(BenchError::Protocol("the sums are wrong".to_owned()));
        }
        self.values.fill(0.0);
        Ok(())
    }
}

/// The values that buffers are filled with go round after so many. They are whole numbers, so that sums are exact in any order.
const PATTERN: usize = 1 << 10;

fn pattern(factor: u32, more: u32) -> [f32; PATTERN] {
    std::array::from_fn(|key| (key as u32 * factor + more) as f32)
}

fn layout(values: u64) -> Layout {
    let mut layout = Layout::new();
    for index in 0..values.div_ceil(TENSOR_VALUES) {
        let len = TENSOR_VALUES.min(values - index * TENSOR_VALUES);
        layout.parameter(format!("{index}"), &[len], false);
    }
    layout
}

/// The next line of standard input; none at its end.
fn line() -> Result<Option<String>, BenchError> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    let count = read.map_err(BenchError::system("standard input"))?;
    Ok((count > 0).then_some(line))
}
