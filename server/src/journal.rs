//! The journal of a shard on disk: a state, and every entry after it.
//!
//! One thread a shard writes what has gathered since it last looked, and brings it to the disk once for all of it; only then are the
//! entries *written*, and what was answered because of them may leave. A new state begins a new file, and the file before it is removed
//! when the new one is durable. So the folder holds one whole state at any moment:
//!
//! ```text
//! FOLDER/shard-00003-0000000007.journal     frames, the first of which says whose they are
//! FOLDER/shard-00003-0000000008.unfinished  a state that is being written
//! ```
//!
//! A disk that is full loses nothing: the thread tries again every second, nothing that waits for it is answered, and the file is cut to
//! what was whole, so that a torn frame never has others behind it.

mod disk;
pub(crate) mod framing;
mod read;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, io};

use slackline_core::ids::Generation;
use slackline_net::log::Payload;
use slackline_server_core::replica::{Frame, HostEvent, Index};
use tokio::sync::mpsc;

use crate::frames::{Head, Opening, Piece, pieces};
use crate::owner::Note;
use crate::words::Word;

pub(crate) use disk::{Disk, File, Real, make_folders};
use framing::{FRONT_BYTES, front};
pub(crate) use read::{JournalError, find, load};

/// Entries that are brought to the disk at once, in bytes.
const BATCH_BYTES: usize = 16 << 20;

/// Payloads from here on are written from where they lie.
const LARGE_BYTES: usize = 64 << 10;

/// How long a disk that takes nothing is left alone.
const AGAIN: Duration = Duration::from_secs(1);

/// How often the end of the process is looked for meanwhile.
const STEP: Duration = Duration::from_millis(50);

/// What the thread is asked to write.
enum Order {
    /// The shard leads on, in this generation.
    Term(Generation),
    /// The shard leads again, in this generation: nothing is added to what lies there from before.
    Begin(Generation),
    Frame(Frame),
}

/// The handle of a shard's journal; the thread ends when it is dropped and all was written.
pub(crate) struct Journal {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Journal {
    /// Starts the thread. What is on the disk is told to the host through `events`, trouble with it through `words`.
    pub(crate) fn start(
        folder: PathBuf,
        opening: Opening,
        disk: Arc<dyn Disk>,
        events: mpsc::Sender<Note>,
        words: mpsc::UnboundedSender<Word>,
    ) -> io::Result<Self> {
        // Without a bound of its own: the host takes nothing more in when too much of it is not written.
        let (orders, waiting) = channel();
        let writer = Writer { folder, opening, disk, events, words, current: None, troubled: false };
        let name = format!("journal {}", opening.shard.0);
        let thread = std::thread::Builder::new().name(name).spawn(move || writer.run(&waiting))?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// What follows is of this generation, and what is there is whole for it.
    pub(crate) fn term(&self, generation: Generation) {
        self.order(Order::Term(generation));
    }

    pub(crate) fn begin(&self, generation: Generation) {
        self.order(Order::Begin(generation));
    }

    pub(crate) fn write(&self, frame: Frame) {
        self.order(Order::Frame(frame));
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread is gone only after a panic, and then nothing is written any more: the host waits, by name.
            let _ = orders.send(order);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a journal panicked");
        }
    }
}

/// The file that entries are added to.
struct Current {
    path: PathBuf,
    file: Box<dyn File>,
    /// Bytes that are durable.
    durable: u64,
    number: u64,
}

struct Writer {
    folder: PathBuf,
    opening: Opening,
    disk: Arc<dyn Disk>,
    events: mpsc::Sender<Note>,
    words: mpsc::UnboundedSender<Word>,
    current: Option<Current>,
    troubled: bool,
}

impl Writer {
    fn run(mut self, orders: &Receiver<Order>) {
        let mut next = None;
        while let Some(first) = next.take().or_else(|| orders.recv().ok()) {
            let done = match first {
                Order::Frame(Frame::State { index, at, state }) => {
                    let frame = Frame::State { index, at, state };
                    self.until_done(|writer| writer.begin(&frame)).map(|()| Some(index))
                }
                Order::Begin(generation) => {
                    (self.opening.generation, self.current) = (generation, None);
                    Some(None)
                }
                first => {
                    let mut batch = Batch::default();
                    batch.add(first);
                    while batch.bytes < BATCH_BYTES {
                        match orders.try_recv() {
                            Ok(other @ (Order::Begin(_) | Order::Frame(Frame::State { .. }))) => {
                                next = Some(other);
                                break;
                            }
                            Ok(order) => batch.add(order),
                            Err(_) => break,
                        }
                    }
                    self.until_done(|writer| writer.append(&batch)).map(|()| batch.last)
                }
            };
            match done {
                Some(Some(index)) => {
                    drop(self.events.blocking_send(Note::Host(HostEvent::Written { index })))
                }
                Some(None) => {}
                // The process ends, and the disk still takes nothing: nobody was told that it did.
                None => return,
            }
        }
    }

    /// Tries until it is done. None when nobody wants it any more.
    fn until_done(&mut self, mut attempt: impl FnMut(&mut Self) -> Result<(), Failed>) -> Option<()> {
        loop {
            match attempt(self) {
                Ok(()) => {
                    self.trouble(None);
                    return Some(());
                }
                Err(failed) => self.trouble(Some(failed)),
            }
            // In short steps, so that the end of the process does not wait for it.
            for _ in 0..AGAIN.as_millis() / STEP.as_millis() {
                if self.events.is_closed() {
                    return None;
                }
                std::thread::sleep(STEP);
            }
        }
    }

    fn trouble(&mut self, failed: Option<Failed>) {
        if failed.is_some() == self.troubled {
            return;
        }
        self.troubled = failed.is_some();
        let server = self.opening.primary;
        let text = failed.map(|Failed { path, error }| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!(
                    "the disk of {server} is full: {}; nothing is answered before there is room",
                    path.display()
                )
            }
            _ => format!(
                "{} of {server} cannot be written: {error}; nothing is answered meanwhile",
                path.display()
            ),
        });
        // The other end is the control loop; it is gone only when the process ends.
        let _ = self.words.send(Word::Trouble(self.opening.shard, text));
    }

    /// Begins a new file with a state, and removes the one before.
    fn begin(&mut self, frame: &Frame) -> Result<(), Failed> {
        let number = match &self.current {
            Some(current) => current.number + 1,
            None => read::last_number(&self.folder, self.opening.shard).map_or(0, |number| number + 1),
        };
        let path = self.folder.join(read::file_name(self.opening.shard, number));
        let unfinished = path.with_extension(read::UNFINISHED);
        let failed = |error| Failed { path: unfinished.clone(), error };
        let written = (|| {
            let mut file = self.disk.create(&unfinished)?;
            let mut out = Out::new(&mut *file, 0, 0);
            out.piece(
                &Piece::of(&Head::Opening(self.opening), Payload::default()).map_err(io::Error::other)?,
            )?;
            for piece in pieces(frame.clone()) {
                out.piece(&piece.map_err(io::Error::other)?)?;
            }
            let length = out.end()?;
            file.sync()?;
            self.disk.rename(&unfinished, &path)?;
            Ok((file, length))
        })();
        let (file, length) = written.map_err(|error| {
            // Where it cannot be removed either, the next start does.
            let _ = fs::remove_file(&unfinished);
            failed(error)
        })?;
        self.current = Some(Current { path: path.clone(), file, durable: length, number });
        // Also those that an earlier process has left.
        for old in read::files_of(&self.folder, self.opening.shard).unwrap_or_default() {
            if old != path {
                let _ = fs::remove_file(&old);
            }
        }
        Ok(())
    }

    fn append(&mut self, batch: &Batch) -> Result<(), Failed> {
        for term in batch.orders.iter().filter_map(Order::generation) {
            self.opening.generation = term;
        }
        // A term before the first state is in what that begins with.
        let Some(current) = &mut self.current else { return Ok(()) };
        let Current { path, file, durable, .. } = current;
        let written = (|| {
            let mut out = Out::new(&mut **file, *durable, *durable);
            for order in &batch.orders {
                match order {
                    Order::Term(generation) => {
                        let piece = Piece::of(&Head::Term(*generation), Payload::default());
                        out.piece(&piece.map_err(io::Error::other)?)?;
                    }
                    // One of these begins a batch of its own.
                    Order::Begin(_) => {}
                    Order::Frame(frame) => {
                        for piece in pieces(frame.clone()) {
                            out.piece(&piece.map_err(io::Error::other)?)?;
                        }
                    }
                }
            }
            let length = out.end()?;
            file.sync()?;
            Ok(length)
        })();
        match written {
            Ok(length) => {
                *durable = length;
                Ok(())
            }
            Err(error) => {
                // What is half there would have whole frames behind it. If it cannot be cut, the next attempt writes over it.
                let _ = file.cut(*durable);
                Err(Failed { path: path.clone(), error })
            }
        }
    }
}

/// What could not be done, and where.
struct Failed {
    path: PathBuf,
    error: io::Error,
}

/// Entries and terms that are written together.
#[derive(Default)]
struct Batch {
    orders: Vec<Order>,
    bytes: usize,
    last: Option<Index>,
}

impl Batch {
    fn add(&mut self, order: Order) {
        if let Order::Frame(Frame::Entry(entry)) = &order {
            self.last = Some(entry.index);
            self.bytes += FRONT_BYTES + crate::frames::payload_bytes(entry);
        }
        self.orders.push(order);
    }
}

impl Order {
    const fn generation(&self) -> Option<Generation> {
        match self {
            Self::Term(generation) => Some(*generation),
            Self::Begin(_) | Self::Frame(_) => None,
        }
    }
}

/// Frames on their way to a file: small ones are gathered.
struct Out<'a> {
    file: &'a mut dyn File,
    at: u64,
    durable: u64,
    gathered: Vec<u8>,
}

impl<'a> Out<'a> {
    fn new(file: &'a mut dyn File, at: u64, durable: u64) -> Self {
        Self { file, at, durable, gathered: Vec::new() }
    }

    fn piece(&mut self, piece: &Piece) -> io::Result<()> {
        let front = front(&piece.head, piece.payload.as_ref(), self.durable);
        self.gathered.extend_from_slice(&front);
        self.gathered.extend_from_slice(&piece.head);
        if piece.payload.len() < LARGE_BYTES {
            self.gathered.extend_from_slice(piece.payload.as_ref());
        } else {
            self.flush()?;
            self.write(piece.payload.as_ref())?;
        }
        if self.gathered.len() >= LARGE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        self.write(&gathered)?;
        self.gathered = gathered;
        self.gathered.clear();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn end(mut self) -> io::Result<u64> {
        self.flush()?;
        Ok(self.at)
    }
}

/// Removes everything that a run has left in a folder of journals.
pub(crate) fn forget(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
