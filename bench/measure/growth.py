#!/usr/bin/env python3
"""What a byte costs as the model grows, and whether the server's memory stays within its limit: bench/growth.sh. Standard library only.

Every size is pushed and pulled by one worker and one server, in turns; what counts are the seconds of a byte relative to those of the smallest
size in the same turn. A size for which there is too little memory is left out and named.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "peers"))

import figures  # noqa: E402
import machine  # noqa: E402
import parts  # noqa: E402
import processes  # noqa: E402
import settings as checks  # noqa: E402
import trees  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
# Memory that a cell needs: the server's values and what it keeps of them while they are sent, the worker's values and gradient, and what
# both hold beside them.
NEEDED_SHARE, NEEDED_MIB = 4.2, 300
# Seconds of a byte are flat when they stay within this share of the smallest size's.
FLAT = 0.15


def arguments(given=None):
    """The settings of a measurement."""
    parser = argparse.ArgumentParser(prog="growth.sh", description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--mib", type=checks.list_of(int, "whole MiB", 1, 16384), default=[4, 40, 400, 4000], help="sizes of the model; else 4,40,400,4000")
    add("--repeats", type=checks.at_least(int, 1, 1000), default=3, help="turns; 3 if not given")
    add("--loopback", help="the bench; else it is built")
    add("--set", type=checks.key_value, action="append", default=[], metavar="KEY=VALUE", help="a key of the configuration; can be repeated")
    add("--realtime", action="store_true", help="everything measured at real-time priority (chrt -r 5)")
    settings = parser.parse_args(given)
    settings.mib = sorted(set(settings.mib))
    if settings.realtime and not processes.may_realtime():
        parser.error("--realtime: chrt is missing or may not be used here (util-linux, and root or CAP_SYS_NICE)")
    return settings


def needed_mib(mib):
    """What a cell of that size needs."""
    return NEEDED_SHARE * mib + NEEDED_MIB


def that_fit(sizes, available):
    """(sizes for which there is memory, lines about the others); all of them where nobody knows how much there is."""
    fit = [mib for mib in sizes if available is None or needed_mib(mib) <= available]
    lines = [
        f"{mib} MiB: left out: it needs some {needed_mib(mib) / 1024:.1f} GiB of memory, and {available / 1024:.1f} GiB are free"
        for mib in sizes
        if mib not in fit
    ]
    return fit, lines


def figures_of(printed):
    """The figures of one cell from what the bench printed."""
    try:
        (cell,) = json.loads(printed)
        (wall,) = cell["wall_s"]
        found = {"seconds_per_byte": wall / cell["bytes"], "parameters": cell["values"], "limit_mib": cell["server_limit_mib"]}
        return {**found, **{name: (cell[name] or {}).get("median") for name in ("processor_s_per_gib", "server_peak_mib")}}
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise processes.PeerFailed(f"the bench printed no figures of one cell: {error!r}") from error


def flatness(ratios):
    """Whether a byte costs as much as in the smallest size, by the median: yes, dearer or cheaper."""
    if not ratios:
        return "-"
    median = figures.spread(ratios)[0]
    return "yes" if abs(median - 1.0) <= FLAT else "dearer" if median > 1.0 else "cheaper"


def table(turns):
    """The table of [{MiB: figures of the cell}], a dictionary a turn."""
    sizes = sorted({mib for turn in turns for mib in turn})
    rows = [["MiB", "M parameters", "turns", "s/GB", "to the smallest", "within 15 %", "processor-s/GiB", "server peak, limit, MiB", "within"]]
    first = {number: turn[sizes[0]]["seconds_per_byte"] for number, turn in enumerate(turns) if sizes[0] in turn}
    for mib in sizes:
        cells = [turn[mib] for turn in turns if mib in turn]
        costs = {number: turn[mib]["seconds_per_byte"] for number, turn in enumerate(turns) if mib in turn}
        grown = figures.ratios(costs, first)
        used = [cell["processor_s_per_gib"] for cell in cells if cell["processor_s_per_gib"] is not None]
        peaks = [cell["server_peak_mib"] for cell in cells if cell["server_peak_mib"] is not None]
        limit = cells[0]["limit_mib"]
        row = [str(mib), f"{cells[0]['parameters'] / 1e6:.1f}", str(len(cells))]
        row.append(figures.show([1e9 * cost for cost in costs.values()], "{:.3f}".format))
        row += [figures.show(grown, "{:.2f}".format), flatness(grown), figures.show(used, "{:.2f}".format)]
        row += [f"{max(peaks):.0f}, {limit:.0f}" if peaks else f"-, {limit:.0f}", ("yes" if max(peaks) <= limit else "no") if peaks else "-"]
        rows.append(row)
    return "\n".join(figures.grid(rows))


def bench(given):
    """The path of the bench, which is built unless it is given."""
    if not given:
        command = [trees.CARGO, "build", "--release", "--quiet", "--package", "slackline-bench", "--bin", "loopback"]
        subprocess.run(command, cwd=ROOT, check=True)
        target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
        given = os.path.join(target, "release", "loopback")
    return os.path.abspath(given)


def measure(settings, program, sizes, runner, turns, failed):
    """Adds {MiB: figures} of every turn to `turns`, and to `failed` what failed."""
    sets = [part for pair in settings.set for part in ("--set", pair)]
    for number in range(settings.repeats):
        turns.append({})
        for mib in sizes if number % 2 == 0 else sizes[::-1]:
            command = [program, f"--mib={mib}", "--workers=1", "--servers=1", "--repeats=1", "--json", *sets]
            try:
                turns[-1][mib] = figures_of(runner.run(f"{mib}-mib", command, ROOT)[1])
                cost = turns[-1][mib]["seconds_per_byte"]
                print(f"turn {number + 1}: {mib} MiB: {1e9 * cost:.3f} s/GB", flush=True)
            except (processes.PeerFailed, OSError) as error:
                failed.append(mib)
                print(f"turn {number + 1}: {mib} MiB: failed: {error}", flush=True)


def _stop(number, _frame):
    raise KeyboardInterrupt(f"signal {number}")


def main(given=None):
    settings = arguments(given)
    signal.signal(signal.SIGTERM, _stop)
    processes.adopt_orphans()
    try:
        program = bench(settings.loopback)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"growth: the bench was not built: {error}", flush=True)
        return 1
    sizes, left_out = that_fit(settings.mib, machine.available_mib())
    if left_out:
        print("\n".join(left_out), flush=True)
    folder = tempfile.mkdtemp(prefix="slackline-growth-")
    turns, failed = [], []
    try:
        measure(settings, program, sizes, parts.Runner(folder, settings.realtime), turns, failed)
    except KeyboardInterrupt:
        failed.append("interrupted")
        print("interrupted; what was measured is shown", flush=True)
    if failed:
        print(f"logs of what failed are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if any(turns):
        print(f"\n{table(turns)}\n1 worker, 1 server; GB = 10^9 bytes, pushed and pulled; {machine.cpu_model()}")
    return 1 if failed or not any(turns) else 0


if __name__ == "__main__":
    sys.exit(main())
