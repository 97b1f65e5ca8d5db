//! An etcd of one member or of more, each of which can be lost, and comes back with what is on its disk.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::process::until;

/// See the module. It ends with the test.
pub(crate) struct Keeper {
    members: Vec<Member>,
}

struct Member {
    process: RefCell<Child>,
    folder: TempDir,
    ports: [u16; 2],
}

impl Keeper {
    /// One member. None, with a word, where no etcd is installed.
    pub(crate) fn start() -> Option<Self> {
        Self::start_many(1)
    }

    /// So many members of one etcd.
    pub(crate) fn start_many(count: usize) -> Option<Self> {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ports: Vec<_> = (0..count).map(|_| [free(), free()]).collect();
        let mut members = Vec::new();
        for index in 0..count {
            let folder = tempfile::tempdir().unwrap();
            let process = RefCell::new(installed(launch(&folder, index, &ports))?);
            members.push(Member { process, folder, ports: ports[index] });
        }
        Some(Self { members })
    }

    /// Where the first member is.
    pub(crate) fn address(&self) -> String {
        self.members[0].address()
    }

    /// What `cluster.store` is.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(Member::address).collect();
        format!("etcd://{}/test", hosts.join(","))
    }

    pub(crate) fn kill(&mut self) {
        self.members.iter().for_each(Member::kill);
    }

    pub(crate) fn start_again(&mut self) {
        let ports: Vec<_> = self.members.iter().map(|member| member.ports).collect();
        for (index, member) in self.members.iter().enumerate() {
            *member.process.borrow_mut() = launch(&member.folder, index, &ports).unwrap();
        }
    }

    /// Kills the member that leads the others.
    pub(crate) fn kill_leader(&self) {
        until("a member of etcd that leads", || self.members.iter().find(|member| member.leads())).kill();
    }
}

impl Member {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    fn kill(&self) {
        let mut process = self.process.borrow_mut();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Whether it leads, by what it says of itself.
    fn leads(&self) -> bool {
        let ended = self.process.borrow_mut().try_wait().unwrap();
        assert!(ended.is_none(), "etcd at {} has ended: {ended:?}", self.address());
        let ask = || -> io::Result<String> {
            let mut connection = TcpStream::connect(self.address())?;
            connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.lines().any(|line| line == "etcd_server_is_leader 1"))
    }
}

/// The process. None where the program is not there, and nobody has said that it must be (`SLACKLINE_ETCD=required`).
fn installed(launched: io::Result<Child>) -> Option<Child> {
    match launched {
        Ok(process) => Some(process),
        Err(error)
            if error.kind() == ErrorKind::NotFound
                && std::env::var_os("SLACKLINE_ETCD").is_none_or(|said| said != "required") =>
        {
            // Not by a macro: what those print is kept back where a test passes.
            let _ =
                writeln!(io::stderr(), "etcd is not installed (Debian: etcd-server): nothing is tested here");
            None
        }
        Err(error) => panic!("etcd cannot be started: {error}"),
    }
}

fn launch(folder: &TempDir, index: usize, ports: &[[u16; 2]]) -> io::Result<Child> {
    let at = |port: u16| format!("http://127.0.0.1:{port}");
    let [client, peer] = ports[index];
    let all: Vec<_> =
        ports.iter().enumerate().map(|(index, [_, peer])| format!("m{index}={}", at(*peer))).collect();
    let mut command = Command::new("etcd");
    command.args(["--name", &format!("m{index}"), "--data-dir"]).arg(folder.path().join("data"));
    command.args(["--listen-client-urls", &at(client), "--advertise-client-urls", &at(client)]);
    command.args(["--listen-peer-urls", &at(peer), "--initial-advertise-peer-urls", &at(peer)]);
    command.args(["--initial-cluster", &all.join(",")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.kill();
    }
}
