# SPDX-License-Identifier: Apache-2.0
"""Plans of whole batches: which ranks hold which samples, in which micro-batch (docs/batch.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from magi_attention._native.batches import BatchConfig, BatchHandle
from magi_attention._native.library import lib
from magi_attention.common._arguments import MAX_ROWS, check_int, check_kind
from magi_attention.config import DistAttnConfig
from magi_attention.config.library import plan_sizes, to_plan
from magi_attention.config.words import chosen_config
from magi_attention.masks import Mask
from magi_attention.plan import Plan
from magi_attention.training_memory import ModelShape

_MOST_RANKS, _MOST = 4096, 1 << 16  # ranks, micro-batches
_DEFAULTS = BatchConfig.filled(lib.magi_batch_config_init)


@dataclass(frozen=True)
class BatchCost:
    """The cost of a step of a model, both passes and all layers, and the rates of a rank. Defaults:
    Qwen3-8B in 16 bits on H200.

    - flops_per_token: of all but attention; flops_per_pair: of attention, a visible pair.
    - bytes_per_token: of keys, values and their gradients, those that another rank waits for.
    """

    flops_per_token: float = _DEFAULTS.flops_per_token
    flops_per_pair: float = _DEFAULTS.flops_per_pair
    bytes_per_token: float = _DEFAULTS.bytes_per_token
    flops_per_second: float = _DEFAULTS.flops_per_second
    bytes_per_second: float = _DEFAULTS.bytes_per_second
    network_bytes_per_second: float = _DEFAULTS.network_bytes_per_second

    @staticmethod
    def of_model(model: ModelShape, recomputes: bool = False, **rates: float) -> BatchCost:
        """The cost of a model of such sizes. recomputes: whether layers run again in the backward,
        but for attention. rates: of the fields above.
        """
        check_kind("model", model, ModelShape, "a ModelShape")
        head = model.hidden * model.vocabulary
        passes = 4 if recomputes else 3  # a backward is two forwards
        layers = 2.0 * passes * model.layers * model.layer_weights
        keys = 2 * model.layers * model.kv_heads * model.head_dim
        # Products of a forward are 4 a pair, head and element, those of a backward 10. Half of what
        # moves hides: keys and values come twice, and their float32 gradients go.
        return BatchCost(
            flops_per_token=layers + 6.0 * head,
            flops_per_pair=14.0 * model.layers * model.heads * model.head_dim,
            bytes_per_token=keys * (2 * model.element_bytes + 4) / 2,
            **rates,
        )


class BatchPart(NamedTuple):
    """The rows of a sample that a rank holds. Of one that several ranks hold, whole chunks."""

    micro_batch: int
    sample: int
    rank: int
    rows: int


class BatchFigures(NamedTuple):
    """Figures of a batch's plan; seconds are predictions.

    - step_seconds: of the longest micro-batch, times their number; no plan takes less than
      lower_bound_seconds.
    - rank_rows (padding included), rank_seconds: by micro-batch and rank.
    - node_bytes, network_bytes: that ranks wait for, inside nodes and between them.
    """

    step_seconds: float
    lower_bound_seconds: float
    rank_rows: list[list[int]]
    rank_seconds: list[list[float]]
    node_bytes: int
    network_bytes: int

    @property
    def gap(self) -> float:
        """The step over its bound."""
        bound = self.lower_bound_seconds
        return self.step_seconds / bound if bound > 0 else 1.0


class BatchPlan:
    """A plan of a whole batch over ranks with memory for so many rows each in a micro-batch: short
    samples stay on one rank, long ones spread over as many as pay. Pure and equal on all ranks.
    Immutable. lengths: rows of each sample.
    """

    def __init__(self, handle: BatchHandle, lengths: Sequence[int], masks: Sequence[Mask]) -> None:
        self._handle, self.lengths, self._masks = handle, tuple(lengths), tuple(masks)
        report = handle.report()
        self.num_ranks, self.chunk_size = report.num_ranks, report.chunk_size
        self.num_micro_batches = report.num_micro_batches
        self.parts = [BatchPart(*part) for part in handle.parts()]

    @staticmethod
    def from_lengths(
        lengths: Sequence[int], *, num_ranks: int, rows_per_rank: int, devices_per_node: int = 0,
        num_micro_batches: int | None = None, chunk_size: int | None = None,
        cost: BatchCost | None = None,
    ) -> BatchPlan:  # fmt: skip
        """A plan of causal samples of these lengths; one of 0 rows takes no part.

        - devices_per_node: ranks that share a node, one node after the other; 0: all of them.
        - num_micro_batches: None: the number of the shortest step.
        - chunk_size: rows; samples that spread are cut at its multiples, and a rank's whole samples
          together are padded to one. None: a 256th of rows_per_rank, 64 at most.

        ValueError naming the sample that does not fit on all ranks together, or the number of
        micro-batches that are needed.
        """
        rows = [check_int(f"lengths[{i}]", n, 0, MAX_ROWS) for i, n in enumerate(lengths)]
        options = num_ranks, rows_per_rank, devices_per_node, num_micro_batches, chunk_size, cost
        return _make(rows, [n * (n + 1) // 2 for n in rows], (), *options)

    @staticmethod
    def from_masks(
        masks: Sequence[Mask], *, num_ranks: int, rows_per_rank: int, devices_per_node: int = 0,
        num_micro_batches: int | None = None, chunk_size: int | None = None,
        cost: BatchCost | None = None,
    ) -> BatchPlan:  # fmt: skip
        """Does what from_lengths does, for samples of any masks with as many keys as queries, such
        as prefix trees.
        """
        _check_masks(masks)
        rows = [mask.rows_q for mask in masks]
        options = num_ranks, rows_per_rank, devices_per_node, num_micro_batches, chunk_size, cost
        return _make(rows, [mask.area for mask in masks], masks, *options)

    @property
    def report(self) -> BatchFigures:
        """Figures: seconds, rows, bytes."""
        report, ranks = self._handle.report(), self.num_ranks
        turns = [slice(m * ranks, (m + 1) * ranks) for m in range(self.num_micro_batches)]
        return BatchFigures(
            report.step_seconds, report.lower_bound_seconds,
            [report.rank_rows[turn] for turn in turns],
            [report.rank_seconds[turn] for turn in turns],
            report.node_bytes, report.network_bytes,
        )  # fmt: skip

    def packed(self, micro_batch: int) -> list[tuple[int, int]]:
        """(sample, first row) of each sample in the packed sequence of a micro-batch, by row. Rows
        between samples, and after the last one, are padding, which sees nothing.
        """
        return [(sample, row) for sample, row in self._handle.packed(self._index(micro_batch))]

    def mask(self, micro_batch: int) -> Mask:
        """The mask of the packed sequence of a micro-batch."""
        masks = [mask.handle for mask in self._masks]
        return Mask(self._handle.mask(self._index(micro_batch), masks))

    def plan(
        self,
        micro_batch: int,
        *,
        num_heads_q: int,
        num_heads_kv: int,
        head_dim: int,
        head_dim_v: int | None = None,
        mask: Mask | None = None,
        config: DistAttnConfig | None = None,
        devices_per_node: int = 0,
    ) -> Plan:
        """The plan of a micro-batch over all ranks, to be bound to their group. mask: another one
        over the same packed sequence, such as windows of some layers. Other arguments are those of
        Plan.from_mask.
        """
        own = self.mask(micro_batch)
        placement = self._handle.placement(micro_batch, own.handle)
        sizes = plan_sizes(self.num_ranks, num_heads_q, num_heads_kv, head_dim, head_dim_v)
        chosen = chosen_config(config, None, None, None)
        handle = (own if mask is None else mask).handle
        return Plan(to_plan(handle, sizes, chosen, placement, devices_per_node))

    def _index(self, micro_batch: int) -> int:
        return check_int("micro_batch", micro_batch, 0, _MOST)

    def to_json(self) -> str:
        """The plan as JSON text, for from_json. Equal plans give equal text."""
        return self._handle.to_json()

    @staticmethod
    def from_json(text: str, masks: Sequence[Mask] = ()) -> BatchPlan:
        """The plan that to_json wrote; ValueError for other text. masks: those of from_masks, which
        the text has not; ValueError unless they have the rows and pairs of the samples. Without
        them mask and plan refuse micro-batches with samples that are not causal.
        """
        check_kind("text", text, str, "a str")
        _check_masks(masks)
        plan = BatchPlan(BatchHandle.from_json(text), json.loads(text)["rows"], masks)
        for micro_batch in range(plan.num_micro_batches if plan._masks else 0):
            plan.mask(micro_batch)  # which compares them with the samples
        return plan

    def defects(self) -> str:
        """Returns what an independent check finds wrong, one line each; empty for a sound plan."""
        return self._handle.defects()

    def show(self, path: str | None = None, title: str = "") -> str:
        """SVG text: ranks by micro-batches, a box for each sample; written to `path` as well."""
        svg = self._handle.draw(title)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(svg)
        return svg

    def __repr__(self) -> str:
        return (
            f"BatchPlan(num_ranks={self.num_ranks}, num_micro_batches={self.num_micro_batches}, "
            f"step_seconds={self.report.step_seconds:.4g}, gap={self.report.gap:.4f})"
        )


def _check_masks(masks: Sequence[Mask]) -> None:
    for i, mask in enumerate(masks):
        check_kind(f"masks[{i}]", mask, Mask, "a Mask of magi_attention.masks")
        if mask.rows_q != mask.rows_k:
            raise ValueError(
                f"masks[{i}] has {mask.rows_q} queries and {mask.rows_k} keys; allowed: equal"
            )


def _make(
    rows: list[int], pairs: list[int], masks: Sequence[Mask], num_ranks: int, rows_per_rank: int,
    devices_per_node: int, num_micro_batches: int | None, chunk_size: int | None,
    cost: BatchCost | None,
) -> BatchPlan:  # fmt: skip
    config = BatchConfig.filled(lib.magi_batch_config_init)
    config.num_ranks = check_int("num_ranks", num_ranks, 1, _MOST_RANKS)
    config.rows_per_rank = check_int("rows_per_rank", rows_per_rank, 1, MAX_ROWS)
    config.devices_per_node = check_int("devices_per_node", devices_per_node, 0, _MOST_RANKS)
    if num_micro_batches is not None:
        config.num_micro_batches = check_int("num_micro_batches", num_micro_batches, 1, _MOST)
    if chunk_size is not None:
        config.chunk_size = check_int("chunk_size", chunk_size, 1, rows_per_rank)
    if cost is not None:
        check_kind("cost", cost, BatchCost, "a BatchCost, or None")
        for name, value in asdict(cost).items():
            setattr(config, name, float(value))
    return BatchPlan(BatchHandle.create(config, rows, pairs), rows, masks)
