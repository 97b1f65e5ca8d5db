#!/usr/bin/env python3
"""Tests of the measuring tools: python3 bench/measure/selftest.py. Nothing is built and nothing real is measured.

The last line is "N passed, N failed".
"""

import json
import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "peers"))

import growth  # noqa: E402
import judge  # noqa: E402
import pairwise  # noqa: E402
import parts  # noqa: E402
import processes  # noqa: E402
import testing  # noqa: E402
import trees  # noqa: E402
from testing import InFolder, quietly  # noqa: E402

# What the made-up programs of a commit do: its speed stands in the file `speed` of the tree that they are started in.
LOOPBACK = """
import json, sys
speed = float(open("speed").read())
if speed == 0: sys.exit("it broke")
mib = int(sys.argv[1].partition("=")[2])
spread = lambda value: {"median": value, "min": value, "max": value}
print(json.dumps([{"mib": mib, "values": mib << 18, "bytes": mib << 20, "wall_s": [mib / speed], "megabytes_per_s": spread(speed),
    "processor_s_per_gib": spread(8 / speed), "server_peak_mib": spread(mib + 9), "server_limit_mib": mib + 10}]))
"""
SLACKLINE = """
import json, os, sys
out = sys.argv[sys.argv.index("--out") + 1]
os.makedirs(out)
summary = {"samples_per_s": float(open("speed").read()), "final": {"test_accuracy": 0.5}}
json.dump(summary, open(os.path.join(out, "summary.json"), "w"))
"""
BENCH = """
import json, os
folder = os.path.join(os.environ["CRITERION_HOME"], "gate", "bsp", "8", "new")
os.makedirs(folder)
json.dump({"median": {"point_estimate": 400 / float(open("speed").read())}}, open(os.path.join(folder, "estimates.json"), "w"))
json.dump({"full_id": "gate/bsp/8"}, open(os.path.join(folder, "benchmark.json"), "w"))
"""
# Says what it built, as cargo does, and counts how often it was called.
CARGO = """
import json, os, shutil, sys
target = os.environ["CARGO_TARGET_DIR"]
os.makedirs(target, exist_ok=True)
open(os.path.join(target, "calls"), "a").write("x")
if os.path.exists("broken"): sys.exit("error: no")
print("not JSON")
for name, kind in (("loopback", "bin"), ("slackline", "bin"), ("gate", "bench")):
    path = os.path.join(target, name)
    shutil.copy(os.path.join(MADE, name), path)
    print(json.dumps({"reason": "compiler-artifact", "target": {"name": name, "kind": [kind]}, "executable": path}))
print(json.dumps({"reason": "compiler-artifact", "target": {"name": "lib", "kind": ["lib"]}, "executable": None}))
"""


class JudgeTest(unittest.TestCase):
    def test_worse_is_what_lies_further_off_than_its_spread(self):
        self.assertEqual(judge.mark([0.80, 0.82, 0.81], judge.MORE), "worse")
        self.assertEqual(judge.mark([0.80, 0.82, 0.81], judge.LESS), "better")
        self.assertEqual(judge.mark([1.30, 1.20, 1.25], judge.LESS), "worse")
        # All pairs are on one side, but they differ by as much.
        self.assertEqual(judge.mark([1.05, 1.30, 1.15], judge.LESS), "")
        self.assertEqual(judge.mark([0.5, 1.5, 1.0], judge.MORE), "")

    def test_little_differences_few_pairs_and_what_is_neither_are_not_marked(self):
        self.assertEqual(judge.mark([1.005, 1.005, 1.005], judge.LESS), "")
        self.assertEqual(judge.mark([1.02, 1.02, 1.02], judge.LESS), "worse")
        self.assertEqual(judge.mark([0.5, 0.5], judge.MORE), "")
        self.assertEqual(judge.mark([], judge.MORE), "")
        self.assertEqual(judge.mark([0.5, 0.5, 0.5], judge.EITHER), "")

    def test_ratios_are_of_pairs_and_a_figure_that_one_side_lacks_stays_in_the_table(self):
        base = [{"a": (2.0, judge.MORE)}, {"a": (4.0, judge.MORE), "old": (1.0, judge.LESS)}, {}]
        head = [{"a": (1.0, judge.MORE)}, {"a": (8.0, judge.MORE)}, {"a": (9.0, judge.MORE), "new": (1.0, judge.LESS)}]
        rows = judge.compare(base, head)
        self.assertEqual([row[0] for row in rows], ["a", "old", "new"])
        self.assertEqual(rows[0][2:], ([2.0, 4.0], [1.0, 8.0, 9.0], [0.5, 2.0]))
        self.assertEqual(rows[1][2:], ([1.0], [], []))
        text = judge.table(rows)
        self.assertRegex(text, r"a +more +2 +3 +8 +1\.250 \[0\.500\.\.2\.000\]\n")
        self.assertRegex(text, r"new +less +0 +- +1 +-")

    def test_the_last_line_names_what_is_marked(self):
        rows = [("a", judge.MORE, [1.0] * 3, [0.5] * 3, [0.5] * 3), ("b", judge.LESS, [1.0] * 3, [1.0] * 3, [1.0] * 3)]
        self.assertEqual(judge.summary(rows), "2 figures, by more than their spread: 1 worse (a), 0 better")
        self.assertIn("fewer than 3 pairs", judge.summary([("a", judge.MORE, [1.0], [0.5], [0.5])]))


class PartsTest(InFolder):
    def test_estimates_of_criterion_are_found_by_the_name_of_the_bench(self):
        for place, content in (("new", 12.5), ("base", 99.0)):
            folder = self.path(f"group/a bench/{place}")
            os.makedirs(folder)
            for name, text in (("estimates", {"median": {"point_estimate": content}}), ("benchmark", {"full_id": "group/a bench"})):
                self.path(os.path.join(folder, f"{name}.json"), json.dumps(text))
        self.assertEqual(parts.estimates(self.folder), {"group/a bench: ns": (12.5, judge.LESS)})
        self.path("group/a bench/new/estimates.json", "{}")
        with self.assertRaisesRegex(processes.PeerFailed, "no estimates of criterion"):
            parts.estimates(self.folder)

    def test_what_a_bench_does_not_tell_is_left_out(self):
        printed = json.dumps([{"megabytes_per_s": {"median": 7}, "processor_s_per_gib": None}])
        self.assertEqual(parts.loopback_figures((4, 1, 2), printed), {"loopback 4 MiB 1 x 2: MB/s": (7.0, judge.MORE)})
        for text in ("", "[]", "{}", '[{"megabytes_per_s": 1}]'):
            with self.assertRaises(processes.PeerFailed, msg=text):
                parts.loopback_figures((4, 1, 2), text)
        with self.assertRaises(processes.PeerFailed):
            parts.training_figures("x", {"final": {}}, 1.0)


class PairwiseTest(InFolder):
    """Whole comparisons of a repository that is made up, with a cargo that is."""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("repository"))
        os.mkdir(self.path("made"))
        for name, text in (("loopback", LOOPBACK), ("slackline", SLACKLINE), ("gate", BENCH)):
            self.program(f"made/{name}", text)
        cargo = self.program("cargo", CARGO.replace("MADE", repr(self.path("made"))))
        rustc = self.program("rustc", "print('rustc 1')")
        self.replace(trees, "CARGO", cargo)
        self.replace(trees, "RUSTC", rustc)
        self.replace(pairwise, "ROOT", self.path("repository"))
        self.git("init", "--quiet")

    def replace(self, module, name, value):
        self.addCleanup(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def git(self, *command):
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", "-C", self.path("repository"), *who, *command], check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, **files):
        for name, text in files.items():
            self.path(f"repository/{name}", text)
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "x")
        return self.git("rev-parse", "HEAD")

    def compare(self, *given):
        return quietly(pairwise.main, [*given, "--at", self.path("at"), "--cells", "4:1x1"])

    def test_two_commits_are_compared_and_what_is_worse_is_named_but_no_failure(self):
        base, head = self.commit(speed="4"), self.commit(speed="2")
        status, said = self.compare(base, "--pairs", "3", "--json", self.path("all.json"))
        self.assertEqual(status, 0, said)
        self.assertRegex(said, r"gate/bsp/8: ns +less +3 +100 +200 +2\.000 \[2\.000\.\.2\.000\] +worse")
        self.assertRegex(said, r"loopback 4 MiB 1 x 1: MB/s +more +3 +4 +2 +0\.500 \[0\.500\.\.0\.500\] +worse")
        self.assertRegex(said, r"peak MiB of a server +less +3 +13 +13 +1\.000 \[1\.000\.\.1\.000\]\n")
        self.assertRegex(said, r"fashion-mlp: samples/s +more +3 ")
        with open(self.path("all.json"), encoding="utf-8") as file:
            found = json.load(file)
        self.assertEqual((found["base"], found["head"], found["failed"]), (base, head, []))
        self.assertEqual(next(row for row in found["rows"] if row["figure"].startswith("gate"))["mark"], "worse")

    def test_what_was_built_is_kept_until_the_compiler_changes(self):
        base = self.commit(speed="4")
        calls = self.path(f"at/{base[:12]}/target/calls")
        for given, wanted in ((("loopback",), 1), (("loopback",), 1), (("criterion,training",), 1)):
            status, said = self.compare(base, "--pairs", "1", "--only", *given)
            self.assertEqual((status, os.path.getsize(calls)), (0, wanted), said)
        self.program("rustc", "print('rustc 2')")
        self.compare(base, "--pairs", "1", "--only", "loopback")
        self.assertEqual(os.path.getsize(calls), 2)

    def test_a_side_that_breaks_is_told_and_the_rest_is_measured(self):
        base = self.commit(speed="4")
        self.commit(speed="0")
        status, said = self.compare(base, "HEAD", "--pairs", "1", "--only", "loopback")
        self.assertEqual(status, 1)
        self.assertIn("failed: HEAD: loopback, (4, 1, 1): loopback ended with status 1: it broke", said)
        self.assertRegex(said, r"loopback 4 MiB 1 x 1: MB/s +more +0 +4 +-")

    def test_what_cannot_be_compared_is_told_in_a_line(self):
        base = self.commit(speed="4", broken="yes")
        for given, wanted in (("nothing", "nothing is no commit of"), (base, "does not build; .*build.log says why")):
            status, said = self.compare(given, "--pairs", "1")
            self.assertEqual(status, 1)
            self.assertRegex(said, f"pairwise: .*{wanted}")
        self.path(f"at/{base[:12]}/tree/speed", "5")
        self.assertRegex(self.compare(base)[1], "is not as .* has it; remove it")
        for given in ([], ["a", "--only", "x"], ["a", "--pairs", "0"], ["a", "--cells", "4:1"], ["a", "--cells", "0:1x1"]):
            with self.assertRaises(SystemExit, msg=given):
                quietly(pairwise.arguments, given)

    def test_a_tree_that_was_deleted_is_made_again(self):
        base = self.commit(speed="4")
        self.compare(base, "--pairs", "1", "--only", "loopback")
        subprocess.run(["rm", "-r", self.path("at")], check=True)
        self.assertEqual(self.compare(base, "--pairs", "1", "--only", "loopback")[0], 0)


class GrowthTest(InFolder):
    def test_a_size_for_which_there_is_too_little_memory_is_named(self):
        fit, lines = growth.that_fit([4, 4000], 16 * 1024)
        self.assertEqual(fit, [4])
        self.assertRegex(lines[0], r"4000 MiB: left out: it needs some 16\.7 GiB of memory, and 16\.0 GiB are free")
        self.assertEqual(growth.that_fit([4, 4000], 24 * 1024), ([4, 4000], []))
        self.assertEqual(growth.that_fit([4, 4000], None), ([4, 4000], []))

    def test_a_byte_is_compared_with_that_of_the_smallest_in_the_same_turn(self):
        cell = {"parameters": 1e6, "limit_mib": 100.0, "processor_s_per_gib": 1.0, "server_peak_mib": 90.0}
        of = lambda small, large, **more: {4: {**cell, "seconds_per_byte": small}, 40: {**cell, "seconds_per_byte": large, **more}}  # noqa: E731
        text = growth.table([of(1e-9, 1.1e-9), of(5e-9, 6e-9, server_peak_mib=101.0), of(1e-9, 1.3e-9), {40: of(1, 2)[40]}])
        self.assertRegex(text, r"\n40 +1\.0 +4 .* 1\.20 \[1\.10\.\.1\.30\] +dearer .* 101, 100 +no")
        self.assertRegex(text, r"\n4 +1\.0 +3 .* 1\.00 \[1\.00\.\.1\.00\] +yes .* 90, 100 +yes")

    def test_a_byte_that_costs_less_is_no_growth(self):
        self.assertEqual([growth.flatness(ratios) for ratios in ([0.86], [0.8], [1.2], [1.14], [])], ["yes", "cheaper", "dearer", "yes", "-"])

    def test_sizes_are_measured_and_a_bench_that_breaks_fails(self):
        program = self.program("loopback", LOOPBACK)
        self.addCleanup(setattr, growth, "ROOT", growth.ROOT)
        growth.ROOT = self.folder
        for speed, wanted in (("2", 0), ("0", 1)):
            self.path("speed", speed)
            status, said = quietly(growth.main, ["--loopback", program, "--mib", "8,4", "--repeats", "2"])
            self.assertEqual(status, wanted, said)
            self.assertRegex(said, "turn 2: 8 MiB: failed: 8-mib ended" if wanted else r"\n8 +2\.1 +2 .* 1\.00 \[1\.00\.\.1\.00\] +yes")


if __name__ == "__main__":
    sys.exit(testing.main(sys.modules[__name__]))
