//! Object stores: one in memory, and with the feature `s3` a real server.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::Arc;

use common::{EXPECT, KEYS, STAMP, State, load_at, manifest, save, write_parts};
use object_store::memory::InMemory;
use slackline_checkpoint::{CheckpointError, Damage, RunId, Stamp, Store};
use slackline_core::ids::KeyRange;

/// The life of a few checkpoints in any store that is empty.
async fn life(store: &Store) {
    let empty = store.resume(&EXPECT).await.unwrap_err();
    assert!(matches!(empty, CheckpointError::Empty { .. }), "{empty}");
    for number in 1..=4 {
        let state = State::after(number, KEYS);
        let written = save(store, number, &state, 3, 2).await;
        let manifest = store.resume(&EXPECT).await.unwrap();
        assert_eq!(manifest, written);
        for servers in [1, 3, 5] {
            assert_eq!(load_at(store, &manifest, servers).await, (state.clone(), state.hash()));
        }
    }
    assert!(matches!(store.manifest(2).await, Err(CheckpointError::Absent { .. })), "the last two are kept");
    store.verify(&store.manifest(3).await.unwrap()).await.unwrap();
    let newest = store.manifest(4).await.unwrap();
    store.commit(&newest, 2).await.unwrap();
    let mut other = newest.clone();
    other.seed += 1;
    assert!(matches!(store.commit(&other, 2).await, Err(CheckpointError::Taken { .. })));
    let run = Stamp { run: RunId(0xdef), ..STAMP };
    let parts = write_parts(store, run, 5, &State::after(9, KEYS), 3).await;
    let mixed = store.commit(&manifest(run, 5, parts), 2).await.unwrap_err();
    assert!(matches!(mixed.damage(), Some(Damage::OtherRun { .. })), "{mixed}");
    assert_eq!(store.next_number().await.unwrap(), 6);
    store.clear().await.unwrap();
    assert_eq!(store.next_number().await.unwrap(), 1);
    store.clear().await.unwrap();
}

/// A part that goes in several pieces.
async fn large(store: &Store) {
    let keys = 3_000_000;
    let stamp = Stamp { keys, ..STAMP };
    let state = State::after(1, keys);
    let parts = write_parts(store, stamp, 1, &state, 2).await;
    assert!(parts.iter().all(|part| part.bytes > 2 * slackline_checkpoint::PIECE));
    let manifest = manifest(stamp, 1, parts);
    store.commit(&manifest, 1).await.unwrap();
    store.verify(&manifest).await.unwrap();
    assert_eq!(load_at(store, &manifest, 3).await, (state.clone(), state.hash()));
    state.check(&store.load(&manifest, KeyRange::new(1_048_570, 1_000_000)).await.unwrap());
}

#[tokio::test]
async fn a_store_in_memory_keeps_checkpoints_like_a_folder() {
    for prefix in ["", "some/where"] {
        life(&Store::over(Arc::new(InMemory::new()), prefix, "memory")).await;
    }
    large(&Store::over(Arc::new(InMemory::new()), "large", "memory")).await;
}

#[tokio::test]
async fn a_large_part_is_streamed_to_a_folder_and_loaded_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    large(&Store::create(folder.path().to_str().unwrap()).unwrap()).await;
}

#[cfg(feature = "s3")]
mod s3 {
    //! Against `s3s-fs`, an S3 server over a folder, started here: `cargo install s3s-fs --version 0.14.1 --features binary`.

    use std::io::{BufRead as _, BufReader, Write as _};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use slackline_checkpoint::Store;

    /// Set for the process that talks to the server: the address to use.
    const ADDRESS: &str = "SLACKLINE_TEST_S3";

    /// A server that ends with the test.
    struct Server(Child);

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn program() -> Option<PathBuf> {
        let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
        let of_cargo = std::env::home_dir().map(|home| home.join(".cargo/bin"));
        let folders = on_path.unwrap_or_default().into_iter().chain(of_cargo);
        folders.map(|folder| folder.join("s3s-fs")).find(|program| program.is_file())
    }

    /// Starts the server over `root`, and answers its endpoint once it says that it listens.
    fn start(program: &PathBuf, root: &std::path::Path) -> (Server, String) {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut child = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--access-key", "key", "--secret-key", "secret"])
            .arg(root)
            .env("RUST_LOG", "info")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let server = Server(child);
        assert!(lines.any(|line| line.unwrap().contains("server is running")), "the server listens");
        // What it says later is read, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        (server, format!("http://127.0.0.1:{port}"))
    }

    #[tokio::test]
    async fn a_real_s3_server_keeps_checkpoints_like_a_folder() {
        if let Ok(address) = std::env::var(ADDRESS) {
            super::life(&Store::create(&format!("{address}/some/where")).unwrap()).await;
            super::large(&Store::create(&format!("{address}/large")).unwrap()).await;
            let absent = Store::open("s3://no-such-bucket/x").unwrap().next_number().await;
            assert!(absent.is_err() || absent.unwrap() == 1);
            return;
        }
        let Some(program) = program() else {
            // Not by a macro: what those print is kept back where a test passes.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: no s3s-fs on PATH; cargo install s3s-fs --version 0.14.1 --features binary"
            );
            return;
        };
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("bucket")).unwrap();
        let (_server, endpoint) = start(&program, root.path());
        // The same test in a process of its own, since the credentials come from the environment.
        let name = "s3::a_real_s3_server_keeps_checkpoints_like_a_folder";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ADDRESS, "s3://bucket")
            .envs([
                ("AWS_ENDPOINT", endpoint.as_str()),
                ("AWS_ALLOW_HTTP", "true"),
                ("AWS_REGION", "us-east-1"),
            ])
            .envs([("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")])
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
