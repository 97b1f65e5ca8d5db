//! Figures along the first axis with bars over seeds, histograms of lead and staleness, and heat maps over two axes.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Axes, Entry, HEIGHT, INK, chart, colour, legend, line, mark, mixed};
use super::curves::entries;
use super::page::figure;
use super::runs::Run;
use super::scale::{Scale, ends, with_prefix};
use super::view::{Group, View, titled};
use crate::column::{Better, Column};

/// Columns that get a chart of their own.
const COLUMNS_MAX: usize = 6;

/// Columns that get a heat map.
const HEAT_COLUMNS_MAX: usize = 3;

/// Each shown column along the first axis, one line a group.
pub(crate) fn along(view: &View<'_>) -> String {
    if view.count() < 2 {
        return String::new();
    }
    let columns = view.results.show.iter().filter_map(|name| view.results.column(name));
    let charts: Vec<String> = columns.take(COLUMNS_MAX).map(|column| along_column(view, column)).collect();
    if charts.is_empty() {
        return String::new();
    }
    let groups = view.drawn();
    let entry = |(place, group): (usize, &Group)| Entry {
        name: if group.name.is_empty() {
            "mean over the seeds, with least and most".to_owned()
        } else {
            group.name.clone()
        },
        place,
        count: groups.len(),
    };
    figure("", &charts, &legend(&groups.iter().enumerate().map(entry).collect::<Vec<_>>()))
}

/// Whether the labels of the first axis are amounts, which a line may join.
fn is_ordered(view: &View<'_>) -> bool {
    let labels = view.results.axes.first().map(|axis| axis.labels.as_slice()).unwrap_or_default();
    labels.iter().all(|label| label.parse::<f64>().is_ok())
}

fn along_column(view: &View<'_>, column: &Column) -> String {
    let row = |point: &usize| {
        let spread = view.results.points[*point].figures.get(&column.name)?;
        Some((view.place(*point) as f64, spread.mean?, spread.min, spread.max))
    };
    let groups: Vec<Vec<(f64, f64, f64, f64)>> =
        view.drawn().iter().map(|group| group.points.iter().filter_map(row).collect()).collect();
    let values: Vec<f64> = groups.iter().flatten().flat_map(|row| [row.2, row.3]).collect();
    let labels = view.results.axes.first().map(|axis| axis.labels.clone()).unwrap_or_default();
    let (axis, figures) = (view.first_axis(), column.titled());
    let (title, scale) = (format!("{figures} along {axis}"), Scale::around(values));
    let is_ordered = is_ordered(view);
    let height = if is_ordered { HEIGHT } else { HEIGHT.max(90 + 24 * labels.len() as u32) };
    let axes = if is_ordered {
        Axes { x: Scale::Places(labels), y: scale, x_title: &axis, y_title: &figures, height }
    } else {
        Axes { x: scale, y: Scale::Rows(labels), x_title: &figures, y_title: &axis, height }
    };
    chart(&title, axes, |frame| {
        let count = groups.len();
        for (place, rows) in groups.iter().enumerate() {
            let colour = colour(place, count);
            // Kinds stand in rows, each group a little lower than the one before; amounts are joined by a line.
            let shift = if is_ordered { 0.0 } else { 0.6 * ((place as f64 + 0.5) / count as f64 - 0.5) };
            let at =
                |label: f64, figure: f64| if is_ordered { (label, figure) } else { (figure, label + shift) };
            for row in rows.iter().filter(|row| row.3 > row.2) {
                line(frame, &[at(row.0, row.2), at(row.0, row.3)], colour, 1)?;
            }
            let means: Vec<(f64, f64)> = rows.iter().map(|row| at(row.0, row.1)).collect();
            if is_ordered {
                line(frame, &means, colour, 2)?;
            }
            mark(frame, &means, place, colour)?;
        }
        Ok(())
    })
}

/// Histograms of clock lead and version staleness, all seeds together.
pub(crate) fn histograms(view: &View<'_>) -> String {
    let mut html = String::new();
    for group in view.drawn() {
        let leads = histogram(view, group, "clock lead [clocks]", |run| &run.leads);
        let staleness = histogram(view, group, "version staleness [versions]", |run| &run.staleness);
        let charts: Vec<String> = [leads, staleness].into_iter().flatten().collect();
        if !charts.is_empty() {
            html += &figure(&group.name, &charts, &entries(view, group));
        }
    }
    html
}

type Counts = Vec<(f64, f64)>;

fn histogram(view: &View<'_>, group: &Group, title: &str, of: fn(&Run) -> &Counts) -> Option<String> {
    let shares = |point: &usize| {
        let mut counts = std::collections::BTreeMap::new();
        for (value, count) in view.runs[*point].iter().flat_map(of) {
            *counts.entry(value.max(0.0) as u64).or_insert(0.0) += count;
        }
        let total: f64 = counts.values().sum();
        (*point, counts.into_iter().map(|(value, count)| (value as f64, count / total)).collect::<Counts>())
    };
    let all: Vec<(usize, Counts)> = group.points.iter().map(shares).collect();
    if all.iter().all(|(_, counts)| counts.is_empty()) {
        return None;
    }
    // The last part in two hundred of a heavy tail would press the rest into one line.
    let reach = |counts: &Counts| {
        let mut sum = 0.0;
        let within = counts.iter().find(|(_, share)| {
            sum += share;
            sum >= 0.995
        });
        within.map_or(0.0, |row| row.0)
    };
    let end = all.iter().map(|(_, counts)| reach(counts)).fold(1.0, f64::max);
    let y = Scale::linear(all.iter().flat_map(|(_, counts)| counts.iter().map(|row| row.1)));
    let x = Scale::Linear { low: 0.0, high: end * 1.02 };
    let axes = Axes { x, y, x_title: title, y_title: "share", height: HEIGHT };
    Some(chart(&format!("{title} {}", group.name), axes, |frame| {
        for (point, counts) in &all {
            let (place, colour) = (view.place(*point), colour(view.place(*point), view.count()));
            let counts: Counts = counts.iter().copied().filter(|row| row.0 <= end).collect();
            line(frame, &counts, colour, 2)?;
            let stride = counts.len().div_ceil(16).max(1);
            mark(frame, &counts.iter().copied().step_by(stride).collect::<Vec<_>>(), place, colour)?;
        }
        Ok(())
    }))
}

/// Heat maps over the first two axes, for each combination of the others.
pub(crate) fn heat_maps(view: &View<'_>) -> String {
    let [first, second, others @ ..] = view.results.axes.as_slice() else { return String::new() };
    if first.labels.len() < 2 || second.labels.len() < 2 {
        return String::new();
    }
    let mut rest: Vec<Vec<String>> = Vec::new();
    for point in &view.results.points {
        let labels = point.labels[2..].to_vec();
        if !rest.contains(&labels) {
            rest.push(labels);
        }
    }
    let columns = view.results.show.iter().filter_map(|name| view.results.column(name));
    let columns: Vec<&Column> = columns.take(HEAT_COLUMNS_MAX).collect();
    let mut html = String::new();
    for labels in rest.iter().take(super::view::GROUPS_MAX) {
        let named = others.iter().zip(labels).map(|(axis, label)| format!("{} = {label}", axis.name));
        let name = named.collect::<Vec<_>>().join(", ");
        let maps: Vec<String> = columns.iter().map(|column| heat_map(view, column, labels)).collect();
        html += &figure(&name, &maps, "<p>The darker, the better; a cross has no figure at every seed.</p>");
    }
    html
}

fn heat_map(view: &View<'_>, column: &Column, rest: &[String]) -> String {
    let (first, second) = (&view.results.axes[0], &view.results.axes[1]);
    let mut cells: Vec<(usize, usize, Option<f64>)> = Vec::new();
    for point in view.results.points.iter().filter(|point| point.labels[2..] == *rest) {
        let place =
            |labels: &[String], own: &String| labels.iter().position(|label| label == own).unwrap_or(0);
        let (x, y) = (place(&second.labels, &point.labels[1]), place(&first.labels, &point.labels[0]));
        cells.push((x, y, point.mean(&column.name).ok()));
    }
    let known = cells.iter().filter_map(|cell| cell.2);
    let (low, high) = ends(known).unwrap_or((0.0, 1.0));
    // Figures over some powers of ten would make all but one cell equal.
    let is_log = low > 0.0 && high / low > 30.0;
    let share = |value: f64| match high > low {
        false => 0.5,
        true if is_log => (value / low).ln() / (high / low).ln(),
        true => (value - low) / (high - low),
    };
    let (x_title, y_title) = (titled(&second.name, &second.unit), titled(&first.name, &first.unit));
    let title = format!("{} over {x_title} and {y_title}", column.titled());
    let axes = Axes {
        x: Scale::Places(second.labels.clone()),
        y: Scale::Rows(first.labels.clone()),
        x_title: &x_title,
        y_title: &y_title,
        height: HEIGHT.max(60 + 30 * first.labels.len() as u32),
    };
    let picture = chart(&title, axes, |frame| {
        for (x, y, value) in &cells {
            let (x, y) = (*x as f64, *y as f64);
            let Some(value) = value else {
                frame.draw_series(std::iter::once(Cross::new((x, y), 5, INK.stroke_width(2))))?;
                continue;
            };
            let good = if column.better == Better::Least { 1.0 - share(*value) } else { share(*value) };
            let paper = mixed(RGBColor(222, 235, 247), RGBColor(8, 69, 148), good);
            let cell = Rectangle::new([(x - 0.49, y - 0.49), (x + 0.49, y + 0.49)], paper.filled());
            frame.draw_series(std::iter::once(cell))?;
            let ink = if good > 0.5 { WHITE } else { BLACK };
            let style = ("sans-serif", 13).into_font().color(&ink).pos(Pos::new(HPos::Center, VPos::Center));
            frame.draw_series(std::iter::once(Text::new(with_prefix(*value), (x, y), style)))?;
        }
        Ok(())
    });
    format!("<div><p>{}</p>{picture}</div>", super::chart::escaped(&column.titled()))
}
