//! One way, side by side: bare QUIC, plain TCP, pushes and pulls of the same bytes, in turns.

use std::time::Instant;

use serde_json::{Value, json};

use super::children::{Cluster, Placed};
use super::raw::{Carried, Carrier, Pair};
use super::{BenchError, Cell, Way};
use crate::spread::Spread;

/// One way to carry bytes, over all repetitions.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// Bytes of one repetition.
    pub bytes: u64,
    /// What each repetition took.
    pub carried: Vec<Carried>,
    /// Bytes copied by our own code for each byte that the worker received; none where nothing of ours was on the way.
    pub copied: Option<Spread>,
}

impl Row {
    fn gigabits(&self) -> impl Iterator<Item = f64> {
        self.carried.iter().map(|one| self.bytes as f64 * 8.0 / 1e9 / one.wall.as_secs_f64())
    }

    fn processor(&self, side: impl Fn((f64, f64)) -> f64) -> Option<Spread> {
        let gib = self.bytes as f64 / f64::from(1 << 30);
        Spread::of(self.carried.iter().filter_map(|one| one.processor_seconds).map(|both| side(both) / gib))
    }

    /// Its speed as a share of another's, repetition by repetition.
    fn share_of(&self, other: &Self) -> Option<Spread> {
        Spread::of(self.gigabits().zip(other.gigabits()).map(|(own, other)| own / other))
    }
}

/// What is measured beside the pushes and pulls of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Bytes that go over TCP, where fewer are to go than over the others; none to leave it out.
    pub tcp_bytes: Option<u64>,
    /// Whether whole models are pushed and pulled too, or bare bytes go alone.
    pub with_models: bool,
}

/// Carries the bytes of a cell's rounds in every way, `repeats` times in turns.
///
/// # Errors
/// The first [`BenchError`]; no process is left running.
pub(super) fn measure(
    cell: &Cell,
    placed: &Placed,
    beside: Beside,
    repeats: u32,
) -> Result<Vec<Row>, BenchError> {
    let bytes = 4 * cell.resolve()?.config.layout().len() * u64::from(cell.rounds);
    let row = |name: &str, bytes| Row { name: name.to_owned(), bytes, carried: Vec::new(), copied: None };
    let mut rows = vec![row("bare QUIC, one stream", bytes), row("bare QUIC, four streams", bytes)];
    if beside.with_models {
        rows.extend([row("pushes", bytes), row("pulls", bytes)]);
    }
    rows.extend(beside.tcp_bytes.map(|bytes| row("plain TCP, one stream", bytes)));
    let mut copied = Vec::new();
    for _ in 0..repeats {
        let mut pair = Pair::start(Carrier::Quic, cell, placed)?;
        // The window grows, and memory is made, before anything counts.
        pair.carry(4, bytes / 8)?;
        for (place, streams) in [(0, 1), (1, 4)] {
            rows[place].carried.push(pair.carry(streams, bytes)?);
        }
        pair.end()?;
        let mut place = 2;
        for way in [Way::Push, Way::Pull] {
            if beside.with_models {
                let (carried, share) = one_way(&Cell { way, ..cell.clone() }, placed, bytes)?;
                rows[place].carried.push(carried);
                copied.extend((way == Way::Pull).then_some(share));
                place += 1;
            }
        }
        if let Some(bytes) = beside.tcp_bytes {
            let mut pair = Pair::start(Carrier::Tcp, cell, placed)?;
            rows[place].carried.push(pair.carry(1, bytes)?);
            pair.end()?;
        }
    }
    if beside.with_models {
        rows[3].copied = Spread::of(copied);
    }
    Ok(rows)
}

/// The rounds of a cell in one direction; and what the worker copied of each byte.
fn one_way(cell: &Cell, placed: &Placed, bytes: u64) -> Result<(Carried, f64), BenchError> {
    let mut cluster = Cluster::start(cell, placed)?;
    let before = cluster.processor_seconds_by_side();
    let began = Instant::now();
    let done = cluster.run_rounds(cell.rounds)?;
    let wall = began.elapsed();
    let used = before
        .zip(cluster.processor_seconds_by_side())
        .map(|(before, after)| (after.0 - before.0, after.1 - before.1));
    cluster.end()?;
    // The worker sends what is pushed and receives what is pulled.
    let processor_seconds =
        if cell.way == Way::Pull { used.map(|(worker, server)| (server, worker)) } else { used };
    Ok((Carried { wall, processor_seconds, datagram_bytes: None }, done.copied_bytes as f64 / bytes as f64))
}

/// The ways as a table for people; ratios to bare QUIC over one stream, repetition by repetition.
#[must_use]
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "way                          Gbit/s                    of bare QUIC          processor s/GiB: sender, receiver          copied a byte\n",
    );
    for row in rows {
        text += &format!(
            "{:<27}  {:<24}  {:<20}  {:<19} {:<19}  {}\n",
            row.name,
            Spread::show(Spread::of(row.gigabits()), 3),
            Spread::show(row.share_of(&rows[0]), 2),
            Spread::show(row.processor(|both| both.0), 2),
            Spread::show(row.processor(|both| both.1), 2),
            Spread::show(row.copied, 2),
        );
    }
    text
}

/// The ways as JSON.
#[must_use]
pub(super) fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "way": row.name, "bytes": row.bytes,
            "datagram_bytes": row.carried.iter().filter_map(|one| one.datagram_bytes).max(),
            "gigabits_per_s": Spread::json(Spread::of(row.gigabits())),
            "of_bare_quic": Spread::json(row.share_of(&rows[0])),
            "sender_processor_s_per_gib": Spread::json(row.processor(|both| both.0)),
            "receiver_processor_s_per_gib": Spread::json(row.processor(|both| both.1)),
            "copied_per_byte": Spread::json(row.copied),
        })
    };
    Value::Array(rows.iter().map(row).collect())
}
