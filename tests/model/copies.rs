//! One shard with two copies on two servers, three workers under a bound of 2: nothing that was acknowledged is lost, nothing counts twice,
//! the bound holds, only one server's effects count, and the run finishes.
//!
//! **Real:** [`Host`] with its [`Shard`](slackline_server_core::Shard): gate, window of pushes, journal, withholding, taking over. **Written
//! down here:** the coordinator, as the map of one shard with the rules of `control/cluster` (a backup in step is promoted with a new
//! generation; a primary goes on alone with a new generation; a server that comes back becomes the backup; a memory that nobody has any
//! more ends the run by name), leases as the actions [`Action::Suspect`] and [`Action::Remove`] that may happen at any time, workers as
//! pull, push, pull, push, which send again what is not answered when their session changes. **Left out:** time (the policy of the model
//! has no deadlines), the disk, requests that are under way (a request arrives when it is sent; answers that a crash overtakes are those
//! that the host had not let out), more than [`Variant::lag`] frames under way, other shards.

mod coordinator;
mod hosts;

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};

use slackline_core::config::{Durability, Steps};
use slackline_core::ids::{Generation, ServerId};
use slackline_core::wire::Place;
use slackline_server_core::replica::{Frame, Index};
use slackline_server_core::{Host, HostSettings};
use stateright::{Model, Property};

use crate::ledger::{Ledger, Print};

/// What may happen how often in one model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) ledger: Ledger,
    pub(crate) crashes: u8,
    pub(crate) suspicions: u8,
    pub(crate) removals: u8,
    pub(crate) reconnections: u8,
    pub(crate) losses: u8,
    /// It begins with a backup that is in step; otherwise, unless there is no lag, with one that has nothing yet.
    pub(crate) in_step: bool,
    /// Frames that may be under way; the sender's host goes on, the stream is slow.
    pub(crate) lag: usize,
}

/// The models that are checked.
pub(crate) fn variants(is_large: bool) -> Vec<Variant> {
    let three = |pushes, others| Ledger { workers: 3, pushes, others };
    let quiet = Variant {
        name: "",
        ledger: three(1, 1),
        crashes: 0,
        suspicions: 0,
        removals: 0,
        reconnections: 0,
        losses: 0,
        in_step: false,
        lag: 2,
    };
    let two = Ledger { workers: 2, pushes: 2, others: 1 };
    let equal = Variant { in_step: true, lag: 1, ..quiet };
    let mut all = vec![
        Variant {
            name: "the bound, and a worker that is removed",
            ledger: three(4, 2),
            removals: 1,
            lag: 0,
            ..quiet
        },
        Variant { name: "equal copies, a crash", ledger: two, crashes: 1, ..equal },
        Variant { name: "equal copies, a suspicion", ledger: two, suspicions: 1, ..equal },
        Variant { name: "three workers, equal copies, a crash", crashes: 1, ..equal },
        Variant {
            name: "copies that become equal, a crash",
            ledger: Ledger { pushes: 1, ..two },
            crashes: 1,
            ..quiet
        },
    ];
    if is_large {
        all.push(Variant { name: "three workers, equal copies, a suspicion", suspicions: 1, ..equal });
        all.push(Variant { name: "a crash", crashes: 1, ..quiet });
        all.push(Variant { name: "a suspicion", suspicions: 1, ..quiet });
        all.push(Variant { name: "three that are alike", ledger: three(4, 4), removals: 1, lag: 0, ..quiet });
        all.push(Variant {
            name: "a crash and a reconnection",
            crashes: 1,
            reconnections: 1,
            ledger: three(2, 1),
            ..quiet
        });
        all.push(Variant {
            name: "a suspicion and a removal",
            suspicions: 1,
            removals: 1,
            ledger: three(2, 1),
            ..quiet
        });
        all.push(Variant {
            name: "two crashes, a suspicion, a broken stream",
            crashes: 2,
            suspicions: 1,
            losses: 1,
            ledger: three(2, 1),
            ..quiet
        });
    }
    all
}

/// A way from a primary to its backup.
#[derive(Clone, Debug)]
struct Feed {
    generation: Generation,
    is_open: bool,
    /// It broke, and the primary does not know that yet.
    is_lost: bool,
    frames: VecDeque<Frame>,
    holds: VecDeque<(Generation, Index, Option<u64>)>,
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Pull,
    Push,
    Done,
    Removed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Worker {
    stage: Stage,
    /// Pushes that were answered.
    done: u64,
    /// The request of this stage was sent over the present session.
    has_sent: bool,
    session: u64,
    /// What was acknowledged to anybody, or read by anybody, when its request was sent.
    known: u64,
    /// The server that it takes for the primary.
    home: usize,
}

/// What a host keeps to itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Inside {
    /// What waits for the copy, as text.
    withheld: VecDeque<String>,
    /// The last acknowledgement that it has heard, and the last state that it has sent.
    heard: Option<(Generation, Index, Option<u64>)>,
    sent: Option<Index>,
}

/// Everything.
#[derive(Clone)]
pub(crate) struct State {
    hosts: [Option<Host>; 2],
    /// The map of the coordinator.
    place: Place,
    /// An order that a server has not had yet.
    orders: [Option<Place>; 2],
    /// The last order that it had.
    told: [Option<Place>; 2],
    /// What each server's shard has said and its host not let out, with what its host knows of its copy: beside its row and its shard
    /// this is what a host is.
    inside: [Inside; 2],
    /// By the server that sends.
    feeds: [Option<Feed>; 2],
    /// What primaries said of their backups.
    in_step: Option<(Generation, ServerId)>,
    workers: Vec<Worker>,
    /// The run has ended since a memory is gone that nobody else has.
    lost: bool,
    /// Pushes that some worker knows to be applied.
    acknowledged: u64,
    /// Pushes that some worker has seen in values.
    seen: u64,
    crashes: u8,
    suspicions: u8,
    removals: u8,
    reconnections: u8,
    losses: u8,
    /// What is wrong.
    broken: Option<String>,
}

/// What can happen next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A worker sends what it has to send.
    Send(usize),
    /// A worker hears where the shard is.
    Move(usize),
    /// A worker loses its connection and makes a new one.
    Reconnect(usize),
    /// The lease of a worker is over.
    Remove(usize),
    /// A server hears its latest order.
    Order(usize),
    /// The feed of a server opens.
    Open(usize),
    /// A server's feed breaks.
    Break(usize),
    /// A server learns that its feed is lost.
    Lose(usize),
    /// The first frame of a server's feed arrives.
    Deliver(usize),
    /// The first acknowledgement to a server arrives.
    Confirm(usize),
    /// The coordinator hears that a backup is in step.
    InStep,
    /// A server's process dies.
    Crash(usize),
    /// It comes back without its memory.
    Restart(usize),
    /// The coordinator takes the primary for dead although it lives.
    Suspect,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("hosts", &self.hosts.each_ref().map(|host| host.as_ref().map(Host::row)))
            .field("place", &self.place)
            .field("orders", &self.orders)
            .field("feeds", &self.feeds.each_ref().map(|feed| feed.as_ref().map(hosts::short)))
            .field("in_step", &self.in_step)
            .field("workers", &self.workers)
            .field("acknowledged", &format_args!("{:b}", self.acknowledged))
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut print = Print(state);
        for (host, feed) in self.hosts.iter().zip(&self.feeds) {
            let shard = host.as_ref().and_then(Host::shard);
            let facts = shard.map(|shard| (shard.state().hash(), shard.held().collect::<Vec<_>>()));
            let row = host.as_ref().map(Host::row);
            let _ = write!(print, "{row:?} {facts:?} {:?}", feed.as_ref().map(hosts::short));
        }
        let _ = write!(print, "{:?} {:?} {:?} {:?}", self.place, self.orders, self.told, self.in_step);
        self.inside.hash(state);
        self.workers.hash(state);
        (self.lost, self.acknowledged, self.seen, &self.broken).hash(state);
        (self.crashes, self.suspicions, self.removals, self.reconnections, self.losses).hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let print = |state: &Self| {
            let mut hasher = std::hash::DefaultHasher::new();
            state.hash(&mut hasher);
            hasher.finish()
        };
        print(self) == print(other)
    }
}

impl Variant {
    fn host(&self, server: usize) -> Host {
        let mut host = Host::new(HostSettings {
            server: ServerId(server as u32),
            shard: self.ledger.shard(0, Steps::Parts),
            durability: Durability::Replicated,
            replicas: 2,
        });
        host.trace();
        host
    }

    fn is_over(&self, state: &State) -> bool {
        let ended = |worker: &Worker| matches!(worker.stage, Stage::Done | Stage::Removed);
        state.lost || state.workers.iter().all(ended)
    }

    fn is_enabled(&self, state: &State, action: &Action) -> bool {
        let lives = |server: usize| state.hosts[server].is_some();
        let feed = |server: usize| state.feeds[server].as_ref();
        let worker = |worker: usize| &state.workers[worker];
        let is_active = |one: usize| matches!(worker(one).stage, Stage::Pull | Stage::Push);
        match *action {
            Action::Send(one) => {
                // A server that has not heard that it leads turns workers away, and they come again.
                let home = worker(one).home;
                let leads = state.told[home].is_some_and(|place| place.primary.0 as usize == home);
                is_active(one) && !worker(one).has_sent && lives(home) && leads
            }
            Action::Move(one) => is_active(one) && worker(one).home != state.place.primary.0 as usize,
            Action::Reconnect(one) => is_active(one) && worker(one).has_sent && state.reconnections > 0,
            Action::Remove(one) => is_active(one) && state.removals > 0,
            Action::Order(server) => lives(server) && state.orders[server].is_some(),
            Action::Open(server) => {
                // A server takes no stream but of the primary that it was told of, in the same generation.
                let told = state.told[1 - server].map(|place| (place.primary.0 as usize, place.generation));
                let opens =
                    |feed: &Feed| !feed.is_open && !feed.is_lost && told == Some((server, feed.generation));
                lives(server) && lives(1 - server) && feed(server).is_some_and(opens)
            }
            Action::Break(server) => {
                state.losses > 0 && feed(server).is_some_and(|feed| feed.is_open && !feed.is_lost)
            }
            Action::Lose(server) => lives(server) && feed(server).is_some_and(|feed| feed.is_lost),
            Action::Deliver(server) => {
                let waits = |feed: &Feed| !feed.is_lost && !feed.frames.is_empty();
                lives(1 - server) && feed(server).is_some_and(waits)
            }
            Action::Confirm(server) => {
                lives(server) && feed(server).is_some_and(|feed| !feed.holds.is_empty())
            }
            Action::InStep => state.in_step.is_some(),
            Action::Crash(server) => state.crashes > 0 && lives(server),
            Action::Restart(server) => !lives(server),
            Action::Suspect => {
                state.suspicions > 0 && state.place.backup.is_some_and(|backup| backup.in_step)
            }
        }
    }

    /// While so many frames are under way, nothing but the way between the copies moves.
    fn is_full(&self, state: &State) -> bool {
        let frames = |feed: &Option<Feed>| feed.as_ref().is_some_and(|feed| feed.frames.len() > self.lag);
        state.feeds.iter().any(frames)
    }
}

impl Model for Variant {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() || self.is_over(state) {
            return;
        }
        let servers = (0..2).flat_map(|server| {
            [
                Action::Order(server),
                Action::Open(server),
                Action::Break(server),
                Action::Lose(server),
                Action::Deliver(server),
                Action::Confirm(server),
                Action::Crash(server),
                Action::Restart(server),
            ]
        });
        let workers = (0..state.workers.len()).flat_map(|worker| {
            [Action::Send(worker), Action::Move(worker), Action::Reconnect(worker), Action::Remove(worker)]
        });
        let is_full = self.is_full(state);
        let workers = workers.filter(|_| !is_full);
        let all = servers.chain(workers).chain([Action::InStep, Action::Suspect]);
        actions.extend(all.filter(|action| self.is_enabled(state, action)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.act(&mut state, &action);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is lost, counted twice or read too early", |_, state: &State| {
                state.broken.is_none()
            }),
            Property::always("what is not over goes on", |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !actions.is_empty() || model.is_over(state) || state.broken.is_some()
            }),
            Property::eventually("the run is over", |model: &Self, state: &State| model.is_over(state)),
            Property::sometimes("a backup takes over and the run goes on", |model: &Self, state: &State| {
                let can = model.crashes + model.suspicions > 0;
                !can || (state.place.primary == ServerId(1) && model.is_over(state) && !state.lost)
            }),
        ]
    }
}
