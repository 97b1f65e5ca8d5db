//! An etcd of one member, which can be lost and comes back with what is on its disk.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// See the module. It ends with the test.
pub(crate) struct Keeper {
    process: Child,
    folder: TempDir,
    ports: [u16; 2],
}

impl Keeper {
    /// None, with a word, where no etcd is installed.
    pub(crate) fn start() -> Option<Self> {
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

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// What `cluster.store` is.
    pub(crate) fn url(&self) -> String {
        format!("etcd://{}/test", self.address())
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn start_again(&mut self) {
        self.process = launch(&self.folder, self.ports).unwrap();
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

impl Drop for Keeper {
    fn drop(&mut self) {
        self.kill();
    }
}
