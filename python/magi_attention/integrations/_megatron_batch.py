# SPDX-License-Identifier: Apache-2.0
"""Batches of Megatron-LM as one packed sequence, and what of it a rank holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams

from magi_attention._native.tensors import as_tensor
from magi_attention.batch import BatchPlan
from magi_attention.comm.group import size_of
from magi_attention.common._arguments import as_bool, check_choice, check_int, without_padding
from magi_attention.config import DispatchConfig, DistAttnConfig
from magi_attention.integrations._bound import AnyPlan, bound_of
from magi_attention.integrations._documents import (
    DESCRIBING,
    IMPLIED,
    LEARNED,
    borders_of,
    document_numbers,
    lengths_between,
)
from magi_attention.integrations._mask_spec import AttnMaskSpec
from magi_attention.integrations._model_plans import Heads, make_plan, on_plan
from magi_attention.integrations._packed_batch import (
    AVERAGES,
    refuse_other_samples,
    required,
    weights_of,
)
from magi_attention.plan import BoundPlan

_HOST = torch.device("cpu")  # whatever torch's default device is
FORMAT = "magi"  # not "thd": rows keep a batch axis of 1 and rotary tables go by rows
# What a batch holds for every row, and the value of padding rows; None: the token of padding.
_ROWS = {"tokens": None, "labels": 0, "loss_mask": 0, "position_ids": 0}


@dataclass(frozen=True)
class Documents:
    """Rows [start, start + length) of documents in a sequence of total rows; rows of none are
    padding, which sees nothing and is seen by nobody.
    """

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    total: int
    is_causal: bool

    def spec(self, window: tuple[int, int] = (-1, -1)) -> AttnMaskSpec:
        """Their mask: causal or not, keys (left, right) of the diagonal, -1: all."""
        spec = AttnMaskSpec([], [], [], self.total)
        for start, length in zip(self.starts, self.lengths):
            one = AttnMaskSpec.varlen([length], self.is_causal, window_size=window)
            for side, of_one in ((spec.q_ranges, one.q_ranges), (spec.k_ranges, one.k_ranges)):
                side.extend([begin + start, end + start] for begin, end in of_one)
            spec.mask_types.extend(one.mask_types)
        return spec

    def position_ids(self) -> torch.Tensor:
        """int64 [total]: places within documents, 0 in padding."""
        return self._filled(torch.int64, lambda length: torch.arange(length, device=_HOST))

    def is_inside(self) -> torch.Tensor:
        """bool [total]: rows of documents."""
        return self._filled(torch.bool, lambda length: True)

    def has_next(self) -> torch.Tensor:
        """bool [total]: rows that another row of their document follows."""
        return self._filled(
            torch.bool, lambda length: torch.arange(1, length + 1, device=_HOST) < length
        )

    def _filled(self, dtype: torch.dtype, values_of: Callable[[int], Any]) -> torch.Tensor:
        """[total]: the values of each document of so many rows, 0 in padding."""
        found = torch.zeros(self.total, dtype=dtype, device=_HOST)
        for start, length in zip(self.starts, self.lengths):
            found[start : start + length] = values_of(length)
        return found


class RowsAt(int):
    """The number of rows that a rotary table needs, and which of them a rank takes."""

    position_ids: torch.Tensor

    @classmethod
    def of(cls, position_ids: torch.Tensor, last: int) -> RowsAt:
        """Makes tables for positions up to last; a power of two, so that few tables are made."""
        made = cls(1 << max(1, int(last)).bit_length())
        made.position_ids = position_ids
        return made


@dataclass
class MagiPackedSeqParams(PackedSeqParams):
    """packed_seq_params of a batch that prepare_batch has shared out: plan (a key or a bound plan)
    and documents of the whole sequence, position_ids int64 [rows] of this rank, has_next bool
    [rows] (the row's document goes on). cu_seqlens are not in it, as they are no rank's own.
    """

    plan: AnyPlan | None = None
    documents: Documents | None = None
    heads: Heads | None = None
    position_ids: torch.Tensor | None = None
    has_next: torch.Tensor | None = None
    rotary_rows: RowsAt | None = None
    _windows: dict = field(default_factory=dict, repr=False)

    def plan_of(self, window: tuple[int, int]) -> AnyPlan:
        """The plan of layers that see keys (left, right) of the diagonal, on the same rows."""
        if window == (-1, -1):
            return self.plan
        found = self._windows.get(window)
        if found is None:
            group = self.plan.cp_group
            spec = self.documents.spec(window)
            if isinstance(self.plan, BoundPlan) and group is not None:  # of prepare_micro_batch
                found = on_plan(spec, self.heads, self.plan)
            else:
                found = make_plan(spec, self.heads, group, on=self.plan)
            self._windows[window] = found
        return found


def heads_of_rank(config: Any) -> Heads:
    """Those of one tensor parallel rank, or of a group of these, of a TransformerConfig."""
    parts = getattr(config, "magi_head_groups", 1)
    ranks = config.tensor_model_parallel_size
    groups = config.num_query_groups or config.num_attention_heads
    if config.multi_latent_attention:
        heads = config.num_attention_heads // ranks
        dim = config.qk_head_dim + config.qk_pos_emb_head_dim
        return Heads(heads, heads, dim, config.v_head_dim).padded()
    heads = config.num_attention_heads // ranks, max(1, groups // ranks)
    return Heads(*(count // parts for count in heads), config.kv_channels)


def prepare_batch(
    batch: Mapping[str, Any], model: Any, cp_group: dist.ProcessGroup | None = None, *,
    causal: bool = True, pad_id: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """This rank's rows of a batch that all ranks of cp_group hold whole, in place of Megatron's
    get_batch_on_this_cp_rank: tokens, labels, loss_mask, position_ids [1, rows], attention_mask
    None and packed_seq_params, for the forward function of a model with MagiCoreAttention.

    batch: tokens [batch, rows] with labels, loss_mask and position_ids of the same shape. With
    cu_seqlens (and cu_seqlens_padded, where documents are padded in place), [n + 1] or [1, n + 1],
    it is one packed sequence, of which rows after the last bound are padding. Else every sequence
    is a document: whole, or of an attention_mask [batch, rows] those rows that it shows (the others
    are dropped), as several documents where it numbers them (1 1 2 2 0), or as a mask [batch or 1,
    1, rows, rows] of Megatron (True: hidden) cuts it.
    model: a model or its config. Position ids default to places in documents, the loss_mask of
    labels to 1 in documents and 0 in padding.

    All ranks get equally many rows, a multiple of the tensor parallel size under sequence
    parallelism; what is missing for that is added once, with pad_id and loss_mask 0. labels[i] is
    what row i predicts, as everywhere in Megatron. ValueError for masks that are not causal
    documents, for bounds that do not fit, and for ranks with other batches. Collective.
    """
    config = getattr(model, "config", model)
    if size_of(cp_group) != config.context_parallel_size:
        raise ValueError(
            f"cp_group has {size_of(cp_group)} ranks; allowed: {config.context_parallel_size}, "
            "context_parallel_size"
        )
    rows, documents = _as_documents(batch, as_bool("causal", causal))
    refuse_other_samples([rows], cp_group)
    if "labels" in rows and "loss_mask" not in rows:  # labels of padding are tokens like others
        rows["loss_mask"] = documents.is_inside().to(rows["labels"].device, torch.float32)
    unit = size_of(cp_group)
    if config.sequence_parallel:
        unit *= config.tensor_model_parallel_size
    missing = -documents.total % unit if documents.total else unit
    documents = replace(documents, total=documents.total + missing)
    plan = _equal_plan(documents.spec(), heads_of_rank(config), cp_group)
    if "position_ids" not in rows:
        rows["position_ids"] = documents.position_ids()[: documents.total - missing]
    for name, value in rows.items() if missing else ():
        filler = pad_id if _ROWS[name] is None else _ROWS[name]
        rows[name] = torch.cat((value, value.new_full((missing,), filler)))
    others = {name: value for name, value in batch.items() if name not in _DESCRIBED}
    return {**others, **_shared_out(rows, documents, plan, heads_of_rank(config))}


def prepare_micro_batch(
    samples: Sequence[Mapping[str, Any]], plan: BatchPlan, micro_batch: int, model: Any,
    cp_group: dist.ProcessGroup | None = None, *, average: str | None = None, pad_id: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Does what prepare_batch does for a micro-batch of a plan of the samples of a step, which all
    ranks of cp_group have; each is a causal document: tokens [rows], with labels and loss_mask of
    the same shape. Ranks get different numbers of rows, so that stages of a pipeline need
    variable_seq_lengths.

    average: adds loss_weights [1, rows], float64, by which losses of all ranks and micro-batches
    add up to the average over "tokens", or over "sequences", each of which counts alike.

    ValueError for samples that are not those of the plan, for a plan of other masks, and under
    sequence parallelism unless its chunk_size is a multiple of the tensor parallel size.
    Collective.
    """
    config = getattr(model, "config", model)
    parallel = config.tensor_model_parallel_size if config.sequence_parallel else 1
    if plan.chunk_size % parallel:
        raise ValueError(
            f"plan has chunk_size {plan.chunk_size}; allowed: a multiple of {parallel}, the tensor "
            "parallel size"
        )
    found = _samples_of_plan(samples, plan)
    fillers = {"tokens": pad_id, "labels": 0, "loss_mask": 0.0}
    if average is not None:
        check_choice("average", average, AVERAGES)
        fillers["loss_weights"] = 0.0
        weights = weights_of([one["loss_mask"] for one in found], average)
        for one, weight in zip(found, weights):
            one["loss_weights"] = one["loss_mask"].double() * weight
    packed, mask = plan.packed(micro_batch), plan.mask(micro_batch)
    lengths = tuple(plan.lengths[sample] for sample, _ in packed)
    causal = sum(n * (n + 1) // 2 for n in lengths)
    if mask.area != causal:
        raise ValueError(
            f"plan has {mask.area} visible pairs in micro-batch {micro_batch}; allowed: {causal}, "
            "those of causal documents"
        )
    documents = Documents(tuple(row for _, row in packed), lengths, mask.rows_q, True)
    rows = {"position_ids": documents.position_ids()}
    for name, filler in fillers.items():
        values = [one[name] for one in found]
        dtype, device = (values[0].dtype, values[0].device) if values else (None, _HOST)
        rows[name] = torch.full((documents.total,), filler, dtype=dtype, device=device)
        for sample, row in packed:
            rows[name][row : row + plan.lengths[sample]] = values[sample]
    refuse_other_samples([rows], cp_group)
    heads = heads_of_rank(config)
    bound = plan.plan(micro_batch, **heads._asdict()).bind(cp_group)
    return _shared_out(rows, documents, bound, heads)


def _samples_of_plan(samples: Sequence[Mapping[str, Any]], plan: BatchPlan) -> list[dict]:
    """Tokens, labels and loss_mask of each sample; ValueError unless they are the plan's."""
    if len(samples) != len(plan.lengths):
        raise ValueError(f"samples has {len(samples)}; allowed: {len(plan.lengths)}, as the plan")
    found = []
    for i, (sample, length) in enumerate(zip(samples, plan.lengths)):
        given = {name: required(sample, name, f"samples[{i}]") for name in ("tokens", "labels")}
        rows = {name: as_tensor(value) for name, value in given.items()}
        mask = sample.get("loss_mask")
        every = torch.ones_like(rows["tokens"], dtype=torch.float32)
        rows["loss_mask"] = every if mask is None else as_tensor(mask)
        for name, value in rows.items():
            if value.shape != (length,):
                raise ValueError(
                    f"samples[{i}] has {name} of shape {list(value.shape)}; allowed: [{length}], "
                    "the rows of that sample of the plan"
                )
        found.append(rows)
    return found


def _shared_out(
    rows: dict[str, torch.Tensor], documents: Documents, plan: AnyPlan, heads: Heads
) -> dict[str, Any]:
    """This rank's rows, and what layers and rotary tables need to know of them."""
    bound = bound_of(plan)
    last = int(rows["position_ids"].max()) if rows["position_ids"].numel() else 0
    local = {name: bound.dispatch(value).unsqueeze(0) for name, value in rows.items()}
    device = rows["tokens"].device
    positions = local["position_ids"] = local["position_ids"].to(device)
    params = MagiPackedSeqParams(
        qkv_format=FORMAT, plan=plan, documents=documents, heads=heads,
        position_ids=positions[0], has_next=bound.dispatch(documents.has_next()).to(device),
        rotary_rows=RowsAt.of(positions[0], last),
    )  # fmt: skip
    return {**local, "attention_mask": None, "packed_seq_params": params}


_BOUNDS = (
    "cu_seqlens", "cu_seqlens_padded", "cu_seqlens_argmin", "max_seqlen", "local_cp_size",
)  # fmt: skip
_DESCRIBED = (*_ROWS, *_BOUNDS, "attention_mask", "packed_seq_params")


def _equal_plan(spec: AttnMaskSpec, heads: Heads, cp_group: dist.ProcessGroup | None) -> AnyPlan:
    """A plan of equal shards without padding of its own, of rows that ranks divide evenly: chunks
    are cut to a divisor of the rows of a rank.
    """
    plan = make_plan(spec, heads, cp_group)
    bound = bound_of(plan).plan
    if bound.pad_size == 0 and len({bound.rows_of(i) for i in range(bound.cp_size)}) == 1:
        return plan
    of_rank = spec.total_seqlen // bound.cp_size
    chunk = max(n for n in range(1, min(bound.chunk_size, of_rank) + 1) if of_rank % n == 0)
    config = DistAttnConfig(dispatch_config=DispatchConfig(chunk_size=chunk))
    return make_plan(spec, heads, cp_group, config)


def _as_documents(batch: Mapping[str, Any], causal: bool) -> tuple[dict[str, Any], Documents]:
    """Rows of the batch as [rows], and their documents."""
    tokens = required(batch, "tokens", "the batch")
    if tokens.dim() != 2:
        raise ValueError(f"tokens has shape {list(tokens.shape)}; allowed: [batch, rows]")
    rows = {}
    for name in _ROWS:
        value = batch.get(name)
        if value is None:
            continue
        if value.shape != tokens.shape:
            raise ValueError(
                f"{name} has shape {list(value.shape)}; allowed: {list(tokens.shape)}, that of "
                "tokens"
            )
        rows[name] = value.reshape(-1)
    for name in (*DESCRIBING, *LEARNED, "packed_seq_params"):
        if batch.get(name) is not None and name not in (*_BOUNDS, *IMPLIED):
            raise ValueError(f"{name} is given; allowed: cu_seqlens, and a loss_mask")
    mask = batch.get("attention_mask")
    if batch.get("cu_seqlens") is not None:
        if mask is not None:
            raise ValueError("attention_mask is given; allowed: None beside cu_seqlens")
        return rows, _of_bounds(batch, tokens, causal)
    size, length = tokens.shape
    if mask is not None and mask.dim() == 2:
        if mask.shape != tokens.shape:
            raise ValueError(
                f"attention_mask has shape {list(mask.shape)}; allowed: {list(tokens.shape)}"
            )
        numbers = document_numbers("attention_mask", mask)
        shown = (numbers >= 0).reshape(-1)
        rows = {name: value[shown.to(value.device)] for name, value in rows.items()}
        lengths = [
            lengths_between(borders_of("attention_mask", real), len(real))
            for real in (one[one >= 0] for one in numbers)
        ]
        return rows, _packed([n for of_sequence in lengths for n in of_sequence], causal)
    if mask is not None:
        return rows, _packed(_lengths_of_mask(mask, size, length, causal), causal)
    return rows, _packed([length] * size, causal)


def _packed(lengths: Sequence[int], causal: bool) -> Documents:
    *starts, total = itertools.accumulate(lengths, initial=0)
    return Documents(tuple(starts), tuple(lengths), total, causal)


def _of_bounds(batch: Mapping[str, Any], tokens: torch.Tensor, causal: bool) -> Documents:
    """Reads cu_seqlens, and cu_seqlens_padded where documents are padded in place."""
    size, total = tokens.shape
    if size != 1:
        raise ValueError(f"tokens has {size} sequences; allowed: 1 with cu_seqlens")
    real = without_padding(as_tensor(batch["cu_seqlens"]).reshape(-1))
    lengths = real.diff().tolist()
    padded = batch.get("cu_seqlens_padded")
    padded = real if padded is None else without_padding(as_tensor(padded).reshape(-1))
    starts = padded.tolist()
    if len(starts) != len(lengths) + 1 or not starts or starts[0] != 0:
        raise ValueError(
            f"cu_seqlens_padded is {starts}; allowed: {len(lengths) + 1} bounds from 0 on"
        )
    for i, length in enumerate(lengths):
        check_int(f"cu_seqlens[{i + 1}] - cu_seqlens[{i}]", length, 0, starts[i + 1] - starts[i])
    if starts[-1] > total:
        raise ValueError(f"cu_seqlens ends at {starts[-1]}; allowed: up to {total}, the tokens")
    return Documents(tuple(starts[:-1]), tuple(lengths), total, causal)


def _lengths_of_mask(mask: torch.Tensor, size: int, length: int, causal: bool) -> list[int]:
    """Rows of the documents that a mask [size or 1, 1, rows, rows] of Megatron shows."""
    if mask.dim() != 4 or mask.shape[0] not in (1, size) or mask.shape[1:] != (1, length, length):
        raise ValueError(
            f"attention_mask has shape {list(mask.shape)}; allowed: [{size}, {length}], or "
            f"[{size}, 1, {length}, {length}]"
        )
    if mask.dtype != torch.bool and ((mask != 0) & (mask != 1)).any():
        raise ValueError("attention_mask holds more than 0 and 1; allowed: True for hidden pairs")
    visible = ~mask[:, 0].bool()
    row = torch.arange(length, device=mask.device)
    first = visible.to(torch.int8).argmax(-1)  # the first key that each row sees
    wanted = (row >= first[..., None]) & (row <= row[:, None])
    if not causal or not torch.equal(visible, wanted.expand_as(visible)):
        raise ValueError(
            "attention_mask shows other pairs than causal documents one after the other; allowed: "
            "such a mask, None, or which rows are real [batch, rows]"
        )
    lengths = [torch.unique_consecutive(of, return_counts=True)[1].tolist() for of in first]
    return [n for of in (lengths if len(lengths) == size else lengths * size) for n in of]
