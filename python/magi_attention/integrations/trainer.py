# SPDX-License-Identifier: Apache-2.0
"""Context parallel training with transformers' Trainer, or any loop over a DataLoader: a collator
that packs samples, plans them and shards the sequence.

    collator = MagiCollator(model, cp_size=4)
    Trainer(model, args, train_dataset=dataset, callbacks=[MagiCallback(collator)])

Every rank brings samples of its own; those of the ranks of a group are packed one after the other
into one sequence, which the group then shares. Or all ranks of a group share each batch.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from magi_attention._native.tensors import as_tensor
from magi_attention.comm.group import num_processes, refuse_lone_process, size_of
from magi_attention.comm.process_group import naming_ranks
from magi_attention.common._arguments import as_bool, check_int, check_kind
from magi_attention.config import DistAttnConfig
from magi_attention.integrations._bound import AnyPlan, bound_of
from magi_attention.integrations._dealing import deal, group_of_neighbours
from magi_attention.integrations._documents import (
    DESCRIBING,
    IMPLIED,
    LEARNED,
    document_numbers,
    find_documents,
)
from magi_attention.integrations._in_trainer import check_labels, deal_in_trainer, weigh_losses
from magi_attention.integrations._model_checks import first_position, group_heads, model_behind
from magi_attention.integrations._model_plans import config_of, plans_of_documents
from magi_attention.integrations._packed_batch import refuse_other_samples, refuse_workers, required
from magi_attention.integrations.transformers import (
    NAME,
    PLAN_KEYWORD,
    check_model,
    register,
    rows_of_rank,
)

_log = logging.getLogger("magi_attention")
_IGNORED_LABEL = -100
_ROWS = ("input_ids", "labels", "attention_mask", "position_ids")
_USED = (*_ROWS, *LEARNED, *DESCRIBING)
# What tokenizers say of a sample besides.
_WITHOUT_EFFECT = ("special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length")
# Sizes of accelerate's ParallelismConfig whose ranks share sequences.
_OTHER_SHARDS = ("cp_size", "sp_size")


def unpad(batch: Mapping[str, Any]) -> list[dict[str, torch.Tensor]]:
    """The samples of a padded batch: input_ids [batch, rows], of which attention_mask of the same
    shape shows the real ones, on either side of the padding, and what else a sample of MagiCollator
    has, an entry for each sequence. Without a mask every row is real. ValueError for masks of other
    shapes, and for rows that are hidden in between.
    """
    ids, mask = required(batch, "input_ids", "the batch"), batch.get("attention_mask")
    if ids.dim() != 2 or (mask is not None and mask.shape != ids.shape):
        shape = list((ids if ids.dim() != 2 else mask).shape)
        raise ValueError(
            f"{'input_ids' if ids.dim() != 2 else 'attention_mask'} has shape {shape}; allowed: "
            "[batch, rows], as input_ids"
        )
    _refuse_unused(batch, ())
    names = (name for name in _USED if batch.get(name) is not None and name not in IMPLIED)
    given = {name: batch[name] for name in names}
    for name, value in given.items():
        if len(value) != len(ids):
            raise ValueError(
                f"{name} has {len(value)} entries; allowed: {len(ids)}, one for each sequence"
            )
    samples = ({name: value[i] for name, value in given.items()} for i in range(len(ids)))
    return [document for sample in samples for document in _documents_of(sample)]


def _documents_of(sample: Mapping[str, Any]) -> list[dict[str, torch.Tensor]]:
    """The documents of a sample, without padding: input_ids, labels, and position_ids where it has
    them.
    """
    ids = as_tensor(required(sample, "input_ids", "the sample"))
    if ids.dim() != 1:
        raise ValueError(f"input_ids has shape {list(ids.shape)}; allowed: [rows]")
    rows = {"input_ids": ids, "labels": ids.clone()}
    for name in ("labels", "position_ids", "attention_mask", *LEARNED):
        if sample.get(name) is None:
            continue
        rows[name] = as_tensor(sample[name])
        if rows[name].shape != ids.shape:
            raise ValueError(
                f"{name} has shape {list(rows[name].shape)}, input_ids {list(ids.shape)}; allowed: "
                "[rows] both"
            )
    places, lengths = find_documents(sample, len(ids), keeps_padding=False)
    for name in LEARNED:
        if name in rows:
            learned = document_numbers(name, rows.pop(name)).to(ids.device)
            if (learned > 0).any():
                raise ValueError(f"{name} holds {int(learned.max()) + 1}; allowed: 0 and 1")
            rows["labels"] = rows["labels"].masked_fill(learned < 0, _IGNORED_LABEL)
    rows.pop("attention_mask", None)
    parts = {n: value[places.to(value.device)].split(lengths) for n, value in rows.items()}
    return [dict(zip(parts, values)) for values in zip(*parts.values())]


def _refuse_unused(sample: Mapping[str, Any], parameters: Collection[str]) -> None:
    """ValueError by the name of what the sample has beside what is used and may change a result:
    arguments of the model's forward function and whatever holds numbers.
    """
    for name, value in sample.items():
        if value is None or name in _USED or name in _WITHOUT_EFFECT:
            continue
        if name == "token_type_ids" and not as_tensor(value).any():
            continue  # of tokenizers, also for models that know of none
        if name in parameters or _holds_numbers(value) or "weight" in name:
            raise ValueError(
                f"the sample has {name}, which the collator does not use; allowed: samples without "
                f"it, of {', '.join((*_ROWS, *LEARNED, 'seq_lengths'))}"
            )


def _holds_numbers(value: Any) -> bool:
    """Whether a value holds more than text, such as a message has, and single numbers."""
    if isinstance(value, (str, int, float)):
        return False
    if isinstance(value, Mapping):
        return any(map(_holds_numbers, value.values()))
    if isinstance(value, (list, tuple)):
        return any(isinstance(one, (int, float)) or _holds_numbers(one) for one in value)
    return value is not None


class MagiCollator:
    """A data_collator that packs samples into one sequence, plans it and gives each rank its rows,
    as the arguments of a causal language model, magi_plan among them; see `shard`.

    A sample has input_ids [rows] (a tensor or list), labels (default: the input_ids), of which
    completion_mask and assistant_masks leave those where they are 0 unlearned, and an
    attention_mask that shows which rows are real. It is one document, or several where seq_lengths,
    cu_seqlens (or transformers' cu_seq_lens_q), seq_idx, an attention_mask that numbers them (1 1 2
    2 0), or position_ids that begin anew say so. Documents do not see each other, and positions,
    where no position_ids are given, begin anew in each. Text, and single numbers beside these, are
    left out; whatever else could change a result is a ValueError. Windows and types of layers are
    those of the model's config.

    - model: checked by check_model; ValueError by its name if plans do not reach it whole.
    - cp_group: the ranks that share a sequence; None: this process alone, ValueError for one of
      several.
    - cp_size, in place of cp_group: this many neighbouring ranks share a sequence. Makes the
      groups, so all ranks call it; other ranks are data-parallel replicas.
    - is_same_on_ranks: all ranks of the group are given the same samples, as MagiCallback and deal
      see to, ValueError on all of them where they are not. Otherwise each brings its own, which are
      gathered.
    - max_rows: rows of a sequence at most; ValueError above.
    - pad_id: the token of padding rows, which count nowhere.
    - config: how rows are placed, what travels, how much overlaps.

    A call is collective and its plans are of this process: ValueError in a worker of a DataLoader,
    and where accelerate reads batches on one process for all.
    """

    def __init__(
        self, model: torch.nn.Module, cp_group: dist.ProcessGroup | None = None, *,
        cp_size: int | None = None, is_same_on_ranks: bool = False, max_rows: int | None = None,
        pad_id: int = 0, config: DistAttnConfig = DistAttnConfig(),
    ) -> None:  # fmt: skip
        if max_rows is not None:
            check_int("max_rows", max_rows, 1)
        if cp_size is not None:
            if cp_group is not None:
                raise ValueError(f"cp_size is {cp_size} beside cp_group; allowed: one of them")
            cp_group = group_of_neighbours(cp_size)
        refuse_lone_process(cp_group)
        self._is_logged = False
        self.model = model_behind(model)
        check_model(self.model)
        self.cp_group, self.config = cp_group, config
        self.is_same_on_ranks = as_bool("is_same_on_ranks", is_same_on_ranks)
        self.max_rows, self.pad_id = max_rows, pad_id
        self._first_position = first_position(self.model)
        self._parameters = inspect.signature(type(self.model).forward).parameters

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A batch of Trainer."""
        refuse_workers("the collator")
        if any(code is _DISPATCHES for code in _codes_of_callers()):
            raise ValueError(_DISPATCHED)
        refuse_lone_process(self.cp_group)
        refused, own = None, []
        try:
            for sample in samples:
                own += self.documents_of(sample)
        except (TypeError, ValueError) as error:  # others wait for this rank's samples
            refused, own = error, []
        samples = self._of_group(own, refused)
        lengths = [len(sample["input_ids"]) for sample in samples]
        ids, labels, positions, seqlens = self._packed(samples, lengths)
        plans = plans_of_documents(self.model, seqlens, self.cp_group, self.config)
        first = next(iter(plans.values())) if isinstance(plans, Mapping) else plans
        self._log_ranks(first, len(lengths))
        arguments = rows_of_rank(first, ids, labels, positions, self.model)
        return {**arguments, PLAN_KEYWORD: plans}

    def documents_of(self, sample: Mapping[str, Any]) -> list[dict[str, torch.Tensor]]:
        """The documents of a sample, without padding: input_ids, labels, and position_ids where it
        has them. ValueError for a sample that holds more than is used.
        """
        _refuse_unused(sample, self._parameters)
        return _documents_of(sample)

    def deal(self, loader: DataLoader) -> DataLoader:
        """A loader of the same dataset and order that has this rank's batches: of its own, or those
        of its group with is_same_on_ranks. All ranks get equally many, the last ones may be empty.
        For loops without Trainer; accelerate should not prepare it then. Collective over all
        processes. ValueError for loaders that deal out already or make no batches.
        """
        return deal(loader, self.cp_group, self.is_same_on_ranks)

    def _log_ranks(self, plan: AnyPlan, num_documents: int) -> None:
        """Logs once, on the first rank of all, how ranks share the first sequence. A warning, as
        programs show no other lines by default.
        """
        ranks = size_of(self.cp_group)
        if self._is_logged or ranks == 1:
            return
        self._is_logged = True
        bound = bound_of(plan)  # on all ranks, as one that failed alone would keep others waiting
        values = bound.local_rows, bound.plan.report.balance, num_documents
        if dist.get_rank() == 0:
            _log.warning(
                "context parallel over %d of %d ranks: %d rows each, balance %.3f, "
                "documents in the first sequence: %d", ranks, num_processes(), *values,
            )  # fmt: skip

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
        positions = [torch.arange(n, device=device) + self._first_position for n in lengths]
        for i, sample in enumerate(samples):
            positions[i] = sample.get("position_ids", positions[i])
        return *map(torch.cat, (ids, labels, positions)), lengths

    def _of_group(self, samples: list[dict], refused: Exception | None) -> list[dict]:
        """The samples of all ranks, in the order of ranks. Raises why this rank's are refused;
        ValueError where another rank's are.
        """
        gathered: list[Any] = [(samples, refused and str(refused))]
        if size_of(self.cp_group) > 1:
            told = gathered[0] if refused or not self.is_same_on_ranks else ([], None)
            gathered = [None] * size_of(self.cp_group)
            naming_ranks(
                self.cp_group, lambda: dist.all_gather_object(gathered, told, group=self.cp_group)
            )
        if refused is not None:
            raise refused
        for rank, (_, why) in enumerate(gathered):
            if why is not None:
                raise ValueError(f"samples of rank {rank} of the group are refused: {why}")
        if self.is_same_on_ranks:
            refuse_other_samples(samples, self.cp_group, _SAME)
            return samples
        return [sample for of_rank, _ in gathered for sample in of_rank]


_SAME = (
    "the same on its ranks, as MagiCallback and MagiCollator.deal see to, or "
    "is_same_on_ranks=False, with which each brings its own"
)


def _codes_of_callers() -> Iterator[CodeType]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _find_dispatcher() -> CodeType | None:
    """Names what reads batches of an iterable dataset for all processes in accelerate."""
    try:
        from accelerate.data_loader import DataLoaderDispatcher
    except ImportError:
        return None
    return DataLoaderDispatcher._fetch_batches.__code__


_DISPATCHES = _find_dispatcher()
_DISPATCHED = (
    "the dataset is iterable, and accelerate reads it on one process for all; allowed: "
    "MagiCallback of a Trainer, or DataLoaderConfiguration(dispatch_batches=False) of Accelerator"
)


_AVERAGES = "average_tokens_across_devices"
# Arguments of Trainer, with what they must be and why.
_ALLOWED = {
    "remove_unused_columns": "False, as samples say with columns that no model takes where "
    "documents end and what is learned",
    _AVERAGES: "True over ranks, which hold different numbers of tokens",
    "dataloader_num_workers": "0, as plans stay in the process that makes them",
    "label_smoothing_factor": "0, as Trainer shifts labels itself for it",
}


class MagiCallback(TrainerCallback):
    """Gives a Trainer what MagiCollator (passed here, or its data_collator) needs: all
    columns of samples (remove_unused_columns=False), batches that the collator deals out, of
    training and of evaluation, each sample once, and as eval_loss the mean over all tokens. Sets
    attn_implementation="magi" where the model has another one. Checks what would make losses wrong
    over ranks: ValueError by name of the argument.

    - collator: the trainer's from here on, also where it refuses one, as TRL's does for packing.
    """

    def __init__(self, collator: MagiCollator | None = None) -> None:
        check_kind("collator", collator, (MagiCollator, type(None)), "a MagiCollator, None")
        self._collator = collator

    def on_init_end(self, args, state, control, **others) -> None:
        """Trainer would drop completion_mask and seq_lengths, which no model takes, unsaid."""
        args.remove_unused_columns = False
        frame = sys._getframe(1)
        while frame is not None and not isinstance(frame.f_locals.get("self"), Trainer):
            frame = frame.f_back
        if frame is not None:
            self._check_trainer(frame.f_locals["self"], args)

    def _check_trainer(self, trainer: Trainer, args) -> None:
        if self._collator is not None:
            trainer.data_collator = self._collator
        if args.world_size != num_processes():
            raise ValueError(
                f"the trainer is one of {args.world_size} processes, of {num_processes()} that "
                "were started; allowed: all of them, on CPUs by use_cpu=True of TrainingArguments"
            )
        for name in ("dispatch_batches", "split_batches"):
            if getattr(args.accelerator_config, name):
                raise ValueError(
                    f"accelerator_config has {name} True; allowed: False, as the collator deals "
                    "batches out"
                )
        if hasattr(trainer.data_collator, "num_micro_batches"):
            trainer.data_collator.num_micro_batches = args.gradient_accumulation_steps
        deal_in_trainer(trainer)
        weigh_losses(trainer)
        if trainer.compute_metrics:
            check_labels(trainer)

    def on_train_begin(self, args, state, control, model=None, **others) -> None:
        """Returns what the class says."""
        for name, reason in _ALLOWED.items():
            value = getattr(args, name)
            is_wrong = args.world_size > 1 and not value if name == _AVERAGES else value
            if is_wrong:
                raise ValueError(f"{name} is {value}; allowed: {reason}")
        for name in _OTHER_SHARDS:
            size = getattr(args.parallelism_config, name, 1)
            if size != 1:
                raise ValueError(
                    f"parallelism_config has {name} {size}; allowed: 1, as MagiCollator gives each "
                    "rank its rows"
                )
        check_model(use(model))


def use(
    model: torch.nn.Module, name: str = NAME, head_groups: int | None = None
) -> torch.nn.Module:
    """The model itself, attending through this package: registers the name and sets it.

    head_groups: under plans, which are then for one group, attention comes by so many groups of kv
    heads: q, k and v of a group are projected, exchanged, attended and dropped, and projected again
    in the backward. None: as magi_head_groups of the model's config, which is set, says. ValueError
    that names what of the model cannot be split.
    """
    register(name)
    inner = model_behind(model)
    inner.set_attn_implementation(name)
    if head_groups is None:
        head_groups = getattr(config_of(inner), "magi_head_groups", None)
    if head_groups is not None:
        group_heads(inner, head_groups)
    return model


__all__ = ["MagiCallback", "MagiCollator", "unpad", "use"]
