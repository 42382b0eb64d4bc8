#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Plan.memory predicts, beside the most that torch held in a step:

    torchrun --nproc-per-node 2 bench/memory.py --out memory.json --rows rows.json

Twelve settings of bench/training.py's model (8 layers of Llama-8B's shape), of 16k and 64k tokens
of one causal document over all ranks. Each has its own model, a short step that makes the
optimizer's states, and two steps, of which the second counts. An error is the larger of predicted
over measured and the inverse; the worst of all ranks and settings is train.memory.error.
--tiny runs small sizes over gloo on CPUs, where nothing is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist

from distributed.trainings import InParts, Ours, Policy, Trained, data_of, make_plain, shard
from magi_attention.training import ModelShape, Offload, Training
from training import Bench

POLICY_OF = {"all": "all", "inputs": "whole", "attention": "saved"}
VOCABULARY, LLAMA_VOCABULARY = 4096, 128256
CHUNK = 8192
OF_16K = {"tokens": 16384, "loss_rows": CHUNK}
OF_64K = {"tokens": 65536, "loss_rows": CHUNK}
OF_LLAMA = {"tokens": 16384, "vocabulary": LLAMA_VOCABULARY}
KEPT = {"keeps": "attention"}
SETTINGS: dict[str, dict] = {
    "16k": OF_16K,
    "16k, saved": OF_16K | KEPT,
    "16k, all": OF_16K | {"keeps": "all"},
    "16k, momentum without FSDP": OF_16K
    | {"optimizer": "momentum", "weight_bytes": 2, "is_sharded": False},
    "16k, 128k words": OF_LLAMA | KEPT,
    "16k, 128k words, loss over rows": OF_LLAMA | KEPT | {"loss_rows": 2048},
    "64k": OF_64K,
    "64k, saved": OF_64K | KEPT,
    "64k, offloaded": OF_64K | KEPT | {"offload_layers": 2},
    "64k, over rows": OF_64K | KEPT | {"layer_rows": CHUNK},
    "64k, by groups": OF_64K | KEPT | {"head_groups": 4},
    "64k, in parts, offloaded": OF_64K
    | KEPT
    | {"offload_layers": 1, "layer_rows": CHUNK, "head_groups": 4},
}
TINY = 64  # times shorter
OPTIMIZERS = {
    "adamw": lambda weights, is_fused: torch.optim.AdamW(weights, lr=1e-5, fused=is_fused),
    "momentum": lambda weights, is_fused: torch.optim.SGD(
        weights, lr=1e-5, momentum=0.9, fused=is_fused
    ),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setting", action="append", help="a part of a name; default: all")
    parser.add_argument("--out", type=pathlib.Path, help="JSON, a cell for each setting")
    parser.add_argument("--rows", type=pathlib.Path, help="figures for tools/record to write")
    parser.add_argument("--tiny", action="store_true", help="small sizes over gloo on CPUs")
    parser.set_defaults(vocabulary=None)
    given = parser.parse_args()
    chosen = [n for n in SETTINGS if any(part in n for part in given.setting or [""])]
    if not chosen:
        parser.error(f"--setting is {given.setting}; allowed: parts of {', '.join(SETTINGS)}")
    given.settings = chosen
    return given


class Run:
    """The model of a setting, its optimizer and its rows."""

    def __init__(self, bench: Bench, vocabulary=VOCABULARY, is_sharded=True, **options) -> None:
        self.bench = bench
        self.tokens = options.pop("tokens")
        shape = bench.shape
        if bench.given.tiny:
            self.tokens //= TINY
            for name in {"loss_rows", "layer_rows"} & options.keys():
                options[name] //= TINY
        else:
            shape = dataclasses.replace(shape, vocabulary=vocabulary)
        self.shape = shape
        self.training = Training(shards=bench.size if is_sharded else 0, **options)
        self.model = self._make()
        make = OPTIMIZERS[self.training.optimizer]
        self.optimizer = make(self.model.parameters(), bench.device.type == "cuda")

    def _make(self) -> Trained:
        training, bench = self.training, self.bench
        policy = Policy()
        policy.choose(POLICY_OF[training.keeps])
        if training.offload_layers:
            policy.host = Offload(layers=training.offload_layers)
            policy.context_fn = policy.host.save_attention
        with bench.device:
            model = Trained(make_plain(self.shape), policy)
        for checkpointed in model.llama.model.layers:
            checkpointed.layer = InParts(checkpointed.layer, training.layer_rows)
        model.loss_rows = training.loss_rows or self.tokens
        if training.shards:
            return shard(model, bench.device, bench.group)
        return model.to(torch.bfloat16)

    def side(self, tokens: int) -> Ours:
        """Rows of one document, and what InParts takes for its attention."""
        groups = self.training.head_groups
        data = data_of([tokens], self.shape.vocabulary, self.bench.device)
        side = Ours(data, self.shape, self.bench.group)
        if groups > 1:
            side.bound = side.bind(self.shape.heads // groups, self.shape.kv_heads // groups)
        side.attend = side.bound, groups
        return side

    def step(self, side: Ours) -> dict[str, int]:
        """Most bytes of the forward, of the backward, of the optimizer's step."""
        self.optimizer.zero_grad()
        peaks = {}
        self.bench.most_bytes()
        loss = self.model(*side.rows, side.attend) * side.loss_factor
        peaks["forward"] = self.bench.most_bytes()
        loss.backward()
        peaks["backward"] = self.bench.most_bytes()
        self.optimizer.step()
        peaks["optimizer"] = self.bench.most_bytes()
        return peaks

    def predicted(self, side: Ours):
        """By Plan.memory, of this rank."""
        shape = self.shape
        model = ModelShape(
            shape.layers, shape.hidden, shape.intermediate, shape.heads, shape.kv_heads,
            shape.head_dim, shape.vocabulary,
            element_bytes=4 if self.bench.given.tiny and self.training.shards else 2,
        )  # fmt: skip
        return side.bound.plan.memory(model, self.training)[self.bench.rank]


class MemoryBench(Bench):
    """Adds what torch held."""

    def most_bytes(self) -> int:
        """Since this was last asked; 0 on CPUs."""
        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak


def cell_of(bench: MemoryBench, name: str) -> dict:
    """What is known of a setting; before: what torch held already."""
    before = torch.cuda.memory_allocated() if bench.device.type == "cuda" else 0
    run = Run(bench, **SETTINGS[name])
    run.step(run.side(min(run.tokens, 256 * bench.size)))
    side = run.side(run.tokens)
    run.step(side)
    peaks = run.step(side)
    memory = run.predicted(side)
    peak = max(peaks.values())
    error = max(memory.peak / peak, peak / memory.peak) if peak else 0.0
    worst = bench.slowest(error)
    gib = {phase: round(size / 2**30, 3) for phase, size in peaks.items()}
    bench.say(f"{name}: predicted {memory.peak / 2**30:.3f} GiB in {memory.moment}, measured "
              f"{gib}, error {worst:.4f}")  # fmt: skip
    return {
        "error": worst, "before": before, "measured": peaks, "predicted": memory.peak,
        "moment": memory.moment, "parts": memory.parts, "outside": memory.outside,
        "tokens": run.tokens, "training": dataclasses.asdict(run.training),
    }  # fmt: skip


def main() -> None:
    given = parse()
    bench = MemoryBench(given)
    machine = "CPUs" if given.tiny else torch.cuda.get_device_name()
    about = {"machine": f"{bench.size} x {machine}", "torch": torch.__version__}
    cells: dict[str, dict] = {}
    for name in given.settings:
        cells[name] = cell_of(bench, name)
        bench.settle()
        worst = max(cell["error"] for cell in cells.values())
        row = {"name": "train.memory.error", "value": round(worst, 4), "unit": "ratio"}
        for path, written in ((given.out, {"about": about, "cells": cells}), (given.rows, [row])):
            if bench.rank == 0 and path:
                path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    bench.say(f"worst error {worst:.4f}")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # groups that FSDP2 has used outlive their end (examples/llama_cp/trainer.py)


if __name__ == "__main__":
    main()
