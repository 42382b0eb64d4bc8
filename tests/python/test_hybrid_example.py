# SPDX-License-Identifier: Apache-2.0
"""examples/hybrid: over ranks it has the losses of one process."""

import json
import pathlib

import pytest

from ranks import launch

pytest.importorskip("transformers", minversion="5")

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "examples" / "hybrid" / "train.py"


def test_short_training(tmp_path):
    options = ("--steps", "2", "--rows", "96", "--ranks", "2", "--out", str(tmp_path))
    code, output = launch(PROGRAM, *options)
    assert code == 0, output
    assert len(json.loads((tmp_path / "2.json").read_text(encoding="utf-8"))) == 2
