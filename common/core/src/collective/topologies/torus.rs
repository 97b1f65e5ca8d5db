//! A grid of rows and columns (Mikami et al. 2018): reduce-scatter along rows, allreduce along columns, all-gather along rows.
//!
//! The payload has two colours (Ying et al. 2018): one goes along rows first, the other along columns first, so that both
//! dimensions work at once; and they run in opposite directions, so that in steps where a grid that is not square has both in one
//! dimension, each has a direction of the link for itself. Each takes 2(x - 1) + 2(y - 1) steps; together a member sends
//! 2(p - 1)/p n bytes.

use super::Draft;
use super::ring::Ring;

/// Rows of `x` members, columns of `y`; position `row * x + column`.
pub(super) fn draft(x: u32, y: u32) -> Draft {
    let members = x * y;
    let mut draft = Draft::new(2 * members);
    colour(&mut draft, 0, (x, y), |column, row| row * x + column);
    // Counting both from the other end turns the direction of every ring.
    colour(&mut draft, members, (y, x), |row, column| (y - 1 - row) * x + (x - 1 - column));
    draft
}

/// Half of the payload, from part `base` on. `member` takes the place in the first dimension, which is reduced first, and in the second.
fn colour(draft: &mut Draft, base: u32, (first, second): (u32, u32), member: impl Fn(u32, u32) -> u32) {
    let along_first = |draft: &mut Draft, gather: bool, step: u32| {
        for line in 0..second {
            let slice = |slice: u32| base + slice * second..base + (slice + 1) * second;
            let ring = Ring { len: first, member: |place| member(place, line), slice };
            if gather {
                ring.all_gather(draft, step)
            } else {
                ring.reduce_scatter(draft, step)
            };
        }
        step + first - 1
    };
    let mut step = along_first(draft, false, 0);
    let mut last = step;
    for line in 0..first {
        let slice = |slice: u32| base + line * second + slice..base + line * second + slice + 1;
        let ring = Ring { len: second, member: |place| member(line, place), slice };
        let gathered = ring.reduce_scatter(draft, step);
        last = ring.all_gather(draft, gathered);
    }
    step = last;
    along_first(draft, true, step);
}
