//! What the outputs look like: CSV with one width, HTML and SVG that close what they open, winners marked, nothing from elsewhere.

use std::fs;

use super::{Invented, SWEEP, Stage};
use crate::report;

fn reported(sweep: &str) -> (Stage, String) {
    let stage = Stage::new(sweep);
    stage.execute("out", &Invented::default(), 2, false).unwrap();
    let html = stage.read("out/report.html");
    (stage, html)
}

/// Every tag that is opened is closed in its order, and every attribute ends.
pub(super) fn check_tags(html: &str) {
    const ALONE: [&str; 3] = ["!DOCTYPE", "meta", "br"];
    let mut open: Vec<&str> = Vec::new();
    for part in html.split('<').skip(1) {
        let (tag, _) = part.split_once('>').unwrap_or_else(|| panic!("a tag without an end: {part}"));
        assert!(tag.matches('"').count() % 2 == 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed in another order");
        } else if !tag.ends_with('/') && !ALONE.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn the_report_is_whole_and_stands_alone() {
    let (_, html) = reported(SWEEP);
    check_tags(&html);
    for outside in ["<script", "<link", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    let links = html.matches("http").count();
    assert_eq!(links, html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    for title in [
        "Expectations",
        "Points",
        "Error against time and data",
        "Frontier",
        "Along the first axis",
        "Heat maps",
        "Clock lead and version staleness",
        "Worker time",
        "Timelines",
        "Commands",
    ] {
        assert!(html.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    assert!(html.contains("virtual time [s]") && html.contains("test error [share]"));
    // Text takes the colour of the page, so that it can be read on dark paper too.
    assert!(html.contains("currentColor") && !html.contains("#010203"));
    assert!(!html.contains("NaN") && !html.contains("could not be drawn"));
}

#[test]
fn the_winner_of_each_column_is_marked() {
    let (_, html) = reported(SWEEP);
    let table = &html[html.find("<h2>Points</h2>").unwrap()..html.find("<h2>Error against").unwrap()];
    let row = |label: &str| {
        let from = table.find(&format!("<th scope=\"row\">{label}</th>")).unwrap();
        &table[from..from + table[from..].find("</tr>").unwrap()]
    };
    assert!(
        row("4").contains("<td class=\"win\">\u{2605} 0.7515 <span class=\"dim\">0.751..0.752</span></td>")
    );
    assert!(row("inf").contains("<td class=\"win\">\u{2605} 17.5 "));
    assert!(!row("0").contains("win"));
    // All are equally stale: nobody wins.
    assert!(row("4").contains("<td>3</td>"));
}

#[test]
fn every_row_of_the_csv_has_every_column() {
    let (stage, _) = reported(SWEEP);
    let csv = stage.read("out/results.csv");
    let rows: Vec<&str> = csv.split("\r\n").filter(|row| !row.is_empty()).collect();
    assert_eq!(rows.len(), 13);
    assert!(rows[0].starts_with("bound,batch,seed,test_accuracy,"), "{}", rows[0]);
    let width = rows[0].split(',').count();
    assert!(rows.iter().all(|row| row.split(',').count() == width));
    assert!(rows[1].starts_with("0,16,1,0.70"), "{}", rows[1]);
    assert!(rows[1].contains(",runs/bound-0_batch-16_seed-1_"));
}

#[test]
fn a_report_is_drawn_again_from_its_folder() {
    let (stage, html) = reported(SWEEP);
    fs::remove_file(stage.path("out/report.html")).unwrap();
    assert_eq!(report(&stage.path("out")).unwrap(), stage.path("out/report.html"));
    assert_eq!(stage.read("out/report.html"), html);
    // What a run has not left is not drawn, and nothing fails.
    for run in fs::read_dir(stage.path("out/runs")).unwrap() {
        fs::remove_dir_all(run.unwrap().path()).unwrap();
    }
    report(&stage.path("out")).unwrap();
    let bare = stage.read("out/report.html");
    check_tags(&bare);
    assert!(!bare.contains("<h2>Frontier</h2>") && bare.contains("<h2>Points</h2>"));
}

#[test]
fn a_text_of_the_file_is_a_text_on_the_page() {
    let (_, html) = reported(&SWEEP.replace("What a test shows.", "a < b & <script>alert(1)</script>"));
    check_tags(&html);
    assert!(html.contains("a &lt; b &amp; &lt;script&gt;"));
}

#[test]
fn many_points_and_long_names_are_drawn() {
    let values: Vec<String> = (1..=20)
        .map(|value| format!("{{ label = \"a rather long name {value}\", set.workers = {value} }}"))
        .collect();
    let heading = &SWEEP[..SWEEP.find("[[axis]]").unwrap()];
    let sweep = format!("{heading}[[axis]]\nname = \"workers\"\npoints = [{}]\n", values.join(","));
    let (_, html) = reported(&sweep);
    check_tags(&html);
    assert!(html.contains("a rather long name 20"));
}
