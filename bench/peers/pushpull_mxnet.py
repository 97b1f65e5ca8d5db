"""One worker of MXNet's parameter server that pushes and pulls one array: pushpull_mxnet.py JOB.json. Its number comes from the scheduler.

The array is one key; MXNet splits it over all servers when it has more than a million elements. Under dist_async a server steps with each
push as it arrives, so after the first round of all workers every value is minus the rate times the workers, which is looked at. It cannot be
looked at later: MXNet pulls into the very memory that was pushed, so from the second round on the pushed array is what was pulled last.
Filling it again would cost MXNet time that Slackline's bench does not spend.
"""

import time

import mxnet

import worker

KEY = 0
RATE = 1e-6
# Rounds before those that count, as many as Slackline's own bench makes.
WARM_ROUNDS = 2
# What a value may be off, as a share, by rounding.
TOLERANCE = 1e-3


class Array:
    """One array on the servers, with this worker's gradient of ones and its copy of the values."""

    def __init__(self, store, count):
        self.store, self.count = store, count
        self.gradient, self.values = mxnet.nd.ones((count,)), mxnet.nd.zeros((count,))
        store.init(KEY, self.values)
        store.set_optimizer(mxnet.optimizer.SGD(learning_rate=RATE, momentum=0.0, wd=0.0, rescale_grad=1.0))
        self.barrier()

    def barrier(self):
        mxnet.nd.waitall()
        self.store._barrier()

    def pull(self):
        self.store.pull(KEY, out=self.values)
        self.values.wait_to_read()

    def round(self):
        """A push of the whole array and a pull of it, until it is there; its seconds."""
        began = time.monotonic()
        self.store.push(KEY, self.gradient)
        self.pull()
        return time.monotonic() - began

    def check(self, pushes):
        """Ends the program unless the first and the last value are what so many pushes of ones make."""
        self.barrier()
        self.pull()
        wanted = -RATE * pushes
        for place in (0, self.count - 1):
            value = float(self.values[place : place + 1].asnumpy()[0])
            if not abs(value - wanted) <= TOLERANCE * abs(wanted):
                raise SystemExit(f"value {place} is {value:g} after {pushes} pushes, not {wanted:g}")


def main():
    job = worker.job_of_arguments()
    worker.say("waiting for the scheduler")
    store = mxnet.kv.create(job["kvstore"])
    array = Array(store, job["mib"] << 18)
    array.round()
    array.check(job["workers"])
    for _ in range(WARM_ROUNDS - 1):
        array.round()
    worker.say(f"ready for {job['rounds']} rounds")
    array.barrier()
    started = time.monotonic()
    rounds = [array.round() for _ in range(job["rounds"])]
    ended = time.monotonic()
    array.barrier()
    record = {"worker": store.rank, "started": started, "ended": ended, "rounds": rounds, "version": mxnet.__version__}
    worker.leave(job["folder"], record)


if __name__ == "__main__":
    main()
