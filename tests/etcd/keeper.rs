//! An etcd of one member or of more, each of which can be lost, and comes back with what is on its disk.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::process::until;

/// What the names of all rows begin with.
const PREFIX: &str = "test";

/// See the module. It ends with the test.
pub(crate) struct Keeper {
    members: Vec<Member>,
    /// The folder of the keys that it shows and asks for; none without TLS.
    keys: Option<PathBuf>,
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
        Self::start_with(count, None)
    }

    /// One member that lets in servers of the cluster alone, as the README starts it: with a folder of `slackline keys`.
    pub(crate) fn start_with_keys(keys: &Path) -> Option<Self> {
        Self::start_with(1, Some(keys.to_owned()))
    }

    fn start_with(count: usize, keys: Option<PathBuf>) -> Option<Self> {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ports: Vec<_> = (0..count).map(|_| [free(), free()]).collect();
        let mut members = Vec::new();
        for index in 0..count {
            let folder = tempfile::tempdir().unwrap();
            let process = RefCell::new(installed(launch(&folder, index, &ports, keys.as_deref()))?);
            members.push(Member { process, folder, ports: ports[index] });
        }
        Some(Self { members, keys })
    }

    /// Where the first member is.
    pub(crate) fn address(&self) -> String {
        self.members[0].address()
    }

    /// What `cluster.store` is.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(Member::address).collect();
        let scheme = if self.keys.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://{}/{PREFIX}", hosts.join(","))
    }

    /// Writes a row of a run, as nobody does who leads it.
    pub(crate) fn put(&self, run: u64, row: &str, value: &str) {
        let key = format!("{PREFIX}/{run:016x}/{row}");
        let body = format!(r#"{{"key":"{}","value":"{}"}}"#, base64(&key), base64(value));
        let length = body.len();
        let head =
            format!("POST /v3/kv/put HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}");
        let answer = self.members[0].ask(&format!("{head}\r\n\r\n{body}")).unwrap();
        assert!(answer.lines().next().is_some_and(|line| line.contains(" 200 ")), "{answer}");
    }

    pub(crate) fn kill(&mut self) {
        self.members.iter().for_each(Member::kill);
    }

    pub(crate) fn start_again(&mut self) {
        let ports: Vec<_> = self.members.iter().map(|member| member.ports).collect();
        for (index, member) in self.members.iter().enumerate() {
            *member.process.borrow_mut() =
                launch(&member.folder, index, &ports, self.keys.as_deref()).unwrap();
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

    /// What it answers to a request.
    fn ask(&self, request: &str) -> io::Result<String> {
        let mut connection = TcpStream::connect(self.address())?;
        connection.write_all(request.as_bytes())?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
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
        let metrics = self.ask("GET /metrics HTTP/1.0\r\n\r\n");
        metrics.is_ok_and(|answer| answer.lines().any(|line| line == "etcd_server_is_leader 1"))
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

fn launch(folder: &TempDir, index: usize, ports: &[[u16; 2]], keys: Option<&Path>) -> io::Result<Child> {
    let at = |port: u16| format!("http://127.0.0.1:{port}");
    let [client, peer] = ports[index];
    let all: Vec<_> =
        ports.iter().enumerate().map(|(index, [_, peer])| format!("m{index}={}", at(*peer))).collect();
    let mut command = Command::new("etcd");
    command.args(["--name", &format!("m{index}"), "--data-dir"]).arg(folder.path().join("data"));
    let scheme = if keys.is_some() { "https" } else { "http" };
    let to_clients = format!("{scheme}://127.0.0.1:{client}");
    command.args(["--listen-client-urls", &to_clients, "--advertise-client-urls", &to_clients]);
    command.args(["--listen-peer-urls", &at(peer), "--initial-advertise-peer-urls", &at(peer)]);
    command.args(["--initial-cluster", &all.join(",")]);
    if let Some(keys) = keys {
        for (option, file) in [
            ("--cert-file", "server.pem"),
            ("--key-file", "server.key"),
            ("--trusted-ca-file", "ca.pem"),
            ("--client-crl-file", "revoked.pem"),
        ] {
            command.arg(option).arg(keys.join(file));
        }
        command.args(["--client-cert-auth", "--client-cert-allowed-hostname", "server.slackline"]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// As etcd takes keys and values in its JSON.
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |bytes: &[u8]| {
        let bits = (0..3).fold(0_u32, |bits, place| bits << 8 | u32::from(*bytes.get(place).unwrap_or(&0)));
        let digit = |place: usize| char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]);
        (0..4).map(|place| if place <= bytes.len() { digit(place) } else { '=' }).collect::<String>()
    };
    text.as_bytes().chunks(3).map(group).collect()
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.kill();
    }
}
