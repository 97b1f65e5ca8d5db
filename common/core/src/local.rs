//! Local steps: a worker walks several steps on its own before it pushes, and pushes how far it came.
//!
//! With them an iteration takes `steps` batches: the worker begins at the values it pulled, makes one step of the configured
//! optimizer for each batch, and pushes the difference. The servers treat that difference as a gradient, with an optimizer of their
//! own (local SGD, Stich 2019; SparkNet, Moritz et al. 2016; DiLoCo, Douillard et al. 2023).

/// How a worker takes local steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalSpec {
    /// Local steps between two pushes (tau), at least 1.
    pub steps: u64,
    /// What the servers do with the differences.
    pub outer: Outer,
    /// The parameters are pushed in so many parts, one an iteration in turn; 1 pushes all of them each time. A part is the shards
    /// whose number leaves the same remainder.
    pub fragments: u32,
    /// Elastic averaging (EASGD, Zhang, Choromanska and LeCun 2015): the worker keeps values of its own, and this share (alpha) of
    /// their distance to the servers' moves both towards each other.
    pub elastic: Option<f64>,
}

/// The servers' optimizer for differences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outer {
    /// The mean of the workers' values becomes the new value.
    Average,
    /// A step of this rate along the mean difference.
    Sgd {
        /// The rate; 1 is [`Outer::Average`].
        rate: f32,
    },
    /// Nesterov momentum over the mean differences (DiLoCo uses rate 0.7, momentum 0.9).
    Nesterov {
        /// The rate.
        rate: f32,
        /// Share of the velocity kept.
        momentum: f32,
    },
}
