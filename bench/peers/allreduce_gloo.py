"""One rank of a timed Gloo allreduce (f32 sum, in place): allreduce_gloo.py JOB.json RANK.

A repetition takes as long as its slowest rank, counted from a barrier.
"""

import json
import os
import sys
import time

import torch
import torch.distributed

import worker


def measure(mib, repeats, ranks):
    """Seconds of each repetition on this rank."""
    values = torch.ones(mib << 18)
    seconds = []
    # The first two are not counted.
    for _ in range(repeats + 2):
        values.fill_(1.0)
        torch.distributed.barrier()
        began = time.perf_counter()
        torch.distributed.all_reduce(values)
        seconds.append(time.perf_counter() - began)
    if not bool((values == ranks).all()):
        raise SystemExit(f"the sum of {mib} MiB over {ranks} ranks is wrong")
    return torch.tensor(seconds[2:], dtype=torch.float64)


def main():
    job, rank = worker.job_of_arguments(), int(sys.argv[2])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", job["interface"])
    meeting = "file://" + os.path.abspath(os.path.join(job["folder"], "meeting"))
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=job["ranks"])
    cases = []
    worker.say("connected")
    for mib, repeats in job["sizes"]:
        seconds = measure(mib, repeats, job["ranks"])
        torch.distributed.all_reduce(seconds, torch.distributed.ReduceOp.MAX)
        cases.append({"mib": mib, "seconds": seconds.tolist()})
        worker.say(f"{mib} MiB done")
    if rank == 0:
        with open(os.path.join(job["folder"], "allreduce.json"), "w", encoding="utf-8") as file:
            json.dump({"version": torch.__version__, "cases": cases}, file)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
