# SPDX-License-Identifier: Apache-2.0
"""The original's placement of a caller's own jobs. Plans do not use it: the library places their
rows (src/plan), by the algorithm that DispatchConfig names.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from magi_attention.common.enum import DispatchAlgType
from magi_attention.compat import placement_rules as rules
from magi_attention.compat.dispatch_job import DispatchData
from magi_attention.config.dispatch import DispatchAlg


@dataclass
class DispatchSolution:
    """The largest load of a bucket, and the job ids of every bucket in the order in which it got
    them: empty for algorithms that return no partitions.
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
        for index, bucket in buckets.items():
            partitions[bucket].append(dispatch_data.jobs[index].job_id)
        return DispatchSolution(largest, partitions)


# From algorithm and data to the bucket of every job, in order; None where there is only a bound.
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
