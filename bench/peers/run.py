#!/usr/bin/env python3
"""Drives the outside peers of Slackline's comparisons: python3 bench/peers/run.py --out DIR. Standard library only.

Writes one JSON line a measurement to DIR/peers.jsonl and a table to DIR/table.txt. See README.md beside this file.
"""

import argparse
import os
import platform
import shlex
import signal
import sys
import time

sys.dont_write_bytecode = True

import peers  # noqa: E402
import plan  # noqa: E402
import processes  # noqa: E402
import report  # noqa: E402
import stragglers  # noqa: E402

NAMES = ("ddp", "gloo", "mpi", "mxnet")
TRAINING_SAMPLES = 60_000
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")


def _list(kind, what, least):
    def parse(text):
        try:
            values = [kind(part) for part in text.split(",")]
        except ValueError:
            values = []
        if not values or any(not value >= least for value in values):
            raise argparse.ArgumentTypeError(f"{text!r} must be {what}, separated by commas, each at least {least}")
        return values

    return parse


def _at_least(kind, least, most=float("inf")):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number from {least:g} to {most:g}")
        return value

    return parse


def _rates(text):
    """`0.05` for all, or `0.05,mxnet-dist_async=0.02`: a peer with its own."""
    rates = {}
    for part in text.split(","):
        name, _, value = part.rpartition("=")
        try:
            rates[name] = float(value)
        except ValueError:
            rates[name] = -1.0
        if not 0.0 < rates[name] < float("inf"):
            raise argparse.ArgumentTypeError(f"{part!r} must be RATE or PEER=RATE with a rate above 0")
    unknown = set(rates) - {"", "ddp-gloo", "mxnet-dist_sync", "mxnet-dist_async"}
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer {sorted(unknown)[0]}; there are ddp-gloo, mxnet-dist_sync, mxnet-dist_async")
    return rates


def _names(text):
    names = text.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer {unknown[0]!r}; there are {', '.join(NAMES)}")
    return names


def arguments(given=None):
    """The settings of a run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--out", required=True, help="folder for peers.jsonl, table.txt and the logs; made if missing")
    add("--only", type=_names, default=list(NAMES), help="of ddp,gloo,mpi,mxnet")
    add("--mode", choices=("train", "allreduce", "both"), default="both")
    add("--workers", type=_at_least(int, 1, 64), default=2)
    add("--servers", type=_at_least(int, 1, 64), default=2, help="servers of MXNet")
    add("--seeds", type=_list(int, "whole numbers", 0), default=[1, 2, 3])
    add("--epochs", type=_at_least(int, 1), default=10)
    add("--batch", type=_at_least(int, 1, TRAINING_SAMPLES), default=128, help="samples of each worker's batch")
    add("--rate", type=_rates, default={"": 0.05}, help="RATE, or RATE,PEER=RATE,... (ddp-gloo, mxnet-dist_sync, mxnet-dist_async)")
    add("--schedule", choices=("constant", "linear"), default="constant", help="how the rate falls over the run")
    add("--final-rate", type=_at_least(float, 0.0, 1.0), default=0.0, help="share of the rate that is left at the end (linear)")
    add("--momentum", type=_at_least(float, 0.0, 1.0), default=0.9)
    add("--stragglers", default="none", help=stragglers.FORMS)
    add("--target", type=_list(float, "accuracies", 0.0), default=[0.87], help="test accuracies whose time is reported")
    add("--evaluations", type=_at_least(int, 1, 1000), default=1, help="evaluations an epoch")
    add("--order", help="file of sample indices, raw little-endian u32; {seed} stands for the seed")
    add("--delays", help="file of worker,iteration,seconds; {seed} stands for the seed")
    add("--sizes-mib", type=_list(int, "whole MiB", 1), default=[4, 40])
    add("--ranks", type=_list(int, "numbers of ranks", 2), default=[2, 4])
    add("--repeats", type=_at_least(int, 1), help="repetitions of each allreduce; else 60 at 4 MiB, 15 at 40 MiB")
    add("--deadline", type=_at_least(float, 0.1), help="seconds for one measurement; else reckoned from its size")
    add("--data-dir", default="/usr/share/datasets/fashion-mnist")
    add("--python", help="interpreter with torch, numpy and mpi4py; else this one or Debian's")
    add("--mxnet-venv", default=os.path.join(CACHE, "slackline", "mxnet-1.9.1"))
    add("--netns", action="store_true", help="workers and servers each in a namespace that netns.sh has made")
    settings = parser.parse_args(given)
    try:
        stragglers.parse(settings.stragglers, 0, settings.workers)
        plan.clock_count(TRAINING_SAMPLES, settings.epochs, settings.batch, settings.workers)
    except ValueError as error:
        parser.error(str(error))
    for kind in ("order", "delays"):
        pattern = getattr(settings, kind)
        for seed in settings.seeds if pattern else ():
            path = pattern.replace("{seed}", str(seed))
            if not os.path.isfile(path):
                parser.error(f"--{kind}: there is no file {path}")
    return settings


class Run:
    """One run of the command: measurements go to the file as they come."""

    def __init__(self, settings):
        self.settings = settings
        self.installed = peers.Installed(settings)
        self.place = peers.Place(settings.netns)
        self.measurements = []
        os.makedirs(settings.out, exist_ok=True)
        self.path = os.path.join(settings.out, "peers.jsonl")
        with open(self.path, "w", encoding="utf-8"):
            pass

    def add(self, measurement):
        """Keeps what is to stand in the table, and writes its line at once."""
        self.measurements.append(measurement)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(report.line(measurement) + "\n")

    def attempt(self, what, measure):
        """Runs one measurement; whatever goes wrong with it stays with it."""
        try:
            found = measure()
        except peers.Absent as absent:
            skipped = {"kind": "skipped", "peer": what, "reason": str(absent)}
            # Said once, however many seeds and kinds of a peer there are.
            if not any(one["kind"] == "skipped" and one["reason"] == str(absent) for one in self.measurements):
                print(f"{what}: skipped: {absent}", flush=True)
            if skipped not in self.measurements:
                self.add(skipped)
            return
        except (processes.PeerFailed, OSError, ValueError, KeyError) as error:
            print(f"{what}: failed: {error}", flush=True)
            self.add({"kind": "failed", "peer": what, "reason": str(error)})
            return
        for measurement in found:
            self.add(measurement)
            print(summary(measurement), flush=True)

    def folder(self, name):
        """An empty folder for the logs and records of one measurement."""
        path = os.path.join(os.path.abspath(self.settings.out), "logs", name)
        os.makedirs(path, exist_ok=True)
        for old in os.listdir(path):
            os.remove(os.path.join(path, old))
        return path

    def training_job(self, peer, seed, **more):
        settings = self.settings
        files = {kind: getattr(settings, kind) for kind in ("order", "delays")}
        files = {kind: path and os.path.abspath(path.replace("{seed}", str(seed))) for kind, path in files.items()}
        return {
            "peer": peer,
            "workers": settings.workers,
            "servers": 0,
            "seed": seed,
            "epochs": settings.epochs,
            "batch": settings.batch,
            "rate": settings.rate.get(peer, settings.rate.get("", 0.05)),
            "momentum": settings.momentum,
            "schedule": settings.schedule,
            "final_rate": settings.final_rate,
            "stragglers": settings.stragglers,
            "evaluations": settings.evaluations,
            "data_dir": os.path.abspath(self.installed.need_data()),
            "interface": self.place.interface,
            "synchronous": True,
            "folder": self.folder(f"{peer}-seed-{seed}"),
            **files,
            **more,
        }

    def train(self, job, start):
        deadline = self.settings.deadline or training_deadline(job)
        return [peers.train(job, start, deadline, self.settings.target)]

    def train_ddp(self, seed):
        python, _ = self.installed.need_torch()
        job = self.training_job("ddp-gloo", seed)
        return self.train(job, lambda group: peers.start_ddp(group, job, self.place, python))

    def train_mxnet(self, seed, kvstore):
        python, _ = self.installed.need_mxnet()
        more = {"kvstore": kvstore, "servers": self.settings.servers, "synchronous": kvstore == "dist_sync"}
        job = self.training_job(f"mxnet-{kvstore}", seed, **more)
        return self.train(job, lambda group: peers.start_mxnet(group, job, self.place, python))

    def allreduce_job(self, peer, ranks):
        sizes = [(mib, self.settings.repeats or max(5, min(60, 600 // mib))) for mib in self.settings.sizes_mib]
        folder = self.folder(f"{peer}-{ranks}-ranks")
        return {"peer": peer, "ranks": ranks, "sizes": sizes, "interface": self.place.interface, "folder": folder}

    def allreduce(self, job, start):
        # A slow machine moves some 20 MB/s through all of it.
        work = sum(mib * (repeats + 2) for mib, repeats in job["sizes"]) * job["ranks"]
        return peers.allreduce(job, start, self.settings.deadline or 120 + work / 20)

    def allreduce_gloo(self, ranks):
        python, _ = self.installed.need_torch()
        job = self.allreduce_job("gloo", ranks)
        return self.allreduce(job, lambda group: peers.start_gloo(group, job, self.place, python))

    def allreduce_mpi(self, ranks, tcp):
        if self.place.netns:
            raise peers.Absent("Open MPI is not driven across network namespaces; its ranks would need a remote shell")
        mpirun, python, _ = self.installed.need_mpi()
        job = self.allreduce_job("openmpi-tcp" if tcp else "openmpi-shared-memory", ranks)
        command = peers.mpirun_command(mpirun, ranks, tcp) + [python, peers.script("allreduce_mpi.py")]
        command.append(os.path.join(job["folder"], "job.json"))
        return self.allreduce(job, lambda group: group.start("mpirun", command, peers.environment()))

    def all(self):
        """Every measurement that was asked for; seeds outside, so that a drift of the machine meets all peers alike."""
        settings = self.settings
        trains, reduces = settings.mode != "allreduce", settings.mode != "train"
        for seed in settings.seeds if trains else ():
            if "ddp" in settings.only:
                self.attempt("ddp-gloo", lambda seed=seed: self.train_ddp(seed))
            if "mxnet" in settings.only:
                for kvstore in ("dist_sync", "dist_async"):
                    self.attempt(f"mxnet-{kvstore}", lambda seed=seed, kvstore=kvstore: self.train_mxnet(seed, kvstore))
        for ranks in settings.ranks if reduces else ():
            if "gloo" in settings.only:
                self.attempt("gloo", lambda ranks=ranks: self.allreduce_gloo(ranks))
            if "mpi" in settings.only:
                for name, tcp in (("openmpi-shared-memory", False), ("openmpi-tcp", True)):
                    self.attempt(name, lambda ranks=ranks, tcp=tcp: self.allreduce_mpi(ranks, tcp))

    def machine(self):
        """The last line: where this was measured, and how."""
        libraries = {}
        for name, found in self.installed.known.items():
            if found:
                libraries[name] = found[-1] if isinstance(found, tuple) else found
        return {
            "kind": "machine",
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "libraries": libraries,
            "openblas_core": peers.environment().get("OPENBLAS_CORETYPE"),
            "command": shlex.join(["python3", *sys.argv]),
        }


def training_deadline(job):
    """Seconds that no healthy run takes: 1,500 samples a second, and every gradient as slow as the slowest of the first thousand."""
    clocks = plan.clock_count(TRAINING_SAMPLES, job["epochs"], job["batch"], job["workers"])
    slowness, _ = stragglers.of_job(job)
    slowest = max(slowness.seconds(worker, clock) for worker in range(job["workers"]) for clock in range(min(clocks, 1000)))
    return 180 + TRAINING_SAMPLES * job["epochs"] / 1500 + clocks * slowest


def summary(one):
    """One line for whoever watches."""
    if one["kind"] == "train":
        last = one["curve"][-1]["accuracy"] if one["curve"] else None
        accuracy = "diverged" if last is None else f"accuracy {last:.2%}"
        return f"{one['peer']}: seed {one['seed']}: {one['samples_per_s']:.0f} samples/s, {one['wall_s']:.1f} s, {accuracy}"
    return f"{one['peer']}: {one['ranks']} ranks, {one['mib']} MiB: {1e3 * one['seconds'][0]:.2f} ms"


def cpu_model():
    """The processor as the kernel names it."""
    found = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for text in file:
                key, _, value = text.partition(":")
                found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    name = found.get("model name", platform.machine())
    place = ", ".join(f"{key} {found[key]}" for key in ("cpu family", "model", "stepping") if key in found)
    return f"{name} ({place})" if place else name


def warn_of_slow_blas(libraries):
    """Debian's reference BLAS makes PyTorch several times slower, which would be no fair figure."""
    torch = libraries.get("torch")
    if torch and not any(word in path for path in torch["blas"] for word in ("openblas", "mkl", "blis")):
        print("note: PyTorch runs on a slow BLAS here; install libopenblas0-pthread, or its figures are far too low", flush=True)


def _stop(number, _frame):
    raise KeyboardInterrupt(f"signal {number}")


def main(given=None):
    settings = arguments(given)
    signal.signal(signal.SIGTERM, _stop)
    processes.adopt_orphans()
    run = Run(settings)
    began = time.monotonic()
    interrupted = False
    try:
        run.all()
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted; what was measured is kept", flush=True)
    machine = run.machine()
    text = report.table(run.measurements)
    run.add(machine)
    with open(os.path.join(settings.out, "table.txt"), "w", encoding="utf-8") as file:
        file.write(text)
    print(f"\n{text}\n{time.monotonic() - began:.0f} s; lines in {run.path}", flush=True)
    warn_of_slow_blas(machine["libraries"])
    if interrupted:
        return 130
    return 1 if any(one["kind"] == "failed" for one in run.measurements) else 0


if __name__ == "__main__":
    sys.exit(main())
