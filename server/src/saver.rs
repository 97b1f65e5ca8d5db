//! Checkpoints: what the shards have cut goes to the store, on a thread of its own that nobody waits for.
//!
//! Of each shard one cut at most waits while another is written: the newest, for a checkpoint is begun when the one before is made or given up.

mod part;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slackline_checkpoint::{
    Blocks, CheckpointError, Expect, FORMAT, Kind, Manifest, Part, RunId, Saved, Stamp, Store,
};
use slackline_core::config::{CheckpointKind, Resolved};
use slackline_core::ids::{Clock, KeyRange, ShardId};
use slackline_server_core::shard::ShardState;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedSender;

use crate::words::Word;

/// Where checkpoints are kept when nothing is said, among the results.
pub const FOLDER: &str = "checkpoints";

/// What a checkpoint is committed with.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub(crate) number: u64,
    /// The clock of the marker.
    pub(crate) clock: Clock,
    pub(crate) samples_done: u64,
    /// Each shard's entry, as its server gave it.
    pub(crate) parts: Vec<(ShardId, Vec<u8>)>,
    /// What the coordinator needs to go on.
    pub(crate) position: serde_json::Value,
}

/// What is to be done, at most one of each.
#[derive(Default)]
struct Jobs {
    /// The name of the run, once it is known.
    run: Option<RunId>,
    /// The checkpoint that the run went on from when it began: its workers are gone.
    resumed: Option<u64>,
    cuts: BTreeMap<ShardId, (u64, ShardState)>,
    commit: Option<Commit>,
    tidy: Option<u64>,
    ended: bool,
}

struct Inner {
    at: String,
    from: Option<String>,
    stamp: Stamp,
    seed: u64,
    keep: usize,
    kind: CheckpointKind,
    block: u32,
    report_after: Duration,
    words: UnboundedSender<Word>,
    jobs: Mutex<Jobs>,
    wake: Condvar,
}

impl std::fmt::Debug for Saver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saver").field("at", &self.inner.at).finish_non_exhaustive()
    }
}

/// The handle of the thread.
#[derive(Clone)]
pub(crate) struct Saver {
    inner: Arc<Inner>,
}

/// What all files of a run's checkpoints carry, but for the name of the run. What only says where the state lies is not part of it: a run may
/// go on from a checkpoint on other servers.
fn stamp(resolved: &Resolved) -> Stamp {
    let layout = resolved.config.layout();
    let (config_hash, layout_hash) = (resolved.training_hash(), layout.hash());
    Stamp { run: RunId::default(), config_hash, layout_hash, keys: layout.len() }
}

/// What a checkpoint must be for this configuration, of any run or of one.
fn expect(stamp: Stamp, run: Option<RunId>) -> Expect {
    let Stamp { config_hash, layout_hash, keys, .. } = stamp;
    Expect { run, config_hash: Some(config_hash), layout_hash, keys }
}

impl Saver {
    /// Starts the thread. `at` is where checkpoints are kept, `from` where that is which the run goes on from.
    pub(crate) fn start(
        resolved: &Resolved,
        at: String,
        from: Option<String>,
        words: UnboundedSender<Word>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let config = &resolved.config;
        let inner = Arc::new(Inner {
            at,
            from,
            stamp: stamp(resolved),
            seed: config.seed,
            keep: config.checkpoint.keep,
            kind: config.checkpoint.kind,
            block: u32::try_from(config.checkpoint.block).unwrap_or(u32::MAX),
            report_after: config.checkpoint.report_after,
            words,
            jobs: Mutex::default(),
            wake: Condvar::new(),
        });
        let runtime = runtime()?;
        let work =
            Work { inner: inner.clone(), store: None, saved: BTreeMap::new(), failing: None, said: false };
        let thread =
            std::thread::Builder::new().name("saver".to_owned()).spawn(move || work.run(&runtime))?;
        Ok((Self { inner }, thread))
    }

    /// The run has this name, and went on from this checkpoint when it began, whichever is the newest by now. Said before anything is saved
    /// or loaded.
    pub(crate) fn belongs_to(&self, run: u64, resumed: Option<u64>) {
        let mut jobs = self.inner.jobs();
        (jobs.run, jobs.resumed) = (Some(RunId(run)), resumed);
    }

    /// Saves a shard's part of a checkpoint.
    pub(crate) fn save(&self, number: u64, state: ShardState) {
        let shard = state.shard;
        let before = self.inner.jobs().cuts.insert(shard, (number, state));
        if let Some((number, _)) = before {
            let why = format!("{} was at the checkpoint before it until the next was begun", self.inner.at);
            self.inner.say(Word::NotSaved { shard, number, why });
        }
        self.inner.wake.notify_one();
    }

    /// Commits a checkpoint whose parts are saved.
    pub(crate) fn commit(&self, commit: Commit) {
        self.inner.jobs().commit = Some(commit);
        self.inner.wake.notify_one();
    }

    /// Removes what a checkpoint makes superfluous, once its commit is written in the coordinator's memory. A coordinator whose place was
    /// taken meanwhile may still commit one that its successor does not know of. That does no harm: it is whole, of a number that is never
    /// given again, and the successor's next is newer. But nothing that the successor goes on with may be removed for it.
    pub(crate) fn tidy(&self, number: u64) {
        self.inner.jobs().tidy = Some(number);
        self.inner.wake.notify_one();
    }

    /// Ends the thread when it has done what it was asked for.
    pub(crate) fn end(&self) {
        self.inner.jobs().ended = true;
        self.inner.wake.notify_one();
    }

    /// The state of a shard as it was saved; on the calling thread.
    pub(crate) fn load(&self, shard: ShardId, keys: KeyRange, number: u64) -> Result<ShardState, String> {
        let runtime = runtime().map_err(|error| error.to_string())?;
        let (run, resumed) = {
            let jobs = self.inner.jobs();
            (jobs.run, jobs.resumed)
        };
        let load = |at: &str| {
            runtime.block_on(async {
                let store = Store::open(at)?;
                let manifest = store.manifest(number).await?;
                expect(self.inner.stamp, run).check(&manifest, at)?;
                store.load(&manifest, keys).await
            })
        };
        let own = load(&self.inner.at);
        let loaded = match (own, &self.inner.from) {
            // Before the first checkpoint of its own, a run has that which it goes on from.
            (Err(CheckpointError::Missing { .. } | CheckpointError::Absent { .. }), Some(from)) => load(from),
            (own, _) => own,
        };
        let is_same_run = resumed != Some(number);
        part::state_of(shard, loaded.map_err(|error| error.to_string())?, is_same_run)
    }
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// The newest checkpoint of a place, every byte compared: what a run goes on from.
///
/// # Errors
/// There is none, or it is damaged or of another run, in words that name the file.
pub fn resume(at: &str, resolved: &Resolved) -> Result<Manifest, CheckpointError> {
    let expect = expect(stamp(resolved), None);
    match runtime() {
        Ok(runtime) => runtime.block_on(async { Store::open(at)?.resume(&expect).await }),
        Err(error) => Err(CheckpointError::Address { at: at.to_owned(), why: error.to_string() }),
    }
}

/// Before a run goes on from a checkpoint of elsewhere: whether the place of its own has none of another run, and no later ones of it.
pub(crate) fn may_follow(at: &str, from: &Manifest, resolved: &Resolved) -> Result<(), String> {
    let expect = expect(stamp(resolved), Some(from.stamp.run));
    let runtime = runtime().map_err(|error| error.to_string())?;
    let newest = runtime.block_on(async { Store::open(at)?.newest(&expect).await });
    match newest {
        Ok(Some(newest)) if newest.number > from.number => Err(format!(
            "{at} holds checkpoint {} of this run, which is later than checkpoint {}: go on from there, or choose another folder with --out",
            newest.number, from.number
        )),
        Ok(_) | Err(CheckpointError::Missing { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Before a run that begins anew: whether its place has no checkpoints, of which the run's own could not be told.
pub(crate) fn clear(at: &str, fresh: bool) -> Result<(), String> {
    let runtime = runtime().map_err(|error| error.to_string())?;
    let next = runtime.block_on(async {
        let store = Store::open(at)?;
        if fresh {
            // Not the whole folder: it is the user's, and may hold other things.
            return store.clear().await.map(|()| 1);
        }
        store.next_number().await
    });
    match next {
        Ok(1) | Err(CheckpointError::Missing { .. }) => Ok(()),
        Ok(_) => Err(format!(
            "{at} holds checkpoints of an earlier run: go on from them with --resume, remove them with --fresh, or choose another \
             folder with --out"
        )),
        Err(error) => Err(error.to_string()),
    }
}

impl Inner {
    fn jobs(&self) -> std::sync::MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, word: Word) {
        // The other end is the control loop; it is gone only when the process ends.
        let _ = self.words.send(word);
    }
}

enum Job {
    Cut(u64, ShardState),
    Commit(Commit),
    Tidy(u64),
    End,
}

struct Work {
    inner: Arc<Inner>,
    /// Opened when it is first needed: a store that is away does not keep a server from starting.
    store: Option<Store>,
    saved: BTreeMap<ShardId, Saved>,
    /// Since when the store has taken nothing.
    failing: Option<Instant>,
    said: bool,
}

impl Work {
    fn run(mut self, runtime: &Runtime) {
        loop {
            match self.next() {
                Job::Cut(number, state) => self.cut(runtime, number, state),
                Job::Commit(commit) => self.commit(runtime, commit),
                Job::Tidy(number) => self.tidy(runtime, number),
                Job::End => return,
            }
        }
    }

    fn next(&self) -> Job {
        let mut jobs = self.inner.jobs();
        loop {
            if let Some(commit) = jobs.commit.take() {
                return Job::Commit(commit);
            }
            if let Some(number) = jobs.tidy.take() {
                return Job::Tidy(number);
            }
            if let Some((_, (number, state))) = jobs.cuts.pop_first() {
                return Job::Cut(number, state);
            }
            if jobs.ended {
                return Job::End;
            }
            jobs = self.inner.wake.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn cut(&mut self, runtime: &Runtime, number: u64, state: ShardState) {
        let shard = state.shard;
        let outcome = runtime.block_on(self.save(number, state));
        self.note_outcome(outcome.as_ref().err());
        self.inner.say(match outcome {
            Ok(entry) => Word::Saved { shard, number, entry },
            Err(why) => Word::NotSaved { shard, number, why },
        });
    }

    async fn save(&mut self, number: u64, state: ShardState) -> Result<Vec<u8>, String> {
        let text = |error: CheckpointError| error.to_string();
        let store = self.store().map_err(text)?;
        let stamp = self.stamp()?;
        let ShardState { shard, keys, version, clock, facts, arrays } = state;
        let (arrays, facts) = part::packed(clock, facts, arrays)?;
        let blocks = match self.inner.kind {
            CheckpointKind::Full => None,
            kind => {
                let newest = store
                    .newest(&expect(stamp, Some(stamp.run)))
                    .await
                    .map_err(text)?
                    .map(|manifest| manifest.number);
                let saved = self.saved.entry(shard).or_default();
                saved.choose(kind, self.inner.block, newest, number, &arrays)
            }
        };
        let listed = blocks.as_ref().map(|blocks| Blocks::new(keys, self.inner.block, blocks));
        let part =
            Part { shard, keys, version, arrays: arrays.clone(), facts: Arc::new(facts), blocks: listed };
        let entry = store.write_part(stamp, number, &part).await.map_err(text)?;
        self.saved.entry(shard).or_default().wrote(
            self.inner.kind,
            self.inner.block,
            number,
            blocks,
            &arrays,
        );
        part::told(&store, entry).await.map_err(text)
    }

    fn stamp(&self) -> Result<Stamp, String> {
        let run = self.inner.jobs().run.ok_or("the coordinator has not said which run this is")?;
        Ok(Stamp { run, ..self.inner.stamp })
    }

    fn commit(&mut self, runtime: &Runtime, commit: Commit) {
        let number = commit.number;
        let outcome = runtime.block_on(self.put_manifest(commit));
        self.note_outcome(outcome.as_ref().err());
        self.inner.say(Word::Committed { number, outcome });
    }

    async fn put_manifest(&mut self, commit: Commit) -> Result<(), String> {
        let text = |error: CheckpointError| error.to_string();
        let store = self.store().map_err(text)?;
        let stamp = self.stamp()?;
        let Commit { number, clock, samples_done, parts, position } = commit;
        let mut entries = Vec::new();
        for (shard, entry) in parts {
            entries.push(part::heard(&store, shard, &entry).await?);
        }
        entries.sort_by_key(|entry| entry.keys.start);
        let Inner { seed, kind, .. } = &*self.inner;
        let bases = match kind {
            CheckpointKind::Full => Vec::new(),
            _ => match store.newest(&expect(stamp, Some(stamp.run))).await.map_err(text)? {
                Some(previous) => Manifest::bases_after(&previous, &entries),
                None => Vec::new(),
            },
        };
        let manifest = Manifest {
            format: FORMAT,
            number,
            stamp,
            kind: kind_of(*kind),
            seed: *seed,
            clock,
            samples_done,
            created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            parts: entries,
            bases,
            coordinator: position,
        };
        store.put(&manifest).await.map_err(text)
    }

    fn tidy(&mut self, runtime: &Runtime, number: u64) {
        let keep = self.inner.keep;
        let left = match self.store() {
            Ok(store) => runtime.block_on(store.tidy(number, keep)).left,
            Err(error) => Some(error),
        };
        if let Some(left) = left {
            tracing::warn!("checkpoint {number} is whole, but older ones could not be removed: {left}");
        }
    }

    fn store(&mut self) -> Result<Store, CheckpointError> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let store = Store::create(&self.inner.at)?;
        self.store = Some(store.clone());
        Ok(store)
    }

    /// A store that has taken nothing for long is named, once.
    fn note_outcome(&mut self, why: Option<&String>) {
        let Some(why) = why else {
            self.failing = None;
            if std::mem::take(&mut self.said) {
                self.inner.say(Word::StoreTrouble(None));
            }
            return;
        };
        let since = *self.failing.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.inner.report_after && !self.said {
            self.said = true;
            let text = format!("no checkpoint was taken for {:.0} s: {why}", since.elapsed().as_secs_f64());
            self.inner.say(Word::StoreTrouble(Some(text)));
        }
    }
}

const fn kind_of(kind: CheckpointKind) -> Kind {
    match kind {
        CheckpointKind::Full => Kind::Full,
        CheckpointKind::Priority { share } => Kind::Priority { share },
        CheckpointKind::Incremental => Kind::Incremental,
    }
}

#[cfg(test)]
mod tests;
