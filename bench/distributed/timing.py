# SPDX-License-Identifier: Apache-2.0
"""Times of forward and backward of several attentions, one after the other in random order. As in
a training of some layers, four forwards follow each other without a pause, then their backwards, of
the last one first; a time is that of such a row over its calls. All ranks start a row together and
the slowest counts.
"""

from __future__ import annotations

import random
import statistics
import time

import torch
import torch.distributed as dist

CALLS = 4  # in a row
# Products of square matrices before each row, about 3 ms: the host enqueues its calls meanwhile,
# and clocks are those of a device at work, after a short row as after a long one.
_LEAD_PRODUCTS, _LEAD_SIZE = 2, 8192
_MOST_ROUNDS = 21


class GpuClock:
    """CUDA events; ranks meet in a small all-reduce on the device."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._flag = torch.zeros(1, device="cuda")
        shape = (3, _LEAD_SIZE, _LEAD_SIZE)
        self._matrices = torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def start(self) -> torch.cuda.Event:
        first, second, product = self._matrices
        for _ in range(_LEAD_PRODUCTS):
            torch.mm(first, second, out=product)
        dist.all_reduce(self._flag, group=self._group)
        return self.stop()

    def stop(self) -> torch.cuda.Event:
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def seconds(self, begin, end) -> float:
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3


class CpuClock:
    """Wall time between barriers, for machines without a GPU."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def start(self) -> float:
        dist.barrier(self._group)
        return time.perf_counter()

    def stop(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class Stopwatch:
    """group: all ranks; slowest times are of them all."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self._device = group, device
        self._clock = GpuClock(group) if device.type == "cuda" else CpuClock(group)

    def once(self, side, calls: int = 1) -> tuple[float, float]:
        """This rank's seconds of a forward and of a backward of a side, of so many in a row."""
        *qkv, dout = side.tensors
        begin = self._clock.start()
        saved = [side.attention.forward(*qkv)[1] for _ in range(calls)]
        middle = self._clock.stop()
        again = self._clock.start()
        while saved:
            side.attention.backward(dout, saved.pop())
        end = self._clock.stop()
        spans = (begin, middle), (again, end)
        return tuple(self._clock.seconds(*span) / calls for span in spans)

    def slowest(self, values) -> list:
        """Of each of the numbers the largest over the ranks."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return tensor.tolist()

    def rounds(self, sides: dict, seconds: float, least: int, seed: int = 0) -> dict:
        """By name, [(forward, backward) seconds of each round]; as many rounds, at least `least`,
        as fit into `seconds`.
        """
        begin = time.perf_counter()
        for side in sides.values():
            self.once(side, CALLS)
        (spent,) = self.slowest([time.perf_counter() - begin])
        count = max(least, min(_MOST_ROUNDS, int(seconds / max(spent, 1e-6)) - 1))
        draw, found = random.Random(seed), {name: [] for name in sides}
        for _ in range(count):
            for name in draw.sample(list(sides), len(sides)):
                found[name].append(self.once(sides[name], CALLS))
        names = list(sides)
        slowest = self.slowest([found[name] for name in names])
        return {name: [tuple(pair) for pair in pairs] for name, pairs in zip(names, slowest)}


def median(values) -> float:
    return statistics.median(values)
