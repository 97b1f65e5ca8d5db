"""How long a run is: clocks, samples and the places where the values are kept for evaluation.

A clock is one batch of every worker. The run is one line of samples, cut into batches: worker i of p takes batch k * p + i at clock k.
Only whole clocks are run, so up to p - 1 batches and a rest shorter than one are left out at the very end of the run.
"""


class PlanError(ValueError):
    """A run that cannot be; the message says what to change."""


def clock_count(samples, epochs, batch, workers):
    """Whole clocks in `epochs` passes over `samples` samples."""
    clocks = samples * epochs // (batch * workers)
    if clocks < 1:
        raise PlanError(
            f"{epochs} epochs of {samples} samples hold no batch of {batch} for each of {workers} workers; take smaller batches"
        )
    return clocks


def evaluation_clocks(samples, epochs, batch, workers, evaluations=1):
    """After how many clocks the values are kept: `evaluations` times an epoch, the last time at the end of the run."""
    clocks = clock_count(samples, epochs, batch, workers)
    per_clock = batch * workers
    marks = []
    for place in range(1, epochs * evaluations + 1):
        wanted = samples * place
        mark = min(-(-wanted // (per_clock * evaluations)), clocks)
        if mark not in marks:
            marks.append(mark)
    if marks[-1] != clocks:
        marks.append(clocks)
    return marks


def rate_share(schedule, final_share, progress):
    """Share of the top rate at `progress` (0 to 1) of the run; the schedules are those of the program's `[optimizer] schedule`."""
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return 1.0 - (1.0 - final_share) * min(max(progress, 0.0), 1.0)
    raise PlanError(f"no schedule {schedule!r}; there are constant and linear")
