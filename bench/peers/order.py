"""The line of samples of a run: which sample stands where, epoch after epoch.

The file is what the program's own order gives: raw little-endian u32 sample indices of the whole run, one batch after another. Without
a file the epochs are shuffled here: the same line for every peer, but not the program's.
"""

import numpy

from plan import PlanError


def read(path, needed, samples):
    """The first `needed` indices of the file, each below `samples`."""
    line = numpy.fromfile(path, dtype="<u1")
    if len(line) % 4:
        raise PlanError(f"{path} has {len(line)} bytes, which is no whole number of u32")
    line = line.view("<u4")
    if len(line) < needed:
        raise PlanError(f"{path} holds {len(line)} samples; this run needs {needed}")
    line = line[:needed]
    if needed and int(line.max()) >= samples:
        raise PlanError(f"{path} names sample {int(line.max())}; the training set has {samples}")
    return line.astype(numpy.int64)


def shuffled(seed, needed, samples):
    """`needed` indices: permutations of the whole set, one after another, from the seed alone."""
    # The old generator, since its stream never changes between versions of numpy: the peers have different ones.
    generator = numpy.random.RandomState(seed % 2**32)
    epochs = -(-needed // samples)
    line = numpy.concatenate([generator.permutation(samples) for _ in range(epochs)]) if epochs else numpy.zeros(0)
    return line[:needed].astype(numpy.int64)


def of_worker(line, batch, workers, worker):
    """The batches of one worker as rows: clock k of worker i is batch k * workers + i of the line."""
    clocks = len(line) // (batch * workers)
    return line[: clocks * batch * workers].reshape(clocks, workers, batch)[:, worker, :]


def of_job(job, clocks, samples):
    """The line of a job, and where it comes from: `file` or `own`."""
    needed = clocks * job["workers"] * job["batch"]
    if job.get("order"):
        return read(job["order"], needed, samples), "file"
    return shuffled(job["seed"], needed, samples), "own"
