# SPDX-License-Identifier: Apache-2.0
"""Trace events of Chrome's format from what the ranks noted."""

from __future__ import annotations

from typing import Any

_HOST, _FIRST_STREAM, _PREDICTED = 1, 10, 10_000_000  # rows of a rank, streams in between
_PREDICTED_ROWS = {"exchange": _PREDICTED, "attend": _PREDICTED + 1}


def timeline(everyone: list[dict], offsets: list[int]) -> dict[str, Any]:
    """The JSON document; everyone: passes and kernels by rank, whose clocks the offsets bring to
    rank 0's. [ns] Times count from the first event.
    """
    events = []
    for rank, (record, offset) in enumerate(zip(everyone, offsets)):
        passes = record["passes"]
        nested = [part for one in passes for part in (*one["steps"], *one["waits"])]
        for span in (*passes, *nested, *record["kernels"]):
            span["begin"] += offset
            span["end"] += offset
        events += _names(rank, record)
    begins = _pass_begins(everyone)
    spans = []
    for rank, record in enumerate(everyone):
        for one in record["passes"]:
            spans += _host_spans(rank, one)
            spans += _predicted_spans(rank, one, begins[_pass_name(one)])
        spans += _kernel_spans(rank, record)
    start = min((span["begin"] for span in spans), default=0)
    # Of spans that begin together the longest, which holds the others, comes first.
    spans.sort(key=lambda span: (span["rank"], span["row"], span["begin"], -span["end"]))
    events += [_event(span, start) for span in spans]
    other = dict(format="magi trace", version=1, ranks=len(everyone), clock_offsets_ns=offsets)
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _pass_name(one: dict) -> tuple:
    """Equal on all ranks of one pass."""
    return tuple(_whose(one).values())


def _whose(one: dict) -> dict[str, Any]:
    return {name: one[name] for name in ("plan", "pass", "call")}


def _pass_begins(everyone: list[dict]) -> dict[tuple, int]:
    """Returns when each pass begins on the first rank: with its first kernel where it has any."""
    begins: dict[tuple, int] = {}
    for record in everyone:
        for place, one in enumerate(record["passes"]):
            first = [k["begin"] for k in record["kernels"] if k["pass"] == place]
            begin = min(first, default=one["begin"])
            name = _pass_name(one)
            begins[name] = min(begin, begins.get(name, begin))
    return begins


def _names(rank: int, record: dict) -> list[dict]:
    rows = {_HOST: "host"}
    for stream in sorted({kernel["stream"] for kernel in record["kernels"]}):
        rows[_FIRST_STREAM + stream] = f"stream {stream}"
    rows |= {row: f"predicted {kind}" for kind, row in _PREDICTED_ROWS.items()}
    named = [("process_name", 0, {"name": f"rank {rank}"})]
    named.append(("process_sort_index", 0, {"sort_index": rank}))
    for row, name in rows.items():
        named.append(("thread_name", row, {"name": name}))
        named.append(("thread_sort_index", row, {"sort_index": row}))
    return [
        {"ph": "M", "name": name, "pid": rank, "tid": row, "args": arguments}
        for name, row, arguments in named
    ]


def _host_spans(rank: int, one: dict) -> list[dict]:
    place, whose = {"rank": rank, "row": _HOST}, _whose(one)
    named = [(step["kind"], step["name"], step) for step in one["steps"]]
    named += [("await", f"await {wait['name']}", wait) for wait in one["waits"]]
    spans = [{**place, "cat": "pass", "name": one["pass"], **_times(one), "args": whose}]
    for kind, name, part in named:
        arguments = {**whose, "step": part["step"]}
        spans.append({**place, "cat": kind, "name": name, **_times(part), "args": arguments})
    return spans


def _predicted_spans(rank: int, one: dict, begin: int) -> list[dict]:
    spans = []
    for step in one["steps"]:
        first, last = step["predicted"]
        spans.append({
            "rank": rank, "row": _PREDICTED_ROWS[step["kind"]], "cat": "predicted",
            "name": step["name"], "begin": begin + first, "end": begin + last,
            "args": {**_whose(one), "step": step["step"], "kind": step["kind"]},
        })  # fmt: skip
    return spans


def _kernel_spans(rank: int, record: dict) -> list[dict]:
    spans = []
    for kernel in record["kernels"]:
        arguments = {}
        if kernel["pass"] is not None:
            one = record["passes"][kernel["pass"]]
            arguments = {**_whose(one), "launched by": kernel["step"]}
        spans.append({
            "rank": rank, "row": _FIRST_STREAM + kernel["stream"], "cat": "kernel",
            "name": kernel["name"], **_times(kernel), "args": arguments,
        })  # fmt: skip
    return spans


def _times(span: dict) -> dict[str, int]:
    return {"begin": span["begin"], "end": span["end"]}


def _event(span: dict, start: int) -> dict[str, Any]:
    return {
        "ph": "X", "cat": span["cat"], "name": span["name"], "pid": span["rank"],
        "tid": span["row"], "ts": (span["begin"] - start) / 1e3,
        "dur": (span["end"] - span["begin"]) / 1e3, "args": span["args"],
    }  # fmt: skip
