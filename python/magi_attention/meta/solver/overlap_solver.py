# SPDX-License-Identifier: Apache-2.0
"""How communication is cut into stages that overlap with attention."""

from __future__ import annotations

import random
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
    """Stages of equal size. random_costs and random_seed shuffle the pieces of an OverlapSolver;
    they have no effect on plans, which are reproducible.
    """

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
        elif self.mode is AttnOverlapMode.DYNAMIC:
            raise ValueError(f"degree is {self.degree} with mode DYNAMIC; allowed: None, 0 or 1")
        for name in ("min_chunk_size", "max_num_chunks"):
            check_int(name, getattr(self, name), 1)
        for name in ("calc_cost_factor", "comm_cost_factor"):
            check_number(name, getattr(self, name))
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: above 0, finite")
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
        """Whether there are several remote stages: a degree of 2 or more, or a chosen one."""
        return not self._no_overlap and (self.degree is None or self.degree >= 2)


@dataclass
class OverlapStageCost:
    """Costs of one piece of remote keys, or of the own keys: communication and attention, in one
    unit of the caller's. ValueError for negative costs.
    """

    comm_cost: float = 0.0
    calc_cost: float = 0.0

    def __post_init__(self) -> None:
        for name in ("comm_cost", "calc_cost"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 0 or more")


@dataclass
class OverlapSolution:
    """overlap_degree: number of remote stages; overall_cost: of all of them, in the unit of the
    stage costs; partitions: the indices of stage costs that each stage takes, with empty stages at
    the end where more were asked for than there are pieces.
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
        check_kind("alg", alg, UniformOverlapAlg, "UniformOverlapAlg")
        self.alg = alg
        self.best_solution: OverlapSolution | None = None
        self.solution_dict: dict[int, OverlapSolution] = {}

    def solve(
        self,
        stage_costs: Sequence[OverlapStageCost],
        overlap_degree: int | None = None,
        dynamic_max_degree: int | None = None,
    ) -> tuple[OverlapSolution, dict[int, OverlapSolution]]:
        """Stages of about equal size. stage_costs[0] is that of the own keys, without
        communication, and opens the first stage. overlap_degree None: every degree up to
        dynamic_max_degree (default: the number of costs) is tried.

        Returns the solution with the least cost, rounded, the lowest degree among equals, and the
        solutions by degree. The cost: a stage is fetched while the one before it is computed, and
        nothing else overlaps. ValueError for no costs, an own cost of communication, and degrees
        below 1.
        """
        if not stage_costs:
            raise ValueError("stage_costs is empty; allowed: at least the own keys")
        if stage_costs[0].comm_cost != 0.0:
            own = stage_costs[0].comm_cost
            raise ValueError(f"stage_costs[0].comm_cost is {own}; allowed: 0, as of own keys")
        if overlap_degree is not None:
            degrees = [check_int("overlap_degree", overlap_degree, 1)]
        else:
            most = dynamic_max_degree or len(stage_costs)
            degrees = range(1, check_int("dynamic_max_degree", most, 1) + 1)
        self.solution_dict = {degree: self._uniform(stage_costs, degree) for degree in degrees}
        self.best_solution = min(
            self.solution_dict.values(),
            key=lambda solution: (round(solution.overall_cost), solution.overlap_degree),
        )
        return self.best_solution, self.solution_dict

    def _uniform(self, costs: Sequence[OverlapStageCost], degree: int) -> OverlapSolution:
        """The own keys, then `degree` stages over the pieces, sizes differing by one."""
        order = list(range(1, len(costs)))
        if self.alg.random_costs:
            random.Random(self.alg.random_seed).shuffle(order)
        order.insert(0, 0)
        num_filled = max(1, min(degree, len(costs) - 1))
        size, longer = divmod(len(costs), num_filled)
        partitions, begin = [], 0
        for stage in range(num_filled):
            end = begin + size + (stage < longer)
            partitions.append(order[begin:end])
            begin = end
        partitions += [[] for _ in range(degree - num_filled)]
        cost, computing = 0.0, costs[0].calc_cost
        for part in partitions:
            cost += max(sum(costs[index].comm_cost for index in part), computing)
            computing = sum(costs[index].calc_cost for index in part if index)
        return OverlapSolution(degree, cost + computing, partitions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OverlapSolver):
            return NotImplemented
        return self.alg == other.alg

    def __hash__(self) -> int:
        return hash(self.alg)
