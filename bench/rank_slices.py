#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the slices of a plan's ranks cost the kernels, on one device: rank_slices.py --out ROWS

A call under the slices of each rank, all of whose keys are there, beside one of the whole mask: a
slow schedule of a rank so shows without a second GPU. bf16, 64:8 heads of 128; times are medians of
rounds of four calls in a row, in random order. Standard error has milliseconds, forward / backward.
Rows, for tokens of a rank (8k, 16k):

  rank_slices.MASK.forward.8k   the whole mask's time over ranks, over that of the slowest rank
  rank_slices.MASK.backward.8k
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch

from attention_masks import INFINITE
from distributed.kernel import Kernel
from distributed.ours import typed
from distributed.sides import MASKS, Problem
from magi_attention import Plan

CALLS = 4
PASSES = ("forward", "backward")


def kernels_of(problem: Problem, ranks: int) -> dict[str, tuple[Kernel, int, int]]:
    """Kernels with rows of q and k: of the whole mask and of each rank's one attention call."""
    heads_q, heads_kv, dim = problem.shape
    plan = Plan.from_ranges(
        *typed(problem.slices, problem.total), problem.total, cp_size=ranks, num_heads_q=heads_q,
        num_heads_kv=heads_kv, head_dim=dim, overlap=0,
    )  # fmt: skip
    total = problem.total
    found = {"whole": (Kernel(problem.slices, total, total), total, total)}
    for rank, tables in enumerate(json.loads(plan.to_json())["ranks"]):
        (attend,) = tables["attends"]
        rows_q, rows_k = (tables[of][attend[i]][1] for i, of in enumerate("qk"))
        slices = [
            (*bounds, -INFINITE if low is None else low, INFINITE if high is None else high)
            for *bounds, low, high in tables["slices"]
        ]
        found[f"rank {rank}"] = Kernel(slices, rows_q, rows_k), rows_q, rows_k
    return found


def seconds_of(function: Callable[[], object], device: torch.device) -> float:
    """Of a call, of CALLS in a row."""
    settle = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    settle()
    begin = time.perf_counter()
    for _ in range(CALLS):
        function()
    settle()
    return (time.perf_counter() - begin) / CALLS


def shares_of(problem: Problem, options: argparse.Namespace) -> list[float]:
    """Of the forward and the backward."""
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    kernels = kernels_of(problem, options.ranks)
    heads_q, heads_kv, dim = problem.shape
    runs = {}
    for name, (kernel, *rows) in kernels.items():
        q, dout = (torch.randn(rows[0], heads_q, dim, device=device, dtype=dtype) for _ in "qo")
        k, v = (torch.randn(rows[1], heads_kv, dim, device=device, dtype=dtype) for _ in "kv")
        saved = kernel.forward(q, k, v)[1]
        runs[name, 0] = lambda kernel=kernel, given=(q, k, v): kernel.attend(*given)
        runs[name, 1] = lambda kernel=kernel, given=(dout, saved): kernel.backward(*given)
    spent = {key: [] for key in runs}
    for number in range(1 + options.rounds):
        for key in random.sample(list(runs), len(runs)):
            seconds = seconds_of(runs[key], device)
            spent[key] += [seconds] if number else []  # the first round warms up
    least = {key: statistics.median(values) for key, values in spent.items()}
    for name in kernels:
        told = " / ".join(f"{1e3 * least[name, i]:.3f}" for i in range(2))
        print(f"{problem.mask} {problem.total // options.ranks} {name}: {told} ms", file=sys.stderr)
    slowest = [max(least[name, i] for name in kernels if name != "whole") for i in range(2)]
    return [least["whole", i] / options.ranks / slowest[i] for i in range(2)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--tokens", default="8192,16384", help="of a rank")
    parser.add_argument("--heads", default="64,8", help="of q and of k")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    shape = (*map(int, options.heads.split(",")), options.head_dim)
    rows = []
    for tokens in map(int, options.tokens.split(",")):
        size = f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)
        for mask in options.masks.split(","):
            found = shares_of(Problem(mask, tokens * options.ranks, shape), options)
            for name, value in zip(PASSES, found):
                row = {"name": f"rank_slices.{mask}.{name}.{size}", "value": round(value, 4)}
                rows.append({**row, "unit": "ratio"})
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
