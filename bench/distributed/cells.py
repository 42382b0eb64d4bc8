# SPDX-License-Identifier: Apache-2.0
"""One cell: a mask and a number of tokens per rank, all sides checked against our kernel alone and
then timed.
"""

from __future__ import annotations

import gc
import pathlib
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

import magi_attention
from distributed.links import Link
from distributed.ours import Setting
from distributed.sides import Makers, Problem, Side, take
from distributed.timing import Stopwatch, median
from magi_attention import api

DIRECTIONS = ("forward", "backward")
BACKWARD_FLOPS = 2.5  # of the forward's
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.02}


@dataclass
class Options:
    """settings: of calc_attn; baselines: names; seconds: of a cell's rounds, which are `rounds` at
    least; exposed: whether to time sides without their communication too; traces: folder for a
    trace of the first setting.
    """

    settings: list[Setting]
    baselines: list[str]
    shape: tuple[int, int, int]
    dtype: torch.dtype
    device: torch.device
    seconds: float
    rounds: int
    exposed: bool
    traces: pathlib.Path | None = None


def random_tensors(total: int, options: Options):
    """q, k, v and the gradient of out of the whole sequence, the same on every rank."""
    heads_q, heads_kv, dim = options.shape
    generator = torch.Generator(options.device).manual_seed(total)

    def random(heads):
        return torch.randn(
            total, heads, dim, generator=generator, device=options.device, dtype=options.dtype
        )

    return [random(heads) for heads in (heads_q, heads_kv, heads_kv, heads_q)]


def run_cell(makers: Makers, mask: str, tokens: int, options: Options) -> dict:
    """The cell's figures, equal on all ranks."""
    problem = Problem(mask, tokens * makers.size, options.shape)
    tensors = random_tensors(problem.total, options)
    watch = Stopwatch(makers.group, options.device)
    sides, sent, failed = checked_sides(makers, problem, tensors, watch, options)
    times = watch.rounds(sides, options.seconds, options.rounds)
    silent = times_without_communication(makers, sides, problem, tensors, watch, options)
    if options.traces is not None:
        trace_side(sides, mask, tokens, watch, options)
    result = {
        "mask": mask,
        "tokens": tokens,
        "ranks": makers.size,
        "slices": len(problem.slices),
        "area": problem.area,
        "rounds": len(times["alone"]),
        "failed": failed,
        "sides": {
            name: side_figures(name, side, problem, times, silent, makers.size)
            for name, side in sides.items()
        },
    }
    for name, side in sides.items():
        result["sides"][name].update(sent[name])
        is_counted = side.kind == "ours" and not side.attention.is_moving_queries
        if is_counted and options.device.type == "cuda":
            ratio = memory_ratio(side, sides["alone"], watch, makers.size)
            result["sides"][name]["memory_ratio"] = ratio
    del sides
    free(makers.group, options.device)
    return result


def trace_side(sides, mask: str, tokens: int, watch: Stopwatch, options: Options) -> None:
    """One step of the first setting that runs, by all ranks, as a timeline."""
    ours = [name for name, side in sides.items() if side.kind == "ours"]
    if ours:
        path = options.traces / f"{mask}-{tokens}-{ours[0]}.json"
        with magi_attention.trace(str(path), watch.group):
            watch.once(sides[ours[0]])


def free(group: dist.ProcessGroup, device: torch.device) -> None:
    """Gives back what keys and sides held."""
    api.clear_cache(group)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def checked_sides(makers, problem: Problem, tensors, watch: Stopwatch, options: Options):
    """By name: the sides, each compared with our kernel alone; what was sent; and why others have
    failed, which are not timed.
    """
    make = {"alone": lambda: makers.alone(problem, tensors)}
    for setting in options.settings:
        make[setting.name] = partial(makers.ours, setting, problem, tensors)
    for name in options.baselines:
        if makers.allows(name, options.shape):
            make[name] = partial(makers.baseline, name, problem, tensors)
    sides, sent, failed, whole = {}, {}, {}, None
    for name, function in make.items():
        reason, numbers = "", [0.0] * 3
        try:
            side, results, sent[name], *numbers = first_run(function, whole, options.device)
            whole = results if whole is None else whole
            del results
        except Exception as error:  # of a setting that is not available here, say
            reason = f"{type(error).__name__}: {error}"
        if not numbers[0] <= _TOLERANCE[options.dtype]:
            reason = f"off by {numbers[0]:.1e}, allowed: {_TOLERANCE[options.dtype]:.0e}"
        has_failed, *numbers = watch.slowest([1.0 if reason else 0.0, *numbers])
        if has_failed:
            failed[name] = reason or "failed on another rank"
            continue
        sides[name] = side
        side.error, side.extra_bytes, side.outside_bytes = numbers
    if "alone" in failed:
        raise SystemExit(f"our kernel alone: {failed['alone']}")
    return sides, sent, failed


def first_run(make_side, whole, device: torch.device):
    """A new side, [out, dq, dk, dv] of it, what was sent, the largest distance from `whole`, which
    is that of our kernel alone, bytes beyond inputs and results, bytes outside of torch.
    """
    before = bytes_outside_torch(device)
    side = make_side()
    results, sent, peak = once_with_memory(side, device)
    outside = bytes_outside_torch(device) - before
    count = sum(end - begin for begin, end in side.rows)
    pairs = zip(results, results if whole is None else whole)
    error = max(distance(mine[:count], take(rest, side.rows)) for mine, rest in pairs)
    return side, results, sent, error, peak, outside


def bytes_outside_torch(device: torch.device) -> int:
    """Of the GPU's memory; 0 without one."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def once_with_memory(side: Side, device: torch.device):
    """[out, dq, dk, dv], bytes sent, and torch's bytes at the peak beyond inputs and results."""
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    q, k, v, dout = side.tensors
    counter = side.attention if side.kind == "baseline" else None
    start = counter.bytes_sent if counter else 0
    out, saved = side.attention.forward(q, k, v)
    middle = counter.bytes_sent if counter else 0
    gradients = side.attention.backward(dout, saved)
    sent = {}
    if counter:
        sent = {"forward_bytes": middle - start, "backward_bytes": counter.bytes_sent - middle}
    peak = 0
    if is_gpu:
        results = sum(t.nbytes for t in (out, *gradients)) + out.shape[0] * out.shape[1] * 4
        peak = torch.cuda.max_memory_allocated() - before - results
    return [out, *gradients], sent, peak


def memory_ratio(side: Side, alone: Side, watch: Stopwatch, size: int) -> float:
    """Bytes of calc_attn beyond inputs and results over those of its plan and of our kernel for as
    many rows.
    """
    planned = side.attention.planned_bytes(side.tensors[0].element_size())
    (planned,) = watch.slowest([planned])
    return (side.extra_bytes + side.outside_bytes) / (planned + alone.extra_bytes / size)


def distance(mine: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over that of what is wanted."""
    if wanted.numel() == 0:
        return 0.0
    apart = torch.linalg.vector_norm(mine - wanted, dtype=torch.float64)
    return (apart / torch.linalg.vector_norm(wanted, dtype=torch.float64).clamp(min=1e-30)).item()


def times_without_communication(makers, sides, problem, tensors, watch, options) -> dict:
    """By name, median seconds of forward and backward of baselines whose links are muted, and of
    our kernel on the rows and keys of calc_attn's placement; of plans whose ranks compute other
    rows than their own nothing.
    """
    if not options.exposed or makers.size == 1:
        return {}
    baselines = {name: side for name, side in sides.items() if side.kind == "baseline"}
    kernels, places = {}, {}
    for name, side in sides.items():
        if side.kind == "ours" and not side.attention.is_moving_queries:
            place = side.attention.placement  # of all ranks, which thus agree
            if place not in places:
                places[place] = name
                kernels[name] = makers.kernel_of(side.rows, problem, tensors)
            places[name] = places[place]
    share = options.seconds / 3
    found = {}
    Link.is_muted = True
    try:
        if kernels or baselines:
            found = watch.rounds({**kernels, **baselines}, share, min(3, options.rounds), seed=1)
    finally:
        Link.is_muted = False
    medians = {
        name: [median(pair[i] for pair in pairs) for i in range(2)] for name, pairs in found.items()
    }
    return {
        name: medians[places.get(name, name)]
        for name, side in sides.items()
        if name in places or side.kind == "baseline"
    }


def side_figures(name: str, side: Side, problem: Problem, times, silent, size: int) -> dict:
    """Of one side: milliseconds, TFLOP/s per rank, share of our kernel alone, exposed time."""
    is_alone = name == "alone"
    figures = {
        "kind": side.kind,
        "error": side.error,
        "extra_bytes": side.extra_bytes,
        "outside_torch_bytes": side.outside_bytes,
    }
    if side.kind == "ours":
        figures.update(side.attention.figures())
    for index, direction in enumerate(DIRECTIONS):
        seconds = [pair[index] for pair in times[name]]
        alone = [pair[index] for pair in times["alone"]]
        flops = problem.flops * (BACKWARD_FLOPS if index else 1) / (1 if is_alone else size)
        shares = [a / s / (1 if is_alone else size) for a, s in zip(alone, seconds)]
        figures[direction] = {
            "ms": median(seconds) * 1e3,
            "low_ms": min(seconds) * 1e3,
            "high_ms": max(seconds) * 1e3,
            "tflops": flops / median(seconds) * 1e-12,
            "share": median(shares),
        }
        if name in silent:
            figures[direction]["without_communication_ms"] = silent[name][index] * 1e3
            figures[direction]["exposed_ms"] = (median(seconds) - silent[name][index]) * 1e3
    return figures
