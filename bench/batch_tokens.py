#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps on batches of samples of any lengths over two GPUs:
torchrun --nproc-per-node 2 bench/batch_tokens.py --out ROWS

Eight layers of an 8B's shape, forward and backward, on 200 samples of the recorded lengths up to
64k, in micro-batches of so many rows a rank. Sides take turns in rounds, medians of the slowest
rank:
  planned  BatchPlan: each micro-batch one plan over both ranks
  cp1      two replicas: each sample on one rank, the longest first to the one that would end first,
           packed to the same memory (of a sample that is longer, a micro-batch of its own)
  cp2      each micro-batch over both ranks by a plan of its packed documents
  batch2.tokens  tokens per second of planned over the best of the others
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import random
import statistics
import time

import torch
import torch.distributed as dist
import torch.utils.checkpoint

from magi_attention import Plan, masks
from magi_attention.batch import BatchCost, BatchPlan
from magi_attention.training import ModelShape, save_attention

ROOT = pathlib.Path(__file__).resolve().parents[1]
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, DIM, LAYERS = 4096, 14336, 32, 8, 128, 8
SHAPE = {"num_heads_q": HEADS, "num_heads_kv": KV_HEADS, "head_dim": DIM}
TYPE = torch.bfloat16


class Layer(torch.nn.Module):
    """Attention and a gated MLP behind norms."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.out = torch.nn.Linear(HEADS * DIM, HIDDEN, bias=False)
        self.up = torch.nn.Linear(HIDDEN, 2 * INTERMEDIATE, bias=False)
        self.down = torch.nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor, attend) -> torch.Tensor:
        """x [rows, hidden]; attend: q, k, v -> out."""
        norm = torch.nn.functional.rms_norm
        q, k, v = (
            self.qkv(norm(x, (HIDDEN,)))
            .view(-1, HEADS + 2 * KV_HEADS, DIM)
            .split((HEADS, KV_HEADS, KV_HEADS), 1)
        )
        x = x + self.out(attend(q, k, v).flatten(1))
        gate, up = self.up(norm(x, (HIDDEN,))).chunk(2, -1)
        return x + self.down(torch.nn.functional.silu(gate) * up)


def draw(count: int, longest: int, seed: int) -> list[int]:
    """Lengths of the record, equal on all ranks."""
    with open(ROOT / "bench/data/document_lengths.csv", encoding="utf-8") as file:
        bins = [tuple(map(int, line.values())) for line in csv.DictReader(file)]
    chosen = random.Random(seed)
    weights = [count for _, _, count in bins]
    found: list[int] = []
    while len(found) < count:
        low, high, _ = chosen.choices(bins, weights)[0]
        length = chosen.randint(low, high)
        if length <= longest:
            found.append(length)
    return found


def bound_of_lengths(lengths: list[int], size: int, group):
    """The plan of packed causal documents over ranks."""
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    plan = Plan.from_mask(masks.from_cu_seqlens(bounds), cp_size=size, **SHAPE)
    return plan.bind(group)


def packed(lengths: list[int], memory: int, time_of) -> list[list[int]]:
    """Micro-batches of at most so many rows; a longer sample has one of its own."""
    bins: list[list[int]] = []
    for length in sorted(lengths, key=time_of, reverse=True):
        with_room = [one for one in bins if sum(one) + length <= memory]
        if with_room:
            min(with_room, key=lambda one: sum(map(time_of, one))).append(length)
        else:
            bins.append([length])
    return bins


def sides_of(lengths: list[int], rows: int, cost: BatchCost) -> dict[str, list]:
    """Bound plans of this rank's micro-batches, by side."""
    group, rank = dist.group.WORLD, dist.get_rank()

    def time_of(length: int) -> float:
        pairs = length * (length + 1) / 2
        return length * cost.flops_per_token + pairs * cost.flops_per_pair

    plan = BatchPlan.from_lengths(lengths, num_ranks=2, rows_per_rank=rows, cost=cost)
    planned = [plan.plan(m, **SHAPE).bind(group) for m in range(plan.num_micro_batches)]
    replicas: list[list[int]] = [[], []]
    for length in sorted(lengths, key=time_of, reverse=True):
        min(replicas, key=lambda one: sum(map(time_of, one))).append(length)
    own = packed(replicas[rank], rows, time_of)
    both = packed(lengths, 2 * rows, time_of)
    return {
        "planned": planned,
        "cp1": [bound_of_lengths(one, 1, None) for one in own],
        "cp2": [bound_of_lengths(one, 2, group) for one in both],
    }


def step(layers: torch.nn.ModuleList, bounds: list) -> None:
    """Forward and backward of all micro-batches; layers are recomputed, attention is kept."""
    for bound in bounds:
        x = torch.randn(bound.local_rows, HIDDEN, device="cuda", dtype=TYPE, requires_grad=True)
        y = x
        for layer in layers:
            y = torch.utils.checkpoint.checkpoint(
                layer, y, lambda q, k, v, b=bound: b.calc_attn(q, k, v)[0],
                use_reentrant=False, context_fn=save_attention,
            )  # fmt: skip
        y.float().square().mean().backward()


def seconds_of(layers: torch.nn.ModuleList, bounds: list) -> float:
    """Of the slowest rank, with the sum of gradients over ranks."""
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step(layers, bounds)
    for parameter in layers.parameters():
        dist.all_reduce(parameter.grad)
    torch.cuda.synchronize()
    took = torch.tensor(time.perf_counter() - start, device="cuda")
    dist.all_reduce(took, dist.ReduceOp.MAX)
    layers.zero_grad(set_to_none=True)
    return took.item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--longest", type=int, default=65536)
    parser.add_argument("--rows", type=int, default=32768, help="memory of a rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS)).to("cuda", TYPE)
    shape = ModelShape(LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, DIM, vocabulary=1)
    cost = BatchCost.of_model(shape, recomputes=True)
    lengths = draw(options.samples, options.longest, options.seed)
    sides = sides_of(lengths, options.rows, cost)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(options.rounds + 1):  # the first one warms up
        for name in random.Random(turn).sample(sorted(sides), len(sides)):
            took = seconds_of(layers, sides[name])
            if turn:
                times[name].append(took)
    tokens = {name: sum(lengths) / statistics.median(of) for name, of in times.items()}
    if dist.get_rank() == 0:
        print({name: round(rate) for name, rate in tokens.items()})
        ratio = tokens["planned"] / max(tokens["cp1"], tokens["cp2"])
        rows = [{"name": "batch2.tokens", "value": ratio, "unit": "ratio"}]
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
