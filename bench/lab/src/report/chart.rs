//! A chart: an SVG picture by plotters that takes the colours of text and paper from the page, with its legend beside it in HTML.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::scale::Scale;

/// Points of a picture's side.
pub(crate) const WIDTH: u32 = 560;
pub(crate) const HEIGHT: u32 = 320;

/// Drawn for whatever has the colour of the text; the page puts its own in.
pub(crate) const INK: RGBColor = RGBColor(1, 2, 3);
const INK_IN_SVG: &str = "#010203";

const FONT: (&str, i32) = ("sans-serif", 14);

/// Told apart by people of any colour sense, on light and on dark (Okabe and Ito, without yellow and black).
const APART: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(128, 128, 128),
];

/// The colour of one series of so many: seven that stand apart, or steps from blue over green to orange where there are more.
pub(crate) fn colour(place: usize, count: usize) -> RGBColor {
    if count <= APART.len() {
        return APART[place % APART.len()];
    }
    let stops = [APART[0], APART[2], APART[1], APART[3]];
    let share = place as f64 / (count - 1).max(1) as f64 * (stops.len() - 1) as f64;
    let stop = (share as usize).min(stops.len() - 2);
    mixed(stops[stop], stops[stop + 1], share - stop as f64)
}

pub(crate) fn mixed(a: RGBColor, b: RGBColor, share: f64) -> RGBColor {
    let part =
        |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round().clamp(0.0, 255.0) as u8;
    RGBColor(part(a.0, b.0), part(a.1, b.1), part(a.2, b.2))
}

/// `#rrggbb`.
pub(crate) fn hex(colour: RGBColor) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// The drawing area that charts get.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The chart that series are drawn in.
pub(crate) type Frame<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Scale, Scale>>;

/// What cannot happen to a picture in memory, and is passed on nevertheless.
pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The axes of a chart.
pub(crate) struct Axes<'t> {
    pub(crate) x: Scale,
    pub(crate) y: Scale,
    pub(crate) x_title: &'t str,
    pub(crate) y_title: &'t str,
    /// Height of the picture without the names below it.
    pub(crate) height: u32,
}

/// Draws a picture of this size; `title` is what a reader without eyes hears. A picture that cannot be drawn says why.
pub(crate) fn picture(title: &str, size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    let outcome = {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let outcome = draw(&area);
        let presented = area.present();
        outcome.and(presented.map_err(Into::into))
    };
    if let Err(error) = outcome {
        return format!("<p>{} could not be drawn: {}</p>", escaped(title), escaped(&error.to_string()));
    }
    let (width, height) = size;
    let sized = format!("<svg width=\"{width}\" height=\"{height}\"");
    let named = format!("<svg role=\"img\" aria-label=\"{}\"", escaped(title));
    svg.replacen(&sized, &named, 1).replace(INK_IN_SVG, "currentColor")
}

/// A picture with axes.
pub(crate) fn chart(title: &str, axes: Axes<'_>, draw: impl FnOnce(&mut Frame<'_>) -> Drawn) -> String {
    let Axes { x, y, x_title, y_title, height } = axes;
    let beside = match &y {
        Scale::Rows(names) => longest(names).saturating_mul(15).div_ceil(2).saturating_add(36).clamp(72, 220),
        _ => 72,
    };
    let (x, columns) = match x {
        Scale::Places(names) => {
            let room = (WIDTH - beside - 30) as usize / names.len().max(1);
            let names: Vec<String> = names.iter().map(|name| cut(name, room * 10 / 68)).collect();
            let count = names.len();
            (Scale::Places(names), count)
        }
        other => (other, 7),
    };
    let rows = if let Scale::Rows(names) = &y { names.len() } else { 6 };
    picture(title, (WIDTH, height), |area| {
        let mut frame = ChartBuilder::on(area)
            .margin(8)
            .margin_right(22)
            .x_label_area_size(46)
            .y_label_area_size(beside)
            .build_cartesian_2d(x, y)?;
        let label = TextStyle::from(FONT.into_font()).color(&INK);
        frame
            .configure_mesh()
            .x_desc(x_title)
            .y_desc(y_title)
            .axis_style(INK.mix(0.5))
            .bold_line_style(INK.mix(0.14))
            .light_line_style(TRANSPARENT)
            .axis_desc_style(label.clone())
            .label_style(label)
            .x_labels(columns)
            .y_labels(rows)
            .draw()?;
        draw(&mut frame)
    })
}

fn longest(names: &[String]) -> u32 {
    names.iter().map(|name| name.chars().count() as u32).max().unwrap_or(0)
}

/// A name as far as there is room for it.
fn cut(name: &str, letters: usize) -> String {
    if name.chars().count() <= letters.max(3) {
        return name.to_owned();
    }
    name.chars().take(letters.max(3) - 1).chain(['\u{2026}']).collect()
}

/// A series as it stands in a legend.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) place: usize,
    pub(crate) count: usize,
}

/// The legend: beside the picture, where it can cover nothing.
pub(crate) fn legend(entries: &[Entry]) -> String {
    let entry = |entry: &Entry| {
        let colour = hex(colour(entry.place, entry.count));
        let mark = mark_svg(entry.place, &colour);
        format!(
            "<li><svg viewBox=\"0 0 28 14\" aria-hidden=\"true\"><path d=\"M0 7H28\" stroke=\"{colour}\" \
             stroke-width=\"2\"/>{mark}</svg>{}</li>",
            escaped(&entry.name)
        )
    };
    format!("<ul class=\"legend\">{}</ul>", entries.iter().map(entry).collect::<String>())
}

/// The marks, the same as in [`mark`].
fn mark_svg(place: usize, colour: &str) -> String {
    match place % MARKS {
        0 => format!("<circle cx=\"14\" cy=\"7\" r=\"4\" fill=\"{colour}\"/>"),
        1 => format!("<path d=\"M14 2L18.5 11H9.5Z\" fill=\"{colour}\"/>"),
        2 => format!("<path d=\"M10 3h8v8h-8Z\" fill=\"{colour}\"/>"),
        _ => format!("<path d=\"M10 3L18 11M18 3L10 11\" stroke=\"{colour}\" stroke-width=\"2\"/>"),
    }
}

/// Shapes of marks.
const MARKS: usize = 4;

/// Draws the mark of a series at each of these values; colour alone does not tell them apart.
pub(crate) fn mark(frame: &mut Frame<'_>, values: &[(f64, f64)], place: usize, colour: RGBColor) -> Drawn {
    const SIZE: i32 = 4;
    let all = values.iter().copied();
    match place % MARKS {
        0 => frame.draw_series(all.map(|at| Circle::new(at, SIZE, colour.filled())))?,
        1 => frame.draw_series(all.map(|at| TriangleMarker::new(at, SIZE + 1, colour.filled())))?,
        2 => frame.draw_series(all.map(|at| {
            EmptyElement::at(at)
                + Rectangle::new([(1 - SIZE, 1 - SIZE), (SIZE - 1, SIZE - 1)], colour.filled())
        }))?,
        _ => frame.draw_series(all.map(|at| Cross::new(at, SIZE, colour.stroke_width(2))))?,
    };
    Ok(())
}

/// Draws a line through these values.
pub(crate) fn line(frame: &mut Frame<'_>, values: &[(f64, f64)], colour: RGBColor, width: u32) -> Drawn {
    frame.draw_series(LineSeries::new(values.iter().copied(), colour.stroke_width(width)))?;
    Ok(())
}

/// A text for HTML.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Neither HTML nor XML takes them.
            letter if letter.is_control() && letter != '\n' => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}
