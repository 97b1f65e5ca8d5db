//! Every bound on what a peer or a run may ask for, in one place, with the relations between them asserted.

/// Bytes of one control message, its length prefix excluded. Checked before a byte is read or allocated.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a text field in a control message; longer ones are cut when they are made and refused when read.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Servers of a run.
pub const SERVER_COUNT_MAX: u32 = 1024;

/// Workers that may be members of a run at once.
pub const WORKER_COUNT_MAX: u32 = 16_384;

/// Workers that a run may have seen in its life; each costs the fence a few bytes.
pub const WORKER_EVER_MAX: u32 = 1 << 20;

/// Values of a model: 2^40, four tebibytes of f32.
pub const VALUE_COUNT_MAX: u64 = 1 << 40;

/// Pushes of one worker that a shard remembers the answers of, and the furthest a push may run ahead of the
/// oldest one that is missing.
pub const PUSH_WINDOW: usize = 64;

/// Transfers (pushes, initial values) of one session that may be arriving at once, over all shards of a server.
pub const TRANSFERS_ARRIVING_MAX: usize = 256;

/// Streams that one transfer may be cut into.
pub const STRIPE_COUNT_MAX: u32 = 64;

/// Status rows that one message carries; more workers than that are counted, not listed.
pub const STATUS_ROWS_MAX: usize = 256;

/// Buckets of a histogram of staleness: exact up to 255, then sixteen a power of two.
pub const HISTOGRAM_BUCKETS: usize = 256 + 16 * 56;

/// Histogram rows that one report carries.
pub const REPORT_ROWS_MAX: usize = HISTOGRAM_BUCKETS;

const _: () = {
    assert!(TEXT_BYTES_MAX * 4 < CONTROL_BYTES_MAX);
    // A full report: three histograms of (u32, u64) rows.
    assert!(REPORT_ROWS_MAX * 12 * 3 + 1024 < CONTROL_BYTES_MAX);
    // A full status: rows of at most 96 bytes.
    assert!(STATUS_ROWS_MAX * 128 < CONTROL_BYTES_MAX);
    assert!(WORKER_COUNT_MAX <= WORKER_EVER_MAX);
    assert!(PUSH_WINDOW >= 2);
};
