#!/usr/bin/env python3
"""Tests of the outside peers' drivers: python3 bench/peers/selftest.py. What is not installed is skipped with a line.

The last line is "N passed, N failed".
"""

import gzip
import json
import os
import socket
import struct
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True

import peers
import plan
import processes
import report
import run
import selftest_ours
import stragglers
import testing
import wire
from testing import InFolder, quietly

try:
    import numpy

    import dataset
    import network
    import order
except ImportError:
    numpy = None
    if sys.executable != peers.DEBIAN_PYTHON and processes.ask([peers.DEBIAN_PYTHON, "-c", "import numpy"], None)[0]:
        os.execv(peers.DEBIAN_PYTHON, [peers.DEBIAN_PYTHON, *sys.argv])

NEEDS_NUMPY = unittest.skipIf(numpy is None, "numpy is not installed (apt-get install python3-numpy)")


def write_idx(folder, name, array_shape, content, packed=True):
    """Leaves one idx file."""
    head = bytes([0, 0, 8, len(array_shape)]) + struct.pack(f">{len(array_shape)}I", *array_shape)
    opened = gzip.open if packed else open
    with opened(os.path.join(folder, name + (".gz" if packed else "")), "wb") as file:
        file.write(head + bytes(content))


def write_set(folder, train, test):
    """Leaves a small, sound set of so many images."""
    for (images, labels), count in ((peers.DATA_FILES[:2], train), (peers.DATA_FILES[2:], test)):
        write_idx(folder, images, (count, 28, 28), ((i * 7919 >> 3) % 256 for i in range(count * 784)))
        write_idx(folder, labels, (count,), (i % 10 for i in range(count)))


class PlanTest(unittest.TestCase):
    def test_clocks_are_whole_and_evaluations_cover_each_epoch(self):
        self.assertEqual(plan.clock_count(60_000, 10, 128, 2), 2343)
        self.assertEqual(plan.evaluation_clocks(100, 3, 10, 2), [5, 10, 15])
        # An epoch that ends within a clock is evaluated after it; the end of the run always is.
        self.assertEqual(plan.evaluation_clocks(100, 3, 16, 2), [4, 7, 9])
        self.assertEqual(plan.evaluation_clocks(100, 1, 10, 1, evaluations=2), [5, 10])

    def test_a_batch_that_does_not_fit_is_refused(self):
        with self.assertRaises(plan.PlanError):
            plan.clock_count(100, 1, 60, 2)

    def test_a_linear_rate_falls_to_its_final_share(self):
        self.assertEqual([plan.rate_share("linear", 0.5, progress) for progress in (0, 0.5, 1, 2)], [1.0, 0.75, 0.5, 0.5])
        self.assertEqual(plan.rate_share("constant", 0.0, 0.9), 1.0)


class StragglersTest(InFolder):
    def test_draws_are_a_function_of_seed_worker_and_iteration(self):
        slowness = stragglers.parse("transient:0.25:8:0.01", 7, 2)
        drawn = [slowness.seconds(1, iteration) for iteration in range(4000)]
        self.assertEqual(drawn[::-1], [slowness.seconds(1, iteration) for iteration in reversed(range(4000))])
        self.assertEqual(set(drawn), {0.01, 0.08})
        self.assertAlmostEqual(drawn.count(0.08) / 4000, 0.25, delta=0.03)
        self.assertNotEqual(drawn, [slowness.seconds(0, iteration) for iteration in range(4000)])

    def test_rotating_and_permanent_slowness_hit_whom_they_name(self):
        rotating = stragglers.parse("rotating:5:2:0.1", 1, 2)
        self.assertEqual([rotating.seconds(0, clock) for clock in range(5)], [0.5, 0.5, 0.1, 0.1, 0.5])
        permanent = stragglers.parse("permanent:3:1:0.1", 1, 2)
        self.assertAlmostEqual(permanent.seconds(0, 9), 0.3)
        self.assertEqual(permanent.seconds(1, 9), 0.1)

    def test_wrong_descriptions_are_refused(self):
        for text in ("", "slow", "none:1", "transient:0.1:5", "transient:2:5:0.1", "transient:nan:5:0.1", "rotating:5:0:0.1"):
            with self.assertRaises(stragglers.StragglersError, msg=text):
                stragglers.parse(text, 1, 2)

    def test_a_file_of_delays_is_gone_through_again_past_its_end(self):
        path = self.path("delays.csv", "worker,iteration,seconds\n0,0,0.5\n1,0,0.25\n\n 0 , 1 ,0.75\n")
        slowness, source = stragglers.of_job({"delays": path})
        self.assertEqual(source, "file")
        self.assertEqual([slowness.seconds(0, clock) for clock in range(4)], [0.5, 0.75, 0.5, 0.75])
        self.assertEqual([slowness.seconds(worker, 3) for worker in (1, 2)], [0.25, 0.75])

    def test_a_damaged_file_of_delays_is_told_with_its_line(self):
        head = stragglers.HEADER + "\n"
        cases = {"": "first line", "0,0,1\n": "first line", head: "workers", head + "0,1,1\n": "line 2", head + "0,0\n": "line 2"}
        cases |= {head + "0,0,-1\n": "line 2", head + "0,0,nan\n": "line 2", head + "1,0,1\n": "workers", head + "0,x,1\n": "line 2"}
        for text, told in cases.items():
            with self.assertRaisesRegex(stragglers.StragglersError, told, msg=repr(text)):
                stragglers.read(self.path("delays.csv", text))


@NEEDS_NUMPY
class OrderTest(InFolder):
    def test_every_sample_is_used_once_an_epoch_whatever_the_batch(self):
        line = order.shuffled(3, 30, 10)
        for epoch in line.reshape(3, 10):
            self.assertEqual(sorted(epoch), list(range(10)))
        self.assertTrue((order.shuffled(3, 24, 10) == line[:24]).all())
        self.assertFalse((order.shuffled(4, 30, 10) == line).all())

    def test_workers_take_turns_at_the_batches_of_the_line(self):
        line = numpy.arange(13)
        self.assertEqual(order.of_worker(line, 2, 3, 0).tolist(), [[0, 1], [6, 7]])
        self.assertEqual(order.of_worker(line, 2, 3, 2).tolist(), [[4, 5], [10, 11]])

    def test_an_order_file_is_read_as_it_is_written(self):
        path = self.path("order", struct.pack("<5I", 4, 0, 3, 1, 2))
        job = {"order": path, "workers": 2, "batch": 2, "seed": 1}
        line, source = order.of_job(job, 1, 5)
        self.assertEqual((line.tolist(), source), ([4, 0, 3, 1], "file"))
        self.assertEqual(order.of_job({**job, "order": None}, 1, 5)[1], "own")

    def test_a_wrong_order_file_is_refused(self):
        for content, needed in ((b"\0" * 7, 1), (b"\0" * 8, 3), (struct.pack("<2I", 0, 5), 2)):
            with self.assertRaises(plan.PlanError):
                order.read(self.path("order", content), needed, 5)


@NEEDS_NUMPY
class DatasetTest(InFolder):
    def test_pixels_are_scaled_as_the_program_does(self):
        write_set(self.folder, 20, 10)
        (inputs, labels), (test_inputs, test_labels) = dataset.load(self.folder)
        self.assertEqual((inputs.shape, test_inputs.shape, len(test_labels)), ((20, 784), (10, 784), 10))
        self.assertEqual((inputs.dtype, labels[:11].tolist()), (numpy.float32, [*range(10), 0]))
        pixel = (7919 * 5 >> 3) % 256
        self.assertAlmostEqual(float(inputs[0, 5]), (pixel / 255 - 0.2860) / 0.3530, places=5)

    def test_files_need_not_be_packed(self):
        write_idx(self.folder, "labels", (3,), [1, 2, 3], packed=False)
        self.assertEqual(dataset.read_idx(dataset.find(self.folder, "labels"), 1).tolist(), [1, 2, 3])

    def test_damage_is_told_with_the_file(self):
        write_set(self.folder, 20, 10)
        name = dataset.TRAIN[0] + ".gz"
        with open(self.path(name), "rb") as file:
            whole = file.read()
        head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 20, 28, 28)
        for content in (b"", whole[: len(whole) // 2], b"no gzip", gzip.compress(head + b"1"), gzip.compress(b"\0" * 30)):
            with self.assertRaisesRegex(dataset.DatasetError, name):
                self.path(name, content)
                dataset.load(self.folder)
        os.remove(self.path(name))
        with self.assertRaisesRegex(dataset.DatasetError, "missing"):
            dataset.load(self.folder)

    def test_labels_out_of_range_are_refused(self):
        write_set(self.folder, 20, 10)
        write_idx(self.folder, dataset.TEST[1], (10,), [10] * 10)
        with self.assertRaisesRegex(dataset.DatasetError, "label 10"):
            dataset.load(self.folder)

    def test_initial_values_have_the_variance_of_the_law(self):
        layers = network.initial(1)
        self.assertEqual([weight.shape for weight, _ in layers], [(512, 784), (256, 512), (10, 256)])
        for (weight, bias), wanted in zip(layers, (2 / 784, 2 / 512, 1 / 256)):
            self.assertAlmostEqual(float(weight.var()) / wanted, 1.0, delta=0.1)
            self.assertFalse(bias.any())


def record(worker, finished, curve=(), waited=0.5):
    """What a worker of a made-up run left."""
    more = {"version": "1", "order": "own", "delays": "none", "sent": 100 + worker, "received": 7}
    return {"worker": worker, "started": 10.0, "ended": finished[-1], "finished": finished, "waited": waited, "curve": list(curve), **more}


JOB = {"peer": "p", "workers": 2, "servers": 0, "seed": 1, "epochs": 1, "batch": 4, "rate": 0.1, "momentum": 0.9}
JOB |= {"schedule": "constant", "stragglers": "none", "synchronous": False}


class ReportTest(unittest.TestCase):
    def records(self):
        nan = float("nan")
        curve = [{"clock": 1, "at": 11.0, "accuracy": 0.5, "loss": nan}, {"clock": 2, "at": 14.5, "accuracy": 0.9, "loss": 0.3}]
        return [record(0, [11.0, 12.0], curve), record(1, [12.0, 14.0], waited=1.5)]

    def test_samples_of_an_asynchronous_run_are_counted_by_the_time(self):
        one = report.training(JOB, self.records(), [0.5, 0.87, 0.95])
        self.assertEqual((one["samples"], one["wall_s"], one["samples_per_s"]), (16, 4.0, 4.0))
        self.assertEqual([(point["t"], point["samples"]) for point in one["curve"]], [(1.0, 4), (4.0, 16)])
        self.assertEqual(one["reached"], {"0.5": {"t": 1.0, "samples": 4}, "0.87": {"t": 4.0, "samples": 16}, "0.95": None})
        self.assertEqual((one["wait_share"], one["bytes_per_worker"]), (0.25, 100))

    def test_samples_of_a_synchronous_run_are_counted_by_the_clock(self):
        one = report.training({**JOB, "synchronous": True}, self.records(), [])
        self.assertEqual([point["samples"] for point in one["curve"]], [8, 16])

    def test_a_line_is_json_that_every_reader_takes(self):
        one = report.training(JOB, self.records(), [0.87])
        self.assertIsNone(one["curve"][0]["loss"])
        self.assertEqual(json.loads(report.line(one), parse_constant=self.fail), one)

    def test_an_allreduce_gives_median_least_and_most(self):
        one = report.allreduce("gloo", "1", 2, {"mib": 4, "seconds": [0.3, 0.1, 0.2]})
        self.assertEqual((one["seconds"], one["repeats"], one["bytes_per_s"]), ([0.2, 0.1, 0.3], 3, 4 * 2**20 / 0.2))

    def test_the_table_has_medians_over_seeds_and_says_what_is_missing(self):
        fast = report.training(JOB, self.records(), [0.87])
        slow = {**fast, "samples_per_s": 2.0, "reached": {"0.87": None}}
        rest = [report.allreduce("gloo", "1", 2, {"mib": 4, "seconds": [0.1]}), {"kind": "skipped", "peer": "q", "reason": "why"}]
        text = report.table([fast, slow, *rest])
        for wanted in ("3 [2..4]", "s to 0.87", "4.0 (1 of 2 never)", "25%", "100.00 [100.00..100.00]", "q: skipped: why"):
            self.assertIn(wanted, text)
        self.assertIn("nothing", report.table([]))


class ProcessesTest(InFolder):
    def group_of(self, program, deadline_s, **more):
        with processes.Group(self.folder) as group:
            group.start("one", [sys.executable, "-c", program], peers.environment(), **more)
            group.wait(deadline_s)

    def test_one_that_fails_is_told_with_its_last_line(self):
        with self.assertRaisesRegex(processes.PeerFailed, "one ended with status 3: the reason"):
            self.group_of("import sys; print('the reason\\n'); sys.exit(3)", 20)

    def test_one_that_hangs_is_ended_at_the_deadline_with_all_it_started(self):
        program = (
            "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
            f"open({self.path('pid')!r}, 'w').write(str(child.pid)); print('far', flush=True); time.sleep(600)"
        )
        began = time.monotonic()
        with self.assertRaisesRegex(processes.PeerFailed, "had not ended after 2 s; it last said: far"):
            self.group_of(program, 2)
        self.assertLess(time.monotonic() - began, 10)
        with open(self.path("pid"), encoding="utf-8") as file:
            self.assertFalse(os.path.exists(f"/proc/{file.read()}"), "the grandchild is gone and reaped")

    def test_one_that_serves_is_not_waited_for(self):
        with processes.Group(self.folder) as group:
            group.start("server", [sys.executable, "-c", "import time; time.sleep(600)"], peers.environment(), needed=False)
            group.start("worker", [sys.executable, "-c", "pass"], peers.environment())
            group.wait(20)

    def test_a_program_that_does_not_exist_fails_alone(self):
        with self.assertRaises(OSError), processes.Group(self.folder) as group:
            group.start("one", [self.path("nothing")], peers.environment())


class RunTest(InFolder):
    def lines(self):
        with open(self.path("peers.jsonl"), encoding="utf-8") as file:
            return [json.loads(text) for text in file]

    def test_a_peer_that_is_missing_is_skipped_with_what_to_install(self):
        given = ["--out", self.folder, "--only", "mxnet", "--mode", "train", "--mxnet-venv", self.path("none"), "--seeds", "1,2"]
        status, said = quietly(run.main, given)
        self.assertEqual(status, 0)
        self.assertIn("mxnet-dist_sync: skipped: MXNet 1.9.1 is not installed (python3 -m venv", said)
        self.assertEqual([one["kind"] for one in self.lines()], ["skipped", "skipped", "machine"])

    def test_a_peer_that_fails_does_not_stop_the_next(self):
        one = run.Run(run.arguments(["--out", self.folder]))

        def failing():
            raise processes.PeerFailed("worker-0 ended with status 1: no")

        def going():
            return [report.allreduce("b", "1", 2, {"mib": 4, "seconds": [0.1]})]

        _, said = quietly(lambda: (one.attempt("a", failing), one.attempt("b", going)))
        self.assertIn("a: failed: worker-0 ended with status 1: no", said)
        self.assertEqual([line["kind"] for line in self.lines()], ["failed", "allreduce"])

    def test_wrong_arguments_are_refused(self):
        wrong = ("--only=x", "--seeds=", "--rate=0", "--rate=x=0.1", "--stragglers=slow", "--batch=60001", "--order=none", "--ranks=1")
        for given in wrong:
            with self.assertRaises(SystemExit, msg=given):
                quietly(run.arguments, ["--out", self.folder, given])
        self.assertEqual(run.arguments(["--out", "o", "--rate", "0.05,ddp-gloo=0.1"]).rate, {"": 0.05, "ddp-gloo": 0.1})

    def test_openblas_gets_kernels_that_the_processor_has(self):
        self.assertIsNone(peers.openblas_core({"sse3"}))
        self.assertEqual(peers.openblas_core({"avx2", "fma"}), "Haswell")
        self.assertEqual(peers.openblas_core({"avx512f", "avx512dq", "avx512bw", "avx512vl"}), "SkylakeX")


class DdpTest(InFolder):
    """The data-parallel run against one process with the whole batch."""

    def final_values(self, python, workers, batch):
        folder = self.path(f"{workers}-workers")
        os.mkdir(folder)
        settings = {"workers": workers, "batch": batch, "keep_values": os.path.join(folder, "values"), "folder": folder}
        job = {**JOB, **settings, "data_dir": self.folder, "interface": "lo", "synchronous": True, "final_rate": 0.0, "evaluations": 1}
        job["rate"] = 0.05
        one = peers.train(job, lambda group: peers.start_ddp(group, job, peers.Place(), python), 60, [])
        program = (
            "import torch, sys; "
            "print(*torch.cat([value.flatten() for value in torch.load(sys.argv[1])]).tolist())"
        )
        done = subprocess.run([python, "-c", program, job["keep_values"]], capture_output=True, text=True, check=True)
        return one, [float(value) for value in done.stdout.split()]

    def test_two_workers_equal_one_with_twice_the_batch(self):
        try:
            python, _ = peers.Installed(run.arguments(["--out", self.folder])).need_torch()
        except peers.Absent as absent:
            self.skipTest(str(absent))
        write_set(self.folder, 128, 20)
        two, values = self.final_values(python, 2, 16)
        one, wanted = self.final_values(python, 1, 32)
        self.assertEqual((two["samples"], one["samples"], len(values)), (128, 128, 535_818))
        self.assertLess(max(abs(a - b) for a, b in zip(values, wanted)), 1e-5)
        self.assertAlmostEqual(two["curve"][-1]["loss"], one["curve"][-1]["loss"], places=4)
        # Each rank sends its gradients, 2.1 MB, once a clock when there are two.
        self.assertGreaterEqual(two["bytes_per_worker"], 4 * 535_818 * 4)
        self.assertLess(one["bytes_per_worker"], 10_000)


class WireTest(unittest.TestCase):
    def test_bytes_of_open_connections_are_counted(self):
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
            other = server.accept()[0]
            with other:
                before = wire.tcp_bytes()
                one.sendall(b"x" * 1000)
                other.recv(1000, socket.MSG_WAITALL)
                after = wire.tcp_bytes()
        self.assertEqual([late - early for early, late in zip(before, after)], [1000, 1000])


class NetnsTest(unittest.TestCase):
    def test_check_says_in_one_line_what_there_is(self):
        done = subprocess.run(["bash", peers.script("netns.sh"), "check"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr, len(done.stdout.splitlines())), (0, "", 1))
        self.assertRegex(done.stdout, "network namespaces")


if __name__ == "__main__":
    sys.exit(testing.main(sys.modules[__name__], selftest_ours))
