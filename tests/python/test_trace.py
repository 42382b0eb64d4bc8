# SPDX-License-Identifier: Apache-2.0
"""Timelines of all ranks, and the parts that need none."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
import torch.distributed as dist

import dense
import magi_attention
from magi_attention import api
from magi_attention.compat.keys.lookup import runtime_of
from magi_attention.tracing.clock import offsets_of
from magi_attention.tracing.events import timeline
from magi_attention.tracing.kernels import KernelProfile, kernels_of, launched_by
from pipeline_cases import Case, make_key, make_tensors
from ranks import refuses


def step(key, tensors) -> None:
    """One forward and backward."""
    local = [api.dispatch(tensor, key).requires_grad_() for tensor in tensors]
    out, _ = api.calc_attn(*local, key)
    out.sum().backward()


def attended(group, path: str, degree: int | None, is_bound_inside: bool) -> tuple[dict, dict]:
    """Traces one step; the plan's JSON and the trace."""
    rows = 128
    case = Case(rows=rows, heads=(4, 2), degree=degree)
    mask, (q, k, v, *_) = dense.masks(rows)["causal"], make_tensors(case)
    inputs = [t.to(torch.get_default_device()) for t in (q, k, v)]
    if torch.get_default_device().type == "cuda":
        inputs = [t.to(torch.bfloat16) for t in inputs]
    if not is_bound_inside:
        step(make_key(mask, case, group), inputs)
    with magi_attention.trace(path, group):
        key = make_key(mask, case, group)
        step(key, inputs)
    step(key, inputs)  # not in the file
    plan = json.loads(runtime_of(key).plan.to_json())
    api.clear_cache(group)
    dist.barrier(group)
    with open(path, encoding="utf-8") as file:
        return plan, json.load(file)


def refused(group, folder: str) -> None:
    """Nothing inside, a trace in a trace, and an error inside, which is left as it is."""
    path = f"{folder}/none.json"

    def empty():
        with magi_attention.trace(path, group):
            pass

    def nested():
        with magi_attention.trace(path, group):
            empty()

    def broken():
        with magi_attention.trace(path, group):
            raise KeyError("of the program")

    refuses(empty, ValueError, "nothing was traced")
    refuses(nested, RuntimeError, "a trace is being taken")
    refuses(broken, KeyError, "of the program")
    refuses(empty, ValueError, "nothing was traced")  # and no trace is left on


SIZE = 2


def spans_of(document: dict, rank: int, kinds: tuple[str, ...]) -> list[dict]:
    return [
        event for event in document["traceEvents"]
        if event["ph"] == "X" and event["pid"] == rank and event["cat"] in kinds
    ]  # fmt: skip


def first_begin(document: dict, name: str) -> float:
    """When a pass begins on the first rank: with a kernel, where there are any."""
    of_pass = [
        event for event in document["traceEvents"]
        if event["ph"] == "X" and event["args"].get("pass") == name
    ]  # fmt: skip
    kernels = [event["ts"] for event in of_pass if event["cat"] == "kernel"]
    return min(kernels or [event["ts"] for event in of_pass if event["cat"] == "pass"])


def check_rank(document: dict, plan: dict, rank: int) -> None:
    """Every step of the plan once, inside its pass, and once as predicted."""
    rows = spans_of(document, rank, ("pass", "exchange", "attend", "await"))
    passes = [span for span in rows if span["cat"] == "pass"]
    assert [span["name"] for span in passes] == ["forward", "backward"]
    for whole in passes:
        name = whole["name"]
        steps = plan["ranks"][rank][name]
        inside = [s for s in rows if s["args"]["pass"] == name and s is not whole]
        for span in inside:
            assert whole["ts"] <= span["ts"]
            assert span["ts"] + span["dur"] <= whole["ts"] + whole["dur"] + 1e-3
        noted = [s for s in inside if s["cat"] != "await"]
        assert [s["args"]["step"] for s in noted] == list(range(len(steps)))
        assert [s["cat"] for s in noted] == [("exchange", "attend")[step[0]] for step in steps]
        waits = Counter(s["args"]["step"] for s in inside if s["cat"] == "await")
        assert waits == Counter(i for i, step in enumerate(steps) if step[0] == 0)
        predicted = spans_of(document, rank, ("predicted",))
        predicted = [s for s in predicted if s["args"]["pass"] == name]
        assert sorted(s["args"]["step"] for s in predicted) == list(range(len(steps)))
        begin = min(span["ts"] for span in predicted)
        assert abs(begin - first_begin(document, name)) < 2e-3


def check_nesting(document: dict) -> None:
    """Times of a row never go back, and its spans hold each other or are apart."""
    open_until: dict[tuple, list[float]] = {}
    last: dict[tuple, float] = {}
    for event in document["traceEvents"]:
        if event["ph"] != "X":
            continue
        row = event["pid"], event["tid"]
        assert event["ts"] >= last.get(row, 0.0) and event["dur"] >= 0.0
        last[row] = event["ts"]
        stack, end = open_until.setdefault(row, []), event["ts"] + event["dur"]
        while stack and stack[-1] <= event["ts"] + 1e-3:
            stack.pop()
        assert not stack or end <= stack[-1] + 1e-3
        stack.append(end)


@pytest.mark.parametrize(
    "degree, is_bound_inside", [(0, True), (1, False), (2, True), (None, False)]
)
def test_a_step_of_all_ranks(ranks, tmp_path, degree, is_bound_inside):
    path = str(tmp_path / "step.json")
    found = ranks.run(SIZE, attended, path, degree, is_bound_inside)
    plan, document = found[0]
    assert document == found[1][1] and plan == found[1][0]
    assert document["otherData"]["ranks"] == SIZE
    assert document["otherData"]["clock_offsets_ns"] == [0, 0]  # of one host
    named = {
        (event["pid"], event["args"]["name"])
        for event in document["traceEvents"] if event["name"] == "process_name"
    }  # fmt: skip
    assert named == {(0, "rank 0"), (1, "rank 1")}
    for rank in range(SIZE):
        check_rank(document, plan, rank)
    check_nesting(document)


def test_refusals(ranks, tmp_path):
    ranks.run(SIZE, refused, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_clocks_of_other_hosts_are_brought_together():
    everyone = [
        ("a", [10, 20, 31]),
        ("a", [11, 22, 30]),
        ("b", [1010, 1020, 1030]),
        ("", [0, 9, 0]),
    ]
    assert offsets_of(everyone) == [0, 0, -1000, 11]
    record = {"passes": [], "kernels": [
        {"name": "k", "stream": 7, "begin": 2000, "end": 3000, "pass": None, "step": None}
    ]}  # fmt: skip
    other = {"passes": [], "kernels": [{**record["kernels"][0], "begin": 1500, "end": 1600}]}
    document = timeline([record, other], [0, 1000])
    times = {event["pid"]: event["ts"] for event in document["traceEvents"] if event["ph"] == "X"}
    assert times == {0: 0.0, 1: 0.5}


# Of an exported profile of one GPU; its clock is 1,000,000 us ahead.
PROFILE = [
    {"ph": "X", "cat": "user_annotation", "name": "magi_attention.trace:2000", "ts": 1000005.0,
     "dur": 1.0, "args": {}},
    {"ph": "X", "cat": "user_annotation", "name": "magi_attention.trace:9000", "ts": 1000009.0,
     "dur": 1.0, "args": {}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1000021.0, "dur": 2.0,
     "args": {"correlation": 5}},
    {"ph": "X", "cat": "kernel", "name": "push_kernel", "ts": 1000040.5, "dur": 3.25,
     "args": {"correlation": 5, "stream": 7}},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 1000030.0, "dur": 1.0,
     "args": {"correlation": 6, "stream": 9}},
    {"ph": "f", "cat": "ac2g", "name": "ac2g", "ts": 1000040.5, "id": 5},
]  # fmt: skip


def a_pass() -> dict:
    return {
        "plan": "00", "pass": "forward", "call": 0, "begin": 20000, "end": 25000, "waits": [],
        "steps": [{"name": "k, v to segment 1", "kind": "exchange", "step": 0, "begin": 20500,
                   "end": 22000, "predicted": (0, 1000)}],
    }  # fmt: skip


def test_kernels_are_on_the_clock_of_the_host():
    copy, push = kernels_of(PROFILE)
    assert copy == {
        "name": "Memcpy DtoD", "stream": 9, "begin": 30000, "end": 31000, "launched": None
    }  # fmt: skip
    assert push["begin"] == 40500 and push["end"] == 43750 and push["launched"] == 21000
    with pytest.raises(RuntimeError, match="marks"):
        kernels_of(PROFILE[2:])


def test_kernels_belong_to_the_step_that_launched_them():
    passes = [a_pass()]
    copy, push = launched_by(kernels_of(PROFILE), passes)
    assert (copy["pass"], copy["step"]) == (None, None)
    assert (push["pass"], push["step"]) == (0, "k, v to segment 1")
    document = timeline([{"passes": passes, "kernels": [copy, push]}], [0])
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    (kernel,) = [span for span in spans if span["name"] == "push_kernel"]
    (predicted,) = [span for span in spans if span["cat"] == "predicted"]
    assert kernel["args"]["launched by"] == "k, v to segment 1"
    assert kernel["ts"] == predicted["ts"], "predicted from the first kernel on"
    json.dumps(document)


def test_a_profile_without_a_gpu_holds_no_kernels():
    with KernelProfile() as profile:
        pass
    assert profile.kernels == []
