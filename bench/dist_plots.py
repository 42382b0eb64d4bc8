#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the cells of bench/dist_attention.py: dist_plots.py FOLDER CELLS...

One SVG for each number of ranks, tokens per rank and direction: by mask, the share of our kernel
alone that each side reaches. Cells of later files replace those of earlier ones.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import bar_chart

DIRECTIONS = ("forward", "backward")
# Sides that beat the kernel alone end at 1.1.
SHARES = bar_chart.Scale((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), 1.1, 1)


def draw(cells: list[dict], folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the pictures and gives their paths."""
    groups: dict[tuple[int, int], dict[str, dict]] = {}
    for cell in cells:
        groups.setdefault((cell["ranks"], cell["tokens"]), {})[cell["mask"]] = cell
    paths = []
    for (ranks, tokens), by_mask in sorted(groups.items()):
        for direction in DIRECTIONS:
            path = folder / f"dist{ranks}-{tokens}-{direction}.svg"
            title = f"{direction}, {ranks} ranks, {tokens:,} tokens each: share of the kernel alone"
            path.write_text(picture(title, by_mask, direction), encoding="utf-8")
            paths.append(path)
    return paths


def picture(title: str, by_mask: dict[str, dict], direction: str) -> str:
    """SVG text: a group of bars per mask, a bar per side."""
    groups = {
        mask: {
            name: side[direction]["share"]
            for name, side in cell["sides"].items()
            if name != "alone" and side is not None
        }
        for mask, cell in by_mask.items()
    }
    return bar_chart.picture(title, groups, SHARES)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("cells", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    lines = [line for path in arguments.cells for line in path.read_text().splitlines() if line]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for path in draw([json.loads(line) for line in lines], arguments.folder):
        print(path)


if __name__ == "__main__":
    main()
