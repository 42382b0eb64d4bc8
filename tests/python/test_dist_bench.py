# SPDX-License-Identifier: Apache-2.0
"""bench/dist_attention.py with pictures of its cells, throttled.py and rank_slices.py, on a CPU."""

import json
import pathlib
import sys
from xml.etree import ElementTree

import pytest

from ranks import launch

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))
dist_plots = pytest.importorskip("dist_plots", reason="the benches are not here")
dist_timeline = pytest.importorskip("dist_timeline")


def test_the_script_on_a_cpu(tmp_path):
    out, rows = tmp_path / "cells.jsonl", tmp_path / "rows.json"
    code, output = launch(
        BENCH / "dist_attention.py", "--device", "cpu",
        "--masks", "causal,video_blocks", "--tokens", "64", "--heads", "4,2", "--head-dim", "16",
        "--settings", "default,degree0+sms4", "--work", "keys,queries",
        "--sides", "ulysses,ring,allgather,usp,ulysses_torch",
        "--seconds", "0.1", "--rounds", "2", "--no-host",
        "--out", str(out), "--rows", str(rows), "--trace", str(tmp_path / "traces"), ranks=2,
    )  # fmt: skip
    assert code == 0, output
    cells = [json.loads(line) for line in out.read_text().splitlines()]
    assert [c["mask"] for c in cells] == ["causal", "video_blocks"]
    ours = ["default", "default+work=queries", "degree0+sms4", "degree0+sms4+work=queries"]
    names = ["alone", *ours, "ulysses", "ring", "allgather", "ulysses_torch"]
    assert list(cells[0]["sides"]) == names  # Ulysses around a ring needs four ranks
    default = cells[0]["sides"]["default"]
    assert default["forward_bytes"] > 0 and default["error"] < 1e-4
    assert default["forward"]["ms"] > 0 and "exposed_ms" in default["backward"]
    assert cells[0]["sides"]["default+work=queries"]["is_moving_queries"]
    assert "exposed_ms" not in cells[0]["sides"]["default+work=queries"]["forward"]
    found = {row["name"]: row for row in json.loads(rows.read_text())}
    assert found["dist2.qo_always.causal.64"]["value"] > 0
    assert found["dist2.causal.forward.64"]["unit"] == "ratio"
    assert "causal, 64 per rank, 2 ranks" in output
    pictures = dist_plots.draw(cells, tmp_path)
    assert [p.name for p in pictures] == ["dist2-64-forward.svg", "dist2-64-backward.svg"]
    assert "video blocks" in pictures[0].read_text()
    traces = sorted((tmp_path / "traces").iterdir())
    assert [path.name for path in traces] == [
        "causal-64-default.json", "video_blocks-64-default.json"
    ]  # fmt: skip
    svg = dist_timeline.picture(dist_timeline.read(traces[0]), "a & b")
    words = {element.text for element in ElementTree.fromstring(svg).iter() if element.text}
    assert {"a & b", "rank 0", "rank 1", "rows move", "attention", "predicted"} <= words
    with pytest.raises(SystemExit, match="is no trace"):
        dist_timeline.read(rows)


def test_plans_between_throttled_hosts(tmp_path):
    code, output = launch(
        BENCH / "throttled.py", "--out", str(tmp_path / "rows"), "--rows", "2048", "--masks",
        "packed,tree", "--per-host", "2", "--rates", "5", "--rounds=1", "--seconds", "0.1", ranks=4,
    )  # fmt: skip
    assert code == 0, output
    over_best, over_planned = json.loads((tmp_path / "rows").read_text())
    assert over_best["name"] == "hosts.throttled.2x2.5.over_best" and over_best["value"] >= 1
    assert over_planned["value"] > 0.5  # the plan also counts merging, which is not slept


def test_slices_of_ranks(tmp_path):
    code, output = launch(
        BENCH / "rank_slices.py", "--out", str(tmp_path / "rows"), "--device", "cpu", "--tokens",
        "64", "--masks", "window,prefix_tree", "--heads", "8,2", "--head-dim", "16", ranks=1,
    )  # fmt: skip
    assert code == 0, output
    shares = {row["name"]: row["value"] for row in json.loads((tmp_path / "rows").read_text())}
    assert len(shares) == 4 and shares["rank_slices.prefix_tree.backward.64"] > 0
