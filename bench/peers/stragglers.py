"""Slowness on purpose: the least time that the gradient of each iteration of each worker takes.

Either read from a file, so that the draws are exactly those of the program, or drawn here from the seed of the run. Both are a pure
function of worker and iteration.
"""

import random

HEADER = "worker,iteration,seconds"
FORMS = "none, transient:PROB:FACTOR:COMPUTE_S, rotating:FACTOR:BURST:COMPUTE_S or permanent:FACTOR:COUNT:COMPUTE_S"


class StragglersError(ValueError):
    """A wrong description or file; the message says where."""


def _number(text, what, whole=False, least=0.0, most=float("inf")):
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = None
    # Written so that NaN fails as well.
    if value is None or not least <= value <= most or value == float("inf"):
        raise StragglersError(f"{what} is {text!r}; it must be a {'whole ' if whole else ''}number from {least:g} to {most:g}")
    return value


class None_:
    """Gradients take the time they take."""

    def seconds(self, worker, iteration):
        return 0.0


class Drawn:
    """Slowness from a description such as `transient:0.1:5:0.01`."""

    def __init__(self, kind, numbers, seed, workers):
        self.kind, self.numbers, self.seed, self.workers = kind, numbers, seed, workers

    def _slow(self, worker, iteration):
        if self.kind == "transient":
            # One generator a place: it does not matter in which order the times are asked for.
            return random.Random(f"{self.seed}/{worker}/{iteration}").random() < self.numbers[0]
        if self.kind == "rotating":
            return iteration // self.numbers[1] % self.workers == worker
        return worker < self.numbers[1]

    def seconds(self, worker, iteration):
        factor = self.numbers[1] if self.kind == "transient" else self.numbers[0]
        return self.numbers[2] * (factor if self._slow(worker, iteration) else 1.0)


class Listed:
    """Times from a file; past the end of a worker's times they begin again, and workers beyond the last take the first's again."""

    def __init__(self, rows):
        self.rows = rows

    def seconds(self, worker, iteration):
        row = self.rows[worker % len(self.rows)]
        return row[iteration % len(row)]


def parse(text, seed, workers):
    """The slowness that `text` describes."""
    kind, *fields = text.split(":")
    if kind == "none" and not fields:
        return None_()
    if kind not in ("transient", "rotating", "permanent") or len(fields) != 3:
        raise StragglersError(f"stragglers are {text!r}; they must be {FORMS}")
    if kind == "transient":
        numbers = [_number(fields[0], "the probability", most=1.0), _number(fields[1], "the factor")]
    elif kind == "rotating":
        numbers = [_number(fields[0], "the factor"), _number(fields[1], "the burst", whole=True, least=1)]
    else:
        numbers = [_number(fields[0], "the factor"), _number(fields[1], "the count", whole=True)]
    return Drawn(kind, numbers + [_number(fields[2], "the compute time in seconds", most=3600.0)], seed, workers)


def read(path):
    """Times from a file of lines `worker,iteration,seconds` under that header: each worker's in order, from 0, without a hole."""
    rows = {}
    with open(path, encoding="utf-8") as file:
        lines = [(number, line.strip()) for number, line in enumerate(file, 1) if line.strip()]
    if not lines or lines[0][1].replace(" ", "") != HEADER:
        raise StragglersError(f"{path}: the first line must be {HEADER}")
    for number, line in lines[1:]:
        fields = [field.strip() for field in line.split(",")]
        place = f"{path}, line {number}:"
        if len(fields) != 3:
            raise StragglersError(f"{place} {len(fields)} fields, not the three of {HEADER}")
        worker = _number(fields[0], f"{place} the worker", whole=True)
        iteration = _number(fields[1], f"{place} the iteration", whole=True)
        row = rows.setdefault(worker, [])
        if iteration != len(row):
            raise StragglersError(f"{place} iteration {iteration} of worker {worker}; the next must be {len(row)}")
        row.append(_number(fields[2], f"{place} the time"))
    if sorted(rows) != list(range(len(rows))) or not rows:
        raise StragglersError(f"{path}: workers {sorted(rows)}; they must be counted from 0 without a hole")
    return Listed([rows[worker] for worker in range(len(rows))])


def of_job(job):
    """The slowness of a job, and where it comes from: `none`, `file` or `own`."""
    if job.get("delays"):
        return read(job["delays"]), "file"
    slowness = parse(job["stragglers"], job["seed"], job["workers"])
    return slowness, "none" if isinstance(slowness, None_) else "own"
