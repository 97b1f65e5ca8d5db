//! Leaders and their rows in a real etcd. Where none is installed, the tests say so and have nothing to show.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use slackline_core::config::Etcd;
use slackline_core::ids::Moment;
use slackline_server_core::ControlEvent;
use tempfile::TempDir;

use super::caller::Caller;
use super::leadership::{Campaign, Leadership};
use super::{Rows, Store};
use crate::ledger::{Keep, Kept, LedgerError};

const LASTS: Duration = Duration::from_secs(2);

/// An etcd of its own, which ends with the test.
struct Server {
    process: Child,
    folder: TempDir,
    ports: [u16; 2],
}

impl Server {
    fn start() -> Option<Self> {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (folder, ports) = (tempfile::tempdir().unwrap(), [free(), free()]);
        match launch(&folder, ports) {
            Some(process) => Some(Self { process, folder, ports }),
            None => {
                println!("etcd is not installed (Debian: etcd-server): nothing is tested here");
                None
            }
        }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.process = launch(&self.folder, self.ports).unwrap();
    }

    fn caller(&self) -> Caller {
        let endpoints = vec![format!("127.0.0.1:{}", self.ports[0])];
        let etcd = Etcd { endpoints, prefix: "test".to_owned(), keys: None };
        Caller::new(&etcd, Duration::from_secs(1)).unwrap()
    }
}

fn launch(folder: &TempDir, [client, peer]: [u16; 2]) -> Option<Child> {
    let at = |port: u16| format!("http://127.0.0.1:{port}");
    let mut command = Command::new("etcd");
    command.args(["--name", "test", "--data-dir"]).arg(folder.path().join("data"));
    command.args(["--listen-client-urls", &at(client), "--advertise-client-urls", &at(client)]);
    command.args(["--listen-peer-urls", &at(peer), "--initial-advertise-peer-urls", &at(peer)]);
    command.args(["--initial-cluster", &format!("test={}", at(peer))]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn rows() -> Rows {
    Rows::new("test", 7)
}

/// Campaigns until it is won; etcd needs a moment to begin.
async fn lead(server: &Server, name: &str) -> Leadership {
    loop {
        if let Ok(Campaign::Won(leadership)) =
            Leadership::campaign(server.caller(), &rows(), name, LASTS).await
        {
            return leadership;
        }
        tokio::task::yield_now().await;
    }
}

async fn open(server: &Server, leadership: Leadership) -> (Store, Option<Kept>) {
    Store::open(server.caller(), rows(), leadership).await.unwrap()
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
    Box::new(store).close(None, false).await.unwrap();
    let (mut store, kept) = open(&server, lead(&server, "b").await).await;
    let kept = kept.unwrap();
    assert!(kept.snapshot.as_ref() == Some(&snapshot) && kept.events == events(0..100_000));
    assert!(store.is_long(), "a snapshot is due");
    store.keep(Keep::Snapshot(b"short")).await.unwrap();
    assert!(!store.is_long());
    store.keep(Keep::Events(&events(7..8))).await.unwrap();
    Box::new(store).close(None, false).await.unwrap();
    let (store, kept) = open(&server, lead(&server, "c").await).await;
    let kept = kept.unwrap();
    assert_eq!((kept.snapshot.as_deref(), kept.events), (Some(&b"short"[..]), events(7..8)));
    Box::new(store).close(Some("over"), true).await.unwrap();
    let (_store, kept) = open(&server, lead(&server, "d").await).await;
    assert!(kept.is_none(), "what nobody goes on with is gone");
}

#[tokio::test]
async fn there_is_one_leader_and_a_deposed_one_can_write_nothing() {
    let Some(server) = Server::start() else { return };
    let former = lead(&server, "former").await;
    let campaign = Leadership::campaign(server.caller(), &rows(), "later", LASTS).await.unwrap();
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
    Box::new(next).close(None, false).await.unwrap();
    let (_store, kept) = open(&server, lead(&server, "last").await).await;
    let expected = [events(0..1), events(5..6)].concat();
    assert_eq!(kept.unwrap().events, expected, "nothing of the deposed one is there");
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
    while store.keep(Keep::Events(&events(1..2))).await.is_err() {
        tokio::task::yield_now().await;
    }
    Box::new(store).close(None, false).await.unwrap();
    let (_store, kept) = open(&server, lead(&server, "b").await).await;
    assert_eq!(kept.unwrap().events, events(0..2));
}

#[tokio::test]
async fn a_leader_whose_etcd_is_gone_knows_that_it_leads_no_more() {
    let Some(mut server) = Server::start() else { return };
    let leadership = lead(&server, "a").await;
    let mut lost = leadership.lost();
    server.kill();
    lost.wait_for(|lost| *lost).await.unwrap();
}
