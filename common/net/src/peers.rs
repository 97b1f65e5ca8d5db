//! The connections that stand on an identity, so that those of a peer that is not trusted any more can be closed.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::connection::{CloseCode, Inner};
use crate::keys::{Identity, Trust};

/// How often the files of the keys are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Connections, each as long as it is open.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    // A lock that is held for a moment when a connection begins, and when keys have changed.
    connections: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: Vec<Weak<Inner>>,
    /// Beyond so many, those that have ended are forgotten.
    forget_from: usize,
}

impl Peers {
    /// Takes a new connection in.
    pub(crate) fn add(&self, connection: &Arc<Inner>) {
        let mut open = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all.len() >= open.forget_from {
            open.all.retain(|connection| connection.strong_count() > 0);
            open.forget_from = (2 * open.all.len()).max(16);
        }
        open.all.push(Arc::downgrade(connection));
    }

    /// Closes the connections of peers that are not trusted any more. One whose certificate has only expired goes on: its peer
    /// was let in while it held, and nothing was said against it since.
    pub(crate) fn sweep(&self, trust: &Trust) {
        let open: Vec<_> = {
            let open = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            open.all.iter().filter_map(Weak::upgrade).collect()
        };
        for connection in open.iter().filter(|connection| connection.quic.close_reason().is_none()) {
            if let Some(reason) = objection(connection, trust) {
                tracing::warn!("the connection with {} is closed: {reason}", connection.remote);
                connection.quic.close(CloseCode::Refused.number(), reason.as_bytes());
            }
        }
    }
}

/// Why the peer of a connection is not trusted, if it is not.
pub(crate) fn objection(connection: &Inner, trust: &Trust) -> Option<String> {
    let certificate = &connection.certificate;
    if trust.has_revoked(certificate) {
        return Some(format!("the certificate of {certificate} was revoked"));
    }
    let is_foreign = !trust.has_signed(&connection.der);
    is_foreign.then(|| format!("the authority of {certificate} is not trusted any more"))
}

/// Follows the files of an identity until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(AbortHandle);

impl Watch {
    /// Starts on the present runtime.
    pub(crate) fn start(identity: Identity) -> Self {
        let follow = async move {
            let mut tick = interval(LOOK_EVERY);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                let identity = identity.clone();
                // A file system can hang; the network must not hang with it.
                if let Err(error) = tokio::task::spawn_blocking(move || identity.refresh()).await
                    && error.is_panic()
                {
                    tracing::error!(%error, "a look at the keys broke off");
                }
            }
        };
        Self(tokio::spawn(follow).abort_handle())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}
