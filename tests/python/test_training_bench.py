# SPDX-License-Identifier: Apache-2.0
"""bench/training.py, as a whole on a CPU, and what it makes of times and traces."""

import json
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
step_parts = pytest.importorskip("distributed.step_parts", reason="the benches are not here")


def test_the_script_on_a_cpu(tmp_path):
    out, rows = tmp_path / "out.json", tmp_path / "rows.json"
    cases = ("packed.128", "causal.128", "new_mask.128", "longest.128")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(BENCH / "training.py"), "--tiny", *(f"--case={case}" for case in cases),
        "--policies", "whole,saved,offloaded", "--rounds", "1", "--trace",
        "--out", str(out), "--rows", str(rows),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    cells = json.loads(out.read_text())["cells"]
    assert list(cells) == list(cases)
    assert all(cell["agrees"] for cell in cells.values())
    names = [
        f"{side}.{policy}"
        for side in ("ours", "ulysses", "alone")
        for policy in ("whole", "saved", "offloaded")
    ]
    assert list(cells["packed.128"]["sides"]) == names
    assert next(iter(cells["packed.128"]["failed"])) == "torch_cp.whole"
    assert "host" in cells["causal.128"]["sides"]["ours.saved"]["parts_ms"]
    found = {row["name"]: row for row in json.loads(rows.read_text())}
    assert found["train2.packed.128.over_ulysses"]["unit"] == "ratio"
    assert found["train2.causal.128.ours.saved"]["value"] > 0
    assert {"train2.causal.128.over_ulysses", "train2.causal.128.share"} <= set(found)
    assert found["train1.longest"]["value"] == 128 and "train.new_mask.ms" in found


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
