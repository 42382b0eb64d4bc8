#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `magi simulate` with recorded times of H200s: simulate_error.py [--magi FILE] [--out
rows.json].

One GPU: times of the kernel alone (bench/results/raw/forward-h200.json, backward-h200.json), mean
of the runs of a mask. Two GPUs: the share of the kernel alone that each GPU of a step reaches
(bench/results/dist-h200x2.json). The kernels' constants of the default cluster were fitted to the
former by bench/simulate_fit.py; nothing was fitted to the latter.
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import attention_masks

RESULTS = pathlib.Path(__file__).parent / "results"
HEADS_Q, HEADS_KV, HEAD_DIM = 64, 8, 128
KERNEL_RUNS = {
    "forward": ("forward-h200.json", "bench"),
    "backward": ("backward-h200.json", "fast"),
}
FLOPS_PER_PAIR = {"forward": 4 * HEADS_Q * HEAD_DIM, "backward": 10 * HEADS_Q * HEAD_DIM}
SHARE = re.compile(r"dist2\.(\w+)\.(forward|backward)\.8k")
OVER_ULYSSES = re.compile(r"dist2\.(\w+)\.over_ulysses\.(forward|backward)\.8k")
ROWS_PER_RANK = 8192


def simulate(magi, *flags, strategy="auto"):
    """The first row that the command prints as JSON."""
    command = [magi, "simulate", "--json", "--strategies", strategy, "--heads-q", str(HEADS_Q)]
    command += ["--heads-kv", str(HEADS_KV), *map(str, flags)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(text)["rows"][0]


def slices_of(cell):
    """Band slices of a recorded cell."""
    rows, lengths = cell["rows"], None
    if cell["mask"] in attention_masks.OF_DOCUMENTS:
        lengths = attention_masks.documents(attention_masks.DATA, rows, cell["draw"])
    return attention_masks.mask_slices(cell["mask"], rows, lengths)


def write_mask(path, rows, slices):
    """A mask as JSON, with null for a diagonal without bound."""
    infinite = attention_masks.INFINITE
    lines = [
        [*ranges, None if low <= -infinite else low, None if high >= infinite else high]
        for *ranges, low, high in slices
    ]
    path.write_text(json.dumps({"rows_q": rows, "rows_k": rows, "slices": lines}))


def recorded(which):
    """(mask, rows, slices, seconds) of the masks that one GPU's kernel was timed on."""
    name, key = KERNEL_RUNS[which]
    cells_of = {}
    for run in json.loads((RESULTS / "raw" / name).read_text())[key]:
        for cell in run:
            if cell["dim"] == HEAD_DIM:
                cells_of.setdefault((cell["mask"], cell["rows"]), []).append(cell)
    for (mask, rows), cells in cells_of.items():
        slices = slices_of(cells[0])
        flops = attention_masks.area(slices) * FLOPS_PER_PAIR[which]
        times = [flops / next(iter(c["ours"].values()))["tflops"] / 1e12 for c in cells]
        yield mask, rows, slices, sum(times) / len(times)


def alone_cells(magi, which):
    """(label, predicted over measured) of the masks that one GPU's kernel was timed on."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "mask.json"
        for mask, rows, slices, seconds in recorded(which):
            write_mask(path, rows, slices)
            row = simulate(magi, "--mask", path, "--ranks", 1)
            yield f"1 GPU   {mask} {rows} {which}", row[which]["seconds"] / seconds


def share_cells(magi):
    """(label, predicted over measured time of a step) of two GPUs, by the shares recorded."""
    for record in json.loads((RESULTS / "dist-h200x2.json").read_text()):
        match = SHARE.fullmatch(record["name"])
        if match is None:
            continue
        mask, which = match.groups()
        flags = ("--growing", mask)
        alone = simulate(magi, *flags, "--rows-per-rank", 2 * ROWS_PER_RANK, "--ranks", 1)
        step = simulate(magi, *flags, "--rows-per-rank", ROWS_PER_RANK, "--ranks", 2)
        share = alone[which]["seconds"] / (2 * step[which]["seconds"])
        yield f"2 GPUs  {mask} {2 * ROWS_PER_RANK} {which}", record["value"] / share


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
    cells = [
        *alone_cells(options.magi, "forward"),
        *alone_cells(options.magi, "backward"),
        *share_cells(options.magi),
    ]
    for label, ratio in cells:
        print(f"{label:44} predicted / measured {ratio:.3f}")
    worst = max(max(ratio, 1 / ratio) for _, ratio in cells)
    print(f"worst {worst:.3f}")
    for label, ratio in ulysses_cells(options.magi):
        print(f"{label:44} predicted / measured {ratio:.3f}")
    if options.out:
        row = {"name": "simulate.error", "value": round(worst, 4), "unit": "ratio"}
        options.out.write_text(json.dumps([row], indent=1) + "\n")


if __name__ == "__main__":
    main()
