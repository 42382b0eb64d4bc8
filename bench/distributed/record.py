# SPDX-License-Identifier: Apache-2.0
"""Figures of a record's folder (bench/dist_record.py): from cells, host times, tests, faults and
trainings to the names that bench/musts.json asks for.
"""

from __future__ import annotations

import json

import simulate_error
from distributed import figures, kept
from distributed.cells import DIRECTIONS
from distributed.parts import ROOT, Setup, has_json

_ROWS = ("rows-8k", "rows-16k", "rows-32k")
_SMALL_RUNS = (1, 2, 4)
# Kinds of figures that are not of cells of rows. In front of a cell of rows other cells have made
# its windows, which memory counts; and Ulysses has other kernels in a part of its own.
_PART_OF_KIND = {
    "extra_memory": "memory", "qo": "queries", "qo_always": "queries", "over_ulysses": "ulysses",
}  # fmt: skip


def cells_of(setup: Setup, *parts: str) -> list[dict]:
    """The cells that these parts have written."""
    return [cell for name in parts for cell in kept.read_cells(setup.out / f"{name}.jsonl")]


def _files_of(setup: Setup, part: str) -> list[str]:
    """Files of cells that a part writes; rows: those of its three."""
    named = {"rows": _ROWS, "memory": [f"memory-{mask}" for mask in setup.sizes.masks]}
    return list(named.get(part, [part]))


def rows_of(setup: Setup) -> list[dict]:
    """[{name, value, unit}] of all that there is, each name once."""
    found = [
        row
        for part in ("rows", *dict.fromkeys(_PART_OF_KIND.values()))
        for row in figures.rows_of(cells_of(setup, *_files_of(setup, part)))
        if _PART_OF_KIND.get(row["name"].split(".")[1], "rows") == part
    ]
    found += _scaling(setup) + _host(setup) + _tests(setup) + _faults(setup) + _llama(setup)
    found += _simulated(setup)
    return sorted({row["name"]: row for row in found}.values(), key=lambda row: row["name"])


def _row(name: str, value: float, unit: str) -> dict:
    return {"name": name, "value": round(value, 4), "unit": unit}


def _scaling(setup: Setup) -> list[dict]:
    """TFLOP/s per GPU of more ranks over those of fewer, at the same tokens per rank."""
    rows, of_all = [], {cell["mask"]: cell for cell in cells_of(setup, _ROWS[0])}
    for ranks in _SMALL_RUNS:
        for cell in cells_of(setup, f"scaling-{ranks}"):
            whole = of_all.get(cell["mask"])
            if whole is None:
                continue
            for direction in DIRECTIONS:
                speeds = [of["sides"][figures.DEFAULT][direction]["tflops"] for of in (whole, cell)]
                size = figures.size_name(cell["tokens"])
                name = f"dist{setup.ranks}.over_{ranks}.{cell['mask']}.{direction}.{size}"
                rows.append(_row(name, speeds[0] / speeds[1], "ratio"))
    return rows


def _host(setup: Setup) -> list[dict]:
    path = setup.out / "host.json"
    return json.loads(path.read_text(encoding="utf-8")) if has_json(path) else []


def _tests(setup: Setup) -> list[dict]:
    """How many tests passed and how many did not."""
    lines = [
        line
        for path in sorted(setup.out.glob("tests-*.jsonl"))
        for line in kept.read_cells(path)
        if "test" in line
    ]
    counts = {
        outcome: sum(line["outcome"] == outcome for line in lines)
        for outcome in ("passed", "failed")
    }
    return [
        _row(f"dist{setup.ranks}.tests.{outcome}", count, "tests")
        for outcome, count in counts.items()
        if lines
    ]


def _faults(setup: Setup) -> list[dict]:
    """What fault_runs counted, under the number of ranks."""
    rows = []
    for path in sorted(setup.out.glob("faults-*.json")):
        if has_json(path):
            for row in json.loads(path.read_text(encoding="utf-8")):
                name = row["name"].replace("reliability", f"dist{setup.ranks}.faults", 1)
                rows.append(_row(name, row["value"], row["unit"]))
    return rows


def _llama(setup: Setup) -> list[dict]:
    """Tokens per second of each way to share the ranks, and how far losses are apart."""
    path = setup.out / "llama.json"
    if not has_json(path):
        return []
    given = json.loads(path.read_text(encoding="utf-8"))
    prefix = f"dist{setup.ranks}.llama.{figures.size_name(given['about']['tokens'])}"
    rows = [
        _row(f"{prefix}.{name.replace(' ', '')}.tokens_per_second", run["tokens_per_second"],
             "tokens/s")
        for name, run in given["runs"].items()
        if "reversed" not in name
    ]  # fmt: skip
    if given["compared"]:
        rows.append(_row(f"{prefix}.distance_over_noise", given["compared"]["over_noise"], "ratio"))
    return rows


def steps_of(setup: Setup) -> dict | None:
    """The default's steps beside the kernel alone, with the constants of the machine: what
    bench/simulate_error.py reads; None where there are no constants or cells.
    """
    path = setup.out / "costs.json"
    cells = [cell for cell in cells_of(setup, *_ROWS) if figures.DEFAULT in cell["sides"]]
    if not cells or not has_json(path):
        return None
    spans = ("ms", "low_ms", "high_ms")
    return {
        "device": cells[0]["machine"],
        "costs": json.loads(path.read_text(encoding="utf-8")),
        "cells": [
            {
                **{key: cell[key] for key in ("mask", "tokens", "ranks", "rounds")},
                **{
                    name: {d: {key: cell["sides"][side][d][key] for key in spans}
                           for d in DIRECTIONS}
                    for name, side in (("alone", "alone"), ("step", figures.DEFAULT))
                },
            }
            for cell in cells
        ],
    }  # fmt: skip


def _simulated(setup: Setup) -> list[dict]:
    """The largest ratio between a predicted and a measured time."""
    steps = steps_of(setup)
    magi = setup.build / "bin" / "magi"
    if steps is None or not magi.exists():
        return []
    ratios = [ratio for _, ratio in simulate_error.cells(str(magi), steps)]
    worst = max(max(ratio, 1 / ratio) for ratio in ratios)
    return [_row(f"dist{setup.ranks}.simulate.error", worst, "ratio")]


def machine_of(setup: Setup) -> str:
    """What the cells say that they were measured on."""
    cells = cells_of(setup, *_ROWS)
    if not cells:
        raise SystemExit(f"{setup.out} has no cells of rows; allowed: a part rows-8k that has run")
    return cells[0]["machine"]


def musts() -> dict:
    """What bench/musts.json asks for."""
    return json.loads((ROOT / "bench" / "musts.json").read_text(encoding="utf-8"))


def missing_of(setup: Setup, rows: list[dict]) -> dict[str, str]:
    """By name of a must of these ranks that has no figure, why."""
    found = {row["name"] for row in rows}
    prefixes = (f"dist{setup.ranks}.", "dist.")
    wanted = [name for name in musts() if name.startswith(prefixes) and name not in found]
    return {name: _reason(setup, name) for name in wanted}


def _reason(setup: Setup, name: str) -> str:
    kind, size = name.split(".")[1], name.split(".")[-1]
    if name.startswith("dist."):
        return "part host is left"
    is_of_cell = name.count(".") > 1 and kind not in _PART_OF_KIND
    if is_of_cell and (kind not in setup.sizes.masks or f"rows-{size}" not in _ROWS):
        return "no part measures it"
    part = _PART_OF_KIND.get(kind, f"rows-{size}" if is_of_cell else "rows-16k")
    cells = cells_of(setup, *_files_of(setup, part))
    if kind == "qo" and any(cell["mask"] == name.split(".")[2] for cell in cells):
        return "the cost model moves no queries there"
    mine = [cell for cell in cells if not is_of_cell or cell["mask"] == kind]
    failed = {side: why for cell in mine for side, why in cell["failed"].items()}
    if failed:
        return "; ".join(f"{side} failed: {why}" for side, why in failed.items())
    return f"part {part} is left"
