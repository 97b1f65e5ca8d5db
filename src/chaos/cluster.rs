//! The processes of one run, each with links of its own to the servers, and what can be done to them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use slackline_chaos::plan::{What, Whom};
use slackline_chaos::relay::{Relay, Weather};
use slackline_chaos::schedule::Fault;
use slackline_core::config::Value;
use tokio::process::Command;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Duration, Instant};

use super::disk::Disk;
use crate::child::{Child, Told};
use crate::failure::Failure;

/// Folders and files of a run beside its results.
pub(super) const PUSHES: &str = "pushes";
const LOG: &str = "processes.log";
/// Traces of lives that are over.
pub(super) const OLD_TRACES: &str = "trace-of-earlier-lives";

/// Ends a process when this one is gone, however it went; part of util-linux. Servers that keep their state have no leash for that.
const WATCHDOG: &str = "/usr/bin/setpriv";

/// What a run is made from.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) file: PathBuf,
    pub(super) sets: Vec<String>,
    /// Folder of its results.
    pub(super) out: PathBuf,
    pub(super) keys: PathBuf,
    pub(super) workers: u32,
    pub(super) servers: u32,
    pub(super) seed: u64,
}

/// Who: one of the workers or servers.
pub(super) type Post = (Whom, u32);

#[derive(Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Killed on purpose, to be started again.
    Down,
    /// Ended by itself.
    Over,
}

/// A place that one process after the other takes.
#[derive(Debug)]
struct Seat {
    child: Child,
    /// The number of its life among those of all.
    number: usize,
    /// Lives before this one.
    lives: u32,
    state: State,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Cluster {
    site: Site,
    addresses: Vec<SocketAddr>,
    /// By whose link it is, and to which server.
    links: BTreeMap<(Post, u32), Relay>,
    disks: Vec<Disk>,
    seats: BTreeMap<Post, Seat>,
    /// Whose life each was.
    lives: Vec<Post>,
    sender: UnboundedSender<Told>,
    pub(super) told: UnboundedReceiver<Told>,
    log: File,
    began: Instant,
}

impl Cluster {
    /// Makes the folder anew, opens the links and starts all processes.
    pub(super) async fn start(site: Site) -> Result<Self, Failure> {
        let failed =
            |error: std::io::Error| Failure::world(format!("{} cannot be used: {error}", site.out.display()));
        let folders: Vec<PathBuf> =
            (0..site.servers).map(|server| site.out.join(format!("disk-{server}"))).collect();
        for folder in &folders {
            // One that an earlier command left mounted when it was killed.
            let mut umount = Command::new("umount");
            umount.arg("-l").arg(folder).stderr(std::process::Stdio::null());
            let _ = umount.status().await;
        }
        match std::fs::remove_dir_all(&site.out) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        std::fs::create_dir_all(site.out.join(PUSHES)).map_err(failed)?;
        let log = File::create(site.out.join(LOG)).map_err(failed)?;
        let disks = folders.into_iter().map(Disk::make).collect::<Result<_, _>>().map_err(failed)?;
        let no_port = |error| Failure::world(format!("no port on the loopback: {error}"));
        let addresses = free_addresses(site.servers).map_err(no_port)?;
        let mut links = BTreeMap::new();
        for (number, (post, server)) in ways(&site).into_iter().enumerate() {
            let seed = site.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
            let relay = Relay::open(addresses[server as usize], seed).await.map_err(no_port)?;
            links.insert((post, server), relay);
        }
        let (sender, told) = unbounded_channel();
        let (seats, lives, began) = (BTreeMap::new(), Vec::new(), Instant::now());
        let mut cluster = Self { site, addresses, links, disks, seats, lives, sender, told, log, began };
        for post in cluster.posts() {
            cluster.begin(post)?;
        }
        Ok(cluster)
    }

    fn posts(&self) -> Vec<Post> {
        let servers = (0..self.site.servers).map(|index| (Whom::Server, index));
        servers.chain((0..self.site.workers).map(|index| (Whom::Worker, index))).collect()
    }

    /// Starts a process in a seat that is empty or whose process has ended.
    pub(super) fn begin(&mut self, post: Post) -> Result<(), Failure> {
        let number = self.lives.len();
        let name = name_of(post);
        let lives = self.seats.get(&post).map_or(0, |seat| seat.lives + 1);
        if lives > 0 && post.0 == Whom::Server {
            self.keep_traces(post.1, lives);
        }
        let command = self.command(post, lives == 0)?;
        let child = Child::start(number, name.clone(), command, &self.sender)
            .map_err(|error| Failure::world(format!("{name} could not be started: {error}")))?;
        self.lives.push(post);
        self.seats.insert(post, Seat { child, number, lives, state: State::Running });
        Ok(())
    }

    fn command(&self, post: Post, is_first: bool) -> Result<Command, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::world(format!("the path of this program is unknown: {error}")))?;
        let (whom, index) = post;
        let Site { file, sets, out, keys, .. } = &self.site;
        let mut command = match whom {
            Whom::Server if Path::new(WATCHDOG).exists() => {
                let mut command = Command::new(WATCHDOG);
                command.args(["--pdeathsig", "KILL"]).arg(program);
                command
            }
            _ => Command::new(program),
        };
        command.arg(if whom == Whom::Server { "server" } else { "worker" }).arg(file);
        command.args(["--log", "info"]).arg("--out").arg(out).arg("--keys").arg(keys);
        let list = Value::List(self.addresses_of(post).map(Value::Text).collect());
        let text = |path: &Path| Value::Text(path.display().to_string());
        let mut own = vec![format!("cluster.addresses={list}"), "cluster.exit_when_done=true".to_owned()];
        if whom == Whom::Server {
            own.push(format!("cluster.state={}", text(self.disks[index as usize].folder())));
        }
        for set in sets.iter().chain(&own) {
            command.args(["--set", set]);
        }
        match whom {
            Whom::Server => {
                command.args(["--trace", "--index", &index.to_string()]);
                command.args(is_first.then_some("--fresh"));
            }
            Whom::Worker => {
                command.arg("--leash").arg("--push-log").arg(super::follow::log_of(&out.join(PUSHES), index));
            }
        }
        Ok(command)
    }

    /// Where a process dials each server: through its own link, and a server itself where it is.
    fn addresses_of(&self, post: Post) -> impl Iterator<Item = String> + '_ {
        self.addresses.iter().zip(0..).map(move |(address, server)| {
            self.links.get(&(post, server)).map_or(*address, |link| link.address).to_string()
        })
    }

    /// Puts the traces of a server's earlier life aside, which its next life would write over.
    fn keep_traces(&self, server: u32, life: u32) {
        let folder = self.site.out.join(OLD_TRACES);
        let prefix = format!("server-{server}-");
        let traces = std::fs::read_dir(self.site.out.join(slackline_core::trace::FOLDER));
        for path in traces.into_iter().flatten().flatten().map(|entry| entry.path()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(&prefix) {
                // A trace that is not kept is one less to be checked.
                let _ = std::fs::create_dir_all(&folder);
                let _ = std::fs::rename(&path, folder.join(format!("life-{life}-{name}")));
            }
        }
    }

    /// Takes in what a process has told; how one ended by itself, if it did.
    pub(super) fn hear(&mut self, told: Told) -> Option<(Post, std::io::Result<ExitStatus>, Option<String>)> {
        let (number, text) = match told {
            Told::Line(number, line) => (Some(number), line),
            Told::Log(line) => (None, line),
            Told::Ended(number, status) => return self.ended(number, status),
        };
        let name = number
            .and_then(|number| self.lives.get(number))
            .map_or_else(String::new, |post| format!("[{}] ", name_of(*post)));
        self.note(&format!("{name}{text}"));
        None
    }

    fn ended(
        &mut self,
        number: usize,
        status: std::io::Result<ExitStatus>,
    ) -> Option<(Post, std::io::Result<ExitStatus>, Option<String>)> {
        let post = *self.lives.get(number)?;
        let seat = self.seats.get_mut(&post).filter(|seat| seat.number == number)?;
        seat.child.ended = Some(status.as_ref().copied().unwrap_or_default());
        let words = seat.child.last_words();
        let is_own = seat.state == State::Running;
        if is_own {
            seat.state = State::Over;
        }
        self.note(&format!("[{}] ended: {status:?} {}", name_of(post), words.as_deref().unwrap_or("")));
        is_own.then_some((post, status, words))
    }

    /// Writes a line to the log of all processes.
    pub(super) fn note(&mut self, line: &str) {
        // It is for whoever looks for the cause of a verdict; a full disk must not end the run.
        let _ = writeln!(self.log, "{:9.3} {line}", self.began.elapsed().as_secs_f64());
    }

    /// Whether the process of a seat is there to be done something to.
    pub(super) fn is_running(&self, post: Post) -> bool {
        self.seats.get(&post).is_some_and(|seat| seat.state == State::Running)
    }

    /// Whether the coordinator has ended by itself.
    pub(super) fn has_ended(&self, post: Post) -> bool {
        self.seats.get(&post).is_some_and(|seat| seat.state == State::Over)
    }

    /// Those that still run.
    pub(super) fn running(&self) -> Vec<Post> {
        self.posts().into_iter().filter(|post| self.is_running(*post)).collect()
    }

    /// Lives before the present one.
    pub(super) fn lives(&self, post: Post) -> u32 {
        self.seats.get(&post).map_or(0, |seat| seat.lives)
    }

    pub(super) fn kill(&mut self, post: Post) {
        if let Some(seat) = self.seats.get_mut(&post) {
            seat.child.signal(Signal::SIGKILL);
            seat.state = State::Down;
        }
    }

    pub(super) fn signal(&self, post: Post, signal: Signal) {
        if let Some(seat) = self.seats.get(&post) {
            seat.child.signal(signal);
        }
    }

    pub(super) fn disk(&self, server: u32) -> Option<&Disk> {
        self.disks.get(server as usize).filter(|disk| disk.can_be_full())
    }

    /// Gives each link what all faults of now together do to it.
    pub(super) fn set_weather<'a>(&self, faults: impl Iterator<Item = &'a Fault> + Clone) {
        for ((post, server), relay) in &self.links {
            let mut weather = Weather::default();
            for fault in faults.clone() {
                let victim = (fault.whom, fault.index);
                if victim != *post && victim != (Whom::Server, *server) {
                    continue;
                }
                weather.is_cut |= fault.what == What::Cut;
                weather.loss = weather.loss.max(fault.share);
                weather.delay = weather.delay.max(Duration::from_secs_f64(fault.delay_s));
            }
            relay.link.set(weather);
        }
    }

    /// Tells all that still run to end, and waits a little for them. What is left is killed when this is dropped.
    pub(super) async fn end(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        for whom in [Whom::Worker, Whom::Server] {
            let posts: Vec<_> = self.running().into_iter().filter(|post| post.0 == whom).collect();
            for post in &posts {
                self.signal(*post, Signal::SIGCONT);
                self.signal(*post, Signal::SIGTERM);
            }
            while posts.iter().any(|post| self.is_running(*post)) {
                match tokio::time::timeout_at(deadline, self.told.recv()).await {
                    Ok(Some(told)) => drop(self.hear(told)),
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }
}

/// Every link: of each process to each server but itself.
fn ways(site: &Site) -> Vec<(Post, u32)> {
    let posts = (0..site.workers)
        .map(|index| (Whom::Worker, index))
        .chain((0..site.servers).map(|index| (Whom::Server, index)));
    posts
        .flat_map(|post| (0..site.servers).map(move |server| (post, server)))
        .filter(|(post, server)| *post != (Whom::Server, *server))
        .collect()
}

/// What a process is called.
pub(super) fn name_of((whom, index): Post) -> String {
    format!("{} {index}", if whom == Whom::Server { "server" } else { "worker" })
}

/// So many free addresses of the loopback. A server that comes back binds the same one again.
fn free_addresses(count: u32) -> std::io::Result<Vec<SocketAddr>> {
    let sockets =
        (0..count).map(|_| UdpSocket::bind(("127.0.0.1", 0))).collect::<std::io::Result<Vec<_>>>()?;
    sockets.iter().map(UdpSocket::local_addr).collect()
}
