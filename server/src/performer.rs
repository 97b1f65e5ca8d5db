//! What the owner of a shard does about the effects of its host: answers to sessions, frames to logs and disk, words to control.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::ids::{
    Clock, Generation, Incarnation, KeyRange, Moment, Sequence, ServerId, SessionId, ShardId, WorkerId,
};
use slackline_core::wire::{Origin, Place, PullKind, Pushed, Served, ToPeer, TransferHeader, TransferKind};
use slackline_net::SharedValues;
use slackline_net::log::Hold;
use slackline_server_core::guard::Beyond;
use slackline_server_core::replica::{Frame, HostEffect, HostEvent, HostSettings, Kept};
use slackline_server_core::shard::{Push, Snapshot};
use slackline_server_core::{Buffers, Notice, ShardEffect, ShardEvent};
use tokio::sync::mpsc;

use crate::budget::Room;
use crate::directory::{Asked, Directory, Leave, Outgoing};
use crate::door::Repeats;
use crate::feeds::Feed;
use crate::frames::Opening;
use crate::journal::{self, Disk, Journal};
use crate::links::Links;
use crate::owner::Note;
use crate::processors::Processors;
use crate::saver::Saver;
use crate::words::Word;

/// Pushes whose time in the queue is remembered until their answer. Those of workers that are gone are never answered.
const TIMED_MAX: usize = 16 * 1024;

/// What the owners of all shards of a server share.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) server: ServerId,
    pub(crate) config_hash: u64,
    pub(crate) began: Instant,
    pub(crate) directory: Arc<Directory>,
    /// Of the length of a shard, for all of them.
    pub(crate) buffers: Buffers,
    /// See [`Word`].
    pub(crate) words: mpsc::UnboundedSender<Word>,
    /// The network's.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) links: Arc<Links>,
    pub(crate) lease: Duration,
    /// Where journals are; used where pushes are kept on the disk.
    pub(crate) journals: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    /// None where no checkpoints are made or gone on from.
    pub(crate) saver: Option<Saver>,
    /// What shards' threads are kept on; none where they are not.
    pub(crate) processors: Processors,
}

impl Surroundings {
    pub(crate) fn say(&self, word: Word) {
        // The other end is the control loop; it is gone only when the process ends.
        let _ = self.words.send(word);
    }
}

/// A pull that was served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pulled {
    pub(crate) session: SessionId,
    pub(crate) reader: Option<(WorkerId, Incarnation)>,
    pub(crate) request: u64,
    pub(crate) have: u64,
    pub(crate) kind: PullKind,
    /// Microseconds that the shard had held it.
    held_us: u64,
}

impl Pulled {
    fn is_same(&self, other: &Self) -> bool {
        (self.session, self.request, self.kind) == (other.session, other.request, other.kind)
    }
}

/// Values on their way to a peer: when it has them all, their buffer can be used again and there is room for others.
struct Lent {
    words: Option<Arc<Vec<f32>>>,
    buffers: Buffers,
    _room: Room,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(words) = self.words.take() {
            self.buffers.put_shared(words);
        }
    }
}

/// See the module.
pub(crate) struct Performer {
    shard: ShardId,
    keys: KeyRange,
    surroundings: Arc<Surroundings>,
    notes: mpsc::Sender<Note>,
    /// Microseconds that a push waited for room or lay in the queue.
    busy: BTreeMap<(SessionId, Sequence), u64>,
    /// In which generation this server leads the shard, as it was told last.
    leads: Option<Generation>,
    /// Pulls that were served once, for which there is room now: they are on their way through the shard again.
    rooms: Vec<(Pulled, Leave)>,
    /// In which generation this process began to lead it, other than from its disk: a journal that is older is not whole.
    since: Option<Generation>,
    feed: Option<(ServerId, Feed)>,
    /// Where frames go: the number of the log, and its queue.
    frames: Option<(u64, mpsc::UnboundedSender<Frame>)>,
    /// Where it goes how far the primary's log is held.
    holds: Option<(u64, mpsc::UnboundedSender<Hold>)>,
    journal: Option<Journal>,
    /// Gradients that were not finite or beyond a limit, for the log.
    gradients: Repeats,
}

impl Performer {
    pub(crate) fn new(
        settings: &HostSettings,
        surroundings: Arc<Surroundings>,
        notes: mpsc::Sender<Note>,
    ) -> Self {
        Self {
            shard: settings.shard.id,
            keys: settings.shard.keys,
            surroundings,
            notes,
            busy: BTreeMap::new(),
            leads: None,
            rooms: Vec::new(),
            since: None,
            feed: None,
            frames: None,
            holds: None,
            journal: None,
            gradients: Repeats::default(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        Moment(self.surroundings.began.elapsed().as_nanos() as u64)
    }

    /// Notes how long a push has waited for this server.
    pub(crate) fn taken_up(&mut self, event: &ShardEvent, waited: Duration) {
        if let ShardEvent::Push(Push { session, sequence, .. }) = event {
            if self.busy.len() >= TIMED_MAX {
                self.busy.clear();
            }
            self.busy.insert((*session, *sequence), waited.as_micros() as u64);
        }
    }

    /// How long it did, in microseconds; told once.
    pub(crate) fn busy_of(&mut self, session: SessionId, sequence: Sequence) -> u64 {
        self.busy.remove(&(session, sequence)).unwrap_or_default()
    }

    /// What must be known of an event before the host, which leads or not, takes it in.
    pub(crate) fn before(&mut self, event: &HostEvent, is_leading: bool) {
        let HostEvent::Place { place, .. } = event else { return };
        let place = place.filter(|place| place.primary == self.surroundings.server);
        let generation = place.map(|place| place.generation);
        if let Some(place) = place.filter(|_| generation != self.leads) {
            // A journal of an earlier time must not pass for one of this generation: that begins with its state.
            let goes_on = is_leading && !place.is_loaded();
            if let Some(journal) = &self.journal {
                if goes_on { journal.term(place.generation) } else { journal.begin(place.generation) }
            }
            if !goes_on && place.origin != Origin::Disk {
                self.since = generation;
            }
        }
        if generation != self.leads {
            // Whoever pulled hears where the shard is, and asks there.
            self.rooms.clear();
        }
        self.leads = generation;
    }

    /// A log to the backup is open. False when it is not the backup any more.
    pub(crate) fn feed_open(
        &mut self,
        number: u64,
        backup: ServerId,
        frames: mpsc::UnboundedSender<Frame>,
    ) -> bool {
        let is_wanted = self.feed.as_ref().is_some_and(|(fed, _)| *fed == backup);
        if is_wanted {
            self.frames = Some((number, frames));
        }
        is_wanted
    }

    /// A log is gone. False when that was known.
    pub(crate) fn feed_lost(&mut self, number: u64) -> bool {
        self.frames.take_if(|(open, _)| *open == number).is_some()
    }

    pub(crate) fn log_open(&mut self, number: u64, holds: mpsc::UnboundedSender<Hold>) {
        self.holds = Some((number, holds));
    }

    pub(crate) fn is_last_log(&self, number: u64) -> bool {
        self.holds.as_ref().is_some_and(|(last, _)| *last == number)
    }

    pub(crate) fn perform(&mut self, effect: HostEffect) {
        match effect {
            HostEffect::Shard(effect) => self.shard(effect),
            HostEffect::OpenFeed { backup, generation } => {
                let feed = Feed::start(
                    self.surroundings.clone(),
                    self.opening(generation),
                    backup,
                    self.notes.clone(),
                );
                self.frames = None;
                self.feed = Some((backup, feed));
            }
            HostEffect::CloseFeed => (self.feed, self.frames) = (None, None),
            HostEffect::Feed(frame) => {
                if let Some((_, frames)) = &self.frames {
                    // Where the log has just ended, the host is about to hear that it lost it.
                    let _ = frames.send(frame);
                }
            }
            HostEffect::Hold { generation, index, hash } => {
                if let Some((_, holds)) = &self.holds {
                    // The same.
                    let _ = holds.send(Hold { generation, index: index.0, hash });
                }
            }
            HostEffect::Write(frame) => self.write(frame),
            HostEffect::Load { place } => self.load(place),
            told @ (HostEffect::InStep { .. }
            | HostEffect::Leads { .. }
            | HostEffect::Restored { .. }
            | HostEffect::NotRestored { .. }
            | HostEffect::Differs { .. }) => self.surroundings.say(Word::Host(self.shard, told)),
        }
    }

    fn opening(&self, generation: Generation) -> Opening {
        let (primary, config_hash) = (self.surroundings.server, self.surroundings.config_hash);
        Opening { shard: self.shard, primary, generation, config_hash }
    }

    fn write(&mut self, frame: Frame) {
        if self.journal.is_none() {
            let Surroundings { journals, disk, words, .. } = &*self.surroundings;
            let opening = self.opening(self.leads.unwrap_or_default());
            let journal =
                Journal::start(journals.clone(), opening, disk.clone(), self.notes.clone(), words.clone());
            match journal {
                Ok(journal) => self.journal = Some(journal),
                Err(error) => {
                    let text =
                        format!("the system gives no thread for the journal of {}: {error}", self.shard);
                    self.surroundings.say(Word::Trouble(self.shard, Some(text)));
                    return;
                }
            }
        }
        if let Some(journal) = &self.journal {
            journal.write(frame);
        }
    }

    /// Fetches a state on a thread of its own: the shard's goes on to answer, if only that it has none.
    fn load(&self, place: Place) {
        let (surroundings, notes, keys) = (self.surroundings.clone(), self.notes.clone(), self.keys);
        let since = self.since;
        let load = move || {
            let Place { shard, generation, origin, .. } = place;
            let loaded = match origin {
                Origin::Disk => match journal::load(&surroundings.journals, shard, keys) {
                    Ok((generation, _)) if Some(generation) < since => Err(format!(
                        "the journal of {shard} is of generation {}, before this server led it last",
                        generation.0
                    )),
                    Ok((Generation(last), kept)) => {
                        let count = kept.entries.len();
                        tracing::info!(
                            shard = shard.0,
                            "{shard} was last led in generation {last}; {count} entries are taken in again"
                        );
                        Ok(kept)
                    }
                    Err(error) => Err(error.to_string()),
                },
                Origin::Checkpoint { number } => {
                    let loaded = match &surroundings.saver {
                        Some(saver) => saver.load(shard, keys, number),
                        None => Err("no checkpoints are made in this run".to_owned()),
                    };
                    loaded.map(Kept::from)
                }
                Origin::Nothing | Origin::Memory => {
                    Err(format!("{} has no state of {shard}", surroundings.server))
                }
            };
            // The owner is gone only when the process ends.
            let _ = notes.blocking_send(Note::Host(HostEvent::Loaded { generation, loaded }));
        };
        if let Err(error) = std::thread::Builder::new().name(format!("load {}", place.shard.0)).spawn(load) {
            let why = format!("the system gives no thread to load it with: {error}");
            let told = HostEffect::NotRestored { generation: place.generation, why };
            self.surroundings.say(Word::Host(self.shard, told));
        }
    }

    fn shard(&mut self, effect: ShardEffect) {
        let shard = self.shard;
        let directory = &self.surroundings.directory;
        match effect {
            ShardEffect::Answer { session, pushed } => {
                let busy_us = self.busy_of(session, pushed.sequence);
                let directory = &self.surroundings.directory;
                directory.send(session, Outgoing::Message(ToPeer::Pushed(Pushed { busy_us, ..pushed })));
            }
            ShardEffect::Serve { session, reader, request, have, kind, values, served } => {
                let pulled = Pulled { session, reader, request, have, kind, held_us: served.held_us };
                self.serve(pulled, values, served);
            }
            ShardEffect::Overtaken { session, open } => {
                directory.send(session, Outgoing::Message(ToPeer::Overtaken { open }));
            }
            ShardEffect::Staged { session, sequence } => {
                directory.send(session, Outgoing::Message(ToPeer::Staged { shard, sequence }));
            }
            ShardEffect::Doubt(doubt) => self.surroundings.say(Word::Doubt(doubt)),
            ShardEffect::Cut { number, state } => match &self.surroundings.saver {
                Some(saver) => saver.save(number, *state),
                None => self.not_saved(number, "no checkpoints are made in this run"),
            },
            ShardEffect::CutMissed { number } => {
                self.surroundings.say(Word::CutMissed { shard, number });
            }
            ShardEffect::HasValues => self.surroundings.say(Word::HasValues(shard)),
            ShardEffect::Recycle(buffer) => {
                self.surroundings.buffers.put(buffer);
            }
            ShardEffect::Notice(notice) => self.say(&notice),
        }
    }

    /// What a worker that is broken does with every push must not fill the log. Of each worker and kind the first is said, then at most one a
    /// second; those that are left out are counted by the worker, for the summary.
    fn say(&mut self, notice: &Notice) {
        let (worker, clock, kind) = match notice {
            Notice::BadGradient { worker, clock, .. } => (worker.0, clock.0, "not finite"),
            Notice::Guarded { worker, clock, beyond: Beyond::Norm { .. }, .. } => (worker.0, clock.0, "norm"),
            Notice::Guarded { worker, clock, beyond: Beyond::Rate { .. }, .. } => (worker.0, clock.0, "rate"),
            _ => return tracing::warn!(shard = self.shard.0, "{notice}"),
        };
        let Some(unsaid) = self.gradients.may_say(&format!("{worker} {kind}"), Instant::now()) else {
            return;
        };
        let more =
            if unsaid > 0 { format!("; {unsaid} more gradients were before it") } else { String::new() };
        tracing::warn!(worker, clock, shard = self.shard.0, "{notice}{more}");
    }

    /// Sends values if their session has room for them. Else it lets them go, for as long as the peer takes for those before them they
    /// would keep a version of the shard in memory, and lets the shard serve the pull again when there is room: with what it has by then.
    fn serve(&mut self, pulled: Pulled, values: Snapshot, served: Served) {
        let Surroundings { directory, buffers, runtime, .. } = &*self.surroundings;
        let Snapshot { encoding, words } = values;
        let again = self.rooms.iter().position(|(other, _)| other.is_same(&pulled));
        let (leave, held_us) = match again.map(|place| self.rooms.swap_remove(place)) {
            // The shard does not know any more how long it held the pull.
            Some((first, leave)) => (leave, first.held_us.max(served.held_us)),
            None => match directory.ask(pulled.session, words.len() as u64 * 4) {
                Asked::Leave(leave) => (leave, served.held_us),
                Asked::Wait(wait) => {
                    buffers.put_shared(words);
                    let notes = self.notes.clone();
                    runtime.spawn(async move {
                        if let Some(leave) = wait.leave().await {
                            // The owner is gone only when the process ends.
                            let _ = notes.send(Note::Room(pulled, leave)).await;
                        }
                    });
                    return;
                }
                Asked::Gone => return buffers.put_shared(words),
            },
        };
        let Leave { place, room } = leave;
        let header = self.values_header(pulled.reader, pulled.request, Served { held_us, ..served });
        let header = header.with_payload(encoding, words.len() as u64);
        let end = Lent { words: Some(words.clone()), buffers: buffers.clone(), _room: room };
        directory.send_values(pulled.session, header, SharedValues::from(words).with_end(end), place);
    }

    /// There is room for what was pulled before. False where nobody waits for it any more.
    pub(crate) fn has_room(&mut self, pulled: Pulled, leave: Leave) -> bool {
        let directory = &self.surroundings.directory;
        self.rooms.retain(|(other, _)| directory.has(other.session));
        // A worker that came back over another session has asked again there, and must not be answered here.
        let speaks_for = directory.worker_of(pulled.session);
        let is_awaited =
            directory.has(pulled.session) && pulled.reader.is_none_or(|reader| speaks_for == Some(reader));
        if is_awaited {
            self.rooms.push((pulled, leave));
        }
        is_awaited
    }

    fn not_saved(&self, number: u64, why: &str) {
        self.surroundings.say(Word::NotSaved { shard: self.shard, number, why: why.to_owned() });
    }

    fn values_header(
        &self,
        reader: Option<(WorkerId, Incarnation)>,
        request: u64,
        served: Served,
    ) -> TransferHeader {
        let (worker, incarnation) = reader.unwrap_or_default();
        TransferHeader {
            worker,
            incarnation,
            sequence: Sequence(request),
            clock: Clock(served.minimum.0),
            version: served.version,
            lead: served.lead,
            held_us: served.held_us,
            ..TransferHeader::plain(TransferKind::Values, self.shard, self.keys)
        }
    }
}
