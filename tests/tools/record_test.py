# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from load import TOOLS


class Record(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.given = self.folder / "given" / "rows.json"
        self.given.parent.mkdir()

    def write(self, path, *names):
        rows = [{"name": name, "value": 1, "unit": "us"} for name in names]
        path.write_text(json.dumps(rows), encoding="utf-8")

    def names(self, file):
        return [row["name"] for row in json.loads((self.folder / file).read_text("utf-8"))]

    def record(self, *options):
        target = str(self.folder / "b.json")
        command = [sys.executable, "-B", str(TOOLS / "record"), "--out", target]
        command += ["--rows", str(self.given), "--machine", "m", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_rows_of_other_files_are_moved_where_asked(self):
        self.write(self.folder / "a.json", "x", "y")
        self.write(self.given, "y")
        self.record()
        self.assertEqual(self.names("a.json"), ["x", "y"])
        self.assertEqual(self.record("--move").returncode, 0)
        self.assertEqual((self.names("a.json"), self.names("b.json")), (["x"], ["y"]))
        rows = json.loads((self.folder / "b.json").read_text("utf-8"))
        self.assertEqual([row["machine"] for row in rows], ["m"])


if __name__ == "__main__":
    unittest.main()
