#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of a Llama over ranks, beside those of other systems:

    torchrun --nproc-per-node 2 bench/training.py --case causal.64k --case packed.64k \\
        --out training.json --rows rows.json

A case is `causal` (one document) or `packed` (documents of bench/data), and tokens of the whole
sequence: packed.16k, causal.128k, ... Layers have the shape of Llama-8B (8 of them, 4 from 128k
tokens on); FSDP2 shards weights, AdamW steps. Sides: `ours` (calc_attn), `ulysses`
(FlashAttention-4 where it is installed, else another package's kernel or ours), `torch_cp`
(context_parallel with cuDNN, causal cases), `alone` (a whole sequence on every GPU with our
kernel). Each runs under each of --policies: `whole` (layers are recomputed whole), `saved`
(attention is kept), `offloaded` (and moved to the host with the layers' inputs). First the losses
and gradients of all are compared; then rounds time every one once, in random order, and medians of
the slowest rank count.

Other cases: `new_mask.64k` (what a mask costs that was not seen before, one layer), `longest.1024k`
(one sequence on each GPU, 4 layers in parts and offloaded, forward and backward; gradients of 32k
tokens are compared with those of whole layers first).

--out keeps cells of other cases that it has; --rows gets the figures for tools/record; --trace adds
where a step's time goes. A case of one size takes 1 to 4 minutes, longest.1024k up to 8 (set
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True for it).
--tiny runs small sizes over gloo on CPUs: torchrun ... bench/training.py --tiny --case packed.128
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

from distributed.sides import Makers, lengths_of
from distributed.step_parts import parts_of_trace
from distributed.trainings import (
    MAKERS,
    POLICIES,
    SIDES,
    Alone,
    Ours,
    Shape,
    Side,
    data_of,
    make_model,
)
from magi_attention.training import Offload

LLAMA = Shape(4096, 14336, 8, 32, 8, 4096, rope_theta=500000.0, norm_epsilon=1e-5)
TINY = Shape(32, 48, 2, 8, 4, 64)
LONG_LAYERS = 4
GROUPS = 4  # of kv heads, for the longest sequence
COMPARED = 32768  # tokens whose gradients are, before the longest sequence
NEW_MASKS, WARM_MASKS = 16, 3
GPU_BYTES = 80e9  # of the GPU that the longest sequence is to fit
# Of losses and of the norm of gradients, relative to those of the first side.
CLOSE = {"cuda": (2e-3, 3e-2), "cpu": (1e-5, 1e-4)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", required=True, help="may be given several times")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--policies", default="whole,saved", help="of whole, saved, offloaded")
    parser.add_argument("--layers", type=int, help="default 8; 4 from 128k tokens on")
    parser.add_argument("--vocabulary", type=int, help="default 4096, small; 128256 is Llama's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exchange-bytes", type=int, help="max_exchange_bytes of ours")
    parser.add_argument("--trace", action="store_true", help="one more step of each, profiled")
    parser.add_argument("--out", type=pathlib.Path, help="JSON, a cell for each case")
    parser.add_argument("--rows", type=pathlib.Path, help="figures for tools/record to write")
    parser.add_argument("--tiny", action="store_true", help="small sizes over gloo on CPUs")
    given = parser.parse_args()
    for name, allowed in (("sides", SIDES), ("policies", POLICIES)):
        chosen = [part for part in getattr(given, name).split(",") if part]
        for one in chosen:
            if one not in allowed:
                parser.error(f"--{name} has {one}; allowed: {', '.join(allowed)}")
        setattr(given, name, chosen)
    for case in given.case:
        kind, _, size = case.partition(".")
        if kind not in KINDS or not size.removesuffix("k").isdigit():
            parser.error(f"--case is {case}; allowed: {', '.join(KINDS)}, a dot, tokens (64k)")
    return given


def tokens_of(case: str) -> int:
    size = case.partition(".")[2]
    return int(size.removesuffix("k")) * (1024 if size.endswith("k") else 1)


def lengths_in(kind: str, tokens: int, draw: int = 0) -> list[int]:
    """Of the documents of a case."""
    return [tokens] if kind != "packed" else lengths_of(tokens, draw)


class Bench:
    """The ranks, a model and its optimizer, which all sides of a case share."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.device = torch.device("cpu")
        if given.tiny:
            torch.set_num_threads(1)
        else:
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "gloo" if given.tiny else "cpu:gloo,cuda:nccl",
            timeout=datetime.timedelta(seconds=240),
        )
        self.group = dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        Makers(self.group).warm_up(self.device)
        self.shape = TINY if given.tiny else LLAMA
        if given.vocabulary:
            self.shape = dataclasses.replace(self.shape, vocabulary=given.vocabulary)
        self.model = self.optimizer = None

    def make(self, layers: int | None, in_parts: bool = False) -> None:
        """A new model in place of the one there is, the same each time."""
        self.model = self.optimizer = None
        self.settle()
        if layers is not None:
            self.shape = dataclasses.replace(self.shape, layers=layers)
        self.model = make_model(self.shape, self.device, self.group, in_parts)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-5, fused=self.device.type == "cuda"
        )

    def settle(self) -> None:
        """Nothing is under way on any rank, and nothing is held that nobody uses."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        dist.barrier()

    def slowest(self, value: float) -> float:
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    def data(self, lengths: list[int], seed: int = 0):
        return data_of(lengths, self.shape.vocabulary, self.device, seed)

    def gradients(self, side: Side) -> torch.Tensor:
        """Makes them; returns this rank's part of the loss."""
        with side.entered():
            loss = self.model(*side.rows, side.attend) * side.loss_factor
            loss.backward()
        return loss.detach()

    def step(self, side: Side) -> None:
        self.optimizer.zero_grad()
        self.gradients(side)
        self.optimizer.step()

    def seconds(self, function) -> float:
        """Of the slowest rank, from when all are ready until the GPUs have done all."""
        self.wait()
        dist.barrier()
        begin = time.perf_counter()
        function()
        self.wait()
        return self.slowest(time.perf_counter() - begin)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def loss_and_norm(self, side: Side) -> tuple[float, float]:
        """The mean loss of a sequence, and the norm of all gradients."""
        loss = self.gradients(side).double().cpu()
        if not side.is_alone:
            dist.all_reduce(loss)
            loss /= self.size  # the factor of FSDP
        squares = sum(p.grad.to_local().double().square().sum() for p in self.model.parameters())
        squares = squares.cpu()
        dist.all_reduce(squares)
        self.optimizer.zero_grad()
        return float(loss), float(squares.sqrt())

    def used_gib(self) -> tuple[float, float]:
        """Most of torch's memory since it was last asked, and what the GPU holds besides."""
        if self.device.type != "cuda":
            return 0.0, 0.0
        free, total = torch.cuda.mem_get_info()
        others = total - free - torch.cuda.memory_reserved()
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return self.slowest(peak / 2**30), self.slowest(others / 2**30)

    def say(self, *words: str) -> None:
        if self.rank == 0:
            print(*words, file=sys.stderr, flush=True)


def compare(bench: Bench, data, layers: int) -> tuple[dict, dict, dict]:
    """Sides by name, what is known of each side under each policy, and what failed and why."""
    sides, known, failed, outside = {}, {}, {}, {}
    for name in bench.given.sides:
        for policy in bench.given.policies:
            label = f"{name}.{policy}"
            error = None
            before = bench.used_gib()[1]
            try:
                if name not in sides:
                    bound = {"exchange_bytes": bench.given.exchange_bytes} if name == "ours" else {}
                    sides[name] = MAKERS[name](data, bench.shape, bench.group, **bound)
                bench.model.policy.choose(policy, sides[name])
                loss, norm = bench.loss_and_norm(sides[name])
            except Exception as caught:  # a peer's; what is ours fails the run
                error = repr(caught)[:400]
            if bench.slowest(error is not None):
                failed[label] = error or "another rank failed"
                if not any(one.startswith(f"{name}.") for one in known):
                    sides.pop(name, None)  # which some ranks may have made, and others not
                bench.say(f"  {label}: {failed[label]}")
                bench.make(layers)  # what was under way is in the model's hooks
                continue
            # What a side takes beside torch stays for its other policies.
            outside[name] = outside.get(name, 0.0) + max(0.0, bench.used_gib()[1] - before)
            known[label] = {"loss": loss, "grad_norm": norm, "outside_gib": outside[name]}
            bench.say(f"  {label}: loss {loss:.6f}, gradients {norm:.6f}")
    return sides, known, failed


def agree(bench: Bench, known: dict) -> bool:
    first = next(iter(known.values()), None)
    for label, found in known.items():
        for what, allowed in zip(("loss", "grad_norm"), CLOSE[bench.device.type], strict=True):
            if abs(found[what] - first[what]) > allowed * abs(first[what]):
                bench.say(f"  {label} differs: {what} {found[what]} of {first[what]}")
                return False
    return True


def steps(bench: Bench, case: str) -> dict:
    """The cell of a case of sides."""
    kind, tokens = case.partition(".")[0], tokens_of(case)
    layers = bench.given.layers or (bench.shape.layers if tokens < 1 << 17 else LONG_LAYERS)
    bench.make(layers)
    sides, known, failed = compare(bench, bench.data(lengths_in(kind, tokens)), layers)
    agrees = agree(bench, known) and not any(label.startswith("ours") for label in failed)
    draw, times = random.Random(0), {label: [] for label in known}
    peaks = dict.fromkeys(known, 0.0)
    for number in range(1 + bench.given.rounds):
        for label in draw.sample(list(known), len(known)):
            name, policy = label.split(".")
            bench.model.policy.choose(policy, sides[name])
            bench.used_gib()
            spent = bench.seconds(lambda side=sides[name]: bench.step(side))
            peaks[label] = max(peaks[label], bench.used_gib()[0])
            if number:  # the first step makes the optimizer's state
                times[label].append(spent)
    for label, found in known.items():
        side = sides[label.split(".")[0]]
        found["seconds"] = times[label]
        found["peak_gib"] = peaks[label]
        found["kernel"] = getattr(side, "kernel", None)
        of_rank = tokens if side.is_alone else tokens / bench.size
        found["tokens_per_second"] = of_rank / statistics.median(times[label])
        if bench.given.trace:
            bench.model.policy.choose(label.split(".")[1], side)
            found["parts_ms"] = parts_of_step(bench, side)
        parts = "  ".join(f"{k} {v:.0f}" for k, v in found.get("parts_ms", {}).items())
        bench.say(f"  {label:18} {found['tokens_per_second']:10,.0f} tokens/s a GPU, peak "
                  f"{found['peak_gib']:.1f} + {found['outside_gib']:.1f} GiB  {parts}")  # fmt: skip
    return {"layers": layers, "agrees": agrees, "sides": known, "failed": failed}


def parts_of_step(bench: Bench, side: Side) -> dict[str, float]:
    """Milliseconds of one step by what they go to, on this rank."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if bench.device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        with torch.profiler.profile(activities=activities) as profile:
            spent = bench.seconds(lambda: bench.step(side))
        profile.export_chrome_trace(str(path))
        return parts_of_trace(json.loads(path.read_text(encoding="utf-8")), 1e3 * spent)


def new_masks(bench: Bench, case: str) -> dict:
    """What a step takes longer whose mask is new, plan and all. The step before either one is the
    same, of the mask before.
    """
    bench.make(1)

    def made_of(draw: int) -> Ours:
        return Ours(datas[draw], bench.shape, bench.group)

    draws = range(NEW_MASKS + WARM_MASKS + 1)
    datas = [bench.data(lengths_in("packed", tokens_of(case), n), n) for n in draws]
    pairs, side = [], made_of(0)
    for draw in draws[1:]:
        before, found = side, []

        def new(draw=draw, found=found):
            found.append(made_of(draw))
            bench.step(found[0])

        def known(draw=draw, found=found):
            found[0].dispatch(datas[draw])
            bench.step(found[0])

        pair = []
        for timed in (new, known):
            bench.step(before)
            pair.append(bench.seconds(timed))
        pairs.append(pair)
        side = found[0]
    pairs = pairs[WARM_MASKS:]
    longer = [1e3 * (new - known) for new, known in pairs]
    bench.say(f"  a new mask takes {statistics.median(longer):.3f} ms longer")
    return {"agrees": True, "ms": statistics.median(longer), "pairs": pairs}


def longest(bench: Bench, case: str) -> dict:
    """A forward and backward of one sequence on every rank alone, in parts."""
    tokens, layers = tokens_of(case), bench.given.layers or LONG_LAYERS
    data = bench.data([min(tokens, COMPARED)])
    found = []
    for in_parts in (False, True):
        bench.make(layers, in_parts)
        found.append(bench.loss_and_norm(alone_in_parts(bench, data, in_parts)))
    agrees = agree(bench, {n: dict(zip(("loss", "grad_norm"), f)) for n, f in enumerate(found)})
    bench.used_gib()
    side = alone_in_parts(bench, bench.data([tokens]), True)
    spent = bench.seconds(lambda: bench.gradients(side))
    peak, outside = bench.used_gib()
    bench.say(f"  {tokens:,} tokens in {spent:.1f} s, peak {peak:.1f} + {outside:.1f} GiB")
    cell = {"layers": layers, "agrees": agrees, "tokens": tokens, "seconds": spent}
    return cell | {"peak_gib": peak, "outside_gib": outside, "compared": found}


def alone_in_parts(bench: Bench, data, in_parts: bool) -> Side:
    """Alone; in_parts: what InParts takes for its attention, and tensors on the host."""
    side = Alone(data, bench.shape, bench.group)
    bench.model.policy.choose("whole")
    if in_parts:
        heads = bench.shape.heads // GROUPS, bench.shape.kv_heads // GROUPS
        side.attend = side.bind(*heads), GROUPS
        bench.model.policy.host = host = Offload(layers=1)
        bench.model.policy.context_fn = host.save_attention
    return side


KINDS = {"causal": steps, "packed": steps, "new_mask": new_masks, "longest": longest}


def rows_of(cells: dict[str, dict], size: int) -> list[dict]:
    """Figures by the names of bench/musts.json, of what there is; ratios where losses agree."""
    rows = []

    def add(name: str, value: float, unit: str = "ratio") -> None:
        rows.append({"name": name, "value": round(value, 4), "unit": unit})

    for case, cell in cells.items():
        kind, label = case.partition(".")[0], f"train{size}.{case}"
        if kind == "new_mask":
            add("train.new_mask.ms", cell["ms"], "ms")
        elif kind == "longest":
            fits = (cell["peak_gib"] + cell["outside_gib"]) * 2**30 <= GPU_BYTES
            add("train1.longest", cell["tokens"] if cell["agrees"] and fits else 0, "tokens")
        else:
            speeds = {name: one["tokens_per_second"] for name, one in cell["sides"].items()}
            for name, speed in speeds.items():
                add(f"{label}.{name}", speed, "tokens/s")
            if not cell["agrees"]:
                continue
            for name, value in ratios_of(kind, speeds).items():
                add(f"{label}.{name}", value)
            peaks = {n: one["peak_gib"] + one["outside_gib"] for n, one in cell["sides"].items()}
            if any(peaks.values()) and (both := both_of(peaks, "ulysses")):
                add(f"train{size}.peak_gib.{case}", max(both))
    return rows


def ratios_of(kind: str, speeds: dict[str, float]) -> dict[str, float]:
    """Ours over others: with attention saved over what others do by themselves, where one document
    is all; under the same policy, the worst of them, for packed documents and over one GPU alone.
    """
    found = {}
    saved = speeds.get("ours.saved")
    for other in ("torch_cp", "ulysses"):
        if kind == "causal" and saved and f"{other}.whole" in speeds:
            found[f"over_{other}"] = saved / speeds[f"{other}.whole"]
    if kind == "packed" and (both := both_of(speeds, "ulysses")):
        found["over_ulysses"] = min(both)
    if both := both_of(speeds, "alone"):
        found["share"] = min(both)
    return found


def both_of(values: dict[str, float], other: str) -> list[float]:
    """Ours over another side, of each policy that both have."""
    names = [(f"ours.{policy}", f"{other}.{policy}") for policy in POLICIES]
    return [values[a] / values[b] for a, b in names if a in values and b in values]


def main() -> None:
    given = parse()
    bench = Bench(given)
    machine = "CPUs" if given.tiny else torch.cuda.get_device_name()
    about = {"machine": f"{bench.size} x {machine}", "torch": torch.__version__}
    cells = {}
    if given.out and given.out.exists():
        cells = json.loads(given.out.read_text(encoding="utf-8"))["cells"]
    dist.barrier()  # all have read what rank 0 writes
    code = 0
    for case in given.case:
        bench.say(f"{case}:")
        cells[case] = cell = KINDS[case.partition(".")[0]](bench, case)
        cell |= {"shape": dataclasses.asdict(bench.shape), **about}
        code = code or int(not cell["agrees"])
        if bench.rank == 0 and given.out:
            text = json.dumps({"about": about, "cells": cells}, indent=1)
            given.out.write_text(text + "\n", encoding="utf-8")
        if bench.rank == 0 and given.rows:
            text = json.dumps(rows_of(cells, bench.size), indent=1)
            given.rows.write_text(text + "\n", encoding="utf-8")
    bench.settle()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # groups that FSDP2 has used outlive their end (examples/llama_cp/trainer.py)


if __name__ == "__main__":
    main()
