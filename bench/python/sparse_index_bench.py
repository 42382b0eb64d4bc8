# SPDX-License-Identifier: Apache-2.0
"""Attention under lists of single keys on a GPU: sparse_index_bench.py --out FILE [--rounds N]

bf16, lists of 2,048 random keys of 32,768 for each of as many queries and each kv head. TFLOP/s of
the pairs that are seen: 2 * (dim + dim of v) operations of each in the forward, 2.5 times as many
in the backward; medians of rounds that time every case once, by events around BURST calls. Head
dims are 128, `mla576` has 576 and 512: latents, whose first columns are the values. `gqa16` has 16
query heads for each of 8 kv heads, whose lists differ: each gathered byte serves 16 operations, so
that L2 bounds the rate. In `router`, lists have 512 keys, of which the next query has 80 %.
"""

import argparse
import json
import pathlib
import statistics

import torch

from magi_attention.functional import flex_flash_attn_func

ROWS_Q, ROWS_K, ENTRIES = 32768, 32768, 2048
# Heads and head dims.
CASES = {
    "sparse.index1": (128, 1, 128, 128),
    "sparse.index1.gqa16": (128, 8, 128, 128),
    "sparse.router": (128, 8, 128, 128),
    "sparse.mla576": (128, 1, 576, 512),
}
ROUTED, KEPT = 512, 5  # entries, and queries for which one stays in the list
BURST = 4


def milliseconds(call):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(BURST):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / BURST


def routed_lists(heads):
    """Lists of ROUTED keys, in any order, one of each of as many parts of the sequence."""
    size = ROWS_K // ROUTED
    entries = torch.randperm(ROUTED, device="cuda")
    drawn = torch.randint(size, ((ROWS_Q + ROUTED) // KEPT + 1, heads, ROUTED), device="cuda")
    turns = (torch.arange(ROWS_Q, device="cuda").unsqueeze(1) + entries) // KEPT
    keys = drawn.gather(0, turns.unsqueeze(1).expand(-1, heads, -1)) + entries * size
    return keys.int()


class Case:
    """Tensors of one problem and its two calls."""

    def __init__(self, is_routed, heads_q, heads_kv, dim, dim_v):
        shapes = [(ROWS_Q, heads_q, dim), (ROWS_K, heads_kv, dim), (ROWS_K, heads_kv, dim_v)]
        self._leaves = [
            torch.randn(s, device="cuda", dtype=torch.bfloat16).requires_grad_()
            for s in (shapes if dim == dim_v else shapes[:2])
        ]
        self._dim_v = dim_v
        if is_routed:
            self._lists = routed_lists(heads_kv)
        else:
            size = (ROWS_Q, heads_kv, ENTRIES)
            self._lists = torch.randint(ROWS_K, size, dtype=torch.int32, device="cuda")
        self._out = self.attend(*self._leaves)
        self._upstream = torch.randn_like(self._out)
        self.operations = 2 * (dim + dim_v) * ROWS_Q * heads_q * self._lists.shape[2]

    def attend(self, q, k, v=None):
        v = k[..., : self._dim_v] if v is None else v
        return flex_flash_attn_func(q, k, v, index_sparse_indices=self._lists)[0]

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
    parser.add_argument("--only", default="", help="how names of cases begin")
    options = parser.parse_args()
    torch.manual_seed(0)
    cases = {
        name: Case(name == "sparse.router", *sizes)
        for name, sizes in CASES.items()
        if name.startswith(options.only)
    }
    calls = {
        f"{name}.{which}": (getattr(case, which), factor * case.operations)
        for name, case in cases.items()
        for which, factor in (("forward", 1.0), ("backward", 2.5))
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
