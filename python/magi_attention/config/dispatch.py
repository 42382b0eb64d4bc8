# SPDX-License-Identifier: Apache-2.0
"""How chunks of rows are placed on ranks: names and options. The library places them, when a plan
is made.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import ClassVar

from magi_attention.common._arguments import check_choice, check_int, check_kind, check_number
from magi_attention.common.enum import DispatchAlgType


class DispatchAlg(ABC):
    """A placement algorithm; its `type` names it."""

    type: ClassVar[DispatchAlgType]


@dataclass(frozen=True)
class LBDispatchAlg(DispatchAlg):
    """Places rows as MinHeapDispatchAlg does."""

    type: ClassVar = DispatchAlgType.LOWER_BOUND


@dataclass(frozen=True)
class DPDispatchAlg(DispatchAlg):
    """Places rows as MinHeapDispatchAlg does."""

    type: ClassVar = DispatchAlgType.DYNAMIC_PROGRAMMING


@dataclass(frozen=True)
class BSDispatchAlg(DispatchAlg):
    """Places rows as MinHeapDispatchAlg does."""

    type: ClassVar = DispatchAlgType.BINARY_SEARCH


@dataclass(frozen=True)
class MinHeapDispatchAlg(DispatchAlg):
    """Longest chunk first to the least loaded rank; blind to communication."""

    type: ClassVar = DispatchAlgType.MIN_HEAP


@dataclass(frozen=True)
class BTPDispatchAlg(DispatchAlg):
    """Places rows as MinHeapDispatchAlg does."""

    type: ClassVar = DispatchAlgType.BACKTRACKING_PRUNING


@dataclass(frozen=True)
class ToppHeapDispatchAlg(DispatchAlg):
    """Places rows as AutoDispatchAlg does, which takes no notice of `top_p`."""

    type: ClassVar = DispatchAlgType.TOPP_HEAP

    top_p: float = 0.0

    def __post_init__(self) -> None:
        _check_share("top_p", self.top_p)


@dataclass(frozen=True)
class RandomSelectDispatchAlg(DispatchAlg):
    """A fixed shuffle."""

    type: ClassVar = DispatchAlgType.RANDOM_SELECT


@dataclass(frozen=True)
class SequentialDispatchAlg(DispatchAlg):
    """Contiguous rows: every rank holds one run of the sequence."""

    type: ClassVar = DispatchAlgType.SEQUENTIAL_SELECT


@dataclass(frozen=True)
class BatchToppHeapDispatchAlg(DispatchAlg):
    """Places rows as AutoDispatchAlg does, which takes no notice of the fields."""

    type: ClassVar = DispatchAlgType.BATCH_TOPP_HEAP

    top_p: float = 0.0
    num_of_select_chunk: int = 1

    def __post_init__(self) -> None:
        _check_share("top_p", self.top_p)
        check_int("num_of_select_chunk", self.num_of_select_chunk, 1)


@dataclass(frozen=True)
class SortedSequentialSelectAlg(DispatchAlg):
    """Places rows as MinHeapDispatchAlg does, which takes no notice of `allocation_ratio`."""

    type: ClassVar = DispatchAlgType.SORTED_SEQUENTIAL_SELECT

    allocation_ratio: float = 1.0

    def __post_init__(self) -> None:
        _check_share("allocation_ratio", self.allocation_ratio)


@dataclass(frozen=True)
class AutoDispatchAlg(DispatchAlg):
    """The default: zigzag for one causal document, contiguous for windows, else balanced loads with
    the least communication that a search finds.
    """

    type: ClassVar = DispatchAlgType.AUTO


@dataclass(frozen=True)
class ThoroughDispatchAlg(DispatchAlg):
    """Places rows as AutoDispatchAlg does, with a longer search, for masks that are used many
    times.
    """

    type: ClassVar = DispatchAlgType.THOROUGH


@dataclass(frozen=True)
class ZigzagDispatchAlg(DispatchAlg):
    """Chunks i and 2 P - 1 - i to rank i."""

    type: ClassVar = DispatchAlgType.ZIGZAG


@dataclass(frozen=True)
class AffinityDispatchAlg(DispatchAlg):
    """The search of AutoDispatchAlg, for every mask."""

    type: ClassVar = DispatchAlgType.AFFINITY


def _check_share(name: str, value: float) -> None:
    check_number(name, value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value}; allowed: 0 to 1")


@dataclass(frozen=True)
class DispatchConfig:
    """The way rows are placed on ranks.

    - chunk_size: rows that are placed together, at most; None: chosen.
    - uneven_shard: no padding; the last chunk may be short, and ranks may differ by a chunk. A
      sequence of fewer chunks than ranks is ValueError when the plan is made.
    - alg: which chunks a rank gets.
    - layout: "permuted", or "contiguous": each rank keeps one run of the sequence, in order, and
      attention is balanced by what travels (`DistAttnConfig.work`).
    - max_runs: for models with recurrent layers, the most runs of a rank that come after a row of
      another rank (`PlanReport.rank_runs`); None: any. A search keeps it, and a plan that cannot is
      ValueError.

    ValueError for another layout, and for a contiguous one with a placement that permutes.
    TypeError for arguments of other types.
    """

    chunk_size: int | None = None
    uneven_shard: bool = False
    alg: DispatchAlg = field(default_factory=AutoDispatchAlg)
    layout: str = "permuted"
    max_runs: int | None = None

    def __post_init__(self) -> None:
        if self.chunk_size is not None:
            check_int("chunk_size", self.chunk_size, 1)
        if self.max_runs is not None:
            check_int("max_runs", self.max_runs, 1)
        check_kind("uneven_shard", self.uneven_shard, bool, "a bool")
        check_kind("alg", self.alg, DispatchAlg, "a DispatchAlg")
        check_choice("layout", self.layout, ("permuted", "contiguous"))
        in_order = (DispatchAlgType.AUTO, DispatchAlgType.SEQUENTIAL_SELECT)
        if self.layout == "contiguous" and self.alg.type not in in_order:
            raise ValueError(
                f"alg is {type(self.alg).__name__} while layout is 'contiguous'; "
                "allowed: SequentialDispatchAlg, or the default"
            )
