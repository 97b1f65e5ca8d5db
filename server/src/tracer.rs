//! The trace of a shard, from what goes into the shard and what comes out of it; see [`slackline_core::trace`].
//!
//! It is written by the thread that owns the shard, in pieces of 64 KiB: the disk is asked once in some 170 iterations, and at the
//! latest a second after the last time. A disk that fails or is full ends the trace and not the run.

mod facts;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slackline_core::config::Resolved;
use slackline_core::consistency::Standing;
use slackline_core::ids::{
    Clock, Incarnation, KeyRange, Moment, Sequence, ServerId, SessionId, ShardId, Version, WorkerId,
};
use slackline_core::limits::{TRACE_BYTES_MAX, TRACE_BYTES_SERVER_MAX};
use slackline_core::trace::{
    FOLDER, HEADER_BYTES, Header, PullFate, RECORD_BYTES, Record, Rule, Verdict, What, file_name,
};
use slackline_core::wire::{PullKind, PushOutcome, Pushed, Served};
use slackline_server_core::{Shard, ShardEffect, ShardEvent};

use crate::files::FileError;
use crate::parts::heading;
use facts::{PullFacts, PushFacts, is_refused, verdict_of};

/// Bytes that are written at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Longest time between two writes while something happens.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Writes the trace of one shard.
pub struct Tracer {
    out: Box<dyn Write + Send>,
    name: String,
    /// Records that are not written yet.
    piece: Vec<u8>,
    written_at: Moment,
    /// The next record's number.
    number: u32,
    /// Records that the trace may have, the last one included.
    records_max: u32,
    /// Nothing is written any more.
    ended: bool,
    /// The version after what was told so far.
    version: Version,
    members: BTreeMap<WorkerId, Member>,
    /// Pushes whose answer is still to come.
    pending: Vec<PushFacts>,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    incarnation: Incarnation,
    /// Its last gated pull.
    pull: Option<PullFacts>,
}

/// An event before the shard has taken it in, and the shard's state then.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    event: Event,
    minimum: Option<Clock>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Of a member, or of one that becomes one.
    Member(What, WorkerId, Incarnation, Clock),
    Start,
    Push(PushFacts),
    /// All shards have their pieces of the steps of one life up to one.
    Whole(WorkerId, Incarnation, Sequence),
    Pull(PullFacts),
    /// Only what it leads to is told.
    Other,
}

/// Begins the traces of the shards of a server.
#[derive(Debug)]
pub(crate) struct Traces {
    run: PathBuf,
    /// That of a shard but for its number and keys.
    header: Header,
    bytes_max: u64,
}

impl Traces {
    /// Traces in the folder of a run, with moments that count from `began`.
    pub(crate) fn new(run: PathBuf, resolved: &Resolved, server: ServerId, began: Instant) -> Self {
        let config = &resolved.config;
        // Of several servers, so that a timeline can show them beside each other.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_unix = since_epoch.saturating_sub(began.elapsed());
        let heading = heading(resolved);
        let count = config.partition().shards_on(server).count() as u64 * u64::from(config.cluster.replicas);
        let header = Header {
            server,
            shard: ShardId(0),
            keys: KeyRange::new(0, 0),
            key_count: heading.parameters,
            servers: heading.servers,
            shards: heading.shards as u32,
            workers: heading.workers,
            config_hash: heading.config_hash,
            began_unix_ns: u64::try_from(began_unix.as_nanos()).unwrap_or(u64::MAX),
            rule: Rule::from(config.consistency.policy),
            policy: config.consistency.policy.to_string(),
            prefetch: config.consistency.prefetch,
        };
        Self { run, header, bytes_max: TRACE_BYTES_MAX.min(TRACE_BYTES_SERVER_MAX / count.max(1)) }
    }

    /// Begins that of one shard.
    ///
    /// # Errors
    /// [`FileError`] when the file cannot be made.
    pub(crate) fn begin(&self, shard: ShardId, keys: KeyRange) -> Result<Tracer, FileError> {
        Tracer::create(&self.run, &Header { shard, keys, ..self.header.clone() }, self.bytes_max)
    }
}

impl Tracer {
    /// Begins the trace of a shard in the folder of a run.
    ///
    /// # Errors
    /// [`FileError`] when the file cannot be made.
    pub fn create(run: &Path, header: &Header, bytes_max: u64) -> Result<Self, FileError> {
        let folder = run.join(FOLDER);
        let path = folder.join(file_name(header.server, header.shard));
        let create = || {
            fs::create_dir_all(&folder)?;
            let mut file = File::create(&path)?;
            file.write_all(&header.encode())?;
            Ok(file)
        };
        let file = create().map_err(|source| FileError::new(&path, source))?;
        Ok(Self::new(Box::new(file), path.display().to_string(), bytes_max))
    }

    /// Goes on with a trace whose header is written. `name` is for the log.
    #[must_use]
    pub fn new(out: Box<dyn Write + Send>, name: String, bytes_max: u64) -> Self {
        let records_max = bytes_max.saturating_sub(HEADER_BYTES as u64) / RECORD_BYTES as u64;
        Self {
            out,
            name,
            piece: Vec::with_capacity(PIECE_BYTES),
            written_at: Moment(0),
            number: 0,
            records_max: u32::try_from(records_max).unwrap_or(u32::MAX),
            ended: false,
            version: Version(0),
            members: BTreeMap::new(),
            pending: Vec::new(),
        }
    }

    /// Keeps what must be known of an event once the shard has taken it in.
    #[must_use]
    pub fn arrival(&self, event: &ShardEvent, shard: &Shard) -> Arrival {
        let member = |what, worker: &WorkerId, clock| match self.members.get(worker) {
            Some(member) => Event::Member(what, *worker, member.incarnation, clock),
            None => Event::Other,
        };
        let event = match event {
            // A member that registers again, over another connection, is entered again: that changes nothing.
            ShardEvent::Enter { worker, incarnation, clock, standing, .. }
                if self.members.get(worker).is_some_and(|known| known.incarnation == *incarnation)
                    && shard.table().clock_of(*worker).is_some_and(|known| known >= *clock)
                    && (*standing == Standing::Joining || shard.table().is_active(*worker)) =>
            {
                Event::Other
            }
            ShardEvent::Enter { worker, incarnation, clock, standing, .. } => {
                Event::Member(What::Enter(*standing), *worker, *incarnation, *clock)
            }
            ShardEvent::Reenter { worker, clock } => member(What::Reenter, worker, *clock),
            ShardEvent::Finish { worker } => member(What::Finish, worker, Clock(0)),
            ShardEvent::Remove { worker } => member(What::Remove, worker, Clock(0)),
            // It removes a worker only where it is that incarnation.
            ShardEvent::Fence { worker, incarnation }
                if self.members.get(worker).is_some_and(|known| known.incarnation == *incarnation) =>
            {
                member(What::Remove, worker, Clock(0))
            }
            ShardEvent::Start => Event::Start,
            ShardEvent::Push(push) => Event::Push(PushFacts::of(push)),
            ShardEvent::Commit { worker, incarnation, sequence } => {
                Event::Whole(*worker, *incarnation, *sequence)
            }
            ShardEvent::Pull { session, reader, request, kind, .. } => {
                Event::Pull(PullFacts { session: *session, reader: *reader, request: *request, kind: *kind })
            }
            _ => Event::Other,
        };
        Arrival { event, minimum: shard.table().minimum() }
    }

    /// What is told of an event of which only what it led to is told.
    #[must_use]
    pub fn silent(shard: &Shard) -> Arrival {
        Arrival { event: Event::Other, minimum: shard.table().minimum() }
    }

    /// Tells an event and what it led to.
    pub fn tell(&mut self, now: Moment, arrival: Arrival, effects: &[&ShardEffect], shard: &Shard) {
        if self.ended {
            return;
        }
        let (mut push, mut brought) = (None, None);
        match arrival.event {
            Event::Member(what, worker, incarnation, clock) => {
                self.member(now, what, worker, incarnation, clock)
            }
            Event::Start => self.put(Record::new(0, now, What::Start)),
            Event::Push(facts) => {
                brought = self.brought(&facts, effects);
                push = self.push(now, facts, arrival.minimum, effects);
            }
            Event::Whole(worker, incarnation, sequence) => {
                self.whole(now, (worker, incarnation), sequence, arrival.minimum, effects);
            }
            Event::Pull(facts) => self.pull(now, &facts, arrival.minimum, effects),
            Event::Other => {}
        }
        for effect in effects {
            match effect {
                ShardEffect::Answer { session, pushed } => {
                    self.answer(now, *session, pushed, &mut push, shard.table().minimum());
                }
                ShardEffect::Serve { session, reader, request, served, .. } => {
                    self.means_up_to(now, served.version);
                    let is_its = |pull: &mut PullFacts| (pull.session, pull.request) == (*session, *request);
                    if let Some(pull) = brought.take_if(is_its) {
                        self.pull(now, &pull, Some(served.minimum), effects);
                    }
                    self.serve(now, *session, *reader, *request, *served);
                }
                ShardEffect::HasValues => self.put(Record::new(0, now, What::Values)),
                _ => {}
            }
        }
        self.means_up_to(now, shard.version());
        if let Some(pull) = brought {
            self.pull(now, &pull, shard.table().minimum(), effects);
        }
        if now.since(self.written_at) >= WRITE_EVERY {
            self.write(now);
        }
    }

    fn member(&mut self, now: Moment, what: What, worker: WorkerId, incarnation: Incarnation, clock: Clock) {
        match what {
            What::Enter(_) => _ = self.members.insert(worker, Member { incarnation, pull: None }),
            What::Remove => _ = self.members.remove(&worker),
            _ => {}
        }
        self.put(Record { worker: Some(worker), incarnation, clock, ..Record::new(0, now, what) });
    }

    /// The pull that a push brings with it, where the shard takes that: the push is new, and no later pull of its worker is here.
    fn brought(&self, facts: &PushFacts, effects: &[&ShardEffect]) -> Option<PullFacts> {
        let pull = facts.pull()?;
        let is_new = !facts.is_repeated(effects) && !self.pending.iter().any(|kept| kept.is_same(facts));
        let (worker, incarnation) = pull.reader?;
        let member = self.members.get(&worker).filter(|member| member.incarnation == incarnation)?;
        let is_last = member.pull.is_none_or(|last| last.request <= pull.request);
        (is_new && is_last).then_some(pull)
    }

    /// Returns the push when an answer to it is to come among the effects and it was not kept before that.
    fn push(
        &mut self,
        now: Moment,
        mut facts: PushFacts,
        minimum: Option<Clock>,
        effects: &[&ShardEffect],
    ) -> Option<PushFacts> {
        facts.record = Record { at: now, version: self.version, minimum, ..facts.record };
        self.put(facts.record);
        let known = self.pending.iter_mut().find(|kept| kept.is_same(&facts));
        let answered = effects.iter().find_map(|effect| match effect {
            ShardEffect::Answer { session, pushed } => Some(facts.is_asked_by(*session, pushed)),
            _ => None,
        });
        match (known, answered) {
            // Its own answer comes first: it was not kept.
            (_, Some(true)) => Some(facts),
            // It was sent again; the answer goes to the latest session.
            (Some(kept), _) => {
                kept.session = kept.session.max(facts.session);
                None
            }
            (None, _) => {
                facts.is_staged = effects.iter().any(|effect| match effect {
                    ShardEffect::Staged { session, sequence } => {
                        (*session, *sequence) == (facts.session, facts.record.sequence)
                    }
                    _ => false,
                });
                let verdict = if facts.is_staged { Verdict::Staged } else { Verdict::Collected };
                let what = What::Verdict { verdict, duplicate: false };
                self.put(Record { what, ..facts.record });
                self.pending.push(facts);
                None
            }
        }
    }

    /// Steps are whole: what is not answered at once is kept until others are there.
    fn whole(
        &mut self,
        now: Moment,
        life: (WorkerId, Incarnation),
        through: Sequence,
        minimum: Option<Clock>,
        effects: &[&ShardEffect],
    ) {
        let mut answers = effects.iter().filter_map(|effect| match effect {
            ShardEffect::Answer { session, pushed } => Some((*session, pushed)),
            _ => None,
        });
        let mut next = answers.next();
        let mut places: Vec<usize> = (0..self.pending.len())
            .filter(|place| {
                let PushFacts { record, is_staged, .. } = &self.pending[*place];
                let is_its = (record.worker, record.incarnation) == (Some(life.0), life.1);
                *is_staged && is_its && record.sequence <= through
            })
            .collect();
        places.sort_by_key(|place| self.pending[*place].record.sequence);
        for place in places {
            let facts = &mut self.pending[place];
            facts.is_staged = false;
            if next.is_some_and(|(session, pushed)| facts.is_asked_by(session, pushed)) {
                next = answers.next();
                continue;
            }
            let what = What::Verdict { verdict: Verdict::Collected, duplicate: false };
            let record = Record { at: now, what, version: self.version, minimum, ..facts.record };
            self.put(record);
        }
    }

    fn answer(
        &mut self,
        now: Moment,
        session: SessionId,
        pushed: &Pushed,
        push: &mut Option<PushFacts>,
        minimum: Option<Clock>,
    ) {
        let turned_away = is_refused(pushed.outcome);
        let asks = |facts: &PushFacts| facts.is_asked_by(session, pushed);
        let kept = match turned_away || pushed.duplicate || push.as_ref().is_some_and(asks) {
            true => None,
            // Where two lives of a worker have kept one number, the server answers in the order of batches.
            false => {
                let places = self.pending.iter().enumerate().filter(|(_, kept)| asks(kept));
                places.min_by_key(|(_, kept)| kept.record.batch).map(|(place, _)| place)
            }
        };
        let facts = match kept {
            Some(place) => Some(self.pending.swap_remove(place)),
            None => push.take_if(|push| asks(push)),
        };
        let Some(facts) = facts else { return };
        let verdict = verdict_of(pushed.outcome);
        if let (PushOutcome::Applied { version, .. }, false) = (pushed.outcome, pushed.duplicate) {
            self.version = version;
        }
        let what = What::Verdict { verdict, duplicate: pushed.duplicate };
        let (number, reached, version) = (0, Some(pushed.clock), self.version);
        self.put(Record { number, at: now, what, version, minimum, reached, ..facts.record });
    }

    fn pull(&mut self, now: Moment, facts: &PullFacts, minimum: Option<Clock>, effects: &[&ShardEffect]) {
        let is_served = effects.iter().any(|effect| match effect {
            ShardEffect::Serve { session, request, .. } => {
                (*session, *request) == (facts.session, facts.request)
            }
            _ => false,
        });
        let reading = facts.reading();
        let member = facts.reader.and_then(|(worker, incarnation)| {
            self.members.get_mut(&worker).filter(|member| member.incarnation == incarnation)
        });
        let fate = match (is_served, reading.is_gated() && member.is_none()) {
            (true, _) => PullFate::Served,
            (false, true) => PullFate::Ignored,
            (false, false) => PullFate::Held,
        };
        if let Some(member) = member.filter(|_| reading.is_gated()) {
            member.pull = Some(*facts);
        }
        let (version, reached) = (self.version, facts.seen());
        let record = facts.record(now, What::Pull { reading, fate, ahead: facts.ahead() });
        self.put(Record { version, minimum, reached, ..record });
    }

    fn serve(
        &mut self,
        now: Moment,
        session: SessionId,
        reader: Option<(WorkerId, Incarnation)>,
        request: u64,
        served: Served,
    ) {
        let gated = reader.and_then(|(worker, incarnation)| {
            let member = self.members.get(&worker).filter(|member| member.incarnation == incarnation)?;
            member.pull.filter(|pull| (pull.session, pull.request) == (session, request))
        });
        let facts = gated.unwrap_or(PullFacts { session, reader, request, kind: PullKind::Snapshot });
        let record = facts.record(now, What::Serve { reading: facts.reading(), lead: served.lead });
        self.put(Record { version: served.version, minimum: Some(served.minimum), ..record });
    }

    /// Pushes that were answered before they were applied leave no other sign than the version.
    fn means_up_to(&mut self, now: Moment, version: Version) {
        while self.version < version {
            self.version = self.version.next();
            self.put(Record { version: self.version, ..Record::new(0, now, What::Mean) });
        }
    }

    fn put(&mut self, record: Record) {
        if self.ended {
            return;
        }
        let is_last = self.number.saturating_add(1) >= self.records_max;
        let what = if is_last { What::Full } else { record.what };
        let record = if is_last { Record::new(0, record.at, what) } else { record };
        self.piece.extend_from_slice(&Record { number: self.number, ..record }.encode());
        self.number += 1;
        if is_last {
            tracing::warn!("{} has reached its size and ends here; the run goes on", self.name);
        }
        if is_last || self.piece.len() + RECORD_BYTES > PIECE_BYTES {
            self.write(record.at);
        }
        self.ended |= is_last;
    }

    fn write(&mut self, now: Moment) {
        self.written_at = now;
        if let Err(error) = self.out.write_all(&self.piece) {
            tracing::warn!("{} cannot be written: {error}; it ends here, and the run goes on", self.name);
            self.ended = true;
        }
        self.piece.clear();
    }

    /// Ends the trace in order.
    pub fn end(mut self, now: Moment) {
        if !self.ended {
            self.put(Record { version: self.version, ..Record::new(0, now, What::End) });
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if !self.ended {
            self.write(self.written_at);
        }
    }
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer")
            .field("name", &self.name)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
