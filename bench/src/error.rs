//! What can go wrong while something is measured.

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The configuration that a cell stands for is refused.
    #[error("the configuration of the cell is refused: {0}")]
    Config(String),
    /// Something that the system did not do.
    #[error("{what}: {source}")]
    System {
        /// What was asked.
        what: String,
        /// Why it was not done.
        source: std::io::Error,
    },
    /// The keys.
    #[error(transparent)]
    Keys(#[from] slackline_net::KeysError),
    /// The server.
    #[error(transparent)]
    Server(#[from] slackline_server::ServerError),
    /// The network thread is gone.
    #[error(transparent)]
    Stopped(#[from] slackline_net::NetworkStopped),
    /// Members of an allreduce.
    #[error(transparent)]
    Exchange(#[from] slackline_worker::exchange::ExchangeError),
    /// No allreduce can be like that.
    #[error(transparent)]
    Topology(#[from] slackline_core::collective::Misfit),
    /// A connection or a transfer.
    #[error("{what} failed: {reason}")]
    Network {
        /// What was under way.
        what: &'static str,
        /// How it failed.
        reason: String,
    },
    /// Another process did or sent what it should not.
    #[error("another process did not do as it should: {0}")]
    Protocol(String),
    /// A server that has just started does not know its shards yet.
    #[error("a server does not know its shards yet")]
    NotReady,
    /// What was measured is beyond what was allowed.
    #[error("{0}")]
    Beyond(String),
    /// A process ended, or said something that makes no sense.
    #[error("{name} {text}; its errors are above")]
    Child {
        /// Which process.
        name: String,
        /// What it did.
        text: String,
    },
}

impl BenchError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }

    pub(crate) fn network(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Self {
        move |reason| Self::Network { what, reason: reason.to_string() }
    }
}
