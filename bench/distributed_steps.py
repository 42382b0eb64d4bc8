#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times attention over ranks with nccl, one GPU per rank: torchrun --nproc-per-node N
bench/distributed_steps.py [degree ...]. Rank 0 prints one JSON line per case: milliseconds of the
forward and of forward and backward, the same on one rank alone with the whole sequence, and the
plan's figures. A degree below 0 is left to the cost model.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

from magi_attention import api
from magi_attention.common import AttnRanges

HEADS_Q, HEADS_KV, HEAD_DIM = 64, 8, 128
ROUNDS = 12
DEGREES = (0, 1, 2, 4, -1)


def make_bound(documents: list[tuple[int, int]], rows: int, size: int, degree, group):
    ranges = AttnRanges.from_ranges(documents)
    mode = api.AttnOverlapMode.DYNAMIC if degree is None else api.AttnOverlapMode.STATIC
    plan = api.Plan.from_ranges(
        ranges, ranges, "causal", rows, cp_size=size, num_heads_q=HEADS_Q, num_heads_kv=HEADS_KV,
        head_dim=HEAD_DIM,
        config=api.DistAttnConfig(overlap_config=api.OverlapConfig(mode=mode, degree=degree)),
    )  # fmt: skip
    return plan, plan.bind(group)


def measure(bound) -> tuple[float, float]:
    """Median milliseconds of the forward, and of forward and backward."""

    def leaf(heads: int) -> torch.Tensor:
        shape = (bound.local_rows, heads, HEAD_DIM)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_()

    q, k, v = leaf(HEADS_Q), leaf(HEADS_KV), leaf(HEADS_KV)
    dout = torch.randn_like(q)
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        dist.barrier()
        marks[0].record()
        out, _ = bound.calc_attn(q, k, v)
        marks[1].record()
        out.backward(dout)
        marks[2].record()
        torch.cuda.synchronize()
        times[0].append(marks[0].elapsed_time(marks[1]))
        times[1].append(marks[0].elapsed_time(marks[2]))
    forward, both = (sorted(t)[ROUNDS // 2] for t in times)
    return round(forward, 3), round(both, 3)


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    degrees = [None if degree < 0 else degree for degree in map(int, sys.argv[1:] or DEGREES)]
    rows = 16384 * size
    documents = [(i, min(i + 3000, rows)) for i in range(0, rows, 3000)]
    for name, mask in (("causal", [(0, rows)]), ("documents of 3000", documents)):
        _, alone = make_bound(mask, rows, 1, 0, None)
        single = measure(alone)
        for degree in degrees:
            plan, bound = make_bound(mask, rows, size, degree, dist.group.WORLD)
            forward, both = measure(bound)
            if rank == 0:
                report = plan.report
                print(json.dumps({
                    "mask": name, "rows": rows, "ranks": size, "degree": degree,
                    "waves": report.num_waves, "forward_ms": forward, "both_ms": both,
                    "alone_forward_ms": single[0], "alone_both_ms": single[1],
                    "gigabytes": round(report.total_bytes * 1e-9, 3),
                    "balance": round(report.balance, 3),
                }), flush=True)  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
