//! How frames lie in a file: a front with a mark, lengths and a checksum, then head and payload.

use slackline_core::limits::CONTROL_BYTES_MAX;
use xxhash_rust::xxh3::Xxh3;

/// What each frame begins with: a mark, the lengths of head and payload, what was durable before it, and the checksum of all of it.
pub(crate) const FRONT_BYTES: usize = 32;
const MARK: [u8; 4] = *b"SLJ1";

/// What a frame begins with.
pub(crate) fn front(head: &[u8], payload: &[u8], durable: u64) -> [u8; FRONT_BYTES] {
    let mut front = [0; FRONT_BYTES];
    front[..4].copy_from_slice(&MARK);
    front[4..8].copy_from_slice(&(head.len() as u32).to_le_bytes());
    front[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    front[16..24].copy_from_slice(&durable.to_le_bytes());
    let sum = checksum(&front[..24], head, payload);
    front[24..].copy_from_slice(&sum.to_le_bytes());
    front
}

fn checksum(front: &[u8], head: &[u8], payload: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(front);
    sum.update(head);
    sum.update(payload);
    sum.digest()
}

/// Lengths of head and payload, and what was durable before; none where they cannot be, with `left` bytes from the front on.
pub(super) fn lengths(front: &[u8; FRONT_BYTES], left: u64) -> Option<(usize, usize, u64)> {
    let word =
        |at: usize| front[at..at + 8].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let head = word(4) & u64::from(u32::MAX);
    let payload = word(8);
    let whole = (FRONT_BYTES as u64).checked_add(head)?.checked_add(payload)?;
    let can_be = front[..4] == MARK && head <= CONTROL_BYTES_MAX as u64 && whole <= left;
    can_be.then_some((head as usize, payload as usize, word(16)))
}

pub(super) fn is_whole(front: &[u8; FRONT_BYTES], head: &[u8], payload: &[u8]) -> bool {
    front[24..] == checksum(&front[..24], head, payload).to_le_bytes()
}

/// Whether the frame at `bad`, which is not whole, is more than the end that a crash leaves: a later frame was begun when it was on the disk
/// already.
pub(crate) fn is_damaged(bytes: &[u8], bad: u64) -> bool {
    let from = usize::try_from(bad).map_or(bytes.len(), |bad| bad.saturating_add(1).min(bytes.len()));
    let marks = bytes[from..].windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    marks.map(|(place, _)| &bytes[from + place..]).any(|rest| {
        rest.split_first_chunk::<FRONT_BYTES>().is_some_and(|(front, after)| {
            lengths(front, rest.len() as u64).is_some_and(|(head, payload, durable)| {
                is_whole(front, &after[..head], &after[head..head + payload]) && durable > bad
            })
        })
    })
}

/// One frame without a head.
pub(crate) fn frame(payload: &[u8], durable: u64) -> Vec<u8> {
    let mut frame = front(&[], payload, durable).to_vec();
    frame.extend_from_slice(payload);
    frame
}

/// The payload of the whole frame without a head that `bytes` begin with, and the frame's length; none where there is none.
pub(crate) fn next(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (front, after) = bytes.split_first_chunk::<FRONT_BYTES>()?;
    let (0, payload, _) = lengths(front, bytes.len() as u64)? else { return None };
    is_whole(front, &[], &after[..payload]).then_some((&after[..payload], FRONT_BYTES + payload))
}
