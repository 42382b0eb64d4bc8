#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention over ranks beside our kernel alone and what other systems do:
torchrun --nproc-per-node N bench/dist_attention.py --out CELLS --rows ROWS

A cell is a mask and a number of tokens per rank. Its sides are calc_attn under settings, our kernel
with the whole sequence on every GPU at once (alone), and baselines that run our kernel: Ulysses, a
zigzag ring, an all-gather of keys and values, Ulysses around a ring (USP), and where --sides names
it Ulysses with kernels of other packages (ulysses_fa4, ulysses_cudnn, ulysses_torch). Each side's
results are compared with those of the kernel alone; then rounds time four calls in a row of every
side, in random order, and medians of the slowest rank count. TFLOP/s are 4 * area * heads_q *
head_dim forward and 2.5 times that backward, per GPU; a share is that over the kernel alone of the
same round.

--out gets one JSON line per cell, --rows the named figures for tools/record, standard error a
table. bench/dist_plots.py draws the cells, bench/dist_timeline.py what --trace wrote.
--resume keeps the cells that --out has, and measures those alone that lack one of the sides;
--minutes begins no cell that is not predicted to end by then. bench/dist_record.py runs it so.
--device cpu runs small sizes over gloo.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

from distributed import host, kept
from distributed.cells import Options, run_cell
from distributed.figures import rows_of, table_of
from distributed.ours import parse_setting, with_work
from distributed.sides import BASELINES, MASKS, OF_BACKENDS, Makers, Problem
from distributed.timing import Stopwatch

TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, help="JSON lines to write, one per cell")
    parser.add_argument("--rows", type=pathlib.Path, help="figures for tools/record to write")
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--tokens", default="8192,16384", help="per rank")
    parser.add_argument(
        "--settings", default="default,degree0,degree1,degree2",
        help="of calc_attn: default, auto, degreeN, smsN, boundN, NAME=VALUE, joined by +",
    )  # fmt: skip
    parser.add_argument(
        "--work", default="keys",
        help="what travels, under each setting: keys, queries (these too), heads (shared out), "
        "auto (the fastest as predicted); with default also the speed of both over keys",
    )  # fmt: skip
    parser.add_argument("--sides", default=",".join(BASELINES), help="beside ours; empty: none")
    parser.add_argument("--seconds", type=float, default=4.0, help="of the rounds of a cell")
    parser.add_argument("--rounds", type=int, default=3, help="at least")
    parser.add_argument("--resume", action="store_true", help="keep the cells of --out")
    parser.add_argument("--minutes", type=float, help="begin no cell that ends later")
    parser.add_argument("--no-exposed", action="store_true", help="no runs without communication")
    parser.add_argument("--no-host", action="store_true", help="no host times")
    parser.add_argument(
        "--trace", type=pathlib.Path,
        help="folder for a timeline of one step of each cell under the first setting",
    )  # fmt: skip
    parser.add_argument("--heads", default="64,8", help="of q and of k")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", choices=TYPES, help="default bfloat16; float32 on a CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    for name in listed(arguments.masks):
        if name not in MASKS:
            parser.error(f"--masks has {name}; allowed: {', '.join(MASKS)}")
    for name in listed(arguments.sides):
        if name not in (*BASELINES, *OF_BACKENDS):
            parser.error(f"--sides has {name}; allowed: {', '.join((*BASELINES, *OF_BACKENDS))}")
    if arguments.resume and not arguments.out:
        parser.error("--resume without --out; allowed: with the file of the cells to keep")
    return arguments


def start(device: str) -> torch.device:
    """The process group of torchrun's variables; this rank's device."""
    timeout = datetime.timedelta(seconds=120)
    if device == "cpu":
        dist.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu")
    found = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(found)
    dist.init_process_group("nccl", device_id=found, timeout=timeout)
    return found


def options_of(arguments: argparse.Namespace, device: torch.device) -> Options:
    heads = [int(part) for part in listed(arguments.heads)]
    dtype = arguments.dtype or ("float32" if device.type == "cpu" else "bfloat16")
    return Options(
        settings=[
            parse_setting(text)
            for text in with_work(listed(arguments.settings), listed(arguments.work))
        ],
        baselines=listed(arguments.sides),
        shape=(*heads, arguments.head_dim),
        dtype=TYPES[dtype],
        device=device,
        seconds=arguments.seconds,
        rounds=arguments.rounds,
        exposed=not arguments.no_exposed,
        traces=arguments.trace,
    )


class Report:
    """Writes what there is after every cell, on rank 0 alone."""

    def __init__(self, arguments: argparse.Namespace, machine: str) -> None:
        self._arguments, self._machine, self._rank = arguments, machine, dist.get_rank()
        self._more, self._begin = [], time.perf_counter()
        self._cells = kept.read_cells(arguments.out) if arguments.resume else []
        dist.barrier()  # all have read what rank 0 writes
        if self._rank == 0 and arguments.out:
            kept.write_cells(arguments.out, self._cells)

    def has_cell(self, mask: str, tokens: int, sides) -> bool:
        """Whether an earlier run has measured it."""
        size = dist.get_world_size()
        return any(kept.is_measured(cell, mask, tokens, size, sides) for cell in self._cells)

    def add_cell(self, cell: dict) -> None:
        others = kept.without(self._cells, cell["mask"], cell["tokens"], cell["ranks"])
        self._cells = [*others, {**cell, "machine": self._machine}]
        if self._rank != 0:
            return
        print(f"{table_of(cell)}\n  after {self.spent():.0f} s", file=sys.stderr, flush=True)
        if self._arguments.out:
            kept.write_cells(self._arguments.out, self._cells)
        self.write_rows()

    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._begin

    def add_rows(self, rows: list[dict]) -> None:
        self._more += rows
        self.write_rows()

    def write_rows(self) -> None:
        if self._rank == 0 and self._arguments.rows:
            rows = rows_of(self._cells) + self._more
            self._arguments.rows.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    def finish(self) -> int:
        """Exit code: 1 where a side has failed."""
        if self._rank == 0:
            for row in rows_of(self._cells) + self._more:
                print(f"{row['name']:52s} {row['value']:.4g} {row['unit']}", file=sys.stderr)
        return 1 if any(cell["failed"] for cell in self._cells) else 0


def machine_of(device: torch.device, size: int) -> str:
    if device.type == "cpu":
        return f"{size} ranks on a CPU, torch {torch.__version__}"
    version = ".".join(map(str, torch.cuda.nccl.version()))
    name = torch.cuda.get_device_name()
    return f"{size} x {name}, NCCL {version}, torch {torch.__version__}"


def run_cells(arguments: argparse.Namespace, makers: Makers, options: Options, report) -> None:
    """Those that are not there yet, as many as there is time for."""
    watch = Stopwatch(makers.group, options.device)
    names = [setting.name for setting in options.settings]
    names += [name for name in options.baselines if makers.allows(name, options.shape)]
    for tokens in map(int, listed(arguments.tokens)):
        for mask in listed(arguments.masks):
            if report.has_cell(mask, tokens, names):
                continue
            problem = Problem(mask, tokens * makers.size, options.shape)
            taken = kept.cell_seconds(problem, makers.size, len(names), options)
            (end,) = watch.slowest([report.spent() + taken])
            if arguments.minutes is not None and end > 60 * arguments.minutes:
                if makers.rank == 0:
                    left = 60 * arguments.minutes - end + taken
                    text = f"{mask} of {tokens}: left for another run, {taken:.0f} s of {left:.0f}"
                    print(text, file=sys.stderr, flush=True)
                continue
            report.add_cell(run_cell(makers, mask, tokens, options))


def main() -> int:
    arguments = parse()
    device = start(arguments.device)
    options = options_of(arguments, device)
    makers = Makers(dist.group.WORLD)
    makers.warm_up(device)
    if arguments.trace and makers.rank == 0:
        arguments.trace.mkdir(parents=True, exist_ok=True)
    report = Report(arguments, machine_of(device, makers.size))
    if not arguments.no_host:
        watch = Stopwatch(makers.group, device)
        report.add_rows(host.figures(watch, makers.group, options))
    run_cells(arguments, makers, options, report)
    code = report.finish()
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
