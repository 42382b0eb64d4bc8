# SPDX-License-Identifier: Apache-2.0
"""One clock for the ranks of a group."""

from __future__ import annotations

import os
import statistics
import time

import torch.distributed as dist

from magi_attention.comm.group import size_of

_ROUNDS = 9


def clock_offsets(group: dist.ProcessGroup | None) -> list[int]:
    """The number that is added to time.monotonic_ns of each rank to give that of rank 0. [ns] Ranks
    of one host have one clock: 0. Of others the median difference as they leave some barriers.
    Collective; ranks leave it at about the same time.
    """
    if size_of(group) == 1:
        return [0]
    readings = []
    for _ in range(_ROUNDS):
        dist.barrier(group)
        readings.append(time.monotonic_ns())
    everyone = [None] * size_of(group)
    dist.all_gather_object(everyone, (_clock_name(), readings), group=group)
    dist.barrier(group)
    return offsets_of(everyone)


def offsets_of(everyone: list[tuple[str, list[int]]]) -> list[int]:
    """Computes it from the name of each rank's clock and what it read as the rank left each
    barrier.
    """
    first_name, first = everyone[0]
    return [
        0 if name and name == first_name
        else round(statistics.median(a - b for a, b in zip(first, readings)))
        for name, readings in everyone
    ]  # fmt: skip


def _clock_name() -> str:
    """Equal in processes that share a monotonic clock: the kernel's boot and its time namespace.
    Empty where the system does not tell.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""
