//! Control messages and transfer headers.

use slackline_core::wire::{HEADER_BYTES, PeerMessage, ToPeer, ToServer, TransferHeader, frame_length};
use slackline_net::Message;

/// A frame of a control stream, as each kind of message.
pub(crate) fn messages(bytes: &[u8]) {
    if let Some(prefix) = bytes.first_chunk() {
        let _ = frame_length(*prefix);
    }
    message::<ToServer>(bytes);
    message::<ToPeer>(bytes);
    message::<PeerMessage>(bytes);
}

/// What was understood can be said again, and is understood the same way. (The bytes are compared, since a number that is none
/// differs from itself.)
fn message<M: Message + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(message) = M::from_bytes(bytes) else { return };
    let said = message.to_bytes().expect("a message that fitted in a frame fits again");
    let again = M::from_bytes(&said).expect("what was said can be understood");
    assert_eq!(said, again.to_bytes().expect("it fits"), "{message:?}");
    let _ = format!("{message:?}");
}

/// The header of a transfer.
pub(crate) fn transfer_header(bytes: &[u8]) {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    if let Ok(parsed) = TransferHeader::from_bytes(header) {
        assert_eq!(parsed.to_bytes(), *header, "{parsed:?}");
    }
}
