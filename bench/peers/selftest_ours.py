"""Tests of Slackline's own programs beside the peers, with programs that are made up; selftest.py runs them."""

import json
import math
import unittest

import figures
import machine
import ours
import peers
import processes
import report
import run
from testing import InFolder, quietly

# Prints what the loopback bench would, with the settings that it was given; one turn has 8 values, 2 workers and 5 rounds in 2 seconds.
LOOPBACK = """
import json, sys
if sys.argv[1:] == ["--version"]:
    print("loopback 9.9"); sys.exit()
given = dict(word[2:].split("=") for word in sys.argv[1:] if word.startswith("--") and "=" in word)
sets = [after for word, after in zip(sys.argv, sys.argv[1:]) if word == "--set"]
share = 2 if "codec.push=bf16" in sets else 4
wall = 1.0 if "fast=true" in sets else 2.0
print("a warning", file=sys.stderr)
moved = 2 * 8 * int(given["workers"]) * int(given["rounds"])
print(json.dumps([{"mib": int(given["mib"]), "values": 8, "bytes": share * moved, "wall_s": [wall], "round_ms": {"median": 3, "min": 1, "max": 9},
    "processor_s_per_gib": {"median": 0.5, "min": 0.5, "max": 0.5}, "server_peak_mib": None}]))
"""
SUMMARY = {"wall_s": 4.0, "samples": 8000, "samples_per_s": 2000.0, "final": {"test_accuracy": 0.5, "test_loss": 1.5}}
SUMMARY |= {"time": {"compute": 0.5, "wait_for_clock": 0.1, "push": 0.2, "busy": 0.05, "pull": 0.05, "data": 0.1}}
SUMMARY |= {"bytes": {"pushed": 1, "pulled": 1, "wire_sent": 1000, "wire_received": 3000}}
# Leaves the summary of a run, and the settings that it was given.
SLACKLINE = f"""
import json, os, sys
if sys.argv[1:] == ["--version"]:
    print("slackline 9.9"); sys.exit()
out = sys.argv[sys.argv.index("--out") + 1]
os.makedirs(out)
json.dump({SUMMARY!r}, open(os.path.join(out, "summary.json"), "w"))
json.dump(sys.argv[1:], open(os.path.join(out, "given.json"), "w"))
"""
CELL = {"peer": "slackline", "mib": 1, "workers": 2, "servers": 1, "turn": 0, "rounds": 5}


class FiguresTest(unittest.TestCase):
    def test_a_ratio_is_taken_within_its_turn(self):
        self.assertEqual(figures.ratios({0: 2.0, 1: 9.0, 3: 1.0}, {1: 3.0, 0: 4.0, 2: 1.0}), [0.5, 3.0])
        self.assertEqual(figures.ratios({0: math.nan, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 0.0, 2: math.inf}), [])
        self.assertEqual(figures.show([0.5, 3.0, 1.0], "{:.1f}".format), "1.0 [0.5..3.0]")

    def test_everybody_is_first_and_last_equally_often(self):
        orders = [figures.in_turn("abc", turn) for turn in range(6)]
        for place in (0, 2):
            self.assertEqual(sorted(order[place] for order in orders), sorted("aabbcc"))
        self.assertEqual([figures.in_turn("ab", turn) for turn in (0, 1)], [["a", "b"], ["b", "a"]])
        self.assertEqual(figures.in_turn([], 3), [])


class MachineTest(InFolder):
    def test_free_memory_is_what_new_processes_can_have(self):
        self.assertEqual(machine.available_mib(self.path("meminfo", "MemFree: 9 kB\nMemAvailable:   2048 kB\n")), 2.0)
        for text in ("", "MemAvailable:\n", "MemAvailable: x kB\n"):
            self.assertIsNone(machine.available_mib(self.path("meminfo", text)))
        self.assertIsNone(machine.available_mib(self.path("nothing")))


class PushPullTest(InFolder):
    def measured(self, *given):
        cell = ["--only", "slackline,mxnet", "--mode", "pushpull", "--mxnet-venv", self.path("none"), "--rounds", "5"]
        program = self.program("loopback", LOOPBACK)
        status, said = quietly(run.main, ["--out", self.path("out"), "--loopback", program, *cell, *given])
        with open(self.path("out/peers.jsonl"), encoding="utf-8") as file:
            return status, said, [json.loads(text) for text in file]

    def test_every_cell_is_measured_in_turns_and_counted_both_ways_for_all_workers(self):
        status, said, lines = self.measured("--sizes-mib", "1,2", "--workers", "1,2", "--servers", "3", "--repeats", "2")
        self.assertEqual(status, 0, said)
        cells = [(one["mib"], one["workers"], one["servers"], one["turn"]) for one in lines if one["kind"] == "pushpull"]
        self.assertEqual(cells, [(mib, workers, 3, turn) for mib in (1, 2) for workers in (1, 2) for turn in (0, 1)])
        last = lines[-2]
        self.assertEqual((last["parameters_per_s"], last["bytes_per_s"], last["round_ms"]), (2 * 8 * 2 * 5 / 2.0, 4 * 2 * 8 * 2 * 5 / 2.0, [3, 1, 9]))
        self.assertEqual((last["processor_s_per_gib"], last["server_peak_mib"], last["version"]), (0.5, None, "9.9"))
        self.assertIn("mxnet-dist_async: skipped: MXNet 1.9.1 is not installed", said)

    def test_variants_are_contestants_with_settings_of_their_own(self):
        variants = ["--variant", "f32", "--variant", "bf16", "codec.push=bf16", "codec.pull=bf16", "--set", "fast=true"]
        _, _, lines = self.measured("--sizes-mib", "1", "--repeats", "1", *variants)
        found = {one["peer"]: one for one in lines if one["kind"] == "pushpull"}
        self.assertEqual(found["slackline-bf16"]["set"], ["fast=true", "codec.push=bf16", "codec.pull=bf16"])
        plain, half = found["slackline-f32"], found["slackline-bf16"]
        self.assertEqual((plain["wall_s"], half["parameters_per_s"], half["bytes_per_s"]), (1.0, plain["parameters_per_s"], plain["bytes_per_s"] / 2))

    def test_a_bench_that_prints_no_figures_fails_alone(self):
        for text in ("", "[]", "{}", "[{}]", '[{"wall_s": []}]', "[1]", "null"):
            with self.assertRaises(processes.PeerFailed, msg=text):
                ours.pushpull_record(CELL, text)

    def test_a_program_that_was_not_built_is_named(self):
        with self.assertRaisesRegex(peers.Absent, "cargo build --release, or --loopback FILE"):
            ours.need("loopback", "--loopback", self.path("nothing"))

    def test_mxnet_counts_as_the_bench_does(self):
        records = [{"started": 1.0, "ended": 3.0, "rounds": [0.5, 0.1], "version": "1"}, {"started": 1.5, "ended": 3.5, "rounds": [0.2], "version": "1"}]
        job = {**CELL, "peer": "mxnet-dist_async"}
        one = report.pushpull(job, report.of_rounds(job, records))
        self.assertEqual((one["wall_s"], one["round_ms"]), (2.5, [200.0, 100.0, 500.0]))
        self.assertEqual((one["parameters_per_s"], one["bytes_per_s"]), (2 * 2**18 * 2 * 5 / 2.5, 4 * 2 * 2**18 * 2 * 5 / 2.5))
        self.assertEqual(json.loads(report.line(one), parse_constant=self.fail), one)

    def test_the_table_has_the_ratio_of_each_turn(self):
        found = {"values": 8, "bytes": 640, "round_ms": [1, 1, 1], "processor_s_per_gib": None, "server_peak_mib": 9.0}
        of = lambda peer, turn, wall: report.pushpull({**CELL, "peer": peer, "turn": turn}, {**found, "wall_s": wall})  # noqa: E731
        # The machine is ten times slower in the second turn; the ratio is not.
        text = report.table([of("slackline", 0, 1.0), of("m", 0, 2.0), of("m", 1, 20.0), of("slackline", 1, 10.0), of("m", 2, 5.0)])
        self.assertRegex(text, r"slackline / m +2 +2\.00 \[2\.00\.\.2\.00\]")
        self.assertRegex(text, r"1 +2 +1 +m +3 ")


class TrainingTest(InFolder):
    def test_our_runs_do_the_same_task_in_turns_with_the_peers(self):
        program = self.program("slackline", SLACKLINE)
        given = ["--out", self.path("out"), "--mode", "train", "--only", "slackline,mxnet", "--mxnet-venv", self.path("none"), "--slackline", program]
        for name in peers.DATA_FILES:
            self.path(name, "")
        given += ["--seeds", "4,5", "--rate", "0.02,slackline-asp=0.01", "--epochs", "2", "--set", "codec.push=bf16", "--data-dir", self.folder]
        status, said = quietly(run.main, given)
        self.assertEqual(status, 0, said)
        with open(self.path("out/peers.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(text) for text in file]
        runs = [(one["seed"], one["peer"]) for one in lines if one["kind"] == "train"]
        kinds = ["slackline-bsp", "slackline-ssp2", "slackline-asp"]
        self.assertEqual(runs, [(4, kind) for kind in kinds] + [(5, kind) for kind in kinds[::-1]])
        one = next(one for one in lines if one["kind"] == "train")
        self.assertEqual((one["samples_per_s"], one["bytes_per_worker"], one["version"]), (2000.0, 500, "9.9"))
        self.assertAlmostEqual(one["wait_share"], 0.4)
        self.assertEqual(one["set"], ["codec.push=bf16", "consistency.policy=bsp"])
        with open(self.path("out/logs/slackline-asp-seed-5/out/given.json"), encoding="utf-8") as file:
            words = " ".join(json.load(file))
        for wanted in ("--seed 5", "train.epochs=2", "optimizer.rate=0.01", "evaluate.every_epochs=0", "codec.push=bf16", "consistency.policy=asp"):
            self.assertIn(wanted, words)

    def test_the_table_has_the_ratio_of_each_of_ours_to_each_peer(self):
        job = {"workers": 2, "servers": 2, "seed": 1, "epochs": 1, "batch": 4, "rate": 0.1, "schedule": "constant", "momentum": 0.9, "version": "1"}
        own = ours.training_record({**job, "peer": "slackline-asp"}, SUMMARY, [0.4])
        self.assertEqual(own["reached"], {"0.4": {"t": 4.0, "samples": 8000}})
        others = [{**own, "peer": peer, "samples_per_s": speed} for peer, speed in (("ddp-gloo", 1000.0), ("mxnet-dist_sync", 4000.0))]
        text = report.table([own, *others])
        self.assertRegex(text, r"slackline-asp / ddp-gloo +1 +2\.00\n")
        self.assertRegex(text, r"slackline-asp / mxnet-dist_sync +1 +0\.50\n")

    def test_no_key_is_set_that_would_be_refused_for_having_no_effect(self):
        job = {"workers": 2, "servers": 2, "epochs": 1, "batch": 4, "rate": 0.1, "final_rate": 0.5, "data_dir": "d"}
        plain = ours.training_sets({**job, "schedule": "constant", "momentum": 0.0})
        falling = ours.training_sets({**job, "schedule": "linear", "momentum": 0.9})
        for key, wanted in (("optimizer.final_rate", "0.5"), ("optimizer.momentum", "0.9")):
            self.assertFalse([pair for pair in plain if pair.startswith(f"{key}=")])
            self.assertIn(f"{key}={wanted}", falling)

    def test_a_summary_without_figures_fails_alone(self):
        for summary in ({}, {**SUMMARY, "final": None}, [], None):
            with self.assertRaises(processes.PeerFailed, msg=repr(summary)):
                ours.training_record(CELL, summary, [])

    def test_wrong_settings_of_ours_are_refused(self):
        wrong = [["--set", "x"], ["--variant", "a b"], ["--variant", "a", "x"], ["--variant", "a", "--variant", "a"], ["--workers", "1,2"]]
        wrong += [["--mode", "train", "--servers", "1,2"], ["--rate", "slackline=0.1"], ["--mode", "pushpull", "--workers", "0"]]
        for given in wrong:
            with self.assertRaises(SystemExit, msg=given):
                quietly(run.arguments, ["--out", self.folder, *given])
        self.assertEqual(run.arguments(["--out", "o", "--mode", "pushpull", "--workers", "1,2"]).workers, [1, 2])

    def test_real_time_priority_is_before_everything_else(self):
        self.assertEqual(peers.Place(realtime=True).command(0, ["x"]), ["chrt", "-r", "5", "x"])
        self.assertEqual(peers.Place(True, True).command(1, ["x"])[:6], ["chrt", "-r", "5", "ip", "netns", "exec"])
