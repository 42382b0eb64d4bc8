# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers (5 or later): attn_implementation="magi".

    register()
    model.set_attn_implementation("magi")
    loss = model(**shard(plan.bind(group), input_ids, labels), num_items_in_batch=tokens).loss

The plan goes to the model as the keyword `magi_plan`, a bound plan (Plan.bind) or a key of
magi_attention.api; `shard` puts it there. It is the whole mask. Models whose layers differ take a
dict from the names in config.layer_types ("full_attention", "sliding_attention", ...) to plans on
one placement. Without magi_plan a call gives what "sdpa" gives in a program of one process, and
refuses sinks and softcap, which that does not know. One of several processes, whose rows may be a
part of a sequence, refuses such calls, and so does every process for the rows of an active plan.

A mask is never dropped: padding, a window or an overlay that the plan does not hold is a
ValueError that names it. Neither is a plan: models whose layers drop keywords are refused by name.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.import_utils import is_tracing

from magi_attention.comm.group import num_processes
from magi_attention.common._arguments import check_kind
from magi_attention.integrations._bound import (
    PLANS,
    PLANS_IN_WORDS,
    AnyPlan,
    active,
    bound_of,
    calc,
    reach_of,
    with_dims_of,
)
from magi_attention.integrations._documents import DESCRIBING, FROM_THE_END, IMPLIED, LEARNED
from magi_attention.integrations._model_calls import (
    PLAN_KEYWORD,
    calling_model,
    have_callers_a_plan,
    plan_of_callers,
)
from magi_attention.integrations._model_checks import (
    first_position,
    misfit,
    misfit_of_labels,
    model_behind,
    other_task,
    shifts_labels,
    virtual_tokens,
)
from magi_attention.integrations._model_indexed import attend_to_chosen, without_others
from magi_attention.integrations._model_latents import attend_to_latents
from magi_attention.integrations._model_plans import INDEXED_LAYERS, Heads
from magi_attention.integrations._model_recurrent import route
from magi_attention.integrations._model_rows import needs_whole_tables, over_ranks
from magi_attention.integrations._packed_batch import refuse_other_samples

NAME = "magi"
_IGNORED_LABEL = -100
# Attention modules whose model has been seen to fit.
_checked: weakref.WeakSet = weakref.WeakSet()


class PendingMask:
    """Returns what a model asks its attention to hide, as a 4-D mask only if that is needed: with a
    plan nobody reads [rows, rows] elements.
    """

    def __init__(self, arguments: dict[str, Any], hides: str | None, window: int | None) -> None:
        self.arguments = arguments
        self.hides = hides  # what no plan can know of, in words
        self.window = window  # sliding window or chunk
        self._mask: torch.Tensor | None = None

    def tensor(self) -> torch.Tensor | None:
        """The mask as "sdpa" gets it, made once for all layers."""
        if self._mask is None:
            self._mask = sdpa_mask(**self.arguments)
        return self._mask

    def used_by_model(self) -> torch.Tensor:
        """The mask as a tensor for a model that computes with it by itself; ValueError that names
        it where it was given a plan, which knows nothing of that.
        """
        given = plan_of_callers()
        if given is not None:
            raise ValueError(
                f"{given[0]} computes with its attention mask by itself, which no {PLAN_KEYWORD} "
                "follows; allowed: models that hand masks to their attention"
            )
        if self._mask is None:
            self._mask = sdpa_mask(**{**self.arguments, "allow_is_causal_skip": False})
        return self._mask

    def __getitem__(self, place: Any) -> Any:
        # Layers with indexers, which follow plans, take the only head.
        if place == (slice(None), 0, slice(None), slice(None)) and plan_of_callers() is not None:
            return self
        return self.used_by_model()[place]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.used_by_model(), name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        def real(value):
            if isinstance(value, (list, tuple)):
                return type(value)(map(real, value))
            return value.used_by_model() if isinstance(value, cls) else value

        return function(*map(real, args), **{k: real(v) for k, v in (kwargs or {}).items()})


def _forward_operator(name: str) -> None:
    def operate(self: PendingMask, *others: Any) -> Any:
        return getattr(self.used_by_model(), name)(*others)

    setattr(PendingMask, name, operate)


for _operator in ("add", "radd", "sub", "rsub", "mul", "rmul", "and", "rand", "or", "ror", "invert",
                  "neg", "lt", "le", "gt", "ge", "len"):  # fmt: skip
    _forward_operator(f"__{_operator}__")


def register(name: str = NAME) -> None:
    """Makes attn_implementation=name known to transformers. ValueError for a name that another
    function has.
    """
    check_kind("name", name, str, "a str")
    interfaces = ((AttentionInterface, attention), (AttentionMaskInterface, mask))
    for interface, ours in interfaces:
        known = interface().get(name, ours)
        if known is not ours:
            raise ValueError(
                f"name is {name!r}, which {known.__module__} has registered; allowed: a name that "
                "is free, or ours"
            )
    for interface, ours in interfaces:
        interface.register(name, ours)


def mask(
    *, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
    mask_function: Any = causal_mask_function, attention_mask: torch.Tensor | None = None,
    local_size: int | None = None, use_vmap: bool = False, **others: Any,
) -> PendingMask | torch.Tensor | None:  # fmt: skip
    """The mask function of "magi". Borders that transformers infers from jumps in position ids are
    in no plan's way: dispatched position ids jump.
    """
    arguments = dict(
        q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, local_size=local_size,
        use_vmap=use_vmap, **others,
    )  # fmt: skip
    _route_callers()
    config = others.get("config")
    implementation = getattr(config, "_attn_implementation", None)
    if ALL_ATTENTION_FUNCTIONS.get(implementation, attention) is not attention:  # another took it
        return sdpa_mask(**arguments)
    if q_length != kv_length:  # a step of generation, which no plan can hold
        return sdpa_mask(**arguments)
    hides = _hidden_by(attention_mask)
    if hides is None and (use_vmap or mask_function.__name__ == "or_mask"):
        hides = "a mask overlay of the model"
    is_indexed = INDEXED_LAYERS in (getattr(config, "layer_types", None) or ())
    is_plain = hides is None and local_size is None and mask_function is causal_mask_function
    if is_plain and not is_indexed:  # indexers look at masks
        return None
    return PendingMask(arguments, hides, local_size)


@torch.compiler.assume_constant_result
def _route_callers() -> None:
    """Routes the recurrent layers of the model that is called with a plan, as masks are made before
    its layers are called.
    """
    found = calling_model()
    if found is not None:
        route(found[0])


def _hidden_by(attention_mask: torch.Tensor | None) -> str | None:
    if attention_mask is None:
        return None
    if is_tracing(attention_mask):
        return "attention_mask, whose values a compiled model cannot look at,"
    count = attention_mask.numel() - int(attention_mask.sum())
    return f"attention_mask, which hides {count} rows," if count else None


def attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: PendingMask | torch.Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """The attention function of "magi": query [batch, heads, rows, dim], key and value with their
    own head count -> [batch, rows, heads, dim of value], and no weights.
    """
    plan = given = kwargs.pop(PLAN_KEYWORD, None)
    chosen = kwargs.pop("indices", None)  # of keys, by an indexer
    is_causal = kwargs.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    is_causal = is_causal and getattr(getattr(module, "config", None), "is_causal", True)
    # Made of the rows that a causal layer gets; others are a vision tower's. Compilers cannot ask
    # whether a dict is callable.
    if not isinstance(plan, Mapping) and callable(plan):
        heads = Heads(query.shape[1], key.shape[1], query.shape[3], value.shape[3]).padded()
        plan = plan(query.shape[2], heads) if is_causal else None
    if plan is None:
        if given is None:
            _refuse_lost_plan(module, query)
        for name in ("s_aux", "softcap"):  # "sdpa" would drop them
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} is given; allowed: None without {PLAN_KEYWORD}")
        if isinstance(attention_mask, PendingMask):
            attention_mask = attention_mask.tensor()
        if chosen is not None:
            attention_mask = without_others(attention_mask, chosen, key.shape[2])
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    if torch.compiler.is_compiling():
        _refuse_misfit(_misfit_of_callers())
    elif module not in _checked:
        _refuse_misfit(_misfit_of_callers())
        _checked.add(module)
    if not getattr(module, "layer_idx", 0):
        _refuse_misfit(_unused_keyword_of_callers())
    plan, is_named = _plan_of_layer(plan, module)
    if not is_causal:
        _check_direction(plan, module)
    _check_mask(attention_mask, plan, kwargs.get("sliding_window"), is_causal, is_named)
    _check_options(dropout, kwargs)
    sink = kwargs.get("s_aux")
    sink = None if sink is None else sink.unsqueeze(0)
    options = sink, scaling, kwargs.get("softcap") or 0.0
    return _attend(module, plan, (query, key, value), chosen, options), None


def _attend(
    module: torch.nn.Module, plan: AnyPlan, qkv: tuple, chosen: torch.Tensor | None, options: tuple
) -> torch.Tensor:
    """attention's result. options: sink, scaling, softcap."""
    sink, scaling, softcap = options
    query, key, value = qkv
    batch, heads, rows, dim = query.shape
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in qkv)
    if batch != 1 and q.shape[0] != bound_of(plan).local_rows:
        raise ValueError(
            f"the batch is {batch} sequences of {rows} rows; allowed: 1 with {PLAN_KEYWORD}, "
            "sequences packed one after the other"
        )
    if key.shape[3] != dim:  # of a layer that hands on latents
        out = attend_to_latents(module, plan, qkv, chosen, options)
    elif chosen is None:
        out, _ = calc(plan, (q, k, v), sink, scaling, softcap)
    else:
        (q, k, v), scaling = with_dims_of(plan, (q, k, v), scaling)
        out = attend_to_chosen(bound_of(plan), (q, k, v), chosen, sink, scaling, softcap)
        out = out[..., : value.shape[3]]
    return out.view(batch, rows, heads, -1)


def _refuse_lost_plan(module: torch.nn.Module, query: torch.Tensor) -> None:
    """ValueError where a plan of as many rows was given to a model, whose layers then dropped it:
    every rank would attend to its own rows alone.
    """
    rows, given = query.shape[0] * query.shape[2], plan_of_callers()
    if given is not None and given[1] == rows:
        raise ValueError(
            f"{given[0]} was given {PLAN_KEYWORD}, but its {type(module).__name__} was not; "
            "allowed: models whose layers pass keywords on to their attention"
        )
    if not have_callers_a_plan():
        where = f"{num_processes()} processes" if num_processes() > 1 else None
        if _rows_of_active_plan() == rows:
            where = "rows of the active plan"
        if where is not None:
            raise ValueError(
                f"{PLAN_KEYWORD} is missing where {type(module).__name__} attends in {where}; "
                f"allowed: {PLAN_KEYWORD} in the call of the model, or a model of "
                'set_attn_implementation("sdpa"), which attention calls to its own rows alone'
            )


@torch.compiler.assume_constant_result
def _rows_of_active_plan() -> int | None:
    """This rank's rows of what magi_attention.integrations.packed has made active."""
    try:
        return None if active.plan is None else bound_of(active.plan).local_rows
    except (ValueError, RuntimeError):  # a key that is no more
        return None


@torch.compiler.assume_constant_result
def _misfit_of_callers() -> str | None:
    """Says what of the model that is called a plan does not reach."""
    found = calling_model()
    if found is None or not isinstance(found[0], PreTrainedModel):
        return None
    model, _, keywords, _ = found
    sentence = misfit(model, attention) or needs_whole_tables(model)
    if sentence is None:
        over_ranks(model)
        sentence = _wrong_positions(model, keywords.get("position_ids"))
    return sentence


def _wrong_labels(model: torch.nn.Module, plan: AnyPlan, keywords: dict[str, Any]) -> str | None:
    if not isinstance(model, PreTrainedModel):
        return None
    if keywords.get("shift_labels") is not None:
        return misfit_of_labels(model)
    if keywords.get("labels") is None or bound_of(plan).plan.cp_size == 1:
        return None
    if not shifts_labels(model):
        return None
    return (
        f"{type(model).__name__} would shift labels by a row of the rank; allowed: shift_labels, "
        "whose row i holds what row i predicts, beside labels over ranks: shard gives both"
    )


@torch.compiler.assume_constant_result
def _unused_keyword_of_callers() -> str | None:
    """Says what the model is given beside its plan that no layer follows."""
    found = calling_model()
    if found is None:
        return None
    model, plan, keywords, outermost = found
    if virtual_tokens(outermost):
        return virtual_tokens(outermost)
    mask = keywords.get("attention_mask")
    # Masks have become bool where layers see them.
    if isinstance(mask, torch.Tensor) and not is_tracing(mask) and (mask > 1).any():
        return f"attention_mask numbers documents beside {PLAN_KEYWORD}; allowed: None"
    counts_rows = FROM_THE_END if bound_of(plan).plan.cp_size > 1 else ()
    for name in (*DESCRIBING, *LEARNED, *counts_rows):
        value = keywords.get(name)
        is_zero = isinstance(value, int) and value == 0
        if value is None or name in IMPLIED or (name in FROM_THE_END and is_zero):
            continue
        return (
            f"{type(model).__name__} was given {name} beside {PLAN_KEYWORD}; allowed: None, as the "
            "plan and the labels say it, and a rank's rows are not in the order of the sequence"
        )
    return _wrong_labels(model, plan, keywords)


def _wrong_positions(model: torch.nn.Module, position_ids: torch.Tensor | None) -> str | None:
    first = first_position(model)
    if first == 0 or position_ids is None or is_tracing(position_ids):
        return None
    lowest = int(position_ids.min()) if position_ids.numel() else first
    if lowest >= first:
        return None
    return (
        f"position_ids begin at {lowest}; allowed: those of {type(model).__name__}, which begin at "
        f"{first}: shard(..., model=model) gives them"
    )


def _refuse_misfit(sentence: str | None) -> None:
    if sentence is not None:
        raise ValueError(sentence)


def check_model(model: torch.nn.Module) -> None:
    """ValueError, by the name of its class, for a model that plans do not reach whole: one whose
    attention is not ours, whose layers mix rows otherwise (state spaces, convolutions, linear
    attention, batch norms), that takes no position ids, or that is no causal language model.
    TypeError for what is no model of transformers.

    What a model that fits computes over all rows of a call (a router's loss, rotary tables that
    depend on the largest position) is computed over those of all ranks from here on.
    """
    model = model_behind(model)
    _refuse_misfit(misfit(model, attention) or other_task(model))
    over_ranks(model)


def _plan_of_layer(plan: Any, module: torch.nn.Module) -> tuple[Any, bool]:
    """The plan of the module's layer, and whether a dict names it for that type of layer."""
    is_named = isinstance(plan, Mapping)
    if is_named:
        layer_type = module.config.layer_types[module.layer_idx]
        if layer_type not in plan:
            raise ValueError(f"{PLAN_KEYWORD} has no plan for layers of type {layer_type!r}")
        plan = plan[layer_type]
    if not isinstance(plan, PLANS):
        raise TypeError(
            f"{PLAN_KEYWORD} is a {type(plan).__name__}; allowed: {PLANS_IN_WORDS}, or a dict of "
            "these by type of layer"
        )
    return plan, is_named


def _check_mask(given: Any, plan: Any, window: int | None, is_causal: bool, is_named: bool) -> None:
    """ValueError for a mask that the plan does not hold."""
    if isinstance(given, torch.Tensor):
        raise ValueError(
            f"attention_mask is a tensor of shape {list(given.shape)}; allowed: None, as "
            f"{PLAN_KEYWORD} is the mask"
        )
    if given is not None and given.hides is not None:
        raise ValueError(
            f"{given.hides} is not in {PLAN_KEYWORD}; allowed: no mask beside it, as it is the mask"
        )
    if window is not None:
        # transformers counts the row itself in causal windows only.
        farthest, allowed = max(reach_of(plan)), window - 1 if is_causal else window
        if farthest > allowed:
            raise ValueError(
                f"sliding_window is {window}, but {PLAN_KEYWORD} shows keys {farthest} rows away; "
                f"allowed: a plan that shows keys at most {allowed} rows away"
            )
    elif given is not None and given.window is not None and not is_named:
        raise ValueError(
            f"the layer sees chunks of {given.window} rows; allowed: {PLAN_KEYWORD} as a dict that "
            "names a plan for this type of layer"
        )


def _check_direction(plan: AnyPlan, module: torch.nn.Module) -> None:
    """ValueError for a causal plan of a layer that is not causal."""
    before, after = reach_of(plan)
    if before and not after:
        raise ValueError(
            f"{type(module).__name__} attends in both directions, but {PLAN_KEYWORD} shows no keys "
            "after a query; allowed: a plan of documents that are full"
        )


def _check_options(dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout:
        raise ValueError(f"dropout is {dropout}; allowed: 0 with {PLAN_KEYWORD}")
    if kwargs.get("output_attentions"):
        raise ValueError(f"output_attentions is True; allowed: False with {PLAN_KEYWORD}")
    if kwargs.get("position_bias") is not None:
        raise ValueError(f"position_bias is given; allowed: None with {PLAN_KEYWORD}")


def shard(
    plan: AnyPlan,
    input_ids: torch.Tensor,
    labels: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    model: torch.nn.Module | None = None,
) -> dict[str, Any]:
    """This rank's arguments of a causal language model, from those of the whole sequence. Tensors
    are [total_seqlen] or [1, total_seqlen], the same on every rank.

    - plan: a bound plan (Plan.bind), or a runtime key.
    - labels: shifted here, before rows part, so that row i predicts labels[i + 1]; -100 is ignored,
      and stands at the first token of each packed document.
    - position_ids: default 0, 1, ... along the sequence. Where it is packed of several documents
      give those within documents.
    - model: the one that gets the arguments; check_model then looks at it. Without it a model whose
      attention never asks for a plan goes unnoticed.

    Returns input_ids, position_ids, use_cache=False, magi_plan, and labels and shift_labels where
    labels are given: shift_labels[i] is what row i predicts, and so is labels[i + 1], as everywhere
    in transformers, but for a rank's last row, whose label stands at 0. Give the model
    num_items_in_batch too, the tokens with a label on all ranks: losses of ranks then add up to
    that of the sequence. Collective. ValueError for other shapes, for ranks with other tensors, for
    a plan that gives a rank no rows, and by the name of a model that does not fit.
    """
    given = {"input_ids": input_ids, "labels": labels, "position_ids": position_ids}
    refuse_other_samples([given], bound_of(plan).cp_group)
    return rows_of_rank(plan, input_ids, labels, position_ids, model)


def rows_of_rank(plan: AnyPlan, input_ids, labels, position_ids, model) -> dict[str, Any]:
    """Does what shard does, without comparing ranks."""
    bound = bound_of(plan)
    for rank in range(bound.plan.cp_size):  # all ranks refuse what one would fail at in the model
        if bound.plan.rows_of(rank) == 0:
            raise ValueError(
                f"the plan gives rank {rank} no rows; allowed: plans that give each rank some, as "
                "models of transformers cannot run on none"
            )
    rows = bound.total_seqlen
    named = {"input_ids": input_ids, "labels": labels, "position_ids": position_ids}
    for name, tensor in named.items():
        if tensor is not None and tuple(tensor.shape) not in ((rows,), (1, rows)):
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}; allowed: [{rows}] or [1, {rows}], the "
                "plan's rows"
            )
    first = 0
    if model is not None:
        check_model(model)
        behind = model_behind(model)
        first = first_position(behind)
        if position_ids is not None:
            _refuse_misfit(_wrong_positions(behind, position_ids))
        if labels is not None:
            _refuse_misfit(misfit_of_labels(behind))
    arguments: dict[str, Any] = {PLAN_KEYWORD: plan, "use_cache": False}
    arguments["input_ids"] = bound.dispatch(input_ids.view(-1)).unsqueeze(0)
    if position_ids is None:
        arguments["position_ids"] = bound.position_ids_on(input_ids.device).unsqueeze(0) + first
    else:
        arguments["position_ids"] = bound.dispatch(position_ids.view(-1)).unsqueeze(0)
    if labels is not None:
        shifted = labels.view(-1).roll(-1)
        shifted[-1] = _IGNORED_LABEL
        local = bound.dispatch(shifted, _IGNORED_LABEL).unsqueeze(0)
        arguments["shift_labels"] = local
        arguments["labels"] = local.roll(1, 1)
    return arguments
