//! The true history of every shard: what its primaries took in, in order, whoever they were. A twin of the shard is driven through it beside
//! the host, and the laws judge the twin's effects, however long the host withholds its own.
//!
//! When another server takes over, the history is cut where that copy's journal ends, and the laws begin anew and go through what is left:
//! so the laws also hold across a takeover, and the copy must be what its journal makes of it.

use std::collections::BTreeMap;

use slackline_core::codec::Encoding;
use slackline_core::config::Durability;
use slackline_core::ids::{Clock, Generation, Incarnation, Moment, ShardId, WorkerId};
use slackline_core::wire::PullKind;
use slackline_server_core::replica::{HostRow, Index, Role};
use slackline_server_core::shard::Held;
use slackline_server_core::{Host, HostEvent, Shard, ShardEffect, ShardEvent};

use super::hosts::leads;
use super::sight::{PushKey, Sight, Verdict, holds};
use super::store::Cut;
use super::world::World;

const LAW: &str = "one history";

/// One event that a primary took in.
#[derive(Clone, Debug)]
struct Taken {
    index: Index,
    at: Moment,
    by: (usize, u64),
    event: ShardEvent,
    origin: Option<PushKey>,
}

/// What a shard began with, or was restored to.
struct Beginning {
    shard: Shard,
    source: Source,
}

/// Where that came from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Nothing,
    /// The checkpoint that the run goes on from.
    Former {
        is_lossy: bool,
    },
    /// One of its own; the pushes that are in it.
    Checkpoint(Cut),
}

/// What a former primary took in, also while it did not know yet that it was one: it may be on its disk.
struct Branch {
    leader: (usize, u64, Generation),
    /// The generation in which it began to lead.
    since: Generation,
    taken: Vec<Taken>,
}

/// See the module.
pub(crate) struct Lineage {
    beginning: Beginning,
    taken: Vec<Taken>,
    pub(crate) twin: Shard,
    /// Who leads at present, or did last.
    pub(crate) leader: Option<(usize, u64, Generation)>,
    /// The generation in which that one began to.
    since: Generation,
    /// Former primaries to whose disks the shard could go back.
    branches: Vec<Branch>,
}

impl Lineage {
    fn new(shard: Shard, source: Source) -> Self {
        let beginning = Beginning { shard: shard.clone(), source };
        let (taken, branches) = (Vec::new(), Vec::new());
        Self { beginning, taken, twin: shard, leader: None, since: Generation(0), branches }
    }

    /// Whether no gradient has been taken in since it began.
    pub(crate) fn has_no_push(&self) -> bool {
        self.taken.iter().all(|taken| !matches!(taken.event, ShardEvent::Push(_)))
    }

    /// Another copy takes over from the present leader.
    fn branch_off(&mut self) {
        if let Some(leader) = self.leader {
            self.branches.push(Branch { leader, since: self.since, taken: self.taken.clone() });
        }
    }

    /// The shard goes on from a disk of this server, whose journal is of that generation. If that is the disk of a former primary, the history
    /// is that one's again, and those are returned that led it since.
    fn go_back(&mut self, server: usize, of: Generation) -> Option<Vec<usize>> {
        let is_present = self.leader.is_some_and(|leader| leader.0 == server) && of >= self.since;
        let is_its = |branch: &Branch| branch.leader.0 == server && of >= branch.since;
        let Some(last) = self.branches.iter().rposition(is_its).filter(|_| !is_present) else {
            self.branches.clear();
            return None;
        };
        let since = self.branches.split_off(last + 1).into_iter().map(|branch| branch.leader);
        let since = since.chain(self.leader).map(|leader| leader.0).collect();
        let branch = self.branches.pop();
        (self.taken, self.since) = branch.map(|branch| (branch.taken, branch.since)).unwrap_or_default();
        Some(since)
    }
}

/// What a host is about to take, as far as it can become history.
pub(crate) enum Noted {
    Shard(ShardEvent),
    Tick,
    /// How things are to be; with what the host has at this moment.
    Place {
        heir: Option<Box<(Shard, Index)>>,
    },
    Other,
}

impl World {
    /// Before a host takes an event.
    pub(crate) fn note(&mut self, server: usize, id: ShardId, host: &Host, event: &HostEvent) -> Noted {
        match event {
            HostEvent::Shard(event) if leads(host.row().role) && event.changes() => {
                Noted::Shard(event.clone())
            }
            HostEvent::Tick => Noted::Tick,
            HostEvent::Place { place: Some(_), members, started } => {
                self.told.insert((server, id), (members.clone(), *started));
                Noted::Place { heir: host.shard().map(|shard| Box::new((shard.clone(), host.row().index))) }
            }
            _ => Noted::Other,
        }
    }

    /// An event becomes part of the history.
    fn take(&mut self, id: ShardId, taken: Taken) -> Verdict {
        let Some(mut lineage) = self.lineages.remove(&id) else { return Ok(()) };
        let verdict = self.judge(&mut lineage.twin, &taken);
        lineage.taken.push(taken);
        self.lineages.insert(id, lineage);
        verdict
    }

    /// The twin takes an event, before the eyes of the laws.
    fn judge(&mut self, twin: &mut Shard, taken: &Taken) -> Verdict {
        let Taken { at, by, event, origin, .. } = taken;
        let sent = origin.and_then(|key| self.sent.get(&(key, twin.id()))).cloned();
        self.see(&Sight::Before { shard: twin, event, origin: *origin, sent: sent.as_deref() })?;
        let mut effects = Vec::new();
        twin.handle(*at, event.clone(), &mut effects);
        for effect in effects {
            self.judge_effect(twin, *by, &effect)?;
        }
        self.see(&Sight::After { shard: twin })
    }

    fn judge_effect(&mut self, twin: &Shard, by: (usize, u64), effect: &ShardEffect) -> Verdict {
        match effect {
            ShardEffect::Answer { session, pushed } => {
                let speaker = self.speakers.get(&(by.0, by.1, *session)).copied();
                speaker.map_or(Ok(()), |speaker| self.see(&Sight::Answered { shard: twin, speaker, pushed }))
            }
            ShardEffect::Serve { session, reader: Some(reader), request, values, .. } => {
                let process = self.session_of.get(&(by.0, by.1, *session)).copied();
                let Some(process) = process.map(|process| &mut self.processes[process]) else {
                    return Ok(());
                };
                // What is sent of them is looked at where it comes together with what is there.
                let present = twin.values().unwrap_or_default();
                process.served.insert(*request, present.to_vec());
                let Some(asked) = process.asked.get(request).copied() else { return Ok(()) };
                let is_patch = values.encoding == Encoding::Blocks;
                let values = if is_patch { present } else { values.words.as_slice() };
                self.see(&Sight::Served { shard: twin, reader: *reader, asked, values })
            }
            _ => Ok(()),
        }
    }

    /// After a host has taken an event: what it took becomes history, and the host must be what that makes of it.
    pub(crate) fn after_host(
        &mut self,
        (server, id): (usize, ShardId),
        host: &Host,
        before: HostRow,
        (noted, origin): (Noted, Option<PushKey>),
    ) -> Verdict {
        let after = host.row();
        let by = (server, self.servers[server].boot);
        if !leads(after.role) {
            return Ok(());
        }
        let leader = (by.0, by.1, after.generation);
        let goes_on = leads(before.role)
            && self
                .lineages
                .get(&id)
                .is_some_and(|lineage| lineage.leader == Some((by.0, by.1, before.generation)));
        if goes_on {
            if let Some(lineage) = self.lineages.get_mut(&id) {
                lineage.leader = Some(leader);
            }
            for taken in self.taken_by(by, host, before.index, (noted, origin)) {
                self.take(id, taken)?;
            }
        } else if leads(before.role) && before.generation == after.generation {
            // A former primary that does not know it yet: what it makes of its inbox never gets out, unless the shard goes back to its disk.
            let taken = self.taken_by(by, host, before.index, (noted, origin));
            let lineage = self.lineages.get_mut(&id);
            let branch = lineage
                .and_then(|lineage| lineage.branches.iter_mut().rfind(|branch| branch.leader == leader));
            branch.into_iter().for_each(|branch| branch.taken.extend(taken.iter().cloned()));
            return Ok(());
        } else {
            let is_loaded = before.role == Role::Loading;
            self.succeed(server, id, host, before, noted)?;
            if let Some(lineage) = self.lineages.get_mut(&id) {
                lineage.leader = Some(leader);
                // What was loaded from a disk is of the time of that disk.
                if !is_loaded {
                    lineage.since = after.generation;
                }
            }
        }
        let (Some(lineage), Some(shard)) = (self.lineages.get(&id), host.shard()) else { return Ok(()) };
        shard.check_invariants();
        let same = shard.version() == lineage.twin.version() && shard.values() == lineage.twin.values();
        holds(LAW, same, || {
            format!(
                "{id} on server {server} is at {}, its history makes {}",
                shard.version(),
                lineage.twin.version()
            )
        })
    }

    /// What a host that leads has taken in since it was at an entry.
    fn taken_by(
        &self,
        by: (usize, u64),
        host: &Host,
        before: Index,
        (noted, origin): (Noted, Option<PushKey>),
    ) -> Vec<Taken> {
        let last = host.row().index;
        let is_news = last > before;
        let events = match noted {
            Noted::Shard(event) => vec![event],
            Noted::Tick if is_news => vec![ShardEvent::Tick],
            // A copy that is given the state is given the pulls that wait as well: they are taken once more.
            _ if is_news => host.shard().map(again).unwrap_or_default(),
            _ => Vec::new(),
        };
        let at = host.moment(self.time_of(by.0));
        let index = |number: usize| Index((before.0 + 1 + number as u64).min(last.0));
        let taken = |(number, event)| Taken { index: index(number), at, by, event, origin };
        events.into_iter().enumerate().map(taken).collect()
    }

    /// A host has begun to lead.
    fn succeed(&mut self, server: usize, id: ShardId, host: &Host, before: HostRow, noted: Noted) -> Verdict {
        let boot = self.servers[server].boot;
        if before.role == Role::Loading {
            let Some(loaded) = self.loaded.remove(&(server, boot, id)) else {
                return holds(LAW, false, || {
                    format!("{id} on server {server} leads with a state that it did not load")
                });
            };
            if let Some(mark) = loaded.marked {
                return self.restore(server, id, host, mark);
            }
            self.counts.disk_restores += 1;
            let lineage = self.lineages.get_mut(&id);
            let since = lineage.and_then(|lineage| lineage.go_back(server, loaded.of.unwrap_or_default()));
            self.counts.returns += u64::from(since.is_some());
            // Seed 8768: the disk of the one that had led since was lost while its backup was out of the coordinator's reach.
            let is_lost = since.iter().flatten().any(|server| self.disks_lost.contains(server));
            self.cut_history(id, loaded.index, since.is_some(), !is_lost && self.is_kept())?;
            return self.lead(server, id, host);
        }
        let heir = if let Noted::Place { heir } = noted { heir } else { None };
        match (heir, self.lineages.contains_key(&id)) {
            (Some(heir), true) => {
                self.counts.promotions += 1;
                if self.scenario.durability == Durability::Disk {
                    self.lineages.get_mut(&id).into_iter().for_each(Lineage::branch_off);
                    self.may_fail_soon(server);
                }
                self.cut_history(id, heir.1, false, self.is_kept())?;
                let is_same = self.lineages[&id].twin.state().hash() == heir.0.state().hash();
                holds("copies are equal", is_same, || {
                    format!("{id} on server {server} is not what its history makes up to entry {}", heir.1.0)
                })?;
                self.lead(server, id, host)
            }
            (None, began) => {
                holds(LAW, self.resumed.is_none(), || format!("{id} begins anew in a run that goes on"))?;
                if began {
                    // Nothing may have been acknowledged yet.
                    self.forget(id);
                    self.see(&Sight::CutBack { shard: id, is_kept: true })?;
                }
                let shard = Shard::new(self.shard_settings(id));
                self.lineages.insert(id, Lineage::new(shard, Source::Nothing));
                self.lead(server, id, host)
            }
            (Some(_), false) => {
                holds(LAW, false, || format!("{id} takes over on server {server} from nobody"))
            }
        }
    }

    /// The host's copy takes over at the end of the present history.
    fn lead(&mut self, server: usize, id: ShardId, host: &Host) -> Verdict {
        let (by, at) = ((server, self.servers[server].boot), host.moment(self.time_of(server)));
        let (members, started) = self.told.get(&(server, id)).cloned().unwrap_or_default();
        let index = host.row().index;
        self.take(id, Taken { index, at, by, event: ShardEvent::Lead { members, started }, origin: None })
    }

    /// What came after an entry never was; the laws go through what is left. Where it `is_kept`, nothing of that was acknowledged.
    fn cut_history(&mut self, id: ShardId, last: Index, is_another: bool, is_kept: bool) -> Verdict {
        let Some(mut lineage) = self.lineages.remove(&id) else { return Ok(()) };
        let kept = lineage.taken.iter().take_while(|taken| taken.index <= last).count();
        let dropped = lineage.taken.len() - kept;
        self.trace.line(self.now, format_args!("= {id} goes on from entry {}, {dropped} are cut", last.0));
        if dropped > 0 || is_another {
            lineage.taken.truncate(kept);
            self.counts.cut_entries += dropped as u64;
            lineage.twin = lineage.beginning.shard.clone();
            self.forget(id);
            match lineage.beginning.source.clone() {
                Source::Nothing => {}
                Source::Former { is_lossy } => self.resume_shard(&lineage.twin, is_lossy)?,
                Source::Checkpoint(Cut { mark, upto }) => {
                    self.see(&Sight::Restored { shard: &lineage.twin, mark: &mark, upto })?
                }
            }
            for taken in &lineage.taken {
                self.judge(&mut lineage.twin, taken)?;
            }
        }
        // Where nothing is waited for, a former primary that does not know yet that it is one goes on answering: nothing of that is kept.
        if dropped > 0 || is_another || !is_kept {
            self.see(&Sight::CutBack { shard: id, is_kept })?;
        }
        self.lineages.insert(id, lineage);
        Ok(())
    }

    /// History of a shard begins.
    pub(crate) fn begin_lineage(&mut self, id: ShardId, shard: Shard, source: Source, since: Generation) {
        self.lineages.insert(id, Lineage { since, ..Lineage::new(shard, source) });
    }

    /// Nothing is known of a shard any more to the laws; they will see it again from its beginning.
    pub(crate) fn forget(&mut self, id: ShardId) {
        for law in &mut self.laws {
            law.forget(id);
        }
    }
}

/// A state that was loaded for a host, which does not lead yet.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) index: Index,
    /// The cut it is of, where it comes from a checkpoint, and whether something that waited was given up.
    pub(crate) marked: Option<(Cut, bool)>,
    /// The generation that it is of, where it comes from a disk.
    pub(crate) of: Option<Generation>,
}

/// What a host was told of the members of its server, and whether the run had begun.
pub(crate) type Told = BTreeMap<(usize, ShardId), (Vec<(WorkerId, Incarnation, Clock)>, bool)>;

/// The pulls that wait for the clock, as they come once more.
fn again(shard: &Shard) -> Vec<ShardEvent> {
    let gated = shard.held().filter(|held| held.reader.is_some() && held.kind != PullKind::Snapshot);
    let pull = |held: &Held| {
        let Held { session, reader, request, have, kind, .. } = *held;
        ShardEvent::Pull { session, reader, request, have, kind }
    };
    gated.map(pull).collect()
}
