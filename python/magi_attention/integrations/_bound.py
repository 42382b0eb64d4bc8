# SPDX-License-Identifier: Apache-2.0
"""What adapters take as a plan: a bound plan, or a key of magi_attention.api."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from magi_attention._group_holders import holds_groups
from magi_attention.api import calc_attn
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.compat.keys.key import DistAttnRuntimeKey
from magi_attention.compat.keys.lookup import runtime_of
from magi_attention.plan import BoundPlan

AnyPlan: TypeAlias = "BoundPlan | DistAttnRuntimeKey"
PLANS = (BoundPlan, DistAttnRuntimeKey)
PLANS_IN_WORDS = "a bound plan (Plan.bind), a key of magi_attention.api"


@dataclass
class _Active:
    """The plan that attention functions of models find if nothing is passed on."""

    cp_group: dist.ProcessGroup | None = None
    spec: Any = None  # an AttnMaskSpec, which asks for plans itself
    plan: AnyPlan | None = None


active = _Active()
holds_groups(active, "cp_group")


def bound_of(plan: AnyPlan) -> BoundPlan:
    """The bound plan itself, or that of a key; ValueError for a key that left the cache."""
    return plan if isinstance(plan, BoundPlan) else runtime_of(plan).bound


def calc(
    plan: AnyPlan,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    sink: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_max_logits: bool = False,
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """out and meta of q, k, v [rows, heads, dim] under the plan, in autocast's type where it is on;
    a key counts as used by this call. Heads that are narrower than the plan's get zeros, which
    change nothing.
    """
    dim_v = qkv[2].shape[2]
    qkv, softmax_scale = with_dims_of(plan, qkv, softmax_scale)
    options = (sink, softmax_scale, softcap, return_max_logits)
    qkv = of_autocast(qkv)
    if isinstance(plan, BoundPlan):
        out, meta = plan.calc_attn(*qkv, *options)
    else:
        out, meta = calc_attn(*qkv, plan, *options)
    return (out if out.shape[2] == dim_v else out[..., :dim_v]), meta


def with_dims_of(
    plan: AnyPlan, qkv: tuple[torch.Tensor, ...], softmax_scale: float | None
) -> tuple[tuple[torch.Tensor, ...], float | None]:
    """q, k, v with zeros after heads narrower than the plan's, and the scale of those given."""
    of = plan.attention.local_shape if isinstance(plan, BoundPlan) else plan
    dim, dims = qkv[0].shape[2], (of.head_dim, of.head_dim, of.head_dim_v)
    missing = [max(0, wanted - x.shape[2]) for x, wanted in zip(qkv, dims)]
    if not any(missing):
        return qkv, softmax_scale
    softmax_scale = dim**-0.5 if softmax_scale is None else softmax_scale
    return tuple(pad(x, (0, count)) for x, count in zip(qkv, missing)), softmax_scale


def of_autocast(qkv: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Tensors in the type that autocast has for attention, as torch's own attention takes them:
    rotated queries and keys are of float32 there, values are not. float64 stays.
    """
    device = qkv[0].device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return qkv
    dtype = torch.get_autocast_dtype(device)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in qkv)


def reach_of(plan: AnyPlan) -> tuple[int, int]:
    """Returns how many rows before and after a query the farthest keys lie that the plan shows; of
    a key that was not named its plan's.
    """
    is_known = isinstance(plan, BoundPlan) or plan._number != 0
    return plan.reach if is_known else bound_of(plan).reach


def check_window_of(plan: AnyPlan, name: str, window: tuple[int, int], plan_name: str) -> None:
    """ValueError where the plan shows keys farther away than window (left, right) rows, -1: any."""
    for farthest, allowed, side in zip(reach_of(plan), window, ("before", "after")):
        if 0 <= allowed < farthest:
            raise ValueError(
                f"{name} is {window}, but {plan_name} shows keys {farthest} rows {side} a query; "
                f"allowed: a plan that shows keys at most {allowed} rows {side} it"
            )
