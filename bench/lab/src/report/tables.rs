//! The tables of a report: points with winners, verdicts, choices, commands.

use std::fmt::Write as _;

use super::chart::escaped;
use super::view::{Group, View};
use crate::column::{Better, Column};
use crate::judge::{Verdict, short};
use crate::results::{Results, TuningRow};

/// One table a group: a row for each point, the winner of each column marked.
pub(crate) fn points(view: &View<'_>) -> String {
    let columns: Vec<&Column> =
        view.results.show.iter().filter_map(|name| view.results.column(name)).collect();
    view.groups.iter().map(|group| group_table(view, group, &columns)).collect()
}

fn group_table(view: &View<'_>, group: &Group, columns: &[&Column]) -> String {
    let results = view.results;
    let tuned: Vec<&String> = results.points[group.points[0]].tuned.keys().collect();
    let mut html = String::new();
    if !group.name.is_empty() {
        let _ = write!(html, "<h3>{}</h3>", escaped(&group.name));
    }
    html += "<div class=\"wide\"><table><thead><tr>";
    let _ = write!(html, "<th>{}</th>", escaped(&view.first_axis()));
    for key in &tuned {
        let _ = write!(html, "<th>{}</th>", escaped(key));
    }
    for column in columns {
        let wins = match column.better {
            Better::Least => " <span class=\"dim\">least wins</span>",
            Better::Most => " <span class=\"dim\">most wins</span>",
            Better::Neither => "",
        };
        let _ = write!(html, "<th>{}{wins}</th>", escaped(&column.titled()));
    }
    html += "</tr></thead><tbody>";
    let winners: Vec<Vec<usize>> =
        columns.iter().map(|column| results.winners(column, &group.points)).collect();
    for point in &group.points {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escaped(view.label(*point)));
        for key in &tuned {
            let _ = write!(
                html,
                "<td>{}</td>",
                escaped(results.points[*point].tuned.get(*key).map_or("", String::as_str))
            );
        }
        for (column, winners) in columns.iter().zip(&winners) {
            html += &cell(results, *point, column, winners.contains(point));
        }
        html += "</tr>";
    }
    html + "</tbody></table></div>"
}

fn cell(results: &Results, point: usize, column: &Column, wins: bool) -> String {
    let point = &results.points[point];
    let Some(spread) = point.figures.get(&column.name) else {
        return "<td class=\"dim\">none</td>".to_owned();
    };
    let seeds = point.runs.len();
    let range = match (spread.min < spread.max, spread.count < seeds) {
        (_, true) => format!(" <span class=\"dim\">{} of {seeds} seeds</span>", spread.count),
        (true, false) => format!(" <span class=\"dim\">{}..{}</span>", short(spread.min), short(spread.max)),
        (false, false) => String::new(),
    };
    let mean = spread.mean.map_or_else(|| "none".to_owned(), short);
    let (class, star) = if wins { (" class=\"win\"", "\u{2605} ") } else { ("", "") };
    format!("<td{class}>{star}{mean}{range}</td>")
}

/// What was expected, what does not hold first.
pub(crate) fn verdicts(verdicts: &[Verdict], not_judged: &[String]) -> String {
    if verdicts.is_empty() && not_judged.is_empty() {
        return "<p>The file states no expectations.</p>".to_owned();
    }
    let failed = verdicts.iter().filter(|verdict| !verdict.holds).count();
    let mut html = match failed {
        0 => format!("<p>All {} hold.</p>", verdicts.len()),
        _ => format!("<p><strong>{failed} of {} do not hold.</strong></p>", verdicts.len()),
    };
    html += "<div class=\"wide\"><table><thead><tr><th></th><th>claim</th><th>where</th><th>column</th><th>expected</th>\
             <th>found</th><th>short by</th></tr></thead><tbody>";
    let mut rows: Vec<&Verdict> = verdicts.iter().collect();
    rows.sort_by_key(|verdict| verdict.holds);
    for verdict in rows {
        let (class, word) = if verdict.holds { ("holds", "holds") } else { ("fails", "fails") };
        let _ = write!(
            html,
            "<tr><td class=\"{class}\">{word}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&verdict.claim),
            escaped(&verdict.at),
            escaped(&verdict.column),
            escaped(&verdict.expected),
            escaped(&verdict.found),
            verdict.short_by.map(short).unwrap_or_default(),
        );
    }
    html += "</tbody></table></div>";
    if !not_judged.is_empty() {
        html += "<p>Not judged at this scale:</p><ul>";
        for claim in not_judged {
            let _ = write!(html, "<li>{}</li>", escaped(claim));
        }
        html += "</ul>";
    }
    html
}

/// How tuned values were chosen.
pub(crate) fn tuning(results: &Results) -> String {
    let Some(tuning) = &results.tuning else { return String::new() };
    let seeds: Vec<String> = tuning.seeds.iter().map(u64::to_string).collect();
    let plural = if seeds.len() == 1 { "" } else { "s" };
    let mut html = format!(
        "<p>Rule: {}, over the tuning seed{plural} {}, none of which is reported. A candidate that diverges, or lacks the figure \
         at a seed, comes after those that have it; among equals the first one wins.</p>",
        escaped(&tuning.rule),
        seeds.join(", ")
    );
    html += "<div class=\"wide\"><table><thead><tr>";
    for axis in &results.axes {
        let _ = write!(html, "<th>{}</th>", escaped(&axis.name));
    }
    html += "<th>chosen</th>";
    for column in &tuning.columns {
        let _ = write!(html, "<th>{}</th>", escaped(column));
    }
    html += "<th>remark</th></tr></thead><tbody>";
    for choice in &tuning.choices {
        html += &choice_row(choice);
    }
    html + "</tbody></table></div>" + &candidates(results, tuning)
}

fn shown(candidate: &crate::results::CandidateRow) -> String {
    candidate.values.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
}

fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "none".to_owned(), short)
}

fn choice_row(choice: &crate::results::ChoiceRow) -> String {
    let mut html = "<tr>".to_owned();
    for label in &choice.labels {
        let _ = write!(html, "<td>{}</td>", escaped(label));
    }
    let Some(chosen) = choice.candidates.get(choice.chosen) else { return html + "</tr>" };
    let _ = write!(html, "<td>{}</td>", escaped(&shown(chosen)));
    for value in &chosen.figures {
        let _ = write!(html, "<td>{}</td>", figure(*value));
    }
    let remark = match choice.at_edge.len() {
        0 => String::new(),
        _ => format!("{} at the edge of what was tried", choice.at_edge.join(", ")),
    };
    let _ = write!(html, "<td>{}</td></tr>", escaped(&remark));
    html
}

/// All candidates, folded away.
fn candidates(results: &Results, tuning: &TuningRow) -> String {
    let mut html =
        "<details><summary>Every candidate</summary><div class=\"wide\"><table><thead><tr>".to_owned();
    for axis in &results.axes {
        let _ = write!(html, "<th>{}</th>", escaped(&axis.name));
    }
    html += "<th>candidate</th>";
    for column in &tuning.columns {
        let _ = write!(html, "<th>{}</th>", escaped(column));
    }
    html += "</tr></thead><tbody>";
    for choice in &tuning.choices {
        for (place, candidate) in choice.candidates.iter().enumerate() {
            let class = if place == choice.chosen { " class=\"win\"" } else { "" };
            let _ = write!(html, "<tr{class}>");
            for label in &choice.labels {
                let _ = write!(html, "<td>{}</td>", escaped(label));
            }
            let _ = write!(html, "<td>{}</td>", escaped(&shown(candidate)));
            for value in &candidate.figures {
                let _ = write!(html, "<td>{}</td>", figure(*value));
            }
            html += "</tr>";
        }
    }
    html + "</tbody></table></div></details>"
}

/// The commands that make it again.
pub(crate) fn commands(results: &Results) -> String {
    let mut html = format!(
        "<p>The whole sweep, with the folder of its results added as <code>--out DIR</code>:</p><pre>{}</pre>\
         <p>One point, from this folder; the file holds the whole configuration, and other seeds lie beside it:</p>\
         <details open><summary>{} points</summary><div class=\"wide\"><table><tbody>",
        escaped(&results.command),
        results.points.len()
    );
    for point in &results.points {
        let _ = write!(
            html,
            "<tr><th scope=\"row\">{}</th><td><code>{}</code></td></tr>",
            escaped(&point.labels.join(", ")),
            escaped(&point.command)
        );
    }
    html + "</tbody></table></div></details>"
}

/// Runs that failed.
pub(crate) fn failures(results: &Results) -> String {
    let mut rows = String::new();
    for (run, text) in results.failures() {
        let _ =
            write!(rows, "<tr><td><code>{}</code></td><td>{}</td></tr>", escaped(&run.folder), escaped(text));
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<div class=\"wide\"><table><thead><tr><th>run</th><th>why it failed</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )
}
