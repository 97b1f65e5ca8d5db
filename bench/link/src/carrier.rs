//! The threads that move packets from device to device, each when its time has come.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tun_rs::SyncDevice;

use crate::line::{Fate, Line, Weather};

/// Packets that are on their way to one end at once; more are dropped. A link of 1 Gbit/s and 200 ms has 17,000 of Ethernet's.
const UNDER_WAY_MAX: usize = 1 << 18;

/// What is due so soon is sent now: a thread cannot sleep for less.
const SOON: Duration = Duration::from_micros(60);

/// The largest packet of IP.
const PACKET_BYTES_MAX: usize = 65_535;

/// What became of the packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Arrived, or on their way.
    pub passed: u64,
    /// Lost on the way.
    pub lost: u64,
    /// Dropped because a queue was full.
    pub full: u64,
}

/// The counters behind [`Counts`].
#[derive(Debug, Default)]
struct Counters {
    passed: AtomicU64,
    lost: AtomicU64,
    full: AtomicU64,
}

/// A packet, and when it arrives.
type Due = (Duration, Vec<u8>);

/// Moves packets between the devices until this process ends: device i is that of the address at place i. What leaves an end goes over its own
/// line of `weather` with its rate, delay and loss, and then over the line to the other end, which has the same rate. Returns a function
/// that tells the counts so far.
///
/// # Errors
/// The system gives no threads.
pub fn carry(
    devices: Vec<(Ipv4Addr, SyncDevice)>,
    weather: Weather,
    seed: u64,
) -> io::Result<impl Fn() -> Counts> {
    let counters = Arc::new(Counters::default());
    let devices: Vec<(Ipv4Addr, Arc<SyncDevice>)> =
        devices.into_iter().map(|(address, device)| (address, Arc::new(device))).collect();
    let began = Instant::now();
    let inward = Weather { delay: Duration::ZERO, loss: 0.0, ..weather };
    let mut ways = Vec::new();
    for (address, device) in &devices {
        let (sender, due) = sync_channel(UNDER_WAY_MAX);
        let device = device.clone();
        thread::Builder::new().name(format!("to {address}")).spawn(move || deliver(&device, &due, began))?;
        ways.push((*address, Arc::new(Mutex::new(Line::new(inward, 0))), sender));
    }
    for (place, (address, device)) in devices.into_iter().enumerate() {
        let outward = Line::new(weather, seed.wrapping_add(place as u64));
        let (ways, counters) = (ways.clone(), counters.clone());
        thread::Builder::new()
            .name(format!("from {address}"))
            .spawn(move || collect(&device, outward, &ways, &counters, began))?;
    }
    Ok(move || Counts {
        passed: counters.passed.load(Ordering::Relaxed),
        lost: counters.lost.load(Ordering::Relaxed),
        full: counters.full.load(Ordering::Relaxed),
    })
}

/// The way to one end: its address, the line, and who delivers.
type Way = (Ipv4Addr, Arc<Mutex<Line>>, SyncSender<Due>);

/// Reads what leaves an end, and decides what becomes of it.
fn collect(device: &SyncDevice, mut outward: Line, ways: &[Way], counters: &Counters, began: Instant) {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    // The device is gone when reading fails: so is whoever used it.
    while let Ok(length) = device.recv(&mut buffer) {
        let packet = &buffer[..length];
        let Some((_, inward, sender)) =
            destination(packet).and_then(|to| ways.iter().find(|(address, ..)| *address == to))
        else {
            continue;
        };
        let fate = match outward.pass(began.elapsed(), length) {
            Fate::Arrives(at) => inward.lock().unwrap_or_else(PoisonError::into_inner).pass(at, length),
            fate => fate,
        };
        let fate = match fate {
            Fate::Arrives(at) if sender.try_send((at, packet.to_vec())).is_err() => Fate::Full,
            fate => fate,
        };
        let counter = match fate {
            Fate::Arrives(_) => &counters.passed,
            Fate::Lost => &counters.lost,
            Fate::Full => &counters.full,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes each packet when it is due.
fn deliver(device: &SyncDevice, due: &Receiver<Due>, began: Instant) {
    while let Ok((at, packet)) = due.recv() {
        let wait = at.saturating_sub(began.elapsed());
        if wait > SOON {
            thread::sleep(wait);
        }
        // A device that takes a packet no more drops it, as a link does.
        let _ = device.send(&packet);
    }
}

/// Where an IPv4 packet goes; none for anything else.
fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let bytes: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    is_v4.then(|| bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_headers_of_version_4_have_a_destination() {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[10, 254, 0, 2]);
        assert_eq!(destination(&packet), Some(Ipv4Addr::new(10, 254, 0, 2)));
        assert_eq!(destination(&packet[..19]), None);
        packet[0] = 0x60;
        assert_eq!(destination(&packet), None);
        assert_eq!(destination(&[]), None);
    }
}
