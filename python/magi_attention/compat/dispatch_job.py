# SPDX-License-Identifier: Apache-2.0
"""Jobs of a caller that DispatchSolver places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magi_attention.compat.dispatch_affinity import BaseDispatchAffinity


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
    ) -> list[DispatchJob]:
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
