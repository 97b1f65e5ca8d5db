//! Control messages, transfer headers and payloads.

use slackline_core::codec::{Encoding, Payload, Source};
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

/// Keys of a payload that is also read: its values need not be longer than what made them.
const KEYS_READ_MAX: u32 = 1 << 16;

/// An encoded payload: a byte for the encoding, four for its keys, then its words. What is taken is read in every way, and all agree.
pub(crate) fn payload(bytes: &[u8]) {
    let Some(([encoding, keys @ ..], words)) = bytes.split_first_chunk::<5>() else { return };
    let (Some(encoding), keys) = (Encoding::from_wire(*encoding), u32::from_le_bytes(*keys)) else { return };
    let words = words.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
    let Ok(payload) = Payload::new(encoding, keys as usize, words) else { return };
    if keys > KEYS_READ_MAX {
        return;
    }
    let mut values = vec![0.0; keys as usize];
    payload.decode_into(&mut values);
    let place = values.iter().position(|value| !value.is_finite());
    assert_eq!(payload.first_not_finite(), place, "{encoding}");
    let (mut reader, mut scratch, mut at) = (payload.reader(), [0.0; 97], 0);
    while at < values.len() {
        reader.skip(5);
        at = (at + 5).min(values.len());
        let next = reader.next(97, &mut scratch);
        let same = next.iter().zip(&values[at..]).all(|(here, there)| here.to_bits() == there.to_bits());
        assert!(same && next.len() == 97.min(values.len() - at), "{encoding} at {at}");
        at += next.len();
    }
}
