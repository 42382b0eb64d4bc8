# SPDX-License-Identifier: Apache-2.0
"""Cells that an earlier run has measured, and how long one takes: what a run in parts needs."""

from __future__ import annotations

import json
import pathlib

from distributed.timing import CALLS

# Attention's rate that predictions count with, of one device: below what is measured.
_FLOPS_PER_SECOND = {"cuda": 4.5e14, "cpu": 5e9}
_PASSES = 3.5  # a forward and a backward, in forwards
# Times that a side runs beside its rounds: checked, a warm row, and rows without communication.
_MORE_RUNS = 1 + 5 * CALLS
_SECONDS_PER_SIDE, _SECONDS_PER_CELL = 1.0, 4.0  # tensors, plans, connections, compilers


def read_cells(path: pathlib.Path) -> list[dict]:
    """The cells of a file of JSON lines, none where there is no file. What a run that was killed
    left of a line is passed over.
    """
    if not path.exists():
        return []
    cells = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            cells.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return cells


def write_cells(path: pathlib.Path, cells: list[dict]) -> None:
    """All cells, in one step: whoever reads the file finds the old cells or the new ones."""
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(cell) + "\n" for cell in cells), encoding="utf-8")
    partial.replace(path)


def is_measured(cell: dict, mask: str, tokens: int, ranks: int, sides) -> bool:
    """Whether a cell is that of these arguments and timed all these sides."""
    return (cell["mask"], cell["tokens"], cell["ranks"]) == (mask, tokens, ranks) and set(
        sides
    ) <= set(cell["sides"])


def without(cells: list[dict], mask: str, tokens: int, ranks: int) -> list[dict]:
    """The cells of other arguments."""
    wanted = (mask, tokens, ranks)
    return [cell for cell in cells if (cell["mask"], cell["tokens"], cell["ranks"]) != wanted]


def cell_seconds(problem, ranks: int, sides: int, options) -> float:
    """What a cell is predicted to take with so many sides besides the kernel alone; problem: has
    flops; options: device, seconds, rounds.
    """
    alone = problem.flops * _PASSES / _FLOPS_PER_SECOND[options.device.type]
    once = alone * (1 + sides / ranks / 0.7)  # others than the kernel alone reach 0.7 of its rate
    rounds = max(options.seconds, options.rounds * CALLS * once)
    return rounds + _MORE_RUNS * once + (1 + sides) * _SECONDS_PER_SIDE + _SECONDS_PER_CELL
