#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the Llama of this folder on long sequences under every way to share the ranks, and
compares losses and speed: torchrun --nproc-per-node 8 long.py --out llama.json

A step takes as many sequences of --tokens bytes as there are ranks, packed from whole files that do
not see each other. cp 1 is data parallel alone; with cp 8 all ranks compute each sequence together.
Weights, bytes and FSDP2 are the same. Curves may be twice as far from that of cp 1 as the same run
is whose sequences come in reverse order. --out is written after every run, and runs that it has
are not repeated: a run that was stopped goes on. Exit code 1: a curve is further away.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import statistics
import time

import torch
import torch.distributed as dist

import compare
from model import Shape
from runs import Run
from text import VOCABULARY, Text
from trainer import Job, end_rank, train

SMALL = Shape(hidden=64, intermediate=172, layers=2, heads=8, kv_heads=8, vocabulary=VOCABULARY)
LARGE = Shape(hidden=1024, intermediate=2816, layers=8, heads=8, kv_heads=2, vocabulary=VOCABULARY)
WARM_STEPS = 2  # of a run, which its speed leaves out
REVERSED = "cp 1, reversed"
LEAST_NOISE = torch.finfo(torch.float32).eps
MOST_FILE = 1 << 20  # bytes of a document


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=131072, help="of a sequence")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument(
        "--minutes", type=float, help="begin no run behind the first that ends later"
    )
    parser.add_argument("--cpu", action="store_true", help="on the CPU, a smaller model")
    given = parser.parse_args()
    if given.steps < 1:
        parser.error(f"--steps is {given.steps}; allowed: 1 or more")
    if given.tokens < 64:
        parser.error(f"--tokens is {given.tokens}; allowed: 64 or more")
    if "RANK" not in os.environ:
        parser.error("RANK is not set; allowed: ranks that torchrun started")
    return given


def runs_of(world_size: int) -> dict[str, Run]:
    """By name; the first is what the others are held against, the second their yardstick."""
    named = {"cp 1": Run("plain", "magi"), REVERSED: Run("plain", "magi", is_reversed=True)}
    named |= {f"cp {cp}": Run("plain", "magi", cp) for cp in (2, 4, 8) if world_size % cp == 0}
    return named


def measure(run: Run, job: Job, text: Text) -> dict:
    """losses of all steps, and tokens per second of all ranks in the median step."""
    times = []

    def keep_time() -> None:
        if job.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        times.append(time.perf_counter())

    keep_time()
    losses = train(run, job, text, keep_time)
    spans = [after - before for before, after in itertools.pairwise(times)]
    span = statistics.median(spans[WARM_STEPS:] or spans)
    if job.device.type == "cuda":
        torch.cuda.empty_cache()
    return {"losses": losses, "tokens_per_second": job.sequences * text.rows / span}


def distance_of(curves: dict[str, list[float]]) -> dict:
    """noise: how far cp 1 is from itself in another order; the largest distance of a curve from
    cp 1, and that over the noise.
    """
    own = curves["cp 1"]
    rounding = LEAST_NOISE * compare.distance(own, [0.0] * len(own))
    noise = max(rounding, compare.distance(own, curves[REVERSED]))
    others = [curve for name, curve in curves.items() if name not in ("cp 1", REVERSED)]
    most = max((compare.distance(own, curve) for curve in others), default=0.0)
    return {"noise": noise, "distance": most, "over_noise": most / noise}


class Record:
    """What --out holds. All ranks read it, rank 0 writes it."""

    def __init__(self, path: pathlib.Path, about: dict) -> None:
        self._path, self._about, self.runs = path, about, {}
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["about"] == about:
                self.runs = kept["runs"]
        dist.barrier()  # all have read what rank 0 writes

    def add(self, name: str, result: dict) -> None:
        self.runs[name] = result
        curves = {name: run["losses"] for name, run in self.runs.items()}
        compared = distance_of(curves) if {"cp 1", REVERSED} <= set(curves) else {}
        if dist.get_rank() == 0:
            whole = {"about": self._about, "runs": self.runs, "compared": compared}
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
            partial.replace(self._path)

    def is_good(self) -> bool:
        """Whether the curves are close, of those that there are."""
        curves = {name: run["losses"] for name, run in self.runs.items()}
        if not {"cp 1", REVERSED} <= set(curves):
            return True
        return distance_of(curves)["over_noise"] <= compare.MARGIN


def train_all(given: argparse.Namespace, device: torch.device) -> int:
    """Every rank runs this; the exit code."""
    begin, size = time.monotonic(), dist.get_world_size()
    shape = SMALL if device.type == "cpu" else LARGE
    job = Job(shape, given.steps, size, 1e-3, device, fsdp=True)
    about = {
        "ranks": size, "tokens": given.tokens, "steps": given.steps, "model": vars(shape),
        "machine": str(device.type if device.type == "cpu" else torch.cuda.get_device_name()),
        "torch": torch.__version__,
    }  # fmt: skip
    record = Record(given.out, about)
    text = Text(given.tokens, 2 * size, MOST_FILE)
    longest = 0.0
    for name, run in runs_of(size).items():
        if name in record.runs:
            continue
        started = time.monotonic() - begin
        end = torch.tensor(started + longest, dtype=torch.float64, device=device)
        dist.all_reduce(end, dist.ReduceOp.MAX)
        if given.minutes is not None and longest and end > 60 * given.minutes:
            break
        record.add(name, measure(run, job, text))
        longest = max(longest, time.monotonic() - begin - started)
        if dist.get_rank() == 0:
            result = record.runs[name]
            print(f"{name:16} loss {result['losses'][-1]:.6f}   "
                  f"{result['tokens_per_second']:,.0f} tokens/s", flush=True)  # fmt: skip
    return 0 if record.is_good() else 1


def main() -> None:
    given = parse()
    device = torch.device("cpu")
    if not given.cpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("gloo" if given.cpu else "cpu:gloo,cuda:nccl")
    try:
        code = train_all(given, device)
    finally:
        dist.destroy_process_group()
    end_rank(code)


if __name__ == "__main__":
    main()
