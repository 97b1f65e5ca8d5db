//! Allreduce: the shell of a worker that averages gradients with others, instead of pushing them to servers.
//!
//! The cores decide who belongs to a group and when an iteration begins; here is what they ask for, with its virtual time: meeting
//! the others, computing, sending parts over the same links as every other transfer, adding them up, and applying the sums.
//!
//! Read in this order: `form` (what a group is made of), `meeting` (it comes together and falls apart), `parcels` (what goes from worker
//! to worker), `stepping` (one iteration), `replica` (the values, of which every worker has all).

mod form;
mod meeting;
mod parcels;
mod replica;
mod stepping;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slackline_core::ids::{Clock, Generation, Moment, WorkerId};
use slackline_core::wire::Group;

pub(crate) use form::GroupPlan;
pub(crate) use parcels::{Among, Parcel};
pub(crate) use replica::Commons;
pub(crate) use stepping::StepOf;

use form::Form;
use replica::{Replica, Sums};
use stepping::{Round, Stepping};

/// What a process of an allreduce has beside its core.
pub(crate) struct Peer {
    /// Its own copy of values and optimizer state.
    replica: Arc<Replica>,
    /// The group it is in.
    member: Option<Box<Member>>,
    /// Until when it adds and applies what it has taken.
    busy_until: Moment,
    /// When it crashed: what would have left it later was never sent.
    gone_at: Option<Moment>,
}

impl Peer {
    const fn new(replica: Arc<Replica>) -> Self {
        Self { replica, member: None, busy_until: Moment(0), gone_at: None }
    }

    fn member_of(&mut self, generation: Generation) -> Option<&mut Member> {
        self.member.as_deref_mut().filter(|member| member.group.generation == generation)
    }

    /// The iteration whose gradient is being computed.
    pub(crate) fn computing(&mut self) -> Option<&mut Stepping> {
        let step = self.member.as_mut()?.step.as_mut()?;
        (!step.is_computed).then_some(step)
    }
}

/// One worker's part in a group.
struct Member {
    group: Group,
    position: u32,
    /// The processes at the positions; none where one was gone already.
    processes: Vec<Option<usize>>,
    /// None where the group only measures.
    form: Option<Arc<Form>>,
    /// Positions that it is connected to, or is to be.
    linked: BTreeSet<u32>,
    /// Those of them that it has not met yet.
    to_meet: BTreeSet<u32>,
    is_met: bool,
    step: Option<Stepping>,
    /// Sums under way. Others can be an iteration ahead, so there may be two.
    rounds: BTreeMap<Clock, Round>,
    /// What the last iteration came to, until it is applied.
    sums: Option<(Clock, Arc<Sums>)>,
}

impl Member {
    fn worker_at(&self, position: u32) -> WorkerId {
        self.group.members.get(position as usize).map_or(WorkerId(position), |member| member.worker)
    }

    fn process_at(&self, position: u32) -> Option<usize> {
        self.processes.get(position as usize).copied().flatten()
    }
}
