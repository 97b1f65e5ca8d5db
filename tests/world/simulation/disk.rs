//! A machine's disk: a journal for each shard, and what the coordinator keeps. Everything is slow, and what was not synced is torn by a crash.

use std::collections::BTreeMap;

use slackline_core::ids::{Generation, Moment, ShardId};
use slackline_server_core::replica::{Entry, Frame, HostEvent, Index, Kept};
use slackline_server_core::{ControlEvent, ShardState};

use super::agenda::Happening;
use super::chance::Chance;
use super::world::World;

/// One record of a journal.
#[derive(Clone, Debug)]
enum Record {
    Frame(Frame),
    /// The shard is led in this generation from here on.
    Term(Generation),
}

/// The entries of one shard since a state.
#[derive(Clone, Debug)]
struct Journal {
    /// Tells it from those before and after.
    number: u64,
    records: Vec<Record>,
    /// So many of them would survive a crash for certain.
    synced: usize,
    /// What this one replaces once its state is synced.
    former: Option<Box<Self>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    journals: BTreeMap<ShardId, Journal>,
    /// Journals begun so far.
    begun: u64,
    /// What the coordinator was at some moment, and what it has heard since.
    pub(crate) image: Option<Vec<u8>>,
    /// None for what a coordinator that is started again has no need of.
    pub(crate) heard: Vec<Option<(Moment, ControlEvent)>>,
    /// So much of that would survive a crash for certain.
    pub(crate) heard_synced: usize,
    /// The disk does one thing at a time.
    busy_until: Moment,
    pub(crate) slow_until: Moment,
    pub(crate) full_until: Moment,
}

impl Disk {
    /// What a crash leaves: what was synced, and some of what followed, up to a record that is torn and so is not there.
    pub(crate) fn crash(&mut self, chance: &mut Chance) {
        for journal in self.journals.values_mut() {
            let mut kept = chance.between(journal.synced as u64, journal.records.len() as u64) as usize;
            if kept < 2 {
                kept = 0;
            }
            journal.records.truncate(kept);
            journal.synced = kept;
            if kept == 0
                && let Some(former) = journal.former.take()
            {
                let records = former.synced.min(former.records.len());
                *journal = *former;
                journal.records.truncate(records);
            }
            journal.former = None;
        }
        self.journals.retain(|_, journal| !journal.records.is_empty());
        let kept = chance.between(self.heard_synced as u64, self.heard.len() as u64) as usize;
        self.heard.truncate(kept);
        self.heard_synced = kept;
        self.busy_until = Moment(0);
    }

    /// The shards that it has a state of, with the generations they are of.
    pub(crate) fn holds(&self) -> impl Iterator<Item = (ShardId, Generation)> {
        let term = |record: &Record| if let Record::Term(term) = record { Some(*term) } else { None };
        self.journals.iter().map(move |(shard, journal)| {
            (*shard, journal.records.iter().rev().find_map(term).unwrap_or_default())
        })
    }

    /// The generation that its state of a shard is of.
    pub(crate) fn generation_of(&self, shard: ShardId) -> Option<Generation> {
        self.holds().find(|(of, _)| *of == shard).map(|(_, generation)| generation)
    }

    /// What it has of a shard: the last entry in the state, the state, and the entries after that.
    pub(crate) fn read(&self, shard: ShardId) -> Option<Kept> {
        let journal = self.journals.get(&shard)?;
        let first = |record: &Record| match record {
            Record::Frame(Frame::State { index, at, state }) => Some((*index, *at, state.clone())),
            _ => None,
        };
        let (index, at, state) = journal.records.iter().find_map(first)?;
        let entry = |record: &Record| match record {
            Record::Frame(Frame::Entry(entry)) => Some(Entry::clone(entry)),
            _ => None,
        };
        let entries: Vec<Entry> = journal.records.iter().filter_map(entry).collect();
        Some(Kept { index, at, state: ShardState::clone(&state), entries })
    }
}

impl World {
    /// A host goes on leading: its journal is to say in which generation.
    pub(crate) fn write_term(&mut self, server: usize, shard: ShardId, generation: Generation) {
        if !self.machines[server].disk.journals.contains_key(&shard) {
            return;
        }
        let when = self.disk_is_done(server);
        let Some(journal) = self.machines[server].disk.journals.get_mut(&shard) else { return };
        journal.records.push(Record::Term(generation));
        let (boot, upto) = (self.servers[server].boot, (journal.number, journal.records.len()));
        self.agenda.at(when, Happening::Synced { server, boot, shard, upto });
    }

    /// How long the disk takes for the next thing, from now on.
    pub(crate) fn disk_is_done(&mut self, server: usize) -> Moment {
        let took = self.chance.micros(50, self.weather.disk);
        let now = self.now;
        let disk = &mut self.machines[server].disk;
        let took = if disk.slow_until > now { took * 50 } else { took };
        // A full disk takes nothing; whoever writes tries again until it does.
        disk.busy_until = disk.busy_until.max(now).max(disk.full_until).after(took);
        disk.busy_until
    }

    /// A host writes to its journal.
    pub(crate) fn write(&mut self, server: usize, shard: ShardId, generation: Generation, frame: Frame) {
        let index = match &frame {
            Frame::State { index, .. } => *index,
            Frame::Entry(entry) => entry.index,
        };
        let when = self.disk_is_done(server);
        let journals = &mut self.machines[server].disk.journals;
        if matches!(frame, Frame::State { .. }) {
            let former = journals.remove(&shard).map(|mut former| {
                // What it replaces in its turn is as good as gone once one state is there.
                if former.synced > 0 {
                    former.former = None;
                }
                Box::new(former)
            });
            let former =
                former.and_then(|former| if former.synced > 0 { Some(former) } else { former.former });
            let disk = &mut self.machines[server].disk;
            disk.begun += 1;
            // What it begins with is one frame with its state: neither is there without the other.
            let records = vec![Record::Term(generation), Record::Frame(frame)];
            let journal = Journal { number: disk.begun, records, synced: 0, former };
            disk.journals.insert(shard, journal);
        } else if let Some(journal) = journals.get_mut(&shard) {
            journal.records.push(Record::Frame(frame));
        }
        let boot = self.servers[server].boot;
        let journal = self.machines[server].disk.journals.get(&shard);
        let upto = journal.map_or((0, 0), |journal| (journal.number, journal.records.len()));
        self.agenda.at(when, Happening::Written { server, boot, shard, index, upto });
    }

    /// The disk has a journal up to some record.
    pub(crate) fn synced(&mut self, server: usize, shard: ShardId, upto: (u64, usize)) {
        let journal = self.machines[server].disk.journals.get_mut(&shard);
        if let Some(journal) = journal.filter(|journal| journal.number == upto.0) {
            journal.synced = journal.synced.max(upto.1);
            journal.former = None;
        }
    }

    /// The same, and the host is told.
    pub(crate) fn written(&mut self, server: usize, shard: ShardId, index: Index, upto: (u64, usize)) {
        self.synced(server, shard, upto);
        self.put_host(server, shard, HostEvent::Written { index });
    }
}
