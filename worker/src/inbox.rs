//! Where the driver's events come from: connections, the loader, the computing threads; in an allreduce other workers too.

use slackline_core::ids::BatchIndex;
use tokio::sync::mpsc;

use crate::compute::Done;
use crate::link::Tagged;
use crate::peers::News;
use crate::push_log::Logged;
use crate::replica::ReplicaDone;

/// Where events come from.
pub(crate) struct Inbox {
    tagged: mpsc::Receiver<Tagged>,
    batches_loaded: mpsc::Receiver<(BatchIndex, u64)>,
    jobs_done: mpsc::Receiver<Done>,
    /// The end of the loader has not been told.
    has_loader: bool,
    replica_done: Option<mpsc::Receiver<ReplicaDone>>,
    news: Option<mpsc::UnboundedReceiver<News>>,
    logged: Option<mpsc::UnboundedReceiver<Logged>>,
}

/// What comes from there.
#[derive(Debug)]
pub(crate) enum Incoming {
    Tagged(Tagged),
    Loaded((BatchIndex, u64)),
    LoaderEnded,
    Done(Done),
    Replica(ReplicaDone),
    Peers(News),
    Logged(Logged),
}

impl Inbox {
    pub(crate) const fn new(
        tagged: mpsc::Receiver<Tagged>,
        batches_loaded: mpsc::Receiver<(BatchIndex, u64)>,
        jobs_done: mpsc::Receiver<Done>,
    ) -> Self {
        Self {
            tagged,
            batches_loaded,
            jobs_done,
            has_loader: true,
            replica_done: None,
            news: None,
            logged: None,
        }
    }

    /// Listens to the worker's own replica and to other workers, too.
    pub(crate) fn listen(
        &mut self,
        replica_done: mpsc::Receiver<ReplicaDone>,
        news: mpsc::UnboundedReceiver<News>,
    ) {
        (self.replica_done, self.news) = (Some(replica_done), Some(news));
    }

    /// Listens to the push log, too.
    pub(crate) fn listen_to_log(&mut self, logged: mpsc::UnboundedReceiver<Logged>) {
        self.logged = Some(logged);
    }

    /// Waits for the next. Dropped while it waits, it loses nothing.
    pub(crate) async fn next(&mut self) -> Incoming {
        let replica_done = async { self.replica_done.as_mut()?.recv().await };
        let news = async { self.news.as_mut()?.recv().await };
        let logged = async { self.logged.as_mut()?.recv().await };
        tokio::select! {
            Some(tagged) = self.tagged.recv() => Incoming::Tagged(tagged),
            Some(done) = self.jobs_done.recv() => Incoming::Done(done),
            Some(done) = replica_done => Incoming::Replica(done),
            Some(news) = news => Incoming::Peers(news),
            Some(logged) = logged => Incoming::Logged(logged),
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
        let mut inbox = Inbox::new(tagged, batches_loaded, jobs_done);
        loaded.send((BatchIndex(3), 1)).await.unwrap();
        drop(loaded);
        assert!(matches!(inbox.next().await, Incoming::Loaded((BatchIndex(3), 1))));
        assert!(matches!(inbox.next().await, Incoming::LoaderEnded));
        done.send(Done::Ended).await.unwrap();
        assert!(matches!(inbox.next().await, Incoming::Done(Done::Ended)));
    }
}
