//! Writing a push log: on a thread of its own, since a disk can take long.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use slackline_core::ids::{Incarnation, Sequence, ServerId, ShardId, WorkerId};
use slackline_core::wire::{self, Pushed, ToPeer, TransferHeader};
use slackline_net::SharedValues;
use tokio::sync::mpsc;
use xxhash_rust::xxh3::Xxh3;

use super::read::{PushLog, PushLogError};
use super::{ANSWER, MAGIC, PUSH};

/// Bytes that are handed to the system at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// One push of one shard.
pub(crate) type PushKey = (Incarnation, Sequence, ShardId);

/// What the writing thread has to tell: a push is in the file, or nothing more can be written.
pub(crate) type Logged = io::Result<PushKey>;

/// What is to be written.
enum Job {
    Push(Box<TransferHeader>, SharedValues),
    Answer(ServerId, WorkerId, Incarnation, Pushed),
}

/// The way to the thread that writes. What waits there is bounded by what a worker has on the way: one push for each shard, and its
/// answers.
#[derive(Debug)]
pub(crate) struct PushWriter {
    jobs: Sender<Job>,
}

impl PushWriter {
    /// Opens a log to be continued, or begins one.
    pub(crate) fn start(path: &Path, logged: mpsc::UnboundedSender<Logged>) -> Result<Self, PushLogError> {
        let io = |source| PushLogError::Io { path: path.to_owned(), source };
        let file = continued(path)?;
        let (jobs, waiting) = channel();
        std::thread::Builder::new()
            .name("push-log".to_owned())
            .spawn(move || write_all(file, &waiting, &logged))
            .map_err(io)?;
        Ok(Self { jobs })
    }

    /// Writes a push; told when it is in the file.
    pub(crate) fn push(&self, header: TransferHeader, values: SharedValues) {
        // The thread ends only with an error, which it tells.
        let _ = self.jobs.send(Job::Push(Box::new(header), values));
    }

    /// Writes an answer.
    pub(crate) fn answer(
        &self,
        server: ServerId,
        (worker, incarnation): (WorkerId, Incarnation),
        pushed: Pushed,
    ) {
        let _ = self.jobs.send(Job::Answer(server, worker, incarnation, pushed));
    }
}

/// The file, with its end where the next record is to be.
fn continued(path: &Path) -> Result<File, PushLogError> {
    let io = |source| PushLogError::Io { path: path.to_owned(), source };
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
    let mut log = PushLog::open(path)?;
    while log.next_record()?.is_some() {}
    let whole = log.whole();
    if file.metadata().map_err(io)?.len() < MAGIC.len() as u64 {
        file.set_len(0).map_err(io)?;
        file.write_all(&MAGIC).map_err(io)?;
    }
    file.set_len(whole).map_err(io)?;
    file.seek(SeekFrom::Start(whole)).map_err(io)?;
    Ok(file)
}

fn write_all(file: File, jobs: &Receiver<Job>, logged: &mpsc::UnboundedSender<Logged>) {
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
    while let Ok(job) = jobs.recv() {
        let written = match job {
            Job::Push(header, values) => {
                let key = (header.incarnation, header.sequence, header.shard);
                push(&mut file, &header, values.as_ref()).map(|()| Some(key))
            }
            Job::Answer(server, worker, incarnation, pushed) => {
                answer(&mut file, (server, worker, incarnation), pushed).map(|()| None)
            }
        };
        // Handed to the system, it outlives this process.
        let written = written.and_then(|key| file.flush().map(|()| key));
        match written {
            Ok(None) => {}
            Ok(Some(key)) => _ = logged.send(Ok(key)),
            Err(error) => {
                let _ = logged.send(Err(error));
                return;
            }
        }
    }
}

fn push(file: &mut impl Write, header: &TransferHeader, values: &[f32]) -> io::Result<()> {
    let head = header.to_bytes();
    let length = 1 + head.len() as u64 + 4 * values.len() as u64;
    let mut sum = Xxh3::new();
    sum.update(&[PUSH]);
    sum.update(&head);
    let mut chunk = Vec::with_capacity(BUFFER_BYTES);
    for part in values.chunks(BUFFER_BYTES / 4) {
        sum.update(in_bytes(part, &mut chunk));
    }
    file.write_all(&length.to_le_bytes())?;
    file.write_all(&sum.digest().to_le_bytes())?;
    file.write_all(&[PUSH])?;
    file.write_all(&head)?;
    values.chunks(BUFFER_BYTES / 4).try_for_each(|part| file.write_all(in_bytes(part, &mut chunk)))
}

fn in_bytes<'a>(values: &[f32], bytes: &'a mut Vec<u8>) -> &'a [u8] {
    bytes.clear();
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

fn answer(
    file: &mut impl Write,
    (server, worker, incarnation): (ServerId, WorkerId, Incarnation),
    pushed: Pushed,
) -> io::Result<()> {
    let message = wire::encode(&ToPeer::Pushed(pushed)).map_err(io::Error::other)?;
    let mut body = vec![ANSWER];
    body.extend(server.0.to_le_bytes());
    body.extend(worker.0.to_le_bytes());
    body.extend(incarnation.0.to_le_bytes());
    body.extend(message);
    file.write_all(&(body.len() as u64).to_le_bytes())?;
    file.write_all(&xxhash_rust::xxh3::xxh3_64(&body).to_le_bytes())?;
    file.write_all(&body)
}

#[cfg(test)]
mod tests {
    use super::super::PushRecord;
    use super::*;
    use slackline_core::ids::{BatchIndex, Clock, KeyRange, Version};
    use slackline_core::wire::{PushOutcome, TransferKind};

    const ME: (WorkerId, Incarnation) = (WorkerId(2), Incarnation(7));

    fn header(sequence: u64, len: u64) -> TransferHeader {
        let keys = KeyRange::new(16, len);
        TransferHeader {
            worker: ME.0,
            incarnation: ME.1,
            sequence: Sequence(sequence),
            clock: Clock(3),
            version: Version(4),
            batch: BatchIndex(5),
            samples: 8,
            ..TransferHeader::plain(TransferKind::Push, ShardId(1), keys)
        }
    }

    fn pushed(sequence: u64) -> Pushed {
        let outcome = PushOutcome::Applied { version: Version(9), staleness: 1, down_weighted: false };
        let (shard, sequence) = (ShardId(1), Sequence(sequence));
        Pushed { shard, sequence, duplicate: false, clock: Clock(4), outcome, held_us: 0, busy_us: 0 }
    }

    fn values(sequence: u64, len: u64) -> Vec<f32> {
        (0..len).map(|at| (sequence * 1000 + at) as f32).collect()
    }

    /// A log of so many pushes with their answers, and what it says.
    fn written(path: &Path, sequences: std::ops::Range<u64>, len: u64) -> Vec<PushRecord> {
        let (logged, mut told) = mpsc::unbounded_channel();
        let writer = PushWriter::start(path, logged).unwrap();
        let mut records = Vec::new();
        for sequence in sequences {
            let (header, gradient) = (header(sequence, len), values(sequence, len));
            writer.push(header, SharedValues::from(gradient.clone()));
            assert_eq!(told.blocking_recv().unwrap().unwrap(), (ME.1, Sequence(sequence), ShardId(1)));
            writer.answer(ServerId(6), ME, pushed(sequence));
            records.push(PushRecord::Push { header, gradient });
            let (worker, incarnation) = ME;
            records.push(PushRecord::Answer {
                server: ServerId(6),
                worker,
                incarnation,
                pushed: pushed(sequence),
            });
        }
        drop(writer);
        // The thread has ended when nobody is left to tell.
        assert!(told.blocking_recv().is_none());
        records
    }

    fn read(path: &Path) -> Vec<PushRecord> {
        PushLog::open(path).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn what_was_written_is_read_and_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pushes");
        // More than one buffer, and nothing at all.
        let mut records = written(&path, 1..3, 70_000);
        assert_eq!(read(&path), records);
        records.extend(written(&path, 3..5, 0));
        assert_eq!(read(&path), records);
    }

    #[test]
    fn a_log_that_is_cut_anywhere_ends_with_its_last_whole_record_and_is_continued_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pushes");
        let records = written(&path, 1..4, 5);
        let bytes = std::fs::read(&path).unwrap();
        let mut counts = std::collections::BTreeSet::new();
        for end in 0..bytes.len() {
            std::fs::write(&path, &bytes[..end]).unwrap();
            let left = read(&path);
            assert_eq!(left, records[..left.len()]);
            counts.insert(left.len());
        }
        assert_eq!(counts, (0..records.len()).collect());
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let more = written(&path, 9..10, 5);
        assert_eq!(read(&path), [&records[..records.len() - 1], &more].concat());
    }

    #[test]
    fn a_reader_goes_on_where_another_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pushes");
        let first = written(&path, 1..3, 5);
        let mut reader = PushLog::open_at(&path, 0).unwrap();
        assert_eq!(reader.by_ref().map(Result::unwrap).collect::<Vec<_>>(), first);
        let more = written(&path, 3..5, 5);
        let later = PushLog::open_at(&path, reader.whole()).unwrap();
        assert_eq!(later.map(Result::unwrap).collect::<Vec<_>>(), more);
    }

    #[test]
    fn damage_before_the_end_is_named_and_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pushes");
        written(&path, 1..3, 5);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[60] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = PushLog::open(&path).unwrap().find_map(Result::err).unwrap();
        assert!(matches!(error, PushLogError::Damaged { at: 8, .. }), "{error}");
        std::fs::write(&path, b"something else").unwrap();
        assert!(matches!(PushLog::open(&path), Err(PushLogError::NotALog { .. })));
        let (logged, _told) = mpsc::unbounded_channel();
        assert!(PushWriter::start(&path, logged).is_err(), "it is not overwritten");
    }
}
