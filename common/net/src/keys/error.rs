//! Why keys cannot be made or used.

use std::io;
use std::path::PathBuf;

use slackline_core::role::Role;

/// Why keys cannot be made or used. Each names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The directory or one of its files is not there.
    #[error("{} is missing: `slackline keys init {}` makes the keys", file.display(), directory.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The directory of keys.
        directory: PathBuf,
    },
    /// The authority's key is not there, which is as it should be on every machine but one.
    #[error("{} is missing: use the directory that `slackline keys init` made, not a machine's copy", file.display())]
    NoAuthorityKey {
        /// The file.
        file: PathBuf,
    },
    /// The operating system does not let the file be read or written.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The file holds no certificate, key or list in PEM.
    #[error("{} holds no {wanted}: replace it with the file that `slackline keys` made", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What was looked for.
        wanted: &'static str,
    },
    /// Certificate and key are not a pair.
    #[error("{} is not the key of {}: copy both from one key directory", key.display(), certificate.display())]
    NotAPair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The certificate was signed by another authority than the one beside it.
    #[error(
        "{} was not signed by the authority {}: the wrong key directory was copied",
        certificate.display(), authority.display()
    )]
    OtherAuthority {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the authority's certificate.
        authority: PathBuf,
    },
    /// The certificate does not let others connect to its owner. Workers' did not before they connected to each other.
    #[error(
        "{} lets nobody connect to a {role}: it was made by an older version; make new keys with `slackline keys init DIR`",
        certificate.display()
    )]
    CannotListen {
        /// The file of the certificate.
        certificate: PathBuf,
        /// Its role.
        role: Role,
    },
    /// The certificate is one of another role than its file says.
    #[error("{} is not a certificate of the role {role}", certificate.display())]
    OtherRole {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The role it was to have.
        role: Role,
    },
    /// The certificate holds no more.
    #[error(
        "{}: the certificate of {whose} expired on {until}; `slackline keys renew DIR {name}` where the authority is makes a new \
         one: copy it here",
        certificate.display()
    )]
    Expired {
        /// The file of the certificate.
        certificate: PathBuf,
        /// Whose it is.
        whose: String,
        /// What `keys renew` calls its owner.
        name: String,
        /// Its last minute.
        until: String,
    },
    /// The certificate does not hold yet.
    #[error(
        "{}: the certificate of {whose} holds from {from} on, and this machine's clock says {now}: set the clock",
        certificate.display()
    )]
    NotYetValid {
        /// The file of the certificate.
        certificate: PathBuf,
        /// Whose it is.
        whose: String,
        /// Its first minute.
        from: String,
        /// What the clock says.
        now: String,
    },
    /// The certificate was revoked.
    #[error(
        "{}: the certificate of {whose} was revoked; `slackline keys renew DIR {name}` where the authority is makes a new one, if its \
         owner is to come back",
        certificate.display()
    )]
    Revoked {
        /// The file of the certificate.
        certificate: PathBuf,
        /// Whose it is.
        whose: String,
        /// What `keys renew` calls its owner.
        name: String,
    },
    /// No authority in the file holds any more, or yet.
    #[error(
        "{}: no authority in it holds today (the last one until {until}); `slackline keys rotate DIR` makes a new one",
        authority.display()
    )]
    AuthorityExpired {
        /// The file of the authorities.
        authority: PathBuf,
        /// The last minute of the one that holds longest.
        until: String,
    },
    /// The revocation list was not made by the authority whose name it has.
    #[error("{} was not signed by the authority in {}: copy both from one key directory", list.display(), authority.display())]
    ForeignList {
        /// The file of the list.
        list: PathBuf,
        /// The file of the authorities.
        authority: PathBuf,
    },
    /// The revocation list is older than the one in force, or is gone.
    #[error("{} is older than the revocation list in force: copy the newest from the directory of the authority", list.display())]
    OlderList {
        /// The file of the list.
        list: PathBuf,
    },
    /// An authority of before there were revocation lists.
    #[error(
        "the authority in {} may not revoke, as it was made by an older version: `slackline keys rotate DIR` makes one that may",
        authority.display()
    )]
    CannotRevoke {
        /// The file of the authorities.
        authority: PathBuf,
    },
    /// Only the authority that has signed a certificate can take it back, and that one's key is not here.
    #[error(
        "{whose} was signed by an authority of {} whose key is not in {}: nothing was revoked; put that key back there, or end the trust in that \
         authority with `slackline keys rotate DIR --finish`; one certificate alone is revoked by its serial or file",
        authority.display(), key.display()
    )]
    KeyElsewhere {
        /// Whose it is, with its serial.
        whose: String,
        /// The file of the authorities.
        authority: PathBuf,
        /// The file of their keys.
        key: PathBuf,
    },
    /// More revocation lists than are read.
    #[error(
        "{} holds more than {most} revocation lists: copy it from the directory of the authority, after `slackline keys rotate DIR --finish` there",
        list.display()
    )]
    TooManyLists {
        /// The file of the lists.
        list: PathBuf,
        /// How many are read.
        most: usize,
    },
    /// One authority more would make the file unreadable.
    #[error(
        "{} holds {most} authorities, and no more are read: end the trust in the old ones with `slackline keys rotate DIR --finish`",
        authority.display()
    )]
    TooManyAuthorities {
        /// The file of the authorities.
        authority: PathBuf,
        /// How many are read.
        most: usize,
    },
    /// A rotation cannot end while a certificate of the old authority is in use.
    #[error(
        "{} is of an old authority: `slackline keys renew DIR` first, and bring the new certificates to the machines",
        certificate.display()
    )]
    OldAuthority {
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// There is an authority already; a second one would lock out everything that was started with the first.
    #[error(
        "{} already holds an authority; choose another directory, or delete this one if nothing uses its keys",
        directory.display()
    )]
    Exists {
        /// The directory of keys.
        directory: PathBuf,
    },
    /// A certificate of that role was issued under that name before.
    #[error("{} is there already: `slackline keys renew DIR {name}` makes a new one", file.display())]
    NameTaken {
        /// The file of the certificate.
        file: PathBuf,
        /// The name.
        name: String,
    },
    /// No certificate can have that name.
    #[error(
        "{name:?} is no name for a certificate: write 1 to 63 letters, digits, '-', '_' or '.', and not the name of a role"
    )]
    BadName {
        /// What was asked for.
        name: String,
    },
    /// No certificate is meant by that.
    #[error(
        "{what:?} is no serial, name or certificate of {}: `slackline keys show DIR` lists them", directory.display()
    )]
    Unknown {
        /// What was asked for.
        what: String,
        /// The directory of keys.
        directory: PathBuf,
    },
    /// A certificate could not be made or set up.
    #[error("the keys cannot be used: {reason}")]
    Rejected {
        /// What the library said.
        reason: String,
    },
}

/// What a library refused.
pub(crate) fn rejected(error: impl std::fmt::Display) -> KeysError {
    KeysError::Rejected { reason: error.to_string() }
}
