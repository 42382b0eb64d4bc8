# SPDX-License-Identifier: Apache-2.0
"""Latent attention (MLA) in models of transformers: under plans that find it faster, and where
kernels take lists of latents alone, layers hand on latents and the rotated part of keys in place of
keys and values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from magi_attention._native.tensors import PLAIN_TYPES
from magi_attention.integrations._bound import PLANS, AnyPlan, bound_of, of_autocast
from magi_attention.integrations._model_calls import plan_in_force
from magi_attention.integrations._model_indexed import attend_to_chosen, takes_lists, with_sink

_METHOD = "expand_kv"  # of layers, called after RoPE
_OURS = "magi_attention.integrations.transformers"
# All that a method names which projects by one weight, splits and joins; ours names more.
_NAMES = {
    "kv_b_proj", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "shape", "view", "transpose",
    "torch", "split", "expand", "new_empty", "copy_",
}  # fmt: skip


def route_latents(kind: type) -> None:
    """Makes layers of a class ask the plan in force before they project latents."""
    own = getattr(kind, _METHOD, None)
    code = getattr(own, "__code__", None)
    if code is not None and _NAMES.issuperset((*code.co_names, *code.co_freevars)):
        setattr(kind, _METHOD, _asking(own))


def _asking(own: Callable) -> Callable:
    @functools.wraps(own)
    def expand_kv(self, latent: torch.Tensor, rope: torch.Tensor) -> tuple:
        if (
            torch.compiler.is_compiling()
            # What overrides this method and calls it may add to the projection.
            or getattr(self.expand_kv, "__func__", None) is not expand_kv
            or not _take_latents(self, latent, rope)
        ):
            return own(self, latent, rope)
        return rope, latent

    return expand_kv


def _take_latents(module: torch.nn.Module, latent: torch.Tensor, rope: torch.Tensor) -> bool:
    """Whether the plan in force finds latents faster, or lists of keys need them, for a layer that
    is nothing but attention to projections by one weight.
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
    if not is_plain or has_hooks or linear.bias is not None or "forward" in vars(linear):
        return False
    bound, sizes = bound_of(plan), (latent.shape[-1], rope.shape[-1])
    if hasattr(module, "indexer"):
        shape, (rows,) = bound.attention.local_shape, of_autocast((latent,))
        if not takes_lists(bound, rows, (sum(sizes), sizes[0])):
            return False
        if not takes_lists(bound, rows, (shape.head_dim, shape.head_dim_v)):
            return True
    return bound.latents.mode("auto", *sizes) == "latent"


def attend_to_latents(
    module: torch.nn.Module, plan: AnyPlan, tensors: tuple, chosen: torch.Tensor | None,
    options: tuple,
) -> torch.Tensor:  # fmt: skip
    """out [batch * rows, heads, dim of v] of q, rotated parts and latents [batch, heads or 1, rows,
    dim]. chosen: the keys that `choose` returns, None: all; options: sink, scaling, softcap.
    """
    sink, scaling, softcap = options
    q, rope, latent = (x.transpose(1, 2).flatten(0, 1) for x in tensors)
    q, latent, rope, weight = of_autocast((q, latent, rope, module.kv_b_proj.weight))
    if chosen is None:
        rows = q, latent.squeeze(1), rope.squeeze(1), weight
        out, meta = bound_of(plan).calc_latent_attn(*rows, scaling, softcap, mode="latent")
        return with_sink(out, meta.lse, sink)
    nope, scaling = module.qk_nope_head_dim, scaling or q.shape[2] ** -0.5
    of_heads = weight.unflatten(0, (-1, nope + module.v_head_dim))
    # A score q (W latent) is (q W) latent, and a sum of values W latent is W times one of latents.
    with torch.autocast(q.device.type, enabled=False):
        absorbed = torch.einsum("rhn,hnl->rhl", q[..., :nope], of_heads[:, :nope])
        k = torch.cat((latent, rope), 2)
        qkv = torch.cat((absorbed, q[..., nope:]), 2), k, k[..., : latent.shape[2]]
        out = attend_to_chosen(bound_of(plan), qkv, chosen, sink, scaling, softcap)
        return torch.einsum("rhl,hvl->rhv", out, of_heads[:, nope:])
