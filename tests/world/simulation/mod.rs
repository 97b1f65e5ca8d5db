//! The simulated world: the real cores of servers and workers, driven in virtual time from one seed.
//!
//! Only what the cores do not contain is simulated: time, the network, disks, the shells around the cores, crashes. Read in this order:
//! [`scenario`] (what a run is), [`world`] (the loop), [`network`] and [`feeds`] (what links do), [`machines`] and [`disk`],
//! [`servers`], [`hosts`], [`cluster`] and [`workers`] (the shells), [`observers`], [`resume`] (the life before), [`mishaps`] and [`faults`] (what goes wrong), [`lineage`] (the true
//! history of every shard), [`sight`] (what the invariants see).

pub(crate) mod agenda;
pub(crate) mod chance;
pub(crate) mod cluster;
pub(crate) mod computing;
pub(crate) mod counts;
pub(crate) mod disk;
pub(crate) mod faults;
pub(crate) mod feeds;
pub(crate) mod hosts;
pub(crate) mod lineage;
pub(crate) mod machines;
pub(crate) mod mishaps;
pub(crate) mod network;
pub(crate) mod observers;
pub(crate) mod problem;
pub(crate) mod resume;
pub(crate) mod scenario;
pub(crate) mod servers;
pub(crate) mod sight;
pub(crate) mod store;
pub(crate) mod trace;
pub(crate) mod workers;
pub(crate) mod world;

pub(crate) use problem::Problem;
pub(crate) use scenario::{Scenario, Weather};
pub(crate) use world::World;
