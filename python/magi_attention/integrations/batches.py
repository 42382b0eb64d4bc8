# SPDX-License-Identifier: Apache-2.0
"""Training on batches of samples of any lengths (docs/batch.md): all ranks are one group, in which
short samples stay on one rank and long ones spread.

    collator = MagiBatchCollator(model, rows_per_rank=16384)
    Trainer(model, args, train_dataset=dataset, callbacks=[MagiCallback(collator)])

A step has the samples that it has without context parallelism, in another order: losses, gradients
and weights are those of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from magi_attention.batch import BatchCost, BatchPlan
from magi_attention.comm.group import num_processes, size_of
from magi_attention.common._arguments import MAX_ROWS, check_choice, check_int
from magi_attention.config import DistAttnConfig
from magi_attention.integrations._batch_loader import (
    Documents,
    MicroBatches,
    PlannedDataset,
    PlannedMicroBatch,
)
from magi_attention.integrations._dealing import (
    group_of_neighbours,
    options_of,
    order_alike,
    refuse_dealt,
)
from magi_attention.integrations._in_trainer import weighted_loss
from magi_attention.integrations._mask_spec import AttnMaskSpec
from magi_attention.integrations._model_plans import Heads, specs_of_layers
from magi_attention.integrations._packed_batch import (
    AVERAGES,
    refuse_other_samples,
    refuse_workers,
    weights_of,
)
from magi_attention.integrations.trainer import MagiCollator
from magi_attention.integrations.transformers import PLAN_KEYWORD, rows_of_rank
from magi_attention.masks import Mask, from_cu_seqlens, from_ranges
from magi_attention.plan import BoundPlan

_IGNORED_LABEL = -100
_Weighted = list[tuple[dict[str, Any], float]]  # documents of a sample


def batch_plan_of(lengths: Sequence[Sequence[int]], **options: Any) -> BatchPlan:
    """The plan of samples, each packed of causal documents of these lengths; options: those of
    BatchPlan.from_masks.
    """
    return BatchPlan.from_masks([_packed(documents) for documents in lengths], **options)


def _packed(lengths: Sequence[int]) -> Mask:
    return from_cu_seqlens(torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0))


class MagiBatchCollator(MagiCollator):
    """A collator that plans all samples of a step at once. Give it to MagiCallback, for Trainer and
    TRL's SFTTrainer, or call `deal(loader)` for other loops; samples are those of MagiCollator. All
    ranks are one group: there are no data-parallel replicas beside it, and FSDP shards over it.

    A step has the samples of as many batches of the loader as there are ranks, times
    num_micro_batches, and becomes num_micro_batches batches. On the last step of an epoch there may
    be fewer.

    - cp_group: the ranks, where stages of a pipeline or tensor parallel ranks are others; None: all
      of the program. Makes a group then, so that all ranks call it.
    - rows_per_rank: rows that a rank has memory for in a micro-batch.
    - num_micro_batches: of a step; MagiCallback sets gradient_accumulation_steps. ValueError where
      memory asks for more.
    - average: adds loss_weights [1, rows] to a batch, for weighted_loss: of "tokens", or of
      "sequences", each of which counts alike. None: the model's own loss, by num_items_in_batch.
      With MagiCallback the trainer computes the loss by these weights.
    - devices_per_node, cost: of BatchPlan. pad_id, config: of MagiCollator.
    """

    def __init__(
        self, model: torch.nn.Module, rows_per_rank: int, *,
        cp_group: dist.ProcessGroup | None = None, num_micro_batches: int = 1,
        average: str | None = None, devices_per_node: int = 0, cost: BatchCost | None = None,
        pad_id: int = 0, config: DistAttnConfig = DistAttnConfig(),
    ) -> None:  # fmt: skip
        if cp_group is None:
            cp_group = group_of_neighbours(num_processes())
        super().__init__(model, cp_group, is_same_on_ranks=True, pad_id=pad_id, config=config)
        self.rows_per_rank = check_int("rows_per_rank", rows_per_rank, 1, MAX_ROWS)
        self.num_micro_batches = check_int("num_micro_batches", num_micro_batches, 1)
        if average is not None:
            check_choice("average", average, AVERAGES)
        self.average, self._cost, self._devices_per_node = average, cost, devices_per_node

    def deal(self, loader: DataLoader) -> DataLoader:
        """A loader of planned micro-batches of the same dataset and order, the same on all ranks.
        Collective over all processes. ValueError for loaders that deal out already, and for
        datasets without indices.
        """
        sampler = refuse_dealt(loader)
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                "the dataset is iterable; allowed: one with indices, so that a step's samples are "
                "known before it"
            )
        order_alike(sampler)
        ranks = size_of(self.cp_group)
        batches = MicroBatches(loader.batch_sampler, ranks, self.num_micro_batches)
        dataset = PlannedDataset(loader.dataset, self.planned)
        return DataLoader(dataset, batch_sampler=batches, **options_of(loader))

    def planned(
        self, samples: Sequence[Any], num_micro_batches: int | None = None
    ) -> tuple[BatchPlan, list[Documents]]:
        """The plan of the samples of a step, which all ranks have, and the documents of each."""
        documents = [self.documents_of(sample) for sample in samples]
        lengths = [[len(one["input_ids"]) for one in sample] for sample in documents]
        plan = batch_plan_of(
            lengths, num_ranks=size_of(self.cp_group), rows_per_rank=self.rows_per_rank,
            num_micro_batches=num_micro_batches, cost=self._cost,
            devices_per_node=self._devices_per_node,
        )  # fmt: skip
        return plan, documents

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """A batch of a loader that `deal` made; or of all samples of a step, which must fit in one
        micro-batch.
        """
        refuse_workers("the collator")
        if len(samples) == 1 and isinstance(samples[0], PlannedMicroBatch):
            return self.micro_batch(*samples[0])
        plan, documents = self.planned(samples, 1)
        return self.micro_batch(plan, 0, documents)

    def micro_batch(
        self, plan: BatchPlan, micro_batch: int, samples: list[Documents]
    ) -> dict[str, Any]:
        """This rank's rows of a micro-batch of `planned`, as the arguments of the model."""
        refuse_other_samples(list(chain.from_iterable(samples)), self.cp_group, _SAME)
        total = plan.mask(micro_batch).rows_q
        rows = _Rows(plan.packed(micro_batch), self._weighted(samples), total, self.pad_id)
        plans: dict[str, BoundPlan] = {}
        for layer_type, spec, heads in specs_of_layers(self.model, rows.lengths):
            plans[layer_type] = self._bound(plan, micro_batch, spec, heads)
        first = next(iter(plans.values()))
        ids, labels, positions, row_weights = rows.tensors(self._first_position)
        found = rows_of_rank(first, ids, labels, positions, self.model)
        self._log_ranks(first, len(rows.lengths))
        if self.average is not None:
            found["loss_weights"] = first.dispatch(row_weights.roll(-1)).unsqueeze(0)
        return {**found, PLAN_KEYWORD: plans if len(plans) > 1 else first}

    def _bound(
        self, plan: BatchPlan, micro_batch: int, spec: AttnMaskSpec, heads: Heads
    ) -> BoundPlan:
        mask = from_ranges(*spec.ranges(), spec.total_seqlen, spec.total_seqlen)
        made = plan.plan(
            micro_batch, **heads._asdict(), mask=mask, config=self.config,
            devices_per_node=self._devices_per_node,
        )  # fmt: skip
        return made.bind(self.cp_group)

    def _weighted(self, samples: list[Documents]) -> list[_Weighted]:
        """Each document, and the weight of its learned tokens."""
        documents = chain.from_iterable(samples)
        learned = [one["labels"][1:] != _IGNORED_LABEL for one in documents]
        weights = iter(weights_of(learned, self.average or "tokens"))
        return [[(one, next(weights)) for one in sample] for sample in samples]


class _Rows:
    """The packed sequence of a micro-batch; padding between samples is a document of its own."""

    def __init__(
        self, packed: list[tuple[int, int]], samples: list[_Weighted], num_rows: int, pad_id: int
    ) -> None:
        self._documents: _Weighted = []
        self._device = next((d["input_ids"].device for d, _ in chain.from_iterable(samples)), None)
        row = 0
        for sample, begin in packed:
            self._pad(begin - row, pad_id)
            self._documents += samples[sample]
            row = begin + sum(len(one["input_ids"]) for one, _ in samples[sample])
        self._pad(num_rows - row, pad_id)
        self.lengths = [len(one["input_ids"]) for one, _ in self._documents]

    def _pad(self, rows: int, pad_id: int) -> None:
        if rows > 0:
            ids = torch.full((rows,), pad_id, device=self._device)
            padding = {"input_ids": ids, "labels": torch.full_like(ids, _IGNORED_LABEL)}
            self._documents.append((padding, 0.0))

    def tensors(self, first_position: int) -> tuple[torch.Tensor, ...]:
        """ids, labels, position ids and weights of the whole sequence."""
        parts: list[tuple[torch.Tensor, ...]] = []
        for document, weight in self._documents:
            ids, labels = document["input_ids"], document["labels"].clone()
            labels[0] = _IGNORED_LABEL  # which the document before would predict
            positions = torch.arange(len(ids), device=ids.device) + first_position
            each = torch.full(ids.shape, weight, dtype=torch.float64, device=ids.device)
            parts.append((ids, labels, document.get("position_ids", positions), each))
        return tuple(map(torch.cat, zip(*parts, strict=True)))


_SAME = "the same on all ranks, as MagiCallback and MagiBatchCollator.deal see to"

__all__ = ["MagiBatchCollator", "batch_plan_of", "weighted_loss"]
