//! `slackline compare`: contestants under conditions, beside other programs where they are asked for, and who wins.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use slackline_lab::compare::{
    Comparison, Host, Invited, Lines, Links, Standing, Ways, Work, compare as execute, find_script, told,
};
use slackline_lab::{Execution, LabError, Mode, Verdict};

use crate::cli::CompareArgs;
use crate::failure::Failure;
use crate::sweep::{Maker, Shared, SlowLinks, at_once, command, listen, overlay, table};
use crate::{print, say};

pub(crate) fn compare(args: &CompareArgs) -> Result<u8, Failure> {
    let mode = match (args.in_virtual_time, args.real) {
        (true, _) => Some(Mode::Sim),
        (_, true) => Some(Mode::Run),
        _ => None,
    };
    let ways = Ways { mode, links: &|| links(&args.file) };
    let comparison = Comparison::read(&args.file, &overlay(&args.sets)?, ways).map_err(Failure::user)?;
    let (jobs, threads) = at_once(args.jobs, comparison.mode());
    let shared = Arc::new(Shared::default());
    let driver = Driver::of(args, &comparison, &shared)?;
    let invited = match (&args.with_peers, &driver) {
        (Some(Some(file)), _) => Invited::Rows(Lines::read(file).map_err(Failure::user)?),
        (Some(None), Some(driver)) => Invited::Host(driver),
        _ => Invited::Nobody,
    };
    say(&comparison.shown());
    listen(&shared)?;
    let slow = find_script(LINKS, &args.file).filter(|_| comparison.mode() == Mode::Run);
    let links = slow.map(|script| SlowLinks { script, turn: Mutex::new(()) });
    let maker = Maker { shared: &shared, threads, links };
    let command = again(args);
    let execution = Execution { jobs, resume: args.resume, command: &command, stop: &shared.stop };
    let outcome = execute(&comparison, Path::new(&args.out), execution, &maker, &*shared, &invited);
    shared.end();
    let standing = match outcome {
        Ok(standing) => standing,
        Err(stopped @ LabError::Stopped { .. }) => {
            return Err(Failure { code: shared.code(), text: stopped.to_string() });
        }
        Err(error) => return Err(Failure::of(error.is_users(), error)),
    };
    print(&(told(&standing) + &judged(&standing, &args.out)))?;
    let (failed, missed) = (standing.failures().count(), standing.failed().count());
    if failed > 0 {
        return Err(Failure::world(format!(
            "{failed} runs failed (failure.txt in their folders says why); the same command tries them again. A contestant that has to \
             fail under a condition says so with may_fail"
        )));
    }
    Ok(u8::from(args.check && missed > 0))
}

/// What slows down real links.
const LINKS: &str = "netns.sh";

/// What this machine can do to real links, as that script says it.
fn links(file: &Path) -> Links {
    let all = |reason: String| Links { no_rate: Some(reason.clone()), no_delay: Some(reason) };
    let Some(script) = find_script(LINKS, file) else {
        return all(
            "slowed links need bench/peers/netns.sh, which is neither below this folder nor beside the file"
                .to_owned(),
        );
    };
    let said = match Command::new("bash").arg(&script).arg("check").stdin(Stdio::null()).output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => return all(format!("slowed links need bash, which could not be started: {error}")),
    };
    if said.contains("with netem") {
        Links::default()
    } else if said.contains("a rate by tbf") {
        Links { no_rate: None, no_delay: Some(said) }
    } else {
        all(if said.is_empty() { "network namespaces cannot be made here".to_owned() } else { said })
    }
}

/// The command that makes the comparison again, without the folder.
fn again(args: &CompareArgs) -> String {
    let mut text = command("compare", &args.file, &args.sets);
    if args.in_virtual_time {
        text += " --virtual";
    }
    if args.real {
        text += " --real";
    }
    match &args.with_peers {
        Some(Some(file)) => text + &format!(" --with-peers {}", file.display()),
        Some(None) => text + " --with-peers",
        None => text,
    }
}

/// The expectations, and where everything is.
fn judged(standing: &Standing, out: &str) -> String {
    let missed: Vec<&Verdict> = standing.failed().collect();
    let all = standing.verdicts.len();
    let mut text = format!("\nexpectations   {} of {all} hold", all - missed.len());
    if !standing.not_judged.is_empty() {
        text += &format!(", {} not judged at this scale or in this mode", standing.not_judged.len());
    }
    text += "\n";
    if !missed.is_empty() {
        text += &table(&missed);
    }
    text + &format!(
        "results        {out}/results.csv, {out}/results.json\nreport         {out}/report.html\n"
    )
}

/// Drives `bench/peers/run.py`.
struct Driver<'a> {
    script: PathBuf,
    resume: bool,
    shared: &'a Shared,
}

impl<'a> Driver<'a> {
    /// Where peers are to be measured; refuses them where they cannot be.
    fn of(args: &CompareArgs, comparison: &Comparison, shared: &'a Shared) -> Result<Option<Self>, Failure> {
        let Some(file) = &args.with_peers else { return Ok(None) };
        if comparison.mode() != Mode::Run {
            return Err(Failure::user(
                "--with-peers: other programs run in real time only, and this comparison is in virtual time; add --real",
            ));
        }
        if file.is_some() {
            return Ok(None);
        }
        let Some(script) = find_script("run.py", &args.file) else {
            return Err(Failure::user(
                "--with-peers: bench/peers/run.py is neither below this folder nor beside the comparison file; start from the \
                 repository, or name a file of rows that were measured before",
            ));
        };
        Ok(Some(Self { script, resume: args.resume, shared }))
    }

    /// What was measured before with these arguments, where that is to be kept.
    fn before(&self, work: &Work<'_>, asked: &str) -> Option<Lines> {
        let same = fs::read_to_string(work.folder.join(ASKED)).is_ok_and(|text| text == asked);
        Lines::read(&work.results()).ok().filter(|lines| self.resume && same && lines.is_whole())
    }
}

/// What a measurement was asked for.
const ASKED: &str = "asked.txt";

impl Host for Driver<'_> {
    fn measure(&self, work: &Work<'_>, rates: &str) -> Result<Lines, String> {
        let arguments = work.arguments(rates);
        let asked = arguments.join("\n");
        if let Some(lines) = self.before(work, &asked) {
            return Ok(lines);
        }
        if self.shared.stop.load(Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        say(&format!("peers: measuring in {}", work.folder.display()));
        let failed = |what: String, error: std::io::Error| format!("{what}: {error}");
        work.write_files().map_err(|error| failed(work.folder.display().to_string(), error))?;
        fs::write(work.folder.join(ASKED), &asked).map_err(|error| failed(ASKED.to_owned(), error))?;
        let log = work.folder.join("run.log");
        let output = fs::File::create(&log).map_err(|error| failed(log.display().to_string(), error))?;
        let mut command = Command::new("python3");
        command.arg(&self.script).args(&arguments).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::from(output)).stderr(Stdio::piped());
        let child =
            command.spawn().map_err(|error| failed("python3 could not be started".to_owned(), error))?;
        let (status, said) =
            self.shared.wait(child).map_err(|error| failed("the driver was lost".to_owned(), error))?;
        work.remove_files();
        let lines = Lines::read(&work.results()).map_err(|error| error.to_string())?;
        match said.trim().lines().last() {
            _ if lines.is_whole() => Ok(lines),
            Some(last) => Err(format!("bench/peers/run.py ended with {status}: {last}")),
            None => Err(format!("bench/peers/run.py ended with {status}; {} says more", log.display())),
        }
    }
}
