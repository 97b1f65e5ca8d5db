//! When which fault befalls whom: drawn from a seed before the run begins, so that the same seed plans the same.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::plan::{Kind, Plan, What, Whom};

/// A fault with its time and its victim.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// Seconds after the calm is over.
    pub at_s: f64,
    /// How long it lasts.
    pub for_s: f64,
    /// What happens.
    pub what: What,
    /// To whom.
    pub whom: Whom,
    /// Which of them.
    pub index: u32,
    /// Packets lost.
    pub share: f64,
    /// Seconds that packets come later.
    pub delay_s: f64,
}

impl Fault {
    /// The second at which it is over.
    #[must_use]
    pub fn end_s(&self) -> f64 {
        self.at_s + self.for_s
    }

    /// Whether its victim can do nothing meanwhile. One with a bad link works on.
    #[must_use]
    pub const fn takes_away(&self) -> bool {
        !matches!(self.what, What::Loss | What::Delay)
    }
}

/// Draws the faults of a plan for a cluster of so many workers and servers, in the order of their times.
///
/// Kinds take turns by their weights, so that a short run has as many of them as a long one. A kind that the plan's limits do not allow at a
/// moment, for no victim, keeps its turn for the next; where no kind is allowed, the moment passes without a fault.
#[must_use]
pub fn draw(plan: &Plan, seed: u64, workers: u32, servers: u32) -> Vec<Fault> {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let mut faults: Vec<Fault> = Vec::new();
    let mut turns = Turns::new(&plan.faults, &mut chance);
    let mut at_s = 0.0;
    while at_s < plan.duration_s {
        let drawn = turns.next(&mut chance).into_iter().find_map(|place| {
            // Tries are bounded: a kind may be allowed for nobody.
            let fault = (0..16).find_map(|_| {
                let fault = draw_one(&plan.faults[place], &mut chance, at_s, workers, servers)?;
                is_allowed(plan, &faults, &fault).then_some(fault)
            });
            fault.map(|fault| (place, fault))
        });
        if let Some((place, fault)) = drawn {
            turns.taken(place);
            faults.push(fault);
        }
        at_s += plan.every_s * chance.random_range(0.5..1.5);
    }
    faults
}

/// What each kind has to its credit: its share of the faults so far, less those that it had.
struct Turns {
    /// Share of the faults, and credit.
    kinds: Vec<(f64, f64)>,
}

/// More than this is not kept for a kind that is not allowed for long.
const CREDIT_MAX: f64 = 2.0;

impl Turns {
    fn new(kinds: &[Kind], chance: &mut impl Rng) -> Self {
        let total: f64 = kinds.iter().map(|kind| kind.weight).sum();
        let share = |kind: &Kind| kind.weight / total;
        // Where in its turn each begins is drawn, and with it who comes first.
        let kinds = kinds.iter().map(|kind| (share(kind), chance.random_range(-0.5..0.5))).collect();
        Self { kinds }
    }

    /// The kinds in the order in which it is their turn. Those that are level are shuffled.
    fn next(&mut self, chance: &mut impl Rng) -> Vec<usize> {
        let mut order: Vec<(f64, usize)> = Vec::with_capacity(self.kinds.len());
        for (place, (share, credit)) in self.kinds.iter_mut().enumerate() {
            *credit = (*credit + *share).min(CREDIT_MAX);
            order.push((*credit + chance.random_range(0.0..*share), place));
        }
        order.sort_by(|one, other| other.0.total_cmp(&one.0));
        order.into_iter().map(|(_, place)| place).collect()
    }

    fn taken(&mut self, place: usize) {
        self.kinds[place].1 -= 1.0;
    }
}

fn draw_one(kind: &Kind, chance: &mut impl Rng, at_s: f64, workers: u32, servers: u32) -> Option<Fault> {
    let count = if kind.whom == Whom::Worker { workers } else { servers };
    let index = (count > 0).then(|| chance.random_range(0..count))?;
    let [least, most] = kind.for_s;
    let for_s = least + (most - least) * chance.random_range(0.0..1.0);
    let Kind { kind: what, whom, share, delay_s, .. } = *kind;
    Some(Fault { at_s, for_s, what, whom, index, share, delay_s })
}

fn is_allowed(plan: &Plan, before: &[Fault], fault: &Fault) -> bool {
    let limits = plan.limits;
    let rest_s = if fault.whom == Whom::Server && fault.takes_away() { limits.server_rest_s } else { 0.0 };
    let during =
        before.iter().filter(|other| other.whom == fault.whom && other.end_s() + rest_s > fault.at_s);
    let (mut away, mut is_free) = (0, true);
    for other in during {
        is_free &= other.index != fault.index;
        away += u32::from(other.takes_away());
    }
    let most = if fault.whom == Whom::Worker { limits.workers } else { limits.servers };
    let is_coordinator = fault.whom == Whom::Server && fault.index == 0;
    let may_go = !fault.takes_away() || (away < most && (limits.coordinator || !is_coordinator));
    is_free && may_go
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Limits;

    fn plan() -> Plan {
        let text = "about = \"x\"\nduration_s = 3000\nevery_s = 1\ncalm_s = 0\n\
            [limits]\nworkers = 2\nservers = 1\ncoordinator = false\nserver_rest_s = 4\n\
            [[fault]]\nkind = \"kill\"\nwhom = \"worker\"\nweight = 3\nfor_s = [1, 9]\n\
            [[fault]]\nkind = \"freeze\"\nwhom = \"server\"\nweight = 1\nfor_s = [1, 2]\n\
            [[fault]]\nkind = \"loss\"\nwhom = \"server\"\nweight = 1\nfor_s = [1, 2]\nshare = 0.1\n";
        toml::from_str(text).unwrap()
    }

    #[test]
    fn one_seed_draws_one_schedule() {
        assert_eq!(draw(&plan(), 7, 8, 3), draw(&plan(), 7, 8, 3));
        assert_ne!(draw(&plan(), 7, 8, 3), draw(&plan(), 8, 8, 3));
    }

    #[test]
    fn no_more_are_away_than_the_limits_say() {
        let faults = draw(&plan(), 7, 8, 3);
        assert!(faults.len() > 1000);
        assert!(faults.is_sorted_by(|a, b| a.at_s <= b.at_s));
        for fault in &faults {
            let others = |whom| {
                faults.iter().filter(move |other| {
                    other.whom == whom
                        && other.at_s <= fault.at_s
                        && other.end_s() > fault.at_s
                        && other.takes_away()
                })
            };
            assert!(others(Whom::Worker).count() <= 2);
            assert!(others(Whom::Server).count() <= 1);
            assert!(!(fault.whom == Whom::Server && fault.index == 0 && fault.takes_away()));
            assert!((0.0..3000.0).contains(&fault.at_s));
        }
        let kinds: std::collections::BTreeSet<_> = faults.iter().map(|fault| fault.what).collect();
        assert_eq!(kinds.len(), 3);
    }

    #[test]
    fn a_short_run_has_every_kind() {
        let plan = Plan { duration_s: 20.0, ..plan() };
        for seed in 0..20 {
            let faults = draw(&plan, seed, 8, 3);
            let kinds: std::collections::BTreeSet<_> =
                faults.iter().map(|fault| (fault.what, fault.whom)).collect();
            assert_eq!(kinds.len(), 3, "seed {seed}: {faults:?}");
        }
    }

    #[test]
    fn nobody_suffers_two_faults_at_once() {
        let faults = draw(&plan(), 3, 4, 2);
        for (place, fault) in faults.iter().enumerate() {
            let twice = faults[..place].iter().any(|other| {
                (other.whom, other.index) == (fault.whom, fault.index) && other.end_s() > fault.at_s
            });
            assert!(!twice, "{fault:?}");
        }
    }

    #[test]
    fn a_plan_that_allows_nothing_draws_nothing() {
        let limits = Limits { workers: 0, servers: 0, coordinator: false, server_rest_s: 0.0 };
        let faults = draw(&Plan { limits, ..plan() }, 1, 1, 1);
        assert!(faults.iter().all(|fault| !fault.takes_away()));
    }
}
