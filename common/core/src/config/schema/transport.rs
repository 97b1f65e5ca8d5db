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
        "What the link of one worker carries to one server. Together with transport.round_trip_ms it gives what is under \
         way on a full link, bandwidth x round trip, and the sizes below that are auto follow from it; those that are \
         given win. 0 where nothing is said: the sizes then serve up to 1.3 Gbit/s at 100 ms or 13 Gbit/s at 10 ms.",
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
        "How a sender finds its rate. cubic and newreno take every lost packet for a full queue; steady measures what the \
         path delivers, as BBR does, keeps queues short and does not mind what the path loses by itself; bbr is the QUIC \
         library's own, an experiment. auto: cubic between processes of one machine, steady elsewhere. Measured at 1 \
         Gbit/s, 100 ms there and back, Mbit/s at a loss of 0, 3 and 10 %: steady 620 to 760, 600 to 680, 500, with 3 % \
         of the packets dropped by a full queue at first; bbr 640, 540, 450, with 14 to 30 % dropped; cubic 1.2 at 3 %; \
         TCP with CUBIC 0.8, with BBR 89.",
    )
    .beside_the_result(),
    Key::new(
        "transport.datagram_bytes",
        Kind::IntOr { word: "auto", min: 1200, max: 65_507 },
        Absent::Default("\"auto\""),
        "bytes",
        "Payload of the largest UDP datagram. auto: 64 KiB between processes of one machine; elsewhere what the path \
         carries, found by a search from 1200 up to what the device takes that leads there (1452 over Ethernet, 8952 over \
         jumbo frames). A number is where the search ends instead; less makes more packets, each with its cost. Measured \
         within a machine, one way: 24 Gbit/s and 0.35 processor-seconds a GiB and side at 65507, 10 and 0.8 at 1452.",
    )
    .beside_the_result(),
    Key::new(
        "transport.initial_window_bytes",
        Kind::IntOr { word: "auto", min: 2 * KIB, max: GIB },
        Absent::Default("\"auto\""),
        "bytes",
        "What a new connection may have in flight before it knows the path; must exceed a datagram. Too small makes the \
         first pulls slow (it doubles each round trip), too large loses packets on thin links. auto: 1 MiB, or less where \
         bandwidth x round trip is less. Measured within a machine: 64 KiB is as fast once a connection knows its path.",
    )
    .beside_the_result(),
    Key::new(
        "transport.stripe_bytes",
        Kind::Int { min: 4 * KIB, max: GIB },
        Absent::Default("1048576"),
        "bytes",
        "Least size of one piece of a transfer. Small pieces cost headers; a transfer of less than two of them is not \
         spread over streams. Measured within a machine, 40 MiB: 64 KiB and 64 MiB are as fast as 1 MiB.",
    )
    .beside_the_result(),
    Key::new(
        "transport.streams",
        Kind::Int { min: 1, max: STRIPE_COUNT_MAX as i64 },
        Absent::Default("4"),
        "streams",
        "Streams that one transfer is spread over at most, so that a lost packet holds up only its own, and a long link is not held to \
         one stream's window. Measured within a machine: one is as fast as four; over 1 Gbit/s and 50 ms each way four push and pull 16 \
         MiB 1.5 times as fast.",
    )
    .beside_the_result(),
    Key::new(
        "transport.stream_window_bytes",
        Kind::Int { min: 64 * KIB, max: 64 * MIB },
        Absent::Default("3145728"),
        "bytes",
        "What one stream may have unread at the receiver. Too small starves long links: a stream carries no more than \
         this in a round trip (measured over 1 Gbit/s and 50 ms each way: a quarter of the speed at 256 KiB). Far over 4 MiB, heavy loss can leave more gaps in a stream than QUIC keeps (1024), which \
         closes the connection; long links need more streams rather than larger ones, and transport.session_bytes says \
         how many there may be.",
    )
    .beside_the_result(),
    Key::new(
        "transport.connection_window_bytes",
        Kind::IntOr { word: "auto", min: 64 * KIB, max: 16 * GIB },
        Absent::Default("\"auto\""),
        "bytes",
        "What all streams of a connection may have unread together; at least stream_window_bytes. A connection carries no \
         more than this in a round trip (measured over 1 Gbit/s and 50 ms each way: pushes at a tenth and pulls at half of the speed at 4 MiB), \
         and it bounds the memory a peer can claim. auto: 64 MiB, or twice bandwidth x \
         round trip where that is more: once for what is under way, once while what was lost is sent again.",
    )
    .beside_the_result(),
    Key::new(
        "transport.send_window_bytes",
        Kind::IntOr { word: "auto", min: 64 * KIB, max: 16 * GIB },
        Absent::Default("\"auto\""),
        "bytes",
        "What a connection keeps until the other side has acknowledged it. Below bandwidth x round trip the link stays \
         idle (measured over 1 Gbit/s and 50 ms each way: a twentieth of the speed at 1 MiB). auto: 64 MiB, or twice bandwidth x round trip where that is more. Within a machine never more than three \
         quarters of the socket's buffer: more is lost whenever the receiver computes for a moment.",
    )
    .beside_the_result(),
    Key::new(
        "transport.session_bytes",
        Kind::IntOr { word: "auto", min: MIB, max: 16 * GIB },
        Absent::Default("\"auto\""),
        "bytes",
        "What one worker may make a server hold beside the shards' own state: three eighths of it has arrived and is not \
         read, two are pushes that are put together or wait for their shard, three are values on their way. What is \
         beyond that waits at the worker, and its time is counted as busy (measured over 1 Gbit/s and 50 ms each way, 8 MiB: pushes at an \
         eighth of the speed; within a machine no difference). Room for two shards there always is. auto: 64 \
         MiB, or as much as makes each of the three eighths twice bandwidth x round trip (1.3 GB at 10 Gbit/s and 200 ms, \
         333 MB at 50 ms).",
    )
    .beside_the_result(),
    Key::new(
        "transport.socket_buffer_bytes",
        Kind::Int { min: 64 * KIB, max: GIB },
        Absent::Default("4194304"),
        "bytes",
        "Buffers asked of the system for the UDP socket. Too small drops bursts, and within a machine leaves less in \
         flight (measured, 40 MiB: 0.93 of the speed at 1 MiB, 0.53 at 256 KiB); the system may grant less (net.core.rmem_max and net.core.wmem_max on Linux), which a warning tells with \
         the command that allows them.",
    )
    .beside_the_result(),
    Key::new(
        "transport.order",
        Kind::Choice(&["arrival", "front-first"]),
        Absent::Default("\"arrival\""),
        "",
        "Which transfers of one connection go first. arrival: in the order in which they came, side by side as far as \
         transport.credit_bytes allows. front-first: those of the first layers, which the next forward pass needs first; their bytes go \
         before those of others that are under way. Messages always go before transfers.",
    )
    .beside_the_result(),
    Key::new(
        "transport.credit_bytes",
        Kind::IntOr { word: "auto", min: 4 * KIB, max: 16 * GIB },
        Absent::Default("\"auto\""),
        "bytes",
        "Bytes of a worker's transfers that are under way on one connection at once, or a single transfer. Less lets what comes later \
         and is wanted earlier overtake more; below bandwidth x round trip the link stays partly empty, unless a single transfer fills it. Measured within a machine, 40 MiB: 1 MiB \
         is as fast. auto: half of connection_window_bytes.",
    )
    .beside_the_result(),
    Key::new(
        "transport.push_mbit",
        Kind::Float { min: 0.0, max: MBIT_MAX },
        Absent::Default("0.0"),
        "Mbit/s",
        "How fast a worker pushes to one server at most, headers left out, for links that others use as well. 0 sets no bound. Values \
         come as fast as they can.",
    )
    .beside_the_result(),
];
