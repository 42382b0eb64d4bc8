# SPDX-License-Identifier: Apache-2.0
"""Plans as values: where rows live, what travels, in which order. No globals, no process group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

import torch

from magi_attention._native import structs
from magi_attention._native.handles import (
    MaskHandle,
    PlacementHandle,
    PlanHandle,
    default_placement_config,
    default_plan_config,
)
from magi_attention.common._arguments import MAX_ROWS, check_int, check_kind, naming
from magi_attention.common.enum import AttnMaskType
from magi_attention.common.ranges import AttnRanges
from magi_attention.config import DistAttnConfig
from magi_attention.env import general

if TYPE_CHECKING:
    import torch.distributed as dist

    from magi_attention.bound_plan import BoundPlan

_MAX_SIZE = 1 << 16  # of numbers of heads and head dims
_PICTURES = ("mask", "placement", "traffic", "timeline")
MaskTypes = "str | AttnMaskType | Sequence[str | AttnMaskType]"


@dataclass(frozen=True)
class PlanReport:
    """Figures of a plan.

    digest: 64 bits that equal plans share. num_waves: stages, that of the own keys included.
    rank_area: visible (query, key) pairs of each rank; balance: the largest over their mean.
    rank_rows, remote_rows: rows each rank holds, padding included, and key rows it receives.
    total_bytes: sent by all ranks in one forward pass; lower_bound_bytes: what no placement that is
    balanced as well goes below; ring_bytes: what a ring or an all-gather sends. forward_seconds,
    backward_seconds: predicted; exposed_comm_seconds: of forward, communication that is not hidden.
    """

    digest: int
    num_waves: int
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    head_dim_v: int
    rank_area: tuple[int, ...]
    rank_rows: tuple[int, ...]
    remote_rows: tuple[int, ...]
    balance: float
    total_bytes: int
    lower_bound_bytes: int
    ring_bytes: int
    forward_seconds: float
    backward_seconds: float
    exposed_comm_seconds: float


def to_mask_types(types: MaskTypes, count: int) -> tuple[AttnMaskType, ...]:
    """One type per slice from a name, a type, or a list of either."""
    if isinstance(types, (str, AttnMaskType)):
        return (_to_mask_type(types),) * count
    if not hasattr(types, "__iter__"):
        check_kind("attn_mask_type", types, str, "a name, an AttnMaskType, or a list of either")
    result = tuple(t if type(t) is AttnMaskType else _to_mask_type(t) for t in types)
    if len(result) != count:
        raise ValueError(
            f"attn_mask_type has {len(result)} entries; allowed: {count}, one per range, or one"
        )
    return result


def _to_mask_type(value: str | AttnMaskType) -> AttnMaskType:
    try:
        return AttnMaskType(value)
    except ValueError:
        names = ", ".join(repr(mask_type.value) for mask_type in AttnMaskType)
        raise ValueError(f"attn_mask_type is {value!r}; allowed: {names}") from None


def check_inside(name: str, ranges: AttnRanges, rows: int) -> None:
    """TypeError or ValueError for the first range that is not ints with 0 <= start <= end <= rows."""
    for index, attn_range in enumerate(ranges):
        start = check_int(f"{name}[{index}].start", attn_range.start, 0, rows)
        check_int(f"{name}[{index}].end", attn_range.end, start, rows)


class Plan:
    """How `cp_size` ranks share attention under one mask. Equal arguments give equal plans, on
    every rank and in every run. Immutable; `print(plan)` gives a page of figures.
    """

    def __init__(self, handle: PlanHandle) -> None:
        self._handle = handle
        self._placement: PlacementHandle | None = None
        self._report: PlanReport | None = None

    @staticmethod
    def from_ranges(
        q_ranges: AttnRanges,
        k_ranges: AttnRanges,
        attn_mask_type: MaskTypes,
        total_seqlen: int,
        *,
        cp_size: int,
        num_heads_q: int,
        num_heads_kv: int,
        head_dim: int,
        config: DistAttnConfig = DistAttnConfig(),
        on: "Plan | None" = None,
    ) -> "Plan":
        """Self-attention over total_seqlen rows where q_ranges[i] sees k_ranges[i] under
        attn_mask_type, one type or one per range: "full", "causal", "inv_causal", "bi_causal" or
        AttnMaskType. With `on`, rows stay where that plan has placed them.

        ValueError for ranges outside the sequence, for numbers of heads that do not divide and for
        sizes out of bounds; TypeError for arguments of other types.
        """
        for name, value, kind in (
            ("q_ranges", q_ranges, AttnRanges),
            ("k_ranges", k_ranges, AttnRanges),
            ("config", config, DistAttnConfig),
        ):
            check_kind(name, value, kind, kind.__name__)
        if on is not None:
            check_kind("on", on, Plan, "a Plan, or None")
        check_int("total_seqlen", total_seqlen, 1, MAX_ROWS)
        for name, size in (
            ("cp_size", cp_size),
            ("num_heads_q", num_heads_q),
            ("num_heads_kv", num_heads_kv),
            ("head_dim", head_dim),
        ):
            check_int(name, size, 1, _MAX_SIZE)
        if len(q_ranges) != len(k_ranges):
            raise ValueError(
                f"k_ranges has {len(k_ranges)} entries; allowed: {len(q_ranges)}, as q_ranges"
            )
        types = to_mask_types(attn_mask_type, len(q_ranges))
        try:
            mask = MaskHandle.from_ranges(q_ranges, k_ranges, types, total_seqlen, total_seqlen)
        except (TypeError, ValueError):
            check_inside("q_ranges", q_ranges, total_seqlen)
            check_inside("k_ranges", k_ranges, total_seqlen)
            raise
        native = default_plan_config()
        native.num_ranks = cp_size
        native.num_heads_q, native.num_heads_kv = num_heads_q, num_heads_kv
        native.head_dim_qk = native.head_dim_v = head_dim
        overlap = config.overlap_config
        native.overlap_degree = -1 if overlap.degree is None else overlap.degree
        native.min_wave_rows = min(overlap.min_chunk_size, MAX_ROWS)
        placement_config = to_placement_config(config)
        native.placement = placement_config.address
        with naming(num_ranks="cp_size", head_dim_qk="head_dim", overlap_degree="degree",
                    placement_q__num_ranks="on.cp_size"):  # fmt: skip
            return Plan(PlanHandle.create(mask, native, None if on is None else on.placement))

    @staticmethod
    def from_json(text: str) -> "Plan":
        """The plan that to_json wrote; ValueError for other text and for unknown keys."""
        check_kind("text", text, str, "a str")
        return Plan(PlanHandle.from_json(text))

    def to_json(self) -> str:
        """The plan as JSON text, for from_json. Equal plans give equal text."""
        return self._handle.to_json()

    @property
    def handle(self) -> PlanHandle:
        """The library's plan."""
        return self._handle

    @property
    def placement(self) -> PlacementHandle:
        """The library's placement: which rank holds which chunk."""
        if self._placement is None:
            self._placement = self._handle.placement()
        return self._placement

    @property
    def total_seqlen(self) -> int:
        """Rows of the sequence, without padding."""
        return self._handle.mask().rows()[0]

    @property
    def padded_seqlen(self) -> int:
        """Rows of all ranks together, padding included."""
        return self.placement.info().num_rows

    @property
    def pad_size(self) -> int:
        """Rows that are added to the sequence."""
        return self.padded_seqlen - self.total_seqlen

    @property
    def chunk_size(self) -> int:
        """Rows that are placed together."""
        return self.placement.info().chunk_size

    @property
    def cp_size(self) -> int:
        """Number of ranks."""
        return self.placement.info().num_ranks

    @property
    def chunk_ranks(self) -> list[int]:
        """The rank of every chunk."""
        info = self.placement.info()
        return info.chunk_rank[: info.num_chunks]

    @property
    def report(self) -> PlanReport:
        """Figures: areas, rows, bytes, predicted seconds."""
        if self._report is None:
            self._report = _read_report(self._handle.report())
        return self._report

    @property
    def reach(self) -> tuple[int, int]:
        """How many rows the farthest keys lie before and after a query that sees them."""
        q0, q1, k0, k1, d_min, d_max = self._handle.mask().bands().unbind(1)
        first, last = torch.maximum(d_min, k0 - q1 + 1), torch.minimum(d_max, k1 - 1 - q0)
        ends = torch.stack((-first, last), 1)[first <= last]
        back, ahead = ends.amax(0).clamp(min=0).tolist() if ends.numel() else (0, 0)
        return back, ahead

    def rows_of(self, rank: int) -> int:
        """Local rows of a rank, padding included."""
        return self.placement.rows_of(rank)

    def ranges_of(self, rank: int) -> AttnRanges:
        """Rows of the sequence that a rank holds, merged, in the order of its local rows."""
        info = self.placement.info()
        check_int("rank", rank, 0, info.num_ranks - 1)
        chunk, last = info.chunk_size, self.total_seqlen
        own = [i * chunk for i in range(info.num_chunks) if info.chunk_rank[i] == rank]
        return AttnRanges.from_ranges(
            [(row, min(row + chunk, last)) for row in own if row < last]
        ).merge()

    def position_ids(self, rank: int) -> list[int]:
        """Row of the sequence of every local row; padding counts as the last row."""
        return self.placement.position_ids(rank, self.total_seqlen).tolist()

    def defects(self) -> str:
        """What an independent check finds wrong, one line each; empty for a sound plan."""
        return self._handle.defects()

    def show(self, picture: str = "mask", path: str | None = None, title: str = "") -> str:
        """SVG text of "mask" (coloured by rank), "placement", "traffic" or "timeline"; written to
        `path` as well where one is given.
        """
        if picture not in _PICTURES:
            raise ValueError(f"picture is {picture!r}; allowed: {', '.join(_PICTURES)}")
        svg = self._handle.draw(_PICTURES.index(picture), title)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(svg)
        return svg

    def bind(self, cp_group: "dist.ProcessGroup | None" = None) -> "BoundPlan":
        """This plan on the ranks of a process group; None: on this process alone."""
        from magi_attention.bound_plan import BoundPlan

        return BoundPlan(self, cp_group)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self._handle.equals(other._handle)

    def __hash__(self) -> int:
        return hash(self.report.digest)

    def __str__(self) -> str:
        return self._handle.describe()

    def __repr__(self) -> str:
        return (
            f"Plan(total_seqlen={self.total_seqlen}, cp_size={self.cp_size}, "
            f"chunk_size={self.chunk_size}, digest={self.report.digest:016x})"
        )

    def __reduce__(self):
        return (Plan.from_json, (self.to_json(),))


def to_placement_config(config: DistAttnConfig) -> structs.PlacementConfig:
    """The placement part of a configuration in the library's terms."""
    dispatch = config.dispatch_config
    native = default_placement_config()
    native.algorithm = dispatch.alg.type.value.encode()
    native.chunk_size = min(dispatch.chunk_size or 0, MAX_ROWS)
    native.uneven_shard = dispatch.uneven_shard
    native.min_chunks_per_rank = min(general.min_chunks_per_rank(), MAX_ROWS)
    native.top_p = getattr(dispatch.alg, "top_p", native.top_p)
    select = getattr(dispatch.alg, "num_of_select_chunk", native.num_select_chunks)
    native.num_select_chunks = min(select, MAX_ROWS)
    native.allocation_ratio = getattr(dispatch.alg, "allocation_ratio", native.allocation_ratio)
    return native


def _read_report(report: structs.PlanReport) -> PlanReport:
    ranks = report.num_ranks
    return PlanReport(
        digest=report.digest,
        num_waves=report.num_waves,
        num_heads_q=report.num_heads_q,
        num_heads_kv=report.num_heads_kv,
        head_dim=report.head_dim_qk,
        head_dim_v=report.head_dim_v,
        rank_area=tuple(report.rank_area[:ranks]),
        rank_rows=tuple(report.rank_rows[:ranks]),
        remote_rows=tuple(report.remote_rows[:ranks]),
        balance=report.balance,
        total_bytes=report.total_bytes,
        lower_bound_bytes=report.lower_bound_bytes,
        ring_bytes=report.ring_bytes,
        forward_seconds=report.forward_seconds,
        backward_seconds=report.backward_seconds,
        exposed_comm_seconds=report.exposed_comm_seconds,
    )
