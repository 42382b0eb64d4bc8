# SPDX-License-Identifier: Apache-2.0
"""bench/training.py, as a whole on a CPU."""

import json
import pathlib
import sys
import types
from unittest import mock
from xml.etree import ElementTree

import pytest

from ranks import launch

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))
training = pytest.importorskip("training", reason="the benches are not here")
trainings = pytest.importorskip("distributed.trainings", reason="the benches are not here")
training_plots = pytest.importorskip("training_plots", reason="the benches are not here")
BOTH = ("whole", "saved")


def test_the_script_on_a_cpu(tmp_path):
    out, rows = tmp_path / "out.json", tmp_path / "rows.json"
    cases = ("causal.128", "new_mask.128", "longest.128")
    code, output = launch(
        BENCH / "training.py", "--tiny", *(f"--case={case}" for case in cases), "--policies",
        "whole,saved", "--rounds", "1", "--trace", "--out", str(out), "--rows", str(rows), ranks=2,
    )  # fmt: skip
    assert code == 0, output
    cells = json.loads(out.read_text())["cells"]
    assert list(cells) == list(cases)
    assert all(cell["agrees"] for cell in cells.values())
    both = [f"{side}.{policy}" for side in ("ours", "ulysses", "alone") for policy in BOTH]
    assert list(cells["causal.128"]["sides"]) == both
    assert list(cells["causal.128"]["failed"]) == [f"torch_cp.{policy}" for policy in BOTH]
    assert "host" in cells["causal.128"]["sides"]["ours.saved"]["parts_ms"]
    found = {row["name"]: row["value"] for row in json.loads(rows.read_text())}
    assert found["train2.causal.128.ours.saved"] > 0
    assert {"train2.causal.128.over_ulysses", "train2.causal.128.share"} <= set(found)
    assert found["train1.longest"] == 128 and "train.new_mask.ms" in found
    bars = training_plots.bars_of(json.loads(out.read_text())["cells"])
    texts = [x.text for x in ElementTree.fromstring(training_plots.picture("A & B", bars)).iter()]
    assert {"A & B", "magi, attention saved"} <= set(texts)


@pytest.mark.parametrize("gib, wanted", [(72.0, 128), (72.6, 0)])
def test_the_longest_sequence_fits_80_gb(gib, wanted):
    cell = {"agrees": True, "tokens": 128, "peak_gib": gib, "outside_gib": 2.0}
    (row,) = training.rows_of({"longest.128": cell}, 2)
    assert row == {"name": "train1.longest", "value": wanted, "unit": "tokens"}


def test_attention_of_others_is_kept_beside_offloaded_inputs():
    policy, side = trainings.Policy(), types.SimpleNamespace(save=mock.Mock())
    policy.choose("offloaded", side)
    with mock.patch.object(policy.host, "_begin_layer") as begun:
        assert policy.context_fn() is side.save.return_value
    begun.assert_called_once_with()
