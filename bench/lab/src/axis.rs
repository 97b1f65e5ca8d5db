//! The axes of a sweep: each a list of labelled points that set keys of the configuration.

use std::collections::BTreeMap;

use slackline_core::config::{Value, key_of};

use crate::document::{Content, Node};
use crate::fields::{Fields, inner, label_of, labels_of};
use crate::problem::{Fault, Problem, refs};

/// Keys with their values, each with its line in the sweep file.
pub(crate) type Settings = Vec<(String, Value, u32)>;

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) unit: String,
    /// The key, where the points are values of one key.
    pub(crate) key: Option<String>,
    pub(crate) points: Vec<AxisPoint>,
    pub(crate) line: u32,
}

/// One point of an axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AxisPoint {
    pub(crate) label: String,
    pub(crate) settings: Settings,
}

impl Axis {
    pub(crate) fn labels(&self) -> Vec<String> {
        self.points.iter().map(|point| point.label.clone()).collect()
    }

    pub(crate) fn position(&self, label: &str) -> Option<usize> {
        self.points.iter().position(|point| point.label == label)
    }

    /// The keys that any of its points sets.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.points.iter().flat_map(|point| point.settings.iter().map(|(key, ..)| key.as_str()))
    }

    fn of_values(key: &str, nodes: &[Node]) -> Vec<AxisPoint> {
        let point = |node: &Node| {
            let value = node.value();
            AxisPoint { label: label_of(&value), settings: vec![(key.to_owned(), value, node.line)] }
        };
        nodes.iter().map(point).collect()
    }

    /// The axis with only these labels, or with these values of its key.
    pub(crate) fn limited(
        &self,
        node: &Node,
        place: &str,
        scale: &str,
        problems: &mut Vec<Problem>,
    ) -> Vec<AxisPoint> {
        let line = node.line;
        let mut fault = |fault| problems.push(Problem { line, place: place.to_owned(), fault });
        if let (Some(key), Content::List(nodes)) = (&self.key, &node.content) {
            let points = Self::of_values(key, nodes);
            check_labels(&points, &mut fault);
            return points;
        }
        let Some(labels) = labels_of(node) else {
            let expected = "a list of labels".to_owned();
            fault(Fault::NotAllowed { expected, given: node.shown() });
            return Vec::new();
        };
        let mut points = Vec::new();
        for label in labels {
            match self.position(&label) {
                Some(place) => points.push(self.points[place].clone()),
                None => fault(Fault::UnknownLabel {
                    axis: format!("{} (of scale {scale})", self.name),
                    given: label,
                    labels: self.labels(),
                }),
            }
        }
        check_labels(&points, &mut fault);
        points
    }
}

/// Points must be there, each under a name of its own.
fn check_labels(points: &[AxisPoint], fault: &mut dyn FnMut(Fault)) {
    if points.is_empty() {
        fault(Fault::Empty);
    }
    for (place, point) in points.iter().enumerate() {
        if points[..place].iter().any(|earlier| earlier.label == point.label) {
            fault(Fault::RepeatedLabel { label: point.label.clone() });
        }
    }
}

/// Reads `[[axis]]`, or `[[list]]` as the one axis "point".
pub(crate) fn read(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Vec<Axis> {
    let (axes, list) = (fields.tables("axis", problems), fields.tables("list", problems));
    match (fields.has("axis"), fields.has("list")) {
        (true, true) => problems.push(fields.problem("list", Fault::AxisAndList)),
        (false, false) => problems.push(fields.problem("axis", Fault::NoAxis)),
        (false, true) => {
            let (points, line) = (points(list, "list", problems), fields.get("list").map_or(1, |at| at.line));
            check_labels(&points, &mut |fault| {
                problems.push(Problem { line, place: "list".to_owned(), fault });
            });
            return vec![Axis { name: "point".to_owned(), unit: String::new(), key: None, points, line }];
        }
        (true, false) if axes.is_empty() => problems.push(fields.problem("axis", Fault::NoAxis)),
        (true, false) => {}
    }
    let axes: Vec<Axis> =
        axes.iter().enumerate().filter_map(|(number, node)| axis(node, number + 1, problems)).collect();
    for (place, axis) in axes.iter().enumerate() {
        let mut fault = |fault| {
            problems.push(Problem { line: axis.line, place: format!("axis \"{}\"", axis.name), fault });
        };
        if axes[..place].iter().any(|earlier| earlier.name == axis.name) {
            fault(Fault::RepeatedName { name: axis.name.clone() });
        }
        let clash = |key: &&str| axes[..place].iter().find(|earlier| earlier.keys().any(|own| own == *key));
        if let Some((key, first)) = axis.keys().find_map(|key| clash(&key).map(|first| (key, first))) {
            fault(Fault::KeyTwice { key: key.to_owned(), first: format!("the axis {}", first.name) });
        }
    }
    axes
}

fn axis(node: &Node, number: usize, problems: &mut Vec<Problem>) -> Option<Axis> {
    let place = format!("axis {number}");
    let fields = Fields::open(node, place, &["name", "unit", "key", "values", "points"], problems);
    let key = fields.text("key", problems);
    let known = key.as_deref().and_then(key_of);
    let name = match (fields.has("name"), &key) {
        (false, Some(key)) => Some(key.rsplit('.').next().unwrap_or(key).to_owned()),
        _ => fields.needed_text("name", "a name, by which expectations choose", problems),
    }?;
    let unit = fields.text("unit", problems).or_else(|| known.map(|key| key.unit.to_owned()));
    let points = match (&key, fields.has("values"), fields.has("points")) {
        (Some(key), true, false) => Axis::of_values(key, fields.list("values", problems).unwrap_or_default()),
        (None, false, true) => {
            points(fields.tables("points", problems), &format!("axis \"{name}\""), problems)
        }
        _ => {
            let place = format!("axis \"{name}\"");
            problems.push(Problem { line: node.line, place, fault: Fault::NeitherKeyNorPoints });
            return None;
        }
    };
    check_labels(&points, &mut |fault| {
        problems.push(Problem { line: node.line, place: format!("axis \"{name}\""), fault });
    });
    Some(Axis { name, unit: unit.unwrap_or_default(), key, points, line: node.line })
}

fn points(nodes: &[Node], place: &str, problems: &mut Vec<Problem>) -> Vec<AxisPoint> {
    let mut points = Vec::with_capacity(nodes.len());
    for (number, node) in nodes.iter().enumerate() {
        let place = format!("{place} point {}", number + 1);
        let fields = Fields::open(node, place, &["label", "set"], problems);
        if !fields.has("label") {
            problems.push(fields.problem("label", Fault::Missing { expected: "the name of the point" }));
        }
        let labels = fields.labels("label", problems);
        let settings = settings(&fields, "set", problems);
        if let Some(label) = labels.into_iter().next() {
            points.push(AxisPoint { label, settings });
        }
    }
    points
}

/// Keys that are set: a table, flat or nested.
pub(crate) fn settings(fields: &Fields<'_>, name: &str, problems: &mut Vec<Problem>) -> Settings {
    let Some(node) = fields.get(name) else { return Vec::new() };
    if !matches!(node.content, Content::Table(_)) {
        let fault = Fault::NotAllowed {
            expected: "a table of keys, such as { \"train.batch\" = 64 }".to_owned(),
            given: node.shown(),
        };
        problems.push(Problem { line: node.line, place: fields.path(name), fault });
        return Vec::new();
    }
    let settings = node.settings();
    for (key, _, line) in &settings {
        if key == "seed" || key == "out" {
            let place = inner(&fields.place, name);
            problems.push(Problem { line: *line, place, fault: Fault::OwnKey { key: key.clone() } });
        }
    }
    settings
}

/// Labels chosen along axes, as they are written: `at = { policy = "bsp", bound = ["0", "4"] }`.
pub(crate) type Choice = BTreeMap<String, (Vec<String>, u32)>;

/// Reads such a choice.
pub(crate) fn choice(fields: &Fields<'_>, name: &str, problems: &mut Vec<Problem>) -> Choice {
    fields.get(name).map(|node| choice_of(node, &fields.path(name), problems)).unwrap_or_default()
}

/// The same of a node.
pub(crate) fn choice_of(node: &Node, place: &str, problems: &mut Vec<Problem>) -> Choice {
    let mut choice = Choice::new();
    let Content::Table(rows) = &node.content else {
        let expected = "labels by axis, such as { policy = \"bsp\" }".to_owned();
        let fault = Fault::NotAllowed { expected, given: node.shown() };
        problems.push(Problem { line: node.line, place: place.to_owned(), fault });
        return choice;
    };
    for (axis, node) in rows {
        match labels_of(node) {
            Some(labels) if !labels.is_empty() => {
                choice.insert(axis.clone(), (labels, node.line));
            }
            _ => {
                let expected = "a label or a list of labels".to_owned();
                let fault = Fault::NotAllowed { expected, given: node.shown() };
                problems.push(Problem { line: node.line, place: inner(place, axis), fault });
            }
        }
    }
    choice
}

/// For each axis the chosen places along it; none where nothing is chosen there, and no places where the scale has none of them.
pub(crate) type Selection = Vec<Option<Vec<usize>>>;

/// The axes of a sweep: as the file has them, and as the scale leaves them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axes<'a> {
    pub(crate) whole: &'a [Axis],
    pub(crate) scaled: &'a [Axis],
}

/// Finds the axes and labels of a choice. A label that only the whole sweep has is left out.
pub(crate) fn select(choice: &Choice, axes: Axes<'_>, place: &str, problems: &mut Vec<Problem>) -> Selection {
    let mut selection: Selection = vec![None; axes.scaled.len()];
    for (name, (labels, line)) in choice {
        let mut fault = |fault| problems.push(Problem { line: *line, place: place.to_owned(), fault });
        let at = match find(name, axes.scaled) {
            Ok((at, _)) => at,
            Err(unknown) => {
                fault(unknown);
                continue;
            }
        };
        let (axis, whole) = (&axes.scaled[at], &axes.whole[at]);
        for label in labels.iter().filter(|label| axis.position(label).or(whole.position(label)).is_none()) {
            let (axis, given, labels) = (axis.name.clone(), label.clone(), whole.labels());
            fault(Fault::UnknownLabel { axis, given, labels });
        }
        selection[at] = Some(labels.iter().filter_map(|label| axis.position(label)).collect());
    }
    selection
}

/// The axis of this name.
pub(crate) fn find<'a>(name: &str, axes: &'a [Axis]) -> Result<(usize, &'a Axis), Fault> {
    axes.iter().enumerate().find(|(_, axis)| axis.name == name).ok_or_else(|| Fault::UnknownAxis {
        given: name.to_owned(),
        axes: axes.iter().map(|axis| axis.name.clone()).collect(),
    })
}

/// `bound = 4, policy = ssp`.
pub(crate) fn shown(axes: &[Axis], places: &[usize]) -> String {
    let part = |(axis, place): (&Axis, &usize)| format!("{} = {}", axis.name, axis.points[*place].label);
    axes.iter().zip(places).map(part).collect::<Vec<_>>().join(", ")
}

/// Names of the axes, for a message.
pub(crate) fn names(axes: &[Axis]) -> String {
    let names: Vec<String> = axes.iter().map(|axis| axis.name.clone()).collect();
    crate::names::listed(&refs(&names))
}
