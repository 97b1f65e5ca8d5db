//! A server from its options to its end: what it has on its disk, its threads, its loop.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slackline_checkpoint::Manifest;
use slackline_core::config::{Durability, Resolved};
use slackline_core::ids::{KeyRange, Moment, ServerId, ShardId};
use slackline_core::wire::Holding;
use slackline_net::{Identity, Listener, NetworkThread, Settings};
use slackline_server_core::assign::Position;
use slackline_server_core::control::StateError;
use slackline_server_core::{Control, ControlEffect, ControlEvent, ControlSettings};
use tokio::sync::{mpsc, watch};

use crate::daemon::{Daemon, EVENTS_MAX, Memory};
use crate::directory::Directory;
use crate::door::Unheard;
use crate::error::ServerError;
use crate::files::Results;
use crate::frames::Assembler;
use crate::home::{Home, Threads};
use crate::journal::{self, make_folders};
use crate::ledger::local::Local;
use crate::ledger::{Keep, Kept, Ledger, LedgerError};
use crate::links::{Addresses, Links};
use crate::parts::{all_shards, boot_number, buffers, control_settings};
use crate::performer::Surroundings;
use crate::processors::Processors;
use crate::saver::{self, Saver};
use crate::session::Shared;
use crate::signals::Signals;
use crate::words::Word;

/// In a server's state: where the checkpoint is that the run went on from, of which this is.
const RESUMED: &str = "resumed";

/// What a server is started with.
pub struct ServerOptions {
    /// Which server of the run.
    pub index: ServerId,
    /// The configuration of the run.
    pub resolved: Resolved,
    /// The address to bind.
    pub bind: SocketAddr,
    /// Where all servers of the run are.
    pub addresses: Addresses,
    /// Folder of the keys.
    pub keys: PathBuf,
    /// Folder of the results; used by the coordinator, and for traces.
    pub out: PathBuf,
    /// Whether each shard writes a trace.
    pub trace: bool,
    /// Whether what an earlier process or run has left is removed, and not gone on with.
    pub fresh: bool,
    /// The folder or URL of checkpoints that the run goes on from; empty for those that it makes itself.
    pub resume: Option<String>,
    /// What it keeps on its disk for another process of this server.
    pub keeps: Keeps,
    /// Told the address that was bound, once peers can connect.
    pub ready: Box<dyn FnOnce(SocketAddr) + Send>,
}

/// What a server keeps on its disk (journals, the coordinator's memory), for another process of it to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    Nothing,
    /// What another process of the same run can go on with; whoever started this one starts that. Nothing is left when it ends, unless it
    /// was told to go and nothing else has what is on its disk: that is removed by [`forget`].
    ForRun {
        /// Whether this is such another process.
        again: bool,
    },
    /// What any later process goes on with, until the run is over.
    ForAnyone,
}

impl Keeps {
    /// Whether this process goes on with what it finds.
    const fn goes_on(self) -> bool {
        matches!(self, Self::ForRun { again: true } | Self::ForAnyone)
    }
}

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The run is complete, or somebody with the right to said stop.
    Well,
    /// A signal ended it.
    Interrupted,
    /// It coordinated, and leads no more: another candidate does, or will.
    Deposed,
}

/// What lay on the disk.
#[derive(Default)]
pub(crate) struct Found {
    /// The run has begun, as far as it is this server's: it goes on with this, or as it is told.
    pub(crate) goes_on: bool,
    pub(crate) holds: Vec<Holding>,
    pub(crate) ledger: Option<Ledger>,
    pub(crate) kept: Option<Kept>,
}

/// The network of a server.
pub(crate) struct Ground {
    pub(crate) net: NetworkThread,
    pub(crate) identity: Identity,
    pub(crate) network: Settings,
    /// A socket that is bound already; none for one that is to be.
    pub(crate) listener: Option<Listener>,
    /// Turns true when this process may coordinate no more; none where nobody else could.
    pub(crate) lost: Option<watch::Receiver<bool>>,
    pub(crate) signals: Signals,
}

/// Runs a server until the run is over; blocks the calling thread.
///
/// # Errors
/// [`ServerError`]; nothing is left running.
pub fn serve(options: ServerOptions) -> Result<Ended, ServerError> {
    let signals = Signals::listen()?;
    let config = &options.resolved.config;
    if options.trace && config.sync.is_some() {
        return Err(ServerError::NothingToTrace);
    }
    let identity = Identity::load(&options.keys, slackline_net::Role::Server)?;
    let network = Settings::new(&config.transport, Duration::from_secs_f64(config.cluster.lease_s));
    let folder = state_folder(&options.resolved, &options.out, options.index);
    let found = find(&options, &folder)?;
    let net = NetworkThread::start(&format!("server {}", options.index.0))?;
    let ground = Ground { net, identity, network, listener: None, lost: None, signals };
    work(options, found, ground)
}

/// Runs a server with what was found of it, until the run is over or it leads no more.
///
/// # Errors
/// [`ServerError`].
pub(crate) fn work(
    mut options: ServerOptions,
    mut found: Found,
    mut ground: Ground,
) -> Result<Ended, ServerError> {
    let (keeps, signals) = (options.keeps, ground.signals.clone());
    let config = &options.resolved.config;
    let has_journals = config.cluster.durability == Durability::Disk && options.index != config.coordinator();
    let folder = state_folder(&options.resolved, &options.out, options.index);
    let ready = std::mem::replace(&mut options.ready, Box::new(|_| {}));
    let begun = begin(options, &mut found, &mut ground);
    let Ground { net, .. } = ground;
    let Begun { daemon, listener, events, words, threads, saver } = match begun {
        Ok(Some(begun)) => begun,
        nothing => {
            give_up(&net, found);
            return nothing.map(|_| Ended::Interrupted);
        }
    };
    ready(listener.local_address());
    let outcome = net.block_on(daemon.run(listener, events, words))?;
    net.stop();
    let panicked = threads.join();
    if let Some((saver, saving)) = saver {
        saver.end();
        // A store that hangs must not keep the process, nor a candidate from standing by: what it was given has no manifest.
        if !matches!(outcome, Ok(Ended::Interrupted | Ended::Deposed)) {
            signals.unless_told(move || drop(saving.join()))?;
        }
    }
    // What nothing else has: whoever starts another process in the place of one that was told to go removes it in the end.
    let is_awaited =
        has_journals && keeps != Keeps::Nothing && matches!(outcome, Ok(Ended::Interrupted)) && panicked == 0;
    if keeps != Keeps::ForAnyone
        && !is_awaited
        && let Err(error) = journal::forget(&folder)
    {
        tracing::warn!("{} cannot be removed: {error}", folder.display());
    }
    match outcome {
        Ok(_) if panicked > 0 => {
            Err(ServerError::Run("a shard's thread panicked; see the log above".to_owned()))
        }
        outcome => outcome,
    }
}

/// Where it cannot begin, somebody else may: what was won with the memory is given back at once.
fn give_up(net: &NetworkThread, found: Found) {
    if let Some(ledger) = found.ledger {
        // An etcd that does not hear it lets the leadership go when nobody renews it.
        let _ = net.block_on(ledger.close());
    }
}

/// A server that has all it needs.
struct Begun {
    daemon: Daemon,
    listener: Listener,
    events: mpsc::Receiver<ControlEvent>,
    words: mpsc::UnboundedReceiver<Word>,
    threads: Threads,
    saver: Option<(Saver, JoinHandle<()>)>,
}

/// Reads what it goes on with and makes what it consists of. None where a signal came first. The ledger is taken when nothing can fail any more.
fn begin(
    options: ServerOptions,
    found: &mut Found,
    ground: &mut Ground,
) -> Result<Option<Begun>, ServerError> {
    let Ground { net, identity, network, listener, lost, signals } = ground;
    let config = &options.resolved.config;
    let lease = Duration::from_secs_f64(config.cluster.lease_s);
    let folder = state_folder(&options.resolved, &options.out, options.index);
    let coordinates = options.index == config.coordinator();
    let at = checkpoints_at(&options.resolved, &options.out);
    let from = options.resume.as_ref().map(|from| from_of(from, at.as_deref())).transpose()?;
    let was_kept = found.kept.as_ref().is_some_and(Kept::is_begun);
    let look = {
        let (resolved, at, fresh) = (options.resolved.clone(), at.clone(), options.fresh);
        let at = at.filter(|_| coordinates && !was_kept);
        // Whoever goes on with what it has needs nothing of where the run once went on, which may be gone by now.
        let from = from.clone().filter(|_| !found.goes_on);
        move || look_at_checkpoints(&resolved, at.as_deref(), from.as_deref(), fresh)
    };
    let Some(resumed) = signals.unless_told(look)?.transpose()? else { return Ok(None) };
    if options.resume.is_some() && found.goes_on && coordinates && options.keeps == Keeps::ForAnyone {
        tracing::warn!(
            "the run goes on with what its servers have left; --fresh --resume at all of them goes back to the checkpoint"
        );
    }
    let (is_candidate, marked_from) = (lost.is_some(), from.clone());
    let goes_on = was_kept || resumed.is_some();
    let (listener, links) = {
        let _within = net.handle().enter();
        let links = Links::new(identity, network, options.addresses.clone(), lease)?;
        let bind = || Listener::bind(options.bind, identity, network);
        (listener.take().map_or_else(bind, Ok)?, Arc::new(links))
    };
    if config.servers > 1 && config.sync.is_none() && options.addresses.are_missing() {
        return Err(ServerError::NoAddresses(config.servers));
    }
    let began = Instant::now();
    let (word_sender, words) = mpsc::unbounded_channel();
    let settings = control_settings(options.index, &options.resolved, boot_number(began));
    let stands = resumed.as_ref().is_some_and(|manifest| stands(&options.out, manifest));
    let machine = control_of(settings, found, resumed)?;
    let results = match (coordinates, goes_on) {
        (true, true) if stands => {
            tracing::warn!(
                "the run was complete before: its results in {} stay as they are",
                options.out.display()
            );
            Some(Results::standing(&options.out))
        }
        (true, true) => Some(Results::go_on(&options.out, &options.resolved.to_toml(), machine.0.run())?),
        (true, false) => Some(Results::begin(&options.out, &options.resolved.to_toml(), machine.0.run())?),
        (false, _) => None,
    };
    let saver = match at.or_else(|| from.clone()) {
        Some(at) => Some(Saver::start(&options.resolved, at, from, word_sender.clone())?),
        None => None,
    };
    let all = all_shards(config);
    let surroundings = Arc::new(Surroundings {
        server: options.index,
        config_hash: options.resolved.hash(),
        began,
        directory: Arc::new(Directory::new(all.len())),
        buffers: buffers(&all),
        words: word_sender,
        runtime: net.handle().clone(),
        links,
        lease,
        journals: folder,
        disk: Arc::new(journal::Real),
        saver: saver.as_ref().map(|(saver, _)| saver.clone()),
        processors: if config.cluster.pin_threads {
            Processors::of_this_process()
        } else {
            Processors::default()
        },
    });
    let (control, events) = mpsc::channel(EVENTS_MAX);
    let shared = Arc::new(Shared {
        directory: surroundings.directory.clone(),
        owners: RwLock::default(),
        control,
        network: *network,
        config_hash: surroundings.config_hash,
        payload_max: payload_max(all.values().map(|settings| settings.keys)),
        standstill: watch::Sender::default(),
        unheard: Unheard::default(),
    });
    if let Some(mut ledger) = found.ledger.take() {
        let snapshot = machine.0.state().map_err(|error| ServerError::Resume(error.to_string()))?;
        let keep = async move {
            let outcome = ledger.keep(Keep::Snapshot(&snapshot)).await;
            (ledger, outcome)
        };
        let (ledger, outcome) = net.block_on(keep)?;
        found.ledger = Some(ledger);
        outcome?;
    }
    if !is_candidate && options.keeps != Keeps::Nothing {
        mark(&surroundings.journals, marked_from.as_deref(), found.goes_on)
            .map_err(|source| crate::files::FileError::new(&surroundings.journals, source))?;
    }
    if let (Some((saver, _)), Some(run)) = (&saver, machine.0.run()) {
        saver.belongs_to(run, machine.0.resumed());
    }
    let ServerOptions { resolved, out, trace, .. } = options;
    let home = Home::new(&resolved, shared, surroundings, trace.then_some(out));
    let threads = home.threads();
    let memory = Memory::new(found.ledger.take(), lost.take());
    let daemon = Daemon::new(machine, resolved, identity.clone(), home, results, memory, signals.clone());
    Ok(Some(Begun { daemon, listener, events, words, threads, saver }))
}

/// Marks a state as that of a run that went on `from` a checkpoint, or of one that did not, once nothing can be refused any more.
fn mark(folder: &Path, from: Option<&str>, goes_on: bool) -> std::io::Result<()> {
    let path = folder.join(RESUMED);
    match from {
        Some(from) => make_folders(folder).and_then(|()| std::fs::write(path, from)),
        None if goes_on => Ok(()),
        None => match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

/// The checkpoint that the run goes on from, if it does. Those in the place `at`, where the run is to make its own, must not be later, and
/// those of another run are cleared or refused; none where the run has its memory.
fn look_at_checkpoints(
    resolved: &Resolved,
    at: Option<&str>,
    from: Option<&str>,
    fresh: bool,
) -> Result<Option<Manifest>, ServerError> {
    let resumed = from.map(|from| saver::resume(from, resolved)).transpose();
    let resumed = resumed.map_err(|error| ServerError::Resume(error.to_string()))?;
    match (at, &resumed) {
        (Some(at), Some(resumed)) => saver::may_follow(at, resumed, resolved),
        (Some(at), None) => saver::clear(at, fresh),
        (None, _) => Ok(()),
    }
    .map_err(ServerError::Resume)?;
    Ok(resumed)
}

/// Removes what a server keeps of a run on its disk.
///
/// # Errors
/// What the system says; that there is nothing is none.
pub fn forget(resolved: &Resolved, out: &Path, index: ServerId) -> std::io::Result<()> {
    journal::forget(&state_folder(resolved, out, index))
}

/// Where a server keeps its own state.
fn state_folder(resolved: &Resolved, out: &Path, index: ServerId) -> PathBuf {
    let state = resolved.config.cluster.state.as_ref().map_or_else(|| out.join("state"), PathBuf::from);
    state.join(format!("server-{}", index.0))
}

/// Where the run's checkpoints are; none where there will be none.
fn checkpoints_at(resolved: &Resolved, out: &Path) -> Option<String> {
    let checkpoint = &resolved.config.checkpoint;
    let at = checkpoint.at.clone().unwrap_or_else(|| out.join(saver::FOLDER).display().to_string());
    (checkpoint.every.is_some() && resolved.config.sync.is_none()).then_some(at)
}

/// Where the checkpoint is that a run goes on from.
fn from_of(from: &str, at: Option<&str>) -> Result<String, ServerError> {
    match (from, at) {
        ("", Some(at)) => Ok(at.to_owned()),
        ("", None) => Err(ServerError::Resume("say where the checkpoints are: --resume DIR".to_owned())),
        (from, _) => Ok(from.to_owned()),
    }
}

/// What an earlier process has left; removed first where it is not wanted. A run that goes on from a checkpoint has no use for what lies there
/// from before it, and every use for what its own processes have left: a server that is started again by the same command is one of those.
fn find(options: &ServerOptions, folder: &Path) -> Result<Found, ServerError> {
    let config = &options.resolved.config;
    let is_again = options.keeps == Keeps::ForRun { again: true };
    let at = checkpoints_at(&options.resolved, &options.out);
    let from = options.resume.as_ref().map(|from| from_of(from, at.as_deref())).transpose()?;
    let marked = std::fs::read_to_string(folder.join(RESUMED)).ok();
    let is_older = from.is_some() && !is_again && marked.is_none();
    if options.fresh || !options.keeps.goes_on() || is_older {
        journal::forget(folder).map_err(|source| crate::files::FileError::new(folder, source))?;
    } else if let (Some(from), Some(marked), false) = (&from, &marked, is_again)
        && from != marked
    {
        return Err(ServerError::Resume(format!(
            "{} has the state of a run that went on from {marked}: go on with that by --resume {marked}, or from {from} by --fresh --resume {from}",
            folder.display()
        )));
    }
    let on_disk = config.cluster.durability == Durability::Disk;
    let mut holds = Vec::new();
    for (shard, found) in if on_disk { journal::find(folder)? } else { BTreeMap::new() } {
        if found.opening.config_hash != options.resolved.hash() {
            return Err(LedgerError::OtherRun { path: folder.to_owned() }.into());
        }
        holds.push(Holding { shard, generation: found.opening.generation, is_whole: true, on_disk: true });
    }
    let keeps =
        options.index == config.coordinator() && options.keeps != Keeps::Nothing && config.sync.is_none();
    let (ledger, kept) = match keeps {
        true => {
            let stamp = options.resolved.hash().to_le_bytes();
            let (ledger, kept) = Local::open(folder, &stamp, on_disk)?;
            (Some(Ledger::Local(ledger)), kept)
        }
        false => (None, None),
    };
    let coordinates = options.index == config.coordinator();
    let goes_on = goes_on(coordinates.then_some(kept.as_ref()), is_again || !holds.is_empty());
    Ok(Found { goes_on, holds, ledger, kept })
}

/// Whether the run has begun: by what the coordinator has `kept`, where this is its server, and else by whether another process was here. A
/// coordinator that was killed before its first snapshot has told nobody anything, and reads anew where the run goes on.
fn goes_on(kept: Option<Option<&Kept>>, was_here: bool) -> bool {
    kept.map_or(was_here, |kept| kept.is_some_and(Kept::is_begun))
}

/// Control, as it begins or goes on, and what it asks for at once.
fn control_of(
    mut settings: ControlSettings,
    found: &mut Found,
    from: Option<Manifest>,
) -> Result<(Control, Vec<ControlEffect>), ServerError> {
    settings.disk = std::mem::take(&mut found.holds);
    if let Some(coordinator) = &mut settings.coordinator {
        coordinator.keeps_map = found.ledger.is_some();
        coordinator.resume = from.map(position_of).transpose()?;
    }
    let failed = |error: StateError| ServerError::Resume(error.to_string());
    let mut effects = Vec::new();
    let control = match found.kept.take() {
        // A process that was killed before its first snapshot has told nobody anything.
        Some(Kept { snapshot: Some(snapshot), events }) => {
            Control::restore(settings, &snapshot, events, Moment(0), &mut effects).map_err(failed)?
        }
        _ => Control::new(settings, Moment(0)),
    };
    Ok((control, effects))
}

/// Whether the run of this checkpoint is complete and has its results in the folder: then nothing is left to be done, and whoever goes on
/// with it all the same writes no others.
#[must_use]
pub fn stands(out: &Path, manifest: &Manifest) -> bool {
    let is_complete = |position: Position| {
        position.evaluations.iter().any(|evaluation| evaluation.samples == position.sample_total)
    };
    position_of(manifest.clone()).is_ok_and(is_complete)
        && crate::files::has_summary(out, manifest.stamp.run.0)
}

/// Where the data stand in a checkpoint.
fn position_of(manifest: Manifest) -> Result<Position, ServerError> {
    let number = manifest.number;
    let position: Position = serde_json::from_value(manifest.coordinator).map_err(|error| {
        ServerError::Resume(format!("checkpoint {number} does not say where the data stand: {error}"))
    })?;
    Ok(Position { run: manifest.stamp.run.0, ..position })
}

/// Bytes of the largest payload of a log.
fn payload_max(keys: impl Iterator<Item = KeyRange>) -> u64 {
    keys.map(|keys| Assembler::new(ShardId(0), keys).payload_max()).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Found by reading: killed before it had kept anything, the coordinator of a resumed run began its data anew.
    #[test]
    fn a_coordinator_goes_on_with_a_snapshot_only_and_the_others_with_what_they_find() {
        let begun = Kept { snapshot: Some(Vec::new()), ..Kept::default() };
        for was_here in [false, true] {
            assert!(!goes_on(Some(None), was_here) && !goes_on(Some(Some(&Kept::default())), was_here));
            assert!(goes_on(Some(Some(&begun)), was_here));
            assert_eq!(goes_on(None, was_here), was_here);
        }
    }
}
