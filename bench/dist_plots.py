#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the cells of bench/dist_attention.py: dist_plots.py FOLDER CELLS...

One SVG for each number of ranks, tokens per rank and direction: by mask, the share of our kernel
alone that each side reaches. Cells of later files replace those of earlier ones.
"""

from __future__ import annotations

import argparse
import html
import json
import pathlib

DIRECTIONS = ("forward", "backward")
COLOURS = ("#1b6ca8", "#5aa9e6", "#94c9a9", "#f2b134", "#e4572e", "#a23b72", "#6b705c", "#c9ada7",
           "#3d405b", "#81b29a")  # fmt: skip
BAR, GAP, HEIGHT, LEFT, TOP = 12, 26, 240, 44, 58
TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


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
    names = list(dict.fromkeys(n for cell in by_mask.values() for n in cell["sides"]))
    names = [name for name in names if name != "alone"]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    group = BAR * len(names) + GAP
    width = max(LEFT + group * len(by_mask) + 10, 640)
    parts = [f'<text x="{LEFT}" y="20" font-size="14">{html.escape(title)}</text>']
    parts += legend(colours)
    for tick in TICKS:
        y = height_of(tick)
        parts.append(
            f'<path d="M{LEFT} {y}H{width - 10}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{tick:.1f}</text>'
        )
    for index, (mask, cell) in enumerate(by_mask.items()):
        x = LEFT + GAP // 2 + group * index
        for place, name in enumerate(names):
            side = cell["sides"].get(name)
            if side is not None:
                parts.append(bar(x + BAR * place, side[direction]["share"], colours[name], name))
        middle = x + BAR * len(names) / 2
        parts.append(
            f'<text x="{middle:g}" y="{TOP + HEIGHT + 16}" text-anchor="middle">'
            f"{html.escape(mask)}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 28}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def height_of(share: float) -> float:
    """The y of a share; bars that beat the kernel alone end at 1.1."""
    return round(TOP + HEIGHT * (1 - min(share, 1.1) / 1.1), 1)


def bar(x: float, share: float, colour: str, name: str) -> str:
    y = height_of(share)
    return (
        f'<rect x="{x}" y="{y}" width="{BAR - 1}" height="{round(TOP + HEIGHT - y, 1)}" '
        f'fill="{colour}"><title>{html.escape(name)} {share:.3f}</title></rect>'
    )


def legend(colours: dict[str, str]) -> list[str]:
    parts, x = [], LEFT
    for name, colour in colours.items():
        parts.append(
            f'<rect x="{x}" y="32" width="10" height="10" fill="{colour}"/>'
            f'<text x="{x + 14}" y="41">{html.escape(name)}</text>'
        )
        x += 26 + 7 * len(name)
    return parts


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
