//! What a trace says of itself before its first record.

use super::{Damage, FORMAT, Fields, HEADER_BYTES, Line, MAGIC, RECORD_BYTES};
use crate::consistency::PolicySpec;
use crate::ids::{KeyRange, ServerId, ShardId};

/// Bytes of the policy's name.
const POLICY_BYTES: usize = 64;

/// A policy and its numbers, as a trace states them: what the records are to be held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// In step: the mean of one clock's pushes applied once, read when the clock is closed.
    Bsp,
    /// Stale-synchronous with a bound.
    Ssp {
        /// The bound s, in iterations.
        staleness: u64,
    },
    /// Asynchronous.
    Asp,
    /// Stale-synchronous, with fresh values published as clocks complete.
    Essp {
        /// The bound s, in iterations.
        staleness: u64,
    },
    /// A bound that moves within a range.
    Dssp {
        /// Its smallest value.
        low: u64,
        /// Its largest value, which nothing may exceed.
        high: u64,
    },
    /// A clock closes without the last `late` pushes.
    Backup {
        /// Workers that a clock does not wait for.
        late: u64,
    },
    /// An apply takes so many pushes, and those that come within the grace.
    Quorum {
        /// Pushes that an apply takes; none for one of each active worker.
        count: Option<u64>,
        /// How long a complete quorum waits for more after its last push, in nanoseconds.
        grace_ns: u64,
        /// Whether a reader waits until its own push is in the values.
        holds: bool,
    },
    /// An apply takes so many pushes, and readers never wait.
    Buffer {
        /// Pushes that an apply takes; none for one of each active worker.
        count: Option<u64>,
    },
    /// A policy that this format has no number for: only what holds under every policy can be checked.
    Other,
}

impl Rule {
    /// Kind, two numbers and the grace.
    const fn numbers(self) -> (u32, [u64; 3]) {
        match self {
            Self::Bsp => (1, [0; 3]),
            Self::Ssp { staleness } => (2, [staleness, 0, 0]),
            Self::Asp => (3, [0; 3]),
            Self::Essp { staleness } => (4, [staleness, 0, 0]),
            Self::Dssp { low, high } => (5, [low, high, 0]),
            Self::Backup { late } => (6, [late, 0, 0]),
            Self::Quorum { count, grace_ns, holds } => (7, [counted(count), holds as u64, grace_ns]),
            Self::Buffer { count } => (8, [counted(count), 0, 0]),
            Self::Other => (9, [0; 3]),
        }
    }

    fn of_numbers(kind: u32, numbers: [u64; 3]) -> Result<Self, Damage> {
        let [first, second, grace_ns] = numbers;
        let rule = match kind {
            1 => Self::Bsp,
            2 => Self::Ssp { staleness: first },
            3 => Self::Asp,
            4 => Self::Essp { staleness: first },
            5 => Self::Dssp { low: first, high: second },
            6 => Self::Backup { late: first },
            7 => Self::Quorum { count: first.checked_sub(1), grace_ns, holds: second != 0 },
            8 => Self::Buffer { count: first.checked_sub(1) },
            9 => Self::Other,
            _ => return Err(Damage::Field { field: "the kind of its policy", found: u64::from(kind) }),
        };
        let unused = rule.numbers().1.into_iter().zip(numbers).find(|(used, found)| used != found);
        match unused {
            Some((_, found)) => Err(Damage::Field { field: "a number of its policy", found }),
            None => Ok(rule),
        }
    }
}

/// A count with room for "all": one more than it, and zero for that.
const fn counted(count: Option<u64>) -> u64 {
    match count {
        Some(count) => count.saturating_add(1),
        None => 0,
    }
}

impl From<PolicySpec> for Rule {
    fn from(policy: PolicySpec) -> Self {
        match policy {
            PolicySpec::Bsp => Self::Bsp,
            PolicySpec::Ssp { staleness } => Self::Ssp { staleness },
            PolicySpec::Asp => Self::Asp,
            PolicySpec::Essp { staleness } => Self::Essp { staleness },
            PolicySpec::Dssp { low, high } => Self::Dssp { low, high },
            PolicySpec::Backup { late } => Self::Backup { late: u64::from(late) },
            PolicySpec::Quorum { count, grace, holds } => {
                let grace_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
                Self::Quorum { count: count.map(u64::from), grace_ns, holds }
            }
            PolicySpec::Buffer { count } => Self::Buffer { count: count.map(u64::from) },
        }
    }
}

/// What a trace is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The server.
    pub server: ServerId,
    /// The shard.
    pub shard: ShardId,
    /// The shard's keys.
    pub keys: KeyRange,
    /// Keys of the run: the shards' keys together are all of them.
    pub key_count: u64,
    /// Servers of the run.
    pub servers: u32,
    /// Shards of the run that have keys, over all servers.
    pub shards: u32,
    /// Workers that the run begins with.
    pub workers: u32,
    /// Fingerprint of the configuration: the traces of one run have the same.
    pub config_hash: u64,
    /// When the server began, in nanoseconds of Unix time: moments of records count from there.
    pub began_unix_ns: u64,
    /// The policy.
    pub rule: Rule,
    /// The policy as the server names it, for reports; at most 64 bytes of it are written.
    pub policy: String,
    /// Iterations that values may be pulled ahead. Zero in traces of before there was that.
    pub prefetch: u32,
}

impl Header {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut line = Line::new();
        line.put(&MAGIC);
        line.u32(FORMAT);
        line.u32(HEADER_BYTES as u32);
        line.u32(RECORD_BYTES as u32);
        line.u32(self.server.0);
        line.u32(self.shard.0);
        line.u32(self.servers);
        line.u32(self.shards);
        line.u32(self.workers);
        line.u64(self.keys.start);
        line.u64(self.keys.len);
        line.u64(self.key_count);
        line.u64(self.config_hash);
        line.u64(self.began_unix_ns);
        let (kind, numbers) = self.rule.numbers();
        line.u32(kind);
        let policy = self.policy_cut();
        line.u32(policy.len() as u32);
        for number in numbers {
            line.u64(number);
        }
        line.put(policy.as_bytes());
        line.put(&[0; POLICY_BYTES][policy.len()..]);
        line.u32(self.prefetch);
        line.bytes
    }

    /// The policy's name, cut at a character border.
    fn policy_cut(&self) -> &str {
        let mut end = self.policy.len().min(POLICY_BYTES);
        while !self.policy.is_char_boundary(end) {
            end -= 1;
        }
        &self.policy[..end]
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`Damage`] when they are not a header of this format.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Damage> {
        let mut fields = Fields { bytes };
        if fields.take::<8>() != MAGIC {
            return Err(Damage::Magic);
        }
        let found = fields.u32();
        if found != FORMAT {
            return Err(Damage::Format { found });
        }
        for (field, size) in [("its header's size", HEADER_BYTES), ("its records' size", RECORD_BYTES)] {
            let found = u64::from(fields.u32());
            if found != size as u64 {
                return Err(Damage::Field { field, found });
            }
        }
        let (server, shard) = (ServerId(fields.u32()), ShardId(fields.u32()));
        let (servers, shards, workers) = (fields.u32(), fields.u32(), fields.u32());
        let keys = KeyRange { start: fields.u64(), len: fields.u64() };
        let key_count = fields.u64();
        let (config_hash, began_unix_ns) = (fields.u64(), fields.u64());
        let (kind, length) = (fields.u32(), fields.u32());
        let rule = Rule::of_numbers(kind, [fields.u64(), fields.u64(), fields.u64()])?;
        let text = fields.take::<POLICY_BYTES>();
        let policy = text.get(..length as usize).and_then(|text| std::str::from_utf8(text).ok());
        let policy = policy.ok_or(Damage::Text)?.to_owned();
        let prefetch = fields.u32();
        Ok(Self {
            server,
            shard,
            keys,
            key_count,
            servers,
            shards,
            workers,
            config_hash,
            began_unix_ns,
            rule,
            policy,
            prefetch,
        })
    }
}
