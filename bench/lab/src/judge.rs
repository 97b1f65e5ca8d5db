//! Judges expectations: what was expected, what was found, and by how much it falls short.

use serde::{Deserialize, Serialize};

use crate::axis::{Axis, Selection, shown};
use crate::expect::{Expectation, Test};

/// The outcome of one expectation at one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What the sweep's author says, in words.
    pub claim: String,
    /// Where: `bound = 4, kind = exp`.
    pub at: String,
    /// The column.
    pub column: String,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
    /// How much is missing, in the unit of what is compared; none where it holds or where there is no figure.
    pub short_by: Option<f64>,
    /// Whether it holds.
    pub holds: bool,
}

/// The mean of the column at a point (the places along the axes), or why there is none.
pub(crate) type Look<'a> = dyn Fn(&[usize]) -> Result<f64, String> + 'a;

/// What a test found at one place: expected, found, and what is missing (none without a figure).
struct Finding {
    expected: String,
    found: String,
    holds: bool,
    short_by: Option<f64>,
}

impl Finding {
    fn of(expected: String, found: String, short_by: f64) -> Self {
        let holds = short_by <= 0.0;
        Self { expected, found, holds, short_by: (!holds).then_some(short_by) }
    }

    fn nothing(expected: String, reason: String) -> Self {
        Self { expected, found: reason, holds: false, short_by: None }
    }
}

/// Every verdict of an expectation.
pub(crate) fn judge(expectation: &Expectation, axes: &[Axis], look: &Look<'_>) -> Vec<Verdict> {
    let along = match &expectation.test {
        Test::Monotone { along, .. } | Test::Best { along, .. } => Some(*along),
        Test::Bounds { .. } | Test::Ascending { .. } => None,
    };
    let fixed_by_points = |axis: usize| match &expectation.test {
        Test::Ascending { points, .. } => points.iter().any(|point| point[axis].is_some()),
        _ => false,
    };
    let mut verdicts = Vec::new();
    for place in places(&expectation.at, axes, along) {
        let finding = match &expectation.test {
            Test::Bounds { low, high, over } => bounds(&place, axes, look, *low, *high, over),
            Test::Monotone { along, is_rising, tolerance } => {
                monotone(&place, &axes[*along], *along, look, *is_rising, *tolerance)
            }
            Test::Best { along, is_most, among } => {
                best(&place, &axes[*along], *along, look, *is_most, among)
            }
            Test::Ascending { points, tolerance } => ascending(&place, axes, look, points, *tolerance),
        };
        let part = |(axis, at): (usize, &usize)| {
            let free = Some(axis) != along && !fixed_by_points(axis);
            free.then(|| format!("{} = {}", axes[axis].name, axes[axis].points[*at].label))
        };
        verdicts.push(Verdict {
            claim: expectation.claim.clone(),
            at: place.iter().enumerate().filter_map(part).collect::<Vec<_>>().join(", "),
            column: expectation.column.clone(),
            expected: finding.expected,
            found: finding.found,
            short_by: finding.short_by,
            holds: finding.holds,
        });
    }
    verdicts
}

/// Every combination of what is chosen; an axis that is walked along stays at its first point.
fn places(at: &Selection, axes: &[Axis], along: Option<usize>) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for (number, axis) in axes.iter().enumerate() {
        let chosen: Vec<usize> = match &at[number] {
            _ if Some(number) == along => vec![0],
            Some(chosen) => chosen.clone(),
            None => (0..axis.points.len()).collect(),
        };
        all = all
            .iter()
            .flat_map(|row| chosen.iter().map(move |place| [row.as_slice(), &[*place]].concat()))
            .collect();
    }
    all
}

/// The place with what a selection chooses put in.
fn moved(place: &[usize], selection: &Selection) -> Vec<usize> {
    let chosen = selection.iter().map(|chosen| chosen.as_ref().and_then(|chosen| chosen.first()));
    place.iter().zip(chosen).map(|(at, chosen)| *chosen.unwrap_or(at)).collect()
}

fn bounds(
    place: &[usize],
    axes: &[Axis],
    look: &Look<'_>,
    low: Option<f64>,
    high: Option<f64>,
    over: &Selection,
) -> Finding {
    let is_ratio = over.iter().any(Option::is_some);
    let mut expected = match (low, high) {
        (Some(low), Some(high)) => format!("within [{}, {}]", short(low), short(high)),
        (Some(low), None) => format!("at least {}", short(low)),
        (_, high) => format!("at most {}", short(high.unwrap_or(f64::INFINITY))),
    };
    let other = moved(place, over);
    if is_ratio {
        expected += &format!(" times that at {}", shown(axes, &other));
    }
    let figure = look(place).and_then(|figure| match is_ratio {
        false => Ok((figure, short(figure))),
        true => {
            let (top, bottom) = (figure, look(&other)?);
            let text = format!("{} ({} over {})", short(top / bottom), short(top), short(bottom));
            if bottom == 0.0 { Err(format!("{} over 0", short(top))) } else { Ok((top / bottom, text)) }
        }
    });
    match figure {
        Ok((figure, found)) => {
            let under = low.map_or(0.0, |low| low - figure);
            let above = high.map_or(0.0, |high| figure - high);
            Finding::of(expected, found, under.max(above))
        }
        Err(reason) => Finding::nothing(expected, reason),
    }
}

/// The figures at all of these points, or the first reason why there are not all.
fn row(points: &[Vec<usize>], names: &[String], look: &Look<'_>) -> Result<Vec<f64>, String> {
    let figure = |(point, name): (&Vec<usize>, &String)| look(point).map_err(|why| format!("{name}: {why}"));
    points.iter().zip(names).map(figure).collect()
}

/// The points along an axis with their labels.
fn walk(place: &[usize], axis: &Axis, along: usize) -> (Vec<Vec<usize>>, Vec<String>) {
    let at = |step: usize| {
        let mut point = place.to_vec();
        point[along] = step;
        point
    };
    ((0..axis.points.len()).map(at).collect(), axis.labels())
}

fn monotone(
    place: &[usize],
    axis: &Axis,
    along: usize,
    look: &Look<'_>,
    is_rising: bool,
    tolerance: f64,
) -> Finding {
    let (points, labels) = walk(place, axis, along);
    let word = if is_rising { "rising" } else { "falling" };
    let expected = format!("{word} along {}{}", axis.name, allowing(tolerance));
    match row(&points, &labels, look) {
        Ok(figures) => {
            let figures: Vec<f64> =
                figures.iter().map(|figure| if is_rising { *figure } else { -figure }).collect();
            let step = worst_fall(&figures, tolerance);
            let shown: Vec<f64> =
                figures.iter().map(|figure| if is_rising { *figure } else { -figure }).collect();
            Finding::of(expected, steps(&labels, &shown), step)
        }
        Err(reason) => Finding::nothing(expected, reason),
    }
}

/// The largest step down beyond what is tolerated; zero or less where there is none.
fn worst_fall(figures: &[f64], tolerance: f64) -> f64 {
    let largest = figures.iter().fold(0.0_f64, |most, figure| most.max(figure.abs()));
    let fall = figures.windows(2).map(|pair| pair[0] - pair[1]).fold(0.0, f64::max);
    fall - tolerance * largest
}

fn best(
    place: &[usize],
    axis: &Axis,
    along: usize,
    look: &Look<'_>,
    is_most: bool,
    among: &[usize],
) -> Finding {
    let (points, labels) = walk(place, axis, along);
    let names =
        |places: &[usize]| places.iter().map(|at| labels[*at].clone()).collect::<Vec<_>>().join(" or ");
    let word = if is_most { "most" } else { "least" };
    let expected = format!("the {word} along {} at {}", axis.name, names(among));
    // A point without a figure is never the best one.
    let signed = |at: usize| look(&points[at]).ok().map(|figure| if is_most { figure } else { -figure });
    let best_of = |places: &mut dyn Iterator<Item = usize>| {
        places.filter_map(|at| signed(at).map(|figure| (at, figure))).max_by(|a, b| {
            // The first of equals.
            a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))
        })
    };
    let figure = |figure: f64| short(if is_most { figure } else { -figure });
    let Some((winner, top)) = best_of(&mut (0..points.len())) else {
        return Finding::nothing(expected, "no point has a figure".to_owned());
    };
    match best_of(&mut among.iter().copied()) {
        Some((own, reached)) => {
            let found = if own == winner || reached >= top {
                format!("{} at {}", figure(reached), labels[own])
            } else {
                format!("{} at {}, and {} at {}", figure(top), labels[winner], figure(reached), labels[own])
            };
            Finding::of(expected, found, top - reached)
        }
        None => Finding::nothing(expected, format!("{} at {}", figure(top), labels[winner])),
    }
}

fn ascending(
    place: &[usize],
    axes: &[Axis],
    look: &Look<'_>,
    points: &[Selection],
    tolerance: f64,
) -> Finding {
    let name = |selection: &Selection| {
        let part = |(axis, chosen): (usize, &Option<Vec<usize>>)| {
            chosen.as_ref().and_then(|chosen| chosen.first()).map(|at| axes[axis].points[*at].label.clone())
        };
        selection.iter().enumerate().filter_map(part).collect::<Vec<_>>().join(" ")
    };
    let names: Vec<String> = points.iter().map(name).collect();
    let points: Vec<Vec<usize>> = points.iter().map(|point| moved(place, point)).collect();
    let expected = format!("{}{}", names.join(" <= "), allowing(tolerance));
    match row(&points, &names, look) {
        Ok(figures) => {
            let fall = worst_fall(&figures, tolerance);
            Finding::of(expected, steps(&names, &figures), fall)
        }
        Err(reason) => Finding::nothing(expected, reason),
    }
}

fn allowing(tolerance: f64) -> String {
    if tolerance > 0.0 { format!(" (tolerance {} %)", short(100.0 * tolerance)) } else { String::new() }
}

fn steps(labels: &[String], figures: &[f64]) -> String {
    let step = |(label, figure): (&String, &f64)| format!("{label}: {}", short(*figure));
    labels.iter().zip(figures).map(step).collect::<Vec<_>>().join(", ")
}

/// A number in four significant digits, as people read it.
#[must_use]
pub fn short(number: f64) -> String {
    let size = number.abs();
    if number == 0.0 || !number.is_finite() {
        return format!("{number}");
    }
    if !(1e-3..1e7).contains(&size) {
        return format!("{number:.3e}");
    }
    let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{number:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
