#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws one step of all ranks from a trace: dist_timeline.py TRACE --out SVG

TRACE is a file of magi_attention.trace, as bench/dist_attention.py --trace writes them. One panel
for the forward and one for the backward; for each rank lanes of kernels that move rows, of
attention kernels and of others, white where nothing ran. Without a GPU: the host's exchanges with
their waits, and its attends. Hatched below: the plan's steps as its cost model predicts them.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import pathlib
import re

PASSES = ("forward", "backward")
COLOURS = {"exchange": "#e69f00", "attention": "#0072b2", "other": "#7f8c8d"}
LANES = {"exchange": "rows move", "attention": "attention", "other": "other kernels"}
# Kernels by name: who moves rows, and who attends. The rest prepares and converts.
MOVES = re.compile(
    r"push_kernel|begin_pass_kernel|await_kernel|_rows_kernel|nccl|Memcpy PtoP|SendRecv"
)
ATTENDS = re.compile(r"\b(forward|backward)_kernel\b|_(forward|backward)_kernel\b")
LEFT, WIDTH, LANE, BAR, TOP = 128, 900, 16, 12, 64
TICKS = 8


def read(path: pathlib.Path) -> list[dict]:
    """The spans of a trace; SystemExit for another file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    head = document.get("otherData", {}) if isinstance(document, dict) else {}
    if head.get("format") != "magi trace":
        raise SystemExit(f"{path} is no trace; allowed: a file of magi_attention.trace")
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def kind_of(kernel: str) -> str:
    """The lane of a kernel."""
    if MOVES.search(kernel):
        return "exchange"
    return "attention" if ATTENDS.search(kernel) else "other"


def lanes_of(spans: list[dict], rank: int, name: str) -> dict[str, list[dict]]:
    """By lane: the first pass of this name on a rank, and what is predicted for it."""
    own = [s for s in spans if s["pid"] == rank and s["args"].get("pass") == name]
    whole = next((s for s in own if s["cat"] == "pass"), None)
    lanes: dict[str, list[dict]] = {kind: [] for kind in (*LANES, "predicted")}
    if whole is None:
        return lanes
    plan, call = whole["args"]["plan"], whole["args"]["call"]
    own = [s for s in own if (s["args"]["plan"], s["args"]["call"]) == (plan, call)]
    lanes["predicted"] = [s for s in own if s["cat"] == "predicted"]
    kernels = [s for s in own if s["cat"] == "kernel"]
    if kernels:
        for kernel in kernels:
            lanes[kind_of(kernel["name"])].append(kernel)
        return lanes
    for span in own:
        if span["cat"] in ("exchange", "await", "attend"):
            lanes["attention" if span["cat"] == "attend" else "exchange"].append(span)
    return lanes


def busy(spans: list[dict]) -> float:
    """Time that is covered by at least one span. [us]"""
    total, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda s: s["ts"]):
        last = span["ts"] + span["dur"]
        total += max(0.0, last - max(span["ts"], end))
        end = max(end, last)
    return total


def bar(span: dict, y: float, height: float, fill: str, at) -> str:
    x, width = at(span["ts"]), max(at(span["ts"] + span["dur"]) - at(span["ts"]), 0.5)
    title = f"{html.escape(span['name'])}: {span['dur']:.1f} us"
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{fill}">'
        f"<title>{title}</title></rect>"
    )


def panel(spans: list[dict], name: str, top: float) -> tuple[list[str], float]:
    """SVG parts of a pass, and where it ends."""
    ranks = sorted({span["pid"] for span in spans})
    by_rank = {rank: lanes_of(spans, rank, name) for rank in ranks}
    drawn = [s for lanes in by_rank.values() for lane in lanes.values() for s in lane]
    if not drawn:
        return [], top
    start = min(span["ts"] for span in drawn)
    length = max(max(span["ts"] + span["dur"] for span in drawn) - start, 1e-3)

    def at(time: float) -> float:
        return LEFT + (time - start) / length * WIDTH

    parts = [f'<text x="8" y="{top + 12}" font-size="13">{name}, {length:.1f} us</text>']
    y = top + 24
    for rank, lanes in by_rank.items():
        kinds = [kind for kind in LANES if lanes[kind] or kind != "other"]
        parts.append(f'<text x="8" y="{y + BAR}" font-weight="bold">rank {rank}</text>')
        for kind in kinds:
            parts.append(f'<text x="{LEFT - 6}" y="{y + BAR - 2}" text-anchor="end">'
                         f"{LANES[kind]}</text>")  # fmt: skip
            parts += [bar(span, y, BAR, COLOURS[kind], at) for span in lanes[kind]]
            share = f"{busy(lanes[kind]):.1f} us"
            parts.append(f'<text x="{LEFT + WIDTH + 6}" y="{y + BAR - 2}">{share}</text>')
            y += LANE
        for span in lanes["predicted"]:
            fill = "url(#attends)" if span["args"]["kind"] == "attend" else "url(#moves)"
            parts.append(bar(span, y, 5, fill, at))
        parts.append(f'<text x="{LEFT - 6}" y="{y + 7}" text-anchor="end">predicted</text>')
        y += LANE
    grid = []
    for time in ticks(length):
        x = LEFT + WIDTH * time / length
        grid.append(f'<path d="M{x:.1f} {top + 20}V{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 12}" text-anchor="middle">{time:g} us</text>')
    return grid + parts, y + 28


def ticks(length: float) -> list[float]:
    """Round times from 0 on, TICKS at most beside it."""
    power = 10.0 ** math.floor(math.log10(length / TICKS))
    step = next(power * lead for lead in (1, 2, 5, 10) if power * lead * TICKS >= length)
    return [i * step for i in range(int(length / step) + 1)]


def picture(spans: list[dict], title: str) -> str:
    """SVG text of both passes."""
    parts, y = [], float(TOP)
    for name in PASSES:
        more, y = panel(spans, name, y)
        parts += more
    x, legend = LEFT, []
    for kind, colour in COLOURS.items():
        legend.append(f'<rect x="{x}" y="34" width="10" height="10" fill="{colour}"/>'
                      f'<text x="{x + 14}" y="43">{LANES[kind]}</text>')  # fmt: skip
        x += 110
    hatches = "".join(
        f'<pattern id="{name}" width="4" height="4" patternUnits="userSpaceOnUse">'
        f'<path d="M0 4L4 0" stroke="{COLOURS[kind]}"/></pattern>'
        for name, kind in (("moves", "exchange"), ("attends", "attention"))
    )
    width = LEFT + WIDTH + 90
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y:.0f}" '
        f'font-family="sans-serif" font-size="11"><defs>{hatches}</defs>'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="8" y="20" font-size="14">{html.escape(title)}</text>'
        + "".join((*legend, *parts))
        + "</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="SVG to write")
    parser.add_argument("--title", help="default: the trace's name")
    arguments = parser.parse_args()
    svg = picture(read(arguments.trace), arguments.title or arguments.trace.stem)
    arguments.out.write_text(svg, encoding="utf-8")
    print(arguments.out)


if __name__ == "__main__":
    main()
