//! The typed values of `[transport]`, and those that follow from a link's bandwidth and round trip.

use super::problem::Fault;
use super::resolve::Entries;
use super::{Congestion, Transport};
use crate::order::Priority;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Sizes that follow from what is under way on a full link, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    initial_window: u64,
    connection_window: u64,
    send_window: u64,
    session: u64,
}

impl Sizes {
    /// `product` is bandwidth x round trip in bytes, where it is known.
    ///
    /// Twice the product keeps the link full while what was lost is sent a second time, which takes a round trip more. Of a session three eighths may be
    /// on their way to the server, and three on their way back. A connection does not begin with more than an empty path holds, nor with more than
    /// the buffers on its way mostly do.
    fn of(product: Option<u64>) -> Self {
        let twice = product.unwrap_or(0).saturating_mul(2);
        let window = twice.clamp(64 * MIB, 16 * GIB);
        Self {
            initial_window: product.unwrap_or(MIB).clamp(32 * KIB, MIB),
            connection_window: window,
            send_window: window,
            session: twice.saturating_mul(8).div_ceil(3).clamp(64 * MIB, 16 * GIB),
        }
    }
}

/// Bandwidth x round trip in bytes, where both are given: Mbit/s and ms make 125 bytes.
fn product(entries: &Entries) -> Option<u64> {
    let product =
        entries.float("transport.bandwidth_mbit") * entries.float("transport.round_trip_ms") * 125.0;
    (product > 0.0).then_some(product as u64)
}

pub(super) fn of(entries: &Entries) -> Transport {
    let sizes = Sizes::of(product(entries));
    let size = |key: &str, auto: u64| entries.number(key).unwrap_or(auto);
    let connection_window_bytes = size("transport.connection_window_bytes", sizes.connection_window);
    Transport {
        congestion: match entries.text("transport.congestion") {
            "steady" => Congestion::Steady,
            "cubic" => Congestion::Cubic,
            "newreno" => Congestion::NewReno,
            "bbr" => Congestion::Bbr,
            _ => Congestion::Auto,
        },
        datagram_bytes: entries.number("transport.datagram_bytes"),
        initial_window_bytes: size("transport.initial_window_bytes", sizes.initial_window),
        stripe_bytes: entries.int("transport.stripe_bytes"),
        streams: entries.int("transport.streams"),
        stream_window_bytes: entries.int("transport.stream_window_bytes"),
        connection_window_bytes,
        send_window_bytes: size("transport.send_window_bytes", sizes.send_window),
        session_bytes: size("transport.session_bytes", sizes.session),
        socket_buffer_bytes: entries.int("transport.socket_buffer_bytes"),
        order: match entries.text("transport.order") {
            "front-first" => Priority::FrontFirst,
            _ => Priority::Arrival,
        },
        credit_bytes: size("transport.credit_bytes", connection_window_bytes / 2),
        push_bytes_per_s: (entries.float("transport.push_mbit") * 125_000.0).ceil() as u64,
    }
}

/// Checks the keys with `rule`, which takes the keys of a rule and the rule.
pub(super) fn check(rule: &mut impl FnMut(&[&str], &dyn Fn(&Entries) -> Option<Fault>)) {
    rule(&["transport.bandwidth_mbit", "transport.round_trip_ms"], &link);
    rule(&["transport.initial_window_bytes", "transport.datagram_bytes"], &initial_window);
    rule(&["transport.connection_window_bytes", "transport.stream_window_bytes"], &connection_window);
}

fn link(entries: &Entries) -> Option<Fault> {
    let has = |key| entries.float(key) > 0.0;
    (has("transport.bandwidth_mbit") != has("transport.round_trip_ms")).then_some(Fault::Unfit {
        rule: "give transport.bandwidth_mbit and transport.round_trip_ms together: the sizes follow from both",
    })
}

/// The most that a UDP datagram over IPv4 can carry, which is what "auto" may find on a loopback.
const DATAGRAM_BYTES_MAX: i64 = 65_507;

/// Only one that is given: where the size follows from the link, the connection raises it to its datagrams.
fn initial_window(entries: &Entries) -> Option<Fault> {
    let window: i64 = entries.number("transport.initial_window_bytes")?;
    let given = entries.number("transport.datagram_bytes");
    let (datagram, found) = (given.unwrap_or(DATAGRAM_BYTES_MAX), given.is_none());
    (window <= datagram).then_some(Fault::WindowUnderDatagram { datagram, found })
}

fn connection_window(entries: &Entries) -> Option<Fault> {
    let stream: i64 = entries.int("transport.stream_window_bytes");
    // What follows from the link is never less.
    let connection: i64 = entries.number("transport.connection_window_bytes")?;
    (connection < stream).then_some(Fault::WindowUnderStream { stream })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{layer, resolve};
    use super::*;

    fn transport(keys: &[(&str, &str)]) -> Transport {
        resolve(&[layer("b.toml", keys)]).unwrap().config.transport
    }

    fn link(mbit: u32, ms: u32) -> Transport {
        let (mbit, ms) = (mbit.to_string(), ms.to_string());
        transport(&[("transport.bandwidth_mbit", &mbit), ("transport.round_trip_ms", &ms)])
    }

    #[test]
    fn a_full_link_fits_into_every_window_twice() {
        for mbit in [10, 100, 1000, 2500, 10_000] {
            for ms in [1, 10, 50, 100, 200] {
                let under_way = u64::from(mbit) * 1_000_000 / 8 * u64::from(ms) / 1000;
                let sizes = link(mbit, ms);
                for (name, size) in [
                    ("connection", sizes.connection_window_bytes),
                    ("send", sizes.send_window_bytes),
                    // What may be unread at a server, and what may be on its way from it.
                    ("session", sizes.session_bytes / 8 * 3),
                ] {
                    assert!(size + 8 >= 2 * under_way, "{mbit} Mbit/s, {ms} ms: {name} {size}");
                    let default = if name == "session" { 24 * MIB } else { 64 * MIB };
                    assert!(size <= default.max(2 * under_way + 8), "{mbit} Mbit/s, {ms} ms: {name} {size}");
                }
                assert!(sizes.initial_window_bytes <= under_way.max(32 * KIB), "{mbit} Mbit/s, {ms} ms");
                assert!(sizes.initial_window_bytes <= MIB);
            }
        }
        // 10 Gbit/s over 200 ms: 250 MB under way.
        let long = link(10_000, 200);
        assert_eq!((long.connection_window_bytes, long.send_window_bytes), (500_000_000, 500_000_000));
        assert_eq!(long.session_bytes, 1_333_333_334);
    }

    #[test]
    fn without_a_link_the_sizes_are_those_of_one_site() {
        let sizes = transport(&[]);
        assert_eq!(sizes.initial_window_bytes, MIB);
        assert_eq!(
            [sizes.connection_window_bytes, sizes.send_window_bytes, sizes.session_bytes],
            [64 * MIB; 3]
        );
    }

    #[test]
    fn what_is_given_wins_over_the_link() {
        let sizes = transport(&[
            ("transport.bandwidth_mbit", "10000"),
            ("transport.round_trip_ms", "100"),
            ("transport.send_window_bytes", "1000000"),
            ("transport.initial_window_bytes", "200000"),
        ]);
        assert_eq!((sizes.send_window_bytes, sizes.initial_window_bytes), (1_000_000, 200_000));
        assert_eq!(sizes.connection_window_bytes, 250_000_000);
    }

    #[test]
    fn half_a_link_is_none() {
        let problems = resolve(&[layer("b.toml", &[("transport.bandwidth_mbit", "1000")])]).unwrap_err();
        assert!(problems[0].to_string().contains("together"), "{problems:?}");
    }
}
