# SPDX-License-Identifier: Apache-2.0
"""bench/training.py, as a whole on a CPU, and what it makes of times and traces."""

import json
import pathlib
import sys

import pytest

from ranks import launch

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
training = pytest.importorskip("training", reason="the benches are not here")
step_parts = pytest.importorskip("distributed.step_parts")
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


def test_figures():
    """Names and ratios of the musts, from the speeds and memory of a cell."""
    speeds = {"ours.whole": 9.0, "ours.saved": 12.0, "ulysses.whole": 8.0, "ulysses.saved": 10.0}
    speeds |= {"alone.whole": 10.0, "torch_cp.whole": 6.0}
    sides = {
        name: {"tokens_per_second": speed, "peak_gib": speed, "outside_gib": 1.0}
        for name, speed in speeds.items()
    }
    cells = {"packed.64k": {"sides": sides}, "causal.128k": {"sides": sides}}
    found = {row["name"]: row["value"] for row in training.rows_of(cells, 2)}
    assert found["train2.causal.128k.over_torch_cp"] == 2.0
    assert found["train2.causal.128k.over_ulysses"] == 1.5
    assert found["train2.packed.64k.over_ulysses"] == 1.125
    assert found["train2.packed.64k.share"] == 0.9
    assert found["train2.peak_gib.causal.128k"] == round(13 / 11, 4)
    assert found["train2.packed.64k.ours.saved"] == 12.0


def test_parts_of_a_trace():
    """Communication that products hide is not counted, and gaps are the host's."""
    events = [
        ("nvjet_tst_128x256", 0, 4000), ("ncclDevKernel_AllGather", 1000, 5000),
        ("void magi::sm90::forward", 7000, 1000), ("FusedAdam", 8000, 500), ("add", 8500, 500),
    ]  # fmt: skip
    trace = [{"cat": "kernel", "name": n, "ts": t, "dur": d} for n, t, d in events]
    parts = step_parts.parts_of_trace({"traceEvents": [*trace, {"ph": "M"}]}, 10.0)
    assert parts == {
        "products": 4.0, "attention": 1.0, "optimizer": 0.5, "elementwise": 0.5, "copies": 0.0,
        "communication": 2.0, "host": 2.0,
    }  # fmt: skip
