# SPDX-License-Identifier: Apache-2.0
"""examples/hybrid: over ranks it has the losses of one process."""

import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("transformers", minversion="5")

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "examples" / "hybrid" / "train.py"


def test_short_training(tmp_path):
    command = [sys.executable, PROGRAM, "--steps", "2", "--rows", "96", "--ranks", "2"]
    result = subprocess.run(
        [*command, "--out", tmp_path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(json.loads((tmp_path / "2.json").read_text(encoding="utf-8"))) == 2
