#!/usr/bin/env python3
"""Compares two commits pairwise: bench/pairwise.sh BASE [HEAD]. Standard library only.

Both are checked out and built below target/pairwise, one after the other, and measured in turns. Figures are printed and nothing is decided by
them: the status is 0 whatever they are.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "peers"))

import figures  # noqa: E402
import judge  # noqa: E402
import machine  # noqa: E402
import parts  # noqa: E402
import processes  # noqa: E402
import settings as checks  # noqa: E402
import trees  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))


def say(text):
    print(text, flush=True)


def _cell(text):
    """`4:1x1`: MiB, workers and servers."""
    try:
        mib, _, counts = text.partition(":")
        cell = (int(mib), *(int(count) for count in counts.split("x")))
    except ValueError:
        cell = ()
    if len(cell) != 3 or min(cell) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be MIB:WORKERSxSERVERS, such as 4:1x1")
    return cell


def _cells(text):
    return [_cell(part) for part in text.split(",")]


def _only(text):
    names = text.split(",")
    unknown = [name for name in names if name not in parts.PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; there are {', '.join(parts.PARTS)}")
    return names


def arguments(given=None):
    """The settings of a comparison."""
    parser = argparse.ArgumentParser(prog="pairwise.sh", description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("base", help="a commit, by any name that git knows")
    add("head", nargs="?", default="HEAD", help="the other; what is checked out here, if not given. BASE itself shows what the machine swings by")
    add("--only", type=_only, default=list(parts.PARTS), help=f"of {','.join(parts.PARTS)}")
    add("--pairs", type=checks.at_least(int, 1, 1000), default=5, help="pairs of measurements of everything; 5 if not given")
    add("--realtime", action="store_true", help="everything measured at real-time priority (chrt -r 5)")
    add("--cells", type=_cells, default=[(4, 1, 1), (4, 2, 2), (40, 1, 1), (40, 2, 2)], help="of loopback: 4:1x1,4:2x2,40:1x1,40:2x2")
    add("--filter", help="criterion: only benches whose name has this in it (a regular expression)")
    add("--measure-s", type=checks.at_least(float, 0.1, 60.0), default=0.5, help="criterion: seconds of each bench; 0.5 if not given")
    add("--set", type=checks.key_value, action="append", default=[], metavar="KEY=VALUE", help="a key of the training run; can be repeated")
    add("--at", default=os.path.join(ROOT, "target", "pairwise"), help="folder of the trees and builds, which are kept; else target/pairwise")
    add("--json", help="file for all figures of all pairs")
    settings = parser.parse_args(given)
    settings.at = os.path.abspath(settings.at)
    if settings.realtime and not processes.may_realtime():
        parser.error("--realtime: chrt is missing or may not be used here (util-linux, and root or CAP_SYS_NICE)")
    return settings


class Comparison:
    """Two built commits, what is measured of them, and what came out, pair by pair."""

    def __init__(self, base, head, chosen, runner):
        self.sides, self.chosen, self.runner = (base, head), chosen, runner
        self.found = ([], [])
        self.failed = []

    def pair(self, number):
        """Measures everything once on both sides, each unit right after the other side's; who begins changes."""
        for side in self.found:
            side.append({})
        for part in self.chosen:
            for unit in part.units(*self.sides):
                measured = {}
                for place in figures.in_turn((0, 1), number):
                    measured[place] = self._measure(part, unit, place)
                self._note(number, measured)

    def _measure(self, part, unit, place):
        try:
            found = part.measure(self.sides[place], unit, self.runner)
        except (processes.PeerFailed, OSError, ValueError) as error:
            what = f"{('BASE', 'HEAD')[place]}: {part.name}, {unit}: {error}"
            self.failed.append(what)
            say(f"failed: {what}")
            return {}
        self.found[place][-1].update(found)
        return found

    @staticmethod
    def _note(number, measured):
        rows = judge.compare([measured[0]], [measured[1]])
        ratios = "; ".join(f"{name} {ratios[0]:.3f}" for name, _, _, _, ratios in rows if ratios)
        say(f"pair {number + 1}: {ratios or 'nothing that both have'}")

    def rows(self):
        return judge.compare(*self.found)

    def document(self, about):
        """All figures for a file."""
        rows = [
            {"figure": name, "better": better, "base": base, "head": head, "ratios": ratios, "mark": judge.mark(ratios, better)}
            for name, better, base, head, ratios in self.rows()
        ]
        return {**about, "base": self.sides[0].commit, "head": self.sides[1].commit, "rows": rows, "failed": self.failed}


def prepare(settings):
    """The two commits, built."""
    chosen = [parts.PARTS[name](settings) for name in dict.fromkeys(settings.only)]
    programs = list(dict.fromkeys(program for part in chosen for program in part.programs))
    benches = any(part.benches for part in chosen)
    sides = [trees.built(ROOT, name, settings.at, programs, benches, say) for name in (settings.base, settings.head)]
    if settings.head == "HEAD" and trees.uncommitted(ROOT):
        say("note: what is not committed is not measured")
    return chosen, sides


def measure(settings, chosen, sides):
    """All pairs; interrupted, those that there are."""
    folder = tempfile.mkdtemp(prefix="slackline-pairwise-")
    comparison = Comparison(*sides, chosen, parts.Runner(folder, settings.realtime))
    try:
        for number in range(settings.pairs):
            comparison.pair(number)
    except KeyboardInterrupt:
        comparison.failed.append("interrupted")
        say("interrupted; what was measured is shown")
    if comparison.failed:
        say(f"logs of what failed are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return comparison


def _stop(number, _frame):
    raise KeyboardInterrupt(f"signal {number}")


def main(given=None):
    settings = arguments(given)
    signal.signal(signal.SIGTERM, _stop)
    processes.adopt_orphans()
    try:
        chosen, sides = prepare(settings)
    except trees.TreeError as error:
        say(f"pairwise: {error}")
        return 1
    began = time.monotonic()
    comparison = measure(settings, chosen, sides)
    rows = comparison.rows()
    base, head = (side.commit[:12] for side in sides)
    say(f"\nBASE {base}, HEAD {head}; {machine.cpu_model()}; {time.monotonic() - began:.0f} s")
    say(f"medians; HEAD / BASE is the median [least..most] of the ratios within the pairs\n\n{judge.table(rows)}\n\n{judge.summary(rows)}")
    if settings.json:
        with open(settings.json, "w", encoding="utf-8") as file:
            json.dump(comparison.document({**machine.described(), "realtime": settings.realtime}), file, indent=1)
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main())
