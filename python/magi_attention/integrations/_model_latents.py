# SPDX-License-Identifier: Apache-2.0
"""Latent attention (MLA) in models of transformers: under plans that find it faster their layers
hand on latents and the rotated part of keys in place of keys and values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from magi_attention._native.tensors import PLAIN_TYPES
from magi_attention.integrations._bound import PLANS, AnyPlan, bound_of, of_autocast
from magi_attention.integrations._model_calls import plan_in_force

_METHOD = "expand_kv"  # of layers, called after RoPE
_OURS = "magi_attention.integrations.transformers"


def route_latents(kind: type) -> None:
    """Makes layers of a class ask the plan in force before they project latents."""
    own = getattr(kind, _METHOD, None)
    if own is not None and not hasattr(own, "magi_own"):
        setattr(kind, _METHOD, _asking(own))


def _asking(own: Callable) -> Callable:
    @functools.wraps(own)
    def expand_kv(self, latent: torch.Tensor, rope: torch.Tensor) -> tuple:
        if torch.compiler.is_compiling() or not _take_latents(self, latent, rope):
            return own(self, latent, rope)
        return rope, latent

    expand_kv.magi_own = own
    return expand_kv


def _take_latents(module: torch.nn.Module, latent: torch.Tensor, rope: torch.Tensor) -> bool:
    """Whether the plan in force finds latents faster for a layer that is nothing but attention to
    projections by one weight.
    """
    plan = plan_in_force()
    if isinstance(plan, Mapping):
        plan = plan.get(module.config.layer_types[module.layer_idx])
    attention = ALL_ATTENTION_FUNCTIONS.get(module.config._attn_implementation, None)
    if not isinstance(plan, PLANS) or getattr(attention, "__module__", "") != _OURS:
        return False
    linear = module.kv_b_proj
    is_plain = type(linear) is torch.nn.Linear and type(linear.weight) in PLAIN_TYPES
    has_hooks = is_plain and (linear._forward_hooks or linear._forward_pre_hooks)
    if not is_plain or has_hooks or linear.bias is not None or hasattr(module, "indexer"):
        return False
    return bound_of(plan).latents.mode("auto", latent.shape[-1], rope.shape[-1]) == "latent"


def attend_to_latents(
    module: torch.nn.Module, plan: AnyPlan, tensors: tuple, scaling: float | None, softcap: float
) -> torch.Tensor:
    """out [batch * rows, heads, dim of v] of q, rotated parts and latents [batch, heads or 1, rows,
    dim].
    """
    q, rope, latent = (x.transpose(1, 2).flatten(0, 1) for x in tensors)
    rows: Any = of_autocast((q, latent.squeeze(1), rope.squeeze(1), module.kv_b_proj.weight))
    return bound_of(plan).calc_latent_attn(*rows, scaling, softcap, mode="latent")[0]
