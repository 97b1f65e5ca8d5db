//! What goes from worker to worker: parts of gradients, whole states, probes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::collective::{Action, Outgoing, Values};
use slackline_core::ids::{Clock, Generation, Moment};
use slackline_worker_core::Event;

use super::replica::Replica;
use crate::links::{Passage, duration};
use crate::world::{Happening, World};

/// Something small that happens to a member of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Among {
    /// The connection to a member stands.
    Meets { position: u32 },
    /// A lease is over since the group was formed.
    NotReached,
    /// A process has said nothing for a lease.
    Silent { process: usize, position: u32 },
    /// The answer to a probe.
    Probed { took: Duration },
    /// A process asks for the state after so many iterations.
    WantsState { by: usize, clock: Clock },
    /// A member has not the state that it was asked for.
    HasNoState { position: u32 },
}

/// Shared values that can be cut without a copy.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    all: Arc<Vec<f32>>,
    range: Range<usize>,
}

impl AsRef<[f32]> for Piece {
    fn as_ref(&self) -> &[f32] {
        &self.all[self.range.clone()]
    }
}

impl From<Vec<f32>> for Piece {
    fn from(values: Vec<f32>) -> Self {
        let range = 0..values.len();
        Self { all: Arc::new(values), range }
    }
}

impl Values for Piece {
    fn part(&self, range: Range<usize>) -> Self {
        let end = (self.range.start + range.end).min(self.range.end);
        let start = (self.range.start + range.start).min(end);
        Self { all: Arc::clone(&self.all), range: start..end }
    }
}

/// One transfer on its way between two workers.
pub(crate) struct Parcel {
    from: usize,
    pub(crate) to: usize,
    generation: Generation,
    passage: Passage,
    load: Load,
}

/// What it brings.
pub(super) enum Load {
    Part(Box<Part>),
    State(Arc<Replica>),
    Probe { since: Moment },
}

/// Some parts of one bucket.
pub(super) struct Part {
    pub(super) clock: Clock,
    pub(super) bucket: usize,
    /// The position that it comes from.
    pub(super) from: u32,
    pub(super) number: u32,
    /// How many values it stands for, also where none are carried.
    pub(super) len: u64,
    pub(super) values: Vec<f32>,
    /// It is added to what is there, and has not been yet.
    pub(super) costs: bool,
}

impl World {
    /// Puts a transfer between two processes on its way.
    pub(super) fn carry_parcel(
        &mut self,
        (from, to): (usize, usize),
        generation: Generation,
        bytes: u64,
        load: Load,
    ) {
        let passage = self.links.leave(self.now(), self.processes[from].slot, bytes);
        let parcel = self.parcels.insert(Parcel { from, to, generation, passage, load });
        if self.links.have_queues() {
            self.agenda.at(passage.reaches, Happening::ParcelReaches { parcel });
        } else {
            self.agenda.at(passage.ends(), Happening::ParcelComplete { parcel });
        }
    }

    /// Sends what a reduction gives out.
    pub(super) fn send_part(
        &mut self,
        process: usize,
        generation: Generation,
        (clock, bucket): (Clock, usize),
        outgoing: Outgoing<Piece>,
    ) {
        let Outgoing { to, number, len, pieces, .. } = outgoing;
        let adds_cost = self.plan.apply_s > 0.0;
        let Some(member) = self.member(process, generation) else { return };
        let (from, receiver) = (member.position, member.process_at(to));
        let transfer = member.form.as_ref().and_then(|form| form.schedule.transfers().get(number as usize));
        let costs = adds_cost && transfer.is_some_and(|transfer| transfer.action == Action::Add);
        let bytes = 4 * len;
        if let Some(round) = member.rounds.get_mut(&clock) {
            round.sent += bytes;
        }
        let Some(receiver) = receiver else { return };
        let mut values = Vec::with_capacity(pieces.iter().map(|piece| piece.as_ref().len()).sum());
        pieces.iter().for_each(|piece| values.extend_from_slice(piece.as_ref()));
        self.processes[process].wire.0 += bytes;
        let part = Part { clock, bucket, from, number, len, values, costs };
        self.carry_parcel((process, receiver), generation, bytes, Load::Part(Box::new(part)));
    }

    /// The first byte of a transfer is there.
    pub(crate) fn parcel_reaches(&mut self, place: u32) {
        let Some(Parcel { to, generation, passage, .. }) = self.parcels.get(place) else { return };
        let (to, generation, passage) = (*to, *generation, *passage);
        if self.member(to, generation).is_none() {
            self.parcels.remove(place);
            return;
        }
        let when = self.links.arrive(self.agenda.now(), self.processes[to].slot, &passage);
        self.agenda.at(when, Happening::ParcelComplete { parcel: place });
    }

    /// A transfer is complete.
    pub(crate) fn parcel_complete(&mut self, place: u32) {
        let Some(Parcel { from, to, generation, passage, load }) = self.parcels.remove(place) else { return };
        let now = self.now();
        if !self.was_sent(from) || self.member(to, generation).is_none() {
            return;
        }
        match load {
            Load::Part(mut part) => {
                if std::mem::take(&mut part.costs) {
                    let ends = self.busy(to, 4 * part.len);
                    let load = Load::Part(part);
                    let parcel = self.parcels.insert(Parcel { from, to, generation, passage, load });
                    self.agenda.at(ends, Happening::ParcelComplete { parcel });
                    return;
                }
                self.part_arrives(to, generation, *part);
            }
            Load::State(state) => {
                if let Some(peer) = &mut self.processes[to].peer {
                    peer.replica = state;
                }
                self.worker_event(to, Event::StateArrived { generation });
            }
            Load::Probe { since } => {
                let back = now.after(self.links.latency());
                let took = back.since(since);
                let what = Among::Probed { took };
                self.agenda.at(back, Happening::Among { process: from, generation, what });
            }
        }
    }

    /// A process adds or applies so many bytes, one after another; returns when it is done with them.
    pub(super) fn busy(&mut self, process: usize, bytes: u64) -> Moment {
        let (now, lasts) = (self.now(), duration(self.plan.apply_s * bytes as f64));
        let Some(peer) = &mut self.processes[process].peer else { return now };
        peer.busy_until = peer.busy_until.max(now).after(lasts);
        peer.busy_until
    }
}
