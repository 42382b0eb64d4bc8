# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and convolutions of transformers' models under plans: the functions that their
mixers call by name compute over the runs of a plan where a plan is in force.
"""

from __future__ import annotations

import functools
import inspect
import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from magi_attention import recurrent
from magi_attention.common._arguments import check_kind
from magi_attention.integrations._bound import PLANS, PLANS_IN_WORDS, bound_of, reach_of
from magi_attention.integrations._model_calls import PLAN_KEYWORD, is_plan_in_force, plan_in_force
from magi_attention.integrations._model_calls import rows_of_batch as _rows
from magi_attention.integrations._model_indexed import choose, is_indexer
from magi_attention.integrations._model_latents import route_latents
from magi_attention.integrations._model_plans import UNATTENDED_LAYERS

_SERVED = "_serves_plans"  # of a function that has been routed
_routed_models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def _conv(bound, hidden_states, weight, bias=None, activation=None, **others):
    rows = _rows(hidden_states).T
    return recurrent.causal_conv1d(bound, rows, weight, bias, activation).T.unsqueeze(0)


def _normed(x: torch.Tensor, divides: bool) -> torch.Tensor:
    """The two ways in which models' functions norm queries and keys."""
    squares = (x * x).sum(-1, keepdim=True) + 1e-6
    return x / squares.sqrt() if divides else x * squares.rsqrt()


def _delta(layer: Callable, divides: bool):
    def delta(
        bound, query, key, value, g, beta, *args, use_qk_l2norm_in_kernel=False, **others
    ):  # fmt: skip
        wide = torch.promote_types(query.dtype, torch.float32)
        q, k = (_rows(x).to(wide) for x in (query, key))
        if use_qk_l2norm_in_kernel:
            q, k = _normed(q, divides), _normed(k, divides)
        out = layer(bound, q, k, _rows(value), _rows(g), _rows(beta))
        return out.unsqueeze(0).to(query.dtype), None

    return delta


def _softplus_of(dt, bias, is_softplus: bool):
    """Time steps in float32 or wider, as kernels of models have them."""
    dt = dt.to(torch.promote_types(dt.dtype, torch.float32))
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return F.softplus(dt) if is_softplus else dt


def _mamba2(
    bound, hidden_states, dt, A, B, C, chunk_size, D=None, dt_bias=None, dt_softplus=False,
    dt_limit=(0.0, float("inf")), **others,
):  # fmt: skip
    dt = _softplus_of(_rows(dt), dt_bias, dt_softplus).clamp(*dt_limit)
    return recurrent.mamba2(bound, _rows(hidden_states), dt, A, _rows(B), _rows(C), D).unsqueeze(0)


def _mamba1(
    bound, hidden_states, dt, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False,
    **others,
):  # fmt: skip
    dt = _softplus_of(_rows(dt).T, delta_bias, delta_softplus)
    x = _rows(hidden_states).T
    out = recurrent.mamba1(bound, x, dt, A, _rows(B).T, _rows(C).T, D).T.unsqueeze(0)
    return out if z is None else out * F.silu(z)


def _no_fused_kernel(bound, *args, **others) -> None:
    """A model then goes on by its single functions."""


# By the names under which modeling modules have them.
_FUNCTIONS: dict[str, Callable] = {
    "causal_conv1d_fn": _conv,
    "torch_chunk_gated_delta_rule": _delta(recurrent.gated_delta_rule, divides=False),
    "chunk_kimi_delta_attention": _delta(recurrent.kda, divides=True),
    "mamba2_chunk_scan": _mamba2,
    "mamba2_split_conv1d_scan_combined": _no_fused_kernel,
    "mamba_selective_scan": _mamba1,
    "mamba_inner_fn": _no_fused_kernel,
}


def _minimax(theirs, bound, module, hidden_states, *args, **others):
    """MiniMaxLightningAttention.forward without its cache."""
    qkv = module.act_fn(module.qkv_proj(hidden_states))
    heads = qkv.unflatten(-1, (module.num_attention_heads, 3 * module.head_dim))
    q, k, v = (_rows(x) for x in heads.split(module.head_dim, -1))
    out = recurrent.lightning(bound, q, k, v, -module.slope_rate.flatten())
    out = module.norm(out.flatten(1).unsqueeze(0))
    gate = torch.sigmoid(module.output_gate(hidden_states))
    return module.out_proj(gate * out), None


def _griffin_scan(theirs, bound, module, hidden_states, recurrent_gate, *args, **others):
    """RecurrentGemmaRglru._rnn_scan; runs begin where it would reset."""
    gate = _rows(recurrent_gate)
    smallest = torch.finfo(gate.dtype).tiny
    out = recurrent.rg_lru(bound, _rows(hidden_states), gate.clamp_min(smallest).log())
    return out.unsqueeze(0), None


def _griffin(theirs, bound, module, input_states, position_ids, *args, **others):
    """RecurrentGemmaRecurrentBlock.forward without its cache."""
    x = module.linear_x(input_states).transpose(1, 2)
    x = _conv(bound, x, module.conv_1d.weight.squeeze(1), module.conv_1d.bias)
    x = module.rg_lru(x.transpose(1, 2), position_ids)
    return module.linear_out(x * module.act_fn(module.linear_y(input_states))), None


def _zaya(theirs, bound, module, hidden_states, cache=None, conv_mask=None):
    """ZayaCCAProjection.forward, whose convolutions look at few rows before each."""
    width = module.conv_kernel_size
    parts = recurrent.windows(
        bound, _rows(hidden_states), width, lambda x: theirs(module, x.unsqueeze(0), None)
    )
    return tuple(torch.cat(part, 1) for part in zip(*parts))


def _ngrams(theirs, bound, module, input_ids, cache=None):
    """Qwen4ExpTextNGramEmbedding.forward, which looks at few tokens before each."""
    ids, width = _rows(input_ids).unsqueeze(1), module.context_len
    parts = recurrent.windows(bound, ids, width, lambda x: (theirs(module, x.T, None),))
    return torch.cat([part for (part,) in parts], 1)


def _dilated_conv(theirs, bound, module, hidden_states, cache=None):
    """Qwen4ExpTextPLELayer._short_conv."""
    rows, width = _rows(hidden_states), module.short_conv_state_len
    parts = recurrent.windows(bound, rows, width, lambda x: (theirs(module, x.unsqueeze(0), None),))
    return torch.cat([part for (part,) in parts], 1)


# Methods of classes, by class and name: what they are where a plan is in force.
_METHODS: dict[tuple[str, str], Callable] = {
    ("MiniMaxLightningAttention", "forward"): _minimax,
    ("RecurrentGemmaRecurrentBlock", "forward"): _griffin,
    ("RecurrentGemmaRglru", "_rnn_scan"): _griffin_scan,
    ("ZayaCCAProjection", "forward"): _zaya,
    ("Qwen4ExpTextNGramEmbedding", "forward"): _ngrams,
    ("Qwen4ExpTextPLELayer", "_short_conv"): _dilated_conv,
}

# What functions are given and asked of a state that a cache has.
_STATES = (
    "initial_state", "initial_states", "output_final_state", "return_final_states",
    "return_last_state",
)  # fmt: skip
# The layers of magi_attention.recurrent that these come to.
_LAYERS = {
    "causal_conv1d_fn": "causal_conv1d", "torch_chunk_gated_delta_rule": "gated_delta_rule",
    "chunk_kimi_delta_attention": "kda", "mamba2_chunk_scan": "mamba2",
    "mamba_selective_scan": "mamba1", "MiniMaxLightningAttention": "lightning",
    "RecurrentGemmaRecurrentBlock": "causal_conv1d", "RecurrentGemmaRglru": "rg_lru",
    "ZayaCCAProjection": "windows", "Qwen4ExpTextNGramEmbedding": "windows",
    "Qwen4ExpTextPLELayer": "windows",
}  # fmt: skip


_CONVOLUTIONS = {"causal_conv1d", "windows"}
# Functions of modeling modules that mix rows, and those of them for a single row behind a cache.
_MIXES = re.compile(r"scan|chunk_|recurrent_|delta|conv1d|ssm|linear_attention")
_STEP = re.compile(r"_update$|^(torch_)?recurrent_")


def _forward_of(kind: type) -> Callable:
    return inspect.unwrap(kind.forward)


def recurrences_of(module: torch.nn.Module) -> set[str]:
    """The layers of magi_attention.recurrent that a mixer computes by under a plan."""
    names = _forward_of(type(module)).__code__.co_names
    return {_LAYERS[name] for name in (*names, type(module).__name__) if name in _LAYERS}


def is_served(module: torch.nn.Module) -> bool:
    """Whether a plan reaches all of a mixer: its convolution and its recurrence, and every function
    of its module that mixes rows.
    """
    found, forward = recurrences_of(module), _forward_of(type(module))
    if any(type(module).__name__ == owner for owner, _ in _METHODS) or is_indexer(type(module)):
        return True
    has_state = any(hasattr(module, name) for name in ("A_log", "dt_bias"))
    has_convolution = any(isinstance(child, torch.nn.Conv1d) for child in module.children())
    lacks = (has_state and not found - _CONVOLUTIONS) or (
        has_convolution and not found & _CONVOLUTIONS
    )
    others = [
        name
        for name in forward.__code__.co_names
        if inspect.isfunction(forward.__globals__.get(name))
        and _MIXES.search(name)
        and not (name in _FUNCTIONS or _STEP.search(name))
    ]
    return bool(found) and not lacks and not others


def route(model: torch.nn.Module) -> None:
    """Makes the mixers of a model compute over the runs of a plan where one is in force, and its
    layers of latents hand these on.
    """
    if model in _routed_models:
        return
    _routed_models.add(model)
    for kind in {type(module) for module in model.modules()}:
        route_latents(kind)
        forward = _forward_of(kind)
        scope = forward.__globals__  # of the class that has it, which may be inherited
        for name in forward.__code__.co_names:
            if name in _FUNCTIONS and not hasattr(scope.get(name), _SERVED):
                scope[name] = _routed(scope[name], _FUNCTIONS[name])
        for (owner, name), ours in _METHODS.items():
            if owner == kind.__name__ and not hasattr(getattr(kind, name), _SERVED):
                setattr(kind, name, _routed(getattr(kind, name), ours, True))
        if is_indexer(kind) and not hasattr(kind.forward, _SERVED):
            kind.forward = _routed(kind.forward, choose, True)


@torch.compiler.disable  # a layer is exchanges and kernels of its own
def _under_plan(ours: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """ours(bound plan in force, *args, **kwargs)."""
    plan = kwargs.pop(PLAN_KEYWORD, None)
    plan = plan_in_force() if plan is None else plan
    if isinstance(plan, Mapping):
        plan = _plan_of_runs(plan)
    for name in _STATES:
        value = kwargs.get(name)
        if value is not None and value is not False:
            raise ValueError(
                f"{name} is given; allowed: None with {PLAN_KEYWORD} (use_cache=False), as the "
                "rows of a rank have no last state"
            )
    return ours(bound_of(plan), *args, **kwargs)


def _plan_of_runs(plans: Mapping[str, Any]) -> Any:
    """The plan for recurrent layers, of plans by type of layer on one placement: their own, or that
    which shows keys farthest, as windows and chunks are no documents. TypeError for other values.
    """
    found = [plan for name, plan in plans.items() if name in UNATTENDED_LAYERS] or [*plans.values()]
    for plan in found or [None]:
        check_kind(PLAN_KEYWORD, plan, PLANS, f"a dict of {PLANS_IN_WORDS}")
    return max(found, key=reach_of)


def _is_under_plan(given: Any) -> bool:
    return isinstance(given, (*PLANS, Mapping)) or (given is None and is_plan_in_force())


def _routed(theirs: Callable, ours: Callable, is_method: bool = False) -> Callable:
    """A method takes the plan's keyword itself, and gives its own to ours."""
    ours = functools.partial(ours, theirs) if is_method else ours

    @functools.wraps(theirs)
    def function(*args, **kwargs):
        if _is_under_plan(kwargs.get(PLAN_KEYWORD)):
            return _under_plan(ours, args, kwargs)
        if not is_method:
            kwargs.pop(PLAN_KEYWORD, None)
        return theirs(*args, **kwargs)

    setattr(function, _SERVED, True)
    return function
