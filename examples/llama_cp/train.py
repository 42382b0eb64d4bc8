#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level Llama on packed documents with SDPA and with context parallel attention, and
checks that the curves and the first gradients are the same.

    python train.py                          # 4 processes on the CPU, or one for each GPU
    torchrun --nproc-per-node 8 train.py     # as torchrun says
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import compare
from chart import draw
from model import Shape
from runs import Run
from text import VOCABULARY, Text
from trainer import Job, end_rank, first_gradients, train

SMALL = Shape(hidden=128, intermediate=344, layers=2, heads=8, kv_heads=2, vocabulary=VOCABULARY)
LARGE = Shape(hidden=512, intermediate=1408, layers=4, heads=8, kv_heads=2, vocabulary=VOCABULARY)
SMALL_ROWS, MANY_ROWS = 512, 4096


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--models", default="", help="plain,transformers (default: those there)")
    parser.add_argument("--ranks", type=int, default=0, help="processes, without torchrun")
    parser.add_argument("--cpu", action="store_true", help="on the CPU although there are GPUs")
    parser.add_argument("--fsdp", action="store_true", help="FSDP2 on the CPU too")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo_out/llama_cp"))
    given = parser.parse_args(arguments)
    if not given.models:
        has_transformers = importlib.util.find_spec("transformers") is not None
        given.models = "plain,transformers" if has_transformers else "plain"
    given.models = given.models.split(",")
    unknown = set(given.models) - {"plain", "transformers"}
    if unknown:
        parser.error(f"--models is {','.join(given.models)}; allowed: plain, transformers")
    if given.steps < 1:
        parser.error(f"--steps is {given.steps}; allowed: 1 or more")
    return given


def runs_of(models: list[str], world_size: int) -> list[Run]:
    """The first is what the others are held against."""
    made = []
    for model in models:
        if model == models[0]:
            made += [Run(model, "math"), Run(model, "efficient", is_reversed=True)]
        made.append(Run(model, "efficient"))
        made += [Run(model, "magi", cp) for cp in (1, 2, 4, 8) if world_size % cp == 0]
    return [*made, Run(models[0], "leaky")]


class Reporter:
    """Prints on rank 0; counts failed checks on all ranks."""

    def __init__(self, is_talking: bool) -> None:
        self.is_talking = is_talking
        self.failures = 0

    def say(self, text: str) -> None:
        if self.is_talking:
            print(text, flush=True)

    def check(self, is_good: bool, text: str) -> None:
        self.failures += not is_good
        self.say(f"{'ok  ' if is_good else 'FAIL'}  {text}")


def check_curves(curves: compare.Curves, reporter: Reporter) -> None:
    noise = compare.noise(curves)
    allowed = compare.MARGIN * noise
    reporter.say(f"\nnoise between runs of SDPA: {noise:.2e}")
    for run, distance in compare.distances(curves).items():
        if run.attention == "magi":
            reporter.check(distance <= allowed, f"{run.name}: {distance:.2e} from SDPA")
        elif run.attention == "leaky":
            text = "documents that see each other are told apart"
            reporter.check(distance > allowed, f"{text}: {distance:.2e} from SDPA")


def check_learning(curves: compare.Curves, reporter: Reporter) -> None:
    for run, curve in curves.items():
        if run.attention == "magi":
            is_finite = all(map(torch.isfinite, torch.tensor(curve)))
            text = f"{run.name}: loss {curve[0]:.3f} -> {curve[-1]:.3f}"
            reporter.check(is_finite and (len(curve) < 20 or curve[-1] < curve[0]), text)


def check_gradients(runs: list[Run], job: Job, text: Text, reporter: Reporter) -> None:
    """float64, on the CPU, whatever the curves were computed on."""
    reporter.say("\nfirst gradients in float64, largest error of a parameter's:")
    wanted = {}
    for run in runs:
        if run.is_sdpa and run.model not in wanted:
            wanted[run.model] = first_gradients(run, job, text)
        elif run.attention == "magi":
            found = first_gradients(run, job, text)
            error, name = compare.gradient_errors(found, wanted[run.model])
            is_good = error <= compare.GRADIENT_TOLERANCE
            reporter.check(is_good, f"{run.name}: {error:.2e} ({name})")


def write(curves: compare.Curves, out: pathlib.Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    named = {run.name: curve for run, curve in curves.items()}
    (out / "losses.json").write_text(json.dumps(named, indent=1))
    dashed = {run.name for run in curves if run.attention != "magi"}
    title = "loss of a byte-level Llama on packed documents, nats per byte"
    (out / "losses.svg").write_text(draw(named, dashed, compare.noise(curves), title))
    print(f"\nwrote {out / 'losses.svg'} and {out / 'losses.json'}")


def compare_all(given: argparse.Namespace, device: torch.device) -> int:
    """Every rank runs this; the number of failed checks."""
    world_size, reporter = dist.get_world_size(), Reporter(dist.get_rank() == 0)
    is_cuda = device.type == "cuda"
    rows, shape = (MANY_ROWS, LARGE) if is_cuda else (SMALL_ROWS, SMALL)
    rate = 1e-3 if is_cuda else 3e-3
    job = Job(shape, given.steps, world_size, rate, device, is_cuda or given.fsdp)
    text = Text(rows, given.steps * world_size)
    reporter.say(
        f"{world_size} ranks on {device.type}, {given.steps} steps of {world_size} x {rows} bytes"
    )
    curves: compare.Curves = {}
    runs = runs_of(given.models, world_size)
    for run in runs:
        begin = time.perf_counter()
        curves[run] = train(run, job, text)
        seconds = time.perf_counter() - begin
        reporter.say(f"{run.name:34} loss {curves[run][-1]:.6f}   {seconds:5.1f} s")
    check_learning(curves, reporter)
    check_curves(curves, reporter)
    on_cpu = Job(SMALL, 1, world_size, rate, torch.device("cpu"), fsdp=False)
    check_gradients(runs, on_cpu, Text(SMALL_ROWS, world_size), reporter)
    if dist.get_rank() == 0:
        write(curves, given.out)
    return reporter.failures


def work(rank: int, given: argparse.Namespace, world_size: int, store: str | None) -> None:
    """One rank; store: where ranks meet, None for torchrun's environment."""
    local_rank = rank if store else int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.cuda.is_available() and not given.cpu:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    where = {"init_method": f"file://{store}", "rank": rank, "world_size": world_size}
    dist.init_process_group(backend, **(where if store else {}))
    try:
        failures = compare_all(given, device)
    finally:
        dist.destroy_process_group()
    end_rank(1 if failures else 0)


def main() -> int:
    given = parse()
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), given, int(os.environ["WORLD_SIZE"]), None)
    on_gpus = torch.cuda.is_available() and not given.cpu
    ranks = given.ranks or (torch.cuda.device_count() if on_gpus else 4)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        try:
            multiprocessing.spawn(work, (given, ranks, f"{folder}/store"), nprocs=ranks)
        except multiprocessing.ProcessExitedException as error:
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
