#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws reports of bench/compare_attention.py: peer_plots.py FOLDER REPORT...

peers-forward.svg and peers-backward.svg: by mask, TFLOP/s of ours (of the backward its fast mode)
and of each peer that has the mask; cuDNN where the mask is full or causal. A case that several
reports hold gives the median over them.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics

import bar_chart

RATES = bar_chart.Scale(tuple(range(0, 900, 100)), 850, 0, "TFLOP/s", 0)
LABELS = {"fa4": "FlashAttention-4", "cudnn_flex": "cuDNN flex", "flex": "FlexAttention"}


def label_of(result: dict) -> str:
    """full 8k, or full 16k 192:128"""
    dims = (result["dim"], result["dim_v"])
    suffix = "" if dims == (128, 128) else f" {dims[0]}" + (f":{dims[1]}" * (dims[0] != dims[1]))
    return f"{result['mask'].replace('_', ' ')} {result['rows'] // 1024}k{suffix}"


def rates_of(result: dict) -> dict[str, float]:
    """TFLOP/s by side."""
    kernel = "fast" if "fast" in result["ours"] else next(iter(result["ours"]))
    rates = {"magi": result["ours"][kernel]["tflops"]}
    rates |= {label: result[peer]["tflops"] for peer, label in LABELS.items() if peer in result}
    if result["mask"] in ("full", "causal"):
        rates["cuDNN"] = result["cudnn_tflops"]
    return rates


def collect(reports: list[dict]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Rates by direction, case and side."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for result in (result for report in reports for result in report["results"]):
        direction = "backward" if "fast" in result["ours"] else "forward"
        case = found.setdefault(direction, {}).setdefault(label_of(result), {})
        for side, rate in rates_of(result).items():
            case.setdefault(side, []).append(rate)
    return found


def draw(reports: list[dict], folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the pictures and gives their paths."""
    paths = []
    for direction, cases in collect(reports).items():
        groups = {
            label: {side: statistics.median(rates) for side, rates in sides.items()}
            for label, sides in cases.items()
        }
        path = folder / f"peers-{direction}.svg"
        title = f"{direction}, {reports[0]['device']}: TFLOP/s of the pairs that are seen"
        path.write_text(bar_chart.picture(title, groups, RATES), encoding="utf-8")
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("reports", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.reports]
    for path in draw(reports, arguments.folder):
        print(path)


if __name__ == "__main__":
    main()
