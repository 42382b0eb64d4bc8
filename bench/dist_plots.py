#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the cells of bench/dist_attention.py: dist_plots.py FOLDER CELLS...
or the figures that were recorded of them: dist_plots.py FOLDER --rows ROWS

Of cells one SVG for each number of ranks, tokens per rank and direction: by mask, the share of our
kernel alone that each side reaches. Cells of later files replace those of earlier ones. Of recorded
rows, distN-shares.svg: ours by mask in both directions, and Ulysses where it was recorded beside.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re

import bar_chart

DIRECTIONS = ("forward", "backward")
SIDES = [f"{side}, {direction}" for side in ("magi", "Ulysses") for direction in DIRECTIONS]
ROW = re.compile(r"dist(\d+)\.(\w+)\.(forward|backward)\.(\w+)")
# Sides that beat the kernel alone end at 1.1.
SHARES = bar_chart.Scale((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), 1.1, 1, "share", 2)


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
        mask.replace("_", " "): {
            name: side[direction]["share"]
            for name, side in cell["sides"].items()
            if name != "alone" and side is not None
        }
        for mask, cell in by_mask.items()
    }
    return bar_chart.picture(title, groups, SHARES)


def recorded(rows: list[dict]) -> dict[int, dict[str, dict[str, float]]]:
    """By number of ranks, mask and tokens: the shares that rows named as distributed.figures names
    them hold. A share of Ulysses is ours over the ratio of both.
    """
    values = {row["name"]: row["value"] for row in rows}
    found: dict[int, dict[str, dict[str, float]]] = {}
    for name, value in values.items():
        match = ROW.fullmatch(name)
        if not match:
            continue
        ranks, mask, direction, tokens = match.groups()
        label = f"{mask.replace('_', ' ')} {tokens}"
        shares = found.setdefault(int(ranks), {}).setdefault(label, {})
        shares[f"magi, {direction}"] = value
        ratio = values.get(f"dist{ranks}.{mask}.over_ulysses.{direction}.{tokens}")
        if ratio is not None:
            shares[f"Ulysses, {direction}"] = value / ratio
    return found


def draw_recorded(rows: list[dict], folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes a picture for each number of ranks and gives their paths."""
    paths = []
    for ranks, groups in sorted(recorded(rows).items()):
        machine = next(row["machine"] for row in rows if row["name"].startswith(f"dist{ranks}."))
        ordered = {
            mask: {side: groups[mask][side] for side in SIDES if side in groups[mask]}
            for mask in sorted(groups, key=lambda mask: -len(groups[mask]))
        }
        path = folder / f"dist{ranks}-shares.svg"
        title = f"{machine}: share of the kernel alone"
        path.write_text(bar_chart.picture(title, ordered, SHARES), encoding="utf-8")
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("cells", type=pathlib.Path, nargs="*")
    parser.add_argument("--rows", type=pathlib.Path, help="recorded figures, in place of cells")
    arguments = parser.parse_args()
    if bool(arguments.cells) == bool(arguments.rows):
        parser.error("either CELLS or --rows")
    lines = [line for path in arguments.cells for line in path.read_text().splitlines() if line]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.rows:
        paths = draw_recorded(json.loads(arguments.rows.read_text("utf-8")), arguments.folder)
    else:
        paths = draw([json.loads(line) for line in lines], arguments.folder)
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
