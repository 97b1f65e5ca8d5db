//! One process that `slackline run` has started.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use crate::ERROR;

/// What a child has to tell.
#[derive(Debug)]
pub(crate) enum Told {
    /// A line on standard output.
    Line(usize, String),
    /// A line of its log, to be shown. Its last words are none.
    Log(String),
    /// It has ended.
    Ended(usize, std::io::Result<ExitStatus>),
}

/// A child process, known by its place in the list of all.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) name: String,
    pid: Option<Pid>,
    /// Lines from the one that begins as the error of a failing process does.
    last_words: Arc<Mutex<Vec<String>>>,
    /// Open as long as this process lives: its end tells the child to end too.
    leash: Option<ChildStdin>,
    waiting: JoinHandle<()>,
    pub(crate) ended: Option<ExitStatus>,
}

impl Child {
    /// Starts `command`; what it says comes on `told` under `index`. It is in a process group of its own, so that a signal from
    /// the terminal reaches only this process, which then ends the children in order.
    pub(crate) fn start(
        index: usize,
        name: String,
        mut command: Command,
        told: &UnboundedSender<Told>,
    ) -> std::io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.kill_on_drop(true).spawn()?;
        let last_words = Arc::new(Mutex::new(Vec::<String>::new()));
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let leash = child.stdin.take();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let waiting = {
            let (told, words, name) = (told.clone(), last_words.clone(), name.clone());
            tokio::spawn(async move {
                let lines = read_lines(stdout, |line| {
                    let _ = told.send(Told::Line(index, line));
                });
                let log = read_lines(stderr, |line| {
                    let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                    // Not shown with the log: whoever learns of its end says it once, with how it ended.
                    if line.starts_with(ERROR) || !words.is_empty() {
                        words.push(line);
                    } else {
                        let _ = told.send(Told::Log(format!("[{name}] {line}")));
                    }
                });
                // All it said is read before its end is told.
                let (_, _, status) = tokio::join!(lines, log, child.wait());
                let _ = told.send(Told::Ended(index, status));
            })
        };
        Ok(Self { name, pid, last_words, leash, waiting, ended: None })
    }

    /// Says a line on its standard input. One that has ended does not hear it.
    pub(crate) async fn tell(&mut self, line: &str) {
        if let Some(leash) = &mut self.leash {
            let _ = leash.write_all(format!("{line}\n").as_bytes()).await;
        }
    }

    /// Sends a signal, unless it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if let (None, Some(pid)) = (self.ended, self.pid) {
            // It may end at this very moment.
            let _ = kill(pid, signal);
        }
    }

    /// The error that it ended with, if it said one.
    pub(crate) fn last_words(&self) -> Option<String> {
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
        words.strip_prefix(ERROR).map(str::to_owned)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Dropping the task drops the process handle, which kills what is left of it.
        self.waiting.abort();
    }
}

async fn read_lines<R: AsyncRead + Unpin>(stream: Option<R>, mut line: impl FnMut(String)) {
    let Some(stream) = stream else { return };
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(text)) = lines.next_line().await {
        line(text);
    }
}
