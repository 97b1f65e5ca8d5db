//! What reads bytes of others, each as a function of bytes: no input may make one panic, hang or take memory without bound.
//!
//! cargo-fuzz calls them with inputs that it makes up (`bench/fuzz.sh`); `tests/corpus.rs` calls them with the inputs that are kept
//! in `corpus/NAME`: small samples of every form, and whatever once found a fault.
#![forbid(unsafe_code)]

mod files;
mod network;
mod state;
mod wire;

#[path = "../../../src/configuration.rs"]
#[allow(dead_code, reason = "the command line's own reader, of which this needs the entrance only")]
mod configuration;

pub use network::is_alive;
pub use state::sample as sample_facts;

/// A reader of bytes, with its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 16] = [
    ("messages", wire::messages),
    ("transfer_header", wire::transfer_header),
    ("payload", wire::payload),
    ("datagrams", network::datagrams),
    ("handshake", network::handshake),
    ("keys", slackline_net::keys::read_for_fuzzing),
    ("config", files::config),
    ("trace", files::trace),
    ("manifest", files::manifest),
    ("part", files::part),
    ("facts", state::facts),
    ("log", slackline_server::fuzzing::log),
    ("journal", files::journal),
    ("ledger", files::ledger),
    ("recorded", files::recorded),
    ("results", files::results),
];

/// Calls the reader of a name.
///
/// # Panics
/// There is no such name, or the reader has a fault: this is how either is found.
pub fn call(name: &str, bytes: &[u8]) {
    let (_, reader) = TARGETS.iter().find(|(known, _)| *known == name).expect("the name of a target");
    reader(bytes);
}
