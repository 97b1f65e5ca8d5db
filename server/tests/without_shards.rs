//! The server of an allreduce: no shards, but members, results and a status like any other.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use slackline_core::config::{Config, Layer, Resolved, Value};
use slackline_core::ids::ServerId;
use slackline_core::wire::{Phase, Text, ToPeer, ToServer};
use slackline_net::{CloseCode, Connector, Identity, Role, Settings, keys};
use slackline_server::{Addresses, Ended, Keeps, ServerError, ServerOptions, parts, serve};

fn resolved() -> Resolved {
    let keys = [
        ("workers", "2"),
        ("data.dataset", "\"digits\""),
        ("model.kind", "\"softmax\""),
        ("train.epochs", "1"),
        ("train.batch", "32"),
        ("optimizer.rate", "0.03"),
        ("sync.method", "\"allreduce\""),
        ("sync.topology", "\"auto\""),
        ("sync.bucket_kib", "1"),
    ];
    let value = |(key, value): (&str, &str)| (key.to_owned(), Value::from_literal(value).unwrap());
    let layer = Layer { name: "test".to_owned(), values: keys.into_iter().map(value).collect() };
    Config::resolve(&[layer]).unwrap()
}

fn options(
    folder: &Path,
    trace: bool,
    ready: impl FnOnce(core::net::SocketAddr) + Send + 'static,
) -> ServerOptions {
    ServerOptions {
        index: ServerId(0),
        resolved: resolved(),
        bind: "127.0.0.1:0".parse().unwrap(),
        keys: folder.to_owned(),
        out: folder.join("out"),
        addresses: Addresses::known(Vec::new()),
        trace,
        fresh: false,
        resume: None,
        keeps: Keeps::ForAnyone,
        ready: Box::new(ready),
    }
}

#[test]
fn an_allreduce_has_no_shards_and_buckets_of_their_mean_size() {
    let resolved = resolved();
    assert!(parts::shards(ServerId(0), &resolved.config).is_empty());
    let heading = parts::heading(&resolved);
    assert_eq!((heading.shards, heading.servers), (0, 1));
    assert!(heading.policy.contains("allreduce(auto)"), "{}", heading.policy);
    let settings = parts::control_settings(ServerId(0), &resolved, 1);
    let sync = settings.coordinator.unwrap().sync.unwrap();
    // The 640 weights and the 10 biases of the digits' model make one bucket each, at most.
    let bytes = 4 * heading.parameters;
    assert!(sync.bucket_bytes <= bytes && sync.bucket_bytes >= bytes / 2, "{sync:?}");
}

#[test]
fn a_trace_of_no_shards_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let error = serve(options(folder.path(), true, |_| panic!("it has started"))).unwrap_err();
    assert!(matches!(error, ServerError::NothingToTrace) && error.is_users());
    assert!(error.to_string().contains("--trace") && !folder.path().join("out").exists(), "{error}");
}

#[test]
fn a_server_without_shards_answers_with_its_status_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    keys::init(folder.path()).unwrap();
    let (sender, addresses) = mpsc::channel();
    let options = options(folder.path(), false, move |address| sender.send(address).unwrap());
    let server = thread::spawn(move || serve(options));
    let address = addresses.recv().unwrap().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let identity = Identity::load(folder.path(), Role::Admin).unwrap();
        let connector = Connector::new(&identity, &Settings::default()).unwrap();
        let connection = connector.connect(&address, Duration::from_secs(20)).await.unwrap();
        let (mut sender, mut receiver) = connection.accept_control().await.unwrap();
        assert!(matches!(receiver.receive().await.unwrap(), Some(ToPeer::Welcome { .. })));
        sender.send(&ToServer::Status).await.unwrap();
        let Some(ToPeer::Status(status)) = receiver.receive().await.unwrap() else { panic!("no status") };
        assert!(status.shards.is_empty() && status.held.is_empty());
        assert!(matches!(status.phase, Phase::Waiting { here: 0, wanted: 2, .. }), "{status:?}");
        sender.send(&ToServer::Stop { reason: Text::new("enough") }).await.unwrap();
        assert_eq!(receiver.receive::<ToPeer>().await.unwrap(), Some(ToPeer::Goodbye));
        connector.close(CloseCode::Done, "").await;
    });
    assert_eq!(server.join().unwrap().unwrap(), Ended::Well);
    assert!(folder.path().join("out/config.toml").exists());
}
