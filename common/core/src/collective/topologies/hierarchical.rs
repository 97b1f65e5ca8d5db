//! Groups with leaders (Jia et al. 2018, section 3.3): reduce in the group, ring among the leaders, broadcast in the group.
//!
//! A group of k is a chain that ends at its first member, the leader. The gradient goes down the chain in k slices one behind the
//! other, and the sums come up in the same way: 2(k - 1) steps with n/k bytes each. With 2(p/k - 1) steps of the leaders these are
//! the paper's 4(k - 1) + 2(p/k - 1). A member between sends 2n bytes in all, twice as much as in a ring; what is gained is steps.

use super::ring::Ring;
use super::{Action, Draft};

/// Groups of `group` neighbours; `group` divides `members`.
pub(super) fn draft(members: u32, group: u32) -> Draft {
    let leaders = members / group;
    // As many parts as members: k slices of p/k parts for the chains are p/k slices of k parts for the ring.
    let mut draft = Draft::new(members);
    let slice = |slice: u32| slice * leaders..(slice + 1) * leaders;
    let ring = Ring {
        len: leaders,
        member: |place| place * group,
        slice: |slice| slice * group..(slice + 1) * group,
    };
    let chain = 2 * (group - 1);
    let gathered = ring.reduce_scatter(&mut draft, chain);
    let up = ring.all_gather(&mut draft, gathered);
    for leader in (0..members).step_by(group as usize) {
        for place in 0..group - 1 {
            let (near, far) = (leader + place, leader + place + 1);
            for index in 0..group {
                // The far end begins with the first slice; each one nearer follows a step later.
                draft.send(group - 2 - place + index, far, near, slice(index), Action::Add);
                draft.send(up + place + index, near, far, slice(index), Action::Replace);
            }
        }
    }
    draft
}
