# SPDX-License-Identifier: Apache-2.0
"""The rules of DispatchSolver: the original's placement algorithms over a caller's own jobs, whose
affinities are Python objects. Plans do not use them: the library places rows (src/plan).

Every function returns the bucket of each job by its position, in the order of assignment. Loads
are added in that order and ties go to the lower bucket, so equal jobs give equal placements.
"""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

from magi_attention.compat.dispatch_job import DispatchData

_SHUFFLE_SEED = 42


def loads_of(data: DispatchData, buckets: dict[int, int]) -> list[float]:
    """Workload of every bucket."""
    loads = [0.0] * data.num_buckets
    for index, bucket in buckets.items():
        loads[bucket] += data.jobs[index].workload
    return loads


def room_of(data: DispatchData) -> int:
    """Jobs that a bucket takes at most where numbers are equal."""
    return -(-len(data.jobs) // data.num_buckets)


def descending(data: DispatchData, is_later_first: bool) -> list[int]:
    """Positions by workload, heaviest first; of equal ones the later or the earlier first."""
    turn = -1 if is_later_first else 1
    return sorted(range(len(data.jobs)), key=lambda i: (-data.jobs[i].workload, turn * i))


class _Heap:
    """Buckets with room as [load, bucket, jobs], lightest first."""

    def __init__(self, num_buckets: int, room: int) -> None:
        self._room = room
        self._heap = [[0.0, bucket, 0] for bucket in range(num_buckets)] if room else []

    def push(self, entry: list) -> None:
        if entry[2] < self._room:
            heapq.heappush(self._heap, entry)

    def pop(self, count: int) -> list[list]:
        return [heapq.heappop(self._heap) for _ in range(min(count, len(self._heap)))]


def sequential(data: DispatchData) -> dict[int, int]:
    """Runs of jobs; the first buckets take one more where numbers do not divide."""
    length, longer = divmod(len(data.jobs), data.num_buckets)
    sizes = [length + (bucket < longer) for bucket in range(data.num_buckets)]
    return dict(enumerate(bucket for bucket, size in enumerate(sizes) for _ in range(size)))


def shuffled(data: DispatchData) -> dict[int, int]:
    """Sequential, with the jobs in a fixed random order."""
    order = list(range(len(data.jobs)))
    random.Random(_SHUFFLE_SEED).shuffle(order)
    return dict(zip(order, sequential(data).values()))


def heap(
    data: DispatchData, top_p: float = 0.0, batch: int = 1, is_later_first: bool = False
) -> dict[int, int]:
    """Heaviest first, as descending. The lightest max(1, ceil(top_p * buckets)) buckets are
    candidates for `batch` jobs; of those with room, the one closest to the job takes it.
    """
    buckets: dict[int, int] = {}
    room = room_of(data)
    affinities: list[Any] = [None] * data.num_buckets
    lightest = _Heap(data.num_buckets, room)
    order = descending(data, is_later_first)
    num_candidates = max(1, math.ceil(data.num_buckets * top_p))
    while order:
        candidates = lightest.pop(num_candidates)
        taken, order = order[:batch], order[batch:]
        for position, index in enumerate(taken):
            open_ones = [entry for entry in candidates if entry[2] < room]
            if not open_ones:
                order = taken[position:] + order
                break
            job = data.jobs[index]
            entry = open_ones[_closest(job.affinity, affinities, open_ones)]
            entry[0] += job.workload
            entry[2] += 1
            buckets[index] = entry[1]
        for entry in candidates:
            lightest.push(entry)
    return buckets


def _closest(affinity: Any, affinities: list[Any], candidates: list[list]) -> int:
    """Which candidate is closest; its bucket takes the affinity over."""
    if affinity is None:
        return 0
    for _, bucket, _ in candidates:
        if affinities[bucket] is None:
            affinities[bucket] = type(affinity)()
    held = [affinities[bucket] for _, bucket, _ in candidates]
    index = affinity.get_closest_affinity_idx(held)
    held[index].update(affinity)
    return index


def sorted_sequential(data: DispatchData, allocation_ratio: float) -> dict[int, int]:
    """Samples by area, largest first: the lightest bucket takes up to allocation_ratio of the
    sample's jobs, the last ones first. Jobs without a sample fill what is left.
    """
    buckets: dict[int, int] = {}
    lightest = _Heap(data.num_buckets, room_of(data))
    samples: dict[int, list[int]] = {}
    for index, job in enumerate(data.jobs):
        if job.affinity is not None and not job.affinity.is_empty():
            samples.setdefault(job.affinity.get_sample_id_by("max_count"), []).append(index)
    for sample in sorted(samples, key=lambda s: (-_area_of(data, s, samples[s]), s)):
        left = samples[sample]
        quota = max(1, math.ceil(allocation_ratio * len(left)))
        while left:
            (entry,) = lightest.pop(1)
            for _ in range(min(quota, room_of(data) - entry[2], len(left))):
                _give(data, buckets, left.pop(), entry)
            lightest.push(entry)
    for index in [index for index in range(len(data.jobs)) if index not in buckets]:
        (entry,) = lightest.pop(1)
        _give(data, buckets, index, entry)
        lightest.push(entry)
    return buckets


def _give(data: DispatchData, buckets: dict[int, int], index: int, entry: list) -> None:
    buckets[index] = entry[1]
    entry[0] += data.jobs[index].workload
    entry[2] += 1


def _area_of(data: DispatchData, sample: int, jobs: list[int]) -> float:
    if data.sample_areas is None:
        return sum(data.jobs[index].workload for index in jobs)
    if not 0 <= sample < len(data.sample_areas):
        raise ValueError(
            f"sample_areas has {len(data.sample_areas)} entries; allowed: one for every sample "
            f"id, here {sample}"
        )
    return data.sample_areas[sample]


def exact(data: DispatchData, room: int) -> dict[int, int]:
    """The least largest load with at most `room` jobs a bucket, by depth-first search with
    pruning: for few jobs.
    """
    search = _Search(data, room)
    search.place(0)
    return search.best


class _Search:
    def __init__(self, data: DispatchData, room: int) -> None:
        self._data, self._room = data, room
        self._order = descending(data, is_later_first=False)
        self._loads = [0.0] * data.num_buckets
        self._counts = [0] * data.num_buckets
        self._buckets = [0] * len(data.jobs)
        self.best = heap(data)
        self._least = max(loads_of(data, self.best))
        total = sum(job.workload for job in data.jobs)
        heaviest = max((job.workload for job in data.jobs), default=0.0)
        self._bound = max(total / data.num_buckets, heaviest)

    def place(self, position: int) -> None:
        """Tries every bucket for the job at this position of the order, then the next job."""
        if position == len(self._order):
            self._least = max(self._loads)
            self.best = {index: self._buckets[index] for index in self._order}
            return
        index = self._order[position]
        workload = self._data.jobs[index].workload
        tried = set()
        for bucket, load in enumerate(self._loads):
            state = (load, self._counts[bucket])
            is_pruned = load + workload >= self._least or self._counts[bucket] == self._room
            if is_pruned or state in tried:
                continue
            tried.add(state)
            self._loads[bucket] += workload
            self._counts[bucket] += 1
            self._buckets[index] = bucket
            self.place(position + 1)
            self._loads[bucket] = load
            self._counts[bucket] -= 1
            if self._least <= self._bound:
                return
