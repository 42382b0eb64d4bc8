# SPDX-License-Identifier: Apache-2.0
"""Packed sequences, windows and prefix trees for any model: masks as lists of rectangles, batches
shared out over context parallel ranks, and an attention function of plain tensors. PyTorch alone.

Names and signatures are those of NeMo Automodel's `components.distributed.magi_attn_utils`, for
trainings without it and with more: prefix trees over several ranks, windows, any length.

    set_active_cp_group(cp_group)
    attn_func = make_magi_attn_func()                 # q, k, v [rows, heads, dim] of this rank
    batch, plan = magi_prepare_packed_cp(model, batch, cp_group)
    loss = cross_entropy(model(batch["input_ids"], batch["position_ids"]), batch["labels"], "sum")

Labels are those of rows: labels[i] is what row i predicts. Losses of ranks add up.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from magi_attention._group_holders import note_group
from magi_attention.comm.group import num_processes, refuse_lone_process, size_of
from magi_attention.common._arguments import as_bool, check_kind
from magi_attention.integrations._bound import (
    PLANS,
    PLANS_IN_WORDS,
    AnyPlan,
    active,
    bound_of,
    calc,
    check_window_of,
)
from magi_attention.integrations._documents import DESCRIBING, documents_in, refuse_hidden_rows
from magi_attention.integrations._mask_spec import AttnMaskSpec
from magi_attention.integrations._model_plans import (
    Heads,
    chunked,
    heads_of,
    make_plan,
    plans_of_documents,
)
from magi_attention.integrations._packed_batch import (
    as_one_sequence,
    document_lengths,
    flat_batch,
    refuse_unused,
    required,
    share_out,
)
from magi_attention.integrations._prefix_tree import PrefixTree, branch_log_probs, branch_loss

DEFAULT_CHUNK_SIZE = 512
_log = logging.getLogger("magi_attention")


def set_active_cp_group(cp_group: dist.ProcessGroup | None) -> None:
    """The group that functions of make_magi_attn_func use from now on; forgets the active plan."""
    if cp_group is not None:
        note_group(cp_group)
    active.cp_group, active.plan = cp_group, None


def get_active_cp_group() -> dist.ProcessGroup | None:
    """The group of set_active_cp_group, or None."""
    return active.cp_group


def set_active_attn_spec(spec: AttnMaskSpec | None) -> None:
    """The mask of calls on one rank; None: one causal sequence. Forgets the active plan."""
    if spec is not None:
        check_kind("spec", spec, AttnMaskSpec, "an AttnMaskSpec, or None")
    active.spec, active.plan = spec, None


def get_active_attn_spec() -> AttnMaskSpec | None:
    """The mask of set_active_attn_spec, or None."""
    return active.spec


def set_active_plan(plan: AnyPlan | None) -> None:
    """The plan of this rank's rows in the next calls; batches that are prepared here set theirs.
    It is one at a time: where the forward pass of a batch runs before the backward pass of another
    and recomputes, give `magi_plan=` with each call of the attention function instead.
    """
    if plan is not None:
        check_kind("plan", plan, PLANS, f"{PLANS_IN_WORDS}, or None")
    active.plan = plan


def is_magi_available() -> bool:
    """Whether attention can run: True, as this package holds its library."""
    return True


def get_cp_group(device_mesh: Any) -> dist.ProcessGroup | None:
    """The group of the mesh's axis "cp", which may have one rank; None without such an axis."""
    names = getattr(device_mesh, "mesh_dim_names", None) or ()
    return device_mesh["cp"].get_group() if "cp" in names else None


def register_magi_attention() -> None:
    """attn_implementation="magi" of transformers, which takes the plan as the keyword magi_plan.
    ValueError where the name is another's.
    """
    from magi_attention.integrations.transformers import register

    register()


def build_flex_key(
    spec: AttnMaskSpec, *, num_heads_q: int, num_heads_kv: int, head_dim: int,
    head_dim_v: int | None = None, cp_group: dist.ProcessGroup | None,
) -> AnyPlan:  # fmt: skip
    """The plan of a mask: a key of the group, or a bound plan where cp_group is None. head_dim_v
    None: as head_dim. Equal arguments give the same one. One rank keeps its rows as they are;
    several get equal numbers of rows, of which the last ones may be padding. ValueError for fewer
    rows than ranks.
    """
    check_kind("spec", spec, AttnMaskSpec, "an AttnMaskSpec")
    refuse_lone_process(cp_group)
    heads = heads_of((num_heads_q, num_heads_kv, head_dim, head_dim_v or head_dim))
    return make_plan(spec, heads, cp_group, chunked(DEFAULT_CHUNK_SIZE))


def magi_prepare_batch(
    model: Any, batch: Mapping[str, Any], cp_group: dist.ProcessGroup | None,
    chunk_size: int = DEFAULT_CHUNK_SIZE, *, spec: AttnMaskSpec | None = None, pad_id: int = 0,
) -> tuple[dict[str, Any], AnyPlan]:  # fmt: skip
    """Prepares, for models of transformers, the batch of one sequence [1, rows] -> this rank's,
    with `magi_plan` in it, and the plan. spec: its mask, default one causal sequence, under the
    windows of the model's config. Without a spec the sequence is packed of documents where the
    batch says so: bounds (cu_seqlens), lengths (seq_lengths), numbers of them (seq_idx, an
    attention_mask 1 1 2 2), or position_ids that begin anew.

    Rows of input_ids, labels, position_ids, loss_mask and loss_weights are shared out; position
    ids default to places in the sequence. Padding at the end of ranks holds pad_id, label -100.
    ValueError for several sequences, for an attention_mask that hides rows, and by name for what
    could change a result and is not shared out.
    """
    check_kind("batch", batch, Mapping, "a mapping")
    refuse_lone_process(cp_group)
    refuse_hidden_rows(batch, allows_documents=spec is None)
    given = flat_batch(batch)
    if spec is None:
        plans = plans_of_documents(model, documents_in(given), cp_group, chunked(chunk_size))
    else:
        plans = make_plan(spec, heads_of(model), cp_group, chunked(chunk_size))
    plan = next(iter(plans.values())) if isinstance(plans, dict) else plans
    local = as_one_sequence(share_out(given, bound_of(plan), pad_id))
    local = {name: value for name, value in local.items() if name not in DESCRIBING}
    return {**local, "magi_plan": plans, "use_cache": False}, plan


def magi_prepare_packed_cp(
    model: Any, batch: Mapping[str, Any], cp_group: dist.ProcessGroup | None, *,
    spec: AttnMaskSpec | None = None, pad_id: int = 0,
) -> tuple[dict[str, Any], AnyPlan]:  # fmt: skip
    """Prepares, for models whose attention is a function of make_magi_attn_func: a packed batch ->
    this rank's rows of it, and the plan, which is the active one from here on.

    batch: input_ids, labels, position_ids [rows] and the bounds of documents cu_seqlens (or
    cu_seqlens_padded, which goes first), int [documents + 1], padded by entries below 0; or
    sequences [batch, rows] with seq_lens (seq_lens_padded) [batch, documents]. spec: another mask
    than packed causal documents. model: a model or config with head counts, or (num_heads_q,
    num_heads_kv, head_dim), also with head_dim_v. ValueError for bounds that do not end with the
    rows.
    """
    check_kind("batch", batch, Mapping, "a mapping")
    given = flat_batch(batch, is_packed=True)
    refuse_lone_process(cp_group)
    refuse_hidden_rows(batch, allows_documents=spec is None)
    if spec is None:
        document_lengths(batch, given["input_ids"].shape[0])
        spec = AttnMaskSpec.varlen(documents_in(batch))
    plan = make_plan(spec, heads_of(model), cp_group, chunked(DEFAULT_CHUNK_SIZE))
    local = share_out(given, bound_of(plan), pad_id)
    set_active_plan(plan)
    return {**local, "qkv_format": "thd"}, plan


def magi_prepare_prefix_tree(
    model: Any, batch: Mapping[str, Any], tree: PrefixTree, cp_group: dist.ProcessGroup | None, *,
    sample_weights: Any = None, pad_id: int = 0,
) -> tuple[dict[str, Any], AnyPlan]:  # fmt: skip
    """A batch of samples that share prefixes, input_ids [rows] or [1, rows] in the tree's layout ->
    this rank's rows with position ids along branches, labels and loss_weights [rows, branches],
    and the plan, which is the active one and stands as magi_plan in the batch.

    branch_loss(logits, labels, loss_weights) of ranks adds up to the loss of the samples, each
    computed alone. sample_weights: as PrefixTree.loss_weights. ValueError for labels and weights in
    the batch, which are the tree's, and for position_ids and documents that are not.
    """
    check_kind("tree", tree, PrefixTree, "a PrefixTree")
    refuse_lone_process(cp_group)
    refuse_hidden_rows(batch)
    ids = required(batch, "input_ids", "the batch")
    made = {
        "input_ids": ids.reshape(-1),
        "position_ids": tree.position_ids.to(ids.device),
        "labels": tree.labels(ids),
        "loss_weights": tree.loss_weights(sample_weights).to(ids.device),
    }
    for name, value in batch.items():
        is_trees = name == "position_ids" and torch.equal(value.reshape(-1), made[name])
        if value is not None and name in _OF_TREES and not is_trees:
            raise ValueError(
                f"the batch has {name}; allowed: None, as the tree and sample_weights say it"
            )
    others = {n: v for n, v in batch.items() if n not in made and n != "attention_mask"}
    spec = AttnMaskSpec.of_tree(tree)
    plan = make_plan(spec, heads_of(model), cp_group, chunked(DEFAULT_CHUNK_SIZE))
    local = as_one_sequence(share_out({**others, **made}, bound_of(plan), pad_id))
    set_active_plan(plan)
    return {**local, "magi_plan": plan, "use_cache": False}, plan


_OF_TREES = ("labels", "shift_labels", "loss_mask", "loss_weights", "position_ids", *DESCRIBING)


def magi_prepare_vlm(
    model: Any, batch: Mapping[str, Any], cp_group: dist.ProcessGroup | None
) -> tuple[dict[str, Any], None]:
    """Prepares, for models of transformers that merge images into the sequence, on one rank: the
    batch with a magi_plan that is made of the language model's rows when they are known, one causal
    sequence, or packed documents where the batch says so as for magi_prepare_batch; other attention
    of the model stays that of "sdpa". NotImplementedError for several ranks, ValueError for several
    sequences, and for several documents of a model with recurrent layers.
    """
    check_kind("batch", batch, Mapping, "a mapping")
    refuse_unused(batch, num_ranks=1)
    ids = batch.get("input_ids")
    if ids is None or ids.dim() != 2 or ids.shape[0] != 1:
        shape = None if ids is None else list(ids.shape)
        raise ValueError(f"input_ids has shape {shape}; allowed: [1, rows]")
    if size_of(cp_group) != 1:
        raise NotImplementedError(
            f"cp_group has {size_of(cp_group)} ranks; allowed: 1, as images are merged into whole "
            "sequences inside of the model"
        )

    positions = batch.get("position_ids")
    has_axes = positions is not None and positions.numel() != ids.numel()  # of images, say
    lengths = documents_in({**batch, "position_ids": None} if has_axes else batch)
    if len(lengths) > 1 and isinstance(model, torch.nn.Module):
        from magi_attention.integrations._model_recurrent import recurrences_of

        mixer = next((part for part in model.modules() if recurrences_of(part)), None)
        if mixer is not None:
            raise ValueError(
                f"the batch is {len(lengths)} documents, over whose ends a {type(mixer).__name__} "
                "carries its state; allowed: 1 for models with recurrent layers"
            )

    def causal(rows: int, heads: Heads) -> AnyPlan:
        if len(lengths) > 1 and rows != sum(lengths):
            raise ValueError(
                f"the language model has {rows} rows; allowed: {sum(lengths)}, as the batch has of "
                "documents"
            )
        spec = AttnMaskSpec.varlen(lengths) if len(lengths) > 1 else AttnMaskSpec.causal(rows)
        return make_plan(spec, heads, cp_group)

    dropped = ("attention_mask", *DESCRIBING)
    given = {name: value for name, value in batch.items() if name not in dropped}
    return {**given, "magi_plan": causal, "use_cache": False}, None


def make_magi_attn_func(softmax_scale: float | None = None) -> Callable[..., torch.Tensor]:
    """The attention function of a model of one's own: (q, k, v, ...) -> out in the layout of q,
    [rows, heads, dim] or [batch, rows, heads, dim]; softmax_scale None: 1 / sqrt(dim).

    Its mask is the first of: the keyword magi_plan (a key or bound plan), magi_attn_spec (an
    AttnMaskSpec), cu_seqlens or cu_seqlens_q (bounds of causal documents), the active plan, the
    active spec, and each sequence of the batch causal, whose diagonal ends at the last query and
    the last key. window_size=(left, right) narrows documents,
    and is refused where a given mask reaches beyond it. Without an active group and a mask it is
    torch's causal attention in a program of one process; one of several needs a group or magi_plan.
    max_seqlen_* and qkv_format are taken from the tensors; dropout and masks as tensors are
    refused, other keywords a TypeError.

    Over several ranks rows are those of the active plan, which must be there but for magi_plan:
    magi_attn_spec is then another mask of the whole sequence on its placement, and cu_seqlens is
    refused.
    """

    def magi_attn_func(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        _check_options(options)
        window = _window(options.get("window_size"))
        has_mask = any(
            options.get(n) is not None for n in ("magi_plan", "magi_attn_spec", *_BOUNDS)
        )
        if active.cp_group is None and not has_mask and active.plan is None:
            if window != (-1, -1) or active.spec is not None:
                has_mask = True
            else:
                refuse_lone_process(None)
                return _causal_of_torch(q, k, v, softmax_scale)
        shape = q.shape
        plan = _plan_of_call((q, k, v), options, window)
        flat = tuple(tensor.flatten(0, 1) if tensor.dim() == 4 else tensor for tensor in (q, k, v))
        out, _ = calc(plan, flat, None, softmax_scale)
        return out.view(*shape[:-1], out.shape[-1])

    return magi_attn_func


_BOUNDS = ("cu_seqlens", "cu_seqlens_q")
# Keywords of attention functions that say what tensors and masks show already.
_IMPLIED = ("max_seqlen", "max_seqlen_q", "max_seqlen_kv", "max_seqlen_k", "qkv_format")
_KNOWN = {
    "magi_plan", "magi_attn_spec", "window_size", "cu_seqlens_kv", "cu_seqlens_k", *_BOUNDS,
    *_IMPLIED,
}  # fmt: skip


def _check_options(options: dict[str, Any]) -> None:
    is_masked = any(options.get(name) is not None for name in ("magi_plan", "magi_attn_spec"))
    for name, value in options.items():
        if name in _KNOWN or value is None:
            continue
        if name in ("dropout", "dropout_p", "attention_dropout"):
            if value:
                raise ValueError(f"{name} is {value}; allowed: 0")
        elif name in ("is_causal", "causal"):
            if not as_bool(name, value) and not is_masked:
                raise ValueError(
                    f"{name} is {value}; allowed: True, or a mask as magi_attn_spec or magi_plan"
                )
        elif name == "attn_mask_type":
            if value not in ("causal", "padding_causal"):
                raise ValueError(f"{name} is {value!r}; allowed: 'causal', 'padding_causal'")
        elif name in ("attention_mask", "attn_mask"):
            raise ValueError(f"{name} is given; allowed: None, as plans are the mask")
        else:
            raise TypeError(f"the attention function got an unexpected keyword {name!r}")
    for one, other in (("cu_seqlens_q", "cu_seqlens_kv"), ("cu_seqlens_q", "cu_seqlens_k")):
        q, k = options.get(one), options.get(other)
        if q is not None and k is not None and q is not k and not torch.equal(q, k):
            raise ValueError(f"{other} is not {one}; allowed: the same bounds")


def _window(given: Any) -> tuple[int, int]:
    """(left, right) of the keyword; -1: everything."""
    if given is None:
        return -1, -1
    left, right = given if isinstance(given, (tuple, list)) else (given, 0)
    return -1 if left is None else left, -1 if right is None else right


def _plan_of_call(
    qkv: tuple[torch.Tensor, ...], options: dict[str, Any], window: tuple[int, int]
) -> AnyPlan:
    q, k, v = qkv
    cp_group = active.cp_group
    size = size_of(cp_group)
    batch, rows = (q.shape[0], q.shape[1]) if q.dim() == 4 else (1, q.shape[0])
    heads = Heads(q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]).padded()
    plan, spec = options.get("magi_plan"), options.get("magi_attn_spec")
    bounds = next((options[name] for name in _BOUNDS if options.get(name) is not None), None)
    if plan is None and size > 1:
        if active.plan is None:
            raise ValueError(
                f"cp_group has {size} ranks and no plan is active; allowed: calls after "
                "magi_prepare_packed_cp or set_active_plan, or the keyword magi_plan"
            )
        if bounds is not None:
            raise ValueError(
                f"cu_seqlens is given over {size} ranks; allowed: None, as the plan is the mask"
            )
    if plan is None and spec is None and bounds is None:
        plan = active.plan
    if plan is not None:
        check_window_of(plan, "window_size", window, "the plan")
        return plan
    refuse_lone_process(cp_group)
    if spec is None and bounds is not None:
        lengths = document_lengths({"cu_seqlens": bounds}, batch * rows)
        spec = AttnMaskSpec.varlen(lengths, window_size=(window[0], 0))
    elif spec is None:
        spec = active.spec
    if spec is None:
        spec = AttnMaskSpec.varlen([rows] * batch, window_size=(window[0], 0))
    plan = make_plan(spec, heads, cp_group, on=active.plan if size > 1 else None)
    check_window_of(plan, "window_size", window, "magi_attn_spec")
    return plan


def _causal_of_torch(q, k, v, softmax_scale: float | None) -> torch.Tensor:
    """The diagonal ends at the last query and the last key, torch's begins at the first ones."""
    q, k, v = (tensor.transpose(-3, -2) for tensor in (q, k, v))
    is_grouped = q.shape[-3] != k.shape[-3]
    rows, num_keys, visible = q.shape[-2], k.shape[-2], None
    num_blind = max(rows - num_keys, 0)
    if rows < num_keys:
        visible = torch.ones(rows, num_keys, dtype=torch.bool, device=q.device)
        visible = visible.tril(num_keys - rows)
    out = F.scaled_dot_product_attention(
        q[..., num_blind:, :], k, v, visible, is_causal=visible is None, scale=softmax_scale,
        enable_gqa=is_grouped,
    )  # fmt: skip
    return F.pad(out, (0, 0, num_blind, 0)).transpose(-3, -2)


@dataclass
class MagiState:
    """The way a training uses this package, of setup_magi. enabled: at all; custom: models whose
    attention is a function of make_magi_attn_func, else models of transformers.
    """

    enabled: bool = False
    custom: bool = False
    cp_group: dist.ProcessGroup | None = None
    cp_size: int = 1

    @property
    def hf_dispatch(self) -> bool:
        """Whether batches go through magi_prepare_batch."""
        return self.enabled and not self.custom

    def prepare_llm_batch(
        self, model: Any, batch: Mapping[str, Any], *, device_mesh: Any = None,
        is_thd: bool = False, pad_id: int = 0, num_chunks: int = 1,
    ) -> tuple[Callable, Mapping[str, Any]]:  # fmt: skip
        """(context, batch) of a step: this rank's rows of the batch, which every rank of the group
        holds whole; the context does nothing. The batch itself where this is not enabled.

        batch["magi_attn_spec"], an AttnMaskSpec, is its mask with any number of ranks, else packed
        documents by their bounds where is_thd, else by what the batch says, as magi_prepare_batch
        reads it, or one causal sequence. pad_id: the token of padding rows.
        ValueError for a device_mesh of another cp group and for num_chunks other than 1.
        """
        is_thd = as_bool("is_thd", is_thd)
        if not self.enabled:
            return contextlib.nullcontext, batch
        if num_chunks != 1:
            raise ValueError(f"num_chunks is {num_chunks}; allowed: 1, a plan for each sequence")
        group = get_cp_group(device_mesh)
        if group is not None and group is not self.cp_group:
            raise ValueError("device_mesh has another cp group; allowed: that of setup_magi")
        batch = dict(batch)
        spec = batch.pop("magi_attn_spec", None)
        if self.hf_dispatch:
            if is_thd and spec is None:
                document_lengths(batch, batch["input_ids"].numel())
            options = {"spec": spec, "pad_id": pad_id}
            return contextlib.nullcontext, magi_prepare_batch(
                model, batch, self.cp_group, **options
            )[0]
        set_active_attn_spec(spec)
        ids = batch["input_ids"]
        lengths = documents_in(batch) if spec is None and not is_thd else []
        has_documents = len(lengths) > (len(ids) if ids.dim() == 2 else 1)
        if is_thd or self.cp_size > 1 or has_documents:
            if lengths:
                spec = AttnMaskSpec.varlen(lengths)
            batch = magi_prepare_packed_cp(model, batch, self.cp_group, spec=spec, pad_id=pad_id)[0]
        else:
            set_active_plan(None)
        return contextlib.nullcontext, batch

    def prepare_vlm_batch(
        self, model: Any, batch: Mapping[str, Any]
    ) -> tuple[Callable, Mapping[str, Any]]:
        """(context, batch) of a step of a model with images: magi_prepare_vlm for models of
        transformers, else the batch itself.
        """
        if self.hf_dispatch:
            batch, _ = magi_prepare_vlm(model, batch, self.cp_group)
        return contextlib.nullcontext, batch


def setup_magi(cfg: Any, device_mesh: Any, *, label: str = "") -> MagiState:
    """The state of a training whose config asks for this package: `model.backend.attn` (models of
    one's own) or `model.attn_implementation` (transformers) is "magi". cfg: nested mappings, or an
    object whose get() takes dotted names. Registers the name, and makes the mesh's "cp" group the
    active one for models of one's own; in a mesh without that axis each process has a group of its
    own. label: of what, in the log. ValueError for no mesh in one of several processes.
    """
    if not hasattr(cfg, "get"):
        raise TypeError(
            f"cfg is a {type(cfg).__name__}; allowed: a mapping, or an object with get()"
        )
    custom = str(_look_up(cfg, "model.backend.attn")) == "magi"
    if not custom and str(_look_up(cfg, "model.attn_implementation")) != "magi":
        return MagiState()
    cp_group = get_cp_group(device_mesh)
    if cp_group is None and device_mesh is not None and num_processes() > 1:  # it has no axis "cp"
        cp_group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    refuse_lone_process(cp_group)
    if custom:
        set_active_cp_group(cp_group)
    else:
        register_magi_attention()
    state = MagiState(True, custom, cp_group, size_of(cp_group))
    _log.info("attention%s over %d ranks", f" of {label}" if label else "", state.cp_size)
    return state


def _look_up(cfg: Any, name: str) -> Any:
    found = cfg.get(name)
    if found is not None:
        return found
    for part in name.split("."):
        cfg = cfg.get(part) if hasattr(cfg, "get") else None
    return cfg


__all__ = [
    "DEFAULT_CHUNK_SIZE", "AttnMaskSpec", "MagiState", "PrefixTree", "branch_log_probs",
    "branch_loss", "build_flex_key", "get_active_attn_spec", "get_active_cp_group", "get_cp_group",
    "is_magi_available", "magi_prepare_batch", "magi_prepare_packed_cp", "magi_prepare_prefix_tree",
    "magi_prepare_vlm", "make_magi_attn_func", "register_magi_attention", "set_active_attn_spec",
    "set_active_cp_group", "set_active_plan", "setup_magi",
]  # fmt: skip
