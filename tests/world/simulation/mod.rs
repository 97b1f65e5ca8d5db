//! The simulated world: the real cores of servers and workers, driven in virtual time from one seed.
//!
//! Only what the cores do not contain is simulated: time, the network, the shells around the cores, crashes. Read in this order:
//! [`scenario`] (what a run is), [`world`] (the loop), [`network`] (what links do), [`servers`] and [`workers`] (the shells),
//! [`mishaps`] (what goes wrong), [`sight`] (what the invariants see).

pub(crate) mod agenda;
pub(crate) mod chance;
pub(crate) mod mishaps;
pub(crate) mod network;
pub(crate) mod problem;
pub(crate) mod scenario;
pub(crate) mod servers;
pub(crate) mod sight;
pub(crate) mod trace;
pub(crate) mod workers;
pub(crate) mod world;

pub(crate) use problem::Problem;
pub(crate) use scenario::{Scenario, Weather};
pub(crate) use world::World;
