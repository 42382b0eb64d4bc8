# SPDX-License-Identifier: Apache-2.0
"""How communication is cut into stages that overlap with attention: options. The library cuts, when
a plan is made.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field, fields
from typing import ClassVar

from magi_attention.common._arguments import check_int, check_kind, check_number
from magi_attention.common.enum import AttnOverlapMode, OverlapAlgType

_MAX_INT = (1 << 31) - 1


class OverlapAlg(ABC):
    """The way remote keys are shared out among stages; its `type` names it."""

    type: ClassVar[OverlapAlgType]


@dataclass(frozen=True)
class UniformOverlapAlg(OverlapAlg):
    """Stages of equal size. random_costs and random_seed have no effect: plans are reproducible."""

    type: ClassVar = OverlapAlgType.UNIFORM

    random_costs: bool = False
    random_seed: int | None = None


@dataclass(frozen=True)
class GreedyOverlapAlg(OverlapAlg):
    """Not available: OverlapConfig raises NotImplementedError for it."""

    type: ClassVar = OverlapAlgType.GREEDY


class _GatheredDegree(int):
    """The degree 1 of a configuration that was given 0. A type of its own, so that copies made
    field by field keep what it tells, and a degree given to dataclasses.replace does not.
    """


@dataclass(frozen=True)
class OverlapConfig:
    """The way communication and attention of a plan overlap.

    - degree: remote stages. 0: all keys are gathered for one attention call (no_overlap, with a
      degree of 1); None: chosen by the cost model (mode DYNAMIC only), as where a DistAttnConfig is
      given no OverlapConfig.
    - min_chunk_size: rows of a stage at least.
    - dynamic_max_degree, max_num_chunks, calc_cost_factor, comm_cost_factor, alg: checked, without
      effect: the planner has a cost model of its own. An OverlapAlgType stands for its algorithm.

    ValueError for values outside their range, NotImplementedError for alg GreedyOverlapAlg.
    """

    mode: AttnOverlapMode = AttnOverlapMode.STATIC
    degree: int | None = 1
    dynamic_max_degree: int | None = 8
    min_chunk_size: int = 512
    max_num_chunks: int = 64
    alg: OverlapAlg = field(default_factory=UniformOverlapAlg)
    calc_cost_factor: float = 1.0
    comm_cost_factor: float = 1.0
    # True where degree was 0, which reads as 1. A copy made field by field may name it; its degree
    # tells.
    _no_overlap: bool = field(compare=False, default=False)

    def __post_init__(self) -> None:
        check_kind("mode", self.mode, AttnOverlapMode, "an AttnOverlapMode")
        if self.degree is None:
            if self.mode is not AttnOverlapMode.DYNAMIC:
                raise ValueError("degree is None with mode STATIC; allowed: 0 or more")
            if self.dynamic_max_degree is not None:
                check_int("dynamic_max_degree", self.dynamic_max_degree, 1)
        elif check_int("degree", self.degree, 0, _MAX_INT) <= 1:
            object.__setattr__(self, "mode", AttnOverlapMode.STATIC)
        elif self.mode is AttnOverlapMode.DYNAMIC:
            raise ValueError(f"degree is {self.degree} with mode DYNAMIC; allowed: None, 0 or 1")
        for name in ("min_chunk_size", "max_num_chunks"):
            check_int(name, getattr(self, name), 1)
        for name in ("calc_cost_factor", "comm_cost_factor"):
            check_number(name, getattr(self, name))
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: above 0, finite")
        if self.alg is OverlapAlgType.UNIFORM:
            object.__setattr__(self, "alg", UniformOverlapAlg())
        if isinstance(self.alg, GreedyOverlapAlg) or self.alg is OverlapAlgType.GREEDY:
            raise NotImplementedError(
                "alg=GreedyOverlapAlg() is not available; use UniformOverlapAlg()"
            )
        if not isinstance(self.alg, OverlapAlg):
            raise TypeError(f"alg is a {type(self.alg).__name__}; allowed: an OverlapAlg")
        if self.degree == 0:
            object.__setattr__(self, "degree", _GatheredDegree(1))
        object.__setattr__(self, "_no_overlap", isinstance(self.degree, _GatheredDegree))

    def _parts(self) -> tuple:
        return tuple(getattr(self, part.name) for part in fields(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OverlapConfig):
            return NotImplemented
        return self._parts() == other._parts()  # no_overlap counts, so that keys differ

    def __hash__(self) -> int:
        return hash(self._parts())

    @property
    def no_overlap(self) -> bool:
        """Whether attention waits for all remote keys."""
        return self._no_overlap

    @property
    def enable(self) -> bool:
        """Whether there are several remote stages: a degree of 2 or more, or a chosen one."""
        return not self._no_overlap and (self.degree is None or self.degree >= 2)


def chosen_overlap() -> OverlapConfig:
    """The default of plans: remote stages as the cost model chooses them, or none."""
    return OverlapConfig(mode=AttnOverlapMode.DYNAMIC, degree=None)
