//! The coordinator of the model, and what each action does.

use slackline_core::ids::{Clock, Generation, Incarnation, ServerId, ShardId, WorkerId};
use slackline_core::wire::{Backup, Origin, Place};
use slackline_server_core::{HostEvent, ShardEvent};

use super::{Action, Stage, State, Variant, Worker};
use crate::ledger::incarnation;

impl Variant {
    /// The run has begun at server 0, and server 1 is its backup with nothing so far.
    pub(super) fn begin(&self) -> State {
        let place = Place {
            shard: ShardId(0),
            generation: Generation(1),
            primary: ServerId(0),
            backup: None,
            origin: Origin::Nothing,
        };
        let worker = Worker { stage: Stage::Pull, done: 0, has_sent: false, session: 1, known: 0, home: 0 };
        let mut state = State {
            hosts: [Some(self.host(0)), Some(self.host(1))],
            place,
            orders: [None, None],
            told: [Some(place), None],
            inside: Default::default(),
            feeds: [None, None],
            in_step: None,
            workers: vec![worker; self.ledger.workers as usize],
            lost: false,
            acknowledged: 0,
            seen: 0,
            crashes: self.crashes,
            suspicions: self.suspicions,
            removals: self.removals,
            reconnections: self.reconnections,
            losses: self.losses,
            broken: None,
        };
        self.host_event(
            &mut state,
            0,
            HostEvent::Place { place: Some(place), members: Vec::new(), started: false },
        );
        for event in self.ledger.opening() {
            self.host_event(&mut state, 0, HostEvent::Shard(event));
        }
        if self.lag > 0 {
            state.place.backup = Some(Backup { server: ServerId(1), in_step: false });
            self.tell(&mut state);
        }
        if self.in_step {
            self.come_in_step(&mut state);
        }
        state
    }

    /// The backup is given the state, and the coordinator hears it; no worker has done anything yet.
    fn come_in_step(&self, state: &mut State) {
        let of_server = |server| {
            [Action::Order(server), Action::Open(server), Action::Deliver(server), Action::Confirm(server)]
        };
        let steps: Vec<Action> = (0..2).flat_map(of_server).chain([Action::InStep]).collect();
        while let Some(action) = steps.iter().find(|action| self.is_enabled(state, action)) {
            self.act(state, action);
        }
    }

    /// Both servers are to hear how things are.
    fn tell(&self, state: &mut State) {
        for server in 0..2 {
            if state.hosts[server].is_some() {
                state.orders[server] = Some(state.place);
            }
        }
    }

    /// Who is a member, for a primary that takes over.
    fn members(&self, state: &State) -> Vec<(WorkerId, Incarnation, Clock)> {
        let present = state.workers.iter().enumerate().filter(|(_, worker)| worker.stage != Stage::Removed);
        present
            .map(|(id, worker)| (WorkerId(id as u32), incarnation(id as u32), Clock(worker.done)))
            .collect()
    }

    pub(super) fn act(&self, state: &mut State, action: &Action) {
        match *action {
            Action::Send(worker) => self.send(state, worker),
            Action::Move(worker) | Action::Reconnect(worker) => {
                state.reconnections -= u8::from(matches!(action, Action::Reconnect(_)));
                let home = state.place.primary.0 as usize;
                let one = &mut state.workers[worker];
                (one.session, one.has_sent) = (one.session + 1, false);
                one.home = if matches!(action, Action::Move(_)) { home } else { one.home };
            }
            Action::Remove(worker) => {
                state.removals -= 1;
                state.workers[worker].stage = Stage::Removed;
                let event = ShardEvent::Remove { worker: WorkerId(worker as u32) };
                let primary = state.place.primary.0 as usize;
                self.host_event(state, primary, HostEvent::Shard(event));
            }
            Action::Order(server) => {
                let place = state.orders[server].take();
                state.told[server] = place;
                let members = self.members(state);
                self.host_event(state, server, HostEvent::Place { place, members, started: true });
            }
            Action::Crash(server) => self.crash(state, server),
            Action::Restart(server) => {
                state.hosts[server] = Some(self.host(server));
                let other = ServerId(1 - server as u32);
                if state.place.primary == other && state.place.backup.is_none() {
                    state.place.backup = Some(Backup { server: ServerId(server as u32), in_step: false });
                }
                self.tell(state);
            }
            Action::Suspect => {
                state.suspicions -= 1;
                self.promote(state);
            }
            Action::InStep => {
                let said = state.in_step.take();
                if let (Some((generation, server)), Some(backup)) = (said, &mut state.place.backup)
                    && generation == state.place.generation
                    && backup.server == server
                {
                    backup.in_step = true;
                    self.tell(state);
                }
            }
            Action::Break(server) => {
                state.losses -= 1;
                if let Some(feed) = &mut state.feeds[server] {
                    feed.is_lost = true;
                }
            }
            Action::Open(_) | Action::Lose(_) | Action::Deliver(_) | Action::Confirm(_) => {
                self.move_feed(state, action);
            }
        }
    }

    /// The backup takes over, and the former primary, if it lives, is given its copy anew.
    fn promote(&self, state: &mut State) {
        let former = state.place.primary;
        let Some(backup) = state.place.backup.take() else { return };
        state.place.generation = state.place.generation.next();
        (state.place.primary, state.place.origin) = (backup.server, Origin::Memory);
        if state.hosts[former.0 as usize].is_some() {
            state.place.backup = Some(Backup { server: former, in_step: false });
        }
        self.tell(state);
    }

    fn crash(&self, state: &mut State, server: usize) {
        state.crashes -= 1;
        (state.hosts[server], state.orders[server], state.feeds[server]) = (None, None, None);
        (state.told[server], state.inside[server]) = (None, Default::default());
        if let Some(feed) = &mut state.feeds[1 - server] {
            feed.is_lost = true;
        }
        // Its lease is over.
        if state.place.primary.0 as usize == server {
            if state.place.backup.is_some_and(|backup| backup.in_step) {
                self.promote(state);
            } else {
                state.lost = true;
            }
        } else if state.place.backup.take().is_some() {
            state.place.generation = state.place.generation.next();
            self.tell(state);
        }
    }
}
