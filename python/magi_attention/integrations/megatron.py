# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM (megatron-core): attention over context parallel ranks under plans.

    spec = with_magi_attention(get_gpt_layer_local_spec())     # or any other layer or block spec
    model = adapt_model(GPTModel(config, spec, position_embedding_type="rope", ...))
    batch = prepare_batch(batch, model, cp_group)              # in place of Megatron's sharding
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"],
                   packed_seq_params=batch["packed_seq_params"])

The plan travels with packed_seq_params, so that recomputation and several batches under way find
theirs. Rotary tables go by dispatched position ids, and labels of multi-token prediction by `roll`
in the order of the sequence.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import tensor_parallel
from megatron.core.extensions import transformer_engine
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import multi_token_prediction, transformer_block
from megatron.core.transformer.attention import Attention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.utils import is_layer_window_attention

from magi_attention import training
from magi_attention.comm.group import size_of
from magi_attention.integrations._bound import AnyPlan, bound_of, calc, of_autocast
from magi_attention.integrations._mask_spec import AttnMaskSpec
from magi_attention.integrations._megatron_batch import (
    FORMAT,
    MagiPackedSeqParams,
    RowsAt,
    prepare_batch,
    prepare_micro_batch,
)
from magi_attention.integrations._megatron_latents import put_latents_under_plans
from magi_attention.integrations._megatron_recurrent import put_under_plans
from magi_attention.integrations._model_plans import Heads, make_plan

_CAUSAL = (AttnMaskType.causal, AttnMaskType.padding_causal)
_EVERYTHING = (-1, -1)


class MagiCoreAttention(MegatronModule):
    """The core_attention of a layer spec, with the arguments of Megatron's own: query [rows, 1,
    heads, dim], key and value with their own head count (grouped queries) -> [rows, 1, heads *
    dim]. Windows, learnable and zero sinks (softmax_type) and the logits' maxima for QK clip are
    those of the config; its only parameter is softmax_offset, where softmax_type is "learnable".

    up_projection: the weight that latents are projected by, where a layer hands these on.

    forward takes the plan from packed_seq_params of prepare_batch. On one rank it takes packed
    parameters "thd" of Megatron with [rows, heads, dim], and a batch [rows, batch, heads, dim] of
    causal sequences without packed parameters, too. ValueError for other masks, for dropout, cross
    attention, and for several ranks without a plan.
    """

    up_projection: torch.Tensor | None = None

    def __init__(
        self, config: Any, layer_number: int, attn_mask_type: AttnMaskType, attention_type: str,
        attention_dropout: float | None = None, softmax_scale: float | None = None,
        k_channels: int | None = None, v_channels: int | None = None,
        cp_comm_type: str | None = None, pg_collection: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(config=config)
        _refuse_options(config, attention_type, attention_dropout, k_channels, v_channels)
        if cp_comm_type not in (None, "p2p", "a2a", "all_gather", "a2a+p2p"):
            raise ValueError(f"cp_comm_type is {cp_comm_type!r}; allowed: None, or Megatron's")
        self.layer_number = max(1, layer_number)
        self.attn_mask_type = attn_mask_type
        self.softmax_scale = softmax_scale
        self.window = _EVERYTHING
        if is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, layer_number
        ):
            self.window = tuple(config.window_size)
        self.cp_group = getattr(pg_collection, "cp", None)
        self.has_max_logits = config.qk_clip or config.log_max_attention_logit
        self.current_max_attn_logits: torch.Tensor | None = None
        self.softmax_offset = _softmax_offset(config)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: torch.Tensor | None, attn_mask_type: AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None, **others: Any,
    ) -> torch.Tensor:  # fmt: skip
        """Returns what the class says."""
        given = {"attention_bias": attention_bias, **others}
        for name, option in given.items():
            if option is not None:
                raise ValueError(f"{name} is given; allowed: None")
        mask_type = self.attn_mask_type if attn_mask_type is None else attn_mask_type
        plan = self._plan((query, key, value), attention_mask, mask_type, packed_seq_params)
        if value.dim() < query.dim():  # of a layer that hands on latents
            tensors = query.flatten(0, 1), value.flatten(0, 1), key.flatten(0, -2)
            tensors = of_autocast((*tensors, self.up_projection))
            out, _ = bound_of(plan).calc_latent_attn(*tensors, self.softmax_scale, mode="latent")
            return out.reshape(query.shape[0], 1, -1)
        # Rows of a batch are rows of one sequence after the other, which axis 0 is not.
        is_batch = query.dim() == 4 and query.shape[1] != 1
        qkv = (t.transpose(0, 1) if is_batch else t for t in (query, key, value))
        qkv = tuple(t.flatten(0, 1) if t.dim() == 4 else t for t in qkv)
        out, meta = calc(
            plan, qkv, self._sink(query), self.softmax_scale, return_max_logits=self.has_max_logits
        )
        if self.has_max_logits:
            self._note_max_logits(meta.max_logits)
        if query.dim() == 3:
            return out.flatten(1)
        if is_batch:
            return out.reshape(query.shape[1], query.shape[0], -1).transpose(0, 1).contiguous()
        return out.reshape(query.shape[0], 1, -1)

    def _sink(self, query: torch.Tensor) -> torch.Tensor | None:
        if self.config.softmax_type == "vanilla":
            return None
        if self.softmax_offset is None:  # "off-by-one"
            return query.new_zeros(1, query.shape[-2], dtype=torch.float32)
        return self.softmax_offset.float().unsqueeze(0)

    def _note_max_logits(self, found: torch.Tensor) -> None:
        known = self.current_max_attn_logits
        self.current_max_attn_logits = found if known is None else torch.maximum(known, found)

    def _plan(self, qkv, attention_mask, mask_type, params) -> AnyPlan:
        query, key, value = qkv
        is_causal = mask_type in _CAUSAL
        if isinstance(params, MagiPackedSeqParams):
            if attention_mask is not None:
                raise ValueError("attention_mask is given; allowed: None, as the plan is the mask")
            if params.documents.is_causal != is_causal:
                raise ValueError(
                    f"attn_mask_type is {mask_type.name}, but prepare_batch was called with "
                    f"causal={params.documents.is_causal}; allowed: the same mask"
                )
            _check_rows(query if query.dim() == 4 else query.flatten(1), params)
            return params.plan_of(self.window)
        ranks = size_of(self.cp_group) if self.config.context_parallel_size > 1 else 1
        if ranks > 1:
            raise ValueError(
                f"packed_seq_params holds no plan, over {ranks} ranks; allowed: those of "
                "prepare_batch"
            )
        heads = Heads(query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]).padded()
        lengths = _lengths_without_plan(query, attention_mask, is_causal, params)
        return make_plan(
            AttnMaskSpec.varlen(lengths, is_causal, window_size=self.window), heads, None
        )

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None
    ) -> dict:
        """Megatron's, with the heads of softmax_offset split over tensor parallel ranks."""
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        state = self.state_dict(prefix="", keep_vars=True)
        axes = {"softmax_offset": 0} if state else {}
        return make_sharded_tensors_for_checkpoint(state, prefix, axes, sharded_offsets)


def _refuse_options(config, attention_type, attention_dropout, k_channels, v_channels) -> None:
    dropout = config.attention_dropout if attention_dropout is None else attention_dropout
    if dropout:
        raise ValueError(f"attention_dropout is {dropout}; allowed: 0")
    if attention_type != "self":
        raise ValueError(f"attention_type is {attention_type!r}; allowed: 'self'")
    if config.multi_latent_attention:
        return
    for name, channels in (("k_channels", k_channels), ("v_channels", v_channels)):
        if channels not in (None, config.kv_channels):
            raise ValueError(f"{name} is {channels}; allowed: {config.kv_channels}, kv_channels")


def _softmax_offset(config: Any) -> torch.nn.Parameter | None:
    """One sink for each head of this rank, where it is learned."""
    if config.softmax_type not in ("vanilla", "off-by-one", "learnable"):
        raise ValueError(
            f"softmax_type is {config.softmax_type!r}; allowed: 'vanilla', 'off-by-one', "
            "'learnable'"
        )
    if config.softmax_type != "learnable":
        return None
    heads = config.num_attention_heads // config.tensor_model_parallel_size
    device = "cpu" if config.use_cpu_initialization else torch.cuda.current_device()
    offset = torch.nn.Parameter(torch.zeros(heads, dtype=config.params_dtype, device=device))
    if config.perform_initialization:
        config.init_method(offset)
    return offset


def _lengths_without_plan(query, attention_mask, is_causal: bool, params) -> list[int]:
    """Documents of one rank's rows that prepare_batch has not seen."""
    if params is None:
        rows, batch = query.shape[:2] if query.dim() == 4 else (query.shape[0], 1)
        if attention_mask is not None:
            row = torch.arange(rows, device=attention_mask.device)
            hidden = row > row[:, None]
            if not is_causal or not torch.equal(
                attention_mask.bool(), hidden.expand_as(attention_mask)
            ):
                raise ValueError(
                    f"attention_mask of shape {list(attention_mask.shape)} is not the causal one; "
                    "allowed: None, or batches of prepare_batch"
                )
        return [rows] * batch
    bounds = (
        params.cu_seqlens_q if params.cu_seqlens_q_padded is None else params.cu_seqlens_q_padded
    )
    if bounds is None or (not is_causal and bounds is not params.cu_seqlens_q):
        raise ValueError(
            "packed_seq_params has no bounds that say the mask; allowed: cu_seqlens_q, and for "
            "padded documents causal attention"
        )
    lengths = bounds.diff().tolist()
    missing = query.shape[0] - sum(lengths)
    return [*lengths, missing] if missing else lengths


def with_magi_attention(spec: Any) -> Any:
    """A copy of a layer spec (or a block's, of several layers) with MagiCoreAttention as the
    core_attention of every self-attention in it. ValueError where there is none.
    """
    spec = copy.deepcopy(spec)
    if not _replace_in(spec):
        raise ValueError("spec has no core_attention; allowed: specs of layers with self-attention")
    return spec


def _replace_in(spec: Any) -> int:
    """Replaces every core_attention below spec; returns how many."""
    if isinstance(spec, ModuleSpec):
        return _replace_in(spec.submodules)
    if isinstance(spec, (list, tuple)):
        return sum(map(_replace_in, spec))
    if not is_dataclass(spec) or isinstance(spec, type):
        return 0
    count = 0
    for entry in fields(spec):
        if entry.name == "core_attention":
            spec.core_attention = MagiCoreAttention
            count += 1
        else:
            count += _replace_in(getattr(spec, entry.name))
    return count


def _check_rows(found: torch.Tensor, params: MagiPackedSeqParams, ranks: int = 1) -> None:
    """ValueError unless [rows, batch, ...], over so many tensor parallel ranks, are those of a
    batch of prepare_batch.
    """
    rows, batch = params.position_ids.numel(), found.shape[1] if found.dim() > 2 else 1
    if found.shape[0] * ranks != rows or batch != 1:
        raise ValueError(
            f"a layer got {found.shape[0] * ranks} rows of {batch} sequences; allowed: {rows} of "
            "1, as prepare_batch made; try: variable_seq_lengths = True of the config, with which "
            "stages of a pipeline tell each other the shape"
        )


class _DispatchedRotary:
    """Before a rotary embedding of Megatron: tables of the rows that a rank holds. rows_at: these,
    where calls are not given the packed parameters.
    """

    rows_at: RowsAt | None = None

    def get_rotary_seq_len(
        self, inference_context: Any, transformer: Any, transformer_input: Any,
        transformer_config: Any, packed_seq_params: PackedSeqParams | None = None, **keywords: Any,
    ) -> int:  # fmt: skip
        if isinstance(packed_seq_params, MagiPackedSeqParams):
            received = getattr(transformer, "input_tensor", None)  # of the stage before
            if received is not None:
                is_shared = transformer_config.sequence_parallel
                ranks = transformer_config.tensor_model_parallel_size if is_shared else 1
                _check_rows(received, packed_seq_params, ranks)
            return packed_seq_params.rotary_rows
        if self.rows_at is not None:
            return self.rows_at
        return super().get_rotary_seq_len(
            inference_context, transformer, transformer_input, transformer_config,
            packed_seq_params, **keywords,
        )  # fmt: skip

    def forward(self, max_seq_len: int, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(max_seq_len, RowsAt):
            return super().forward(max_seq_len, *arguments, **keywords)
        # "Packed" tables are those of all positions, not Megatron's share of them.
        table = super().forward(int(max_seq_len), packed_seq=True)
        table, *scale = table if isinstance(table, tuple) else (table,)
        table = table.index_select(0, max_seq_len.position_ids.to(table.device))
        return (table, *scale) if scale else table

    def get_cached_cos_sin(self, seq_len: int, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(seq_len, RowsAt):
            return super().get_cached_cos_sin(seq_len, *arguments, **keywords)
        keywords["packed_seq"] = True
        tables = super().get_cached_cos_sin(int(seq_len), *arguments, **keywords)
        return tuple(x.index_select(0, seq_len.position_ids.to(x.device)) for x in tables)


def adapt_model(model: torch.nn.Module, head_groups: int | None = None) -> torch.nn.Module:
    """The model itself, whose rotary embeddings now follow the position ids of prepare_batch, whose
    Gated DeltaNet and Mamba mixers go over the runs of its plan, and whose latent attention (MLA)
    moves latents where the plan finds that faster; other batches get what they got. Where it
    predicts several tokens (mtp_num_layers), Megatron's roll_tensor becomes that of this module,
    which knows both kinds of batches. ValueError for rotary embeddings and recurrent layers of
    another kind.

    head_groups: under packed_seq_params self-attention comes by so many groups of the kv heads of a
    tensor parallel rank, for one of which prepare_batch then makes plans: q, k and v of a group are
    projected, exchanged, attended and dropped, and projected again in the backward. None: as it is.
    ValueError that names what cannot be split.
    """
    if head_groups is not None:
        _group_heads(model, head_groups)
    for name, module in model.named_modules():
        put_under_plans(name, module)
        put_latents_under_plans(module)
        if name.split(".")[-1] != "rotary_pos_emb" or isinstance(module, _DispatchedRotary):
            continue
        if not isinstance(module, RotaryEmbedding):
            raise ValueError(
                f"{name} is a {type(module).__name__}; allowed: RotaryEmbedding and kinds of it"
            )
        kind = type(module)
        module.__class__ = type(kind.__name__, (_DispatchedRotary, kind), {})
    if getattr(model.config, "mtp_num_layers", None):
        _install_roll()
    return model


def _group_heads(model: torch.nn.Module, num_groups: int) -> None:
    counts = ("num_attention_heads_per_partition", "num_query_groups_per_partition")

    def changes(layer: Any, group: int) -> training.parts.Changes:
        for dim, linear in enumerate((layer.linear_qkv, layer.linear_proj)):
            part = training.parts.part_of(linear, num_groups, group, dim)
            yield linear, {**part, "gradient_accumulation_fusion": False}  # it has no main_grad
        yield layer, {name: getattr(layer, name) // num_groups for name in counts}
        core = layer.core_attention
        if core.softmax_offset is not None:
            yield core, {"softmax_offset": core.softmax_offset.chunk(num_groups)[group]}

    for layer in (module for module in model.modules() if isinstance(module, Attention)):
        for name, kind in (("qkv", "ColumnParallelLinear"), ("proj", "RowParallelLinear")):
            if type(getattr(layer, f"linear_{name}", None)) is not getattr(tensor_parallel, kind):
                raise training.parts.cannot_split(layer, f"no {kind} as linear_{name}")
        core = layer.core_attention
        if not isinstance(core, MagiCoreAttention) or core.has_max_logits:
            what = "another core_attention than MagiCoreAttention without maxima of logits"
            raise training.parts.cannot_split(layer, what)
        kv_heads = getattr(layer, counts[1])
        training.parts.come_by_groups(layer, num_groups, kv_heads, changes, "packed_seq_params")
    model.config.magi_head_groups = num_groups


_roll_of_megatron = multi_token_prediction.roll_tensor


def _install_roll() -> None:
    from megatron.core.models.gpt import gpt_model

    for module in (multi_token_prediction, gpt_model):
        module.roll_tensor = roll_tensor


def roll_tensor(
    tensor: torch.Tensor,
    shifts: int = -1,
    dims: int = -1,
    cp_group: dist.ProcessGroup | None = None,
    packed_seq_params: PackedSeqParams | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Megatron's roll_tensor for this rank's rows of a batch of prepare_batch, axis dims: every row
    gets the value of the next row of its document, 0 at its end. Returns it and its sum: that of
    all ranks divided by their number, so that means over ranks of sums divided by it are the mean
    over all rows. Collective. Other batches go to Megatron's own. ValueError for shifts but -1.
    """
    if not isinstance(packed_seq_params, MagiPackedSeqParams):
        return _roll_of_megatron(tensor, shifts, dims, cp_group, packed_seq_params)
    if shifts != -1:
        raise ValueError(f"shifts is {shifts}; allowed: -1")
    bound = bound_of(packed_seq_params.plan)
    dims = dims % tensor.dim()
    shape = [1] * tensor.dim()
    shape[dims] = -1
    rolled = bound.roll(tensor.contiguous(), shifts, dims)
    rolled = rolled * packed_seq_params.has_next.view(shape).to(rolled.dtype)
    total = rolled.sum()
    if bound.plan.cp_size > 1:
        dist.all_reduce(total, group=bound.cp_group)
        total = total / bound.plan.cp_size
    return rolled, total


_checkpoint_of_megatron = tensor_parallel.checkpoint
_te_checkpoint_of_megatron = transformer_engine.te_checkpoint


def save_attention(context_fn: Callable[[], tuple[Any, Any]] = training.save_attention) -> None:
    """Has Megatron's recomputation (recompute_granularity "full", and modules that hold attention)
    keep out and lse of attention, so that it is neither computed nor exchanged again: its functions
    tensor_parallel.checkpoint and te_checkpoint, that of fp8, become those of this module, in this
    process. context_fn: how, such as Offload.save_attention, inside of whose `with` the model then
    runs.
    """
    tensor_parallel.checkpoint = partial(checkpoint, context_fn=context_fn)
    for module in (transformer_engine, transformer_block):
        module.te_checkpoint = partial(te_checkpoint, context_fn=context_fn)


def checkpoint(
    function: Callable,
    distribute_saved_activations: bool,
    *tensors: torch.Tensor,
    context_fn: Callable[[], tuple[Any, Any]] = training.save_attention,
) -> Any:
    """Megatron's checkpoint of function(*tensors), which keeps attention."""
    kept = training.keeping_attention(function, context_fn)
    return _checkpoint_of_megatron(kept, distribute_saved_activations, *tensors)


def te_checkpoint(
    function: Callable,
    *arguments: Any,
    context_fn: Callable[[], tuple[Any, Any]] = training.save_attention,
    **keywords: Any,
) -> Any:
    """Megatron's checkpoint by Transformer Engine, with its arguments, which keeps attention."""
    kept = training.keeping_attention(function, context_fn)
    return _te_checkpoint_of_megatron(kept, *arguments, **keywords)


__all__ = [
    "FORMAT", "MagiCoreAttention", "MagiPackedSeqParams", "adapt_model", "checkpoint",
    "prepare_batch", "prepare_micro_batch", "roll_tensor", "save_attention", "te_checkpoint",
    "with_magi_attention",
]  # fmt: skip
