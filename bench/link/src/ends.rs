//! The namespaces at the ends of the links, each with one device. They are gone when this is dropped.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tun_rs::{DeviceBuilder, SyncDevice};

/// What the names of namespaces begin with; the process id of whoever made them follows.
const PREFIX: &str = "slackline-link-";

/// Packets that the kernel keeps for us; what is more is dropped, unseen by the counts. At 300,000 packets a second that is 30 ms.
const DEVICE_QUEUE: u32 = 10_000;

/// Namespaces that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Why there are no namespaces.
#[derive(Debug, thiserror::Error)]
pub enum EndsError {
    /// The machine or the user may not have them: what needs them is skipped.
    #[error("{0}")]
    NotHere(String),
    /// A command of the set-up failed.
    #[error("`{command}` failed: {said}")]
    Failed {
        /// The command.
        command: String,
        /// What it said.
        said: String,
    },
}

/// Namespaces of this process, numbered from 0.
#[derive(Debug)]
pub struct Ends {
    names: Vec<String>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| remove(name));
    }
}

/// One that was never made cannot be removed, and nothing else is to be done about it.
fn remove(name: &str) {
    let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
}

/// Removes what processes left that were killed.
fn remove_orphans() {
    let Ok(output) = Command::new("ip").args(["netns", "list"]).stderr(Stdio::null()).output() else {
        return;
    };
    for name in String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.split(' ').next()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(name);
        }
    }
}

impl Ends {
    /// Makes `count` namespaces whose devices take packets of `mtu` bytes, and the devices for [`crate::carry`].
    ///
    /// # Errors
    /// [`EndsError::NotHere`] without root, `ip` or TUN devices; otherwise what failed.
    pub fn make(count: u8, mtu: u16) -> Result<(Self, Vec<(Ipv4Addr, SyncDevice)>), EndsError> {
        remove_orphans();
        let pid = std::process::id();
        let mut ends = Self { names: Vec::new() };
        let mut devices = Vec::new();
        for number in 0..count {
            // Several links of one process, one after another or side by side, have namespaces of their own.
            let made = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{pid}-{made}");
            ends.names.push(name.clone());
            ip(&["netns", "add", &name]).map_err(|error| EndsError::NotHere(error.to_string()))?;
            let (tun, address) = (format!("slk{}-{made}", pid % 100_000), ends.address(number));
            let device = DeviceBuilder::new().name(&tun).mtu(mtu).build_sync();
            let device =
                device.map_err(|error| EndsError::NotHere(format!("no TUN devices here: {error}")))?;
            let (queue, mtu) = (DEVICE_QUEUE.to_string(), mtu.to_string());
            let within = format!("{address}/24");
            // The file stays ours when the device moves. It loses its settings on the way.
            ip(&["link", "set", &tun, "netns", &name])?;
            ip(&["-n", &name, "link", "set", &tun, "mtu", &mtu, "txqueuelen", &queue, "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            ip(&["-n", &name, "addr", "add", &within, "dev", &tun])?;
            devices.push((address, device));
        }
        Ok((ends, devices))
    }

    /// The address of an end, which all others reach.
    #[must_use]
    pub const fn address(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 254, 0, number + 1)
    }

    /// What to write before a command so that it runs at an end.
    #[must_use]
    pub fn prefix(&self, number: u8) -> String {
        format!("ip netns exec {}", self.names[usize::from(number)])
    }
}

fn ip(arguments: &[&str]) -> Result<(), EndsError> {
    let command = format!("ip {}", arguments.join(" "));
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| EndsError::NotHere(format!("`{command}` cannot be run: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(EndsError::Failed { command, said })
}
