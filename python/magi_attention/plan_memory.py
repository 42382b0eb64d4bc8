# SPDX-License-Identifier: Apache-2.0
"""Memory that attention under a plan takes on GPUs that write into each other's memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from magi_attention.common.plan_report import PlanReport

_KEYS_VALUES, _KEY_GRADIENTS = 0, 3  # roles of exchanges in a plan's JSON
_SUM_BYTES = 4  # float32
_ALIGNMENT = 256
_LEAST_AREA = 4 << 20
_MOST_DOUBLED = 1 << 30  # a larger area has no second one
_MOST_DOUBLED_SAVING = 64 << 20  # nor has such a one for sections
_SPARE_BYTES = 1 << 20


@dataclass(frozen=True)
class NvlinkMemory:
    """Bytes that a rank takes for a forward and a backward of a layer, beyond inputs, results and
    what the attention kernel takes for itself.

    - window: memory that the other ranks write into, outside of torch. All plans of a group share
      it, and the largest decides.
    - forward, backward: of torch's memory while the call runs: float32 sums.
    """

    window: int
    forward: int
    backward: int

    @property
    def peak(self) -> int:
        """Bytes of all at the same time."""
        return self.window + max(self.forward, self.backward)


class _Plan(Protocol):
    report: PlanReport

    def to_json(self) -> str: ...


def memory_over_nvlink(plan: _Plan) -> tuple[NvlinkMemory, ...]:
    """Returns, by rank, what a layer takes over the transport `nvlink` in tensors of the type that
    the plan counts with, with float32 gradients on the wire. ValueError for a plan that moves
    queries or shares heads out.
    """
    tables = json.loads(plan.to_json())
    if tables.get("num_head_shares", 1) > 1 or any(len(r["q"]) > 1 for r in tables["ranks"]):
        raise ValueError("plan moves queries or heads; allowed: a plan whose keys travel alone")
    most_doubled = _MOST_DOUBLED
    if "stages_in_flight" in tables and all(e[1] == 1 for e in tables["exchanges"]):
        tables, most_doubled = _section(tables), _MOST_DOUBLED_SAVING
    elif "stages_in_flight" in tables:  # NCCL moves their rows, of which as many are on their way
        element = tables["config"]["element_bytes"]
        sizes = [2 * size for size in plan.report.rank_memory]
        return tuple(
            NvlinkMemory(0, size * element // (element + _SUM_BYTES), size) for size in sizes
        )
    layer = _Layer(tables)
    window = layer.window_bytes(most_doubled)
    return tuple(
        NvlinkMemory(window, layer.forward_bytes(rank), layer.backward_bytes(rank))
        for rank in range(len(tables["ranks"]))
    )


def _section(tables: dict) -> dict:
    """The tables of one of the equal sections of heads in which ranks run stages by heads that take
    turns (src/runtime/head_sections.hpp): without stages, own keys copied before those of others.
    """
    config, heads = tables["config"], tables["config"]["num_heads_kv"]
    count = sum(e[0] == _KEYS_VALUES for e in tables["exchanges"])
    while heads % count:
        count += 1
    sizes = {"num_heads_q": config["num_heads_q"] // count, "num_heads_kv": heads // count}
    owned = [rank["k"][0][1] for rank in tables["ranks"]]
    transfers = [[*t[:5], t[5] + owned[t[1]], t[6]] for t in tables["transfers"]]
    ranks = []
    for number, rank in enumerate(tables["ranks"]):
        (own, (owner, others)), segment = rank["k"], int(rank["k"][1][1] > 0)
        if segment:
            transfers.append([number, number, 0, 1, 0, 0, owned[number]])
            others += owned[number]
        attend = [0, segment, 0, heads // count, 0, 1, 0]
        ranks.append({**rank, "k": [own, [owner, others]], "attends": [attend]})
    exchanges = [[role, 1, 0, heads // count] for role in (_KEYS_VALUES, _KEY_GRADIENTS)]
    return {
        "config": config | sizes, "ranks": ranks, "exchanges": exchanges, "transfers": transfers
    }  # fmt: skip


class _Layer:
    """The sizes that the executor asks for, from the tables of a plan
    (docs/kernels/distributed.md).
    """

    def __init__(self, tables: dict) -> None:
        config = tables["config"]
        self._element = config["element_bytes"]
        self._heads = config["num_heads_kv"]
        self._heads_q = config["num_heads_q"]
        self._dims = (config["head_dim_qk"], config["head_dim_v"])
        self._ranks = tables["ranks"]
        self._exchanges = tables["exchanges"]
        # [src, dst, src row, dst segment, space, dst row, rows]
        self._transfers = tables["transfers"]

    def window_bytes(self, most_doubled: int) -> int:
        """Bytes of both areas, or of one larger than most_doubled, when the forward came first."""
        keys = sum(self._keys_bytes(e) for e in self._exchanges if e[0] == _KEYS_VALUES)
        partials = sum(self._partials_bytes(e) for e in self._exchanges if e[0] == _KEY_GRADIENTS)
        if not self._exchanges:
            return 0
        area = _grown(0, keys + _SPARE_BYTES)
        area = _grown(area, keys + partials + _SPARE_BYTES)
        return area if area > most_doubled else 2 * area

    def forward_bytes(self, rank: int) -> int:
        """A float32 out where several attends are merged."""
        return self._merged_bytes(rank, self._dims[1])

    def backward_bytes(self, rank: int) -> int:
        """Float32 dq where several attends add to it; gradients of received keys and of own ones,
        but for those that the kernel writes where they belong.
        """
        own = self._ranks[rank]["k"][0][1]
        place = self._place_of_own(rank)
        total = self._merged_bytes(rank, self._dims[0])
        for exchange in self._exchanges:
            _, segment, first, last = exchange[:4]
            if exchange[0] == _KEY_GRADIENTS:
                rows = self._ranks[rank]["k"][segment][1]
                if self._is_placed(rank, segment):
                    rows = self._shared_rows(rank, segment)
                total += self._row_bytes(rows, last - first, _SUM_BYTES)
        if place == 0 and self._exchanges and self._element < _SUM_BYTES:
            total += self._row_bytes(own, self._heads, _SUM_BYTES)
        return total

    def _row_bytes(self, rows: int, heads: int, element: int) -> int:
        return sum(_aligned(rows * heads * dim * element) for dim in self._dims)

    def _keys_bytes(self, exchange: list[int]) -> int:
        """Bytes in the window, where all ranks lay out what the one with most rows needs."""
        _, segment, first, last = exchange[:4]
        rows = max(rank["k"][segment][1] for rank in self._ranks)
        return self._row_bytes(rows, last - first, self._element)

    def _partials_bytes(self, exchange: list[int]) -> int:
        """Likewise, of the rank that takes most."""
        _, segment, first, last = exchange[:4]
        rows = [0] * len(self._ranks)
        for source, to, _, at, _, _, count in self._transfers:
            if at == segment and (source != to or self._place_of_own(source) != segment):
                rows[source] += count
        return self._row_bytes(max(rows), last - first, _SUM_BYTES)

    def _merged_bytes(self, rank: int, dim: int) -> int:
        # [q segment, k segment, heads, slices, is merging]: a merging one without slices has no row
        attends = [a for a in self._ranks[rank]["attends"] if not a[6] or a[4] < a[5]]
        if len(attends) < 2 or self._element == _SUM_BYTES:
            return 0
        return _aligned(self._ranks[rank]["q"][0][1] * self._heads_q * dim * _SUM_BYTES)

    def _place_of_own(self, rank: int) -> int:
        """The segment with a copy of all own keys in which their sums begin; 0: none."""
        if any(attend[1] == 0 for attend in self._ranks[rank]["attends"]):
            return 0
        own = self._ranks[rank]["k"][0][1]
        copies = [t[3] for t in self._transfers if t[0] == t[1] == rank and t[6] == own]
        brought = [e[:4] for e in self._exchanges]
        whole = (s for s in copies if [_KEYS_VALUES, s, 0, self._heads] in brought)
        return min(whole, default=0)

    def _is_placed(self, rank: int, segment: int) -> bool:
        """Whether the kernel writes each gradient of the segment to its place: it reads the keys
        while they come, which one attention call for each rank does, own keys first.
        """
        is_single = all(len(r["attends"]) <= 1 for r in self._ranks)
        is_one = sum(e[0] == _KEY_GRADIENTS for e in self._exchanges) == 1
        if not (is_single and is_one and self._element == 2):
            return False
        filled = [t for t in self._transfers if t[1] == rank and t[3] == segment]
        is_first = any(t[0] == rank and t[5] == 0 for t in filled)
        has_all = sum(t[6] for t in filled) == self._ranks[rank]["k"][segment][1]
        return self._place_of_own(rank) == segment and is_first and has_all

    def _shared_rows(self, rank: int, segment: int) -> int:
        """Own rows that other ranks need, each once."""
        runs = sorted(
            (t[2], t[2] + t[6])
            for t in self._transfers
            if t[0] == rank and t[1] != rank and t[3] == segment
        )
        count = end = 0
        for first, last in runs:
            count += max(0, last - max(first, end))
            end = max(end, last)
        return count


def _aligned(size: int, unit: int = _ALIGNMENT) -> int:
    return -(-size // unit) * unit


def _grown(area: int, wanted: int) -> int:
    """An area that has room: by a quarter at least, so that it seldom grows."""
    if wanted <= area:
        return area
    return _aligned(max(wanted, _LEAST_AREA, area + area // 4), _LEAST_AREA)
