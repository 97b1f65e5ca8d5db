//! The known key that a mistyped one was meant to be.

use super::schema::{KEYS, Key};

/// The known key that `path` was most likely meant to be.
#[must_use]
pub(super) fn nearest(path: &str) -> Option<&'static Key> {
    // A name far longer than any key is none of them, and the distance costs time of length times length.
    if path.chars().count() > 64 {
        return None;
    }
    let path = path.to_lowercase();
    let name = path.rsplit('.').next().unwrap_or_default();
    let (key, distance) = KEYS
        .iter()
        // The right name in the wrong section is one mistake.
        .map(|key| (key, edit_distance(&path, key.path).min(edit_distance(name, key.name()) + 1)))
        .min_by_key(|(_, distance)| *distance)?;
    (distance <= (name.chars().count() / 3).max(2)).then_some(key)
}

/// Letters to insert, delete, replace, or swap with a neighbour (optimal string alignment).
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        rows[i][0] = i;
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, meant: Option<&str>) {
        assert_eq!(nearest(path).map(|key| key.path), meant, "{path}");
    }

    #[test]
    fn a_slip_of_the_fingers_finds_the_key() {
        check("train.bacth", Some("train.batch"));
        check("sed", Some("seed"));
        check("Optimizer.Rate", Some("optimizer.rate"));
        check("cluster.lease", Some("cluster.lease_s"));
    }

    #[test]
    fn the_right_name_in_the_wrong_section_finds_the_key() {
        check("staleness", Some("consistency.staleness"));
        check("optimizer.batch", Some("train.batch"));
    }

    #[test]
    fn a_foreign_word_finds_nothing() {
        check("kubernetes", None);
        check(&"x".repeat(100_000), None);
    }
}
