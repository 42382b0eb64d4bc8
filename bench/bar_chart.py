# SPDX-License-Identifier: Apache-2.0
"""Bar charts as SVG text."""

from __future__ import annotations

import html
import math
from typing import NamedTuple

COLOURS = ("#1b6ca8", "#5aa9e6", "#94c9a9", "#f2b134", "#e4572e", "#a23b72", "#6b705c", "#c9ada7",
           "#3d405b", "#81b29a")  # fmt: skip
BAR, GAP, HEIGHT, LEFT, TOP = 12, 26, 240, 58, 64
ROW = HEIGHT + 40  # of one row of groups, from its top to that of the next
PAGE = 960  # where the next group begins another row


class Scale(NamedTuple):
    """The axis of values. Higher bars end at `most`. values: decimals of the numbers over bars."""

    ticks: tuple[float, ...]
    most: float
    decimals: int
    unit: str
    values: int

    def height_of(self, value: float) -> float:
        """The y of a value."""
        return round(TOP + HEIGHT * (1 - min(value, self.most) / self.most), 1)


def picture(title: str, groups: dict[str, dict[str, float]], scale: Scale) -> str:
    """SVG text: a group of bars per key of `groups`, a bar per name; a name may lack in a group. As
    many groups side by side as a page has room for, the others in rows below.
    """
    names = list(dict.fromkeys(name for values in groups.values() for name in values))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    group = max(BAR * len(names) + GAP, 12 + 6 * max(map(len, groups)))
    most = max(1, (PAGE - LEFT - 10) // group)
    num_rows = math.ceil(len(groups) / most)
    in_row = math.ceil(len(groups) / num_rows)
    width = max(LEFT + group * in_row + 10, 640)
    parts = [f'<text x="{LEFT}" y="20" font-size="14">{html.escape(title)}</text>']
    parts += legend(colours)
    for row in range(num_rows):
        some = dict(list(groups.items())[row * in_row : (row + 1) * in_row])
        parts.append(f'<g transform="translate(0 {row * ROW})">')
        parts += [*axis(scale, width), *bars(some, group, colours, scale), "</g>"]
    height = TOP + ROW * num_rows
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
        '<rect width="100%" height="100%" fill="#fff"/>' + "".join(parts) + "</svg>\n"
    )


def axis(scale: Scale, width: int) -> list[str]:
    parts = [f'<text x="{LEFT - 6}" y="{TOP - 2}" text-anchor="end">{scale.unit}</text>']
    for tick in scale.ticks:
        y = scale.height_of(tick)
        parts.append(
            f'<path d="M{LEFT} {y}H{width - 10}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{tick:.{scale.decimals}f}</text>'
        )
    return parts


def bars(
    groups: dict[str, dict[str, float]], group: int, colours: dict[str, str], scale: Scale
) -> list[str]:
    """The groups of a row, each `group` wide, with their labels."""
    parts = []
    for index, (label, values) in enumerate(groups.items()):
        middle = LEFT + group * index + group / 2
        x = middle - BAR * len(colours) / 2
        for place, name in enumerate(colours):
            if name in values:
                parts.append(bar(x + BAR * place, values[name], colours[name], name, scale))
        parts.append(
            f'<text x="{middle:g}" y="{TOP + HEIGHT + 16}" text-anchor="middle">'
            f"{html.escape(label)}</text>"
        )
    return parts


def bar(x: float, value: float, colour: str, name: str, scale: Scale) -> str:
    y = scale.height_of(value)
    return (
        f'<rect x="{x:g}" y="{y}" width="{BAR - 1}" height="{round(TOP + HEIGHT - y, 1)}" '
        f'fill="{colour}"><title>{html.escape(name)} {value:.3f}</title></rect>'
        f'<text transform="translate({x + BAR - 3:g} {y - 3}) rotate(-90)" font-size="9">'
        f"{value:.{scale.values}f}</text>"
    )


def legend(colours: dict[str, str]) -> list[str]:
    parts, x = [], LEFT
    for name, colour in colours.items():
        parts.append(
            f'<rect x="{x}" y="32" width="10" height="10" fill="{colour}"/>'
            f'<text x="{x + 14}" y="41">{html.escape(name)}</text>'
        )
        x += 30 + 7 * len(name)
    return parts
