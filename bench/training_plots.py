#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws where the time of training steps goes: training_plots.py CELLS --out SVG

CELLS is what bench/training.py --trace --out wrote. One bar for each case, side and policy:
milliseconds that a GPU takes for 1,000 of its tokens, by part of the step.
"""

from __future__ import annotations

import argparse
import html
import json
import pathlib

import bar_chart
from distributed.step_parts import IDLE, OTHERS

# From the left; each takes the next colour of bar_chart.
PARTS = ("products", "attention", OTHERS, "optimizer", "copies", "communication", IDLE)
NAMES = {
    "ours": "magi",
    "ulysses": "Ulysses",
    "torch_cp": "context_parallel",
    "alone": "one GPU alone",
}
POLICIES = {
    "whole": "all recomputed",
    "saved": "attention saved",
    "offloaded": "attention and inputs offloaded",
}
LEFT, WIDTH, LINE, BAR, TOP = 230, 640, 20, 14, 64


def bars_of(cells: dict[str, dict]) -> dict[str, dict[str, dict[str, float]]]:
    """Of each case, by side and policy: milliseconds by part, of 1,000 tokens of a GPU. Only of
    sides that a step was traced of.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for case, cell in cells.items():
        for label, side in cell.get("sides", {}).items():
            if "parts_ms" not in side:
                continue
            name, policy = label.split(".")
            whole = sum(side["parts_ms"].values())
            of_tokens = 1e6 / side["tokens_per_second"]
            parts = {part: side["parts_ms"][part] / whole * of_tokens for part in PARTS}
            found.setdefault(case, {})[f"{NAMES[name]}, {POLICIES[policy]}"] = parts
    return found


def picture(title: str, cases: dict[str, dict[str, dict[str, float]]]) -> str:
    """SVG text: below each other the cases, and the bars of each, on one scale for each case."""
    colours = dict(zip(PARTS, bar_chart.COLOURS))
    parts = [f'<text x="10" y="20" font-size="14">{html.escape(title)}</text>']
    parts.append(f'<g transform="translate({10 - bar_chart.LEFT} 0)">')
    parts += [*bar_chart.legend(colours), "</g>"]
    y = TOP
    for case, sides in cases.items():
        parts.append(f'<text x="10" y="{y + 11}" font-weight="bold">{html.escape(case)}</text>')
        y += LINE
        scale = WIDTH / max(sum(values.values()) for values in sides.values())
        for side, values in sides.items():
            parts += bar(side, values, y, scale, colours)
            y += LINE
        y += BAR
    width = LEFT + WIDTH + 60
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" '
        f'viewBox="0 0 {width} {y}" font-family="sans-serif" font-size="11">'
        '<rect width="100%" height="100%" fill="#fff"/>' + "".join(parts) + "</svg>\n"
    )


def bar(
    side: str, values: dict[str, float], y: int, scale: float, colours: dict[str, str]
) -> list[str]:
    parts, x = [f'<text x="10" y="{y + 11}">{html.escape(side)}</text>'], float(LEFT)
    for name, value in values.items():
        width = value * scale
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" '
            f'fill="{colours[name]}"><title>{html.escape(name)} {value:.2f} ms</title></rect>'
        )
        x += width
    parts.append(f'<text x="{x + 6:.1f}" y="{y + 11}">{sum(values.values()):.1f} ms</text>')
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    found = json.loads(arguments.cells.read_text(encoding="utf-8"))
    cases = bars_of(found["cells"])
    if not cases:
        raise SystemExit(f"{arguments.cells} has no traced step; allowed: cells of --trace")
    title = f"{found['about']['machine']}: time for 1,000 tokens of a GPU, by part of a step"
    arguments.out.write_text(picture(title, cases), encoding="utf-8")
    print(arguments.out)


if __name__ == "__main__":
    main()
