# SPDX-License-Identifier: Apache-2.0
"""How chunks of rows are placed on ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Sequence

from torch import nn

from magi_attention.common._arguments import check_int, check_kind, check_number
from magi_attention.common.enum import DispatchAlgType
from magi_attention.meta.solver import _dispatch_rules as rules
from magi_attention.meta.solver.dispatch_affinity import (
    BaseDispatchAffinity,
    IOUAffinity,
    SampleIDAffinity,
)


class DispatchAlg(ABC):
    """A placement algorithm; its `type` names it."""

    @property
    @abstractmethod
    def type(self) -> DispatchAlgType:
        """The algorithm's name."""

    @property
    @abstractmethod
    def is_optimal(self) -> bool:
        """Whether the largest load is the least possible."""

    @property
    @abstractmethod
    def is_partitions_returned(self) -> bool:
        """Whether it says which rank holds which chunk, not only the largest load."""

    @property
    @abstractmethod
    def is_equal_num_workloads(self) -> bool:
        """Whether every rank gets the same number of chunks."""

    @property
    @abstractmethod
    def is_affinity_considered(self) -> bool:
        """Whether chunks that read the same keys are kept together."""


def _algorithm(
    kind: DispatchAlgType,
    is_optimal: bool = False,
    is_partitions_returned: bool = True,
    is_equal_num_workloads: bool = True,
    is_affinity_considered: bool = False,
):
    """Gives a class its constant properties and makes it a frozen dataclass."""
    constants = {
        "type": kind,
        "is_optimal": is_optimal,
        "is_partitions_returned": is_partitions_returned,
        "is_equal_num_workloads": is_equal_num_workloads,
        "is_affinity_considered": is_affinity_considered,
    }

    def decorate(cls):
        for name, value in constants.items():
            setattr(cls, name, property(lambda self, value=value: value))
        cls.__abstractmethods__ = frozenset()
        return dataclass(frozen=True)(cls)

    return decorate


@_algorithm(DispatchAlgType.LOWER_BOUND, is_partitions_returned=False, is_equal_num_workloads=False)
class LBDispatchAlg(DispatchAlg):
    """Mean load: a bound, not a placement."""


@_algorithm(
    DispatchAlgType.DYNAMIC_PROGRAMMING,
    is_optimal=True,
    is_partitions_returned=False,
    is_equal_num_workloads=False,
)
class DPDispatchAlg(DispatchAlg):
    """Subset dynamic programming, for few chunks: the least largest load, not a placement."""


@_algorithm(DispatchAlgType.BINARY_SEARCH, is_optimal=True, is_equal_num_workloads=False)
class BSDispatchAlg(DispatchAlg):
    """Binary search on the largest load with backtracking, for few chunks."""


@_algorithm(DispatchAlgType.MIN_HEAP, is_equal_num_workloads=False)
class MinHeapDispatchAlg(DispatchAlg):
    """Longest chunk first to the least loaded rank; blind to communication."""


@_algorithm(DispatchAlgType.BACKTRACKING_PRUNING, is_optimal=True)
class BTPDispatchAlg(DispatchAlg):
    """Exhaustive search with pruning, for few chunks."""


@_algorithm(DispatchAlgType.TOPP_HEAP, is_affinity_considered=True)
class ToppHeapDispatchAlg(DispatchAlg):
    """As MinHeapDispatchAlg, but among the `top_p` share of least loaded ranks the one that reads
    most of the same keys.
    """

    top_p: float = 0.0

    def __post_init__(self) -> None:
        _check_share("top_p", self.top_p)


@_algorithm(DispatchAlgType.RANDOM_SELECT)
class RandomSelectDispatchAlg(DispatchAlg):
    """A fixed shuffle."""


@_algorithm(DispatchAlgType.SEQUENTIAL_SELECT)
class SequentialDispatchAlg(DispatchAlg):
    """Contiguous rows: every rank holds one run of the sequence."""


@_algorithm(DispatchAlgType.BATCH_TOPP_HEAP, is_affinity_considered=True)
class BatchToppHeapDispatchAlg(DispatchAlg):
    """As ToppHeapDispatchAlg, `num_of_select_chunk` chunks at a time."""

    top_p: float = 0.0
    num_of_select_chunk: int = 1

    def __post_init__(self) -> None:
        _check_share("top_p", self.top_p)
        check_int("num_of_select_chunk", self.num_of_select_chunk, 1)


@_algorithm(DispatchAlgType.SORTED_SEQUENTIAL_SELECT)
class SortedSequentialSelectAlg(DispatchAlg):
    """Documents by size; each rank takes up to `allocation_ratio` of a document at a time."""

    allocation_ratio: float = 1.0

    def __post_init__(self) -> None:
        check_number("allocation_ratio", self.allocation_ratio)
        if not 0.0 < self.allocation_ratio <= 1.0:
            raise ValueError(
                f"allocation_ratio is {self.allocation_ratio}; allowed: above 0, at most 1"
            )


@_algorithm(DispatchAlgType.AUTO, is_affinity_considered=True)
class AutoDispatchAlg(DispatchAlg):
    """The default: zigzag for one causal document, contiguous for windows, else balanced loads with
    the least communication that a search finds.
    """


@_algorithm(DispatchAlgType.THOROUGH, is_affinity_considered=True)
class ThoroughDispatchAlg(DispatchAlg):
    """As AutoDispatchAlg with a longer search, for masks that are used many times."""


@_algorithm(DispatchAlgType.ZIGZAG)
class ZigzagDispatchAlg(DispatchAlg):
    """Chunks i and 2 P - 1 - i to rank i."""


@_algorithm(DispatchAlgType.AFFINITY, is_affinity_considered=True)
class AffinityDispatchAlg(DispatchAlg):
    """The search of AutoDispatchAlg, for every mask."""


def _check_share(name: str, value: float) -> None:
    check_number(name, value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value}; allowed: 0 to 1")


@dataclass(frozen=True)
class DispatchConfig:
    """chunk_size: rows per chunk at most, None: chosen; uneven_shard: no padding, the last chunk
    may be short; alg: the placement.
    """

    chunk_size: int | None = None
    uneven_shard: bool = False
    alg: DispatchAlg = field(default_factory=AutoDispatchAlg)

    def __post_init__(self) -> None:
        if self.chunk_size is not None:
            check_int("chunk_size", self.chunk_size, 1)
        check_kind("alg", self.alg, DispatchAlg, "a DispatchAlg")


@dataclass
class DispatchJob:
    """One chunk to place: its number, its workload (any unit, 0 or more) and, or None, its
    affinity.
    """

    job_id: int
    workload: float = 0.0
    affinity: BaseDispatchAffinity | None = None

    @staticmethod
    def from_job_list(
        workloads: Sequence[float], affinities: Sequence[BaseDispatchAffinity] | None = None
    ) -> "list[DispatchJob]":
        """Jobs 0, 1, ... with these workloads and affinities, equal in number."""
        if affinities is not None and len(affinities) != len(workloads):
            raise ValueError(
                f"affinities has {len(affinities)} entries; allowed: {len(workloads)}, as workloads"
            )
        given = [None] * len(workloads) if affinities is None else affinities
        return [DispatchJob(i, load, own) for i, (load, own) in enumerate(zip(workloads, given))]


@dataclass
class DispatchData:
    """Jobs to share out among num_buckets; sample_areas: workload of every sample id, for
    SortedSequentialSelectAlg (default: the sum over its jobs).
    """

    jobs: list[DispatchJob]
    num_buckets: int
    sample_areas: list[int] | None = None

    def __post_init__(self) -> None:
        if self.num_buckets < 1:
            raise ValueError(f"num_buckets is {self.num_buckets}; allowed: 1 or more")
        for job in self.jobs:
            if not 0.0 <= job.workload < float("inf"):
                raise ValueError(f"workload is {job.workload}; allowed: 0 or more, finite")


@dataclass
class DispatchSolution:
    """The largest load of a bucket, and the ascending job ids of every bucket: empty for algorithms
    that return no partitions.
    """

    minimax_workload: float
    bucket_partitions: list[list[int]]


class DispatchSolver(nn.Module):
    """Shares jobs out among buckets by one algorithm. Plans are made by the library, not by this:
    it takes the caller's own workloads and affinities.

    ValueError for algorithms that need the mask: AutoDispatchAlg, ThoroughDispatchAlg,
    AffinityDispatchAlg, ZigzagDispatchAlg; Plan.from_ranges takes those.
    """

    def __init__(self, alg: DispatchAlg) -> None:
        super().__init__()
        if not isinstance(alg, DispatchAlg):
            raise TypeError(f"alg is a {type(alg).__name__}; allowed: a DispatchAlg")
        if alg.type not in _RULES:
            names = ", ".join(sorted(kind.value for kind in _RULES))
            raise ValueError(f"alg is {alg.type.value}; allowed: {names}")
        self.alg = alg

    def solve(self, dispatch_data: DispatchData) -> DispatchSolution:
        """Where every job goes. Equal data give equal solutions. Algorithms with equal numbers give
        a bucket at most ceil(jobs / buckets) jobs.
        """
        buckets = _RULES[self.alg.type](self.alg, dispatch_data)
        if buckets is None:
            total = sum(job.workload for job in dispatch_data.jobs)
            return DispatchSolution(total / dispatch_data.num_buckets, [])
        largest = max(rules.loads_of(dispatch_data, buckets))
        if not self.alg.is_partitions_returned:
            return DispatchSolution(largest, [])
        partitions: list[list[int]] = [[] for _ in range(dispatch_data.num_buckets)]
        for job, bucket in zip(dispatch_data.jobs, buckets):
            partitions[bucket].append(job.job_id)
        return DispatchSolution(largest, [sorted(part) for part in partitions])


# From algorithm and data to the bucket of every job; None where there is only a bound.
_RULES = {
    DispatchAlgType.LOWER_BOUND: lambda alg, data: None,
    DispatchAlgType.DYNAMIC_PROGRAMMING: lambda alg, data: rules.exact(data, len(data.jobs)),
    DispatchAlgType.BINARY_SEARCH: lambda alg, data: rules.exact(data, len(data.jobs)),
    DispatchAlgType.BACKTRACKING_PRUNING: lambda alg, data: rules.exact(data, rules.room_of(data)),
    DispatchAlgType.MIN_HEAP: lambda alg, data: rules.heap(data, is_later_first=True),
    DispatchAlgType.TOPP_HEAP: lambda alg, data: rules.heap(data, alg.top_p),
    DispatchAlgType.BATCH_TOPP_HEAP: lambda alg, data: rules.heap(
        data, alg.top_p, alg.num_of_select_chunk
    ),
    DispatchAlgType.RANDOM_SELECT: lambda alg, data: rules.shuffled(data),
    DispatchAlgType.SEQUENTIAL_SELECT: lambda alg, data: rules.sequential(data),
    DispatchAlgType.SORTED_SEQUENTIAL_SELECT: lambda alg, data: rules.sorted_sequential(
        data, alg.allocation_ratio
    ),
}


__all__ = [
    "AffinityDispatchAlg",
    "AutoDispatchAlg",
    "BSDispatchAlg",
    "BTPDispatchAlg",
    "BaseDispatchAffinity",
    "BatchToppHeapDispatchAlg",
    "DPDispatchAlg",
    "DispatchAlg",
    "DispatchConfig",
    "DispatchData",
    "DispatchJob",
    "DispatchSolution",
    "DispatchSolver",
    "IOUAffinity",
    "LBDispatchAlg",
    "MinHeapDispatchAlg",
    "RandomSelectDispatchAlg",
    "SampleIDAffinity",
    "SequentialDispatchAlg",
    "SortedSequentialSelectAlg",
    "ThoroughDispatchAlg",
    "ToppHeapDispatchAlg",
    "ZigzagDispatchAlg",
]
