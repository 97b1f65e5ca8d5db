//! Control messages and headers: what one costs beside the values it speaks of.
//!
//! An ask with its report is the largest message of a worker's cycle; the header stands before every stripe.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use slackline_core::histogram::Histogram;
use slackline_core::ids::{BatchIndex, Clock, Incarnation, KeyRange, Sequence, ShardId, Version, WorkerId};
use slackline_core::wire::{
    Ask, BatchResult, Fate, HEADER_BYTES, Report, Stripe, ToServer, TransferHeader, TransferKind, decode,
    encode,
};

/// A histogram with `rows` rows.
fn histogram(rows: u64) -> Histogram {
    let mut histogram = Histogram::default();
    (0..rows).for_each(|value| histogram.record(value));
    histogram
}

/// An ask with a report whose histograms have `rows` rows each.
fn ask(rows: u64) -> ToServer {
    let report = Report {
        iterations: 100,
        clock_lead: histogram(rows),
        version_staleness: histogram(rows),
        ..Report::default()
    };
    ToServer::Ask(Ask {
        clock: Clock(1),
        results: vec![BatchResult {
            number: 1,
            batch: BatchIndex(2),
            clock: Clock(0),
            fate: Fate::Done { compute_us: 1 },
        }],
        report: Some(report),
    })
}

fn control(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wire/ask");
    for rows in [8, 256] {
        let message = ask(rows);
        let bytes = encode(&message).expect("a report fits into a message");
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(format!("encode/{rows} rows"), |bencher| {
            bencher.iter(|| encode(black_box(&message)));
        });
        group.bench_function(format!("decode/{rows} rows"), |bencher| {
            bencher.iter(|| decode::<ToServer>(black_box(&bytes)));
        });
    }
    group.finish();
}

fn header(criterion: &mut Criterion) {
    let header = TransferHeader {
        worker: WorkerId(2),
        incarnation: Incarnation(3),
        sequence: Sequence(4),
        clock: Clock(5),
        version: Version(6),
        batch: BatchIndex(7),
        samples: 128,
        stripe_count: 4,
        stripe: Stripe::new(1000, 1000),
        ..TransferHeader::plain(TransferKind::Push, ShardId(1), KeyRange::new(0, 4000))
    };
    let bytes = header.to_bytes();
    let mut group = criterion.benchmark_group("wire/header");
    group.throughput(Throughput::Bytes(HEADER_BYTES as u64));
    group.bench_function("to bytes", |bencher| bencher.iter(|| black_box(&header).to_bytes()));
    group.bench_function("from bytes", |bencher| {
        bencher.iter(|| TransferHeader::from_bytes(black_box(&bytes)));
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    control(&mut criterion);
    header(&mut criterion);
    criterion.final_summary();
}
