//! The topologies as the configuration names them, and which numbers of members they fit.

use std::fmt;
use std::str::FromStr;

use bincode::{Decode, Encode};

use crate::limits::GROUP_COUNT_MAX;

/// Who sends to whom in an allreduce. With p members, n bytes, a latency alpha and beta seconds a byte; what is sent counts per
/// member. [`cost`](super::cost) has the whole formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum Topology {
    /// The bucket algorithm (Barnett et al. 1994; Thakur et al. 2005): reduce-scatter and all-gather around a ring.
    /// 2(p - 1) steps; 2(p - 1)/p n bytes, the fewest possible.
    Ring,
    /// Recursive halving, then recursive doubling (Rabenseifner 2004; Goyal et al. 2017). 2 log2 p steps and 2(p - 1)/p n bytes
    /// for powers of two. Otherwise some members are folded into others first: two more steps with n bytes each.
    HalvingDoubling,
    /// Recursive doubling (Thakur et al. 2005): log2 p steps with n bytes each, for small gradients. Folds as the former.
    Doubling,
    /// Groups of neighbours reduce to their first member, those form a ring, and the groups get the sums back (Jia et al. 2018).
    /// 4(k - 1) + 2(p/k - 1) steps for groups of k.
    Hierarchical {
        /// Members of a group: k.
        group: u32,
    },
    /// Reduce-scatter along rows, allreduce along columns, all-gather along rows (Mikami et al. 2018), with the payload in two
    /// colours, one rows first, the other columns first, running in opposite directions (Ying et al. 2018).
    /// 2(x - 1) + 2(y - 1) steps; 2(p - 1)/p n bytes.
    Torus {
        /// Members of a row.
        x: u32,
        /// Members of a column.
        y: u32,
    },
    /// To be chosen from what is measured: see [`cost::choose`](super::cost::choose).
    Auto,
}

impl Topology {
    /// Whether it can be used by so many members. [`Auto`](Self::Auto) fits where an allreduce is possible at all.
    ///
    /// # Errors
    /// The sizes that would fit.
    pub fn fits(self, members: u32) -> Result<(), Misfit> {
        if members == 0 || members > GROUP_COUNT_MAX {
            return Err(Misfit::Members { members });
        }
        match self {
            Self::Hierarchical { group } if group == 0 || !members.is_multiple_of(group) => {
                Err(Misfit::Group { group, members })
            }
            Self::Torus { x, y } if u64::from(x) * u64::from(y) != u64::from(members) => {
                Err(Misfit::Torus { x, y, members })
            }
            _ => Ok(()),
        }
    }
}

/// The numbers that divide `members`, rising.
pub(super) fn divisors(members: u32) -> impl Iterator<Item = u32> {
    (1..=members).filter(move |divisor| members.is_multiple_of(*divisor))
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring => write!(f, "ring"),
            Self::HalvingDoubling => write!(f, "halving-doubling"),
            Self::Doubling => write!(f, "doubling"),
            Self::Hierarchical { group } => write!(f, "hierarchical({group})"),
            Self::Torus { x, y } => write!(f, "torus({x}, {y})"),
            Self::Auto => write!(f, "auto"),
        }
    }
}

impl FromStr for Topology {
    type Err = NotATopology;

    /// Reads what [`Display`](fmt::Display) writes. Spaces within the brackets do not matter, and a size is a number from 1.
    fn from_str(text: &str) -> Result<Self, NotATopology> {
        let (name, sizes) = match text.split_once('(') {
            None => (text, None),
            Some((name, rest)) => (name, Some(sizes_of(rest).ok_or(NotATopology)?)),
        };
        match (name, sizes.as_deref()) {
            ("ring", None) => Ok(Self::Ring),
            ("halving-doubling", None) => Ok(Self::HalvingDoubling),
            ("doubling", None) => Ok(Self::Doubling),
            ("auto", None) => Ok(Self::Auto),
            ("hierarchical", Some(&[group])) => Ok(Self::Hierarchical { group }),
            ("torus", Some(&[x, y])) => Ok(Self::Torus { x, y }),
            _ => Err(NotATopology),
        }
    }
}

/// The numbers in `4, 2)`.
fn sizes_of(text: &str) -> Option<Vec<u32>> {
    let size = |text: &str| {
        let digits = text.trim();
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|size| plain && *size > 0)
    };
    text.strip_suffix(')')?.split(',').map(size).collect()
}

/// A text names no topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a topology; there are ring, halving-doubling, doubling, hierarchical(k), torus(x, y) and auto, with sizes from 1, for example \
     torus(4, 2)"
)]
pub struct NotATopology;

/// A topology cannot be used by that number of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// No allreduce has so many members.
    #[error("an allreduce has 1 to {GROUP_COUNT_MAX} workers, not {members}")]
    Members {
        /// How many there are.
        members: u32,
    },
    /// The groups do not divide the members.
    #[error("hierarchical({group}) does not divide {members} workers; these do: {}", Fitting::Groups(*members))]
    Group {
        /// Members of a group.
        group: u32,
        /// How many there are.
        members: u32,
    },
    /// The grid has another number of places.
    #[error(
        "torus({x}, {y}) has {} places for {members} workers; these fit: {}",
        u64::from(*x) * u64::from(*y),
        Fitting::Tori(*members)
    )]
    Torus {
        /// Members of a row.
        x: u32,
        /// Members of a column.
        y: u32,
        /// How many there are.
        members: u32,
    },
    /// Auto stands for a choice that is still to be made.
    #[error("auto has no schedule of its own: a topology must be chosen from measurements first")]
    Undecided,
}

/// The sizes that would fit, in words.
enum Fitting {
    Groups(u32),
    Tori(u32),
}

impl fmt::Display for Fitting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Groups(members) | Self::Tori(members)) = *self;
        for (place, size) in divisors(members).enumerate() {
            let topology = match self {
                Self::Groups(_) => Topology::Hierarchical { group: size },
                Self::Tori(_) => Topology::Torus { x: size, y: members / size },
            };
            write!(f, "{}{topology}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
