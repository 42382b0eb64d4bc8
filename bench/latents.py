#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Latent attention (MLA) over ranks: torchrun --nproc-per-node 2 bench/latents.py --out ROWS

One layer of DeepSeek-V3's sizes (128 heads of 192:128, latents of 512 + 64) with its projections,
forward and backward, where latents travel and where keys and values do; both sides in rounds in
random order, medians of the slowest rank:
  mla2.time.64k         one causal document of 64k tokens: latents over keys and values
  mla2.time.packed.64k  the same of packed documents
Without GPUs, by the plan's tables, bytes that both passes move for 64k causal tokens, latents over
keys and values: bench/latents.py --device cpu --out ROWS
  mla2.bytes
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dist_attention import start
from distributed.sides import Side, lengths_of
from distributed.timing import Stopwatch, median
from magi_attention import Plan, masks

HEADS, NOPE, ROPE, VALUE, LATENT = 128, 128, 64, 128, 512
HIDDEN, Q_LATENT = 7168, 1536
TYPE, ALLOWED_ERROR = torch.bfloat16, 0.02


def plan_of(name: str, total: int, ranks: int) -> Plan:
    lengths = lengths_of(total) if name == "packed" else [total]
    mask = masks.from_cu_seqlens([0, *itertools.accumulate(lengths)])
    return Plan.from_mask(
        mask, cp_size=ranks, num_heads_q=HEADS, num_heads_kv=HEADS, head_dim=NOPE + ROPE,
        head_dim_v=VALUE,
    )  # fmt: skip


class Layer:
    """Projections and attention of a rank's rows, as Stopwatch calls them."""

    def __init__(self, bound, mode: str, weights: list[torch.Tensor]) -> None:
        self._bound, self._mode, self._weights = bound, mode, weights

    def forward(self, x, *_):
        q_down, q_up, kv_down, kv_up, o = self._weights
        q = F.linear(F.linear(x, q_down), q_up).unflatten(1, (HEADS, NOPE + ROPE))
        latent, rope = F.linear(x, kv_down).split((LATENT, ROPE), 1)
        out, _ = self._bound.calc_latent_attn(q, latent, rope, kv_up, mode=self._mode)
        out = F.linear(out.flatten(1), o)
        return out, (x, out)

    def backward(self, dout, saved):
        x, out = saved
        return torch.autograd.grad(out, (x, *self._weights), dout)


def made(*shape: int, seed: int, is_weight: bool = True) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cuda")
    return (values * shape[-1] ** -0.5 if is_weight else values).to(TYPE).requires_grad_()


def error_of(sides: dict[str, Side]) -> float:
    """Of results and gradients of the two, relative to their norms, the largest."""
    found = []
    for side in sides.values():
        x, _, _, dout = side.tensors
        out, saved = side.attention.forward(x)
        of_x, *of_weights = side.attention.backward(dout, saved)
        for gradient in of_weights:  # the up projection's parts are split otherwise over ranks
            dist.all_reduce(gradient)
        found.append([out.detach(), of_x, *of_weights])
    pairs = zip(*found)
    return max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs)


def ratio_of(name: str, total: int, options, group) -> float:
    bound = plan_of(name, total, group.size()).bind(group)
    rows = bound.plan.ranges_of(bound.rank).to_naive_ranges()
    shapes = (
        (Q_LATENT, HIDDEN), (HEADS * (NOPE + ROPE), Q_LATENT), (LATENT + ROPE, HIDDEN),
        (HEADS * (NOPE + VALUE), LATENT), (HIDDEN, HEADS * VALUE),
    )  # fmt: skip
    weights = [made(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    x, dout = (
        made(bound.local_rows, HIDDEN, seed=9 + bound.rank + 100 * i, is_weight=False)
        for i in range(2)
    )
    tensors = x, None, None, dout.detach()
    sides = {
        mode: Side(mode, Layer(bound, mode, weights), rows, tensors)
        for mode in ("latent", "expanded")
    }
    watch = Stopwatch(group, torch.device("cuda"))
    (error,) = watch.slowest([error_of(sides)])
    if error > ALLOWED_ERROR:
        raise SystemExit(f"{name}: latents and keys differ by {error:.2g}")
    found = watch.rounds(sides, options.seconds, options.rounds)
    times = {mode: median(sum(pair) for pair in pairs) for mode, pairs in found.items()}
    if group.rank() == 0:
        shown = {mode: f"{seconds * 1e3:.2f} ms" for mode, seconds in times.items()}
        print(f"{name}: {shown}, error {error:.2g}", file=sys.stderr, flush=True)
    return times["latent"] / times["expanded"]


def bytes_ratio() -> float:
    price = plan_of("causal", 1 << 16, 2).price_latents(LATENT, ROPE)
    return price.latent_bytes / price.expanded_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=1 << 16)
    parser.add_argument("--seconds", type=float, default=20, help="of each cell")
    parser.add_argument("--rounds", type=int, default=5, help="at least")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if options.device == "cpu":
        rows = [{"name": "mla2.bytes", "value": bytes_ratio(), "unit": "ratio"}]
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        return
    start("cuda")
    group, rows = dist.group.WORLD, []
    for name, label in (("causal", "64k"), ("packed", "packed.64k")):
        value = ratio_of(name, options.tokens, options, group)
        rows.append({"name": f"mla2.time.{label}", "value": value, "unit": "ratio"})
        torch.cuda.empty_cache()
    if group.rank() == 0:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
