# SPDX-License-Identifier: Apache-2.0
"""The original's overlap stages of a caller's own costs. Plans do not use it: their stages are the
library's (src/plan), for which OverlapConfig holds the options.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from magi_attention.common._arguments import check_int, check_kind
from magi_attention.config.overlap import GreedyOverlapAlg, OverlapAlg, UniformOverlapAlg


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
