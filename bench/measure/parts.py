"""What of two commits is measured: each part is a list of units, and a unit is measured once on one side in a few seconds.

A measurement gives {figure: (value, better)}.
"""

import glob
import json
import os
import resource

from judge import EITHER, LESS, MORE

import peers
import processes

DEADLINE_S = 600


class Runner:
    """Starts what is measured: in a folder of its own for each measurement, at real-time priority or not."""

    def __init__(self, folder, realtime):
        self.folder, self.place, self.count = folder, peers.Place(realtime=realtime), 0

    def run(self, name, command, tree, **environment):
        """(folder with the logs, what it printed, processor-seconds of it and all that it started) of a command that ended well."""
        self.count += 1
        folder = os.path.join(self.folder, f"{self.count}-{name}")
        os.makedirs(folder)
        output = os.path.join(folder, "printed")
        more = {key: value.replace("{folder}", folder) for key, value in environment.items()}
        command = [part.replace("{folder}", folder) for part in command]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with processes.Group(folder) as group:
            group.start(name, self.place.command(0, command), peers.environment(**more), output=output, folder=tree)
            group.wait(DEADLINE_S)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        with open(output, encoding="utf-8", errors="replace") as file:
            return folder, file.read(), used


class Criterion:
    """The criterion benches, each program of them a unit; what counts is the median time of an iteration."""

    name = "criterion"
    programs = ()
    benches = True

    def __init__(self, settings):
        self.settings = settings

    def units(self, base, head):
        return sorted(set(base.benches) & set(head.benches))

    def measure(self, side, unit, runner):
        times = ["--warm-up-time", "0.2", "--measurement-time", f"{self.settings.measure_s:g}", "--sample-size", "10", "--noplot"]
        chosen = [self.settings.filter] if self.settings.filter else []
        command = [side.benches[unit], "--bench", *times, *chosen]
        folder, _, _ = runner.run(unit, command, side.tree, CRITERION_HOME="{folder}/criterion")
        return estimates(os.path.join(folder, "criterion"))


def estimates(folder):
    """The figures that criterion left below its folder: nanoseconds of an iteration, by the name of the bench."""
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "**", "new", "estimates.json"), recursive=True)):
        try:
            with open(path, encoding="utf-8") as file:
                nanoseconds = json.load(file)["median"]["point_estimate"]
            with open(os.path.join(os.path.dirname(path), "benchmark.json"), encoding="utf-8") as file:
                name = json.load(file)["full_id"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise processes.PeerFailed(f"{path}: these are no estimates of criterion: {error!r}") from error
        found[f"{name}: ns"] = (float(nanoseconds), LESS)
    return found


class Loopback:
    """Push and pull of whole models between processes, each cell a unit."""

    name = "loopback"
    programs = ("loopback",)
    benches = False

    def __init__(self, settings):
        self.cells = settings.cells

    def units(self, _base, _head):
        return self.cells

    def measure(self, side, unit, runner):
        mib, workers, servers = unit
        cell = [f"--mib={mib}", f"--workers={workers}", f"--servers={servers}"]
        command = [side.programs["loopback"], *cell, "--repeats=1", "--json"]
        _, printed, _ = runner.run("loopback", command, side.tree)
        return loopback_figures(unit, printed)


def loopback_figures(unit, printed):
    """The figures of one cell from what the bench printed."""
    mib, workers, servers = unit
    kinds = (("megabytes_per_s", "MB/s", MORE), ("processor_s_per_gib", "processor-s/GiB", LESS), ("server_peak_mib", "peak MiB of a server", LESS))
    try:
        (cell,) = json.loads(printed)
        found = {f"loopback {mib} MiB {workers} x {servers}: {what}": (cell.get(key), better) for key, what, better in kinds}
        return {name: (float(spread["median"]), better) for name, (spread, better) in found.items() if spread}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise processes.PeerFailed(f"the bench printed no figures of one cell: {error!r}") from error


class Training:
    """One epoch of the MLP on Fashion-MNIST, with the configuration that the commit itself has."""

    name = "training"
    programs = ("slackline",)
    benches = False

    def __init__(self, settings):
        self.sets = [part for pair in settings.set for part in ("--set", pair)]

    def units(self, _base, _head):
        return ["fashion-mlp"]

    def measure(self, side, unit, runner):
        fixed = ["--out", "{folder}/out", "--set", "train.epochs=1", "--set", "evaluate.every_epochs=0"]
        command = [side.programs["slackline"], "run", f"configs/{unit}.toml", *fixed, *self.sets]
        folder, _, used = runner.run(unit, command, side.tree)
        with open(os.path.join(folder, "out", "summary.json"), encoding="utf-8") as file:
            return training_figures(unit, json.load(file), used)


def training_figures(unit, summary, used):
    """The figures of one run from its summary, and the processor-seconds of all its processes, start and end included."""
    try:
        speed, accuracy = float(summary["samples_per_s"]), summary["final"]["test_accuracy"]
    except (KeyError, TypeError, ValueError) as error:
        raise processes.PeerFailed(f"the summary of the run has no {error}") from error
    found = {f"{unit}: samples/s": (speed, MORE), f"{unit}: processor-s": (used, LESS)}
    return {**found, **({f"{unit}: test accuracy": (accuracy, EITHER)} if accuracy is not None else {})}


PARTS = {part.name: part for part in (Criterion, Loopback, Training)}
