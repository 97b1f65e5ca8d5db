//! Where a step writes, and the loops over it that all rules share.

use std::ops::Range;

use crate::wide::wide;

/// The values before a step, and the place of those after it.
#[derive(Debug)]
pub enum Target<'a> {
    /// The same.
    InPlace(&'a mut [f32]),
    /// Others read the old values still. What is in `new`, of equal length, has no meaning before; after the step all of it has.
    Beside {
        /// The values before.
        old: &'a [f32],
        /// The place of those after.
        new: &'a mut [f32],
    },
}

impl Target<'_> {
    /// How many values it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::InPlace(values) => values.len(),
            Self::Beside { new, .. } => new.len(),
        }
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part of some keys.
    pub(super) fn part(&mut self, keys: Range<usize>) -> Target<'_> {
        match self {
            Self::InPlace(values) => Target::InPlace(&mut values[keys]),
            Self::Beside { old, new } => Target::Beside { old: &old[keys.clone()], new: &mut new[keys] },
        }
    }

    /// Leaves values as they are.
    pub(super) fn keep(self) {
        if let Self::Beside { old, new } = self {
            new.copy_from_slice(old);
        }
    }

    /// Gives each value what `rule` makes of it and its gradient; whether a bit of any is another one now.
    #[inline(always)]
    pub(super) fn each(self, gradient: &[f32], rule: impl Fn(f32, f32) -> f32) -> bool {
        // Everything is moved into the loops: what they reach through a reference could be what they write, as far as a compiler knows.
        match self {
            Self::InPlace(values) => wide(move || {
                let mut moved = 0;
                for (value, gradient) in values.iter_mut().zip(gradient) {
                    let next = rule(*value, *gradient);
                    moved |= value.to_bits() ^ next.to_bits();
                    *value = next;
                }
                moved != 0
            }),
            Self::Beside { old, new } => wide(move || {
                let mut moved = 0;
                for ((new, value), gradient) in new.iter_mut().zip(old).zip(gradient) {
                    *new = rule(*value, *gradient);
                    moved |= value.to_bits() ^ new.to_bits();
                }
                moved != 0
            }),
        }
    }

    /// The same with a velocity: `rule` makes a value and its velocity of those before and the gradient.
    #[inline(always)]
    pub(super) fn each_with(
        self,
        velocity: &mut [f32],
        gradient: &[f32],
        rule: impl Fn(f32, f32, f32) -> (f32, f32),
    ) -> bool {
        match self {
            Self::InPlace(values) => wide(move || {
                let mut moved = 0;
                for ((value, velocity), gradient) in values.iter_mut().zip(velocity).zip(gradient) {
                    let (next, faster) = rule(*value, *velocity, *gradient);
                    moved |= value.to_bits() ^ next.to_bits();
                    (*value, *velocity) = (next, faster);
                }
                moved != 0
            }),
            Self::Beside { old, new } => wide(move || {
                let mut moved = 0;
                for (((new, value), velocity), gradient) in
                    new.iter_mut().zip(old).zip(velocity).zip(gradient)
                {
                    (*new, *velocity) = rule(*value, *velocity, *gradient);
                    moved |= value.to_bits() ^ new.to_bits();
                }
                moved != 0
            }),
        }
    }
}
