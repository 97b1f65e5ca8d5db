//! The learning rate over a run, as a share of its top.

/// The fall of the rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No fall.
    Constant,
    /// A straight line down to the final share.
    Linear,
    /// Half a cosine down to the final share (Loshchilov and Hutter 2017, without restarts).
    Cosine,
}

/// A rate schedule over the progress of a run, in `[0, 1]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSchedule {
    /// The fall.
    pub shape: Shape,
    /// Share of the run over which the rate rises from near zero in a straight line (Goyal et al. 2017, section 2.2).
    pub warmup: f32,
    /// Share of the top that is left at the end of the run.
    pub final_share: f32,
}

impl RateSchedule {
    /// The rate always at its top.
    pub const CONSTANT: Self = Self { shape: Shape::Constant, warmup: 0.0, final_share: 1.0 };

    /// Share of the top rate at `progress`.
    #[must_use]
    pub fn share(&self, progress: f64) -> f32 {
        let progress = progress.clamp(0.0, 1.0);
        let (warmup, last) = (f64::from(self.warmup), f64::from(self.final_share));
        if progress < warmup {
            return (progress / warmup) as f32;
        }
        let fallen = if warmup < 1.0 { (progress - warmup) / (1.0 - warmup) } else { 1.0 };
        let share = match self.shape {
            Shape::Constant => 1.0,
            Shape::Linear => 1.0 - (1.0 - last) * fallen,
            Shape::Cosine => last + (1.0 - last) * 0.5 * (1.0 + (std::f64::consts::PI * fallen).cos()),
        };
        share as f32
    }
}
