# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from load import TOOLS, tool

figures = tool("figures")


def row(name, value):
    where = {"command": "./run bench", "machine": "m", "commit": "c", "date": "2026-01-01"}
    return {"name": name, "value": value, "unit": "ms", **where}


class Figures(unittest.TestCase):
    def run_figures(self, musts, results):
        with tempfile.TemporaryDirectory() as folder:
            bench = pathlib.Path(folder)
            (bench / "results").mkdir()
            (bench / "musts.json").write_text(json.dumps(musts))
            for name, rows in results.items():
                (bench / "results" / name).write_text(json.dumps(rows))
            page = bench / "page.md"
            command = [sys.executable, "-B", TOOLS / "figures", "--bench", folder, "--page", page]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            return run, page.read_text() if page.exists() else ""

    def test_missing_and_failing_rows_exit_1(self):
        musts = {"a": {"sense": "<=", "bound": 1}, "b": {"sense": ">=", "bound": 2, "aim": 3}}
        self.assertEqual(self.run_figures(musts, {"x.json": [row("a", 0.5)]})[0].returncode, 1)
        self.assertEqual(
            self.run_figures(musts, {"x.json": [row("a", 1.5), row("b", 2)]})[0].returncode, 1
        )
        musts["c"] = {"sense": ">=", "bound": 1, "waits_for": "4 GPUs"}
        run, page = self.run_figures(musts, {"x.json": [row("a", 1), row("b", 3)]})
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("| a | <= 1 |  | 1 ms | holds |", page)
        self.assertIn("2 hold (1 reach the aim)", run.stdout)
        self.assertIn("0 missing, 1 wait for machines", run.stdout)

    def test_the_project_musts_are_well_formed(self):
        musts = json.loads((TOOLS.parent / "bench" / "musts.json").read_text())
        for name, must in musts.items():
            self.assertIn(must["sense"], ("<=", ">="), name)
            self.assertIsInstance(must["bound"], (int, float), name)
            if "aim" in must:
                sign = 1 if must["sense"] == "<=" else -1
                self.assertLessEqual(sign * must["aim"], sign * must["bound"], name)


if __name__ == "__main__":
    unittest.main()
