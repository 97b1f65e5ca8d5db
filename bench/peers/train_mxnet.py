"""One worker of MXNet's parameter server: train_mxnet.py JOB.json. Its number comes from the scheduler.

The optimizer runs on the servers. Under dist_sync a server adds the gradients of all workers and steps once a clock; under dist_async it
steps with each worker's own gradient as that arrives.
"""

import time

import mxnet
import numpy
from mxnet import autograd, gluon

import dataset
import network
import order
import plan
import stragglers
import worker


def build(seed):
    """The network with its initial values, and its parameters in order."""
    net = gluon.nn.HybridSequential()
    layers = network.initial(seed)
    for index, (weight, bias) in enumerate(layers):
        activation = "relu" if index + 1 < len(layers) else None
        net.add(gluon.nn.Dense(weight.shape[0], in_units=weight.shape[1], activation=activation))
    net.initialize()
    parameters = []
    for layer, (weight, bias) in zip(net, layers):
        layer.weight.set_data(mxnet.nd.array(weight))
        layer.bias.set_data(mxnet.nd.array(bias))
        parameters += [layer.weight, layer.bias]
    net.hybridize(static_alloc=True)
    return net, parameters


class Servers:
    """The values on the servers, one key a parameter."""

    def __init__(self, store, parameters):
        self.store = store
        self.data = [parameter.data() for parameter in parameters]
        self.gradients = [parameter.grad() for parameter in parameters]

    def begin(self, optimizer):
        for key, value in enumerate(self.data):
            self.store.init(key, value)
        self.store.set_optimizer(optimizer)
        self.barrier()

    def barrier(self):
        mxnet.nd.waitall()
        self.store._barrier()

    def push_and_pull(self, keys):
        """Asks for both and returns at once; earlier keys have priority, since the next pass needs them first."""
        for key in keys:
            self.store.push(key, self.gradients[key], priority=-key)
            self.store.pull(key, out=self.data[key], priority=-key)

    def pull(self):
        for key, value in enumerate(self.data):
            self.store.pull(key, out=value)
        self.wait_for_values()

    def wait_for_gradients(self, keys):
        for key in keys:
            self.gradients[key].wait_to_read()

    def wait_for_values(self):
        for value in self.data:
            value.wait_to_read()

    def copy(self):
        return [value.asnumpy() for value in self.data]


def optimizer_of(job, clocks):
    """SGD with momentum; the gradient is the sum over the samples of what one step of the server takes in."""
    together = job["workers"] if job["kvstore"] == "dist_sync" else 1
    scheduler = None
    if job["schedule"] == "linear":
        # A server counts its steps: one a clock, or one a push.
        steps = clocks * job["workers"] // together
        scheduler = mxnet.lr_scheduler.PolyScheduler(steps, job["rate"], pwr=1, final_lr=job["rate"] * job["final_rate"])
    return mxnet.optimizer.SGD(
        learning_rate=job["rate"],
        momentum=job["momentum"],
        wd=0.0,
        rescale_grad=1.0 / (job["batch"] * together),
        lr_scheduler=scheduler,
    )


def evaluation(net, servers, inputs, labels):
    """A function from kept values to (accuracy, mean loss) on the test set."""
    rows, wanted = mxnet.nd.array(inputs), mxnet.nd.array(labels)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    def evaluate(values):
        for target, value in zip(servers.data, values):
            target[:] = value
        out = net(rows)
        accuracy = float((out.asnumpy().argmax(1) == labels).mean())
        return accuracy, float(loss_of(out, wanted).asnumpy().astype(numpy.float64).mean())

    return evaluate


def main():
    job = worker.job_of_arguments()
    worker.say("waiting for the scheduler")
    store = mxnet.kv.create(job["kvstore"])
    index, workers, batch = store.rank, job["workers"], job["batch"]
    worker.say("reading the data")
    (inputs, labels), test = dataset.load(job["data_dir"])
    samples = len(labels)
    clocks = plan.clock_count(samples, job["epochs"], batch, workers)
    line, line_from = order.of_job(job, clocks, samples)
    batches = order.of_worker(line, batch, workers, index).astype(numpy.int32)
    slowness, slowness_from = stragglers.of_job(job)
    inputs, labels = mxnet.nd.array(inputs), mxnet.nd.array(labels)
    net, parameters = build(job["seed"])
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    def gradient(chosen):
        chosen = mxnet.nd.array(chosen, dtype="int32")
        rows, wanted = inputs.take(chosen), labels.take(chosen)
        with autograd.record():
            loss = loss_of(net(rows), wanted)
        loss.backward()

    gradient(batches[0])
    servers = Servers(store, parameters)
    first, others = (0, 1), range(len(parameters) - 1, 1, -1)
    servers.wait_for_gradients(first)
    servers.begin(optimizer_of(job, clocks))
    # A push of zeros: connections and buffers are made, values stay.
    for zeroed in servers.gradients:
        zeroed[:] = 0.0
    servers.push_and_pull(range(len(parameters)))
    record = worker.Record(index, plan.evaluation_clocks(samples, job["epochs"], batch, workers, job["evaluations"]))
    worker.say(f"ready for {clocks} iterations")
    servers.barrier()
    record.start()
    for clock in range(clocks):
        until = time.monotonic() + slowness.seconds(index, clock)
        gradient(batches[clock])
        # The other layers go off as soon as their gradients are there; the first layer's come last and end the computing. (Waiting for a
        # gradient that has been pushed would also wait for the push.)
        servers.push_and_pull(others)
        servers.wait_for_gradients(first)
        worker.wait_until(until)
        computed = time.monotonic()
        servers.push_and_pull(first)
        servers.wait_for_values()
        record.iteration_done(time.monotonic() - computed)
        if index == 0 and record.is_mark() and len(record.finished) < clocks:
            record.keep(servers.copy())
    record.stop()
    servers.barrier()
    if index == 0:
        # What the servers hold when all have finished.
        servers.pull()
        record.keep(servers.copy())
    record.write(
        job["folder"],
        evaluation(net, servers, *test),
        version=mxnet.__version__,
        order=line_from,
        delays=slowness_from,
    )


if __name__ == "__main__":
    main()
