# SPDX-License-Identifier: Apache-2.0
"""How chunks of rows are placed on ranks: names and options. The library places them, when a plan
is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from magi_attention.common._arguments import (
    check_choice,
    check_int,
    check_kind,
    check_number,
)
from magi_attention.common.enum import DispatchAlgType


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


class _Algorithm(DispatchAlg):
    """One whose properties are constants of its class."""

    _constants: ClassVar[dict[str, Any]]

    @property
    def type(self) -> DispatchAlgType:
        return self._constants["type"]

    @property
    def is_optimal(self) -> bool:
        return self._constants["is_optimal"]

    @property
    def is_partitions_returned(self) -> bool:
        return self._constants["is_partitions_returned"]

    @property
    def is_equal_num_workloads(self) -> bool:
        return self._constants["is_equal_num_workloads"]

    @property
    def is_affinity_considered(self) -> bool:
        return self._constants["is_affinity_considered"]


def _algorithm(
    kind: DispatchAlgType,
    is_optimal: bool = False,
    is_partitions_returned: bool = True,
    is_equal_num_workloads: bool = True,
    is_affinity_considered: bool = False,
):
    """Gives a class the values of its constant properties."""
    constants = {
        "type": kind,
        "is_optimal": is_optimal,
        "is_partitions_returned": is_partitions_returned,
        "is_equal_num_workloads": is_equal_num_workloads,
        "is_affinity_considered": is_affinity_considered,
    }

    def decorate(cls):
        cls._constants = constants
        return cls

    return decorate


@_algorithm(DispatchAlgType.LOWER_BOUND, is_partitions_returned=False, is_equal_num_workloads=False)
@dataclass(frozen=True)
class LBDispatchAlg(_Algorithm):
    """The mean load, which is a bound. In plans rows are placed as by MinHeapDispatchAlg."""


@_algorithm(
    DispatchAlgType.DYNAMIC_PROGRAMMING,
    is_optimal=True,
    is_partitions_returned=False,
    is_equal_num_workloads=False,
)
@dataclass(frozen=True)
class DPDispatchAlg(_Algorithm):
    """The least largest load by dynamic programming over subsets, for up to 14 chunks. Plans of
    more are those of BSDispatchAlg.
    """


@_algorithm(DispatchAlgType.BINARY_SEARCH, is_optimal=True, is_equal_num_workloads=False)
@dataclass(frozen=True)
class BSDispatchAlg(_Algorithm):
    """Binary search on the largest load with backtracking, for few chunks."""


@_algorithm(DispatchAlgType.MIN_HEAP, is_equal_num_workloads=False)
@dataclass(frozen=True)
class MinHeapDispatchAlg(_Algorithm):
    """Longest chunk first to the least loaded rank; blind to communication."""


@_algorithm(DispatchAlgType.BACKTRACKING_PRUNING, is_optimal=True)
@dataclass(frozen=True)
class BTPDispatchAlg(_Algorithm):
    """Exhaustive search with pruning, for few chunks."""


@_algorithm(DispatchAlgType.TOPP_HEAP, is_affinity_considered=True)
@dataclass(frozen=True)
class ToppHeapDispatchAlg(_Algorithm):
    """As MinHeapDispatchAlg, but among the `top_p` share of least loaded ranks the one that reads
    most of the same keys.
    """

    top_p: float = 0.0

    def __post_init__(self) -> None:
        _check_share("top_p", self.top_p)


@_algorithm(DispatchAlgType.RANDOM_SELECT)
@dataclass(frozen=True)
class RandomSelectDispatchAlg(_Algorithm):
    """A fixed shuffle."""


@_algorithm(DispatchAlgType.SEQUENTIAL_SELECT, is_equal_num_workloads=False)
@dataclass(frozen=True)
class SequentialDispatchAlg(_Algorithm):
    """Contiguous rows: every rank holds one run of the sequence."""


@_algorithm(DispatchAlgType.BATCH_TOPP_HEAP, is_affinity_considered=True)
@dataclass(frozen=True)
class BatchToppHeapDispatchAlg(_Algorithm):
    """As ToppHeapDispatchAlg, `num_of_select_chunk` chunks at a time."""

    top_p: float = 0.0
    num_of_select_chunk: int = 1

    def __post_init__(self) -> None:
        _check_share("top_p", self.top_p)
        check_int("num_of_select_chunk", self.num_of_select_chunk, 1)


@_algorithm(DispatchAlgType.SORTED_SEQUENTIAL_SELECT)
@dataclass(frozen=True)
class SortedSequentialSelectAlg(_Algorithm):
    """Documents by size; each rank takes up to `allocation_ratio` of a document at a time, one
    chunk at least.
    """

    allocation_ratio: float = 1.0

    def __post_init__(self) -> None:
        _check_share("allocation_ratio", self.allocation_ratio)


@_algorithm(DispatchAlgType.AUTO, is_affinity_considered=True)
@dataclass(frozen=True)
class AutoDispatchAlg(_Algorithm):
    """The default: zigzag for one causal document, contiguous for windows, else balanced loads with
    the least communication that a search finds.
    """


@_algorithm(DispatchAlgType.THOROUGH, is_affinity_considered=True)
@dataclass(frozen=True)
class ThoroughDispatchAlg(_Algorithm):
    """As AutoDispatchAlg with a longer search, for masks that are used many times."""


@_algorithm(DispatchAlgType.ZIGZAG)
@dataclass(frozen=True)
class ZigzagDispatchAlg(_Algorithm):
    """Chunks i and 2 P - 1 - i to rank i."""


@_algorithm(DispatchAlgType.AFFINITY, is_affinity_considered=True)
@dataclass(frozen=True)
class AffinityDispatchAlg(_Algorithm):
    """The search of AutoDispatchAlg, for every mask."""


def _check_share(name: str, value: float) -> None:
    check_number(name, value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value}; allowed: 0 to 1")


@dataclass(frozen=True)
class DispatchConfig:
    """How rows are placed on ranks.

    - chunk_size: rows that are placed together, at most; None: chosen.
    - uneven_shard: no padding; the last chunk may be short, and ranks may differ by a chunk. A
      sequence of fewer chunks than ranks is ValueError when the plan is made.
    - alg: which chunks a rank gets.
    - layout: "permuted", or "contiguous": each rank keeps one run of the sequence, in order, and
      attention is balanced by what travels (`DistAttnConfig.work`).

    ValueError for another layout, and for a contiguous one with a placement that permutes.
    TypeError for arguments of other types.
    """

    chunk_size: int | None = None
    uneven_shard: bool = False
    alg: DispatchAlg = field(default_factory=AutoDispatchAlg)
    layout: str = "permuted"

    def __post_init__(self) -> None:
        if self.chunk_size is not None:
            check_int("chunk_size", self.chunk_size, 1)
        check_kind("uneven_shard", self.uneven_shard, bool, "a bool")
        check_kind("alg", self.alg, DispatchAlg, "a DispatchAlg")
        check_choice("layout", self.layout, ("permuted", "contiguous"))
        in_order = (DispatchAlgType.AUTO, DispatchAlgType.SEQUENTIAL_SELECT)
        if self.layout == "contiguous" and self.alg.type not in in_order:
            raise ValueError(
                f"alg is {type(self.alg).__name__} while layout is 'contiguous'; "
                "allowed: SequentialDispatchAlg, or the default"
            )
