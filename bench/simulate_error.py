#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `magi simulate` with times recorded on two H200s: simulate_error.py [--magi FILE] [--out
rows.json].

bench/results/raw/steps-2xh200.json has medians of bench/dist_attention.py: calc_attn on two GPUs
and the kernel alone on one of them with the whole sequence, each call behind a pause and a matrix
product, and the constants that `magi doctor --calibrate` found in front of that. The kernels'
constants of the default cluster were fitted to the kernel alone; nothing was fitted to the steps.
Recorded for comparison too: Ulysses beside our step
(bench/results/dist-h200x2.json).
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import attention_masks

RESULTS = pathlib.Path(__file__).parent / "results"
RECORDED = RESULTS / "raw" / "steps-2xh200.json"
HEADS_Q, HEADS_KV, HEAD_DIM = 64, 8, 128
PASSES = ("forward", "backward")
FLOPS_PER_PAIR = {"forward": 4 * HEADS_Q * HEAD_DIM, "backward": 10 * HEADS_Q * HEAD_DIM}
OVER_ULYSSES = re.compile(r"dist2\.(\w+)\.over_ulysses\.(forward|backward)\.8k")
ROWS_PER_RANK = 8192


def simulate(magi, *flags, strategy="auto"):
    """The first row that the command prints as JSON."""
    command = [magi, "simulate", "--json", "--strategies", strategy, "--heads-q", str(HEADS_Q)]
    command += ["--heads-kv", str(HEADS_KV), *map(str, flags)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(text)["rows"][0]


def slices_of(mask, rows):
    """Band slices of a recorded mask of so many rows."""
    lengths = None
    if mask in attention_masks.OF_DOCUMENTS:
        lengths = attention_masks.documents(attention_masks.DATA, rows, 0)
    return attention_masks.mask_slices(mask, rows, lengths)


def recorded(which):
    """(mask, rows, slices, seconds) of the masks that the kernel alone was timed on."""
    for cell in json.loads(RECORDED.read_text())["cells"]:
        rows = cell["tokens"] * cell["ranks"]
        slices = slices_of(cell["mask"], rows)
        yield cell["mask"], rows, slices, cell["alone"][which]["ms"] * 1e-3


def cells(magi, run):
    """(label, predicted over measured) of the kernel alone and of steps of a recorded run, by the
    constants that the machine was found to have.
    """
    with tempfile.TemporaryDirectory() as folder:
        costs = pathlib.Path(folder) / "costs.json"
        costs.write_text(json.dumps(run["costs"]))
        for cell in run["cells"]:
            tokens, ranks = cell["tokens"], cell["ranks"]
            for num_ranks, name in ((1, "alone"), (ranks, "step")):
                rows = tokens * ranks // num_ranks
                row = simulate(
                    magi, "--growing", cell["mask"], "--rows-per-rank", rows,
                    "--ranks", num_ranks, "--cost", costs,
                )  # fmt: skip
                for which in PASSES:
                    ratio = row[which]["seconds"] / (cell[name][which]["ms"] * 1e-3)
                    gpus = "1 GPU " if num_ranks == 1 else f"{num_ranks} GPUs"
                    yield f"{gpus}  {cell['mask']} {tokens * ranks} {which}", ratio


def ulysses_cells(magi):
    """(label, predicted over measured) of Ulysses' time over that of our step on two GPUs."""
    for record in json.loads((RESULTS / "dist-h200x2.json").read_text()):
        match = OVER_ULYSSES.fullmatch(record["name"])
        if match is None:
            continue
        mask, which = match.groups()
        flags = ("--growing", mask, "--rows-per-rank", ROWS_PER_RANK, "--ranks", 2)
        ours = simulate(magi, *flags)[which]["seconds"]
        theirs = simulate(magi, *flags, strategy="ulysses")[which]["seconds"]
        yield f"Ulysses over ours, {mask} {which}", theirs / ours / record["value"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--magi", default="build/release/bin/magi", help="the command")
    parser.add_argument("--out", type=pathlib.Path, help="file for the row of bench/results")
    options = parser.parse_args()
    ratios = list(cells(options.magi, json.loads(RECORDED.read_text())))
    for label, ratio in sorted(ratios):
        print(f"{label:44} predicted / measured {ratio:.3f}")
    worst = max(max(ratio, 1 / ratio) for _, ratio in ratios)
    print(f"worst {worst:.3f}")
    for label, ratio in ulysses_cells(options.magi):
        print(f"{label:44} predicted / measured {ratio:.3f}")
    if options.out:
        row = {"name": "simulate.error", "value": round(worst, 4), "unit": "ratio"}
        options.out.write_text(json.dumps([row], indent=1) + "\n")


if __name__ == "__main__":
    main()
