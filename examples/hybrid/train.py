#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small Qwen3-Next (three layers of the gated delta rule, one of attention) on packed
documents of text: in one process, document by document, then over ranks under plans, and compares
the losses.

    python examples/hybrid/train.py [--ranks 1,2,4] [--steps N] [--rows N] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from magi_attention import Plan, masks
from magi_attention.integrations.transformers import register, shard

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "examples" / "llama_cp"))

from text import IGNORED, VOCABULARY, Packed, Text  # noqa: E402

MOST_APART = 2e-3  # nats by which a loss over ranks may differ: sums are in another order
HEADS = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 16}


def make_model() -> Qwen3NextForCausalLM:
    """Equal weights in every process."""
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        layer_types=[*["linear_attention"] * 3, "full_attention"], mlp_only_layers=[0, 1, 2, 3],
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
    )  # fmt: skip
    return Qwen3NextForCausalLM(config)


def loss_alone(model, packed: Packed, _) -> torch.Tensor:
    """The mean loss of the bytes of a sequence, each document by itself."""
    lengths = packed.bounds.diff().tolist()
    parts = zip(packed.ids.split(lengths), packed.targets.split(lengths))
    losses = [
        torch.nn.functional.cross_entropy(
            model(input_ids=ids[None], use_cache=False).logits[0], targets,
            ignore_index=IGNORED, reduction="sum",
        )
        for ids, targets in parts
    ]  # fmt: skip
    return sum(losses) / (packed.targets != IGNORED).sum()


def loss_over_ranks(model, packed: Packed, group) -> torch.Tensor:
    """This rank's part of it, under a plan."""
    mask = masks.from_cu_seqlens(packed.bounds, causal=True)
    bound = Plan.from_mask(mask, cp_size=group.size(), **HEADS).bind(group)
    labels = packed.ids.clone()
    labels[packed.bounds[:-1].long()] = IGNORED  # what no document predicts
    given = (x[None] for x in (packed.ids, labels, packed.positions))
    arguments = shard(bound, *given, model)
    return model(**arguments, num_items_in_batch=int((labels != IGNORED).sum())).loss


def train(loss_of, group, given: argparse.Namespace) -> list[float]:
    """The losses of all steps, in nats per byte."""
    text, model, losses = Text(given.rows, given.steps), make_model(), []
    if group is not None:
        model.set_attn_implementation("magi")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5)
    for step in range(given.steps):
        loss = loss_of(model, text.sequence(step), group)
        optimizer.zero_grad()
        loss.backward()
        loss = loss.detach()
        if group is not None:
            for tensor in (loss, *(p.grad for p in model.parameters() if p.grad is not None)):
                dist.all_reduce(tensor, group=group)
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_rank(rank: int, ranks: int, store: str, given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    register()
    losses = train(loss_over_ranks, dist.group.WORLD, given)
    if rank == 0:
        (given.out / f"{ranks}.json").write_text(json.dumps(losses), encoding="utf-8")
    dist.destroy_process_group()


def over_ranks(ranks: int, given: argparse.Namespace) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run_rank, (ranks, f"{folder}/store", given), nprocs=ranks)
    return json.loads((given.out / f"{ranks}.json").read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description="a hybrid model over ranks, beside one process")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=1024, help="bytes of a step")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "demo_out" / "hybrid")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    begin, is_same = time.monotonic(), True
    alone = train(loss_alone, None, given)
    print(f"one process: {alone[0]:.4f} -> {alone[-1]:.4f}, {time.monotonic() - begin:.0f} s")
    for ranks in map(int, given.ranks.split(",")):
        begin = time.monotonic()
        losses = over_ranks(ranks, given)
        apart = max(abs(a - b) for a, b in zip(losses, alone))
        is_same &= apart <= MOST_APART
        seconds = time.monotonic() - begin
        print(f"cp {ranks}: {losses[0]:.4f} -> {losses[-1]:.4f}, at most {apart:.1g} apart, "
              f"{seconds:.0f} s")  # fmt: skip
    print("the losses are those of one process" if is_same else "the losses differ")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
