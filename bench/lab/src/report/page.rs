//! The page: one HTML file with everything in it, no script, nothing from elsewhere, on light and on dark.

use super::chart::escaped;
use super::view::{GROUPS_MAX, View};
use super::{curves, spread, tables, time};
use crate::sweep::Mode;

pub(crate) const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#ffffff;--dim:#59636e;--rule:#d1d9e0;--win:#e6f2ea;--bad:#b3261e;--good:#0b6b3a}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--paper:#15181c;--dim:#9aa4af;--rule:#3a414a;--win:#17362a;--bad:#ff9d94;--good:#7ed3a4}}\
body{font:16px/1.5 sans-serif;color:var(--ink);background:var(--paper);max-width:1240px;margin:0 auto;padding:24px}\
h1{margin:0 0 4px}h2{margin:40px 0 8px;border-bottom:1px solid var(--rule)}h3{margin:20px 0 6px;font-size:1.05em}\
.dim{color:var(--dim);font-weight:normal;font-size:.86em}.wide{overflow-x:auto}\
table{border-collapse:collapse;margin:8px 0;font-variant-numeric:tabular-nums}\
th,td{border-bottom:1px solid var(--rule);padding:4px 10px;text-align:left;vertical-align:top}\
td.win,tr.win td{background:var(--win);font-weight:bold}.fails{color:var(--bad);font-weight:bold}.holds{color:var(--good)}\
code,pre{font:13px/1.5 monospace}pre{border:1px solid var(--rule);padding:8px;overflow-x:auto}\
figure{margin:12px 0 28px}figcaption{font-weight:bold;margin-bottom:4px}\
.charts{display:flex;flex-wrap:wrap;gap:16px}.charts>*{flex:1 1 420px;max-width:600px;min-width:0}\
.charts svg{width:100%;height:auto;color:var(--ink)}.charts p{margin:0 0 0 72px;font-size:.92em}\
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 18px;padding:0;margin:8px 0}\
.legend li{display:flex;align-items:center;gap:6px}.legend svg{width:28px;height:14px}";

/// Charts side by side, with what stands below them.
pub(crate) fn figure(caption: &str, charts: &[String], below: &str) -> String {
    let caption = match caption {
        "" => String::new(),
        _ => format!("<figcaption>{}</figcaption>", escaped(caption)),
    };
    format!("<figure>{caption}<div class=\"charts\">{}</div>{below}</figure>\n", charts.concat())
}

/// A section, unless it is empty.
pub(crate) fn section(title: &str, about: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    let about =
        if about.is_empty() { String::new() } else { format!("<p class=\"dim\">{}</p>", escaped(about)) };
    format!("<section><h2>{}</h2>{about}{content}</section>\n", escaped(title))
}

/// The whole page.
pub(crate) fn page(view: &View<'_>) -> String {
    let results = view.results;
    let made = match results.mode {
        Mode::Sim => "simulated: real gradients in virtual time",
        Mode::Timing => "simulated without gradients: times, waiting, staleness and bytes only",
        Mode::Run => "real processes on one machine",
    };
    let runs: usize = results.points.iter().map(|point| point.runs.len()).sum();
    let scale = results.scale.as_ref().map_or_else(String::new, |scale| format!(", scale {scale}"));
    let seeds: Vec<String> = results.seeds.iter().map(u64::to_string).collect();
    let paragraphs = results.about.split("\n\n").map(|text| format!("<p>{}</p>", escaped(text.trim())));
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{name}</title><style>{STYLE}</style></head><body>\n\
         <h1>{name}</h1><p class=\"dim\">{} points, {runs} runs (seeds {}){}; {made}</p>\n{}\n",
        results.points.len(),
        seeds.join(", "),
        escaped(&scale),
        paragraphs.collect::<String>(),
        name = escaped(&results.name),
    );
    html += &section("Expectations", "", &tables::verdicts(&results.verdicts, &results.not_judged));
    html += &section("Runs that failed", "", &tables::failures(results));
    html += &section(
        "Points",
        "Means over the seeds with least..most; a star marks the winner of a column in its table. A point where a seed has no \
         figure has no mean. results.csv holds every run and every column.",
        &tables::points(view),
    );
    let left = view.groups.len().saturating_sub(GROUPS_MAX);
    if left > 0 {
        html += &format!(
            "<p class=\"dim\">Charts are drawn for the first {GROUPS_MAX} tables; {left} more are in the tables.</p>"
        );
    }
    html += &section(
        "Error against time and data",
        "Mean over the seeds; the band reaches from the least to the most.",
        &curves::curves(view),
    );
    html += &section(
        "Frontier",
        "The least error that any of them had reached by each moment, in the colour of the one that had; the others in grey.",
        &curves::frontier(view),
    );
    html += &section("Along the first axis", "", &spread::along(view));
    html += &section("Heat maps", "", &spread::heat_maps(view));
    html += &section("Clock lead and version staleness", "Shares over all seeds.", &spread::histograms(view));
    html += &section("Worker time", "", &time::shares(view));
    html += &section("Timelines", "The first iterations at the first seed.", &time::timelines(view));
    html += &section("Tuning", "", &tables::tuning(results));
    html += &section("Commands", "", &tables::commands(results));
    html + "</body></html>\n"
}
