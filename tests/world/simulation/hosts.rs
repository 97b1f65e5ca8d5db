//! The hosts of a server behind inboxes that keep their order, and what becomes of what they ask for.

use std::collections::VecDeque;

use slackline_core::ids::{Clock, Generation, Incarnation, Moment, Sequence, ShardId, WorkerId};
use slackline_core::wire::{Origin, Place, Served, ToPeer, TransferHeader, TransferKind};
use slackline_server_core::replica::Role;
use slackline_server_core::{HostEffect, HostEvent, ShardEffect, ShardEvent};

use super::agenda::Happening;
use super::network::Outward;
use super::sight::{PushKey, Verdict, holds};
use super::world::World;

/// Events that may wait for a host that takes none: what the members of a run can have under way.
const WAITING_MAX: usize = 400;

/// Effects that may wait for copies: an answer or two for each thing that the members have under way.
const WITHHELD_MAX: usize = 2 * WAITING_MAX;

impl World {
    /// Puts something into a shard's inbox.
    pub(crate) fn put_host(&mut self, server: usize, shard: ShardId, event: HostEvent) {
        self.put_push(server, shard, event, None);
    }

    /// The same, for a push with its true name.
    pub(crate) fn put_push(
        &mut self,
        server: usize,
        shard: ShardId,
        event: HostEvent,
        origin: Option<PushKey>,
    ) {
        // Pushes come through a queue of their own: what control ordered before they came goes first, what it orders later may overtake them.
        let is_task = matches!(event, HostEvent::Shard(ShardEvent::Initialize(_))) || origin.is_some();
        let wait = self.chance.micros(1, 300);
        let last = |is_task| self.servers[server].inbox.get(&(shard, is_task)).copied().unwrap_or_default();
        let last = if is_task { last(true).max(last(false)) } else { last(false) };
        let when = self.now.after(wait).max(Moment(last.0 + 1));
        self.servers[server].inbox.insert((shard, is_task), when);
        let boot = self.servers[server].boot;
        self.agenda.at(when, Happening::AtHost { server, boot, shard, event, origin });
    }

    /// A host takes an event from its inbox; while it takes none of the shard's, those wait, and the others do not.
    pub(crate) fn at_host(
        &mut self,
        server: usize,
        id: ShardId,
        event: HostEvent,
        origin: Option<PushKey>,
    ) -> Verdict {
        let event = match event {
            HostEvent::Shard(look) if !look.changes() => return self.look_at_host(server, id, look),
            event => event,
        };
        let Some(host) = self.servers[server].hosts.get(&id) else { return Ok(()) };
        let takes = host.takes_events();
        let is_task = origin.is_some();
        let waiting = &mut self.servers[server].waiting;
        let is_behind = waiting.contains_key(&(id, false)) || (is_task && waiting.contains_key(&(id, true)));
        if let HostEvent::Shard(event) = event {
            if is_behind || !takes {
                let queue = waiting.entry((id, is_task)).or_default();
                queue.push_back((event, origin));
                let count = queue.len();
                self.counts.waited += 1;
                return holds("bounded queues", count <= WAITING_MAX, || {
                    format!(
                        "{count} events wait for {id} on server {server}: {:?}",
                        self.servers[server].hosts[&id].row()
                    )
                });
            }
            return self.host_takes(server, id, HostEvent::Shard(event), origin);
        }
        self.host_takes(server, id, event, origin)?;
        loop {
            let state = &mut self.servers[server];
            if !state.up || !state.hosts.get(&id).is_some_and(slackline_server_core::Host::takes_events) {
                return Ok(());
            }
            let queues = [(id, false), (id, true)].into_iter();
            let next = queues.filter_map(|key| Some((key, state.waiting.get_mut(&key)?.pop_front()?))).next();
            let Some((key, (event, origin))) = next else { return self.take_looks(server, id) };
            if state.waiting.get(&key).is_some_and(VecDeque::is_empty) {
                state.waiting.remove(&key);
            }
            self.host_takes(server, id, HostEvent::Shard(event), origin)?;
        }
    }

    pub(crate) fn host_takes(
        &mut self,
        server: usize,
        id: ShardId,
        event: HostEvent,
        origin: Option<PushKey>,
    ) -> Verdict {
        let now = self.time_of(server);
        if self.trace.is_on() {
            self.trace.line(self.now, format_args!("server {server} {id} < {}", shown(&event)));
        }
        let Some(mut host) = self.servers[server].hosts.remove(&id) else { return Ok(()) };
        let before = host.row();
        let is_look = matches!(&event, HostEvent::Shard(event) if !event.changes());
        let noted = self.note(server, id, &host, &event);
        if let HostEvent::Place { place: Some(place), .. } = &event
            && place.primary.0 as usize == server
            && self.servers[server].terms.insert(id, place.generation) != Some(place.generation)
        {
            if leads(before.role) && !place.is_loaded() {
                self.write_term(server, id, place.generation);
            } else if place.origin != Origin::Disk {
                self.servers[server].since.insert(id, place.generation);
            }
        }
        let mut effects = Vec::new();
        host.handle(now, event, &mut effects);
        if let Some(shard) = host.shard().filter(|_| !leads(host.row().role)) {
            shard.check_invariants();
        }
        let after = host.row();
        holds("bounded queues", after.withheld <= WITHHELD_MAX, || {
            format!("{} effects of {id} wait for copies on server {server}: {after:?}", after.withheld)
        })?;
        if (before.role, before.generation) != (after.role, after.generation) && self.trace.is_on() {
            self.trace.line(self.now, format_args!("server {server} {id}: {before:?} -> {after:?}"));
        }
        // Whoever only looks does not make time pass.
        let deadline = host.next_deadline().filter(|_| !is_look);
        let verdict = self.after_host((server, id), &host, before, (noted, origin));
        self.servers[server].hosts.insert(id, host);
        verdict?;
        for effect in effects {
            if self.trace.is_on() {
                self.trace.line(self.now, format_args!("server {server} {id} > {}", shown_effect(&effect)));
            }
            self.perform_host(server, id, after.generation, effect)?;
        }
        if let Some(deadline) = deadline {
            let (boot, event) = (self.servers[server].boot, HostEvent::Tick);
            let when = self.when_it_is(server, deadline);
            self.agenda.at(when, Happening::AtHost { server, boot, shard: id, event, origin: None });
        }
        Ok(())
    }

    fn perform_host(
        &mut self,
        server: usize,
        id: ShardId,
        generation: Generation,
        effect: HostEffect,
    ) -> Verdict {
        match effect {
            HostEffect::Shard(effect) => return self.perform_shard(server, id, generation, effect),
            HostEffect::OpenFeed { backup, generation } => self.open_feed(server, id, backup, generation),
            HostEffect::CloseFeed => self.close_feed(server, id),
            HostEffect::Feed(frame) => self.feed(server, id, frame),
            HostEffect::Hold { generation, index, hash } => {
                self.acknowledge(server, id, generation, (index, hash));
            }
            HostEffect::Write(frame) => self.write(server, id, generation, frame),
            HostEffect::Load { place } => self.load(server, id, place),
            HostEffect::InStep { .. }
            | HostEffect::Leads { .. }
            | HostEffect::Restored { .. }
            | HostEffect::NotRestored { .. } => {
                self.host_says(server, id, effect);
            }
            HostEffect::Differs { shard, index } => {
                let text = || format!("the copies of {shard} differ at entry {}", index.0);
                return holds("copies are equal", false, text);
            }
        }
        Ok(())
    }

    /// The state that a place asks for is fetched.
    fn load(&mut self, server: usize, id: ShardId, place: Place) {
        let when = self.disk_is_done(server);
        let boot = self.servers[server].boot;
        self.agenda.at(when, Happening::Load { server, boot, shard: id, place });
    }

    /// Something leaves a server.
    fn perform_shard(
        &mut self,
        server: usize,
        id: ShardId,
        generation: Generation,
        effect: ShardEffect,
    ) -> Verdict {
        self.lets_out(server, id, generation, &effect)?;
        match effect {
            ShardEffect::Answer { session, pushed } => {
                self.say(server, session, Outward::Message(ToPeer::Pushed(pushed)));
            }
            ShardEffect::Staged { session, sequence } => {
                let message = ToPeer::Staged { shard: id, sequence };
                self.say(server, session, Outward::Message(message));
            }
            ShardEffect::Serve { reader: None, values, served, .. } => {
                return self.observer_served((server, id, generation), &values.words, &served);
            }
            ShardEffect::Serve { session, reader, request, values, served, .. } => {
                let keys = self.partition.range(id);
                let header = values_header(id, keys, reader.unwrap_or_default(), request, served);
                let header = header.with_payload(values.encoding, values.words.len() as u64);
                self.say(server, session, Outward::Values { header, values: values.words });
            }
            ShardEffect::Overtaken { session, open } => {
                self.say(server, session, Outward::Message(ToPeer::Overtaken { open }));
            }
            ShardEffect::HasValues
            | ShardEffect::Doubt(_)
            | ShardEffect::Cut { .. }
            | ShardEffect::CutMissed { .. } => {
                self.shard_says(server, id, effect);
            }
            ShardEffect::Recycle(_) | ShardEffect::Notice(_) => {}
        }
        Ok(())
    }
}

fn values_header(
    shard: ShardId,
    keys: slackline_core::ids::KeyRange,
    (worker, incarnation): (WorkerId, Incarnation),
    request: u64,
    served: Served,
) -> TransferHeader {
    TransferHeader {
        worker,
        incarnation,
        sequence: Sequence(request),
        clock: Clock(served.minimum.0),
        version: served.version,
        lead: served.lead,
        held_us: served.held_us,
        ..TransferHeader::plain(TransferKind::Values, shard, keys)
    }
}

/// An event without its arrays.
fn shown(event: &HostEvent) -> String {
    match event {
        HostEvent::Shard(ShardEvent::Push(push)) => {
            let mut push = push.clone();
            push.gradient = push.gradient.map(|gradient| gradient.into_words().into_iter().take(2).collect());
            format!("{push:?}")
        }
        HostEvent::Shard(ShardEvent::Initialize(_)) => "initial values".to_owned(),
        HostEvent::Frame { generation, frame } => format!("{generation:?} {}", shown_frame(frame)),
        HostEvent::Loaded { generation, loaded } => {
            let what = loaded.as_ref().map(|kept| (kept.index, kept.state.version, kept.entries.len()));
            format!("loaded {generation:?} {what:?}")
        }
        other => format!("{other:?}"),
    }
}

fn shown_frame(frame: &slackline_server_core::replica::Frame) -> String {
    use slackline_server_core::replica::Frame;
    match frame {
        Frame::State { index, at, state } => {
            format!("state {index:?} {at:?} {:?} {:?}", state.version, state.clock)
        }
        Frame::Entry(entry) => {
            format!("{:?} {:?} {}", entry.index, entry.at, shown(&HostEvent::Shard(entry.event.clone())))
        }
    }
}

fn shown_effect(effect: &HostEffect) -> String {
    match effect {
        HostEffect::Feed(frame) => format!("feed {}", shown_frame(frame)),
        HostEffect::Write(frame) => format!("write {}", shown_frame(frame)),
        HostEffect::Shard(ShardEffect::Serve { session, reader, request, served, .. }) => {
            format!("serve {session} {reader:?} {request} {served:?}")
        }
        HostEffect::Shard(ShardEffect::Recycle(_)) => "a buffer is free".to_owned(),
        HostEffect::Shard(ShardEffect::Cut { number, state }) => {
            format!("cut {number} {:?} {:?}", state.version, state.clock)
        }
        other => format!("{other:?}"),
    }
}

/// Whether a role answers for the shard.
pub(crate) const fn leads(role: Role) -> bool {
    matches!(role, Role::Leading)
}
