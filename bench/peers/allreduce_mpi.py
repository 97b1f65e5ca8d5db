"""One rank of a timed Open MPI allreduce (f32 sum, in place), started by mpirun: allreduce_mpi.py JOB.json.

A repetition takes as long as its slowest rank, counted from a barrier.
"""

import json
import os
import time

import numpy
from mpi4py import MPI

import worker

WORLD = MPI.COMM_WORLD


def measure(mib, repeats):
    """Seconds of each repetition on this rank."""
    values = numpy.ones(mib << 18, numpy.float32)
    seconds = []
    # The first two are not counted.
    for _ in range(repeats + 2):
        values.fill(1.0)
        WORLD.Barrier()
        began = time.perf_counter()
        WORLD.Allreduce(MPI.IN_PLACE, values)
        seconds.append(time.perf_counter() - began)
    if not bool((values == WORLD.size).all()):
        raise SystemExit(f"the sum of {mib} MiB over {WORLD.size} ranks is wrong")
    return numpy.array(seconds[2:])


def main():
    job = worker.job_of_arguments()
    if WORLD.size != job["ranks"]:
        raise SystemExit(f"{WORLD.size} ranks were started, not {job['ranks']}; mpi4py may be for another MPI than mpirun")
    cases = []
    if WORLD.rank == 0:
        worker.say("connected")
    for mib, repeats in job["sizes"]:
        seconds = measure(mib, repeats)
        WORLD.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
        cases.append({"mib": mib, "seconds": seconds.tolist()})
        if WORLD.rank == 0:
            worker.say(f"{mib} MiB done")
    if WORLD.rank == 0:
        version = ".".join(map(str, MPI.get_vendor()[1]))
        with open(os.path.join(job["folder"], "allreduce.json"), "w", encoding="utf-8") as file:
            json.dump({"version": version, "cases": cases}, file)


if __name__ == "__main__":
    main()
