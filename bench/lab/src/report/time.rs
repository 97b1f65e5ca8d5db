//! What workers spent their time on: shares as bars, and the first stretch of a run worker by worker.

use plotters::prelude::*;

use super::chart::{Axes, INK, chart, escaped, hex};
use super::page::figure;
use super::runs::{Span, WHAT};
use super::scale::Scale;
use super::view::{Group, View};

/// Workers of one timeline.
const WORKERS_MAX: u64 = 16;

/// Iterations, about, that a timeline shows.
const ITERATIONS: f64 = 14.0;

/// The colours of [`WHAT`]: computing and waiting stand furthest apart.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(128, 128, 128),
    RGBColor(204, 121, 167),
];

fn legend() -> String {
    let row = |((_, name), colour): (&(&str, &str), &RGBColor)| {
        let colour = hex(*colour);
        format!(
            "<li><svg viewBox=\"0 0 28 14\" aria-hidden=\"true\"><path d=\"M4 1h20v12h-20Z\" fill=\"{colour}\"/></svg>{name}</li>"
        )
    };
    format!("<ul class=\"legend\">{}</ul>", WHAT.iter().zip(&COLOURS).map(row).collect::<String>())
}

/// Bars of worker time, one a point.
pub(crate) fn shares(view: &View<'_>) -> String {
    let has_any = |group: &&Group| {
        group
            .points
            .iter()
            .any(|point| view.runs[*point].iter().any(|run| run.shares.iter().any(|share| *share > 0.0)))
    };
    let charts: Vec<String> = view.drawn().iter().filter(has_any).map(|group| bars(view, group)).collect();
    if charts.is_empty() { String::new() } else { figure("", &charts, &legend()) }
}

fn bars(view: &View<'_>, group: &Group) -> String {
    let names: Vec<String> = group.points.iter().map(|point| view.label(*point).to_owned()).collect();
    let (title, count) = (format!("share of worker time {}", group.name), names.len());
    let y_title = view.first_axis();
    let axes = Axes {
        x: Scale::Linear { low: 0.0, high: 1.0 },
        y: Scale::Rows(names),
        x_title: "share of worker time, all seeds",
        y_title: &y_title,
        height: 110 + 26 * count as u32,
    };
    let picture = chart(&title, axes, |frame| {
        for (row, point) in group.points.iter().enumerate() {
            let runs = &view.runs[*point];
            let mut from = 0.0;
            for (what, colour) in COLOURS.iter().enumerate() {
                let share = runs.iter().map(|run| run.shares[what]).sum::<f64>() / runs.len().max(1) as f64;
                let (low, high) = (row as f64 - 0.36, row as f64 + 0.36);
                let bar = Rectangle::new([(from, low), (from + share, high)], colour.filled());
                frame.draw_series(std::iter::once(bar))?;
                from += share;
            }
        }
        Ok(())
    });
    format!("<div><p>{}</p>{picture}</div>", escaped(&group.name))
}

/// The first iterations of each run that left a timeline.
pub(crate) fn timelines(view: &View<'_>) -> String {
    let mut charts = Vec::new();
    for group in &view.groups {
        for point in &group.points {
            if let Some(run) = view.runs[*point].first().filter(|run| !run.timeline.is_empty()) {
                let name = view.results.axes.iter().zip(&view.results.points[*point].labels);
                let name: Vec<String> =
                    name.map(|(axis, label)| format!("{} = {label}", axis.name)).collect();
                charts.push(timeline(&name.join(", "), &run.timeline, view.time_title()));
            }
        }
    }
    if charts.is_empty() { String::new() } else { figure("", &charts, &legend()) }
}

/// As long as some iterations of computing take, so that single ones can be seen.
fn window(spans: &[Span]) -> f64 {
    let computing = spans.iter().filter(|span| span.what == "compute");
    let (sum, count) =
        computing.fold((0.0, 0_u32), |(sum, count), span| (sum + span.end_s - span.start_s, count + 1));
    let end = spans.iter().map(|span| span.end_s).fold(0.0, f64::max);
    if count == 0 { end } else { end.min(ITERATIONS * sum / f64::from(count)) }
}

fn timeline(name: &str, spans: &[Span], x_title: &str) -> String {
    let end = window(spans);
    let workers = spans.iter().map(|span| span.worker + 1).max().unwrap_or(1).min(WORKERS_MAX);
    let names = (0..workers).map(|worker| format!("worker {worker}")).collect();
    let axes = Axes {
        x: Scale::Linear { low: 0.0, high: end },
        y: Scale::Rows(names),
        x_title,
        y_title: "",
        height: 90 + 22 * workers as u32,
    };
    let picture = chart(&format!("timeline {name}"), axes, |frame| {
        for span in spans.iter().filter(|span| span.worker < workers && span.start_s < end) {
            let Some(what) = WHAT.iter().position(|(_, word)| *word == span.what) else { continue };
            let row = span.worker as f64;
            let corners = [(span.start_s, row - 0.36), (span.end_s.min(end), row + 0.36)];
            frame.draw_series(std::iter::once(Rectangle::new(corners, COLOURS[what].filled())))?;
            // Two iterations of computing without a wait between them would look like one.
            let edge = [(span.start_s, row - 0.36), (span.start_s, row + 0.36)];
            frame.draw_series(LineSeries::new(edge, INK.mix(0.5)))?;
        }
        Ok(())
    });
    format!("<div><p>{}</p>{picture}</div>", escaped(name))
}
