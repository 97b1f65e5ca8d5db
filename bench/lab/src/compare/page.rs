//! The report of a comparison: one HTML file, drawn from `results.json` and the folders of the runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::figures::MADE;
use super::sentence::RULE;
use super::standing::{Entry, Evaluated, Family, Row, Standing};
use super::table::{budget, cell, is_shown};
use crate::judge::short;
use crate::report::chart::{Axes, Entry as Mark, HEIGHT, chart, escaped, legend};
use crate::report::curves::draw_band;
use crate::report::page::{STYLE, figure, section};
use crate::report::runs::{self, Band};
use crate::report::scale::Scale;
use crate::report::tables;
use crate::state::{LabError, write_whole};
use crate::sweep::Mode;

/// Writes `report.html`, and says where it is.
pub(crate) fn write(standing: &Standing, folder: &Path) -> Result<PathBuf, LabError> {
    let path = folder.join("report.html");
    write_whole(&path, page(standing, folder).as_bytes())?;
    Ok(path)
}

/// Draws the report of a folder again; nothing where it holds no comparison.
pub(crate) fn draw_again(folder: &Path) -> Result<Option<PathBuf>, LabError> {
    Standing::read(folder)?.map(|standing| write(&standing, folder)).transpose()
}

fn page(standing: &Standing, folder: &Path) -> String {
    let made = match standing.mode {
        Mode::Run => "real processes on one machine",
        Mode::Sim | Mode::Timing => "simulated: real gradients in virtual time",
    };
    let seeds: Vec<String> = standing.seeds.iter().map(u64::to_string).collect();
    let scale = standing.scale.as_ref().map_or_else(String::new, |scale| format!(", scale {scale}"));
    let paragraphs = standing.about.split("\n\n").map(|text| format!("<p>{}</p>", escaped(text.trim())));
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{name}</title><style>{STYLE}</style></head><body>\n\
         <h1>{name}</h1><p class=\"dim\">{} contestants, {} conditions (seeds {}){}; {made}</p>\n{}\n",
        standing.contestants.len(),
        standing.rows.len(),
        seeds.join(", "),
        escaped(&scale),
        paragraphs.collect::<String>(),
        name = escaped(&standing.name),
    );
    html += &section("Who wins", RULE, &sentences(standing));
    let failures: String = standing.failures().map(|(run, why)| failure(&run.folder, why)).collect();
    let failures = if failures.is_empty() { failures } else { format!("<ul>{failures}</ul>") };
    html += &section("Runs that failed", "", &failures);
    html += &section("Expectations", "", &tables::verdicts(&standing.verdicts, &standing.not_judged));
    html += &section("Contestants", "", &contestants(standing));
    for row in &standing.rows {
        html += &section(&row.name, &row.about, &condition(standing, row, folder));
    }
    html += &section("The figures", "", &definitions());
    html += &section("Tuning", "", &tuning(standing));
    html += &section("Commands", "", &commands(standing));
    html + "</body></html>\n"
}

fn sentences(standing: &Standing) -> String {
    let mut html = "<div class=\"wide\"><table><tbody>".to_owned();
    for row in &standing.rows {
        let (name, text) = (escaped(&row.name), escaped(&row.sentence));
        let _ = write!(html, "<tr><th scope=\"row\">{name}</th><td>{text}</td></tr>");
    }
    for (name, reason) in &standing.skipped {
        let (name, reason) = (escaped(name), escaped(reason));
        let _ =
            write!(html, "<tr><th scope=\"row\">{name}</th><td class=\"dim\">skipped: {reason}</td></tr>");
    }
    html + "</tbody></table></div>"
}

fn failure(folder: &str, why: &str) -> String {
    format!("<li><code>{}</code>: {}</li>", escaped(folder), escaped(why))
}

fn contestants(standing: &Standing) -> String {
    if standing.contestants.iter().all(|(_, about)| about.is_empty()) {
        return String::new();
    }
    let row =
        |(name, about): &(String, String)| format!("<li><b>{}</b>: {}</li>", escaped(name), escaped(about));
    format!("<ul>{}</ul>", standing.contestants.iter().map(row).collect::<String>())
}

/// The sentence, the table, the curves and the notes of one condition.
fn condition(standing: &Standing, row: &Row, folder: &Path) -> String {
    let mut html = format!("<p><strong>{}</strong></p>", escaped(&row.sentence));
    html += "<div class=\"wide\"><table><thead><tr><th>contestant</th><th>rate</th>";
    let shown: Vec<usize> = (0..MADE.len()).filter(|place| is_shown(row, *place)).collect();
    for place in &shown {
        let title = match MADE[*place].0 {
            "time_to_target" => format!("time to {} [s]", row.target),
            "samples_to_target" => format!("samples to {}", row.target),
            _ => MADE[*place].3.to_owned(),
        };
        let _ = write!(html, "<th>{}</th>", escaped(&title));
    }
    html += "</tr></thead><tbody>";
    for entry in &row.entries {
        let class = if row.first.contains(&entry.contestant) { " class=\"win\"" } else { "" };
        let (name, rate) = (escaped(&entry.contestant), escaped(&entry.rate));
        let _ = write!(html, "<tr{class}><th scope=\"row\">{name}</th><td>{rate}</td>");
        for place in &shown {
            let _ = write!(html, "<td>{}</td>", escaped(&cell(entry, *place)));
        }
        html += "</tr>";
    }
    html += "</tbody></table></div>";
    html += &curves(standing, row, folder);
    if !row.notes.is_empty() {
        let notes = row.notes.iter().map(|note| format!("<li>{}</li>", escaped(note)));
        html += &format!("<ul>{}</ul>", notes.collect::<String>());
    }
    html
}

/// Accuracy (or loss) against time and against samples, all contestants in one picture.
fn curves(standing: &Standing, row: &Row, folder: &Path) -> String {
    let is_accuracy = row.column.starts_with("accuracy_");
    let target = row.column.rsplit('_').next().and_then(|text| text.parse::<f64>().ok());
    let all: Vec<Vec<Vec<Evaluated>>> = row.entries.iter().map(|entry| evaluated(entry, folder)).collect();
    if all.iter().flatten().all(Vec::is_empty) {
        return String::new();
    }
    let time = if standing.mode == Mode::Run { "wall time [s]" } else { "virtual time [s]" };
    let (y_title, count) =
        (if is_accuracy { "test accuracy [share]" } else { "test loss" }, row.entries.len());
    let y = |point: &Evaluated| if is_accuracy { point.accuracy } else { point.loss };
    let picture = |x: fn(&Evaluated) -> f64, x_title: &str| {
        let band = |seeds: &Vec<Vec<Evaluated>>| {
            let curve =
                |points: &Vec<Evaluated>| points.iter().filter_map(|at| Some((x(at), y(at)?))).collect();
            Band::over(&seeds.iter().map(curve).collect::<Vec<Vec<(f64, f64)>>>())
        };
        let bands: Vec<Band> = all.iter().map(band).collect();
        let rows = || bands.iter().flat_map(|band| &band.rows);
        let heights: Vec<f64> = rows().map(|at| at.1).chain(target).collect();
        let axes = Axes {
            x: Scale::linear(rows().map(|at| at.0)),
            y: if is_accuracy { Scale::linear(heights) } else { Scale::around(heights) },
            x_title,
            y_title,
            height: HEIGHT,
        };
        let end = rows().map(|at| at.0).fold(0.0, f64::max);
        chart(&format!("{y_title} against {x_title} {}", row.name), axes, |frame| {
            if let Some(target) = target {
                let ink = crate::report::chart::INK;
                crate::report::chart::line(frame, &[(0.0, target), (end, target)], ink, 1)?;
            }
            for (place, band) in bands.iter().enumerate() {
                draw_band(frame, band, place, count)?;
            }
            Ok(())
        })
    };
    let charts = [picture(|at| at.t, time), picture(|at| at.samples, "samples")];
    let mark = |(place, entry): (usize, &Entry)| Mark { name: entry.contestant.clone(), place, count };
    figure("", &charts, &legend(&row.entries.iter().enumerate().map(mark).collect::<Vec<_>>()))
}

/// The curves of a contestant, one a seed.
fn evaluated(entry: &Entry, folder: &Path) -> Vec<Vec<Evaluated>> {
    if entry.family == Family::Outside {
        return entry.curves.clone();
    }
    let of = |run: &crate::results::RunRow| {
        let mut points: Vec<Evaluated> = runs::read(&folder.join(&run.folder), false)
            .evaluations
            .iter()
            .map(|at| Evaluated {
                t: at.time_s,
                samples: at.samples,
                accuracy: at.error.map(|error| 1.0 - error),
                loss: at.loss,
            })
            .collect();
        points.sort_by(|a, b| a.t.total_cmp(&b.t));
        points
    };
    entry.runs.iter().map(of).collect()
}

fn definitions() -> String {
    let row = |(name, unit, _, _, what): &(&str, &str, _, &str, &str)| {
        format!("<tr><td><code>{name}</code></td><td>{unit}</td><td>{}</td></tr>", escaped(what))
    };
    format!(
        "<p>Medians over the seeds, with least..most; a median needs every seed. results.csv holds every run and every column.</p>\
         <div class=\"wide\"><table><tbody>{}</tbody></table></div>",
        MADE.iter().map(row).collect::<String>()
    )
}

fn tuning(standing: &Standing) -> String {
    let mut html = format!("<p>{}</p>", escaped(&budget(standing)));
    if standing.budget.runs == 0 {
        return html;
    }
    html += "<div class=\"wide\"><table><thead><tr><th>condition</th><th>contestant</th><th>chosen</th>";
    for rate in &standing.budget.rates {
        let _ = write!(html, "<th>at {}</th>", escaped(rate));
    }
    html += "<th>remark</th></tr></thead><tbody>";
    for row in standing.rows.iter().filter(|row| row.tuned_at.is_none()) {
        for entry in &row.entries {
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td><b>{}</b></td>",
                escaped(&row.name),
                escaped(&entry.contestant),
                escaped(&entry.rate)
            );
            for tried in &entry.tried {
                let text = match (tried.time, tried.loss) {
                    (Some(time), _) => format!("{} s", short(time)),
                    (None, Some(loss)) => format!("not reached, loss {}", short(loss)),
                    (None, None) => "failed".to_owned(),
                };
                let _ = write!(html, "<td>{}</td>", escaped(&text));
            }
            let remark = if entry.at_edge { "at the edge of what was tried" } else { "" };
            let _ = write!(html, "<td>{remark}</td></tr>");
        }
    }
    html += "</tbody></table></div>";
    for row in &standing.rows {
        if let Some(at) = &row.tuned_at {
            html += &format!("<p>{} takes the rates of {}.</p>", escaped(&row.name), escaped(at));
        }
    }
    html
}

fn commands(standing: &Standing) -> String {
    let command = if standing.mode == Mode::Run { "run" } else { "sim" };
    let mut html = format!(
        "<p>The whole comparison, with the folder of its results added as <code>--out DIR</code>:</p><pre>{}</pre>\
         <p>One run, from this folder:</p><details><summary>Every first run</summary><div class=\"wide\"><table><tbody>",
        escaped(&standing.command)
    );
    for row in &standing.rows {
        for entry in row.entries.iter().filter(|entry| entry.family != Family::Outside) {
            let Some(run) = entry.runs.first() else { continue };
            let _ = write!(
                html,
                "<tr><th scope=\"row\">{}, {}</th><td><code>slackline {command} {}/config.toml --seed {} --out again</code></td></tr>",
                escaped(&row.name),
                escaped(&entry.contestant),
                escaped(&run.folder),
                run.seed
            );
        }
    }
    html + "</tbody></table></div></details>"
}
