# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import threading
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

    def test_cases_behind_one_that_does_not_hold_are_not_counted(self):
        def fail_at_40(seed, first, cases):
            if first == 40:
                raise SystemExit("case 41 does not hold")
            self.run_part(seed, first, cases)

        with self.assertRaisesRegex(SystemExit, "case 41"):
            self.count(fail_at_40, "--workers", str(len(os.sched_getaffinity(0))))
        self.assertEqual(self.held(), 40)


if __name__ == "__main__":
    unittest.main()
