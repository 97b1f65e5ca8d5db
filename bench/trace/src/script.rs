//! Traces made by hand, for tests: each step states what a right server would have stated, until a test changes it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use slackline_core::consistency::Standing;
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, ServerId, ShardId, Version, WorkerId,
};
use slackline_core::trace::{Header, PullFate, Reading, Record, Rule, Verdict, What, file_name};

/// A trace that grows step by step. Workers are named by their numbers and live their first life.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) header: Header,
    pub(crate) records: Vec<Record>,
    /// Clock of each worker that counts, and whether it counts already.
    table: BTreeMap<u32, (u64, bool)>,
    /// The last push of each worker, the version that it pulled, and its pushes so far.
    workers: BTreeMap<u32, (Record, u64, u64)>,
    /// The version that each worker read for each clock.
    reads: BTreeMap<(u32, u64), u64>,
    pub(crate) version: u64,
    at: u64,
}

impl Script {
    /// A trace of shard 0 of 1, without a record.
    pub(crate) fn new(rule: Rule) -> Self {
        let header = Header {
            server: ServerId(0),
            shard: ShardId(0),
            keys: KeyRange::new(0, 10),
            key_count: 10,
            servers: 1,
            shards: 1,
            workers: 2,
            config_hash: 1,
            began_unix_ns: 0,
            rule,
            policy: "policy".to_owned(),
            prefetch: 0,
        };
        let (records, table, workers) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { header, records, table, workers, reads: BTreeMap::new(), version: 0, at: 0 }
    }

    /// A run that has begun with workers 0 to `workers`.
    pub(crate) fn begun(rule: Rule, workers: u32) -> Self {
        let mut script = Self::new(rule);
        script.plain(What::Values);
        for worker in 0..workers {
            script.enter(worker, 0, Standing::Active);
        }
        script.plain(What::Start);
        script
    }

    /// The same as shard `shard` of `shards`.
    pub(crate) fn of_shard(mut self, shard: u32, shards: u32) -> Self {
        self.header.shard = ShardId(shard);
        self.header.keys = KeyRange::new(u64::from(shard) * 10, 10);
        (self.header.shards, self.header.key_count) = (shards, u64::from(shards) * 10);
        self
    }

    pub(crate) fn minimum(&self) -> Option<Clock> {
        self.table.values().filter(|(_, active)| *active).map(|(clock, _)| Clock(*clock)).min()
    }

    /// Time passes before the next event.
    pub(crate) fn wait(&mut self, nanoseconds: u64) -> &mut Self {
        self.at += nanoseconds;
        self
    }

    fn put(&mut self, record: Record) -> &mut Self {
        let number = self.records.len() as u32;
        self.records.push(Record { number, at: Moment(self.at), ..record });
        self
    }

    /// The last record, to be changed.
    pub(crate) fn last(&mut self) -> &mut Record {
        self.records.last_mut().unwrap()
    }

    pub(crate) fn plain(&mut self, what: What) -> &mut Self {
        self.at += 1000;
        self.put(Record { version: Version(self.version), ..Record::new(0, Moment(0), what) })
    }

    fn of(&self, worker: u32, what: What) -> Record {
        Record {
            worker: Some(WorkerId(worker)),
            incarnation: Incarnation(1),
            version: Version(self.version),
            minimum: self.minimum(),
            ..Record::new(0, Moment(0), what)
        }
    }

    pub(crate) fn enter(&mut self, worker: u32, clock: u64, standing: Standing) -> &mut Self {
        self.at += 1000;
        self.table.insert(worker, (clock, standing == Standing::Active));
        let record = Record { clock: Clock(clock), ..self.of(worker, What::Enter(standing)) };
        self.put(record)
    }

    pub(crate) fn remove(&mut self, worker: u32) -> &mut Self {
        self.at += 1000;
        self.table.remove(&worker);
        let record = self.of(worker, What::Remove);
        self.put(record)
    }

    /// A gated pull, after all pushes of the worker.
    pub(crate) fn pull(&mut self, worker: u32, clock: u64, fate: PullFate) -> &mut Self {
        self.pull_ahead(worker, clock, fate, 0)
    }

    /// The same of a worker that has not completed all these iterations.
    pub(crate) fn pull_ahead(&mut self, worker: u32, clock: u64, fate: PullFate, ahead: u8) -> &mut Self {
        self.at += 1000;
        let what = What::Pull { reading: Reading::Gated, fate, ahead };
        let record = Record { clock: Clock(clock), sequence: self.sequence(worker), ..self.of(worker, what) };
        self.put(record)
    }

    fn sequence(&self, worker: u32) -> Sequence {
        Sequence(self.workers.get(&worker).map_or(0, |known| known.2))
    }

    /// Values go to a worker that has pulled at `clock`.
    pub(crate) fn serve(&mut self, worker: u32, clock: u64) -> &mut Self {
        let minimum = self.minimum().unwrap_or(Clock(clock));
        let what = What::Serve { reading: Reading::Gated, lead: clock.saturating_sub(minimum.0) };
        let record = Record {
            clock: Clock(clock),
            sequence: self.sequence(worker),
            minimum: Some(minimum),
            ..self.of(worker, what)
        };
        let version = self.version;
        self.reads.insert((worker, clock), version);
        let none = (record, 0, 0);
        self.workers.entry(worker).or_insert(none).1 = version;
        self.put(record)
    }

    /// A pull that is served at once.
    pub(crate) fn read(&mut self, worker: u32, clock: u64) -> &mut Self {
        self.pull(worker, clock, PullFate::Served).serve(worker, clock)
    }

    /// A push arrives.
    pub(crate) fn push(&mut self, worker: u32, clock: u64) -> &mut Self {
        self.at += 1000;
        let (last, sequence) = self.workers.get(&worker).map_or((0, 1), |known| (known.1, known.2 + 1));
        let pulled = self.reads.get(&(worker, clock)).copied().unwrap_or(last);
        let record = Record {
            clock: Clock(clock),
            sequence: Sequence(sequence),
            pulled: Version(pulled),
            batch: BatchIndex(clock * 10 + u64::from(worker)),
            samples: 32,
            ..self.of(worker, What::Push { empty: false })
        };
        self.workers.insert(worker, (record, pulled, sequence));
        self.put(record)
    }

    /// The last push of a worker comes again.
    pub(crate) fn again(&mut self, worker: u32) -> &mut Self {
        self.at += 1000;
        let record =
            Record { version: Version(self.version), minimum: self.minimum(), ..self.workers[&worker].0 };
        self.put(record)
    }

    /// The worker has completed the iteration of its last push.
    pub(crate) fn count(&mut self, worker: u32) -> &mut Self {
        let clock = self.workers[&worker].0.clock.0 + 1;
        let minimum = self.minimum().map_or(0, |minimum| minimum.0);
        if let Some((present, active)) = self.table.get_mut(&worker) {
            *present = if *active { clock.max(*present) } else { clock.max(*present).max(minimum) };
            *active = true;
        }
        self
    }

    /// What became of the last push of a worker.
    pub(crate) fn verdict(&mut self, worker: u32, verdict: Verdict) -> &mut Self {
        let answered = !matches!(verdict, Verdict::Collected | Verdict::Staged);
        let record = Record {
            what: What::Verdict { verdict, duplicate: false },
            version: Version(self.version),
            minimum: self.minimum(),
            reached: self.table.get(&worker).filter(|_| answered).map(|(clock, _)| Clock(*clock)),
            ..self.workers[&worker].0
        };
        self.put(record)
    }

    /// The last push of a worker is applied, alone.
    pub(crate) fn applied(&mut self, worker: u32) -> &mut Self {
        let staleness = self.version - self.workers[&worker].0.pulled.0;
        self.version += 1;
        self.count(worker).verdict(worker, Verdict::Applied { staleness, down_weighted: false })
    }

    pub(crate) fn collected(&mut self, worker: u32) -> &mut Self {
        self.count(worker).verdict(worker, Verdict::Collected)
    }

    /// The last pushes of some workers are applied as one mean.
    pub(crate) fn mean_of(&mut self, workers: &[u32]) -> &mut Self {
        let before = self.version;
        self.version += 1;
        for worker in workers {
            let staleness = before - self.workers[worker].0.pulled.0;
            self.verdict(*worker, Verdict::Applied { staleness, down_weighted: false });
        }
        self
    }

    /// The bytes of the whole trace.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let records = self.records.iter().flat_map(|record| record.encode());
        self.header.encode().into_iter().chain(records).collect()
    }

    /// Writes the trace under its name.
    pub(crate) fn save(&self, folder: &Path) -> PathBuf {
        let path = folder.join(file_name(self.header.server, self.header.shard));
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }
}
