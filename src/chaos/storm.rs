//! One run from its first process to its last: with the faults of a schedule, or calm.

use std::time::Duration;

use nix::sys::signal::Signal;
use slackline_chaos::plan::{Plan, What, Whom};
use slackline_chaos::presence::Span;
use slackline_chaos::report::{Befallen, Exit};
use slackline_chaos::schedule::Fault;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::cluster::{Cluster, PUSHES, Post, Site, name_of};
use super::follow::{Follower, Seen};
use crate::child::Told;
use crate::failure::Failure;
use crate::say;

/// How often the push logs are looked at, which is how exact the times of answers are.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long processes may live on when the coordinator has ended well.
const STRAGGLERS: Duration = Duration::from_secs(10);

/// How long processes may take to end when they are told to.
const GRACE: Duration = Duration::from_secs(5);

/// Lives that a process has at most: one that fails again and again is not started for ever.
const LIVES_MAX: u32 = 200;

/// Exit codes of what a signal ended, as a shell says them.
const INTERRUPTED: u8 = 128 + 2;
const TERMINATED: u8 = 128 + 15;

const COORDINATOR: Post = (Whom::Server, 0);

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Well,
    /// It was given up.
    Late(String),
    /// This process was told to end, with the exit code that says so.
    Interrupted(u8),
}

impl Ended {
    /// Why it is not complete.
    pub(super) fn why(&self) -> Option<String> {
        match self {
            Self::Well => None,
            Self::Late(why) => Some(why.clone()),
            Self::Interrupted(_) => Some("interrupted".to_owned()),
        }
    }
}

/// What became of a run.
#[derive(Debug)]
pub(super) struct Storm {
    pub(super) ended: Ended,
    pub(super) exits: Vec<Exit>,
    pub(super) seen: Seen,
    pub(super) faults: Vec<Befallen>,
    /// When training began, in seconds since 1970.
    pub(super) began_unix_s: f64,
}

/// A fault begins or is over.
#[derive(Clone, Copy, Debug)]
struct Turn {
    at_s: f64,
    fault: usize,
    begins: bool,
}

struct Running<'a> {
    cluster: Cluster,
    follower: Follower,
    planned: &'a [Fault],
    turns: std::collections::VecDeque<Turn>,
    faults: Vec<Befallen>,
    /// Faults of now, by their place.
    present: Vec<usize>,
    exits: Vec<Exit>,
    /// When the first push was answered.
    began: Option<Instant>,
    began_unix_s: f64,
    /// When the coordinator ended well.
    over: Option<Instant>,
}

impl Storm {
    /// A run without faults.
    pub(super) async fn calm(site: Site, patience_s: f64) -> Result<Self, Failure> {
        Running::start(site, &[], 0.0).await?.through(patience_s).await
    }

    /// A run with faults.
    pub(super) async fn rough(
        site: Site,
        patience_s: f64,
        plan: &Plan,
        faults: &[Fault],
    ) -> Result<Self, Failure> {
        Running::start(site, faults, plan.calm_s).await?.through(patience_s).await
    }
}

impl<'a> Running<'a> {
    async fn start(site: Site, planned: &'a [Fault], calm_s: f64) -> Result<Self, Failure> {
        let follower = Follower::new(&site.out.join(PUSHES), site.workers);
        let cluster = Cluster::start(site).await?;
        let turn = |(fault, planned): (usize, &Fault)| {
            let turn = |at_s, begins| Turn { at_s: calm_s + at_s, fault, begins };
            [turn(planned.at_s, true), turn(planned.end_s(), false)]
        };
        let mut turns: Vec<Turn> = planned.iter().enumerate().flat_map(turn).collect();
        turns.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        Ok(Self {
            cluster,
            follower,
            planned,
            turns: turns.into(),
            faults: Vec::new(),
            present: Vec::new(),
            exits: Vec::new(),
            began: None,
            began_unix_s: 0.0,
            over: None,
        })
    }

    async fn through(mut self, patience_s: f64) -> Result<Storm, Failure> {
        let deadline = Instant::now() + Duration::from_secs_f64(patience_s);
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::world)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::world)?;
        let ended = loop {
            let next = self.began.and_then(|began| {
                let turn = self.turns.front()?;
                Some(began + Duration::from_secs_f64(turn.at_s))
            });
            tokio::select! {
                Some(told) = self.cluster.told.recv() => self.hear(told)?,
                _ = looks.tick() => self.look()?,
                () = at(next) => self.turn()?,
                _ = interrupt.recv() => break Ended::Interrupted(INTERRUPTED),
                _ = terminate.recv() => break Ended::Interrupted(TERMINATED),
                () = sleep_until(deadline) => break Ended::Late(self.late(patience_s)),
            }
            if self.is_over() {
                break Ended::Well;
            }
        };
        if ended == Ended::Well {
            for post in self.cluster.running() {
                let how = format!("it did not end within {} s of the run", STRAGGLERS.as_secs());
                self.exits.push(Exit { name: name_of(post), how });
            }
        }
        self.cluster.end(GRACE).await;
        self.look()?;
        let Self { exits, follower, faults, began_unix_s, .. } = self;
        Ok(Storm { ended, exits, seen: follower.seen, faults, began_unix_s })
    }

    fn late(&self, patience_s: f64) -> String {
        let answered = self.follower.seen.answers.last().map_or(0.0, |answer| answer.at_s);
        format!(
            "it was not over after {patience_s:.0} s; the last push was answered {answered:.1} s after the first; processes.log has what \
             all processes said"
        )
    }

    fn now_s(&self) -> f64 {
        self.began.map_or(0.0, |began| began.elapsed().as_secs_f64())
    }

    /// The coordinator has ended well, and everybody else too, or has had the time for it.
    fn is_over(&self) -> bool {
        self.over.is_some_and(|over| self.cluster.running().is_empty() || over.elapsed() > STRAGGLERS)
    }

    fn look(&mut self) -> Result<(), Failure> {
        let now_s = self.now_s();
        let is_new = self.follower.look(now_s).map_err(Failure::world)?;
        if is_new && self.began.is_none() {
            self.began = Some(Instant::now());
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            self.began_unix_s = since.unwrap_or_default().as_secs_f64();
        }
        Ok(())
    }

    fn hear(&mut self, told: Told) -> Result<(), Failure> {
        let Some((post, status, words)) = self.cluster.hear(told) else { return Ok(()) };
        let is_well = status.as_ref().is_ok_and(|status| status.success());
        if is_well {
            if post == COORDINATOR {
                self.over = Some(Instant::now());
            }
            return Ok(());
        }
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let words = words.map_or_else(String::new, |words| format!(": {words}"));
        let (life, name) = (self.cluster.lives(post), name_of(post));
        say(&format!("{:6.1} s  {name} ended by itself ({how}){words}", self.now_s()));
        self.exits.push(Exit { name: format!("{name}, life {}", life + 1), how: format!("{how}{words}") });
        // As whatever watches over processes would; what happens then is worth seeing.
        if self.over.is_none() && life < LIVES_MAX { self.cluster.begin(post) } else { Ok(()) }
    }

    /// Begins or ends the next fault of the schedule.
    fn turn(&mut self) -> Result<(), Failure> {
        let Some(turn) = self.turns.pop_front() else { return Ok(()) };
        let fault = self.planned[turn.fault];
        if turn.begins {
            let left_out = self.strike(&fault);
            let now_s = self.now_s();
            let what =
                Befallen { fault, was: Span { from_s: now_s, to_s: now_s }, recovery_s: None, left_out };
            let how = what
                .left_out
                .as_ref()
                .map_or_else(|| format!("for {:.1} s", fault.for_s), |why| format!("left out: {why}"));
            let line =
                format!("{now_s:6.1} s  {} {}, {how}", what.name().replace("of a ", "of "), fault.index);
            say(&line);
            self.cluster.note(&format!("FAULT {line}"));
            if what.left_out.is_none() {
                self.present.push(turn.fault);
            }
            self.faults.push(what);
        } else if let Some(place) = self.present.iter().position(|present| *present == turn.fault) {
            self.present.swap_remove(place);
            self.relent(&fault)?;
            let now_s = self.now_s();
            self.cluster.note(&format!("FAULT over: {:?} of {:?} {}", fault.what, fault.whom, fault.index));
            let known = self.faults.iter_mut().rev().find(|known| known.fault == fault);
            if let Some(known) = known {
                known.was.to_s = now_s;
            }
        }
        let present: Vec<Fault> = self.present.iter().map(|place| self.planned[*place]).collect();
        self.cluster.set_weather(present.iter());
        Ok(())
    }

    /// Does it; or why not.
    fn strike(&mut self, fault: &Fault) -> Option<String> {
        let post = (fault.whom, fault.index);
        if self.over.is_some() || !self.cluster.is_running(post) {
            return Some("the process had ended".to_owned());
        }
        match fault.what {
            What::Kill => self.cluster.kill(post),
            What::Freeze => self.cluster.signal(post, Signal::SIGSTOP),
            What::FullDisk => {
                let Some(disk) = self.cluster.disk(fault.index) else {
                    return Some("a disk that can be full takes root, to mount it".to_owned());
                };
                return disk.fill().err().map(|error| format!("the disk could not be filled: {error}"));
            }
            // Links are looked at together.
            What::Cut | What::Loss | What::Delay => {}
        }
        None
    }

    fn relent(&mut self, fault: &Fault) -> Result<(), Failure> {
        let post = (fault.whom, fault.index);
        match fault.what {
            What::Kill if self.over.is_none() && !self.cluster.has_ended(post) => self.cluster.begin(post)?,
            What::Freeze => self.cluster.signal(post, Signal::SIGCONT),
            What::FullDisk => {
                if let Some(disk) = self.cluster.disk(fault.index) {
                    disk.free();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Waits for a moment; for ever where there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
