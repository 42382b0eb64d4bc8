# SPDX-License-Identifier: Apache-2.0
"""How communication is cut into stages that overlap with attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Sequence

from torch import nn

from magi_attention.common._arguments import check_int, check_kind, check_number
from magi_attention.common.enum import AttnOverlapMode, OverlapAlgType


class OverlapAlg(ABC):
    """How the pieces of remote keys are shared out among stages."""

    @property
    @abstractmethod
    def type(self) -> OverlapAlgType:
        """The algorithm's name."""

    @property
    @abstractmethod
    def is_optimal(self) -> bool:
        """Whether the cost is the least possible."""


@dataclass(frozen=True)
class UniformOverlapAlg(OverlapAlg):
    """Stages of equal size. random_costs and random_seed have no effect: plans are reproducible."""

    random_costs: bool = False
    random_seed: int | None = None

    @property
    def type(self) -> OverlapAlgType:
        return OverlapAlgType.UNIFORM

    @property
    def is_optimal(self) -> bool:
        return False


@dataclass(frozen=True)
class GreedyOverlapAlg(OverlapAlg):
    """Not available: OverlapConfig raises NotImplementedError for it."""

    @property
    def type(self) -> OverlapAlgType:
        return OverlapAlgType.GREEDY

    @property
    def is_optimal(self) -> bool:
        return False


@dataclass(frozen=True)
class OverlapConfig:
    """degree: remote stages; 0: wait for everything first, None: chosen by the cost model (mode
    DYNAMIC only). min_chunk_size: rows of a stage at least. dynamic_max_degree, max_num_chunks and
    the cost factors are accepted; the planner's cost model has units of its own.
    """

    mode: AttnOverlapMode = AttnOverlapMode.STATIC
    degree: int | None = 1
    dynamic_max_degree: int | None = 8
    min_chunk_size: int = 512
    max_num_chunks: int = 64
    alg: OverlapAlg = field(default_factory=UniformOverlapAlg)
    calc_cost_factor: float = 1.0
    comm_cost_factor: float = 1.0
    _no_overlap: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        check_kind("mode", self.mode, AttnOverlapMode, "an AttnOverlapMode")
        if self.degree is None:
            if self.mode is not AttnOverlapMode.DYNAMIC:
                raise ValueError("degree is None with mode STATIC; allowed: 0 or more")
            if self.dynamic_max_degree is not None:
                check_int("dynamic_max_degree", self.dynamic_max_degree, 1)
        elif check_int("degree", self.degree, 0) <= 1:
            object.__setattr__(self, "mode", AttnOverlapMode.STATIC)
        for name in ("min_chunk_size", "max_num_chunks"):
            check_int(name, getattr(self, name), 1)
        for name in ("calc_cost_factor", "comm_cost_factor"):
            check_number(name, getattr(self, name))
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 0 or more, finite")
        if isinstance(self.alg, GreedyOverlapAlg):
            raise NotImplementedError(
                "alg=GreedyOverlapAlg() is not available; use UniformOverlapAlg()"
            )
        if not isinstance(self.alg, OverlapAlg):
            raise TypeError(f"alg is a {type(self.alg).__name__}; allowed: an OverlapAlg")
        object.__setattr__(self, "_no_overlap", self.degree == 0)

    @property
    def no_overlap(self) -> bool:
        """Whether attention waits for all remote keys."""
        return self._no_overlap

    @property
    def enable(self) -> bool:
        """Whether attention of some keys may start before all have arrived."""
        return not self._no_overlap


@dataclass
class OverlapStageCost:
    """Costs of one piece of remote keys, or of the own keys: communication and attention, in one
    unit of the caller's.
    """

    comm_cost: float = 0.0
    calc_cost: float = 0.0


@dataclass
class OverlapSolution:
    """overlap_degree: remote stages that hold pieces; partitions: the indices of stage costs that
    each stage takes, with empty stages at the end where more were asked for than there are pieces.
    """

    overlap_degree: int
    overall_cost: float
    partitions: list[list[int]]


class OverlapSolver(nn.Module):
    """Shares pieces of remote keys out among overlap stages. Plans are made by the library; this
    takes the caller's own costs. NotImplementedError for GreedyOverlapAlg.
    """

    def __init__(self, alg: OverlapAlg) -> None:
        super().__init__()
        if isinstance(alg, GreedyOverlapAlg):
            raise NotImplementedError(
                "alg=GreedyOverlapAlg() is not available; use UniformOverlapAlg()"
            )
        if not isinstance(alg, UniformOverlapAlg):
            raise TypeError(f"alg is a {type(alg).__name__}; allowed: UniformOverlapAlg")
        self.alg = alg

    def solve(
        self,
        stage_costs: Sequence[OverlapStageCost],
        overlap_degree: int | None = None,
        dynamic_max_degree: int | None = None,
    ) -> OverlapSolution:
        """Stages of about equal size. stage_costs[0] is that of the own keys and opens the first
        stage. overlap_degree None: the degree up to dynamic_max_degree (default: the number of
        pieces) with the least cost, the lowest among equals.

        The cost: a stage is fetched while the one before it is computed, and nothing else overlaps.
        """
        if not stage_costs:
            raise ValueError("stage_costs is empty; allowed: at least the own keys")
        for name, value in (
            ("overlap_degree", overlap_degree),
            ("dynamic_max_degree", dynamic_max_degree),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; allowed: 1 or more, or None")
        if overlap_degree is not None:
            return _uniform(stage_costs, overlap_degree)
        most = max(1, len(stage_costs) - 1)
        if dynamic_max_degree is not None:
            most = min(most, dynamic_max_degree)
        candidates = [_uniform(stage_costs, degree) for degree in range(1, most + 1)]
        return min(candidates, key=lambda solution: solution.overall_cost)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OverlapSolver):
            return NotImplemented
        return self.alg == other.alg

    def __hash__(self) -> int:
        return hash(self.alg)


def _uniform(costs: Sequence[OverlapStageCost], degree: int) -> OverlapSolution:
    """The own keys, then `degree` stages over the pieces in order, sizes differing by one."""
    num_filled = max(1, min(degree, len(costs) - 1))
    size, longer = divmod(len(costs), num_filled)
    partitions, begin = [], 0
    for stage in range(num_filled):
        end = begin + size + (stage < longer)
        partitions.append(list(range(begin, end)))
        begin = end
    cost, computing = 0.0, costs[0].calc_cost
    for part in partitions:
        remote = [index for index in part if index]
        cost += max(sum(costs[index].comm_cost for index in remote), computing)
        computing = sum(costs[index].calc_cost for index in remote)
    partitions += [[] for _ in range(degree - num_filled)]
    return OverlapSolution(num_filled, cost + computing, partitions)
