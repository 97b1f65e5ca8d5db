"""Slackline's own programs, measured in turns with the peers: how they are started, and what of their output counts.

A variant is a name and settings, such as `bf16` with codec.push=bf16 and codec.pull=bf16; each is a contestant of its own.
"""

import json
import os

import peers
import processes
import report

ROOT = os.path.dirname(os.path.dirname(peers.HERE))
# What is compared where no variant is named.
PUSHPULL = [("", [])]
TRAINING = [
    ("bsp", ["consistency.policy=bsp"]),
    ("ssp2", ["consistency.policy=ssp", "consistency.staleness=2"]),
    ("asp", ["consistency.policy=asp"]),
]


def name_of(variant):
    """The contestant's name."""
    return "-".join(part for part in ("slackline", variant[0]) if part)


def need(program, option, given):
    """(path, version) of a program that has been built, or Absent."""
    path = given or os.path.join(ROOT, "target", "release", program)
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise peers.Absent(f"there is no program {path} (cargo build --release, or {option} FILE)")
    path = os.path.abspath(path)
    well, said = processes.ask([path, "--version"], peers.environment())
    return path, said.split()[-1] if well and said.split() else "?"


def _sets(pairs):
    return [part for pair in pairs for part in ("--set", pair)]


def loopback_command(program, job):
    """One repetition of one cell of the loopback bench."""
    cell = [f"--{name}={job[name]}" for name in ("mib", "workers", "servers", "rounds")]
    return [program, *cell, "--repeats=1", "--json", *_sets(job["set"])]


def pushpull_record(job, text):
    """The object of one repetition from what the bench printed."""
    try:
        (cell,) = json.loads(text)
        (wall,) = cell["wall_s"]
        middle = {name: (cell.get(name) or {}).get("median") for name in ("processor_s_per_gib", "server_peak_mib")}
        round_ms = [cell["round_ms"][name] for name in ("median", "min", "max")]
        found = {"values": cell["values"], "bytes": cell["bytes"], "wall_s": wall, "round_ms": round_ms, **middle}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise processes.PeerFailed(f"the bench printed no figures of one cell: {error!r}") from error
    return report.pushpull(job, found)


def training_sets(job):
    """The settings that make a run of Slackline the same task as a job of the peers. Evaluations are left out: the one at the end is outside
    of the time."""
    optimizer = [f"optimizer.kind={'momentum' if job['momentum'] else 'sgd'}", f"optimizer.rate={job['rate']}"]
    optimizer += [f"optimizer.momentum={job['momentum']}"] if job["momentum"] else []
    optimizer += [f"optimizer.schedule={job['schedule']}"]
    # What has no effect is refused.
    optimizer += [f"optimizer.final_rate={job['final_rate']}"] if job["schedule"] != "constant" else []
    return [
        f"workers={job['workers']}",
        f"servers={job['servers']}",
        f"train.epochs={job['epochs']}",
        f"train.batch={job['batch']}",
        *optimizer,
        "evaluate.every_epochs=0",
        f'data.dir="{job["data_dir"]}"',
    ]


def run_command(program, config, job):
    """One training run; its results go to `out` in the job's folder."""
    out = os.path.join(job["folder"], "out")
    return [program, "run", config, "--out", out, "--seed", str(job["seed"]), *_sets(training_sets(job) + job["set"])]


def training_record(job, summary, targets):
    """The object of one training run from its summary; times as the summary has them."""
    try:
        wall, samples, final = summary["wall_s"], summary["samples"], summary["final"]
        shares, moved = summary["time"], summary["bytes"]
        curve = [{"t": wall, "samples": samples, "accuracy": final["test_accuracy"], "loss": final["test_loss"]}]
        return {
            "kind": "train",
            "peer": job["peer"],
            "version": job["version"],
            **{name: job[name] for name in ("workers", "servers", "seed", "epochs", "batch", "rate", "schedule", "momentum")},
            "stragglers": "none",
            "delays": "none",
            "order": "own",
            "set": job.get("set", []),
            "samples_per_s": summary["samples_per_s"],
            "samples": samples,
            "wall_s": wall,
            "bytes_per_worker": round(moved["wire_sent"] / job["workers"]),
            "bytes_received_per_worker": round(moved["wire_received"] / job["workers"]),
            "wait_share": sum(shares.get(name, 0.0) for name in ("wait_for_clock", "push", "busy", "pull")),
            "curve": curve,
            "reached": report.reached(curve, targets),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise processes.PeerFailed(f"the summary of the run has no {error}") from error


def pushpull(job, program, place, deadline_s):
    """Runs one repetition to its object."""
    output = os.path.join(job["folder"], "figures.json")
    with processes.Group(job["folder"]) as group:
        group.start("loopback", place.command(0, loopback_command(program, job)), peers.environment(), output=output)
        group.wait(deadline_s)
    with open(output, encoding="utf-8") as file:
        return pushpull_record(job, file.read())


def train(job, program, config, place, deadline_s, targets):
    """Runs one training to its object."""
    with processes.Group(job["folder"]) as group:
        group.start("slackline", place.command(0, run_command(program, config, job)), peers.environment())
        group.wait(deadline_s)
    with open(os.path.join(job["folder"], "out", "summary.json"), encoding="utf-8") as file:
        return training_record(job, json.load(file), targets)
