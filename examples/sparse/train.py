#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level model with dense, MoBA-like and NSA-like attention on the same text, and
compares the losses.

    python examples/sparse/train.py [--steps N] [--rows N] [--device cuda] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time

import torch
from torch import nn

from layers import KINDS, Sizes

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARE = 0.1  # of the steps, the last of which are averaged
MOST_ABOVE = 0.15  # nats by which a sparse loss may be above the dense one
LEAST_FALL = 1.0  # nats
SEED = 0


class Layer(nn.Module):
    def __init__(self, kind: str, sizes: Sizes) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.dim) for _ in range(2))
        self.attention = KINDS[kind](sizes)
        self.wide = nn.Linear(sizes.dim, 4 * sizes.dim)
        self.narrow = nn.Linear(4 * sizes.dim, sizes.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))


class Model(nn.Module):
    """Bytes [rows] -> logits [rows, 256] of the next ones."""

    def __init__(self, kind: str, sizes: Sizes, rows: int, num_layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.bytes = nn.Embedding(256, sizes.dim)
        self.places = nn.Embedding(rows, sizes.dim)
        self.layers = nn.ModuleList(Layer(kind, sizes) for _ in range(num_layers))
        self.norm = nn.LayerNorm(sizes.dim)
        self.head = nn.Linear(sizes.dim, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.bytes(text) + self.places.weight[: text.shape[0]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def read_text() -> torch.Tensor:
    """The project's documents one behind the other, uint8."""
    paths = sorted((ROOT / "docs").rglob("*.md"))
    return torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in paths)), dtype=torch.uint8)


def train(kind: str, text: torch.Tensor, given: argparse.Namespace) -> list[float]:
    """The losses of all steps, in nats per byte."""
    device = torch.device(given.device)
    model = Model(kind, Sizes(), given.rows).to(device)
    if device.type == "cuda":  # GPU kernels take 16 bits
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(SEED)
    losses = []
    for _ in range(given.steps):
        first = int(torch.randint(len(text) - given.rows - 1, (), generator=draw))
        piece = text[first : first + given.rows + 1].to(device, torch.int64)
        loss = nn.functional.cross_entropy(model(piece[:-1]).float(), piece[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def end_of(losses: list[float]) -> float:
    last = losses[-max(1, int(SHARE * len(losses))) :]
    return sum(last) / len(last)


def failures_of(curves: dict[str, list[float]]) -> list[str]:
    """What is wrong with the losses, a sentence each."""
    found = []
    for kind, losses in curves.items():
        if not end_of(losses) < losses[0] - LEAST_FALL:
            found.append(f"{kind}: the loss fell from {losses[0]:.3f} to {end_of(losses):.3f} only")
        if not end_of(losses) < end_of(curves["dense"]) + MOST_ABOVE:
            found.append(
                f"{kind}: the loss is more than {MOST_ABOVE} above that of dense attention"
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="dense, MoBA-like and NSA-like attention on text")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--rows", type=int, default=512, help="bytes of a step")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "demo_out" / "sparse")
    given = parser.parse_args()
    text, curves = read_text(), {}
    for kind in KINDS:
        begin = time.monotonic()
        curves[kind] = train(kind, text, given)
        seconds = time.monotonic() - begin
        end = end_of(curves[kind])
        print(f"{kind:6} loss {curves[kind][0]:.3f} -> {end:.3f} nats per byte, {seconds:.0f} s")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "losses.json").write_text(json.dumps(curves), encoding="utf-8")
    failures = failures_of(curves)
    print("\n".join(failures) if failures else "all losses fell, and sparse ones end beside dense")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
