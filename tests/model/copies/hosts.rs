//! What the hosts of the model are told, and what becomes of what they ask for.

use std::collections::VecDeque;

use slackline_core::ids::{Clock, Moment, Sequence, ServerId, SessionId, WorkerId};
use slackline_core::wire::{PullKind, PushOutcome, Pushed};
use slackline_server_core::replica::{Frame, Role};
use slackline_server_core::{HostEffect, HostEvent, ShardEffect, ShardEvent};

use super::{Action, Feed, Inside, Stage, State, Variant};
use crate::ledger::{BOUND, incarnation};

/// The only moment.
const NOW: Moment = Moment(1);

/// All that a feed is; what the states in it hold follows from the host that sends them, so their numbers say enough.
pub(super) fn short(feed: &Feed) -> String {
    let frame = |frame: &Frame| match frame {
        Frame::State { index, state, .. } => format!("state {} {:016x}", index.0, state.hash()),
        Frame::Entry(entry) => format!("{} {:?}", entry.index.0, entry.event),
    };
    let frames: Vec<String> = feed.frames.iter().map(frame).collect();
    format!("{:?} {} {} {frames:?} {:?}", feed.generation, feed.is_open, feed.is_lost, feed.holds)
}

impl Variant {
    /// A host takes an event; what it asks for happens at once, where it does not cross to the other server.
    pub(super) fn host_event(&self, state: &mut State, server: usize, event: HostEvent) {
        let Some(host) = &mut state.hosts[server] else { return };
        let mut effects = Vec::new();
        host.handle(NOW, event, &mut effects);
        let said = host.take_traced();
        if let Some(shard) = host.shard() {
            shard.check_invariants();
        }
        let inside = &mut state.inside[server];
        inside.withheld.extend(said.iter().map(|effect| format!("{effect:?}")));
        if host.row().role != Role::Leading {
            *inside = Inside::default();
        }
        for effect in effects {
            self.perform(state, server, effect);
        }
    }

    fn perform(&self, state: &mut State, server: usize, effect: HostEffect) {
        match effect {
            HostEffect::Shard(effect) => {
                let withheld = &mut state.inside[server].withheld;
                if withheld.front().is_some_and(|first| *first == format!("{effect:?}")) {
                    withheld.pop_front();
                }
                self.let_out(state, effect);
            }
            HostEffect::OpenFeed { generation, .. } => {
                let (frames, holds) = (VecDeque::new(), VecDeque::new());
                state.feeds[server] =
                    Some(Feed { generation, is_open: false, is_lost: false, frames, holds });
            }
            HostEffect::CloseFeed => state.feeds[server] = None,
            HostEffect::Feed(frame) => {
                if let Frame::State { index, .. } = &frame {
                    state.inside[server].sent = Some(*index);
                }
                if let Some(feed) = state.feeds[server].as_mut().filter(|feed| !feed.is_lost) {
                    feed.frames.push_back(frame);
                }
            }
            HostEffect::Hold { generation, index, hash } => {
                if let Some(feed) = state.feeds[1 - server].as_mut().filter(|feed| !feed.is_lost) {
                    feed.holds.push_back((generation, index, hash));
                }
            }
            HostEffect::InStep { generation, backup } => state.in_step = Some((generation, backup)),
            HostEffect::Differs { index, .. } => {
                state.broken = Some(format!("the copies differ at entry {}", index.0));
            }
            HostEffect::NotRestored { why, .. } => {
                state.broken = Some(format!("nothing to lead with: {why}"))
            }
            HostEffect::Load { .. } => {
                state.broken = Some("a state is to be loaded, and there is none".to_owned())
            }
            HostEffect::Write(_) => {
                state.broken = Some("something is to be written without a disk".to_owned())
            }
            HostEffect::Restored { .. } | HostEffect::Leads { .. } => {}
        }
    }

    pub(super) fn move_feed(&self, state: &mut State, action: &Action) {
        let (Action::Open(server) | Action::Lose(server) | Action::Deliver(server) | Action::Confirm(server)) =
            *action
        else {
            return;
        };
        let other = 1 - server;
        let to = ServerId(other as u32);
        let Some(feed) = &mut state.feeds[server] else { return };
        let generation = feed.generation;
        let event = match action {
            Action::Open(_) => {
                feed.is_open = true;
                (server, HostEvent::FeedOpen { backup: to })
            }
            Action::Lose(_) => {
                // The shell tries again by itself.
                (feed.is_open, feed.is_lost) = (false, false);
                feed.frames.clear();
                feed.holds.clear();
                (server, HostEvent::FeedLost { backup: to })
            }
            Action::Deliver(_) => {
                let Some(frame) = feed.frames.pop_front() else { return };
                (other, HostEvent::Frame { generation, frame })
            }
            _ => {
                let Some((generation, index, hash)) = feed.holds.pop_front() else { return };
                state.inside[server].heard = Some((generation, index, hash));
                (server, HostEvent::Held { backup: to, generation, index, hash })
            }
        };
        self.host_event(state, event.0, event.1);
    }

    /// A worker sends its pull or its push.
    pub(super) fn send(&self, state: &mut State, worker: usize) {
        let one = &mut state.workers[worker];
        (one.has_sent, one.known) = (true, state.acknowledged | state.seen);
        let (home, done, stage) = (one.home, one.done, one.stage);
        let session = session(worker, one.session);
        let event = if stage == Stage::Pull {
            let id = worker as u32;
            ShardEvent::Pull {
                session,
                reader: Some((WorkerId(id), incarnation(id))),
                request: done,
                have: 0,
                kind: PullKind::Gated { clock: Clock(done), after: Sequence(done), ahead: 0 },
            }
        } else {
            self.ledger.push(session, worker as u32, done + 1)
        };
        self.host_event(state, home, HostEvent::Shard(event));
    }

    /// Something leaves a server: a worker hears it at once, if it still listens on that session.
    fn let_out(&self, state: &mut State, effect: ShardEffect) {
        match effect {
            ShardEffect::Answer { session, pushed } => self.answered(state, session, &pushed),
            ShardEffect::Serve { session, request, values, .. } => {
                self.served(state, session, request, &values.words)
            }
            _ => {}
        }
    }

    fn listener(&self, state: &State, heard: SessionId) -> Option<usize> {
        let worker = (heard.0 / 1000) as usize;
        (session(worker, state.workers[worker].session) == heard).then_some(worker)
    }

    fn answered(&self, state: &mut State, session: SessionId, pushed: &Pushed) {
        let Some(worker) = self.listener(state, session) else { return };
        let one = &mut state.workers[worker];
        if one.stage != Stage::Push || pushed.sequence.0 != one.done + 1 {
            return;
        }
        if !matches!(pushed.outcome, PushOutcome::Applied { .. }) {
            state.broken = Some(format!("worker {worker} is told {pushed:?}"));
            return;
        }
        one.done += 1;
        one.has_sent = false;
        one.stage = if one.done == self.ledger.pushes_of(worker) { Stage::Done } else { Stage::Pull };
        state.acknowledged |= 1 << self.ledger.key(worker as u32, one.done);
    }

    /// Values are read: what they count says what is in them.
    fn served(&self, state: &mut State, session: SessionId, request: u64, values: &[f32]) {
        let inside = match self.ledger.read(values) {
            Ok(inside) => inside,
            Err(text) => return state.broken = Some(text),
        };
        if let Some(worker) = self.listener(state, session)
            && state.workers[worker].stage == Stage::Pull
            && state.workers[worker].done == request
        {
            // What was acknowledged, or read by another, while the pull was under way may be in it or not: a primary that was replaced answers what it has
            // taken in before.
            let missing = state.workers[worker].known & !inside;
            if missing != 0 {
                state.broken =
                    Some(format!("values are without {missing:b}, which was acknowledged or read before"));
                return;
            }
            for (id, other) in state.workers.iter().enumerate() {
                let needs = if id == worker { request } else { request.saturating_sub(BOUND) };
                let lacks = (1..=needs).find(|push| inside & (1 << self.ledger.key(id as u32, *push)) == 0);
                if let (Some(push), true) = (lacks, other.stage != Stage::Removed) {
                    state.broken =
                        Some(format!("worker {worker} at {request} reads without push {push} of {id}"));
                    return;
                }
            }
            state.seen |= inside;
            let one = &mut state.workers[worker];
            (one.stage, one.has_sent) = (Stage::Push, false);
        }
    }
}

/// The session of a worker, for all servers.
const fn session(worker: usize, number: u64) -> SessionId {
    SessionId(worker as u64 * 1000 + number)
}
