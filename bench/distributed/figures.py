# SPDX-License-Identifier: Apache-2.0
"""Named figures of cells, as tools/record takes them, and a table to read."""

from __future__ import annotations

from distributed.cells import DIRECTIONS
from distributed.sides import ULYSSES_MASKS

DEFAULT = "default"


def size_name(tokens: int) -> str:
    """8192 is 8k."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def rows_of(cells: list[dict]) -> list[dict]:
    """Figures of cells of one number of ranks: shares of the default, and the worst cell against
    other settings and against baselines. What was not timed has none.
    """
    if not cells:
        return []
    prefix = f"dist{cells[0]['ranks']}"
    found = {}
    over_best, over_baseline = [], []
    for cell in cells:
        for direction in DIRECTIONS:
            speeds = {name: side[direction]["tflops"] for name, side in cell["sides"].items()}
            kinds = {name: side["kind"] for name, side in cell["sides"].items()}
            if DEFAULT not in speeds:
                continue
            label = f"{cell['mask']}.{{}}{direction}.{size_name(cell['tokens'])}"
            share = cell["sides"][DEFAULT][direction]["share"]
            found[f"{prefix}.{label.format('')}"] = share
            ours = [
                speeds[name]
                for name, kind in kinds.items()
                if kind == "ours" and "work=" not in name
            ]
            others = [speeds[name] for name, kind in kinds.items() if kind == "baseline"]
            if len(ours) > 1:
                over_best.append(speeds[DEFAULT] / max(ours))
            if others:
                over_baseline.append(speeds[DEFAULT] / max(others))
            if "ulysses" in speeds and cell["mask"] == "varlen_causal":
                name = f"{prefix}.{label.format('over_ulysses.')}"
                found[name] = speeds[DEFAULT] / speeds["ulysses"]
        found.update(_over_keys(prefix, cell))
        found.update(_bounded(cell))
    found.update(_over_ulysses(prefix, cells))
    if over_best:
        found[f"{prefix}.default_over_best"] = min(over_best)
    if over_baseline:
        found[f"{prefix}.over_baseline"] = min(over_baseline)
    extra = [
        cell["sides"][DEFAULT]["memory_ratio"]
        for cell in cells
        if cell["tokens"] == 16384 and cell["sides"].get(DEFAULT, {}).get("memory_ratio")
    ]
    if extra:
        found[f"{prefix}.extra_memory"] = max(extra)
    return [
        {"name": name, "value": round(value, 4), "unit": "ratio"} for name, value in found.items()
    ]


def _over_ulysses(prefix: str, cells: list[dict]) -> dict[str, float]:
    """Our speed over that of Ulysses with the fastest of its kernels, the least of the masks; none
    where one of them is missing.
    """
    found = {}
    of_mask = {cell["mask"]: cell["sides"] for cell in cells if cell["tokens"] == 8192}
    for direction in DIRECTIONS:
        ratios = []
        for mask in ULYSSES_MASKS:
            speeds = {n: side[direction]["tflops"] for n, side in of_mask.get(mask, {}).items()}
            theirs = [speed for name, speed in speeds.items() if name.startswith("ulysses")]
            if theirs and DEFAULT in speeds:
                ratios.append(speeds[DEFAULT] / max(theirs))
        if len(ratios) == len(ULYSSES_MASKS):
            found[f"{prefix}.over_ulysses.{direction}"] = min(ratios)
    return found


def _over_keys(prefix: str, cell: dict) -> dict[str, float]:
    """Speed of forward and backward with moving queries over that of keys alone: qo where the cost
    model chose to move some, qo_always where it was told to.
    """
    found = {}
    for name, mode in (("qo", "auto"), ("qo_always", "queries")):
        side = cell["sides"].get(f"{DEFAULT}+work={mode}")
        if DEFAULT in cell["sides"] and side and side["is_moving_queries"]:
            keys = cell["sides"][DEFAULT]
            ms = [sum(of[direction]["ms"] for direction in DIRECTIONS) for of in (keys, side)]
            found[f"{prefix}.{name}.{cell['mask']}.{size_name(cell['tokens'])}"] = ms[0] / ms[1]
    return found


def _bounded(cell: dict) -> dict[str, float]:
    """Time of forward and backward under a bound of exchange memory over that of the default."""
    ms = {name: sum(side[d]["ms"] for d in DIRECTIONS) for name, side in cell["sides"].items()}
    bounded = [name for name in ms if name.startswith("bound")]
    if DEFAULT not in ms or not bounded:
        return {}
    return {f"train{cell['ranks']}.bounded.time": ms[bounded[0]] / ms[DEFAULT]}


def table_of(cell: dict) -> str:
    """A cell for people: TFLOP/s per GPU and share of alone, forward and backward."""
    lines = [
        f"{cell['mask']}, {size_name(cell['tokens'])} per rank, {cell['ranks']} ranks, "
        f"{cell['rounds']} rounds",
        f"  {'':28s} {'TFLOP/s':>15s} {'share of alone':>15s} {'ms':>17s} "
        f"{'exposed ms':>15s} {'GB sent':>8s} {'extra GB':>9s}",
    ]
    for name, side in cell["sides"].items():
        halves = [side[direction] for direction in DIRECTIONS]
        exposed = [half.get("exposed_ms") for half in halves]
        sent = side.get("forward_bytes")
        lines.append(
            f"  {name:28s} {_pair(halves, 'tflops', '6.1f')} {_pair(halves, 'share', '6.3f')} "
            f"{_pair(halves, 'ms', '7.3f')} "
            + (f"{exposed[0]:6.3f} / {exposed[1]:6.3f}" if None not in exposed else " " * 15)
            + (f" {sent * 1e-9:8.3f}" if sent is not None else " " * 9)
            + f" {side['extra_bytes'] * 1e-9:9.3f}"
            + (f"  {side['stages']} stages" if "stages" in side else "")
            + ("  queries move" if side.get("is_moving_queries") else "")
        )
    lines += [f"  {name:28s} failed: {reason}" for name, reason in cell["failed"].items()]
    return "\n".join(lines)


def _pair(halves, key: str, form: str) -> str:
    return " / ".join(f"{half[key]:{form}}" for half in halves)
