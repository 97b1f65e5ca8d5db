//! A bucket in an S3 server over a folder, `s3s-fs`: `cargo install s3s-fs --version 0.14.1 --features binary`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

const BUCKET: &str = "bucket";

/// See the module. It ends with the test.
pub(crate) struct Bucket {
    folder: TempDir,
    server: Child,
    endpoint: String,
}

impl Bucket {
    /// None, with a word, where the program is not there, and nobody has said that it must be (`SLACKLINE_S3=required`).
    pub(crate) fn start() -> Option<Self> {
        let Some(program) = program() else {
            let is_required = std::env::var_os("SLACKLINE_S3").is_some_and(|said| said == "required");
            assert!(!is_required, "s3s-fs is not on PATH");
            // Not by a macro: what those print is kept back where a test passes.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: no s3s-fs on PATH; cargo install s3s-fs --version 0.14.1 --features binary"
            );
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--access-key", "key", "--secret-key", "secret"])
            .arg(folder.path())
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("server is running")), "the server listens");
        // What it says later is read, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { folder, server, endpoint: format!("http://127.0.0.1:{port}") })
    }

    /// The address of a place in it.
    pub(crate) fn url(&self, prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}")
    }

    /// The folder that the server keeps this place in.
    pub(crate) fn folder(&self, prefix: &str) -> String {
        self.folder.path().join(BUCKET).join(prefix).into_os_string().into_string().unwrap()
    }

    /// Tells a process, and with it all that it starts, how to reach it.
    pub(crate) fn tell(&self, command: &mut Command) {
        command
            .envs([("AWS_ENDPOINT", self.endpoint.as_str()), ("AWS_ALLOW_HTTP", "true")])
            .envs([("AWS_REGION", "us-east-1"), ("AWS_ACCESS_KEY_ID", "key")])
            .env("AWS_SECRET_ACCESS_KEY", "secret");
    }

    /// From now on nobody answers there.
    pub(crate) fn kill(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.kill();
    }
}

fn program() -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let of_cargo = std::env::home_dir().map(|home| home.join(".cargo/bin"));
    let folders = on_path.unwrap_or_default().into_iter().chain(of_cargo);
    folders.map(|folder| folder.join("s3s-fs")).find(|program| program.is_file())
}
