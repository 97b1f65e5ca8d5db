//! What an allreduce costs, and which topology costs least: the alpha-beta-gamma model (Rabenseifner 2004; Thakur, Rabenseifner and
//! Gropp 2005).
//!
//! A message of m bytes takes alpha + m beta seconds, adding m bytes takes m gamma. A member sends and receives at once, and two
//! colours of a torus share its one link to the network. With p members, n bytes, q = 2^floor(log2 p), and f = 0 where p = q, else 1:
//!
//! | topology | seconds |
//! |---|---|
//! | ring | 2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma |
//! | halving-doubling | (2 log2 q + 2f) alpha + (2(q-1)/q + 2f) n beta + ((q-1)/q + f) n gamma |
//! | doubling | (log2 q + 2f) (alpha + n beta) + (log2 q + f) n gamma |
//! | hierarchical(k), with g = p/k | (4(k-1) + 2(g-1)) alpha + (4(k-1)/k + 2(g-1)/g) n beta + (2(k-1)/k + (g-1)/g) n gamma |
//! | torus(x, y) | (2(x-1) + 2(y-1)) alpha + 2(p-1)/p n beta + (p-1)/p n gamma |
//!
//! A test runs all schedules in lockstep under this model and gets the same seconds.

use std::fmt::Write as _;

use super::topology::{Misfit, Topology, divisors};

/// The constants of the model. What is not finite or below zero counts as zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Seconds that a message of no size takes: alpha.
    pub alpha_s: f64,
    /// Seconds a byte that is sent: beta.
    pub beta_s_per_byte: f64,
    /// Seconds a byte that is added: gamma.
    pub gamma_s_per_byte: f64,
}

/// The factors of the three constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Of alpha: messages one after another.
    pub steps: f64,
    /// Of n beta: how often the gradient goes through the slowest member's link, in one direction.
    pub sent: f64,
    /// Of n gamma: how often the gradient is added, one after another.
    pub added: f64,
}

/// The factors of a topology.
///
/// # Errors
/// It does not fit, or is [`Topology::Auto`].
pub fn factors(topology: Topology, members: u32) -> Result<Factors, Misfit> {
    topology.fits(members)?;
    formula(topology, members).ok_or(Misfit::Undecided)
}

/// The factors of a topology that fits, also for more members than a group may have; none for [`Topology::Auto`].
pub(super) fn formula(topology: Topology, members: u32) -> Option<Factors> {
    // What p members do in turn with 1/p each.
    let shares = |count: u32| f64::from(count - 1) / f64::from(count);
    let rounds = f64::from(members.ilog2());
    let left = 1 << members.ilog2();
    let fold = f64::from(u8::from(left != members));
    let (steps, sent, added) = match topology {
        Topology::Ring => (2.0 * f64::from(members - 1), 2.0 * shares(members), shares(members)),
        Topology::HalvingDoubling => {
            (2.0 * rounds + 2.0 * fold, 2.0 * shares(left) + 2.0 * fold, shares(left) + fold)
        }
        Topology::Doubling => (rounds + 2.0 * fold, rounds + 2.0 * fold, rounds + fold),
        Topology::Hierarchical { group } => {
            let leaders = members / group;
            let steps = 4.0 * f64::from(group - 1) + 2.0 * f64::from(leaders - 1);
            (steps, 4.0 * shares(group) + 2.0 * shares(leaders), 2.0 * shares(group) + shares(leaders))
        }
        Topology::Torus { x, y } => {
            (2.0 * f64::from(x - 1) + 2.0 * f64::from(y - 1), 2.0 * shares(members), shares(members))
        }
        Topology::Auto => return None,
    };
    Some(Factors { steps, sent, added })
}

impl Rates {
    fn cleaned(self) -> Self {
        let clean = |value: f64| if value.is_finite() { value.max(0.0) } else { 0.0 };
        Self {
            alpha_s: clean(self.alpha_s),
            beta_s_per_byte: clean(self.beta_s_per_byte),
            gamma_s_per_byte: clean(self.gamma_s_per_byte),
        }
    }

    /// Seconds that go with the messages, and seconds a byte of the gradient.
    fn of(self, factors: Factors) -> (f64, f64) {
        let rates = self.cleaned();
        let per_byte = factors.sent * rates.beta_s_per_byte + factors.added * rates.gamma_s_per_byte;
        (factors.steps * rates.alpha_s, per_byte)
    }
}

/// Seconds of one allreduce of so many bytes.
///
/// # Errors
/// The topology does not fit, or is [`Topology::Auto`].
pub fn time(topology: Topology, members: u32, bytes: u64, rates: Rates) -> Result<f64, Misfit> {
    let (fixed, per_byte) = rates.of(factors(topology, members)?);
    Ok(fixed + bytes as f64 * per_byte)
}

/// The number of bytes at which two topologies take the same time: the one with fewer steps is faster below, the other above. None
/// where one is faster everywhere, or both are alike.
///
/// # Errors
/// One of them does not fit, or is [`Topology::Auto`].
pub fn crossover(one: Topology, other: Topology, members: u32, rates: Rates) -> Result<Option<f64>, Misfit> {
    let (fixed, per_byte) = rates.of(factors(one, members)?);
    let (other_fixed, other_per_byte) = rates.of(factors(other, members)?);
    let bytes = (fixed - other_fixed) / (other_per_byte - per_byte);
    Ok((bytes.is_finite() && bytes > 0.0).then_some(bytes))
}

/// A choice and what it was chosen from.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// What was chosen.
    pub topology: Topology,
    /// Seconds that it takes.
    pub seconds: f64,
    /// All others that fit with the seconds they take, the fastest first.
    pub rejected: Vec<(Topology, f64)>,
    /// Why, in a line or two.
    pub why: String,
}

/// How much slower the chosen one may be than the fastest: what is measured of a network is not better than this.
const TIE: f64 = 0.01;

/// All topologies that fit and differ from each other, those to be preferred in a tie first: for powers of two doubling and
/// halving-doubling have the bits of a bsp server, and a ring needs the fewest connections.
fn candidates(members: u32) -> impl Iterator<Item = Topology> {
    let sizes = move || divisors(members).filter(move |size| *size > 1 && *size < members);
    [Topology::Doubling, Topology::HalvingDoubling, Topology::Ring]
        .into_iter()
        .chain(sizes().map(move |x| Topology::Torus { x, y: members / x }))
        .chain(sizes().map(|group| Topology::Hierarchical { group }))
}

/// Chooses the topology for so many members and bytes. Among those that are as good as the fastest (within 1 %) the simplest is taken.
///
/// # Errors
/// No allreduce has so many members.
pub fn choose(members: u32, bytes: u64, rates: Rates) -> Result<Choice, Misfit> {
    Topology::Auto.fits(members)?;
    let mut timed = Vec::new();
    for topology in candidates(members) {
        timed.push((topology, time(topology, members, bytes, rates)?));
    }
    let fastest = timed.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
    let place = timed.iter().position(|(_, seconds)| *seconds <= fastest * (1.0 + TIE)).unwrap_or(0);
    let (topology, seconds) = timed.remove(place);
    timed.sort_by(|one, other| one.1.total_cmp(&other.1));
    let why = why(topology, seconds, &timed, (members, bytes), rates)?;
    Ok(Choice { topology, seconds, rejected: timed, why })
}

/// What decided, in words.
fn why(
    topology: Topology,
    seconds: f64,
    rejected: &[(Topology, f64)],
    (members, bytes): (u32, u64),
    rates: Rates,
) -> Result<String, Misfit> {
    let factors = factors(topology, members)?;
    let (fixed, _) = rates.of(factors);
    let latency = if seconds > 0.0 { 100.0 * fixed / seconds } else { 0.0 };
    let mut text = format!(
        "{topology} for {} among {members} workers: {} predicted, {} steps and {:.2} times the bytes per worker; ",
        Bytes(bytes),
        Seconds(seconds),
        factors.steps,
        factors.sent
    );
    let reason = match latency {
        _ if members == 1 => "a worker alone sends nothing".to_owned(),
        50.0.. => format!("latency is {latency:.0} % of it, so few steps count"),
        _ => format!("latency is {latency:.0} % of it, so few bytes count"),
    };
    text.push_str(&reason);
    for (place, (other, seconds)) in rejected.iter().take(3).enumerate() {
        let lead = if place == 0 { "; next " } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{lead}{other} {}", Seconds(*seconds));
    }
    Ok(text)
}

/// Seconds for people.
struct Seconds(f64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            1.0.. => write!(f, "{:.2} s", self.0),
            0.001.. => write!(f, "{:.2} ms", self.0 * 1e3),
            _ => write!(f, "{:.1} us", self.0 * 1e6),
        }
    }
}

/// Bytes for people.
struct Bytes(u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0..1024 => write!(f, "{} bytes", self.0),
            1024..1_048_576 => write!(f, "{:.1} KiB", self.0 as f64 / 1024.0),
            _ => write!(f, "{:.1} MiB", self.0 as f64 / 1_048_576.0),
        }
    }
}
