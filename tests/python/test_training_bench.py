# SPDX-License-Identifier: Apache-2.0
"""bench/training.py, as a whole on a CPU, and what it makes of times and traces."""

import json
import pathlib
import sys
from unittest import mock
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist

from ranks import launch, over

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
training = pytest.importorskip("training", reason="the benches are not here")
step_parts = pytest.importorskip("distributed.step_parts")
trainings = pytest.importorskip("distributed.trainings")
training_plots = pytest.importorskip("training_plots")
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
    cells = {
        case: {"sides": sides, "agrees": not case.endswith("16k")}
        for case in ("packed.64k", "causal.128k", "causal.16k")
    }
    found = {row["name"]: row["value"] for row in training.rows_of(cells, 2)}
    assert found["train2.causal.128k.over_torch_cp"] == 2.0
    assert found["train2.causal.128k.over_ulysses"] == 1.5
    assert found["train2.packed.64k.over_ulysses"] == 1.125
    assert found["train2.packed.64k.share"] == 0.9
    assert found["train2.peak_gib.causal.128k"] == round(13 / 11, 4)
    assert found["train2.packed.64k.ours.saved"] == 12.0
    of_differing = [name for name in found if "16k" in name]  # speeds and no ratios
    assert of_differing == [f"train2.causal.16k.{name}" for name in speeds]


@over(2)
def test_a_side_that_one_rank_cannot_make(group):
    """It is made again by all ranks, or by none."""
    rank, made = dist.get_rank(group), []

    def make(*_):
        made.append(rank)
        if rank == 1 and len(made) == 1:
            raise RuntimeError("no memory")

    def slowest(value):
        found = torch.tensor(float(value))
        dist.all_reduce(found, dist.ReduceOp.MAX, group)
        return float(found)

    bench = mock.Mock(slowest=slowest, group=group, **{
        "used_gib.return_value": (0.0, 0.0), "loss_and_norm.return_value": (1.0, 2.0),
    })  # fmt: skip
    bench.given.sides, bench.given.policies = ["ulysses"], ["whole", "saved", "offloaded"]
    with mock.patch.dict(training.MAKERS, ulysses=make):
        sides, known, failed = training.compare(bench, None, 1)
    assert len(made) == 2 and list(sides) == ["ulysses"]
    assert list(known) == ["ulysses.saved", "ulysses.offloaded"]
    assert list(failed) == ["ulysses.whole"]


@over(2)
def test_attention_of_torch_is_one_on_all_ranks(group):
    ids = mock.Mock(is_cuda=True, device=torch.device("cpu"))
    data = mock.Mock(ids=ids, lengths=[4])
    rank = dist.get_rank(group)
    with (
        mock.patch.object(trainings.TorchCp, "_takes_grouped_queries", lambda _: rank == 0),
        mock.patch.object(trainings, "DeviceMesh"),
    ):
        assert not trainings.TorchCp(data, None, group)._has_gqa


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


def test_bars_of_a_step():
    """A bar is what 1,000 tokens take, by the traced step's parts."""
    parts = dict.fromkeys(training_plots.PARTS, 0.0) | {"products": 30.0, "attention": 10.0}
    sides = {
        "ours.saved": {"tokens_per_second": 50000.0, "parts_ms": parts},
        "alone.whole": {"tokens_per_second": 40000.0},
    }
    found = training_plots.bars_of({"causal.64k": {"sides": sides}, "new_mask.64k": {"ms": 1.0}})
    assert list(found) == ["causal.64k"]
    (bar,) = found["causal.64k"].values()
    assert (bar["products"], bar["attention"], bar["host"]) == (15.0, 5.0, 0.0)
    texts = [x.text for x in ElementTree.fromstring(training_plots.picture("A & B", found)).iter()]
    assert {"A & B", "magi, attention saved", "products 15.00 ms", "20.0 ms"} <= set(texts)
