//! Curves of error against time and against passes over the data, and the frontier: the least error anyone had reached by then.

use plotters::prelude::*;

use super::chart::{Axes, Drawn, Entry, Frame, HEIGHT, INK, chart, colour, escaped, legend, line, mark};
use super::runs::{Band, Evaluation};
use super::scale::{Scale, ends};
use super::view::{Group, Measure, View};
use crate::judge::short;

/// Marks on one curve.
const MARKS_MAX: usize = 9;

/// All curves, group by group.
pub(crate) fn curves(view: &View<'_>) -> String {
    let Some(measure) = view.measure() else { return String::new() };
    let mut html = String::new();
    for group in view.drawn() {
        let time = |evaluation: &Evaluation| evaluation.time_s;
        let epochs = |evaluation: &Evaluation| evaluation.epochs;
        html += &super::page::figure(
            &group.name,
            &[
                one(view, group, measure, time, view.time_title()),
                one(view, group, measure, epochs, "epochs [passes over the data]"),
            ],
            &entries(view, group),
        );
    }
    html
}

/// The legend of a group: the labels of the first axis.
pub(crate) fn entries(view: &View<'_>, group: &Group) -> String {
    let entry = |point: &usize| Entry {
        name: format!("{} = {}", view.results.axes.first().map_or("", |axis| &axis.name), view.label(*point)),
        place: view.place(*point),
        count: view.count(),
    };
    legend(&group.points.iter().map(entry).collect::<Vec<_>>())
}

fn one(view: &View<'_>, group: &Group, measure: Measure, x: fn(&Evaluation) -> f64, x_title: &str) -> String {
    let bands: Vec<(usize, Band)> =
        group.points.iter().map(|point| (*point, view.band(*point, measure, x))).collect();
    let title = format!("{} against {x_title} {}", measure.title(), group.name);
    let axes = Axes {
        x: Scale::linear(bands.iter().flat_map(|(_, band)| band.rows.iter().map(|row| row.0))),
        y: scale(&bands),
        x_title,
        y_title: measure.title(),
        height: HEIGHT,
    };
    chart(&title, axes, |frame| {
        for (point, band) in &bands {
            draw_band(frame, band, view.place(*point), view.count())?;
        }
        Ok(())
    })
}

/// The scale of the measure: a run that diverges leaves the picture at its top.
fn scale(bands: &[(usize, Band)]) -> Scale {
    const FAR: f64 = 4.0;
    let start = bands.iter().filter_map(|(_, band)| band.rows.first()).map(|row| row.1).fold(0.0, f64::max);
    let values: Vec<f64> = bands.iter().flat_map(|(_, band)| band.rows.iter().map(|row| row.1)).collect();
    Scale::around(values.into_iter().filter(move |value| *value <= FAR * start).collect::<Vec<_>>())
}

pub(crate) fn draw_band(frame: &mut Frame<'_>, band: &Band, place: usize, count: usize) -> Drawn {
    let colour = colour(place, count);
    if band.rows.iter().any(|row| row.3 > row.2) {
        let upper = band.rows.iter().map(|row| (row.0, row.3));
        let lower = band.rows.iter().rev().map(|row| (row.0, row.2));
        frame.draw_series(std::iter::once(Polygon::new(
            upper.chain(lower).collect::<Vec<_>>(),
            colour.mix(0.18),
        )))?;
    }
    let means = band.means();
    line(frame, &means, colour, 2)?;
    let stride = means.len().div_ceil(MARKS_MAX).max(1);
    // Marks of different curves begin at different places, so that they do not hide each other.
    let marks: Vec<(f64, f64)> = means.iter().copied().skip(place % stride).step_by(stride).collect();
    mark(frame, &marks, place, colour)
}

/// The frontier of each group.
pub(crate) fn frontier(view: &View<'_>) -> String {
    let Some(measure) = view.measure() else { return String::new() };
    view.drawn().iter().map(|group| frontier_of(view, group, measure)).collect()
}

/// Least error by each moment: a row for each moment with the place in the group that holds it.
struct Frontier {
    rows: Vec<(f64, f64, usize)>,
}

impl Frontier {
    fn of(curves: &[Vec<(f64, f64)>]) -> Self {
        const STEPS: usize = 240;
        let Some((begin, end)) = ends(curves.iter().flatten().map(|at| at.0)) else {
            return Self { rows: Vec::new() };
        };
        let best: Vec<Vec<(f64, f64)>> = curves.iter().map(|curve| lowest_so_far(curve)).collect();
        let row = |step: usize| {
            let moment = begin + (end - begin) * step as f64 / STEPS as f64;
            let reached = best.iter().enumerate().filter_map(|(place, curve)| {
                let before = curve.partition_point(|at| at.0 <= moment).checked_sub(1)?;
                Some((moment, curve[before].1, place))
            });
            reached.min_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)))
        };
        Self { rows: (0..=STEPS).filter_map(row).collect() }
    }

    /// From when on whom: stretches of one holder.
    fn holders(&self) -> Vec<&[(f64, f64, usize)]> {
        self.rows.chunk_by(|a, b| a.2 == b.2).collect()
    }
}

fn lowest_so_far(curve: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut lowest = f64::INFINITY;
    let at = |(x, value): &(f64, f64)| {
        lowest = lowest.min(*value);
        (*x, lowest)
    };
    curve.iter().map(at).collect()
}

fn frontier_of(view: &View<'_>, group: &Group, measure: Measure) -> String {
    let time = |evaluation: &Evaluation| evaluation.time_s;
    let curves: Vec<Vec<(f64, f64)>> =
        group.points.iter().map(|point| view.band(*point, measure, time).means()).collect();
    let frontier = Frontier::of(&curves);
    let best: Vec<Vec<(f64, f64)>> = curves.iter().map(|curve| lowest_so_far(curve)).collect();
    let values = || best.iter().flatten().map(|at| at.1);
    let y = Scale::around(values().collect::<Vec<_>>());
    let x_title = view.time_title();
    let axes = Axes {
        x: Scale::linear(curves.iter().flatten().map(|at| at.0)),
        y,
        x_title,
        y_title: measure.title(),
        height: HEIGHT,
    };
    let picture = chart(&format!("frontier {}", group.name), axes, |frame| {
        for curve in &best {
            frame.draw_series(LineSeries::new(curve.iter().copied(), INK.mix(0.25)))?;
        }
        for stretch in frontier.holders() {
            let place = view.place(group.points[stretch[0].2]);
            let values: Vec<(f64, f64)> = stretch.iter().map(|row| (row.0, row.1)).collect();
            let colour = colour(place, view.count());
            line(frame, &values, colour, 4)?;
            mark(frame, &values[..1], place, colour)?;
        }
        Ok(())
    });
    let axis = view.results.axes.first().map_or("", |axis| &axis.name);
    let holder = |stretch: &&[(f64, f64, usize)]| {
        let label = view.label(group.points[stretch[0].2]);
        format!("<li>from {} s: {axis} = {}</li>", short(stretch[0].0), escaped(label))
    };
    const HOLDERS_MAX: usize = 10;
    let holders = frontier.holders();
    let more = holders.len().saturating_sub(HOLDERS_MAX);
    let mut list: String = holders.iter().take(HOLDERS_MAX).map(holder).collect();
    if more > 0 {
        list += &format!("<li>and {more} more changes</li>");
    }
    let beside = format!("{}<p>Least {} so far:</p><ul>{list}</ul>", entries(view, group), measure.title());
    super::page::figure(&group.name, &[picture], &beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frontier_goes_from_holder_to_holder() {
        let fast = vec![(1.0, 0.5), (2.0, 0.4), (3.0, 0.45)];
        let slow = vec![(2.0, 0.9), (8.0, 0.1)];
        let frontier = Frontier::of(&[fast, slow]);
        let holders: Vec<(usize, f64)> =
            frontier.holders().iter().map(|rows| (rows[0].2, rows[0].1)).collect();
        assert_eq!(holders, [(0, 0.5), (1, 0.1)]);
        // What was reached once stays reached.
        assert!(frontier.rows.windows(2).all(|pair| pair[1].1 <= pair[0].1));
        assert!(Frontier::of(&[]).rows.is_empty());
    }
}
