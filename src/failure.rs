//! How a command ends when it does not end well: a line or two for the user, and the exit code.

use std::fmt;

/// Exit code of what the user can mend.
pub(crate) const USER: u8 = 2;

/// Exit code of what the world did.
pub(crate) const WORLD: u8 = 1;

/// A command that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
}

impl Failure {
    /// The user can mend it.
    pub(crate) fn user(text: impl fmt::Display) -> Self {
        Self { code: USER, text: text.to_string() }
    }

    /// The world must change.
    pub(crate) fn world(text: impl fmt::Display) -> Self {
        Self { code: WORLD, text: text.to_string() }
    }

    /// One of the two.
    pub(crate) fn of(is_users: bool, text: impl fmt::Display) -> Self {
        if is_users { Self::user(text) } else { Self::world(text) }
    }
}
