//! The signals that end a process: one task hears them as long as anybody may want to know, so that none is lost between two that wait for it.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use slackline_net::NetworkThread;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How often work that may hang is left for a look whether a signal has come.
const LOOK: Duration = Duration::from_millis(20);

/// See the module. A clone hears by itself the signals that the original has not heard yet.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    heard: watch::Receiver<&'static str>,
    /// What hears them; none where nothing does.
    _ears: Option<Arc<NetworkThread>>,
}

impl Signals {
    /// Hears them from now on; by themselves they end the process no more.
    ///
    /// # Errors
    /// The system gives no thread, or does not tell of signals.
    pub(crate) fn listen() -> io::Result<Self> {
        let ears = NetworkThread::start("signals")?;
        let (mut interrupt, mut terminate) = {
            let _within = ears.handle().enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        let (sender, heard) = watch::channel("");
        ears.handle().spawn(async move {
            loop {
                sender.send_replace(tokio::select! {
                    Some(()) = interrupt.recv() => "interrupted",
                    Some(()) = terminate.recv() => "terminated",
                    else => return,
                });
            }
        });
        Ok(Self { heard, _ears: Some(Arc::new(ears)) })
    }

    /// None comes; with what says that one has.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (watch::Sender<&'static str>, Self) {
        let (sender, heard) = watch::channel("");
        (sender, Self { heard, _ears: None })
    }

    /// Waits for a signal that was not heard yet; what it does to the process, in a word.
    pub(crate) async fn recv(&mut self) -> &'static str {
        match self.heard.changed().await {
            Ok(()) => *self.heard.borrow_and_update(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether one has come that was not heard yet.
    pub(crate) fn has_come(&self) -> bool {
        self.heard.has_changed().unwrap_or(false)
    }

    /// Does what may hang, such as a word with a store, in a thread of its own. None where a signal came first: then it is left behind.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn unless_told<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (done, result) = sync_channel(1);
        // Whoever was to hear of it may be gone.
        let thread = Builder::new().name("store".to_owned()).spawn(move || drop(done.send(work())))?;
        loop {
            match result.recv_timeout(LOOK) {
                Ok(result) => return Ok(Some(result)),
                Err(RecvTimeoutError::Timeout) if self.has_come() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match thread.join() {
                    Err(panic) => resume_unwind(panic),
                    Ok(()) => return Ok(None),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn a_signal_that_came_between_two_that_wait_for_it_is_heard_by_the_next() {
        let (sender, mut signals) = Signals::by_hand();
        let later = signals.clone();
        sender.send_replace("terminated");
        assert!(signals.has_come());
        assert_eq!(signals.recv().await, "terminated");
        assert!(!signals.has_come() && later.has_come());
    }

    #[test]
    fn what_hangs_keeps_no_process_that_was_told_to_end() {
        let (sender, signals) = Signals::by_hand();
        assert_eq!(signals.unless_told(|| 7).unwrap(), Some(7));
        let (release, hangs) = channel::<()>();
        sender.send_replace("interrupted");
        assert_eq!(signals.unless_told(move || hangs.recv()).unwrap(), None);
        drop(release);
    }
}
