//! The stage of a test: its folder, its processes, and that none of them outlives it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::process::{Ended, Process};

/// Where the repository lies.
pub(crate) const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// A process on this machine that has the stage's folder in its command line.
#[derive(Clone, Debug)]
pub(crate) struct Living {
    pub(crate) pid: Pid,
    pub(crate) arguments: Vec<String>,
}

impl Living {
    /// Whether it is a server or a worker.
    pub(crate) fn is(&self, role: &str) -> bool {
        self.arguments.get(1).is_some_and(|first| first == role)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stage {
    folder: TempDir,
    started: Mutex<Vec<Process>>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("slackline-stage-").tempdir().unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        Self { folder, started: Mutex::new(Vec::new()) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The path as an argument.
    pub(crate) fn text_path(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// Writes a file, and returns its path as an argument.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.text_path(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.path(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Starts the program under `name`. It works in the stage's folder, knows no configuration of the environment, and has its
    /// temporary files here too.
    pub(crate) fn start(&self, name: &str, arguments: &[&str]) -> Process {
        self.start_with(name, arguments, |_| {})
    }

    pub(crate) fn start_with(
        &self,
        name: &str,
        arguments: &[&str],
        more: impl FnOnce(&mut Command),
    ) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
        command.args(arguments);
        more(&mut command);
        self.launch(name, command)
    }

    /// Starts the program from a shell that does `first` before, such as setting a limit.
    pub(crate) fn start_after(&self, name: &str, first: &str, arguments: &[&str]) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{first}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_slackline")]);
        command.args(arguments);
        self.launch(name, command)
    }

    fn launch(&self, name: &str, mut command: Command) -> Process {
        command.current_dir(self.folder.path()).env("TMPDIR", self.path("tmp"));
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("SLACKLINE__") {
                command.env_remove(variable);
            }
        }
        let process = Process::start(name, &mut command);
        self.started.lock().unwrap().push(process.clone());
        process
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        self.start(&arguments.join(" "), arguments).end()
    }

    /// The processes of this stage that are alive, whoever started them.
    pub(crate) fn living(&self) -> Vec<Living> {
        let mark = self.folder.path().to_str().unwrap();
        let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let entry = entry.ok()?;
            entry.file_name().to_str()?.parse::<i32>().ok()
        });
        let living = numbers.filter_map(|number| {
            // A process may be gone by now; a dead one that nobody has waited for has no arguments.
            let line = fs::read(Path::new("/proc").join(number.to_string()).join("cmdline")).ok()?;
            let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
            let arguments: Vec<_> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            let ours = arguments.iter().any(|argument| argument.contains(mark));
            ours.then_some(Living { pid: Pid::from_raw(number), arguments })
        });
        living.collect()
    }

    /// Names of files and folders below the stage with `part` in them.
    pub(crate) fn files_named(&self, part: &str) -> Vec<PathBuf> {
        fn walk(folder: &Path, part: &str, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let path = entry.path();
                if entry.file_name().to_string_lossy().contains(part) {
                    found.push(path.clone());
                }
                if entry.file_type().unwrap().is_dir() {
                    walk(&path, part, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(self.folder.path(), part, &mut found);
        found
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let started =
            self.started.lock().map(|mut started| std::mem::take(&mut *started)).unwrap_or_default();
        if std::thread::panicking() {
            for process in &started {
                eprintln!("{}", process.transcript());
            }
        }
        for process in &started {
            process.signal(Signal::SIGKILL);
        }
        // Children of children, where the test failed before they had ended.
        for left in self.living() {
            let _ = kill(left.pid, Signal::SIGKILL);
        }
    }
}
