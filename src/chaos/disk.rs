//! A disk for one server's state that can be full: a small file system in memory, which only root can mount. Without it the state lies in a
//! folder, and faults of full disks are left out.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Its size. The coordinator's state of a run of minutes is a few MB.
const SIZE: &str = "size=64m";

/// The file that fills it.
const FILLER: &str = "filler";

/// See the module.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    is_mounted: bool,
}

impl Disk {
    /// Makes the folder and mounts the file system there, if it can.
    pub(super) fn make(folder: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let is_mounted =
            succeeds(Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "slackline-chaos"]).arg(&folder));
        Ok(Self { folder, is_mounted })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it can be full.
    pub(super) const fn can_be_full(&self) -> bool {
        self.is_mounted
    }

    /// Writes until nothing more fits.
    pub(super) fn fill(&self) -> std::io::Result<()> {
        let mut file = File::create(self.folder.join(FILLER))?;
        let mut piece = vec![0_u8; 1 << 20];
        // Smaller and smaller pieces, down to the last byte.
        while !piece.is_empty() {
            match file.write(&piece) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => piece.truncate(piece.len() / 2),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes room again.
    pub(super) fn free(&self) {
        // What is not there does not fill it.
        let _ = std::fs::remove_file(self.folder.join(FILLER));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // Lazily: a process that is still ending may have a file open.
            succeeds(Command::new("umount").arg("-l").arg(&self.folder));
        }
    }
}

fn succeeds(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
