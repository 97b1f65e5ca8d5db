//! The shards of this server: each gets its thread when control first says that it has a part here, and keeps it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use slackline_core::config::Resolved;
use slackline_core::ids::{Clock, Incarnation, ShardId, WorkerId};
use slackline_core::wire::Place;
use slackline_server_core::ShardEvent;
use slackline_server_core::replica::HostEvent;

use crate::files::FileError;
use crate::owner::{Order, Owner};
use crate::parts::host_settings;
use crate::performer::Surroundings;
use crate::session::Shared;
use crate::tracer::Traces;

/// The threads of shards, to be waited for at the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Threads(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl Threads {
    fn add(&self, thread: JoinHandle<()>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Waits for all of them; how many have panicked.
    pub(crate) fn join(&self) -> usize {
        let threads = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().filter_map(|thread| thread.join().err()).count()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) shared: Arc<Shared>,
    pub(crate) surroundings: Arc<Surroundings>,
    traces: Option<Traces>,
    threads: Threads,
}

/// A shard could not be given its thread.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HomeError {
    /// The system gives none.
    #[error("the system gives no thread for {0}: {1}")]
    Thread(ShardId, std::io::Error),
    /// Its trace cannot be begun.
    #[error(transparent)]
    Trace(#[from] FileError),
    /// The coordinator speaks of a shard that the model does not have.
    #[error("{0} is no shard of this run")]
    Unknown(ShardId),
}

impl Home {
    /// `trace` is the folder of the results where traces are written.
    pub(crate) fn new(
        resolved: &Resolved,
        shared: Arc<Shared>,
        surroundings: Arc<Surroundings>,
        trace: Option<PathBuf>,
    ) -> Self {
        let traces = trace.map(|out| Traces::new(out, resolved, surroundings.server, surroundings.began));
        Self { shared, surroundings, traces, threads: Threads::default() }
    }

    pub(crate) fn threads(&self) -> Threads {
        self.threads.clone()
    }

    /// Tells a shard its place.
    pub(crate) async fn place(
        &self,
        resolved: &Resolved,
        shard: ShardId,
        place: Option<Place>,
        members: Vec<(WorkerId, Incarnation, Clock)>,
        started: bool,
    ) -> Result<(), HomeError> {
        let owner = match (self.shared.owner(shard), place) {
            (Some(owner), _) => owner,
            (None, None) => return Ok(()),
            (None, Some(_)) => self.begin(resolved, shard)?,
        };
        owner.set_place(place);
        let event = HostEvent::Place { place, members, started };
        // A shard without its thread says so itself, and that ends the run.
        let _ = owner.orders.send(Order::Host(event)).await;
        Ok(())
    }

    fn begin(&self, resolved: &Resolved, shard: ShardId) -> Result<Owner, HomeError> {
        let settings = host_settings(self.surroundings.server, &resolved.config, shard);
        let settings = settings.ok_or(HomeError::Unknown(shard))?;
        let tracer =
            self.traces.as_ref().map(|traces| traces.begin(shard, settings.shard.keys)).transpose()?;
        let started = Owner::start(settings, &self.surroundings, tracer);
        let (owner, thread) = started.map_err(|error| HomeError::Thread(shard, error))?;
        self.threads.add(thread);
        let mut owners = self.shared.owners.write().unwrap_or_else(PoisonError::into_inner);
        owners.insert(shard, owner.clone());
        Ok(owner)
    }

    /// Tells one shard, or all where none is named.
    pub(crate) async fn tell(&self, shard: Option<ShardId>, event: ShardEvent) {
        let owners = match shard {
            Some(shard) => self.shared.owner(shard).into_iter().collect(),
            None => self.shared.owners().into_iter().map(|(_, owner)| owner).collect::<Vec<_>>(),
        };
        for owner in owners {
            let _ = owner.orders.send(Order::Shard(event.clone())).await;
        }
    }
}
