//! Where the driver's events come from: connections, the loader, the computing threads.

use slackline_core::ids::BatchIndex;
use tokio::sync::mpsc;

use crate::compute::Done;
use crate::link::Tagged;

/// Where events come from.
pub(crate) struct Inbox {
    pub(crate) tagged: mpsc::Receiver<Tagged>,
    pub(crate) batches_loaded: mpsc::Receiver<(BatchIndex, u64)>,
    pub(crate) jobs_done: mpsc::Receiver<Done>,
    /// The end of the loader has not been told.
    pub(crate) has_loader: bool,
}

/// What comes from there.
#[derive(Debug)]
pub(crate) enum Incoming {
    Tagged(Tagged),
    Loaded((BatchIndex, u64)),
    LoaderEnded,
    Done(Done),
}

impl Inbox {
    /// Waits for the next. Dropped while it waits, it loses nothing.
    pub(crate) async fn next(&mut self) -> Incoming {
        tokio::select! {
            Some(tagged) = self.tagged.recv() => Incoming::Tagged(tagged),
            Some(done) = self.jobs_done.recv() => Incoming::Done(done),
            loaded = self.batches_loaded.recv(), if self.has_loader => {
                self.has_loader = loaded.is_some();
                loaded.map_or(Incoming::LoaderEnded, Incoming::Loaded)
            }
            // A computing thread tells of its own end, and the connections' tasks are the driver's.
            else => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_the_loader_is_told_once() {
        let (_events, tagged) = mpsc::channel(1);
        let (done, jobs_done) = mpsc::channel(1);
        let (loaded, batches_loaded) = mpsc::channel(1);
        let mut inbox = Inbox { tagged, batches_loaded, jobs_done, has_loader: true };
        loaded.send((BatchIndex(3), 1)).await.unwrap();
        drop(loaded);
        assert!(matches!(inbox.next().await, Incoming::Loaded((BatchIndex(3), 1))));
        assert!(matches!(inbox.next().await, Incoming::LoaderEnded));
        done.send(Done::Ended).await.unwrap();
        assert!(matches!(inbox.next().await, Incoming::Done(Done::Ended)));
    }
}
