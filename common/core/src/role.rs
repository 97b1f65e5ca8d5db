//! What a peer may do, as its certificate says.

use std::fmt;

use bincode::{Decode, Encode};

/// The role in a certificate. Each can do only its own part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub enum Role {
    /// Owns shards; may stop another server at the end of a run.
    Server,
    /// Joins, pulls and pushes.
    Worker,
    /// Looks, and reads snapshots.
    Observer,
    /// Looks, and may stop servers.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Server, Self::Worker, Self::Observer, Self::Admin];

    /// Lower-case name, as in file names and certificates.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Worker => "worker",
            Self::Observer => "observer",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
