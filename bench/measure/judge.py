"""From figures of two commits, measured in pairs, to ratios and what they say.

A figure is (value, better): better is MORE, LESS or EITHER, for what is told and never marked.
"""

import figures

MORE, LESS, EITHER = "more", "less", "either"
# So many pairs are needed before anything is marked: the spread of fewer says nothing.
PAIRS_LEAST = 3
# A difference below this share is never marked: figures such as memory hardly spread at all.
DIFFERENCE_LEAST = 0.01


def mark(ratios, better):
    """`worse` or `better` where the median ratio HEAD / BASE lies further from 1 than [least..most] is wide, else nothing."""
    if len(ratios) < PAIRS_LEAST or better == EITHER:
        return ""
    median, least, most = figures.spread(ratios)
    if abs(median - 1.0) <= max(most - least, DIFFERENCE_LEAST):
        return ""
    return "better" if (median > 1.0) == (better == MORE) else "worse"


def compare(base, head):
    """Rows of (figure, better, values of BASE, of HEAD, ratios HEAD / BASE), in the order in which the figures came.

    `base` and `head` are a list each: {figure: (value, better)} for every pair, empty where a side failed."""
    names = dict.fromkeys(name for pair in zip(base, head) for side in pair for name in side)
    rows = []
    for name in names:
        sides = [{pair: side[name][0] for pair, side in enumerate(pairs) if name in side} for pairs in (base, head)]
        better = next(side[name][1] for pairs in (base, head) for side in pairs if name in side)
        rows.append((name, better, list(sides[0].values()), list(sides[1].values()), figures.ratios(sides[1], sides[0])))
    return rows


def number(value):
    """A figure in four digits."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def table(rows):
    """The rows for people: medians of both sides, the ratio, and what is beyond the spread."""
    lines = [["figure", "better is", "pairs", "BASE", "HEAD", "HEAD / BASE", ""]]
    for name, better, base, head, ratios in rows:
        middles = [number(figures.spread(values)[0]) if values else "-" for values in (base, head)]
        lines.append([name, better, str(len(ratios)), *middles, figures.show(ratios, "{:.3f}".format), mark(ratios, better)])
    return "\n".join(figures.grid(lines))


def summary(rows):
    """One line: how many figures, and what is marked."""
    marked = {what: [row[0] for row in rows if mark(row[4], row[1]) == what] for what in ("worse", "better")}
    if not any(len(row[4]) >= PAIRS_LEAST for row in rows):
        return f"{len(rows)} figures; with fewer than {PAIRS_LEAST} pairs nothing is marked"
    told = [f"{len(names)} {what}" + (f" ({'; '.join(names)})" if names else "") for what, names in marked.items()]
    return f"{len(rows)} figures, by more than their spread: " + ", ".join(told)
