# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "reliability"))

import parts  # noqa: E402


class Count(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "rows.json"
        self.tally = pathlib.Path(folder.name) / "tally.json"
        self.lock = threading.Lock()
        self.seen = []

    def count(self, run_part, *flags, cases=100):
        command = ["--out", str(self.out), "--tally", str(self.tally), *flags]
        arguments = parts.arguments_of("text", cases, seed=5).parse_args(command)
        with contextlib.redirect_stderr(io.StringIO()):
            parts.count("name", "cases", arguments, 10, run_part)

    def run_part(self, seed, first, cases):
        with self.lock:
            self.seen += range(first, first + cases)

    def held(self):
        tally = json.loads(self.tally.read_text())
        self.assertEqual(tally["seed"], 5)
        row = json.loads(self.out.read_text())
        self.assertEqual(row, [{"name": "name", "value": tally["held"], "unit": "cases"}])
        return tally["held"]

    def test_each_case_runs_once_whatever_the_workers(self):
        self.count(self.run_part, "--workers", str(len(os.sched_getaffinity(0))), cases=95)
        self.assertEqual(sorted(self.seen), list(range(95)))
        self.assertEqual(self.held(), 95)

    def test_a_run_goes_on_where_its_tally_stopped(self):
        self.count(self.run_part, cases=30)
        self.seen = []
        self.count(self.run_part, cases=50)
        self.assertEqual(sorted(self.seen), list(range(30, 50)))
        self.assertEqual(self.held(), 50)

    def test_cases_behind_one_that_does_not_hold_are_not_counted(self):
        def fail_at_40(seed, first, cases):
            if first == 40:
                raise SystemExit("case 41 does not hold")
            self.run_part(seed, first, cases)

        with self.assertRaisesRegex(SystemExit, "case 41"):
            self.count(fail_at_40, "--workers", str(len(os.sched_getaffinity(0))))
        self.assertEqual(self.held(), 40)

    def test_no_part_begins_when_the_time_is_over(self):
        def wait(seed, first, cases):
            time.sleep(0.05)
            self.run_part(seed, first, cases)

        self.count(wait, "--seconds", "0.2", cases=1_000_000)
        self.assertLess(len(self.seen), 1000)
        self.assertEqual(self.held(), len(self.seen))

    def test_workers_share_the_cores(self):
        cores = sorted(os.sched_getaffinity(0))
        shares = set()

        def note(_seed, _first, _cases):
            time.sleep(0.02)
            shares.add(frozenset(os.sched_getaffinity(0)))

        self.count(note, "--workers", str(len(cores)))
        self.assertEqual(shares, {frozenset([core]) for core in cores})
        with self.assertRaisesRegex(SystemExit, "--workers is 0; allowed: 1 to"):
            self.count(note, "--workers", "0")


if __name__ == "__main__":
    unittest.main()
