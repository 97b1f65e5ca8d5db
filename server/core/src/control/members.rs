//! The members of one server: incarnations, leases and the session that speaks for each.

use std::collections::BTreeMap;
use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::ids::{Clock, Incarnation, Moment, SessionId, WorkerId};
use slackline_core::wire::{MemberRow, Text};

/// One member.
#[derive(Clone, Debug, Encode, Decode)]
struct Member {
    incarnation: Incarnation,
    heard: Moment,
    /// When it became a member.
    came: Moment,
    session: Option<SessionId>,
    /// It has registered: it counts for the start, and shards know it.
    registered: bool,
    /// The clock it registered with.
    clock: Clock,
    /// A state that is led here knows it, or this process was restarted: the shards are to be told when it registers.
    is_expected: bool,
}

/// A member whose lease ran out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expired {
    pub(super) worker: WorkerId,
    pub(super) incarnation: Incarnation,
    pub(super) heard: Moment,
    pub(super) session: Option<SessionId>,
}

/// Members and the fence against former incarnations.
#[derive(Clone, Debug, Encode, Decode)]
pub(super) struct Members {
    lease: Duration,
    members: BTreeMap<WorkerId, Member>,
    /// The highest incarnation ever seen of each worker: nothing at or below it may come (back) in.
    fence: BTreeMap<WorkerId, Incarnation>,
}

impl Members {
    pub(super) const fn new(lease: Duration) -> Self {
        Self { lease, members: BTreeMap::new(), fence: BTreeMap::new() }
    }

    /// Makes a worker a member that has not registered yet.
    pub(super) fn admit(&mut self, worker: WorkerId, incarnation: Incarnation, now: Moment) {
        self.fence.insert(worker, incarnation);
        let member = Member {
            incarnation,
            heard: now,
            came: now,
            session: None,
            registered: false,
            clock: Clock(0),
            is_expected: false,
        };
        self.members.insert(worker, member);
    }

    /// Whether an incarnation is later than all that were seen of its worker.
    pub(super) fn is_new(&self, worker: WorkerId, incarnation: Incarnation) -> bool {
        self.fence.get(&worker).is_none_or(|fence| incarnation > *fence)
    }

    /// Binds a session to a member; returns whether it had registered before, and its former session.
    pub(super) fn bind(
        &mut self,
        worker: WorkerId,
        session: SessionId,
        now: Moment,
    ) -> (bool, Option<SessionId>) {
        let Some(member) = self.members.get_mut(&worker) else { return (false, None) };
        member.heard = now;
        let former = member.session.replace(session).filter(|former| *former != session);
        (std::mem::replace(&mut member.registered, true), former)
    }

    pub(super) fn unbind(&mut self, session: SessionId) {
        for member in self.members.values_mut().filter(|member| member.session == Some(session)) {
            member.session = None;
        }
    }

    pub(super) fn renew(&mut self, worker: WorkerId, session: SessionId, now: Moment) {
        if let Some(member) = self.members.get_mut(&worker)
            && member.session == Some(session)
        {
            member.heard = now;
        }
    }

    /// When a member was last heard over the session that speaks for it.
    pub(super) fn heard(&self, worker: WorkerId, session: SessionId) -> Option<Moment> {
        let member = self.members.get(&worker).filter(|member| member.session == Some(session))?;
        Some(member.heard)
    }

    /// Time in which this server heard nobody is nobody's silence.
    pub(super) fn forgive(&mut self, by: Duration, now: Moment) {
        for member in self.members.values_mut() {
            member.heard = member.heard.after(by).min(now);
        }
    }

    pub(super) fn expire(&self, now: Moment) -> Vec<Expired> {
        let over = |member: &Member| now.since(member.heard) > self.lease;
        let expired = |(worker, member): (&WorkerId, &Member)| {
            let Member { incarnation, heard, session, .. } = *member;
            over(member).then_some(Expired { worker: *worker, incarnation, heard, session })
        };
        self.members.iter().filter_map(expired).collect()
    }

    /// The shards wait for this member: it is to register within a lease.
    pub(super) fn expect(&mut self, worker: WorkerId) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.is_expected = true;
        }
    }

    /// Whether the shards wait for members.
    pub(super) fn expects_any(&self) -> bool {
        self.members.values().any(|member| member.is_expected)
    }

    /// A member has registered at a clock: the shards need not wait for it any more.
    pub(super) fn came(&mut self, worker: WorkerId, clock: Clock) {
        if let Some(member) = self.members.get_mut(&worker) {
            (member.clock, member.is_expected) = (member.clock.max(clock), false);
        }
    }

    /// All members.
    pub(super) fn ids(&self) -> Vec<WorkerId> {
        self.members.keys().copied().collect()
    }

    /// Those that have registered, with the clocks that they registered with.
    pub(super) fn entered(&self) -> Vec<(WorkerId, Incarnation, Clock)> {
        let here = self.members.iter().filter(|(_, member)| member.registered && !member.is_expected);
        here.map(|(worker, member)| (*worker, member.incarnation, member.clock)).collect()
    }

    /// Nobody comes in as this incarnation or an earlier one any more.
    pub(super) fn fence(&mut self, worker: WorkerId, incarnation: Incarnation) {
        if self.is_member(worker, incarnation) {
            self.members.remove(&worker);
        }
        let fence = self.fence.entry(worker).or_insert(incarnation);
        *fence = (*fence).max(incarnation);
    }

    /// This process was restarted: nobody has a session, all leases begin anew, and the shards are to be told of everybody again.
    pub(super) fn restart(&mut self, now: Moment) {
        for member in self.members.values_mut() {
            (member.session, member.heard) = (None, now);
            member.is_expected = member.registered;
        }
    }

    pub(super) fn remove(&mut self, worker: WorkerId) {
        self.members.remove(&worker);
    }

    /// How long ago each member was heard.
    pub(super) fn heard_ago(&self, now: Moment) -> BTreeMap<WorkerId, Duration> {
        self.members.iter().map(|(worker, member)| (*worker, now.since(member.heard))).collect()
    }

    pub(super) fn incarnation_of(&self, worker: WorkerId) -> Option<Incarnation> {
        self.members.get(&worker).map(|member| member.incarnation)
    }

    pub(super) fn is_member(&self, worker: WorkerId, incarnation: Incarnation) -> bool {
        self.incarnation_of(worker) == Some(incarnation)
    }

    pub(super) fn session_of(&self, worker: WorkerId) -> Option<SessionId> {
        self.members.get(&worker)?.session
    }

    pub(super) fn is_registered(&self, worker: WorkerId) -> bool {
        self.members.get(&worker).is_some_and(|member| member.registered)
    }

    pub(super) fn registered(&self) -> u32 {
        self.members.values().filter(|member| member.registered).count() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Workers that were ever members.
    pub(super) fn ever(&self) -> usize {
        self.fence.len()
    }

    /// All of those, in order.
    pub(super) fn ever_ids(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.fence.keys().copied()
    }

    /// When the newest member came.
    pub(super) fn newest(&self) -> Option<Moment> {
        self.members.values().map(|member| member.came).max()
    }

    /// The lowest id that is free for a newcomer: before the start the first gap, later one that was never used.
    pub(super) fn free_id(&self, started: bool) -> WorkerId {
        if started {
            return self.fence.keys().next_back().map_or(WorkerId(0), |last| last.next());
        }
        let mut id = WorkerId(0);
        while self.members.contains_key(&id) {
            id = id.next();
        }
        id
    }

    /// At most `most` rows for a status, and how many more there are.
    pub(super) fn rows(
        &self,
        now: Moment,
        most: usize,
        clock: impl Fn(WorkerId) -> Option<Clock>,
        address: impl Fn(SessionId) -> String,
    ) -> (Vec<MemberRow>, u32) {
        let row = |(worker, member): (&WorkerId, &Member)| {
            let mut address = member.session.map_or_else(|| "not connected".to_owned(), &address);
            address.truncate(slackline_core::limits::ADDRESS_BYTES_MAX);
            MemberRow {
                worker: *worker,
                incarnation: member.incarnation,
                address: Text::new(address),
                clock: clock(*worker),
                heard_ms: now.since(member.heard).as_millis() as u64,
            }
        };
        let rows = self.members.iter().take(most).map(row).collect();
        (rows, self.members.len().saturating_sub(most) as u32)
    }
}
