//! The coordinator over a restart of its process: all that it knows as bytes, and the events after that, taken in once more.
//!
//! Control is deterministic, so a state and the events that came after it make the same control again, whatever was decided: a shell
//! that keeps an event before it lets out what followed from it loses nothing that anybody was told. Then the sessions of the process before are void,
//! all leases begin anew (nobody is blamed for the time in which the coordinator was away), and this server's own memory counts as lost.

use bincode::{Decode, Encode};
use slackline_core::ids::{Moment, ServerId, SessionId};
use slackline_core::wire::{RefusedCounts, WireError, decode_state, encode_state};

use super::members::Members;
use super::places::Places;
use super::{Control, ControlEffect, ControlEvent, ControlSettings, End, Session, cluster, coordinator};

/// The form of the bytes; another one is not read.
const FORM: u32 = 5;

/// Why a state cannot be kept or taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// An allreduce has no servers that could go on without the coordinator.
    #[error("the coordinator of an allreduce keeps no state: start the run again")]
    Allreduce,
    /// The bytes are no state.
    #[error("the coordinator's state cannot be read: {0}")]
    Unreadable(#[from] WireError),
    /// The bytes are of another version of the program.
    #[error(
        "the coordinator's state has form {found}, this program reads form {FORM}; use the program that wrote it"
    )]
    Form {
        /// Its form.
        found: u32,
    },
    /// The state is of another run.
    #[error(
        "the coordinator's state is of a run with another model or configuration; give the same, or another cluster.state"
    )]
    OtherRun,
}

/// All that is kept.
#[derive(Encode, Decode)]
struct Image {
    form: u32,
    layout_hash: u64,
    config_hash: u64,
    began: Moment,
    latest: Moment,
    started: bool,
    shards_started: bool,
    batch_count: Option<u64>,
    ended: Option<End>,
    refused: RefusedCounts,
    sessions: Vec<(SessionId, Session)>,
    server_sessions: Vec<(ServerId, SessionId)>,
    members: Members,
    places: Places,
    cluster: Option<cluster::Kept>,
    coordinator: coordinator::Kept,
}

impl Control {
    /// The sessions without those of observers: that they came and went is not among the events that are kept.
    fn sessions_that_count(&self) -> Vec<(SessionId, Session)> {
        let that_count = self.sessions.iter().filter(|(id, _)| !self.looks_on(**id));
        that_count.map(|(id, session)| (*id, session.clone())).collect()
    }

    /// All that control is, as bytes. Only on server 0.
    ///
    /// # Errors
    /// [`StateError::Allreduce`] where there are no shards, [`StateError::Unreadable`] when it is larger than any state may be.
    pub fn state(&self) -> Result<Vec<u8>, StateError> {
        let kept = self.coordinator.as_ref().and_then(coordinator::Coordinator::kept);
        let image = Image {
            form: FORM,
            layout_hash: self.settings.layout_hash,
            config_hash: self.settings.config_hash,
            began: self.began,
            latest: self.latest,
            started: self.started,
            shards_started: self.shards_started,
            batch_count: self.batch_count,
            ended: self.ended.clone(),
            refused: self.refused,
            sessions: self.sessions_that_count(),
            server_sessions: self.server_sessions.iter().map(|(server, id)| (*server, *id)).collect(),
            members: self.members.clone(),
            places: self.places.clone(),
            cluster: self.cluster.as_ref().map(|cluster| cluster.kept.clone()),
            coordinator: kept.ok_or(StateError::Allreduce)?,
        };
        Ok(encode_state(&image)?)
    }

    /// The control of a process that goes on where another was: its state, then every event after that with its moment
    /// ([`Control::moment`]). What is to be done now comes out in `effects`; what followed from the events was done, or told to nobody.
    ///
    /// # Errors
    /// Any [`StateError`].
    pub fn restore(
        settings: ControlSettings,
        bytes: &[u8],
        journal: impl IntoIterator<Item = (Moment, ControlEvent)>,
        now: Moment,
        effects: &mut Vec<ControlEffect>,
    ) -> Result<Self, StateError> {
        let mut control = Self::take_up_image(settings, bytes)?;
        for (at, event) in journal {
            control.take(at, event, &mut Vec::new());
        }
        control.come_back(now, effects);
        Ok(control)
    }

    pub(super) fn take_up_image(settings: ControlSettings, bytes: &[u8]) -> Result<Self, StateError> {
        let form = bytes.first_chunk::<4>().map(|form| u32::from_le_bytes(*form));
        if let Some(found) = form.filter(|form| *form != FORM) {
            return Err(StateError::Form { found });
        }
        let image: Image = decode_state(bytes)?;
        if (image.layout_hash, image.config_hash) != (settings.layout_hash, settings.config_hash) {
            return Err(StateError::OtherRun);
        }
        let mut control = Self::new(settings, image.began);
        (control.latest, control.started, control.shards_started) =
            (image.latest, image.started, image.shards_started);
        (control.batch_count, control.ended, control.refused) =
            (image.batch_count, image.ended, image.refused);
        control.sessions = image.sessions.into_iter().collect();
        control.server_sessions = image.server_sessions.into_iter().collect();
        (control.members, control.places) = (image.members, image.places);
        match (&mut control.cluster, image.cluster) {
            (Some(cluster), Some(kept)) => cluster.take_up(kept),
            (None, None) => {}
            _ => return Err(StateError::OtherRun),
        }
        match &mut control.coordinator {
            Some(coordinator) => coordinator.take_up(image.coordinator),
            None => return Err(StateError::OtherRun),
        }
        Ok(control)
    }

    /// The process before is gone, with its sessions and with what this server had in its memory.
    fn come_back(&mut self, now: Moment, effects: &mut Vec<ControlEffect>) {
        let latest = self.latest;
        self.offset = latest.0.wrapping_sub(now.0);
        self.sessions.clear();
        self.server_sessions.clear();
        self.members.restart(latest);
        self.places.restart(self.settings.disk.clone());
        self.shards_started = false;
        if let Some(cluster) = &mut self.cluster {
            cluster.restart(latest);
        }
        match &self.ended {
            Some(End::Complete) => return effects.push(ControlEffect::End(End::Complete)),
            // Whoever starts it again has mended what it failed of, or thought better of stopping it.
            Some(End::Stopped(_) | End::Failed(_) | End::Refused(_)) | None => self.ended = None,
        }
        self.open_link(latest, effects);
        self.settle(latest, effects);
    }
}
