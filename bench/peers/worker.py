"""What the training workers share: reading the job, the clock of the run, waiting on purpose, and the record that is left at the end.

The clock begins after set-up and a barrier. Values are only copied while it runs; they are evaluated after its end, so evaluation
costs no training time and no bytes. All times are of the machine's monotonic clock, which its processes share.
"""

import json
import os
import sys
import time

import wire


def job_of_arguments():
    """The job that the first argument names."""
    with open(sys.argv[1], encoding="utf-8") as file:
        return json.load(file)


def wait_until(when):
    """Returns at `when` of the monotonic clock, or at once if that has passed."""
    left = when - time.monotonic()
    if left > 0:
        time.sleep(left)


def say(text):
    """One line for the log, which is what a failure or a hang is reported with."""
    print(text, file=sys.stderr, flush=True)


def leave(folder, record):
    """Leaves the record of a worker in the folder, whole or not at all."""
    path = os.path.join(folder, f"worker-{record['worker']}.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.replace(path + ".part", path)
    say("record written")


class Record:
    """What one worker measures."""

    def __init__(self, worker, marks):
        self.worker, self.marks = worker, set(marks)
        self.finished, self.waited, self.snapshots = [], 0.0, []
        self.bytes_before = self.bytes_after = None
        self.started = self.ended = None

    def start(self):
        self.bytes_before = wire.tcp_bytes()
        self.started = time.monotonic()

    def iteration_done(self, waited):
        """One iteration is over, of which `waited` seconds went to waiting for others and for the wire."""
        self.finished.append(time.monotonic())
        self.waited += waited

    def is_mark(self):
        """Whether the values are to be kept now."""
        return len(self.finished) in self.marks

    def keep(self, values):
        """Keeps a copy of the values for evaluation after the run."""
        self.snapshots.append((len(self.finished), time.monotonic(), values))
        say(f"{len(self.finished)} iterations done")

    def stop(self):
        self.ended = time.monotonic()
        self.bytes_after = wire.tcp_bytes()

    def write(self, folder, evaluate, **more):
        """Leaves the record; `evaluate(values)` gives (accuracy, loss) on the test set."""
        counted = self.bytes_before is not None and self.bytes_after is not None
        moved = [after - before for before, after in zip(self.bytes_before, self.bytes_after)] if counted else [None, None]
        curve = []
        for clock, at, values in self.snapshots:
            accuracy, loss = evaluate(values)
            curve.append({"clock": clock, "at": at, "accuracy": accuracy, "loss": loss})
        record = {
            "worker": self.worker,
            "started": self.started,
            "ended": self.ended,
            "finished": self.finished,
            "waited": self.waited,
            "sent": moved[0],
            "received": moved[1],
            "curve": curve,
            **more,
        }
        leave(folder, record)
