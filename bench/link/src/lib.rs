//! Links with a rate, a delay, loss and a bounded queue between network namespaces of one machine, for kernels without netem.
//!
//! Each namespace has one TUN device. This process reads the IP packets that leave it, decides with [`Line`]s when they arrive and which
//! are lost, and writes them to the device of whoever they are for. So TCP, UDP and whatever else meet the same link.
//!
//! [`Line`] is pure: what happens to a packet follows from the seed, its number and when it came. [`Ends`] are the namespaces,
//! [`carry`] moves the packets. A core moves some 300,000 packets a second: 3 Gbit/s of Ethernet's, more of jumbo ones.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(target_os = "linux")]
mod carrier;
#[cfg(target_os = "linux")]
mod ends;
mod line;

#[cfg(target_os = "linux")]
pub use carrier::{Counts, carry};
#[cfg(target_os = "linux")]
pub use ends::{Ends, EndsError};
pub use line::{Fate, Line, Weather};
