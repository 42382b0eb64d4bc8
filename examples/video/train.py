#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer over text and video to remove noise from moving blobs: in one process
by torch's dense attention, with and without a window, then over ranks under plans of the window,
and compares the losses.

    python examples/video/train.py [--ranks 1,2,4] [--steps N] [--size 8,12,12] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
from functools import partial

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn

from magi_attention import Plan, masks

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINDOW, TILE = (3, 3, 3), (2, 2, 2)
TEXT, WORDS = 4, 16  # where a blob begins, and how it moves: rows and columns
HEADS, DIM, CHANNELS = 4, 64, 4
VIDEO, PADDING = -1, -2  # among the words of rows
MOST_APART = 1e-4  # by which a loss over ranks may differ: sums are in another order
MOST_ABOVE = 1.3  # times the loss of attention to all tokens


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x: torch.Tensor, attend) -> torch.Tensor:
        qkv = self.qkv(self.norms[0](x)).view(len(x), 3, HEADS, -1).unbind(1)
        x = x + self.out(attend(*qkv).flatten(1))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    """Words [rows], or VIDEO, pixels [rows, CHANNELS] and places [rows, 3] -> pixels."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)  # equal weights in every process
        self.words = nn.Embedding(TEXT * WORDS, DIM)
        self.pixels = nn.Linear(CHANNELS, DIM)
        self.places = nn.ModuleList(nn.Embedding(size, DIM) for size in sizes)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(DIM, CHANNELS)

    def forward(self, words, pixels, places, attend) -> torch.Tensor:
        video = self.pixels(pixels) + sum(
            embed(place) for embed, place in zip(self.places, places.unbind(1))
        )
        x = torch.where((words < 0)[:, None], video, self.words(words.clamp(min=0)))
        for layer in self.layers:
            x = layer(x, attend)
        return self.head(x)


def sample(step: int, sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Words, noisy pixels, places and clean pixels of a text and a video: [tokens, ...] each."""
    draw = torch.Generator().manual_seed(step)
    said = torch.randint(WORDS, (TEXT,), generator=draw)
    words = torch.cat((said + torch.arange(TEXT) * WORDS, torch.full((sizes.numel(),), VIDEO)))
    places = torch.cartesian_prod(*map(torch.arange, sizes))
    frame, at = places[:, :1], places[:, 1:]
    extent = torch.tensor(sizes[1:])
    centre = said[:2] * extent / WORDS + frame * (said[2:] - WORDS / 2) / WORDS
    apart = (at - centre + extent / 2) % extent - extent / 2
    clean = torch.exp(-apart.square().sum(1, keepdim=True) / torch.arange(2, 2 + CHANNELS))
    noisy = clean + torch.randn(clean.shape, generator=draw)
    empty = torch.zeros(TEXT, CHANNELS)
    places = torch.cat((torch.zeros(TEXT, 3, dtype=torch.int64), places))
    return words, torch.cat((empty, noisy)), places, torch.cat((empty, clean))


def dense(visible: torch.Tensor | None, q, k, v) -> torch.Tensor:
    heads = (x.transpose(0, 1) for x in (q, k, v))
    return nn.functional.scaled_dot_product_attention(*heads, attn_mask=visible).transpose(0, 1)


def train(given: argparse.Namespace, is_windowed: bool, group=None) -> list[float]:
    """The losses of all steps; over the ranks of a group under a plan."""
    sizes = torch.Size(map(int, given.size.split(",")))
    window, tile = (WINDOW, TILE) if is_windowed else (None, (1, 1, 1))
    mask, order = masks.from_video(*sizes, window=window, tile=tile, text=TEXT)
    model, losses, bound = Model(sizes), [], None
    attend = partial(dense, masks.to_matrix(mask))
    if group is not None:
        shape = {"num_heads_q": HEADS, "num_heads_kv": HEADS, "head_dim": DIM // HEADS}
        bound = Plan.from_mask(mask, cp_size=group.size(), **shape).bind(group)

        def attend(q, k, v):
            return bound.calc_attn(q, k, v)[0]

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, eps=1e-5)
    for step in range(given.steps):
        words, noisy, places, clean = (x[order] for x in sample(step, sizes))
        if bound is not None:
            words = bound.dispatch(words, PADDING)
            noisy, places, clean = map(bound.dispatch, (noisy, places, clean))
        found = model(words, noisy, places, attend)
        error = (found - clean)[words == VIDEO].square().sum()
        loss = error / (sizes.numel() * CHANNELS)
        optimizer.zero_grad()
        loss.backward()
        loss = loss.detach()
        if group is not None:
            for tensor in (loss, *(p.grad for p in model.parameters())):
                dist.all_reduce(tensor, group=group)
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_rank(rank: int, ranks: int, store: str, given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    losses = train(given, True, dist.group.WORLD)
    if rank == 0:
        (given.out / f"{ranks}.json").write_text(json.dumps(losses), encoding="utf-8")
    dist.destroy_process_group()


def over_ranks(ranks: int, given: argparse.Namespace) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run_rank, (ranks, f"{folder}/store", given), nprocs=ranks)
    return json.loads((given.out / f"{ranks}.json").read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="a text-video model over ranks, beside one process"
    )
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", default="8,12,12", help="frames, lines and columns")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "demo_out" / "video")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    ends = {}
    for name, is_windowed in (("all tokens", False), ("window", True)):
        alone = train(given, is_windowed)
        ends[name] = sum(alone[-10:]) / len(alone[-10:])
        print(f"one process, {name}: {alone[0]:.4f} -> {ends[name]:.4f}")
    is_same = True
    for ranks in map(int, given.ranks.split(",")):
        losses = over_ranks(ranks, given)
        apart = max(abs(a - b) for a, b in zip(losses, alone))
        is_same &= apart <= MOST_APART
        print(f"cp {ranks}, window: at most {apart:.1g} from one process")
    is_near = ends["window"] <= MOST_ABOVE * ends["all tokens"]
    print("over ranks the losses are those of one process" if is_same else "the losses differ")
    print(
        "the window's are", "near" if is_near else "far above", "those of attention to all tokens"
    )
    return 0 if is_same and is_near else 1


if __name__ == "__main__":
    sys.exit(main())
