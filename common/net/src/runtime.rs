//! The thread that the network runs on.
//!
//! One thread with its own scheduler moves more than several with a shared one: the cost is per packet, and packets of one
//! connection cannot be worked on in parallel. It also keeps computing threads and the network from waiting for each other.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How long the end of the thread waits for a name that is being resolved.
const SHUTDOWN: Duration = Duration::from_secs(1);

/// The network thread has ended, or what was asked of it has panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the network thread has stopped")]
pub struct NetworkStopped;

/// A thread with a scheduler of its own. It ends when this is dropped; connections that are to be closed with a word must be
/// closed before.
#[derive(Debug)]
pub struct NetworkThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl NetworkThread {
    /// Starts the thread under `name`.
    ///
    /// # Errors
    /// The system gives no thread, or no means to wait for sockets.
    pub fn start(name: &str) -> io::Result<Self> {
        keep_freed_memory();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            // A dropped sender means the same as a word from it.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_timeout(SHUTDOWN);
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// For starting tasks on the thread, and for making endpoints ([`Handle::enter`]) from another one.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs `future` on the network thread, and waits for it on this one. Not to be called on the network thread itself.
    ///
    /// # Errors
    /// The thread ended first, or the future panicked.
    pub fn block_on<F>(&self, future: F) -> Result<F::Output, NetworkStopped>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (done, wait) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // Nobody waits any more only if the waiting thread panicked.
            let _ = done.send(future.await);
        });
        wait.recv().map_err(|_| NetworkStopped)
    }

    /// Ends the thread with all its tasks, and waits for that.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the network thread panicked");
        }
    }
}

/// Makes the system's allocator keep what is freed, for datagrams and values that come and go many times a second: with less than a
/// megabyte free at the end of its heap, glibc gives memory back to the kernel, which clears it before it hands it out again. It learns
/// from the first large block that is freed (mallopt(3), dynamic mmap threshold). Elsewhere this does nothing.
fn keep_freed_memory() {
    const LEARNED_FROM: usize = (32 << 20) - (64 << 10);
    static ONCE: std::sync::Once = std::sync::Once::new();
    // The memory is never touched, so it costs two calls to the kernel.
    ONCE.call_once(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(LEARNED_FROM))));
}

impl Drop for NetworkThread {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_the_named_thread() {
        let network = NetworkThread::start("slackline-net").unwrap();
        let name = network.block_on(async { std::thread::current().name().map(str::to_owned) });
        assert_eq!(name.unwrap().as_deref(), Some("slackline-net"));
    }

    #[test]
    fn a_panic_in_the_work_is_an_error_and_the_thread_lives() {
        let network = NetworkThread::start("slackline-net").unwrap();
        let quiet: Result<(), _> = network.block_on(async { std::panic::resume_unwind(Box::new("planned")) });
        assert_eq!(quiet, Err(NetworkStopped));
        assert_eq!(network.block_on(async { 7 }), Ok(7));
    }

    #[test]
    fn a_task_that_never_ends_does_not_hold_up_the_stop() {
        let network = NetworkThread::start("slackline-net").unwrap();
        network.handle().spawn(std::future::pending::<()>());
        network.stop();
    }
}
