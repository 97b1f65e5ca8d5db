//! One process of a test: every line it says, with its time, and how it ends.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long anything may take that must happen. Only a failure ever takes so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Tries `look` until it finds something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {} s", PATIENCE.as_secs());
        thread::yield_now();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Output,
    Error,
}

#[derive(Debug)]
struct Line {
    stream: Stream,
    text: String,
    at: Instant,
}

#[derive(Debug)]
struct Said {
    lines: Vec<Line>,
    /// Streams that have not ended.
    open: u32,
    status: Option<ExitStatus>,
}

impl Said {
    const fn has_ended(&self) -> bool {
        self.open == 0 && self.status.is_some()
    }
}

#[derive(Debug)]
struct Shared {
    name: String,
    pid: Pid,
    said: Mutex<Said>,
    news: Condvar,
}

impl Shared {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.said());
        self.news.notify_all();
    }
}

/// How a process ended, and all it said.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// The exit code; 128 and the number of the signal where one ended it, as a shell says it.
    pub(crate) code: i32,
    pub(crate) output: String,
    pub(crate) error: String,
}

/// A process, and a handle to it: clones are the same process.
#[derive(Clone, Debug)]
pub(crate) struct Process(Arc<Shared>);

impl Process {
    pub(crate) fn start(name: &str, command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            pid: Pid::from_raw(child.id().cast_signed()),
            said: Mutex::new(Said { lines: Vec::new(), open: 2, status: None }),
            news: Condvar::new(),
        });
        listen(&shared, Stream::Output, child.stdout.take().unwrap());
        listen(&shared, Stream::Error, child.stderr.take().unwrap());
        await_end(shared.clone(), child);
        Self(shared)
    }

    /// Waits for a line with `part` in it, on either stream, and returns it.
    pub(crate) fn line(&self, part: &str) -> String {
        self.line_and_time(part).0
    }

    /// Waits for a line with `part` in it, and returns when it was said.
    pub(crate) fn time_of(&self, part: &str) -> Instant {
        self.line_and_time(part).1
    }

    fn line_and_time(&self, part: &str) -> (String, Instant) {
        self.wait(&format!("a line with {part:?}"), |said| {
            let line = said.lines.iter().find(|line| line.text.contains(part))?;
            Some((line.text.clone(), line.at))
        })
    }

    /// Whether such a line was said so far.
    pub(crate) fn has_said(&self, part: &str) -> bool {
        self.0.said().lines.iter().any(|line| line.text.contains(part))
    }

    /// Waits for its end.
    pub(crate) fn end(&self) -> Ended {
        self.wait("its end", |said| {
            let status = said.status.filter(|_| said.has_ended())?;
            let all = |stream| {
                let lines = said.lines.iter().filter(|line| line.stream == stream);
                lines.map(|line| line.text.clone() + "\n").collect::<String>()
            };
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap();
            Some(Ended { code, output: all(Stream::Output), error: all(Stream::Error) })
        })
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn end_well(&self) -> Ended {
        let ended = self.end();
        assert_eq!(ended.code, 0, "{} ends with\n{}", self.0.name, ended.error);
        ended
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let said = self.0.said();
        if said.status.is_none() {
            kill(self.0.pid, signal).unwrap();
        }
    }

    /// From now on no file of it grows, as on a full disk; or all may again.
    pub(crate) fn fill_disk(&self, is_full: bool) {
        self.limit_files(is_full.then_some(0));
    }

    /// From now on none of its files can be written beyond so many bytes; or all can again.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        let limit = bytes.map_or("--fsize=unlimited:".to_owned(), |bytes| format!("--fsize={bytes}:"));
        let limit = limit.as_str();
        let pid = self.0.pid.to_string();
        let status = Command::new("prlimit").args([limit, "--pid", &pid]).status().unwrap();
        assert!(status.success());
    }

    /// Its threads at present: their names and numbers.
    pub(crate) fn threads(&self) -> Vec<(String, i32)> {
        let folder = format!("/proc/{}/task", self.0.pid);
        let threads = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let named = threads.filter_map(|thread| {
            let name = std::fs::read_to_string(thread.path().join("comm")).ok()?;
            let number = thread.file_name().to_str()?.parse().ok()?;
            Some((name.trim_end().to_owned(), number))
        });
        named.collect()
    }

    /// Ends it without a chance to say anything, whatever state it is in.
    pub(crate) fn kill(&self) {
        self.signal(Signal::SIGKILL);
        self.wait("its end by force", |said| said.status);
    }

    fn wait<T>(&self, what: &str, mut look: impl FnMut(&Said) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut said = self.0.said();
        loop {
            if let Some(found) = look(&said) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let (ended, late) = (said.has_ended(), left.is_zero());
            if ended || late {
                drop(said);
                let how = if ended { "it ended".to_owned() } else { format!("{} s", PATIENCE.as_secs()) };
                panic!("{}: {how} without {what}", self.0.name);
            }
            said = self.0.news.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// All it said so far, for the report of a failure.
    pub(crate) fn transcript(&self) -> String {
        let said = self.0.said();
        let mut text = format!("---- {} (pid {}, {:?})\n", self.0.name, self.0.pid, said.status);
        for line in &said.lines {
            let mark = if line.stream == Stream::Output { "out" } else { "err" };
            let _ = writeln!(text, "{mark} | {}", line.text);
        }
        text
    }
}

fn listen(shared: &Arc<Shared>, stream: Stream, source: impl Read + Send + 'static) {
    let shared = shared.clone();
    thread::spawn(move || {
        for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&line).into_owned();
            shared.change(|said| said.lines.push(Line { stream, text, at: Instant::now() }));
        }
        shared.change(|said| said.open -= 1);
    });
}

fn await_end(shared: Arc<Shared>, mut child: Child) {
    thread::spawn(move || {
        let status = child.wait().unwrap();
        shared.change(|said| said.status = Some(status));
    });
}
