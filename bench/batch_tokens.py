#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps on batches of samples of any lengths over two GPUs:
torchrun --nproc-per-node 2 bench/batch_tokens.py --out ROWS

Eight layers of an 8B's shape, forward and backward, on batches of 200 samples of the recorded
lengths up to 64k. Each rank has memory for so many rows in a micro-batch; by default one sample of
any length fits. Sides take turns in rounds. A step ends when gradients are added up over ranks;
the time is the slowest rank's, medians over rounds, added up over batches.

  planned       BatchPlan: each micro-batch one plan over both ranks
  cp1           two replicas: samples packed in order to the memory of a rank, packs dealt in turns
  cp2           packed in order to the memory of both ranks, each sample over both, by quarters
  cp1_balanced  two replicas: the longest sample first, to the one that would end first
  cp2_placed    as cp2, but placed by a plan of the packed samples
  batch2.tokens  tokens per second of planned over the best of cp1 and cp2, schemes of fixed size
  batch2.tokens_strongest  and over the best of all
"""

from __future__ import annotations

import argparse
import csv
import itertools
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
from magi_attention.common import AttnRange, AttnRanges
from magi_attention.config import DispatchConfig, DistAttnConfig, ZigzagDispatchAlg
from magi_attention.training import ModelShape, save_attention

ROOT = pathlib.Path(__file__).resolve().parents[1]
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, DIM, LAYERS = 4096, 14336, 32, 8, 128, 8
SHAPE = {"num_heads_q": HEADS, "num_heads_kv": KV_HEADS, "head_dim": DIM}
TYPE = torch.bfloat16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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


def placed(lengths: list[int], size: int, group):
    """The plan of packed causal samples."""
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    return Plan.from_mask(masks.from_cu_seqlens(bounds), cp_size=size, **SHAPE).bind(group)


def by_quarters(lengths: list[int], group):
    """The plan that gives one rank the first and last quarter of every sample, and the other one
    those between. The sequence has the first quarters of all samples, then the second ones.
    """
    sizes = [[n * (j + 1) // 4 - n * j // 4 for n in lengths] for j in range(4)]
    width = max(map(sum, sizes))
    begins = [list(itertools.accumulate(sizes[j], initial=j * width)) for j in range(4)]
    queries, keys, kinds = AttnRanges(), AttnRanges(), []
    for i in range(len(lengths)):
        quarters = [AttnRange(begins[j][i], begins[j][i + 1]) for j in range(4) if sizes[j][i]]
        for j, own in enumerate(quarters):
            queries.extend([own] * (j + 1))
            keys.extend(quarters[: j + 1])
            kinds += ["full"] * j + ["causal"]
    mask = masks.from_ranges(queries, keys, kinds, 4 * width, 4 * width)
    zigzag = DispatchConfig(alg=ZigzagDispatchAlg(), chunk_size=width)
    config = DistAttnConfig(dispatch_config=zigzag)
    return Plan.from_mask(mask, cp_size=2, config=config, **SHAPE).bind(group)


def in_order(lengths: list[int], memory: int) -> list[list[int]]:
    """Micro-batches of at most so many rows."""
    packs: list[list[int]] = [[]]
    for length in lengths:
        if sum(packs[-1]) + length > memory:
            packs.append([])
        packs[-1].append(length)
    return packs


def balanced(lengths: list[int], memory: int, time_of) -> list[list[int]]:
    """Micro-batches of at most so many rows, of one rank."""
    packs: list[list[int]] = []
    for length in sorted(lengths, key=time_of, reverse=True):
        with_room = [one for one in packs if sum(one) + length <= memory]
        if with_room:
            min(with_room, key=lambda one: sum(map(time_of, one))).append(length)
        else:
            packs.append([length])
    return packs


def sides_of(lengths: list[int], rows: int, cost: BatchCost) -> dict[str, list]:
    """Bound plans of this rank's micro-batches, by side."""
    group, rank = dist.group.WORLD, dist.get_rank()

    def time_of(length: int) -> float:
        pairs = length * (length + 1) / 2
        return length * cost.flops_per_token + pairs * cost.flops_per_pair

    plan = BatchPlan.from_lengths(lengths, num_ranks=2, rows_per_rank=rows, cost=cost)
    replicas: list[list[int]] = [[], []]
    for length in sorted(lengths, key=time_of, reverse=True):
        min(replicas, key=lambda one: sum(map(time_of, one))).append(length)
    both = in_order(lengths, 2 * rows)
    return {
        "planned": [plan.plan(m, **SHAPE).bind(group) for m in range(plan.num_micro_batches)],
        "cp1": [placed(one, 1, None) for one in in_order(lengths, rows)[rank::2]],
        "cp2": [by_quarters(one, group) for one in both],
        "cp1_balanced": [placed(one, 1, None) for one in balanced(replicas[rank], rows, time_of)],
        "cp2_placed": [placed(one, 2, group) for one in both],
    }


def step(layers: torch.nn.ModuleList, bounds: list) -> None:
    """Forward and backward of all micro-batches; layers are recomputed, attention is kept."""
    for bound in bounds:
        x = torch.randn(bound.local_rows, HIDDEN, device=DEVICE, dtype=TYPE, requires_grad=True)
        y = x
        for layer in layers:
            y = torch.utils.checkpoint.checkpoint(
                layer, y, lambda q, k, v, b=bound: b.calc_attn(q, k, v)[0],
                use_reentrant=False, context_fn=save_attention,
            )  # fmt: skip
        y.float().square().mean().backward()


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds_of(layers: torch.nn.ModuleList, bounds: list) -> float:
    """Of the slowest rank, with the sum of gradients over ranks."""
    wait()
    dist.barrier()
    start = time.perf_counter()
    step(layers, bounds)
    for parameter in layers.parameters():
        dist.all_reduce(parameter.grad)
    wait()
    took = torch.tensor(time.perf_counter() - start, device=DEVICE)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    layers.zero_grad(set_to_none=True)
    return took.item()


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--longest", type=int, default=65536)
    parser.add_argument("--rows", type=int, default=65536, help="memory of a rank")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if options.rows < options.longest:
        parser.error(f"--rows is {options.rows}; allowed: {options.longest} or more (--longest)")
    return options


def main() -> None:
    options = options_of()
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS)).to(DEVICE, TYPE)
    shape = ModelShape(LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, DIM, vocabulary=1)
    cost = BatchCost.of_model(shape, recomputes=True)
    batches = [
        draw(options.samples, options.longest, seed) for seed in range(1, options.batches + 1)
    ]
    sides = [sides_of(lengths, options.rows, cost) for lengths in batches]
    for bounds in sides[0].values():  # of every side, so that ranks stay together
        seconds_of(layers, bounds[:1])
    seconds = dict.fromkeys(sides[0], 0.0)
    for of_batch in sides:
        times: dict[str, list[float]] = {name: [] for name in of_batch}
        for turn in range(options.rounds):
            for name in random.Random(turn).sample(sorted(of_batch), len(of_batch)):
                times[name].append(seconds_of(layers, of_batch[name]))
        for name, of in times.items():
            seconds[name] += statistics.median(of)
    if dist.get_rank() == 0:
        report(seconds, sum(map(sum, batches)), options.out)
    dist.destroy_process_group()


def report(seconds: dict[str, float], tokens: int, out: pathlib.Path) -> None:
    rates = {name: tokens / took for name, took in seconds.items()}
    print({name: round(rate) for name, rate in rates.items()}, "tokens/s")
    ours = rates.pop("planned")
    found = {
        "batch2.tokens": ours / max(rates["cp1"], rates["cp2"]),
        "batch2.tokens_strongest": ours / max(rates.values()),
    }
    rows = [{"name": name, "value": ratio, "unit": "ratio"} for name, ratio in found.items()]
    text = json.dumps(rows, indent=1)
    print(text)
    out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
