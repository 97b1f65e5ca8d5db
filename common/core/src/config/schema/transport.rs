//! QUIC: the keys of `[transport]`. The figures are of `bench/README.md`, section Transport.

use super::{Absent, GIB, KIB, Key, Kind, MIB};
use crate::limits::STRIPE_COUNT_MAX;

/// Mbit/s of the fastest link, and milliseconds of the longest way, that somebody may mean.
const MBIT_MAX: f64 = 400_000.0;
const ROUND_TRIP_MS_MAX: f64 = 10_000.0;

/// The keys of this part.
pub(super) const TRANSPORT: &[Key] = &[
    Key::new(
        "transport.bandwidth_mbit",
        Kind::Float { min: 0.0, max: MBIT_MAX },
        Absent::Default("0.0"),
        "Mbit/s",
        "What the link of one worker carries to one server. Together with transport.round_trip_ms it gives what is under way on a full \
         link, bandwidth x round trip, and the sizes below that are auto follow from it; those that are given win. 0: a link of at \
         most 1.3 Gbit/s at 100 ms, or 13 at 10 ms, which needs nothing said.",
    )
    .beside_the_result(),
    Key::new(
        "transport.round_trip_ms",
        Kind::Float { min: 0.0, max: ROUND_TRIP_MS_MAX },
        Absent::Default("0.0"),
        "milliseconds",
        "The way there and back, such as ping shows it. Given with transport.bandwidth_mbit or not at all.",
    )
    .beside_the_result(),
    Key::new(
        "transport.congestion",
        Kind::Choice(&["auto", "steady", "cubic", "newreno", "bbr"]),
        Absent::Default("\"auto\""),
        "",
        "How a sender finds its rate. cubic and newreno take every lost packet for a full queue; steady measures what the path delivers \
         (BBR's way, with queues kept short) and does not mind what it loses by itself; bbr is quinn's own BBR, an experiment, which keeps \
         queues full. auto: cubic between processes of one machine, steady elsewhere. Measured: PLACEHOLDER_CC",
    )
    .beside_the_result(),
    Key::new(
        "transport.datagram_bytes",
        Kind::IntOr { word: "auto", min: 1200, max: 65_507 },
        Absent::Default("\"auto\""),
        "bytes",
        "Payload of the largest UDP datagram. auto: 64 KiB between processes of one machine, elsewhere what the \
         path carries, up to Ethernet's 1452. A number is where the search ends instead: more for jumbo \
         frames; less makes more packets, each with its cost.",
    )
    .beside_the_result(),
    Key::new(
        "transport.initial_window_bytes",
        Kind::IntOr { word: "auto", min: 2 * KIB, max: GIB },
        Absent::Default("\"auto\""),
        "bytes",
        "What a new connection may have in flight before it knows the path; must exceed a datagram. Too \
         small makes the first pulls slow, too large loses packets on thin links.",
    )
    .beside_the_result(),
    Key::new(
        "transport.stripe_bytes",
        Kind::Int { min: 4 * KIB, max: GIB },
        Absent::Default("1048576"),
        "bytes",
        "Least size of one piece of a transfer. Small pieces cost headers; a transfer of less than two of them \
         is not spread over streams.",
    )
    .beside_the_result(),
    Key::new(
        "transport.streams",
        Kind::Int { min: 1, max: STRIPE_COUNT_MAX as i64 },
        Absent::Default("4"),
        "streams",
        "Streams that one transfer is spread over at most, so that a lost packet holds up only its own.",
    )
    .beside_the_result(),
    Key::new(
        "transport.stream_window_bytes",
        Kind::Int { min: 64 * KIB, max: 64 * MIB },
        Absent::Default("3145728"),
        "bytes",
        "What one stream may have unread at the receiver. Too small starves long links; far over 4 MiB, \
         heavy loss can leave more gaps in a stream than QUIC keeps, which closes the connection.",
    )
    .beside_the_result(),
    Key::new(
        "transport.connection_window_bytes",
        Kind::IntOr { word: "auto", min: 64 * KIB, max: 16 * GIB },
        Absent::Default("\"auto\""),
        "bytes",
        "What all streams of a connection may have unread together; at least stream_window_bytes. Bounds the \
         memory a peer can claim.",
    )
    .beside_the_result(),
    Key::new(
        "transport.send_window_bytes",
        Kind::IntOr { word: "auto", min: 64 * KIB, max: 16 * GIB },
        Absent::Default("\"auto\""),
        "bytes",
        "What a connection keeps until the other side has acknowledged it. Below rate times round-trip time \
         the link stays idle.",
    )
    .beside_the_result(),
    Key::new(
        "transport.session_bytes",
        Kind::IntOr { word: "auto", min: MIB, max: 16 * GIB },
        Absent::Default("\"auto\""),
        "bytes",
        "What one worker may make a server hold beside the shards' own state: three eighths of it has arrived and is not read, two are \
         pushes that are put together or wait for their shard, three are values on their way. What is beyond that waits at the worker, \
         and its time is counted as busy. Room for two shards there always is.",
    )
    .beside_the_result(),
    Key::new(
        "transport.socket_buffer_bytes",
        Kind::Int { min: 64 * KIB, max: GIB },
        Absent::Default("4194304"),
        "bytes",
        "Buffers asked of the system for the UDP socket. Too small drops bursts; the system may grant less \
         (net.core.rmem_max on Linux).",
    )
    .beside_the_result(),
];
