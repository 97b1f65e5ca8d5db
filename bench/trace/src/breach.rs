//! What is reported: a law that was broken, where, and the records that show it.

use std::fmt;

use slackline_core::ids::{ServerId, ShardId};
use slackline_core::trace::{Dropped, PullFate, Reading, Record, Verdict, What};

/// What must hold, whatever the server's code looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Law {
    /// A reader sees the iterations of the others that it may count on.
    Bound,
    /// A reader sees its own pushes, all but those that it pulls ahead of.
    ReadMyWrites,
    /// Nothing is read or applied before the run begins.
    Start,
    /// Values go to whoever asked for them, once.
    Asked,
    /// A pull that the policy allows is not held.
    NeedlessHold,
    /// Every apply makes one version, the next one.
    VersionStep,
    /// The versions that are stated are the shard's.
    VersionStated,
    /// No push is taken twice.
    Once,
    /// A push that was dropped is never applied, and an answer that is given again is the first one.
    FirstAnswer,
    /// A push is dropped only for the reason that is given.
    DropCause,
    /// A push that arrives is answered, kept or known already.
    Answered,
    /// The staleness that is stated is that of the versions.
    StalenessStated,
    /// A policy that takes means takes them, and one that takes each push alone does so.
    Gathering,
    /// An apply is the mean of one clock, whole.
    WholeClock,
    /// Clocks are closed in order, each once.
    ClockOrder,
    /// An apply has as many pushes as the quorum asks for.
    Quorum,
    /// A quorum that is not everybody waits for its grace.
    Grace,
    /// Nothing is done for a worker after its end.
    Membership,
    /// A worker that joins a running one gates nobody before its first push.
    JoinerGates,
    /// It enters at the minimum, not below.
    JoinerBelow,
    /// Incarnations of a worker rise.
    Incarnation,
    /// An iteration that counts as complete is not pushed afterwards.
    ClockBack,
    /// The clocks, minima and leads that are stated follow from the pushes.
    ClockStated,
    /// A push is answered by every shard, unless its worker died with it.
    EveryShard,
}

impl Law {
    /// Its name in a report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::ReadMyWrites => "read-my-writes",
            Self::Start => "start",
            Self::Asked => "asked",
            Self::NeedlessHold => "needless-hold",
            Self::VersionStep => "version-step",
            Self::VersionStated => "version-stated",
            Self::Once => "once",
            Self::FirstAnswer => "first-answer",
            Self::DropCause => "drop-cause",
            Self::Answered => "answered",
            Self::StalenessStated => "staleness-stated",
            Self::Gathering => "gathering",
            Self::WholeClock => "whole-clock",
            Self::ClockOrder => "clock-order",
            Self::Quorum => "quorum",
            Self::Grace => "grace",
            Self::Membership => "membership",
            Self::JoinerGates => "joiner-gates",
            Self::JoinerBelow => "joiner-below",
            Self::Incarnation => "incarnation",
            Self::ClockBack => "clock-back",
            Self::ClockStated => "clock-stated",
            Self::EveryShard => "every-shard",
        }
    }
}

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which.
    pub law: Law,
    /// At which server.
    pub server: ServerId,
    /// At which shard.
    pub shard: ShardId,
    /// What happened, against what should have.
    pub why: String,
    /// The records that show it; the one that broke the law comes first.
    pub events: Vec<Record>,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {}): {}", self.law.name(), self.server, self.shard, self.why)?;
        for event in &self.events {
            write!(f, "\n    {}", Line(event))?;
        }
        Ok(())
    }
}

/// A record in a line.
pub(crate) struct Line<'a>(pub(crate) &'a Record);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.0;
        write!(f, "record {} at {:.6} s: {}", record.number, record.at.0 as f64 * 1e-9, name(record.what))?;
        match record.worker {
            Some(worker) => write!(f, ", {worker} ({})", record.incarnation)?,
            None if matches!(record.what, What::Pull { .. } | What::Serve { .. }) => {
                write!(f, ", an observer")?
            }
            None => return write!(f, ", {}", record.version),
        }
        match record.what {
            What::Push { .. } | What::Verdict { .. } => {
                write!(f, ", {}, {}, {}", record.sequence, record.clock, record.batch)?;
                write!(f, ", pulled {}", record.pulled)?;
            }
            What::Pull { reading, .. } | What::Serve { reading, .. } if reading.is_gated() => {
                write!(f, ", {}, after {}", record.clock, record.sequence)?;
                if let What::Pull { ahead: ahead @ 1.., .. } = record.what {
                    write!(f, ", {ahead} ahead")?;
                }
            }
            What::Enter(_) | What::Reenter => write!(f, ", {}", record.clock)?,
            _ => {}
        }
        write!(f, ", {}", record.version)?;
        match record.minimum {
            Some(minimum) => write!(f, ", minimum {minimum}"),
            None => Ok(()),
        }
    }
}

const fn name(what: What) -> &'static str {
    use slackline_core::consistency::Standing;
    match what {
        What::Enter(Standing::Active) => "enter as active",
        What::Enter(Standing::Joining) => "enter as joining",
        What::Reenter => "enter again",
        What::Finish => "finish",
        What::Remove => "remove",
        What::Start => "start",
        What::Values => "initial values",
        What::Pull { reading: Reading::Snapshot, .. } => "pull of a snapshot",
        What::Pull { reading: Reading::Fresher, fate: PullFate::Held, .. } => "pull of fresher values, held",
        What::Pull { reading: Reading::Fresher, .. } => "pull of fresher values",
        What::Pull { fate: PullFate::Served, .. } => "pull",
        What::Pull { fate: PullFate::Held, .. } => "pull, held",
        What::Pull { fate: PullFate::Ignored, .. } => "pull, ignored",
        What::Serve { reading: Reading::Gated, .. } => "serve",
        What::Serve { reading: Reading::Fresher, .. } => "serve of fresher values",
        What::Serve { reading: Reading::Snapshot, .. } => "serve of a snapshot",
        What::Push { empty: false } => "push",
        What::Push { empty: true } => "push of nothing",
        What::Verdict { duplicate: true, .. } => "the first answer again",
        What::Verdict { verdict, .. } => match verdict {
            Verdict::Applied { down_weighted: false, .. } => "applied",
            Verdict::Applied { down_weighted: true, .. } => "applied with less weight",
            Verdict::Collected => "collected",
            Verdict::Staged => "kept aside until all shards have their piece",
            Verdict::Gathered { .. } => "gathered",
            Verdict::Dropped(Dropped::LateClock { .. }) => "dropped as late",
            Verdict::Dropped(Dropped::TooStale { .. }) => "dropped as too stale",
            Verdict::Dropped(Dropped::Other) => "dropped",
            Verdict::Nothing => "nothing to apply",
            Verdict::NotFinite { .. } => "refused as not finite",
            Verdict::Fenced => "fenced",
            Verdict::OutOfWindow => "refused as out of the window",
            Verdict::WrongKeys => "refused for its keys",
            Verdict::Other => "answered in another way",
        },
        What::Mean => "the mean of what was gathered is applied",
        What::Full => "the trace is full",
        What::End => "the end",
    }
}
