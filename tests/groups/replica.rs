//! What one member holds: values, optimizer state, and for the laws which units are in them. And what all members must agree on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use slackline_core::aggregate::weighted_mean;
use slackline_core::collective::{Topology, Values};
use slackline_core::ids::{Clock, Generation, KeyRange};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{Optimizer, Step};
use slackline_core::wire::Group;

use crate::scenario::Scenario;

/// Shared values that are cut without a copy.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Vec<f32>>, Range<usize>);

impl AsRef<[f32]> for Shared {
    fn as_ref(&self) -> &[f32] {
        &self.0[self.1.clone()]
    }
}

impl From<Vec<f32>> for Shared {
    fn from(values: Vec<f32>) -> Self {
        let range = 0..values.len();
        Self(Arc::new(values), range)
    }
}

impl Values for Shared {
    fn part(&self, range: Range<usize>) -> Self {
        Self(Arc::clone(&self.0), self.1.start + range.start..self.1.start + range.end)
    }
}

/// What one member takes over from another.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) clock: Clock,
    pub(crate) values: Vec<f32>,
    slots: Vec<f32>,
    history: Vec<u64>,
}

/// One member's copy.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub(crate) values: Vec<f32>,
    optimizer: Optimizer,
    /// Iterations in the values.
    pub(crate) clock: Clock,
    /// The units in the values, as they were applied.
    pub(crate) history: Vec<u64>,
}

/// A tensor of many keys between two small ones.
pub(crate) fn layout(keys: u64) -> Layout {
    let mut layout = Layout::new();
    let small = keys / 7 + 1;
    layout.parameter("first.weight", &[small], true);
    layout.parameter("second.weight", &[keys - small - 3], true);
    layout.parameter("second.bias", &[3], false);
    layout
}

/// The gradient of a unit: a bowl around a place of its own, in which each value is tied to another one.
pub(crate) fn gradient(values: &[f32], unit: u64, bad_unit: Option<u64>) -> Vec<f32> {
    let count = values.len();
    let slope = |(key, value): (usize, &f32)| {
        let curvature = 0.2 + 0.1 * (key % 5) as f32;
        let bottom = ((key * 7 + unit as usize * 13) % 31) as f32 / 31.0 - 0.5;
        curvature * (value - bottom) + 0.05 * values[(key + count / 2 + 1) % count]
    };
    let mut gradient: Vec<f32> = values.iter().enumerate().map(slope).collect();
    if bad_unit == Some(unit) {
        gradient[count / 2] = f32::NAN;
    }
    gradient
}

impl Replica {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let layout = layout(scenario.keys);
        let keys = layout.len();
        let values = (0..keys).map(|key| ((key * 11) % 17) as f32 / 17.0 - 0.4).collect();
        let optimizer = Optimizer::new(scenario.optimizer, &layout, KeyRange::new(0, keys), 1);
        Self { values, optimizer, clock: Clock(0), history: Vec::new() }
    }

    pub(crate) fn state(&self) -> State {
        let (values, slots) = (self.values.clone(), self.optimizer.slots().to_vec());
        State { clock: self.clock, values, slots, history: self.history.clone() }
    }

    pub(crate) fn restore(&mut self, state: State) -> bool {
        self.values = state.values;
        (self.clock, self.history) = (state.clock, state.history);
        self.optimizer.restore(&state.slots)
    }

    /// Takes in what an iteration of a group made of its units, or only that it was left out.
    fn advance(&mut self, sums: Option<&[f32]>, progress: f64, units: Range<u64>) {
        if let Some(sums) = sums {
            let step = Step::fresh(progress, self.clock.0);
            self.optimizer.apply(&mut self.values, sums, &step);
        }
        self.clock = self.clock.next();
        self.history.extend(units);
    }
}

/// The units of an iteration.
pub(crate) fn units_of(group: &Group, clock: Clock, unit_count: u64) -> Range<u64> {
    let first = group.unit_of(clock, 0).unwrap_or(u64::MAX).min(unit_count);
    first..(first + group.members.len() as u64).min(unit_count)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What the first member to complete an iteration made of it.
#[derive(Debug)]
struct Outcome {
    before: Vec<u32>,
    /// None where it was left out.
    sums: Option<Vec<u32>>,
}

/// What all members must agree on, iteration by iteration.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    outcomes: BTreeMap<(Generation, Clock), Outcome>,
    /// Iterations completed by anybody.
    pub(crate) completed: u64,
}

impl Ledger {
    /// A member applies the sums of an iteration, or leaves them out.
    pub(crate) fn apply(
        &mut self,
        scenario: &Scenario,
        (group, clock): (&Group, Clock),
        replica: &mut Replica,
        (sums, progress): (Option<&[f32]>, f64),
    ) -> Result<(), String> {
        let name = (group.generation, clock);
        let units = units_of(group, clock, scenario.unit_count());
        let place = format!("{} at {clock}", group.generation);
        if replica.clock != clock || replica.history.len() as u64 != units.start {
            let (own, had) = (replica.clock, replica.history.len());
            return Err(format!("each unit once: {place} takes {units:?} onto {had} units at {own}"));
        }
        let expected = units.start as f64 / scenario.unit_count() as f64;
        if sums.is_some() && progress.to_bits() != expected.to_bits() {
            return Err(format!("rate: {place} is at {progress} of the run, not at {expected}"));
        }
        let before = bits(&replica.values);
        match self.outcomes.get(&name) {
            Some(outcome) if outcome.before != before => {
                return Err(format!("one line: two members of {place} begin with other values"));
            }
            Some(outcome) if outcome.sums != sums.map(bits) => {
                return Err(format!("one line: two members of {place} have other sums"));
            }
            Some(_) => {}
            None => {
                check_sums(scenario, group, &units, &replica.values, sums)
                    .map_err(|text| format!("plain sum: {place}: {text}"))?;
                self.outcomes.insert(name, Outcome { before, sums: sums.map(bits) });
                self.completed += 1;
            }
        }
        replica.advance(sums, expected, units);
        Ok(())
    }
}

/// Compares what a group made of its gradients with the plain loop over them.
fn check_sums(
    scenario: &Scenario,
    group: &Group,
    units: &Range<u64>,
    values: &[f32],
    sums: Option<&[f32]>,
) -> Result<(), String> {
    let mut parts: Vec<Vec<f32>> =
        units.clone().map(|unit| gradient(values, unit, scenario.bad_unit)).collect();
    let samples: Vec<u32> = units.clone().map(|unit| scenario.samples_of(unit)).collect();
    weighted_mean(&mut parts, &samples);
    let plain = &parts[0];
    let is_bad = plain.iter().any(|value| !value.is_finite());
    let Some(sums) = sums.filter(|_| !is_bad) else {
        return if is_bad && sums.is_none() {
            Ok(())
        } else {
            Err("left out or not, and wrongly so".to_owned())
        };
    };
    // With members in pairs of pairs the tree of additions is that of the plain loop, and with it every bit.
    let is_same_tree = matches!(group.topology, Topology::Doubling | Topology::HalvingDoubling)
        && group.members.len().is_power_of_two();
    let differs = |(sum, plain): (&f32, &f32)| {
        let far = (sum - plain).abs() > 2e-6 * (1.0 + plain.abs());
        far || (is_same_tree && sum.to_bits() != plain.to_bits() && *sum != *plain)
    };
    match sums.iter().zip(plain).position(differs) {
        Some(key) => {
            Err(format!("key {key} has {}, the plain loop over {units:?} {}", sums[key], plain[key]))
        }
        None if sums.len() != plain.len() => Err("keys are missing".to_owned()),
        None => Ok(()),
    }
}
