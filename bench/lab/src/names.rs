//! The name that a mistyped one was meant to be, and names as folders carry them.

/// The one of `names` that `given` was most likely meant to be.
pub(crate) fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance costs time of length times length, and a name this long is none of ours.
    if given.chars().count() > 64 {
        return None;
    }
    let wanted = given.to_lowercase();
    let (name, away) = names
        .into_iter()
        .map(|name| (name, distance(&wanted, &name.to_lowercase())))
        .min_by_key(|row| row.1)?;
    (away <= (wanted.chars().count() / 3).max(2)).then_some(name)
}

/// Letters to insert, delete or replace (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for j in 1..=b.len() {
            let replaced = diagonal + usize::from(letter != b[j - 1]);
            diagonal = row[j];
            row[j] = replaced.min(row[j] + 1).min(row[j - 1] + 1);
        }
    }
    row[b.len()]
}

/// `; did you mean NAME?`, or what there is.
pub(crate) fn hint(given: &str, names: &[&str]) -> String {
    match nearest(given, names.iter().copied()) {
        Some(name) => format!("; did you mean {name}?"),
        None => format!("; there {} {}", if names.len() == 1 { "is" } else { "are" }, listed(names)),
    }
}

/// The names, the first dozen of them.
pub(crate) fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 12;
    if names.is_empty() {
        return "none".to_owned();
    }
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len() - more].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// A text as a part of a folder's name: letters, digits and `. + -`, anything else a dash.
pub(crate) fn slug(text: &str) -> String {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '+' | '-');
    text.chars().map(|letter| if allowed(letter) { letter } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_a_foreign_word_none() {
        let names = ["at_least", "at_most", "within"];
        assert_eq!(nearest("at_leest", names), Some("at_least"));
        assert_eq!(nearest("At_Most", names), Some("at_most"));
        assert_eq!(nearest("kubernetes", names), None);
        assert_eq!(hint("kubernetes", &names), "; there are at_least, at_most, within");
        assert_eq!(hint("x", &[]), "; there are none");
    }

    #[test]
    fn a_slug_is_a_name_of_a_folder() {
        assert_eq!(slug("../a b=[64, 32]"), "..-a-b--64--32-");
    }
}
