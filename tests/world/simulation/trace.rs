//! Every event and effect as a line, to compare two runs of one seed and to read how a failing one came about.

use std::fmt::Arguments;

use slackline_core::ids::Moment;

/// What becomes of the lines.
#[derive(Debug)]
pub(crate) enum Trace {
    /// Nothing: the quick way.
    Off,
    /// They are kept.
    Kept(Vec<String>),
    /// They are printed as they come.
    Printed,
}

impl Trace {
    /// Whether anybody reads the lines.
    pub(crate) const fn is_on(&self) -> bool {
        !matches!(self, Self::Off)
    }

    pub(crate) fn line(&mut self, now: Moment, text: Arguments<'_>) {
        if !self.is_on() {
            return;
        }
        match self {
            Self::Off => {}
            Self::Kept(lines) => lines.push(format!("{} {text}", now.0)),
            Self::Printed => println!("{:>12.6} {text}", now.0 as f64 / 1e9),
        }
    }
}
