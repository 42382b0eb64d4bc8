# SPDX-License-Identifier: Apache-2.0
"""Context parallel training with transformers' Trainer, or any loop over a DataLoader: a collator
that packs samples, plans them and shards the sequence.

    collator = MagiCollator(model, cp_group)
    Trainer(model, args, train_dataset=dataset, data_collator=collator, callbacks=[MagiCallback()])

Every rank brings samples of its own, as Trainer deals them out; those of the ranks of a group are
packed one after the other into one sequence, which the group then shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from magi_attention.comm.group import size_of
from magi_attention.common._arguments import check_int
from magi_attention.config import DistAttnConfig
from magi_attention.integrations._model_checks import first_position, model_behind
from magi_attention.integrations._model_plans import plans_of_documents
from magi_attention.integrations._packed_batch import required
from magi_attention.integrations.transformers import (
    NAME,
    PLAN_KEYWORD,
    check_model,
    register,
    shard,
)

_IGNORED_LABEL = -100
_ROWS = ("input_ids", "labels")
# Sizes of accelerate's ParallelismConfig whose ranks share sequences.
_OTHER_SHARDS = ("cp_size", "sp_size")


def unpad(batch: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The samples of a padded batch: input_ids [batch, rows], of which attention_mask of the same
    shape shows the real ones, on either side of the padding; labels likewise. Without a mask every
    row is real. ValueError for masks of other shapes, and for rows that are hidden in between.
    """
    ids, mask = required(batch, "input_ids", "the batch"), batch.get("attention_mask")
    if ids.dim() != 2 or (mask is not None and mask.shape != ids.shape):
        shape = list((ids if ids.dim() != 2 else mask).shape)
        raise ValueError(
            f"{'input_ids' if ids.dim() != 2 else 'attention_mask'} has shape {shape}; allowed: "
            "[batch, rows], as input_ids"
        )
    return [
        _real_rows({n: batch[n][i] for n in (*_ROWS, "attention_mask") if batch.get(n) is not None})
        for i in range(ids.shape[0])
    ]


def _real_rows(sample: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """input_ids and labels of a sample, without padding."""
    required(sample, "input_ids", "the sample")
    rows = {n: torch.as_tensor(sample[n]) for n in _ROWS if sample.get(n) is not None}
    rows.setdefault("labels", rows["input_ids"].clone())
    labels, ids = (list(rows[name].shape) for name in ("labels", "input_ids"))
    if len(ids) != 1:
        raise ValueError(f"input_ids has shape {ids}; allowed: [rows]")
    if labels != ids:
        raise ValueError(f"labels has shape {labels}, input_ids {ids}; allowed: [rows] both")
    if sample.get("attention_mask") is None:
        return rows
    real = torch.as_tensor(sample["attention_mask"]).bool()
    if real.shape != rows["input_ids"].shape:
        raise ValueError(
            f"attention_mask has shape {list(real.shape)}; allowed: "
            f"{list(rows['input_ids'].shape)}, that of input_ids"
        )
    places = real.nonzero().view(-1)
    if len(places) and int(places[-1] - places[0]) + 1 != len(places):
        raise ValueError(
            "attention_mask hides rows between others; allowed: padding before or behind a sample"
        )
    return {name: value[real] for name, value in rows.items()}


class MagiCollator:
    """A data_collator that packs samples into one sequence, plans it and gives each rank its rows,
    as the arguments of a causal language model, magi_plan among them; see `shard`.

    A sample has input_ids [rows] (a tensor or list), labels (default: the input_ids) and an
    attention_mask that shows which rows are real; what else it has is left out. Samples are
    documents of the sequence: they do not see each other, and positions begin anew in each. Windows
    and types of layers are those of the model's config.

    - model: checked by check_model; ValueError by its name if plans do not reach it whole.
    - cp_group: the ranks that share a sequence; None: this process alone.
    - is_same_on_ranks: all ranks of the group are given the same samples. Otherwise each brings its
      own, which are gathered (collective, hence in the main process: dataloader_num_workers=0).
    - max_rows: rows of a sequence at most; ValueError above.
    - pad_id: the token of padding rows, which count nowhere.
    - config: how rows are placed, what travels, how much overlaps.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        cp_group: dist.ProcessGroup | None = None,
        *,
        is_same_on_ranks: bool = False,
        max_rows: int | None = None,
        pad_id: int = 0,
        config: DistAttnConfig = DistAttnConfig(),
    ) -> None:
        if max_rows is not None:
            check_int("max_rows", max_rows, 1)
        self.model = model_behind(model)
        check_model(self.model)
        self.cp_group, self.config = cp_group, config
        self.is_same_on_ranks, self.max_rows, self.pad_id = is_same_on_ranks, max_rows, pad_id
        self._first_position = first_position(self.model)

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A batch of Trainer."""
        samples = [sample for sample in map(_real_rows, samples) if len(sample["input_ids"])]
        samples = self._of_group(samples)
        lengths = [len(sample["input_ids"]) for sample in samples]
        ids, labels, positions, seqlens = self._packed(samples, lengths)
        plans = plans_of_documents(self.model, seqlens, self.cp_group, self.config)
        first = next(iter(plans.values())) if isinstance(plans, Mapping) else plans
        arguments = shard(first, ids, labels, positions)
        return {**arguments, PLAN_KEYWORD: plans}

    def _packed(self, samples, lengths: list[int]):
        """ids, labels, position ids and lengths of documents, of at least a row for each rank."""
        total = sum(lengths)
        if self.max_rows is not None and total > self.max_rows:
            raise ValueError(
                f"the samples have {total} rows; allowed: up to {self.max_rows}, max_rows"
            )
        missing = max(0, size_of(self.cp_group) - total)
        ids = [sample["input_ids"] for sample in samples]
        labels = [sample["labels"].clone() for sample in samples]
        for of_sample in labels:
            of_sample[0] = _IGNORED_LABEL  # which the document before would predict
        device = ids[0].device if ids else torch.device("cpu")
        ids.append(torch.full((missing,), self.pad_id, device=device))
        labels.append(torch.full((missing,), _IGNORED_LABEL, device=device))
        lengths = [*lengths, *[1] * missing]
        positions = [torch.arange(n, device=device) for n in lengths]
        return *map(torch.cat, (ids, labels)), torch.cat(positions) + self._first_position, lengths

    def _of_group(self, samples: list[dict]) -> list[dict]:
        """The samples of all ranks, in the order of ranks."""
        if self.is_same_on_ranks or size_of(self.cp_group) == 1:
            return samples
        if torch.utils.data.get_worker_info() is not None:
            raise ValueError(
                "the collator runs in a worker of a DataLoader; allowed: dataloader_num_workers=0, "
                "or is_same_on_ranks=True"
            )
        gathered: list[Any] = [None] * size_of(self.cp_group)
        dist.all_gather_object(gathered, samples, group=self.cp_group)
        return [sample for of_rank in gathered for sample in of_rank]


class MagiCallback(TrainerCallback):
    """Checks, when training begins, what would make a Trainer's losses wrong over ranks, and sets
    attn_implementation="magi" where the model has another one. ValueError by name of the argument.
    """

    def on_train_begin(self, args, state, control, model=None, **others) -> None:
        """As the class says."""
        if args.world_size > 1 and not args.average_tokens_across_devices:
            raise ValueError(
                "average_tokens_across_devices is False; allowed: True over ranks, which hold "
                "different numbers of tokens"
            )
        if args.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor is {args.label_smoothing_factor}; allowed: 0, as Trainer "
                "shifts labels itself for it"
            )
        for name in _OTHER_SHARDS:
            size = getattr(args.parallelism_config, name, 1)
            if size != 1:
                raise ValueError(
                    f"parallelism_config has {name} {size}; allowed: 1, as MagiCollator gives each "
                    "rank its rows"
                )
        check_model(use(model))


def use(model: torch.nn.Module, name: str = NAME) -> torch.nn.Module:
    """The model itself, attending through this package: registers the name and sets it."""
    register(name)
    inner = model_behind(model)
    inner.set_attn_implementation(name)
    return model


__all__ = ["MagiCallback", "MagiCollator", "unpad", "use"]
