"""From the records of the workers to one JSON object a measurement, and the readable table."""

import bisect
import json
import math
import statistics

import figures


def _finite(value):
    return value if value is None or math.isfinite(value) else None


def _samples_at(records, batch, at):
    """Samples whose iterations were over by `at`, over all workers."""
    return batch * sum(bisect.bisect_right(record["finished"], at) for record in records)


def _curve(job, records, start, wall):
    first = next(record for record in records if record["worker"] == 0)
    points = []
    for point in first["curve"]:
        # What is kept after the end is of the end.
        at = min(point["at"] - start, wall)
        if job["synchronous"]:
            samples = point["clock"] * job["workers"] * job["batch"]
        else:
            samples = _samples_at(records, job["batch"], start + at)
        accuracy, loss = _finite(point["accuracy"]), _finite(point["loss"])
        points.append({"t": round(at, 6), "samples": samples, "accuracy": accuracy, "loss": loss})
    return points


def reached(curve, targets):
    """For each target the first evaluation that reached it, or None."""
    found = {}
    for target in targets:
        hit = next((point for point in curve if (point["accuracy"] or 0.0) >= target), None)
        found[f"{target:g}"] = {"t": hit["t"], "samples": hit["samples"]} if hit else None
    return found


def _mean_or_none(values):
    return None if any(value is None for value in values) else round(statistics.mean(values))


def training(job, records, targets):
    """The object of one training run."""
    start = min(record["started"] for record in records)
    wall = max(record["ended"] for record in records) - start
    samples = job["batch"] * sum(len(record["finished"]) for record in records)
    curve = _curve(job, records, start, wall)
    return {
        "kind": "train",
        "peer": job["peer"],
        "version": records[0]["version"],
        "workers": job["workers"],
        "servers": job["servers"],
        "seed": job["seed"],
        "epochs": job["epochs"],
        "batch": job["batch"],
        "rate": job["rate"],
        "schedule": job["schedule"],
        "momentum": job["momentum"],
        "stragglers": "as in the file" if records[0]["delays"] == "file" else job["stragglers"],
        "delays": records[0]["delays"],
        "order": records[0]["order"],
        "samples_per_s": samples / wall,
        "samples": samples,
        "wall_s": wall,
        "bytes_per_worker": _mean_or_none([record["sent"] for record in records]),
        "bytes_received_per_worker": _mean_or_none([record["received"] for record in records]),
        "wait_share": statistics.mean(record["waited"] for record in records) / wall,
        "curve": curve,
        "reached": reached(curve, targets),
    }


def allreduce(peer, version, ranks, case):
    """The object of one size of an allreduce."""
    seconds = case["seconds"]
    median = statistics.median(seconds)
    return {
        "kind": "allreduce",
        "peer": peer,
        "version": version,
        "ranks": ranks,
        "mib": case["mib"],
        "repeats": len(seconds),
        "seconds": [median, min(seconds), max(seconds)],
        "bytes_per_s": case["mib"] * 2**20 / median,
    }


def of_rounds(job, records):
    """What one repetition of MXNet's pushes and pulls came to, from the records of its workers."""
    rounds = [1e3 * seconds for record in records for seconds in record["rounds"]]
    values = job["mib"] << 18
    return {
        "values": values,
        "bytes": 2 * 4 * values * job["workers"] * job["rounds"],
        "wall_s": max(record["ended"] for record in records) - min(record["started"] for record in records),
        "round_ms": list(figures.spread(rounds)),
        "processor_s_per_gib": None,
        "server_peak_mib": None,
        "version": records[0]["version"],
    }


def pushpull(job, found):
    """The object of one repetition of pushes and pulls of a whole model by all workers. A parameter counts when it is pushed and when it is
    pulled; bytes are what the contestant says that these are on its way."""
    parameters = 2 * found["values"] * job["workers"] * job["rounds"]
    return {
        "kind": "pushpull",
        "peer": job["peer"],
        "version": found.get("version") or job.get("version"),
        **{name: job[name] for name in ("mib", "workers", "servers", "turn", "rounds")},
        "set": job.get("set", []),
        **{name: found[name] for name in ("values", "bytes", "wall_s", "round_ms", "processor_s_per_gib", "server_peak_mib")},
        "bytes_per_s": found["bytes"] / found["wall_s"],
        "parameters_per_s": parameters / found["wall_s"],
    }


def line(measurement):
    """One line of JSON. Not-a-number is never in it: no reader takes that."""
    return json.dumps(measurement, allow_nan=False)


def _groups(measurements, keys):
    groups = {}
    for measurement in measurements:
        groups.setdefault(tuple(measurement[key] for key in keys), []).append(measurement)
    return groups


def _training_rows(measurements):
    targets = list(dict.fromkeys(target for run in measurements for target in run["reached"]))
    head = ["peer", "workers", "rate", "stragglers", "runs", "samples/s", "wait", "MB sent a worker", "last accuracy"]
    rows = [head + [f"s to {target}" for target in targets]]
    for key, runs in _groups(measurements, ("peer", "workers", "rate", "stragglers")).items():
        sent = [run["bytes_per_worker"] / 1e6 for run in runs if run["bytes_per_worker"] is not None]
        last = [run["curve"][-1]["accuracy"] for run in runs if run["curve"] and run["curve"][-1]["accuracy"] is not None]
        row = [key[0], str(key[1]), f"{key[2]:g}", key[3], str(len(runs))]
        row.append(figures.show([run["samples_per_s"] for run in runs], "{:.0f}".format))
        row.append(figures.show([run["wait_share"] for run in runs], "{:.0%}".format))
        row.append(figures.show(sent, "{:.1f}".format))
        row.append(figures.show(last, "{:.2%}".format))
        for target in targets:
            hits = [run["reached"].get(target) for run in runs]
            times = [hit["t"] for hit in hits if hit]
            missed = len(runs) - len(times)
            row.append(figures.show(times, "{:.1f}".format) + (f" ({missed} of {len(runs)} never)" if missed else ""))
        rows.append(row)
    return rows


def _allreduce_rows(measurements):
    rows = [["peer", "ranks", "MiB", "repeats", "ms: median [least..most]", "MB/s of buffer"]]
    for one in measurements:
        median, least, most = (f"{1e3 * value:.2f}" for value in one["seconds"])
        times = f"{median} [{least}..{most}]"
        size, speed = f"{one['mib']:g}", f"{one['bytes_per_s'] / 1e6:.0f}"
        rows.append([one["peer"], str(one["ranks"]), size, str(one["repeats"]), times, speed])
    return rows


def _pushpull_rows(measurements):
    head = ["MiB", "workers", "servers", "peer", "turns", "MB/s", "M parameters/s", "ms a round", "processor-s/GiB", "server peak, MiB"]
    rows = [head]
    for key, runs in _groups(measurements, ("mib", "workers", "servers", "peer")).items():
        row = [*(str(part) for part in key), str(len(runs))]
        row.append(figures.show([run["bytes_per_s"] / 1e6 for run in runs], "{:.0f}".format))
        row.append(figures.show([run["parameters_per_s"] / 1e6 for run in runs], "{:.0f}".format))
        row.append(figures.show([run["round_ms"][0] for run in runs], "{:.1f}".format))
        for name, form in (("processor_s_per_gib", "{:.2f}"), ("server_peak_mib", "{:.0f}")):
            row.append(figures.show([run[name] for run in runs if run[name] is not None], form.format))
        rows.append(row)
    return rows


def _is_ours(peer):
    return peer.split("-")[0] == "slackline"


def _ratio_rows(measurements, place, turn, figure):
    """What Slackline's own contestants make of each peer's figure, in the same turn of the same place."""
    rows = []
    for key, ones in _groups(measurements, place).items():
        of = {}
        for one in ones:
            of.setdefault(one["peer"], {})[one[turn]] = one[figure]
        for own in filter(_is_ours, of):
            for peer in (peer for peer in of if not _is_ours(peer)):
                found = figures.ratios(of[own], of[peer])
                row = [*(str(part) for part in key), f"{own} / {peer}", str(len(found)), figures.show(found, "{:.2f}".format)]
                rows.append(row)
    return [[*place, "ours / peer", "turns", f"ratio of {figure.replace('_per_s', '/s')}"], *rows] if rows else []


def _training_ratios(measurements):
    return _ratio_rows(measurements, ("workers", "batch", "stragglers"), "seed", "samples_per_s")


def _pushpull_ratios(measurements):
    return _ratio_rows(measurements, ("mib", "workers", "servers"), "turn", "parameters_per_s")


TABLES = (
    ("train", _training_rows),
    ("train", _training_ratios),
    ("allreduce", _allreduce_rows),
    ("pushpull", _pushpull_rows),
    ("pushpull", _pushpull_ratios),
)


def table(measurements):
    """Medians with [least..most] over the seeds or turns; MB = 10^6 bytes."""
    parts = []
    for kind, rows_of in TABLES:
        chosen = [one for one in measurements if one["kind"] == kind]
        rows = rows_of(chosen) if chosen else []
        if rows:
            parts.append("\n".join(figures.grid(rows)))
    gaps = _groups([one for one in measurements if one["kind"] in ("skipped", "failed")], ("kind", "reason"))
    if gaps:
        lines = [f"{', '.join(one['peer'] for one in ones)}: {kind}: {reason}" for (kind, reason), ones in gaps.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n" if parts else "nothing was measured\n"
