"""One worker of PyTorch's DistributedDataParallel over Gloo: train_ddp.py JOB.json WORKER.

A gradient that must last a given time waits where its last part has been computed, before that part goes to the allreduce: what was
computed earlier travels meanwhile, as it would with a slow processor.
"""

import os
import sys
import time

import torch
import torch.distributed
from torch import nn

import dataset
import network
import order
import plan
import stragglers
import worker


def build(seed):
    """The network with its initial values."""
    layers = []
    for weight, bias in network.initial(seed):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight))
            linear.bias.copy_(torch.from_numpy(bias))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Pace:
    """Ends the computing of each gradient: waits as long as it must last, and notes when that was."""

    def __init__(self, first_layer):
        self.until = self.computed = 0.0
        for parameter in first_layer.parameters():
            parameter.register_hook(self._gradient_is_there)

    def _gradient_is_there(self, _gradient):
        # The first layer's two gradients come last and together; the first of the two to be seen waits.
        worker.wait_until(self.until)
        self.computed = time.monotonic()


def evaluation(net, inputs, labels):
    """A function from kept values to (accuracy, mean loss) on the test set."""
    inputs, labels = torch.from_numpy(inputs), torch.from_numpy(labels)

    @torch.no_grad()
    def evaluate(values):
        for parameter, value in zip(net.parameters(), values):
            parameter.copy_(value)
        right, loss = 0, 0.0
        for rows, wanted in zip(inputs.split(1000), labels.split(1000)):
            out = net(rows)
            loss += nn.functional.cross_entropy(out, wanted, reduction="sum").item()
            right += (out.argmax(1) == wanted).sum().item()
        return right / len(labels), loss / len(labels)

    return evaluate


def train(job, index, inputs, labels, net, test):
    """Runs the job and leaves the record of this worker."""
    samples, workers, batch = len(labels), job["workers"], job["batch"]
    clocks = plan.clock_count(samples, job["epochs"], batch, workers)
    line, line_from = order.of_job(job, clocks, samples)
    batches = torch.from_numpy(order.of_worker(line, batch, workers, index).copy())
    slowness, slowness_from = stragglers.of_job(job)
    inputs, labels = torch.from_numpy(inputs), torch.from_numpy(labels)
    pace = Pace(net[0])
    parallel = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=job["rate"], momentum=job["momentum"])
    cross_entropy = nn.functional.cross_entropy
    # Gradients without a step: connections and buckets are made, values stay.
    for _ in range(3):
        cross_entropy(parallel(inputs[:batch]), labels[:batch]).backward()
        optimizer.zero_grad()
    record = worker.Record(index, plan.evaluation_clocks(samples, job["epochs"], batch, workers, job["evaluations"]))
    worker.say(f"ready for {clocks} iterations")
    torch.distributed.barrier()
    record.start()
    for clock in range(clocks):
        pace.until = time.monotonic() + slowness.seconds(index, clock)
        chosen = batches[clock]
        optimizer.zero_grad()
        cross_entropy(parallel(inputs[chosen]), labels[chosen]).backward()
        waited = time.monotonic() - pace.computed
        if job["schedule"] != "constant":
            share = plan.rate_share(job["schedule"], job["final_rate"], clock / clocks)
            optimizer.param_groups[0]["lr"] = job["rate"] * share
        optimizer.step()
        record.iteration_done(waited)
        if index == 0 and record.is_mark():
            record.keep([parameter.detach().clone() for parameter in net.parameters()])
    record.stop()
    torch.distributed.barrier()
    if job.get("keep_values") and index == 0:
        torch.save([parameter.detach().clone() for parameter in net.parameters()], job["keep_values"])
    record.write(
        job["folder"],
        evaluation(net, *test),
        version=torch.__version__,
        order=line_from,
        delays=slowness_from,
    )


def main():
    job, index = worker.job_of_arguments(), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", job["interface"])
    worker.say("reading the data")
    (inputs, labels), test = dataset.load(job["data_dir"])
    net = build(job["seed"])
    meeting = "file://" + os.path.abspath(os.path.join(job["folder"], "meeting"))
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=index, world_size=job["workers"])
    train(job, index, inputs, labels, net, test)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
