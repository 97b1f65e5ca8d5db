//! The bounds on what a peer or a run may ask for, with the relations between them asserted. How long a queue inside one process
//! may grow stands beside that queue.

/// Bytes of one control message, its length prefix excluded. Checked before a byte is read or allocated.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a text field in a control message; longer ones are cut when they are made. One that a peer
/// made longer is bounded by its message and cut when it is shown.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Servers of a run.
pub const SERVER_COUNT_MAX: u32 = 1024;

/// Most candidates for the coordinator: everyone who looks for it calls all of them at once.
pub const COORDINATOR_COUNT_MAX: usize = 7;

/// Shards of one server that it begins with; as many more can move to it as [`PLACES_MAX`] has room for.
pub const SHARDS_PER_SERVER_MAX: u32 = 256;

/// Workers that may be members of a run at once.
pub const WORKER_COUNT_MAX: u32 = 16_384;

/// Workers of one allreduce: all their addresses go into one message.
pub const GROUP_COUNT_MAX: u32 = 512;

/// Workers that a run may have seen in its life; each costs the fence a few bytes.
pub const WORKER_EVER_MAX: u32 = 1 << 20;

/// Values of a model: 2^40, four tebibytes of f32.
pub const VALUE_COUNT_MAX: u64 = 1 << 40;

/// Pushes of one worker that a shard remembers the answers of, and the furthest a push may run ahead of the
/// oldest one that is missing.
pub const PUSH_WINDOW: usize = 64;

/// Pushes of one worker that a shard keeps until their clock closes. A worker has one on the way, and perhaps the next.
pub const PUSH_PENDING_MAX: usize = 4;

/// Results of batches that one ask says: more than a worker can have that were not heard, which are two.
pub const ASK_RESULTS_MAX: usize = 4;

/// Bytes of a part's entry in the manifest of a checkpoint.
pub const PART_ENTRY_BYTES_MAX: usize = 8 * 1024;

/// Shards of one server, as primary or backup, in one order.
pub const PLACES_MAX: usize = 1024;

/// Workers that one marker cuts.
pub const CUTS_MAX: usize = 3072;

/// Shards that have moved, in one message to a worker.
pub const PLACED_MAX: usize = 2048;

/// Streams that one transfer may be cut into.
pub const STRIPE_COUNT_MAX: u32 = 64;

/// Rows of each kind (members, held pulls, shards) that a status carries; more workers than that are counted, not listed.
pub const STATUS_ROWS_MAX: usize = 256;

/// Servers that a status lists; more are counted.
pub const SERVER_ROWS_MAX: usize = 32;

/// Shards that are not whole in a status.
pub const PLACE_ROWS_MAX: usize = 64;

/// Waits in a status; what is not among the longest is left out.
pub const WAIT_ROWS_MAX: usize = 24;

/// Bytes of the text of a wait.
pub const WAIT_BYTES_MAX: usize = 208;

/// Bytes of a server's trouble in its row.
pub const TROUBLE_BYTES_MAX: usize = 96;

/// Bytes of the address in a member's row: an IPv6 address with scope and port has at most 58.
pub const ADDRESS_BYTES_MAX: usize = 64;

/// Buckets of a histogram of staleness: exact up to 255, then sixteen a power of two.
pub const HISTOGRAM_BUCKETS: usize = 256 + 16 * 56;

/// Bytes of the trace of one shard: 2.8 million records, some 700,000 iterations. When it is full the trace ends and the run goes on.
pub const TRACE_BYTES_MAX: u64 = 256 << 20;

/// Bytes of the traces of one server's shards together; with more than eight shards, each may have less than [`TRACE_BYTES_MAX`].
pub const TRACE_BYTES_SERVER_MAX: u64 = 2 << 30;

/// Bytes of a text field at its limit, length included.
const TEXT_FIELD: usize = 8 + TEXT_BYTES_MAX;

/// Bytes of a report whose two histograms have all their buckets: 27 numbers; rows of (u32, u64) with length, sum and
/// largest value.
pub const REPORT_BYTES_MAX: usize = 27 * 8 + 2 * (3 * 8 + HISTOGRAM_BUCKETS * 12);

/// Bytes of a status with all its rows and the longest phase: server, phase, progress, three lists, hidden members, refusals, and then
/// servers, hidden servers, places and waits.
pub const STATUS_BYTES_MAX: usize = 4
    + (4 + TEXT_FIELD)
    + (1 + 8 * 8)
    + (8 + STATUS_ROWS_MAX * MEMBER_ROW)
    + 4
    + (8 + STATUS_ROWS_MAX * HELD_ROW)
    + (8 + STATUS_ROWS_MAX * SHARD_ROW)
    + 4 * 8
    + (8 + SERVER_ROWS_MAX * SERVER_ROW)
    + 4
    + (8 + PLACE_ROWS_MAX * PLACE_ROW)
    + (8 + WAIT_ROWS_MAX * WAIT_ROW);

/// Worker, incarnation, address, clock, milliseconds.
const MEMBER_ROW: usize = 4 + 8 + (8 + ADDRESS_BYTES_MAX) + 9 + 8;

/// Worker, shard, clock, milliseconds, the longest reason.
const HELD_ROW: usize = 4 + 4 + 8 + 8 + (4 + 4 + 8 + 8);

/// Shard, keys, version, minimum, whether it has values.
const SHARD_ROW: usize = 4 + 16 + 8 + 9 + 1;

/// Server, address, boot number, milliseconds, whether it lives, two counts, trouble.
const SERVER_ROW: usize = 4 + (8 + ADDRESS_BYTES_MAX) + 9 + 9 + 1 + 2 * 4 + (8 + TROUBLE_BYTES_MAX);

/// Shard, generation, primary, the longest lack, milliseconds.
const PLACE_ROW: usize = 4 + 8 + 4 + (4 + 4) + 8;

/// Milliseconds and a text.
const WAIT_ROW: usize = 8 + (8 + WAIT_BYTES_MAX);

// The wire module's tests hold these sums against encoded messages.
const _: () = {
    // The largest that a worker sends: how it ended, with a text, and a report.
    assert!(4 + 4 + TEXT_FIELD + 1 + REPORT_BYTES_MAX <= CONTROL_BYTES_MAX);
    assert!(4 + STATUS_BYTES_MAX <= CONTROL_BYTES_MAX);
    assert!(WORKER_COUNT_MAX <= WORKER_EVER_MAX);
    assert!(PUSH_WINDOW >= 2);
    // Numbers of records have 32 bits.
    assert!(TRACE_BYTES_MAX / (crate::trace::RECORD_BYTES as u64) < u32::MAX as u64);
};
