//! Faults on purpose: a plan of what befalls the processes of a real cluster, and what must hold afterwards.
//!
//! Read in this order: `plan` (the file), `schedule` (drawn from the seed), `relay` (links that can be cut, lose and delay); then what is
//! found out afterwards: `pushes` (what all workers have recorded), `replay` (that again on one machine, against the servers' final
//! values), `bound` (was a reader ever further ahead than the policy allows), `presence` (who was there when, throughput and stalls), and
//! `report`, which puts it together.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bound;
pub mod plan;
pub mod presence;
pub mod pushes;
pub mod relay;
pub mod replay;
pub mod report;
pub mod schedule;
