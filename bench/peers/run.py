#!/usr/bin/env python3
"""Drives the outside peers of Slackline's comparisons: python3 bench/peers/run.py --out DIR. Standard library only.

Writes one JSON line a measurement to DIR/peers.jsonl and a table to DIR/table.txt. See README.md beside this file.
"""

import os
import shlex
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True

import figures  # noqa: E402
import machine  # noqa: E402
import ours  # noqa: E402
import peers  # noqa: E402
import plan  # noqa: E402
import processes  # noqa: E402
import report  # noqa: E402
import settings as settings_of  # noqa: E402
import stragglers  # noqa: E402

# What a slow machine moves through all of a measurement, in MiB/s.
SLOW_MIB_PER_S = 20
# Rounds of a turn of pushes and pulls, where they are not given: as many as push so many MiB a worker, between the least and the most.
PUSHED_MIB, ROUNDS_MIN, ROUNDS_MAX = 400, 3, 100
PUSHPULL_REPEATS = 3


def arguments(given=None):
    """The settings of a run."""
    return settings_of.arguments(__doc__.split("\n", maxsplit=1)[0], given)


class Run:
    """One run of the command: measurements go to the file as they come."""

    def __init__(self, settings):
        self.settings = settings
        self.installed = peers.Installed(settings)
        self.place = peers.Place(settings.netns, settings.realtime)
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
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        return path

    def training_job(self, peer, seed, **more):
        settings = self.settings
        files = {kind: getattr(settings, kind) for kind in ("order", "delays")}
        files = {kind: path and os.path.abspath(path.replace("{seed}", str(seed))) for kind, path in files.items()}
        return {
            "peer": peer,
            "workers": settings.workers[0],
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
        more = {"kvstore": kvstore, "servers": self.settings.servers[0], "synchronous": kvstore == "dist_sync"}
        job = self.training_job(f"mxnet-{kvstore}", seed, **more)
        return self.train(job, lambda group: peers.start_mxnet(group, job, self.place, python))

    def train_ours(self, seed, variant):
        settings = self.settings
        if settings.stragglers != "none" or settings.order or settings.delays:
            raise peers.Absent("with stragglers, delays or an order of the samples, Slackline is compared by slackline compare --with-peers")
        self.not_across_namespaces("Slackline starts all its own processes on loopback")
        program, version = self.own_program("slackline", "--slackline", settings.slackline)
        config = os.path.abspath(settings.config or os.path.join(ours.ROOT, "configs", "fashion-mlp.toml"))
        more = {"servers": settings.servers[0], "set": settings.set + variant[1], "version": version}
        job = self.training_job(ours.name_of(variant), seed, **more)
        return [ours.train(job, program, config, self.place, settings.deadline or training_deadline(job), settings.target)]

    def own_program(self, name, option, given):
        """(path, version) of one of Slackline's programs."""
        known = self.installed.known
        if name not in known:
            known[name] = ours.need(name, option, given)
        return known[name]

    def not_across_namespaces(self, why):
        if self.place.netns:
            raise peers.Absent(f"not driven across network namespaces: {why}")

    def pushpull_job(self, peer, cell, turn, **more):
        mib, workers, servers = cell
        return {
            "peer": peer,
            "mib": mib,
            "workers": workers,
            "servers": servers,
            "turn": turn,
            "rounds": self.settings.rounds or max(ROUNDS_MIN, min(ROUNDS_MAX, PUSHED_MIB // mib)),
            "folder": self.folder(f"{peer}-{mib}-mib-{workers}-workers-{servers}-servers-turn-{turn}"),
            **more,
        }

    def pushpull_deadline(self, job):
        work = 2 * job["mib"] * (job["rounds"] + 2) * job["workers"]
        return self.settings.deadline or 120 + work / SLOW_MIB_PER_S

    def pushpull_ours(self, cell, turn, variant):
        self.not_across_namespaces("the bench starts all its processes on loopback")
        program, version = self.own_program("loopback", "--loopback", self.settings.loopback)
        more = {"set": self.settings.set + variant[1], "version": version}
        job = self.pushpull_job(ours.name_of(variant), cell, turn, **more)
        return [ours.pushpull(job, program, self.place, self.pushpull_deadline(job))]

    def pushpull_mxnet(self, cell, turn):
        python, _ = self.installed.need_mxnet()
        job = self.pushpull_job("mxnet-dist_async", cell, turn, kvstore="dist_async")
        start = lambda group: peers.start_mxnet(group, job, self.place, python, "pushpull_mxnet.py")  # noqa: E731
        return [peers.pushpull(job, start, self.pushpull_deadline(job))]

    def allreduce_job(self, peer, ranks):
        sizes = [(mib, self.settings.repeats or max(5, min(60, 600 // mib))) for mib in self.settings.sizes_mib]
        folder = self.folder(f"{peer}-{ranks}-ranks")
        return {"peer": peer, "ranks": ranks, "sizes": sizes, "interface": self.place.interface, "folder": folder}

    def allreduce(self, job, start):
        work = sum(mib * (repeats + 2) for mib, repeats in job["sizes"]) * job["ranks"]
        return peers.allreduce(job, start, self.settings.deadline or 120 + work / SLOW_MIB_PER_S)

    def allreduce_gloo(self, ranks):
        python, _ = self.installed.need_torch()
        job = self.allreduce_job("gloo", ranks)
        return self.allreduce(job, lambda group: peers.start_gloo(group, job, self.place, python))

    def allreduce_mpi(self, ranks, tcp):
        self.not_across_namespaces("the ranks of Open MPI would need a remote shell")
        mpirun, python, _ = self.installed.need_mpi()
        job = self.allreduce_job("openmpi-tcp" if tcp else "openmpi-shared-memory", ranks)
        command = peers.mpirun_command(mpirun, ranks, tcp) + [python, peers.script("allreduce_mpi.py")]
        command.append(os.path.join(job["folder"], "job.json"))
        return self.allreduce(job, lambda group: group.start("mpirun", self.place.command(0, command), peers.environment()))

    def trainings(self):
        """(name, a function of the seed) of every contestant that trains."""
        only, found = self.settings.only, []
        if "slackline" in only:
            for variant in self.settings.variant or ours.TRAINING:
                found.append((ours.name_of(variant), lambda seed, variant=variant: self.train_ours(seed, variant)))
        if "ddp" in only:
            found.append(("ddp-gloo", self.train_ddp))
        if "mxnet" in only:
            for kvstore in ("dist_sync", "dist_async"):
                found.append((f"mxnet-{kvstore}", lambda seed, kvstore=kvstore: self.train_mxnet(seed, kvstore)))
        return found

    def pushpulls(self):
        """(name, a function of the cell and the turn) of every contestant that pushes and pulls."""
        only, found = self.settings.only, []
        if "slackline" in only:
            for variant in self.settings.variant or ours.PUSHPULL:
                found.append((ours.name_of(variant), lambda cell, turn, variant=variant: self.pushpull_ours(cell, turn, variant)))
        if "mxnet" in only:
            found.append(("mxnet-dist_async", self.pushpull_mxnet))
        return found

    def allreduces(self, ranks):
        only = self.settings.only
        if "gloo" in only:
            self.attempt("gloo", lambda: self.allreduce_gloo(ranks))
        if "mpi" in only:
            for name, tcp in (("openmpi-shared-memory", False), ("openmpi-tcp", True)):
                self.attempt(name, lambda tcp=tcp: self.allreduce_mpi(ranks, tcp))

    def all(self):
        """Every measurement that was asked for, everybody in turns, so that a drift of the machine meets all alike."""
        settings = self.settings
        for turn, seed in enumerate(settings.seeds if settings.mode in ("train", "both") else ()):
            for name, train in figures.in_turn(self.trainings(), turn):
                self.attempt(name, lambda train=train, seed=seed: train(seed))
        for ranks in settings.ranks if settings.mode in ("allreduce", "both") else ():
            self.allreduces(ranks)
        if settings.mode == "pushpull":
            cells = [(m, w, s) for m in settings.sizes_mib for s in settings.servers for w in settings.workers]
            for cell in cells:
                for turn in range(settings.repeats or PUSHPULL_REPEATS):
                    for name, measure in figures.in_turn(self.pushpulls(), turn):
                        self.attempt(name, lambda measure=measure, cell=cell, turn=turn: measure(cell, turn))

    def machine(self):
        """The last line: where this was measured, and how."""
        libraries = {}
        for name, found in self.installed.known.items():
            if found:
                libraries[name] = found[-1] if isinstance(found, tuple) else found
        return {
            "kind": "machine",
            **machine.described(),
            "realtime": self.settings.realtime,
            "libraries": libraries,
            "openblas_core": peers.environment().get("OPENBLAS_CORETYPE"),
            "command": shlex.join(["python3", *sys.argv]),
        }


def training_deadline(job):
    """Seconds that no healthy run takes: 1,500 samples a second, and every gradient as slow as the slowest of the first thousand."""
    clocks = plan.clock_count(settings_of.TRAINING_SAMPLES, job["epochs"], job["batch"], job["workers"])
    slowness, _ = stragglers.of_job(job)
    slowest = max(slowness.seconds(worker, clock) for worker in range(job["workers"]) for clock in range(min(clocks, 1000)))
    return 180 + settings_of.TRAINING_SAMPLES * job["epochs"] / 1500 + clocks * slowest


def summary(one):
    """One line for whoever watches."""
    if one["kind"] == "train":
        last = one["curve"][-1]["accuracy"] if one["curve"] else None
        accuracy = "diverged" if last is None else f"accuracy {last:.2%}"
        return f"{one['peer']}: seed {one['seed']}: {one['samples_per_s']:.0f} samples/s, {one['wall_s']:.1f} s, {accuracy}"
    if one["kind"] == "pushpull":
        cell = f"{one['mib']} MiB, {one['workers']} x {one['servers']}, turn {one['turn']}"
        return f"{one['peer']}: {cell}: {one['bytes_per_s'] / 1e6:.0f} MB/s, {one['parameters_per_s'] / 1e6:.0f} M parameters/s"
    return f"{one['peer']}: {one['ranks']} ranks, {one['mib']} MiB: {1e3 * one['seconds'][0]:.2f} ms"


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
    about = run.machine()
    text = report.table(run.measurements)
    run.add(about)
    with open(os.path.join(settings.out, "table.txt"), "w", encoding="utf-8") as file:
        file.write(text)
    print(f"\n{text}\n{time.monotonic() - began:.0f} s; lines in {run.path}", flush=True)
    warn_of_slow_blas(about["libraries"])
    if interrupted:
        return 130
    return 1 if any(one["kind"] == "failed" for one in run.measurements) else 0


if __name__ == "__main__":
    sys.exit(main())
