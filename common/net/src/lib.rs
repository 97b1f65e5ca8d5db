//! QUIC for Slackline: keys, endpoints, control frames and bulk transfers; the only crate that names quinn.
//!
//! Read in this order: [`keys`] (who may speak), [`Settings`] (what was measured), [`Listener`] and [`Connector`] (how two
//! processes meet), [`Connection`] (control messages), [`transfer`] and [`Gather`] (values), [`NetworkThread`] (where it runs).
//!
//! Every connection is mutually authenticated TLS 1.3 inside QUIC; there is no plaintext mode and no 0-RTT. The listening side
//! opens the one control stream and speaks first; each stripe of a transfer has a unidirectional stream of its own.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bare;
mod batching;
mod congestion;
mod connection;
mod connector;
mod error;
mod gather;
pub mod keys;
mod listener;
pub mod log;
mod peers;
mod reset;
mod runtime;
mod settings;
mod socket;
mod sparing;
mod tls;
pub mod transfer;

pub use connection::{CloseCode, Connection, ControlReceiver, ControlSender, Message};
pub use connector::Connector;
pub use error::{BindError, ConnectError, ConnectionError, HandshakeError, HandshakeFailure, TransferError};
pub use gather::Gather;
pub use keys::{Identity, KeysError};
pub use listener::{Handshake, Listener};
pub use runtime::{NetworkStopped, NetworkThread};
pub use settings::{Settings, Shares};
pub use slackline_core::role::Role;
pub use transfer::{Arriving, Destination, Opening, SharedValues};
