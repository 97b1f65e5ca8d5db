//! A comparison as the terminal shows it: a sentence and a table for each condition.

use super::figures::MADE;
use super::standing::{Entry, Middle, Row, Standing};
use crate::judge::short;

/// Bytes of a megabyte.
const MB: f64 = 1e6;

/// Whether a figure of [`MADE`] is there for anybody under this condition.
pub(crate) fn is_shown(row: &Row, place: usize) -> bool {
    let name = MADE[place].0;
    // Whether the target was reached is told everywhere.
    name == "time_to_target" || row.entries.iter().any(|entry| entry.figures.contains_key(name))
}

/// The figure of a contestant: `12.3 (12.1..12.9)`.
pub(crate) fn cell(entry: &Entry, place: usize) -> String {
    let name = MADE[place].0;
    let seeds = entry.runs.len();
    let Some(middle) = entry.figures.get(name) else {
        let has_failed = entry.runs.iter().all(|run| run.failure.is_some());
        return match name {
            "time_to_target" if has_failed => "failed".to_owned(),
            "time_to_target" => format!("not reached in {seeds} of {seeds} seeds"),
            _ => "-".to_owned(),
        };
    };
    let number = |value: f64| match name {
        "bytes_sent" | "bytes_received" => short(value / MB),
        "waiting" => format!("{:.1} %", 100.0 * value),
        _ => short(value),
    };
    let Middle { median, min, max, count } = *middle;
    let spread = if min < max { format!(" ({}..{})", number(min), number(max)) } else { String::new() };
    match median {
        Some(median) => format!("{}{spread}", number(median)),
        None if name == "time_to_target" => {
            let others = if count == 1 { number(min) } else { format!("{}..{}", number(min), number(max)) };
            format!("not reached in {} of {seeds} seeds (else {others})", seeds - count)
        }
        None => format!("{count} of {seeds} seeds{spread}"),
    }
}

/// The budget in words.
pub(crate) fn budget(standing: &Standing) -> String {
    let budget = &standing.budget;
    if budget.runs == 0 {
        return format!("Nothing was tuned: every contestant has the rate {}.", budget.rates.join(", "));
    }
    let seeds: Vec<String> = budget.seeds.iter().map(u64::to_string).collect();
    let plural = if seeds.len() == 1 { "" } else { "s" };
    let at = match &budget.at {
        Some(at) => format!("once, at {at}"),
        None => "under each condition".to_owned(),
    };
    format!(
        "Equal tuning budget: each contestant tries {} rates ({}) with the tuning seed{plural} {}, which are not compared: {} runs of \
         as many epochs as are compared, {at}. The best has the shortest mean time to the target, then the least test loss; a rate that \
         misses the target, diverges or fails comes after those that do not.",
        budget.rates.len(),
        budget.rates.join(", "),
        seeds.join(", "),
        budget.runs
    )
}

/// The whole of it, for reading.
#[must_use]
pub fn told(standing: &Standing) -> String {
    let mut text = format!("{}\n", budget(standing));
    for row in &standing.rows {
        text += &format!("\n{}\n{}\n", row.name, row.sentence);
        text += &table(row);
        for note in &row.notes {
            text += &format!("note: {note}\n");
        }
    }
    for (name, reason) in &standing.skipped {
        text += &format!("\n{name}\nskipped: {reason}\n");
    }
    text
}

/// One condition in columns.
fn table(row: &Row) -> String {
    let shown: Vec<usize> = (0..MADE.len()).filter(|place| is_shown(row, *place)).collect();
    let mut header = vec!["  contestant".to_owned(), "rate".to_owned()];
    header.extend(shown.iter().map(|place| MADE[*place].3.to_owned()));
    let line = |entry: &Entry| {
        let star = if row.first.contains(&entry.contestant) { "*" } else { " " };
        let mut cells = vec![format!("{star} {}", entry.contestant), entry.rate.clone()];
        cells.extend(shown.iter().map(|place| cell(entry, *place)));
        cells
    };
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(row.entries.iter().map(line)).collect();
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
