# SPDX-License-Identifier: Apache-2.0
"""bench/dist_attention.py: its baselines, figures and plots, and the whole script on a CPU."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import dist_bench_cases as cases

if not cases.BENCH.exists():
    pytest.skip("the benches are not here", allow_module_level=True)

import dist_plots
import dist_timeline
from attention_masks import INFINITE, area, prefix_tree, tree_slices
from distributed import layouts
from distributed.figures import rows_of
from distributed.ours import parse_setting, with_work
from distributed.sides import BASELINES, MASKS, lengths_of

ROW = cases.SHAPE[2] * 8  # bytes of a head of a row
SHARE = cases.TOTAL // 4


OURS = ("default", "degree0", "auto", "default+work=queries", "degree0+work=auto")


ON_FOUR = [name for name in BASELINES if name != "usp4"]


@pytest.mark.parametrize("name", ["alone", *OURS, *ON_FOUR])
def test_sides_agree_with_dense_attention(ranks, name):
    for mask in MASKS:
        ranks.run(4, cases.side, name, mask)


@pytest.mark.parametrize("name", ["default", "ring", "allgather", "usp", "usp4"])
def test_sides_on_eight_ranks(eight_ranks, name):
    for mask in ("causal", "varlen_causal"):
        eight_ranks.run(8, cases.side, name, mask)


@pytest.mark.parametrize("name", ["ulysses", "ring", "allgather"])
@pytest.mark.parametrize("size", [2, 3])
def test_other_numbers_of_ranks(ranks, size, name):
    if name != "ulysses" or cases.SHAPE[1] % size == 0:
        ranks.run(size, cases.side, name, "causal")


@pytest.mark.parametrize("mask", MASKS)
def test_kernel_of_a_placement(ranks, mask):
    ranks.run(4, cases.kernel, mask)


def test_bytes_of_baselines(ranks):
    heads_q, heads_kv, _ = cases.SHAPE
    keys = 2 * heads_kv * ROW * SHARE
    every = (heads_q + 2 * heads_kv + heads_q) * ROW * SHARE * 3 // 4
    counts = {name: ranks.run(4, cases.bytes_sent, name)[0] for name in ON_FOUR}
    assert counts["ulysses"] == (every, every)
    assert counts["allgather"] == (3 * keys, 6 * keys)
    assert counts["ring"] == (3 * keys, 7 * keys)  # gradients return to the owner
    half = (2 * heads_q + 2 * heads_kv) * ROW * SHARE // 2
    assert counts["usp"] == (half + keys, half + 3 * keys)


def test_planned_bytes(ranks):
    planned, received = zip(*ranks.run(4, cases.planned_bytes))
    heads, dim = cases.SHAPE[1:]
    assert sum(received) > 0
    # Keys and values in bfloat16, their float32 gradients where they are and where they go.
    assert sum(planned) == sum(received) * 2 * heads * dim * (2 + 4 + 4)


def test_slices_between_shuffled_rows(rng):
    total = rng.randrange(20, 60)
    slices = []
    for _ in range(rng.randrange(1, 6)):
        q, k = (sorted(rng.sample(range(total + 1), 2)) for _ in range(2))
        low = rng.choice([-INFINITE, rng.randrange(-total, total)])
        high = rng.choice([INFINITE, rng.randrange(-total, total)])
        slices.append((*q, *k, low, high))
    whole = cases.Bands(slices, total, total).multiplicity()
    rows = [some_rows(rng, total) for _ in range(2)]
    local = layouts.between(slices, *rows)
    counts = [sum(end - begin for begin, end in ranges) for ranges in rows]
    q, k = ([row for begin, end in ranges for row in range(begin, end)] for ranges in rows)
    wanted = whole[q][:, k]
    assert cases.Bands(local, *counts).multiplicity().equal(wanted)
    assert area(local) == wanted.sum()
    if local:
        (q0, q1), (k0, k1) = layouts.hull(local)
        moved = cases.Bands(layouts.moved(local, q0, k0), q1 - q0, k1 - k0)
        assert moved.multiplicity().equal(wanted[q0:q1, k0:k1])
    seen = layouts.seen_keys(slices, rows[0])
    keys = [row for begin, end in seen for row in range(begin, end)]
    assert set(whole[q].sum(0).nonzero().flatten().tolist()) <= set(keys)


def some_rows(rng, total):
    bounds = sorted(rng.sample(range(total + 1), 6))
    rows = list(zip(bounds[::2], bounds[1::2]))
    rng.shuffle(rows)
    return rows


def test_neighbours_are_joined():
    full = [(0, 8, k, k + 4, -INFINITE, INFINITE) for k in (0, 4)]
    below = [(8, 12, 0, 8, -INFINITE, INFINITE)]
    assert layouts.between(full + below, [(0, 12)], [(0, 8)]) == [
        (0, 12, 0, 8, -INFINITE, INFINITE)
    ]


@pytest.mark.parametrize("total", [64, 96, 1000, 2048, 65536])
def test_masks_of_any_length(total):
    assert sum(rows for _, rows in prefix_tree(total)) == total
    assert max(q1 for _, q1, *_ in tree_slices(prefix_tree(total))) == total
    assert sum(lengths_of(total)) == total and min(lengths_of(total)) > 0


def test_prefix_trees_by_definition():
    nodes = [(-1, 3), (0, 2), (1, 2), (0, 1), (-1, 2)]
    counts = cases.Bands(tree_slices(nodes), 10, 10).multiplicity()
    node = [i for i, (_, rows) in enumerate(nodes) for _ in range(rows)]

    def is_seen(q, k):
        at = node[q]
        while at >= 0 and at != node[k]:
            at = nodes[at][0]
        return at == node[k] and (node[q] != node[k] or k <= q)

    for q in range(10):
        for k in range(10):
            assert counts[q, k] == is_seen(q, k), (q, k)


def test_settings():
    setting = parse_setting("degree2+sms8+MAGI_X=1")
    assert (setting.overlap.degree, setting.exchange_sms) == (2, 8)
    assert setting.environment == {"MAGI_X": "1"} and not setting.is_plain
    with setting.environment_set():
        assert os.environ["MAGI_X"] == "1"
    assert "MAGI_X" not in os.environ
    assert parse_setting("default").is_plain
    moving = parse_setting("default+degree1+work=queries")
    assert moving.is_plain and moving.config().work == "queries"
    assert with_work(["default", "degree0"], ["keys", "auto"]) == [
        "default", "default+work=auto", "degree0", "degree0+work=auto"
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="--work has rows; allowed: keys, queries, auto"):
        with_work(["default"], ["rows"])
    with pytest.raises(SystemExit, match="allowed: default, auto"):
        parse_setting("degree")


def cell(mask, tokens, speeds):
    """Forward TFLOP/s by name; twice that backward."""
    kinds = {"alone": "alone", "ulysses": "baseline", "ring": "baseline"}
    sides = {
        name: {
            "kind": kinds.get(name, "ours"),
            "forward": {"tflops": speed, "share": speed / speeds["alone"]},
            "backward": {"tflops": 2 * speed, "share": speed / speeds["alone"]},
            "memory_ratio": 1.02,
        }
        for name, speed in speeds.items()
    }
    return {"mask": mask, "tokens": tokens, "ranks": 4, "rounds": 5, "sides": sides}


def test_figures_are_the_musts():
    cells = [
        cell("causal", 8192, {"alone": 100, "default": 90, "degree0": 100, "ring": 60}),
        cell("varlen_causal", 16384, {"alone": 100, "default": 80, "degree0": 40, "ulysses": 50}),
    ]
    found = {row["name"]: row["value"] for row in rows_of(cells)}
    assert found["dist4.causal.forward.8k"] == 0.9
    assert found["dist4.varlen_causal.backward.16k"] == 0.8
    assert found["dist4.varlen_causal.over_ulysses.forward.16k"] == 1.6
    assert found["dist4.default_over_best"] == 0.9
    assert found["dist4.over_baseline"] == 1.5
    assert found["dist4.extra_memory"] == 1.02
    musts = json.loads((cases.BENCH / "musts.json").read_text())
    assert set(found) - {"dist4.varlen_causal.over_ulysses.forward.16k",
                         "dist4.varlen_causal.over_ulysses.backward.16k"} <= set(musts)  # fmt: skip


def test_figures_of_moving_queries():
    speeds = {"alone": 100, "default": 80, "default+work=queries": 60, "default+work=auto": 88}
    made = cell("varlen_causal", 8192, speeds)
    for side, ms in zip(made["sides"].values(), (0, 8, 10, 7)):
        side["forward"]["ms"], side["backward"]["ms"] = ms / 4, ms * 3 / 4
        side["is_moving_queries"] = ms in (10, 7)
    found = {row["name"]: row["value"] for row in rows_of([made])}
    assert found["dist4.qo.varlen_causal.8k"] == round(8 / 7, 4)
    assert found["dist4.qo_always.varlen_causal.8k"] == 0.8
    assert "dist4.default_over_best" not in found  # another work is no better setting of this one
    made["sides"]["default+work=auto"]["is_moving_queries"] = False  # keys alone were chosen
    assert "dist4.qo.varlen_causal.8k" not in {row["name"] for row in rows_of([made])}


def test_the_script_on_a_cpu(tmp_path):
    out, rows = tmp_path / "cells.jsonl", tmp_path / "rows.json"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(cases.BENCH / "dist_attention.py"), "--device", "cpu",
        "--masks", "causal,varlen_causal", "--tokens", "64", "--heads", "4,2", "--head-dim", "16",
        "--settings", "default,degree0+sms4", "--work", "keys,queries",
        "--seconds", "0.1", "--rounds", "2", "--no-host",
        "--out", str(out), "--rows", str(rows), "--trace", str(tmp_path / "traces"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    cells = [json.loads(line) for line in out.read_text().splitlines()]
    assert [c["mask"] for c in cells] == ["causal", "varlen_causal"]
    ours = ["default", "default+work=queries", "degree0+sms4", "degree0+sms4+work=queries"]
    names = ["alone", *ours, "ulysses", "ring", "allgather"]
    assert list(cells[0]["sides"]) == names  # Ulysses around a ring needs four ranks
    default = cells[0]["sides"]["default"]
    assert default["forward_bytes"] > 0 and default["error"] < 1e-4
    assert default["forward"]["ms"] > 0 and "exposed_ms" in default["backward"]
    assert cells[0]["sides"]["default+work=queries"]["is_moving_queries"]
    assert "exposed_ms" not in cells[0]["sides"]["default+work=queries"]["forward"]
    found = {row["name"]: row for row in json.loads(rows.read_text())}
    assert found["dist2.qo_always.causal.64"]["value"] > 0
    assert found["dist2.causal.forward.64"]["unit"] == "ratio"
    assert "causal, 64 per rank, 2 ranks" in done.stderr
    pictures = dist_plots.draw(cells, tmp_path)
    assert [p.name for p in pictures] == ["dist2-64-forward.svg", "dist2-64-backward.svg"]
    assert "varlen_causal" in pictures[0].read_text()
    traces = sorted((tmp_path / "traces").iterdir())
    assert [path.name for path in traces] == [
        "causal-64-default.json", "varlen_causal-64-default.json"
    ]  # fmt: skip
    svg = dist_timeline.picture(dist_timeline.read(traces[0]), "a & b")
    words = {element.text for element in ElementTree.fromstring(svg).iter() if element.text}
    assert {"a & b", "rank 0", "rank 1", "rows move", "attention", "predicted"} <= words
    with pytest.raises(SystemExit, match="is no trace"):
        dist_timeline.read(rows)


def test_pictures_of_recorded_rows(tmp_path):
    rows = {
        "dist2.causal.forward.8k": 0.9, "dist2.varlen_causal.backward.8k": 0.8,
        "dist2.varlen_causal.over_ulysses.backward.8k": 1.6, "dist2.over_baseline": 1.1,
    }  # fmt: skip
    given = [{"name": n, "value": v, "machine": "2 x a GPU"} for n, v in rows.items()]
    assert dist_plots.recorded(given) == {
        2: {
            "causal 8k": {"magi, forward": 0.9},
            "varlen_causal 8k": {"magi, backward": 0.8, "Ulysses, backward": 0.5},
        }
    }
    (path,) = dist_plots.draw_recorded(given, tmp_path)
    bars = {element.text for element in ElementTree.parse(path).iter() if element.text}
    assert path.name == "dist2-shares.svg"
    assert {"magi, forward 0.900", "Ulysses, backward 0.500", "causal 8k"} <= bars


def span(cat: str, name: str, ts: float, dur: float, **arguments) -> dict:
    whose = {"plan": "00", "pass": "forward", "call": 0}
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 0, "ts": ts, "dur": dur,
        "args": {**whose, **arguments},
    }  # fmt: skip


def test_a_timeline_of_kernels():
    spans = [
        span("pass", "forward", 0, 5),
        span("exchange", "k, v to segment 1", 1, 1, step=0),
        span("kernel", "void magi::push_kernel<2>(Push)", 3, 4),
        span("kernel", "void magi::sm90::forward_kernel<Config>(Params)", 5, 5),
        span("kernel", "void magi::sm90::forward_kernel<Config>(Params)", 8, 4),
        span("kernel", "void at::native::vectorized_elementwise_kernel<4>()", 12, 1),
        span("kernel", "void magi::sm90::forward_kernel<Config>(Params)", 90, 4, call=1),
        span("predicted", "k, v to segment 1", 3, 2, step=0, kind="exchange"),
    ]
    lanes = dist_timeline.lanes_of(spans, 0, "forward")
    assert {kind: len(lane) for kind, lane in lanes.items()} == {
        "exchange": 1, "attention": 2, "other": 1, "predicted": 1
    }  # fmt: skip
    assert dist_timeline.busy(lanes["attention"]) == 7
    assert not any(dist_timeline.lanes_of(spans, 0, "backward").values())
    for name, kind in (("ncclDevKernel_SendRecv(ncclDevKernelArgs)", "exchange"),
                       ("void magi::sm90::backward_kernel<C>(P)", "attention"),
                       ("void magi::sm90::dq_convert_kernel<T>()", "other"),
                       ("void magi::await_kernel()", "exchange"),
                       ("Memcpy DtoD (Device -> Device)", "other")):  # fmt: skip
        assert dist_timeline.kind_of(name) == kind, name
    ElementTree.fromstring(dist_timeline.picture(spans, "kernels"))
