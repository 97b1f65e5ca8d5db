//! The policies as the configuration names them, with the bounds that follow.

use std::fmt;
use std::time::Duration;

use super::{Policy, asp, backup, dssp, quorum, ssp};

/// A policy with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicySpec {
    /// Bulk-synchronous: [`backup`] without late workers.
    Bsp,
    /// Stale-synchronous with a bound: see [`ssp`].
    Ssp {
        /// The staleness bound s, in iterations.
        staleness: u64,
    },
    /// The same, eager: values come anew while a reader waits for other shards (Dai et al. 2015).
    Essp {
        /// The staleness bound s, in iterations.
        staleness: u64,
    },
    /// Stale-synchronous with a bound that moves: see [`dssp`].
    Dssp {
        /// The bound at rest.
        low: u64,
        /// The bound that is never exceeded.
        high: u64,
    },
    /// Asynchronous: see [`asp`].
    Asp,
    /// Bulk-synchronous with backup workers: see [`backup`].
    Backup {
        /// Workers that a clock closes without (b).
        late: u32,
    },
    /// The mean of the first gradients: see [`quorum`].
    Quorum {
        /// Gradients that make one step (K); none for one of each live worker.
        count: Option<u32>,
        /// How long a complete quorum still waits for others.
        grace: Duration,
        /// Whether a reader waits until its own push is in the values. With fragments it does not.
        holds: bool,
    },
    /// A global-batch buffer: a quorum whose readers never wait.
    Buffer {
        /// Gradients that make one step (K); none for one of each live worker.
        count: Option<u32>,
    },
}

impl PolicySpec {
    /// The policy itself.
    #[must_use]
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Bsp => Box::new(backup::Backup { late: 0 }),
            Self::Ssp { staleness } | Self::Essp { staleness } => Box::new(ssp::Ssp { staleness }),
            Self::Dssp { low, high } => Box::new(dssp::Dssp::new(low, high)),
            Self::Asp => Box::new(asp::Asp),
            Self::Backup { late } => Box::new(backup::Backup { late }),
            Self::Quorum { count, grace, holds } => Box::new(quorum::Quorum::new(count, grace, holds)),
            Self::Buffer { count } => Box::new(quorum::Quorum::new(count, Duration::ZERO, false)),
        }
    }

    /// The staleness bound s, in iterations; none where there is none. Under dssp the high one.
    #[must_use]
    pub const fn staleness(self) -> Option<u64> {
        match self {
            Self::Bsp => Some(0),
            Self::Ssp { staleness } | Self::Essp { staleness } => Some(staleness),
            Self::Dssp { high, .. } => Some(high),
            Self::Asp | Self::Backup { .. } | Self::Quorum { .. } | Self::Buffer { .. } => None,
        }
    }

    /// Whether several gradients are applied as one mean, so that the rate need not know the number of workers.
    #[must_use]
    pub const fn takes_means(self) -> bool {
        matches!(self, Self::Bsp | Self::Backup { .. } | Self::Quorum { .. } | Self::Buffer { .. })
    }

    /// Whether the batches of one clock are handed out before those of the next. Only where nobody overtakes.
    #[must_use]
    pub const fn is_ordered(self) -> bool {
        matches!(self, Self::Bsp | Self::Backup { late: 0 } | Self::Quorum { count: None, holds: true, .. })
    }

    /// Whether a reader that waits for other shards gets values anew.
    #[must_use]
    pub const fn refreshes(self) -> bool {
        matches!(self, Self::Essp { .. })
    }

    /// Most iterations that a worker's clock can lie above the minimum clock: s + 1, reached when it has pushed and the
    /// slowest has not.
    #[must_use]
    pub fn lead_bound(self) -> Option<u64> {
        self.staleness().map(|staleness| staleness.saturating_add(1))
    }

    /// Most iterations that values can be pulled ahead: so many of the reader's own last pushes are missing in them, which the bound must
    /// allow at all times. Where a mean waits for the push that would be missing, none.
    #[must_use]
    pub const fn prefetch_max(self) -> u64 {
        match self {
            Self::Ssp { staleness } | Self::Essp { staleness } => staleness,
            Self::Dssp { low, .. } => low,
            Self::Asp | Self::Buffer { .. } => u64::MAX,
            Self::Bsp | Self::Backup { .. } | Self::Quorum { .. } => 0,
        }
    }

    /// Most versions that can pass between a pull and the apply of the gradient computed on it, for `workers` workers
    /// that stay: (P - 1)(2s + 1), and the worker's own pushes that were missing in what it pulled `prefetch` iterations ahead. Zero under
    /// bsp and backup, whose version counts clocks.
    #[must_use]
    pub fn version_bound(self, workers: u64, prefetch: u64) -> Option<u64> {
        match self {
            Self::Bsp | Self::Backup { .. } => Some(0),
            Self::Ssp { staleness: bound }
            | Self::Essp { staleness: bound }
            | Self::Dssp { high: bound, .. } => {
                let of_others = bound.saturating_mul(2).saturating_add(1);
                Some(workers.saturating_sub(1).saturating_mul(of_others).saturating_add(prefetch))
            }
            Self::Asp | Self::Quorum { .. } | Self::Buffer { .. } => None,
        }
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &Option<u32>| count.map_or_else(|| "all".to_owned(), |count| count.to_string());
        match self {
            Self::Bsp => write!(f, "bsp"),
            Self::Ssp { staleness } => write!(f, "ssp({staleness})"),
            Self::Essp { staleness } => write!(f, "essp({staleness})"),
            Self::Dssp { low, high } => write!(f, "dssp({low}, {high})"),
            Self::Asp => write!(f, "asp"),
            Self::Backup { late } => write!(f, "backup({late})"),
            Self::Quorum { count, grace, .. } => {
                write!(f, "quorum({}, {} s)", of(count), grace.as_secs_f64())
            }
            Self::Buffer { count } => write!(f, "buffer({})", of(count)),
        }
    }
}
