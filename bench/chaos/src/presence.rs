//! Who was there when; from that the throughput that the others could have given, and the stalls.

use serde::Serialize;

/// A time in which something was so, in seconds of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Span {
    /// Its beginning.
    pub from_s: f64,
    /// Its end.
    pub to_s: f64,
}

impl Span {
    /// How long it is; never below 0.
    #[must_use]
    pub fn length_s(&self) -> f64 {
        (self.to_s - self.from_s).max(0.0)
    }

    /// What it has in common with another.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        Self { from_s: self.from_s.max(other.from_s), to_s: self.to_s.min(other.to_s) }
    }

    const fn holds(&self, moment: f64) -> bool {
        self.from_s <= moment && moment < self.to_s
    }
}

/// The integral over `window` of how many of `workers` were there, in worker-seconds. `absences` has those of each worker; they may overlap.
#[must_use]
pub fn worker_seconds(workers: usize, absences: &[Vec<Span>], window: Span) -> f64 {
    let away: f64 = absences.iter().map(|spans| covered_s(spans, window)).sum();
    workers as f64 * window.length_s() - away
}

/// How much of a window spans cover, each moment counted once.
fn covered_s(spans: &[Span], window: Span) -> f64 {
    let mut spans: Vec<Span> = spans.iter().map(|span| span.within(&window)).collect();
    spans.sort_by(|one, other| one.from_s.total_cmp(&other.from_s));
    let (mut covered, mut until) = (0.0, window.from_s);
    for span in spans {
        covered += (span.to_s - span.from_s.max(until)).max(0.0);
        until = until.max(span.to_s);
    }
    covered
}

/// The parts of a window in which nobody was away.
#[must_use]
pub fn presences(absences: &[Span], window: Span) -> Vec<Span> {
    let mut spans = absences.to_vec();
    spans.sort_by(|one, other| one.from_s.total_cmp(&other.from_s));
    let (mut here, mut from_s) = (Vec::new(), window.from_s);
    for span in spans {
        here.push(Span { from_s, to_s: span.from_s.min(window.to_s) });
        from_s = from_s.max(span.to_s);
    }
    here.push(Span { from_s, to_s: window.to_s });
    here.retain(|span| span.length_s() > 0.0);
    here
}

/// The longest time within `window` without one of `times` (rising). From its beginning to the first, and from the last to its end, count.
#[must_use]
pub fn longest_gap(times: &[f64], window: Span) -> Span {
    let inside = times.iter().copied().filter(|time| window.holds(*time));
    let edges: Vec<f64> = std::iter::once(window.from_s).chain(inside).chain([window.to_s]).collect();
    let gaps = edges.windows(2).map(|pair| Span { from_s: pair[0], to_s: pair[1] });
    gaps.max_by(|one, other| one.length_s().total_cmp(&other.length_s())).unwrap_or(window)
}

/// The longest stall of one worker while it was there. Its time of coming back, from the end of an absence to the first of `times`, is a
/// recovery and not a stall.
#[must_use]
pub fn longest_stall(times: &[f64], absences: &[Span], window: Span) -> Span {
    let stalls = presences(absences, window).into_iter().map(|here| {
        let comes_back = here.from_s > window.from_s;
        let first = times.iter().copied().find(|time| here.holds(*time));
        match (comes_back, first) {
            (true, Some(from_s)) => longest_gap(times, Span { from_s, ..here }),
            (true, None) => Span { from_s: here.to_s, ..here },
            (false, _) => longest_gap(times, here),
        }
    });
    let none = Span { from_s: window.from_s, to_s: window.from_s };
    stalls.max_by(|one, other| one.length_s().total_cmp(&other.length_s())).unwrap_or(none)
}

/// Median and worst of some times; none where there are none.
#[must_use]
pub fn median_and_worst(mut times: Vec<f64>) -> Option<(f64, f64)> {
    times.sort_by(f64::total_cmp);
    Some((times.get(times.len() / 2).copied()?, times.last().copied()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn span(from_s: f64, to_s: f64) -> Span {
        Span { from_s, to_s }
    }

    const WINDOW: Span = span(10.0, 20.0);

    #[test]
    fn time_away_counts_once_and_only_within_the_window() {
        let absences = [
            vec![span(12.0, 14.0), span(13.0, 15.0), span(13.5, 14.5)],
            vec![span(5.0, 11.0), span(19.0, 25.0)],
            vec![],
            vec![span(0.0, 5.0), span(21.0, 22.0)],
        ];
        assert_eq!(worker_seconds(4, &absences, WINDOW), 40.0 - 3.0 - 2.0);
        assert_eq!(worker_seconds(4, &[], WINDOW), 40.0);
    }

    #[test]
    fn the_longest_gap_may_lie_at_either_end() {
        assert_eq!(longest_gap(&[11.0, 12.0, 15.5, 18.0], WINDOW), span(12.0, 15.5));
        assert_eq!(longest_gap(&[14.5, 18.0], WINDOW), span(10.0, 14.5));
        assert_eq!(longest_gap(&[9.0, 11.0, 25.0], WINDOW), span(11.0, 20.0));
        assert_eq!(longest_gap(&[], WINDOW), WINDOW);
    }

    #[test]
    fn a_stall_is_of_those_who_are_there() {
        let times = [10.5, 11.0, 16.0, 16.5, 18.5, 19.5];
        // Away from 11.2 to 15: what it waited before 16 is its recovery.
        assert_eq!(longest_stall(&times, &[span(11.2, 15.0)], WINDOW), span(16.5, 18.5));
        assert_eq!(longest_stall(&times, &[], WINDOW), span(11.0, 16.0));
        assert_eq!(longest_stall(&times, &[span(0.0, 30.0)], WINDOW).length_s(), 0.0);
    }

    #[test]
    fn the_median_is_one_of_them() {
        assert_eq!(median_and_worst(vec![3.0, 1.0, 2.0]), Some((2.0, 3.0)));
        assert_eq!(median_and_worst(vec![]), None);
    }
}
