"""Arithmetic of what was measured several times: medians with [least..most], and ratios within a pair.

A machine swings by more between minutes than two programs differ, so what is compared is measured in turns, and the ratio is taken turn by
turn: what slows one turn down slows both of its figures.
"""

import math
import statistics


def spread(values):
    """(median, least, most), or None without a value."""
    values = list(values)
    return (statistics.median(values), min(values), max(values)) if values else None


def show(values, form):
    """`median [least..most]`, or the one value there is, or `-`."""
    found = spread(values)
    if not found:
        return "-"
    middle, least, most = (form(value) for value in found)
    return middle if len(values) == 1 else f"{middle} [{least}..{most}]"


def ratios(above, below):
    """above / below for each turn that has both, in the order of turns; both are {turn: figure}. What is no ratio is left out."""
    found = []
    for turn in sorted(set(above) & set(below)):
        # Written so that NaN fails as well.
        if below[turn] > 0 and math.isfinite(above[turn]) and math.isfinite(below[turn]):
            found.append(above[turn] / below[turn])
    return found


def in_turn(contestants, turn):
    """The contestants in another order each turn, so that nobody is always the first or follows the same one."""
    contestants = list(contestants)
    if not contestants:
        return []
    begin = turn // 2 % len(contestants)
    turned = contestants[begin:] + contestants[:begin]
    return turned if turn % 2 == 0 else turned[::-1]


def grid(rows):
    """Rows of texts as lines with columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
