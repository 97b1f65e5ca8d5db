//! Allreduce: who sends which part of a gradient to whom, in which step, and what is added in which order.
//!
//! Read in this order: [`Topology`] is what the configuration names; [`Schedule`] is all transfers of it for a number of members;
//! [`buckets()`] cuts a model into what is reduced at once, and [`Packing`] lays the values of a bucket part by part; [`Reduction`]
//! is one bucket's allreduce at one member, without any IO; [`cost`] says what each topology costs and chooses one.
//!
//! Three laws hold and are tested for all topologies and 1 to 17 members: every member ends with the same bits, whatever order
//! things arrive in; those are the sum of all gradients; and they do not depend on how the model is cut into buckets.

mod buckets;
pub mod cost;
mod packing;
mod plan;
mod reduction;
mod schedule;
mod segments;
mod topologies;
mod topology;

pub use buckets::{Bucket, Order, buckets};
pub use packing::Packing;
pub use reduction::{Outgoing, Reduction, ReductionError, Values};
pub use schedule::{Action, Schedule, Transfer};
pub use topology::{Misfit, NotATopology, Topology};

#[cfg(test)]
mod tests;
