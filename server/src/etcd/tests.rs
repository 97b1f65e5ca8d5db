//! Leaders and their rows in a real etcd. Where none is installed, the tests say so and have nothing to show.

use std::cell::RefCell;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use slackline_core::config::Etcd;
use slackline_core::ids::Moment;
use slackline_server_core::ControlEvent;
use tempfile::TempDir;

use super::caller::Caller;
use super::leadership::{Campaign, Leadership};
use super::protocol::{RANGE, RangeRequest, RangeResponse, RequestOp, TXN, TxnRequest, TxnResponse};
use super::{EtcdError, Rows, Store};
use crate::ledger::{Keep, Kept, LedgerError};

const LASTS: Duration = Duration::from_secs(2);

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// An etcd of its own, which ends with the test.
struct Server {
    process: RefCell<Child>,
    folder: TempDir,
    ports: [u16; 2],
    /// Where its keys are; none where it speaks without TLS.
    keys: Option<PathBuf>,
}

impl Server {
    fn start() -> Option<Self> {
        Self::start_with(None)
    }

    fn start_with(keys: Option<PathBuf>) -> Option<Self> {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (folder, ports) = (tempfile::tempdir().unwrap(), [free(), free()]);
        match launch(&folder, ports, keys.as_deref()) {
            Ok(process) => Some(Self { process: RefCell::new(process), folder, ports, keys }),
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && std::env::var_os("SLACKLINE_ETCD").is_none_or(|said| said != "required") =>
            {
                // Not by a macro: what those print is kept back where a test passes.
                let _ = writeln!(
                    io::stderr(),
                    "etcd is not installed (Debian: etcd-server): nothing is tested here"
                );
                None
            }
            Err(error) => panic!("etcd cannot be started: {error}"),
        }
    }

    fn kill(&mut self) {
        let process = self.process.get_mut();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn start_again(&mut self) {
        *self.process.get_mut() = launch(&self.folder, self.ports, self.keys.as_deref()).unwrap();
    }

    /// One more attempt may be made: it still runs, and there is time.
    async fn again(&self, since: Instant) {
        let ended = self.process.borrow_mut().try_wait().unwrap();
        assert!(ended.is_none(), "etcd has ended: {ended:?}");
        assert!(since.elapsed() < PATIENCE, "etcd does not do what it is asked");
        tokio::task::yield_now().await;
    }

    fn caller(&self) -> Caller {
        self.caller_with(self.keys.as_deref())
    }

    fn caller_with(&self, keys: Option<&Path>) -> Caller {
        let keys = keys.map(|keys| keys.display().to_string());
        let endpoints = vec![format!("127.0.0.1:{}", self.ports[0])];
        let etcd = Etcd { endpoints, prefix: "test".to_owned(), keys };
        Caller::new(&etcd, Duration::from_secs(1)).unwrap()
    }
}

fn launch(folder: &TempDir, [client, peer]: [u16; 2], keys: Option<&Path>) -> io::Result<Child> {
    let at = |port: u16| format!("http://127.0.0.1:{port}");
    let mut command = Command::new("etcd");
    command.args(["--name", "test", "--data-dir"]).arg(folder.path().join("data"));
    let scheme = if keys.is_some() { "https" } else { "http" };
    let to_clients = format!("{scheme}://127.0.0.1:{client}");
    command.args(["--listen-client-urls", &to_clients, "--advertise-client-urls", &to_clients]);
    if let Some(keys) = keys {
        let files =
            [("--trusted-ca-file", "ca.pem"), ("--cert-file", "server.pem"), ("--key-file", "server.key")];
        files.iter().for_each(|(option, file)| _ = command.arg(option).arg(keys.join(file)));
        command.args(["--client-cert-auth", "--client-cert-allowed-hostname", "server.slackline"]);
    }
    command.args(["--listen-peer-urls", &at(peer), "--initial-advertise-peer-urls", &at(peer)]);
    command.args(["--initial-cluster", &format!("test={}", at(peer))]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where the candidates of a cluster are.
fn own() -> Vec<String> {
    ["a:1", "b:1"].map(str::to_owned).to_vec()
}

fn rows() -> Rows {
    Rows::new("test", 7)
}

/// Campaigns until it is won; etcd needs a moment to begin.
async fn lead(server: &Server, name: &str) -> Leadership {
    let since = Instant::now();
    loop {
        if let Ok(Campaign::Won(leadership)) =
            Leadership::campaign(server.caller(), &rows(), (name, LASTS), over(server).await).await
        {
            return leadership;
        }
        server.again(since).await;
    }
}

/// The revision of the row `over`; 0 where there is none, or etcd does not answer.
async fn over(server: &Server) -> i64 {
    let found = server.caller().call(RANGE, &RangeRequest::key(&rows().over())).await;
    found.map_or(0, |found: RangeResponse| found.kvs.first().map_or(0, |row| row.mod_revision))
}

async fn open(server: &Server, leadership: Leadership) -> (Store, Option<Kept>) {
    Store::open(server.caller(), rows(), own(), leadership).await.unwrap()
}

fn events(numbers: std::ops::Range<u64>) -> Vec<(Moment, ControlEvent)> {
    numbers.map(|number| (Moment(number), ControlEvent::Persisted { number })).collect()
}

#[tokio::test]
async fn whoever_leads_next_finds_all_that_was_kept() {
    let Some(server) = Server::start() else { return };
    let (mut store, kept) = open(&server, lead(&server, "a").await).await;
    assert!(kept.is_none());
    // Longer than one value, so that it goes in pieces.
    let snapshot: Vec<u8> = (0..1_300_000_u32).map(|byte| byte as u8).collect();
    store.keep(Keep::Snapshot(&snapshot)).await.unwrap();
    store.keep(Keep::Events(&events(0..3))).await.unwrap();
    store.keep(Keep::Map(b"a map")).await.unwrap();
    store.keep(Keep::Events(&events(3..100_000))).await.unwrap();
    Box::new(store).close().await;
    let (mut store, kept) = open(&server, lead(&server, "b").await).await;
    let kept = kept.unwrap();
    assert!(kept.snapshot.as_ref() == Some(&snapshot) && kept.events == events(0..100_000));
    assert!(store.is_long(), "a snapshot is due");
    store.keep(Keep::Snapshot(b"short")).await.unwrap();
    assert!(!store.is_long());
    store.keep(Keep::Events(&events(7..8))).await.unwrap();
    Box::new(store).close().await;
    let (store, kept) = open(&server, lead(&server, "c").await).await;
    let kept = kept.unwrap();
    assert_eq!((kept.snapshot.as_deref(), kept.events), (Some(&b"short"[..]), events(7..8)));
    let mut store = Box::new(store);
    store.end("over", true).await.unwrap();
    store.close().await;
    let (_store, kept) = open(&server, lead(&server, "d").await).await;
    assert!(kept.is_none(), "what nobody goes on with is gone");
}

#[tokio::test]
async fn there_is_one_leader_and_a_deposed_one_can_write_nothing() {
    let Some(server) = Server::start() else { return };
    let former = lead(&server, "former").await;
    let campaign = Leadership::campaign(server.caller(), &rows(), ("later", LASTS), 0).await.unwrap();
    assert!(matches!(campaign, Campaign::Led(name) if name == "former"));
    let lost = former.lost();
    let (mut store, _) = open(&server, former).await;
    store.keep(Keep::Snapshot(b"state")).await.unwrap();
    store.keep(Keep::Events(&events(0..1))).await.unwrap();
    store.freeze();
    // Nobody renews it: it is gone when its time is over, and not before anybody could know.
    let (mut next, kept) = open(&server, lead(&server, "later").await).await;
    assert_eq!(kept.unwrap().events, events(0..1));
    for _ in 0..2 {
        let error = store.keep(Keep::Events(&events(1..2))).await.unwrap_err();
        assert!(matches!(error, LedgerError::Deposed), "{error}");
    }
    assert!(lost.has_changed().is_err(), "whoever renewed it is gone");
    next.keep(Keep::Events(&events(5..6))).await.unwrap();
    Box::new(next).close().await;
    let (_store, kept) = open(&server, lead(&server, "last").await).await;
    let expected = [events(0..1), events(5..6)].concat();
    assert_eq!(kept.unwrap().events, expected, "nothing of the deposed one is there");
}

// Found by reading: a candidate that looked just before the leader ended the run, and campaigned just after it, began the run anew.
#[tokio::test]
async fn a_run_that_ended_since_a_candidate_looked_is_not_begun_anew_by_it() {
    let Some(server) = Server::start() else { return };
    let (mut store, _) = open(&server, lead(&server, "a").await).await;
    store.keep(Keep::Snapshot(b"state")).await.unwrap();
    let seen = over(&server).await;
    store.end("the run is complete", true).await.unwrap();
    let campaign =
        async |seen| Leadership::campaign(server.caller(), &rows(), ("b", LASTS), seen).await.unwrap();
    // It leads until it has told the servers.
    assert!(matches!(campaign(over(&server).await).await, Campaign::Led(by) if by == "a"));
    store.say_told().await.unwrap();
    Box::new(store).close().await;
    assert!(matches!(campaign(seen).await, Campaign::Changed));
    assert!(matches!(campaign(over(&server).await).await, Campaign::Won(_)));
}

// Found by reading: while nobody led, another cluster with the same configuration went on with the run of the first one.
#[tokio::test]
async fn what_another_cluster_has_left_is_told_apart_while_nobody_leads() {
    let Some(server) = Server::start() else { return };
    let (mut store, _) = open(&server, lead(&server, "a").await).await;
    store.keep(Keep::Snapshot(b"state")).await.unwrap();
    Box::new(store).close().await;
    let open = async |at: &[&str], name| {
        let coordinators = at.iter().map(|at| (*at).to_owned()).collect();
        Store::open(server.caller(), rows(), coordinators, lead(&server, name).await).await
    };
    let refused = open(&["c:1", "d:1"], "other").await.unwrap_err();
    assert!(refused.is_users() && refused.to_string().contains("at a:1 or b:1, which"), "{refused}");
    // One candidate has moved, and then the other one.
    for coordinators in [["a:1", "e:1"], ["f:1", "e:1"]] {
        let (mut store, kept) = open(&coordinators, "moved").await.unwrap();
        assert_eq!(kept.unwrap().snapshot.as_deref(), Some(&b"state"[..]));
        store.keep(Keep::Snapshot(b"state")).await.unwrap();
        Box::new(store).close().await;
    }
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_there_once() {
    let Some(mut server) = Server::start() else { return };
    let (mut store, _) = open(&server, lead(&server, "a").await).await;
    store.keep(Keep::Snapshot(b"state")).await.unwrap();
    store.keep(Keep::Events(&events(0..1))).await.unwrap();
    store.forget_answer(&events(0..1));
    store.keep(Keep::Events(&events(0..1))).await.unwrap();
    server.kill();
    let error = store.keep(Keep::Events(&events(1..2))).await.unwrap_err();
    assert!(error.to_string().contains("etcd at 127.0.0.1:"), "{error}");
    server.start_again();
    let since = Instant::now();
    while store.keep(Keep::Events(&events(1..2))).await.is_err() {
        server.again(since).await;
    }
    Box::new(store).close().await;
    let (_store, kept) = open(&server, lead(&server, "b").await).await;
    assert_eq!(kept.unwrap().events, events(0..2));
}

#[tokio::test]
async fn a_leader_whose_etcd_is_gone_knows_that_it_leads_no_more() {
    let Some(mut server) = Server::start() else { return };
    let leadership = lead(&server, "a").await;
    let mut lost = leadership.lost();
    server.kill();
    tokio::time::timeout(PATIENCE, lost.wait_for(|lost| *lost)).await.unwrap().unwrap();
}

#[tokio::test]
async fn only_servers_of_the_cluster_are_let_in_where_etcd_has_keys_of_slackline() {
    let (keys, others, worker) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [keys.path(), others.path()] {
        slackline_net::keys::init(&folder.join("keys")).unwrap();
    }
    let at = |folder: &TempDir| folder.path().join("keys");
    let Some(server) = Server::start_with(Some(at(&keys))) else { return };
    let (mut store, _) = open(&server, lead(&server, "a").await).await;
    store.keep(Keep::Snapshot(b"state")).await.unwrap();
    // A worker of the same cluster that passes its certificate off as that of a server.
    fs::create_dir(at(&worker)).unwrap();
    for (from, to) in [("ca.pem", "ca.pem"), ("worker.pem", "server.pem"), ("worker.key", "server.key")] {
        fs::copy(at(&keys).join(from), at(&worker).join(to)).unwrap();
    }
    for folder in [None, Some(at(&others)), Some(at(&worker))] {
        let caller = server.caller_with(folder.as_deref());
        let refused = Leadership::campaign(caller, &rows(), ("b", LASTS), 0).await.unwrap_err();
        assert!(matches!(refused, EtcdError::Call { .. }), "{refused}");
    }
    Box::new(store).close().await;
}

#[tokio::test]
async fn a_row_that_is_damaged_or_of_another_program_is_refused_by_its_name() {
    let Some(server) = Server::start() else { return };
    let (mut store, _) = open(&server, lead(&server, "a").await).await;
    store.keep(Keep::Snapshot(b"state")).await.unwrap();
    store.keep(Keep::Events(&events(0..1))).await.unwrap();
    store.keep(Keep::Events(&events(1..2))).await.unwrap();
    Box::new(store).close().await;
    let rows = rows();
    for key in [rows.event(0), rows.event(1), rows.piece(0, 0), rows.snapshot(), rows.head()] {
        let mut caller = server.caller();
        let read = RangeRequest::key(&key);
        let found: RangeResponse = caller.call(RANGE, &read).await.unwrap();
        let value = found.kvs[0].value.clone();
        let mut rotten = value.clone();
        rotten[value.len() - 1] ^= 0x80;
        put(&server, &key, rotten).await;
        let refused =
            Store::open(server.caller(), rows.clone(), own(), lead(&server, "b").await).await.unwrap_err();
        // A snapshot is named as a whole.
        let name = key.strip_suffix("000000").unwrap_or(&key);
        assert!(refused.to_string().contains(name), "{key}: {refused}");
        put(&server, &key, value.clone()).await;
    }
    let (_store, kept) = open(&server, lead(&server, "c").await).await;
    assert_eq!(kept.unwrap().events, events(0..2));
}

/// Writes a row as nobody who leads does.
async fn put(server: &Server, key: &str, value: Vec<u8>) {
    let write =
        TxnRequest { compare: Vec::new(), success: vec![RequestOp::put(key, value, 0)], failure: Vec::new() };
    let done: TxnResponse = server.caller().call(TXN, &write).await.unwrap();
    assert!(done.succeeded);
}
