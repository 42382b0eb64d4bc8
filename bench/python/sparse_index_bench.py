# SPDX-License-Identifier: Apache-2.0
"""Attention under lists of single keys on a GPU: sparse_index_bench.py --out FILE [--rounds N]

bf16, head dim 128, lists of 2,048 random keys of 32,768 for each of as many queries and each kv
head. TFLOP/s of the pairs that are seen: 4 * dim operations of each in the forward, 10 * dim in the
backward; medians of rounds that time every case once, by events around one call. `gqa16` has 16
query heads for each of 8 kv heads, whose lists differ: each gathered byte serves 16 operations, so
that L2 bounds the rate.
"""

import argparse
import json
import pathlib
import statistics

import torch

from magi_attention.functional import flex_flash_attn_func

ROWS_Q, ROWS_K, DIM, ENTRIES = 32768, 32768, 128, 2048
HEADS = {"sparse.index1": (128, 1), "sparse.index1.gqa16": (128, 8)}


def milliseconds(call):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


class Case:
    """Tensors of one problem and its two calls."""

    def __init__(self, heads):
        shapes = ((ROWS_Q, heads[0], DIM), (ROWS_K, heads[1], DIM), (ROWS_K, heads[1], DIM))
        self._leaves = [
            torch.randn(s, device="cuda", dtype=torch.bfloat16).requires_grad_() for s in shapes
        ]
        size = (ROWS_Q, heads[1], ENTRIES)
        self._lists = torch.randint(ROWS_K, size, dtype=torch.int32, device="cuda")
        self._upstream = torch.randn_like(self._leaves[0])
        self._out = self.attend(*self._leaves)
        self.pairs = ROWS_Q * heads[0] * ENTRIES

    def attend(self, *qkv):
        return flex_flash_attn_func(*qkv, index_sparse_indices=self._lists)[0]

    def forward(self):
        with torch.no_grad():
            self.attend(*self._leaves)

    def backward(self):
        torch.autograd.grad(self._out, self._leaves, self._upstream, retain_graph=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    cases = {name: Case(heads) for name, heads in HEADS.items()}
    calls = {
        f"{name}.{which}": (getattr(case, which), operations * DIM * case.pairs)
        for name, case in cases.items()
        for which, operations in (("forward", 4), ("backward", 10))
    }
    times: dict = {name: [] for name in calls}
    for round_idx in range(options.rounds + 2):  # two to warm up
        for name, (call, _) in calls.items():
            took = milliseconds(call)
            if round_idx >= 2:
                times[name].append(took)
    rows = [
        {"name": name, "value": round(count / statistics.median(times[name]) / 1e9, 1),
         "unit": "TFLOP/s"}
        for name, (_, count) in calls.items()
    ]  # fmt: skip
    for row in rows:
        print(f"{row['name']:32} {row['value']:8.1f} {row['unit']}")
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
