# SPDX-License-Identifier: Apache-2.0
"""Loss curves as SVG: the losses, and below them how far each curve is from the first one."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

_WIDTH, _PANEL, _LEFT, _TOP, _GAP, _LEGEND = 960, 250, 64, 44, 56, 250
_COLORS = ("#4053d3", "#ddb310", "#b51d14", "#00beff", "#fb49b0", "#00b25d", "#8c6bb1", "#e08214",
           "#5f6a72", "#1b9e77", "#a6761d", "#666666")  # fmt: skip
_FLOOR = 1e-9  # distances below are drawn here


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"


def _round(least: float) -> int:
    """1, 2 or 5 times a power of ten, `least` at least."""
    power = 10 ** max(0, math.floor(math.log10(least)))
    return next(power * lead for lead in (1, 2, 5, 10) if power * lead >= least)


class _Panel:
    """Axes with the origin of SVG; y values are given in the panel's scale."""

    def __init__(self, top: float, steps: int, low: float, high: float) -> None:
        self.top, self.steps, self.low, self.high = top, steps, low, high
        self.right = _WIDTH - _LEGEND

    def x(self, step: int) -> float:
        return _LEFT + (self.right - _LEFT) * step / max(1, self.steps - 1)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.top + _PANEL * (1 - min(1.0, max(0.0, share)))

    def axes(self, title: str, ticks: list[tuple[float, str]]) -> list[str]:
        parts = [_text(_LEFT, self.top - 10, title, size=14)]
        for value, label in ticks:
            y = self.y(value)
            parts.append(
                f'<line x1="{_LEFT}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6e8"/>'
            )
            parts.append(_text(_LEFT - 8, y + 4, label, "end"))
        bottom = self.top + _PANEL
        for step in range(0, self.steps, _round(self.steps / 8)):
            parts.append(_text(self.x(step), bottom + 18, str(step), "middle"))
        parts.append(_text(self.right, bottom + 34, "step", "end"))
        return parts

    def curve(self, values: list[float], color: str, is_dashed: bool) -> str:
        points = " ".join(f"{self.x(i):.1f},{self.y(v):.1f}" for i, v in enumerate(values))
        dash = ' stroke-dasharray="5 4"' if is_dashed else ""
        line = f'fill="none" stroke="{color}" stroke-width="1.6"{dash}'
        return f'<polyline points="{points}" {line}/>'


def draw(curves: dict[str, list[float]], dashed: set[str], noise: float, title: str) -> str:
    """SVG of curves by name; the first is the one that others are held against. `noise` is drawn as
    a line in the lower panel.
    """
    first = next(iter(curves.values()))
    steps = len(first)
    every = [value for curve in curves.values() for value in curve]
    losses = _Panel(_TOP, steps, math.floor(min(every)), math.ceil(max(every)))
    low, high = math.floor(math.log10(_FLOOR)), 0
    apart = _Panel(_TOP + _PANEL + _GAP + 22, steps, low, high)
    ticks = range(int(losses.low), int(losses.high) + 1)
    parts = losses.axes(title, [(value, str(value)) for value in ticks])
    name = next(iter(curves))
    distance = f"distance from {name}, in the same unit"
    parts += apart.axes(distance, [(e, f"1e{e}") for e in range(low, high + 1)])
    level = apart.y(math.log10(max(noise, _FLOOR)))
    parts.append(
        f'<line x1="{_LEFT}" x2="{apart.right}" y1="{level:.1f}" y2="{level:.1f}" '
        'stroke="#333" stroke-width="1.2"/>'
    )
    parts.append(_text(apart.right + 12, level + 4, "noise between runs of SDPA"))
    for index, (name, curve) in enumerate(curves.items()):
        color = _COLORS[index % len(_COLORS)]
        parts.append(losses.curve(curve, color, name in dashed))
        if index:
            logs = [math.log10(max(abs(a - b), _FLOOR)) for a, b in zip(curve, first)]
            parts.append(apart.curve(logs, color, name in dashed))
        y = _TOP + 8 + 19 * index
        x = losses.right + 12
        dash = ' stroke-dasharray="5 4"' if name in dashed else ""
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="{color}" '
                     f'stroke-width="3"{dash}/>')  # fmt: skip
        parts.append(_text(x + 28, y + 4, name))
    height = _TOP + 2 * _PANEL + _GAP + 22 + 48
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" fill="#22282c">\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
