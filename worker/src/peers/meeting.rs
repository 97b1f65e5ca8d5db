//! How two workers of a group meet: hellos both ways, and what is said to a stranger.
//!
//! The listening side speaks first, once it is in a group itself. A worker that dials for a group which the other has not heard of
//! yet is kept until it has; one that dials for a group which is over is sent away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::ids::{Generation, WorkerId};
use slackline_core::wire::{Group, Hello, PeerMessage, Stranger, Text};
use slackline_net::{CloseCode, Connection, ConnectionError, ControlReceiver, ControlSender};
use tokio::sync::watch;

use super::news::{Gravity, Place};

/// How long the last words to a stranger are tried to be said.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a group is, as far as meeting goes.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) group: Group,
    pub(crate) position: u32,
    /// What this worker says.
    pub(crate) hello: Hello,
    /// Positions that this worker is to be connected with.
    pub(crate) wanted: Vec<u32>,
}

/// The group that a worker is in now, if it is in one.
pub(crate) type Present = watch::Receiver<Option<Arc<Meeting>>>;

/// Another worker of the group whose hello is right.
#[derive(Debug)]
pub(crate) struct Acquaintance {
    pub(crate) generation: Generation,
    pub(crate) position: u32,
    pub(crate) connection: Connection,
    pub(crate) sender: ControlSender,
    pub(crate) receiver: ControlReceiver,
    /// Until the driver takes it, one that has called counts as not met.
    pub(crate) place: Place,
}

/// Why two workers have not met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unmet {
    /// What they say of themselves does not go together.
    #[error(transparent)]
    Stranger(#[from] Stranger),
    /// A worker of this run that is not in the group, or not to be connected with this one.
    #[error("{worker} called for {generation}, where it has nothing to say to this worker")]
    Uncalled { worker: WorkerId, generation: Generation },
    /// The other side does not want this one.
    #[error("{0}")]
    Refused(String),
    /// Something else than a hello.
    #[error("it said something else than a hello")]
    OutOfPlace,
    /// The connection ended first.
    #[error(transparent)]
    Ended(#[from] ConnectionError),
    /// Nothing came of it within a lease.
    #[error("it has not said what it wants within {:.1} s", .0.as_secs_f64())]
    Silent(Duration),
}

impl Unmet {
    /// Whether it can be otherwise the next time.
    pub(crate) const fn is_passing(&self) -> bool {
        match self {
            Self::Stranger(stranger) => stranger.is_passing(),
            Self::Uncalled { .. } | Self::OutOfPlace | Self::Refused(_) => false,
            // Whoever closes without a word has no place or no group, and may have both later.
            Self::Ended(error) => !matches!(error, ConnectionError::Wire(_) | ConnectionError::Torn),
            Self::Silent(_) => true,
        }
    }
}

impl Unmet {
    /// What follows for the side that has called. One at whose address somebody else listens has told others a wrong one.
    pub(crate) const fn gravity(&self) -> Gravity {
        match self {
            Self::Stranger(Stranger::Run { .. } | Stranger::Other { .. }) => Gravity::Misled,
            // What the other refuses in passing, it says in words alone; it may be otherwise a moment later.
            Self::Refused(_) => Gravity::Passing,
            unmet if unmet.is_passing() => Gravity::Passing,
            _ => Gravity::Fatal,
        }
    }
}

impl Meeting {
    /// The worker at a position, with its address.
    pub(crate) fn named(&self, position: u32) -> String {
        named(&self.group, position)
    }

    /// The position of a worker that has called, if it is right here.
    fn caller(&self, theirs: &Hello) -> Result<u32, Unmet> {
        let position = self.group.position_of(theirs.worker);
        let member = position.and_then(|position| self.group.members.get(position as usize));
        let incarnation = member.map_or(theirs.incarnation, |member| member.incarnation);
        self.hello.check(theirs, theirs.worker, incarnation)?;
        position
            .filter(|position| *position > self.position && self.wanted.contains(position))
            .ok_or(Unmet::Uncalled { worker: theirs.worker, generation: self.hello.generation })
    }
}

/// The worker at a position of a group, with its address.
pub(crate) fn named(group: &Group, position: u32) -> String {
    match group.members.get(position as usize) {
        Some(member) => format!("{} at {}", member.worker, member.address),
        None => format!("position {position}"),
    }
}

/// The listening side of a meeting, without the bound on its time. A stranger is told why.
pub(crate) async fn answer(
    connection: Connection,
    present: Present,
) -> Result<Acquaintance, (Unmet, Option<Hello>)> {
    let (mut sender, mut receiver) = connection.open_control().await.map_err(|error| (error.into(), None))?;
    let mut heard = None;
    match listen(&mut sender, &mut receiver, present, &mut heard).await {
        Ok((generation, position)) => {
            let place = None;
            Ok(Acquaintance { generation, position, connection, sender, receiver, place })
        }
        Err(unmet) => {
            part(connection, sender, &unmet).await;
            Err((unmet, heard))
        }
    }
}

async fn listen(
    sender: &mut ControlSender,
    receiver: &mut ControlReceiver,
    mut present: Present,
    heard: &mut Option<Hello>,
) -> Result<(Generation, u32), Unmet> {
    let mut said = None;
    loop {
        let meeting = present.borrow_and_update().clone();
        let newest = heard.map(|hello: Hello| hello.generation);
        let meeting =
            meeting.filter(|meeting| newest.is_none_or(|newest| newest <= meeting.hello.generation));
        let changed =
            async { present.changed().await.map_err(|_| Unmet::Ended(ConnectionError::ClosedHere)) };
        let Some(meeting) = meeting else {
            tokio::select! {
                changed = changed => changed?,
                // Nothing is to come before this side has spoken but the end.
                message = receiver.receive::<PeerMessage>() => return Err(unexpected(message)),
            }
            continue;
        };
        if said.replace(meeting.hello.generation) != Some(meeting.hello.generation) {
            sender.send(&PeerMessage::Hello(meeting.hello)).await?;
        }
        let theirs = match *heard {
            Some(theirs) => theirs,
            None => tokio::select! {
                changed = changed => {
                    changed?;
                    continue;
                }
                message = receiver.receive::<PeerMessage>() => match message? {
                    Some(PeerMessage::Hello(hello)) => *heard.insert(hello),
                    message => return Err(unexpected(Ok(message))),
                }
            },
        };
        match meeting.caller(&theirs) {
            Err(Unmet::Stranger(Stranger::Generation { theirs, ours, .. })) if theirs > ours => {}
            outcome => return outcome.map(|position| (meeting.hello.generation, position)),
        }
    }
}

/// The calling side: `position` is who is called. A stranger is told why.
pub(crate) async fn call(
    connection: Connection,
    meeting: &Meeting,
    position: u32,
) -> Result<Acquaintance, Unmet> {
    let (mut sender, mut receiver) = connection.accept_control().await?;
    match converse(&mut sender, &mut receiver, meeting, position).await {
        Ok(()) => {
            let (generation, place) = (meeting.hello.generation, None);
            Ok(Acquaintance { generation, position, connection, sender, receiver, place })
        }
        Err(unmet) => {
            part(connection, sender, &unmet).await;
            Err(unmet)
        }
    }
}

async fn converse(
    sender: &mut ControlSender,
    receiver: &mut ControlReceiver,
    meeting: &Meeting,
    position: u32,
) -> Result<(), Unmet> {
    let Some(member) = meeting.group.members.get(position as usize) else { return Err(Unmet::OutOfPlace) };
    let mut has_spoken = false;
    loop {
        let theirs = match receiver.receive::<PeerMessage>().await? {
            Some(PeerMessage::Hello(theirs)) => theirs,
            message => return Err(unexpected(Ok(message))),
        };
        let verdict = meeting.hello.check(&theirs, member.worker, member.incarnation);
        // The other side is to know who it is that goes away again, too; but one that was not meant is not to take this worker for one
        // that calls it.
        let is_meant = !matches!(verdict, Err(Stranger::Other { .. }));
        if is_meant && !std::mem::replace(&mut has_spoken, true) {
            sender.send(&PeerMessage::Hello(meeting.hello)).await?;
        }
        match verdict {
            Err(Stranger::Generation { theirs, ours, .. }) if theirs < ours => {}
            outcome => return Ok(outcome?),
        }
    }
}

fn unexpected(message: Result<Option<PeerMessage>, ConnectionError>) -> Unmet {
    match message {
        Ok(Some(PeerMessage::Refused(text))) => Unmet::Refused(text.shown()),
        Ok(Some(_)) => Unmet::OutOfPlace,
        Ok(None) => Unmet::Ended(ConnectionError::Closed { code: CloseCode::Done, reason: String::new() }),
        Err(error) => Unmet::Ended(error),
    }
}

/// Says why, unless the other side has said so or is gone, and closes.
async fn part(connection: Connection, mut sender: ControlSender, unmet: &Unmet) {
    let text = unmet.to_string();
    if !matches!(unmet, Unmet::Ended(_) | Unmet::Refused(_)) {
        let _ = tokio::time::timeout(LAST_WORDS, async {
            if sender.send(&PeerMessage::Refused(Text::new(text.as_str()))).await.is_ok() {
                sender.finish().await;
            }
        })
        .await;
    }
    connection.close(CloseCode::Refused, &text);
}

/// What was heard last of those who are not there yet, by position.
pub(crate) type LastWords = BTreeMap<u32, String>;
