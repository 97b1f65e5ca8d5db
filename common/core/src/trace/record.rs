//! One thing that happened at a shard.

use super::{Damage, Fields, Line, RECORD_BYTES};
use crate::consistency::Standing;
use crate::ids::{BatchIndex, Clock, Incarnation, Moment, Sequence, Version, WorkerId};

/// What happened. The fields of [`Record`] say to whom and with which clocks and versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A worker became a member, at `clock`.
    Enter(Standing),
    /// A member that had finished has work again, at `clock`.
    Reenter,
    /// A member has no work: nobody waits for it.
    Finish,
    /// A worker is no member any more.
    Remove,
    /// All workers that the run begins with are members.
    Start,
    /// The shard has its initial values.
    Values,
    /// A pull has arrived: of a worker that has completed `clock` iterations less those that it is ahead, and wants its pushes up to
    /// `sequence` in the values; or of anybody for a snapshot.
    Pull {
        /// What for.
        reading: Reading,
        /// What became of it at once.
        fate: PullFate,
        /// How many of the `clock` iterations its worker has not completed yet.
        ahead: u8,
    },
    /// Values of `version` were sent to whoever had pulled with `clock` and `sequence`.
    Serve {
        /// What for.
        reading: Reading,
        /// How far the shard says that the reader lay above `minimum`.
        lead: u64,
    },
    /// A push has arrived: of the iteration `clock`, computed on version `pulled`.
    Push {
        /// It has no gradient for this shard.
        empty: bool,
    },
    /// The mean of all pushes that were gathered made `version`.
    Mean,
    /// What became of a push.
    Verdict {
        /// What.
        verdict: Verdict,
        /// It had been answered before, and this is the first answer again.
        duplicate: bool,
    },
    /// The trace has reached its size and ends here; the run went on.
    Full,
    /// The shard's owner ended in order.
    End,
}

/// What a pull is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The values as they are.
    Snapshot,
    /// The next iteration: gated by the clock.
    Gated,
    /// The same anew, once the minimum clock has risen above the one of the values that the reader has (`reached`).
    Fresher,
}

impl Reading {
    const ALL: [Self; 3] = [Self::Snapshot, Self::Gated, Self::Fresher];

    const fn flags(self) -> u8 {
        match self {
            Self::Snapshot => 0,
            Self::Gated => 1,
            Self::Fresher => 2,
        }
    }

    /// Whether the clock gates it.
    #[must_use]
    pub const fn is_gated(self) -> bool {
        !matches!(self, Self::Snapshot)
    }
}

/// What became of a pull when it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullFate {
    /// It was served; the record stands among those that follow directly.
    Served,
    /// It waits.
    Held,
    /// Its worker is no member: there is nobody to answer.
    Ignored,
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is in the values since `version`.
    Applied {
        /// How many versions the shard says had passed between its pull and its apply.
        staleness: u64,
        /// It counted for less than a fresh one.
        down_weighted: bool,
    },
    /// It is kept until others are there, and answered then.
    Collected,
    /// It is kept aside until all shards have their piece of the step. It does not count before that.
    Staged,
    /// It is kept until others are there, and was answered when it came.
    Gathered {
        /// How many versions the shard says had passed since its pull.
        staleness: u64,
        /// It counts for less than a fresh one.
        down_weighted: bool,
    },
    /// It is counted and left out.
    Dropped(Dropped),
    /// It had nothing for the shard.
    Nothing,
    /// It was left out, since the value of a key is no finite number.
    NotFinite {
        /// The first such key.
        key: u64,
    },
    /// Its worker is no member.
    Fenced,
    /// It is outside the window of pushes.
    OutOfWindow,
    /// It does not fit the shard.
    WrongKeys,
    /// Something that this format has no number for.
    Other,
}

/// Why a push was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Its clock was closed without it.
    LateClock {
        /// The clock that was open.
        open: Clock,
    },
    /// Too many versions had passed since its pull.
    TooStale {
        /// How many.
        staleness: u64,
    },
    /// Something that this format has no number for.
    Other,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the trace, from 0 without a gap.
    pub number: u32,
    /// When, counted from the server's beginning.
    pub at: Moment,
    /// What.
    pub what: What,
    /// The worker it is about; none where it is about nobody or an observer.
    pub worker: Option<WorkerId>,
    /// The worker's incarnation.
    pub incarnation: Incarnation,
    /// The worker's clock, as the event states it.
    pub clock: Clock,
    /// Number of the push; for a pull, of the last push it must see.
    pub sequence: Sequence,
    /// The shard's version then: the one served, the one made, or the present one.
    pub version: Version,
    /// The version that a push was computed on.
    pub pulled: Version,
    /// The smallest clock of the active workers, as the shard counts it; none when nobody is active.
    pub minimum: Option<Clock>,
    /// For a verdict: the worker's clock at the shard, as it was told to the worker. For a pull of fresher values: the minimum clock of
    /// those that the reader has.
    pub reached: Option<Clock>,
    /// The batch of a push.
    pub batch: BatchIndex,
    /// Samples of a push.
    pub samples: u32,
}

impl Record {
    /// A record about nobody, for the writer to fill in.
    #[must_use]
    pub fn new(number: u32, at: Moment, what: What) -> Self {
        Self {
            number,
            at,
            what,
            worker: None,
            incarnation: Incarnation(0),
            clock: Clock(0),
            sequence: Sequence(0),
            version: Version(0),
            pulled: Version(0),
            minimum: None,
            reached: None,
            batch: BatchIndex(0),
            samples: 0,
        }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let Code { kind, code, flags, extra } = Code::of(self.what);
        let mut line = Line::new();
        line.put(&[kind, code, flags, 0]);
        line.u32(self.number);
        line.u32(self.worker.map_or(NOBODY, |worker| worker.0));
        line.u32(self.samples);
        line.u64(self.at.0);
        line.u64(self.incarnation.0);
        line.u64(self.clock.0);
        line.u64(self.sequence.0);
        line.u64(self.version.0);
        line.u64(self.pulled.0);
        line.u64(self.minimum.map_or(NO_CLOCK, |clock| clock.0));
        line.u64(self.reached.map_or(NO_CLOCK, |clock| clock.0));
        line.u64(self.batch.0);
        line.u64(extra);
        line.bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`Damage`] when they are no record.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Self, Damage> {
        let mut fields = Fields { bytes };
        let (kind, code, flags, zero) = (fields.u8(), fields.u8(), fields.u8(), fields.u8());
        if zero != 0 {
            return Err(Damage::Field { field: "the fourth byte", found: u64::from(zero) });
        }
        let number = fields.u32();
        let worker = Some(fields.u32()).filter(|worker| *worker != NOBODY).map(WorkerId);
        let samples = fields.u32();
        let at = Moment(fields.u64());
        let incarnation = Incarnation(fields.u64());
        let (clock, sequence) = (Clock(fields.u64()), Sequence(fields.u64()));
        let (version, pulled) = (Version(fields.u64()), Version(fields.u64()));
        let mut a_clock = || Some(fields.u64()).filter(|clock| *clock != NO_CLOCK).map(Clock);
        let (minimum, reached) = (a_clock(), a_clock());
        let batch = BatchIndex(fields.u64());
        let what = Code { kind, code, flags, extra: fields.u64() }.what()?;
        Ok(Self {
            number,
            at,
            what,
            worker,
            incarnation,
            clock,
            sequence,
            version,
            pulled,
            minimum,
            reached,
            batch,
            samples,
        })
    }
}

/// Stands for no worker.
const NOBODY: u32 = u32::MAX;

/// Stands for no clock.
const NO_CLOCK: u64 = u64::MAX;

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Code {
    kind: u8,
    code: u8,
    flags: u8,
    extra: u64,
}

impl Code {
    fn of(what: What) -> Self {
        let plain = |kind| Self { kind, code: 0, flags: 0, extra: 0 };
        match what {
            What::Enter(Standing::Active) => Self { code: 1, ..plain(1) },
            What::Enter(Standing::Joining) => Self { code: 2, ..plain(1) },
            What::Reenter => plain(2),
            What::Finish => plain(3),
            What::Remove => plain(4),
            What::Start => plain(5),
            What::Values => plain(6),
            What::Pull { reading, fate, ahead } => {
                let code = match fate {
                    PullFate::Served => 1,
                    PullFate::Held => 2,
                    PullFate::Ignored => 3,
                };
                Self { code, flags: reading.flags(), extra: u64::from(ahead), ..plain(7) }
            }
            What::Serve { reading, lead } => Self { flags: reading.flags(), extra: lead, ..plain(8) },
            What::Push { empty } => Self { flags: u8::from(empty), ..plain(9) },
            What::Verdict { verdict, duplicate } => {
                let (code, weighted, extra) = verdict.code();
                Self { kind: 10, code, flags: u8::from(duplicate) | u8::from(weighted) << 1, extra }
            }
            What::Full => plain(11),
            What::End => plain(12),
            What::Mean => plain(13),
        }
    }

    fn what(self) -> Result<What, Damage> {
        let first = self.flags & 1 != 0;
        let reading = Reading::ALL.into_iter().find(|reading| reading.flags() == self.flags);
        let wrong = |field, found: u8| Damage::Field { field, found: u64::from(found) };
        let reading = || reading.ok_or_else(|| wrong("what the pull is for", self.flags));
        let ahead = || {
            let field = "how far the pull is ahead";
            u8::try_from(self.extra).map_err(|_| Damage::Field { field, found: self.extra })
        };
        let what = match (self.kind, self.code) {
            (1, 1) => What::Enter(Standing::Active),
            (1, 2) => What::Enter(Standing::Joining),
            (2, _) => What::Reenter,
            (3, _) => What::Finish,
            (4, _) => What::Remove,
            (5, _) => What::Start,
            (6, _) => What::Values,
            (7, 1) => What::Pull { reading: reading()?, fate: PullFate::Served, ahead: ahead()? },
            (7, 2) => What::Pull { reading: reading()?, fate: PullFate::Held, ahead: ahead()? },
            (7, 3) => What::Pull { reading: reading()?, fate: PullFate::Ignored, ahead: ahead()? },
            (8, _) => What::Serve { reading: reading()?, lead: self.extra },
            (9, _) => What::Push { empty: first },
            (10, code) => {
                let verdict = Verdict::of_code(code, self.flags & 2 != 0, self.extra);
                let verdict = verdict.ok_or_else(|| wrong("the verdict", code))?;
                What::Verdict { verdict, duplicate: first }
            }
            (11, _) => What::Full,
            (12, _) => What::End,
            (13, _) => What::Mean,
            (1 | 7, code) => return Err(wrong("the second byte", code)),
            (kind, _) => return Err(wrong("the kind of the record", kind)),
        };
        // Bytes without a meaning are zero, so that one that was changed is noticed.
        let same = Self::of(what);
        if same == self {
            return Ok(what);
        }
        let found = if same.extra == self.extra { u64::from(self.flags) } else { self.extra };
        Err(Damage::Field { field: "a field without a meaning", found })
    }
}

impl Verdict {
    /// Number, whether it weighs less, and the number that belongs to it.
    const fn code(self) -> (u8, bool, u64) {
        match self {
            Self::Applied { staleness, down_weighted } => (1, down_weighted, staleness),
            Self::Collected => (2, false, 0),
            Self::Dropped(Dropped::LateClock { open }) => (3, false, open.0),
            Self::Dropped(Dropped::TooStale { staleness }) => (4, false, staleness),
            Self::Dropped(Dropped::Other) => (5, false, 0),
            Self::Nothing => (6, false, 0),
            Self::NotFinite { key } => (7, false, key),
            Self::Fenced => (8, false, 0),
            Self::OutOfWindow => (9, false, 0),
            Self::WrongKeys => (10, false, 0),
            Self::Other => (11, false, 0),
            Self::Gathered { staleness, down_weighted } => (12, down_weighted, staleness),
            Self::Staged => (13, false, 0),
        }
    }

    const fn of_code(code: u8, down_weighted: bool, extra: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Applied { staleness: extra, down_weighted },
            2 => Self::Collected,
            3 => Self::Dropped(Dropped::LateClock { open: Clock(extra) }),
            4 => Self::Dropped(Dropped::TooStale { staleness: extra }),
            5 => Self::Dropped(Dropped::Other),
            6 => Self::Nothing,
            7 => Self::NotFinite { key: extra },
            8 => Self::Fenced,
            9 => Self::OutOfWindow,
            10 => Self::WrongKeys,
            11 => Self::Other,
            12 => Self::Gathered { staleness: extra, down_weighted },
            13 => Self::Staged,
            _ => return None,
        })
    }
}
