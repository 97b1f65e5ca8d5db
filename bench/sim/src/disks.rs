//! The servers' disks: they survive a crash, and take and give so many bytes a second, one thing after another.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::ids::{Generation, Moment, ShardId};
use slackline_core::wire::{Holding, Origin, Place};
use slackline_server_core::ShardState;
use slackline_server_core::replica::{Entry, Frame, HostEvent, Index, Kept};

use crate::hosts::At;
use crate::links::duration;
use crate::world::{Happening, World};

/// One server's disk.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// Until when it is busy.
    free_at: Moment,
    journals: BTreeMap<ShardId, Journal>,
}

/// The journal of a shard: a state, and every entry after it.
#[derive(Debug)]
struct Journal {
    generation: Generation,
    index: Index,
    at: Moment,
    state: Arc<ShardState>,
    entries: Vec<Arc<Entry>>,
}

/// What a disk is done with.
#[derive(Debug)]
pub(crate) enum Done {
    /// Something is in a shard's journal.
    Written(Frame, Generation),
    /// From here on the journal is of this generation.
    Term(Generation),
    /// A state was read.
    Read(Generation, Result<Kept, String>),
    /// A shard's part of a checkpoint is in the store.
    Saved(u64, ShardState),
}

impl Disk {
    /// The states that lie on it.
    pub(crate) fn holds(&self) -> Vec<Holding> {
        let holding = |(shard, journal): (&ShardId, &Journal)| Holding {
            shard: *shard,
            generation: journal.generation,
            is_whole: true,
            on_disk: true,
        };
        self.journals.iter().map(holding).collect()
    }

    /// Nothing lies on it any more.
    pub(crate) fn clear(&mut self) {
        self.journals.clear();
    }

    fn put(&mut self, shard: ShardId, frame: Frame, generation: Generation) -> Index {
        match frame {
            Frame::State { index, at, state } => {
                self.journals.insert(shard, Journal { generation, index, at, state, entries: Vec::new() });
                index
            }
            Frame::Entry(entry) => {
                let index = entry.index;
                if let Some(journal) = self.journals.get_mut(&shard) {
                    journal.entries.push(entry);
                }
                index
            }
        }
    }

    fn read(&self, shard: ShardId) -> Result<Kept, String> {
        let journal =
            self.journals.get(&shard).ok_or_else(|| format!("the disk has no journal of {shard}"))?;
        let entries = journal.entries.iter().map(|entry| Entry::clone(entry)).collect();
        let (index, at) = (journal.index, journal.at);
        Ok(Kept { index, at, state: ShardState::clone(&journal.state), entries })
    }
}

impl World {
    /// When a server's disk is done with so many bytes more.
    fn disk_ends(&mut self, server: usize, bytes: u64) -> Moment {
        let now = self.now();
        let disk = &mut self.disks[server];
        let seconds = self.plan.disk_s * bytes as f64;
        disk.free_at = disk.free_at.max(now).after(duration(seconds));
        disk.free_at
    }

    /// Gives a disk something to do.
    pub(crate) fn disk(&mut self, at: At, bytes: u64, done: Done) {
        let boot = self.servers[at.server()].boot;
        let when = self.disk_ends(at.server(), bytes);
        self.agenda.at(when, Happening::DiskDone { at, boot, done: Box::new(done) });
    }

    /// Appends to a shard's journal.
    pub(crate) fn write(&mut self, at: At, frame: Frame) {
        let generation = self.slot(at).and_then(|slot| slot.leads(at.server())).unwrap_or_default();
        let bytes = self.plan.frame_bytes(at.shard, &frame);
        self.disk(at, bytes, Done::Written(frame, generation));
    }

    /// A shard goes on being led, in another generation.
    pub(crate) fn note_term(&mut self, at: At, generation: Generation) {
        if self.disks[at.server()].journals.contains_key(&at.shard) {
            self.disk(at, 0, Done::Term(generation));
        }
    }

    /// Fetches a state from where its place says.
    pub(crate) fn load_state(&mut self, at: At, place: Place) {
        let Place { shard, generation, origin, .. } = place;
        let loaded = match origin {
            Origin::Disk => self.disks[at.server()].read(shard),
            Origin::Checkpoint { number } => self.store.state(shard, number).map(Kept::from),
            Origin::Nothing | Origin::Memory => Err(format!("this server has no state of {shard}")),
        };
        let values = self.plan.shard_bytes[shard.0 as usize];
        let count = loaded.as_ref().map_or(0, |kept| kept.state.arrays.len() + kept.entries.len());
        self.disk(at, count as u64 * values, Done::Read(generation, loaded));
    }

    /// A disk is done with something; what a crash came before is not on it.
    pub(crate) fn disk_is_done(&mut self, at: At, done: Done) {
        match done {
            Done::Written(frame, generation) => {
                let index = self.disks[at.server()].put(at.shard, frame, generation);
                self.host_event(at, HostEvent::Written { index });
            }
            Done::Term(generation) => {
                if let Some(journal) = self.disks[at.server()].journals.get_mut(&at.shard) {
                    journal.generation = generation;
                }
            }
            Done::Read(generation, loaded) => self.host_event(at, HostEvent::Loaded { generation, loaded }),
            Done::Saved(number, state) => self.is_saved(at, number, state),
        }
    }
}
