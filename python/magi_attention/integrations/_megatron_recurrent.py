# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet and Mamba mixers of Megatron-core over the runs of a plan: what they compute for a
batch of prepare_batch, by the mixer's own projections, parameters and norms.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F

from magi_attention.integrations._bound import bound_of
from magi_attention.integrations._megatron_batch import MagiPackedSeqParams
from magi_attention.plan import BoundPlan
from magi_attention.recurrent import causal_conv1d, gated_delta_rule, mamba2


def _gated_delta_net(mixer: Any, projected: torch.Tensor, bound: BoundPlan) -> torch.Tensor:
    heads = mixer.num_v_heads_local_tp
    keys, values = mixer.qk_dim // mixer.tp_size, heads * mixer.value_head_dim
    mixed, gate, beta, alpha = projected.split((2 * keys + values, values, heads, heads), 1)
    mixed = _convolved(mixer, mixed, bound)
    q, k, v = mixed.split((keys, keys, values), 1)
    q, k = (x.unflatten(1, (-1, mixer.key_head_dim)) for x in (q, k))
    if mixer.use_qk_l2norm:
        q, k = (x * (x.float().square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    v, gate = (x.unflatten(1, (-1, mixer.value_head_dim)) for x in (v, gate))
    decays = -mixer.A_log.exp() * F.softplus(alpha.float() + mixer.dt_bias)
    out = gated_delta_rule(bound, q, k, v, decays, beta.sigmoid())
    return mixer._apply_gated_norm(out, gate)


def _mamba(mixer: Any, projected: torch.Tensor, bound: BoundPlan) -> torch.Tensor:
    inner, heads = mixer.d_inner_local_tp, mixer.nheads_local_tp
    states = mixer.ngroups_local_tp * mixer.d_state
    z, mixed, dt = projected.split((inner, inner + 2 * states, heads), 1)
    x, b, c = _convolved(mixer, mixed, bound).split((inner, states, states), 1)
    x = x.unflatten(1, (heads, -1))
    b, c = (y.unflatten(1, (-1, mixer.d_state)) for y in (b, c))
    dt = F.softplus(dt + mixer.dt_bias.float())
    out = mamba2(bound, x, dt, -mixer.A_log.float().exp(), b, c)
    skip = mixer.D.view(heads, -1)  # one for each channel, or one for all of a head
    out = ((out + skip * x).flatten(1) * F.silu(z)).to(projected.dtype)
    return mixer.norm(out) if mixer.rmsnorm else out


def _convolved(mixer: Any, mixed: torch.Tensor, bound: BoundPlan) -> torch.Tensor:
    conv = mixer.conv1d
    return causal_conv1d(bound, mixed, conv.weight.squeeze(1), conv.bias, mixer.activation)


_MIXERS = {"GatedDeltaNet": _gated_delta_net, "MambaMixer": _mamba}
# Methods of a kind of these that change nothing here, or that layers above call.
_FREE = {"__init__", "__doc__", "__module__", "sharded_state_dict", "_apply_gated_norm"}


class _UnderPlans:
    """Before a mixer of Megatron: batches of prepare_batch over the runs of their plan."""

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        given = inspect.signature(super().forward).bind(*arguments, **keywords)
        params = given.arguments.get("packed_seq_params")
        if not isinstance(params, MagiPackedSeqParams):
            return super().forward(*arguments, **keywords)
        hidden_states, *others = given.arguments.items()
        for name, option in others:
            if option is not None and name not in ("packed_seq_params", "kwargs"):
                raise ValueError(f"{name} is given; allowed: None with batches of prepare_batch")
        projected, _ = self.in_proj(hidden_states[1])
        layer = _MIXERS[_mixer_among(type(self)).__name__]
        out = layer(self, projected.squeeze(1), bound_of(params.plan))
        return self.out_proj(out.reshape(*projected.shape[:2], -1))


def _mixer_among(kind: type) -> type | None:
    """The mixer that a kind of module is one of."""
    return next((one for one in kind.__mro__ if one.__name__ in _MIXERS), None)


def put_under_plans(name: str, module: torch.nn.Module) -> None:
    """Makes a mixer take batches of prepare_batch. ValueError for a mixer that no plan reaches."""
    kind = type(module)
    if isinstance(module, _UnderPlans):
        return
    mixer, allowed = _mixer_among(kind), ", ".join(_MIXERS)
    if mixer is not None:
        own = [one for one in kind.__mro__ if issubclass(one, mixer) and one is not mixer]
        changed = [method for one in own for method in vars(one) if method in vars(mixer)]
        changed = [method for method in changed if method not in _FREE]
        if changed:
            raise ValueError(
                f"{name} is a {kind.__name__}, which has a {changed[0]} of its own; allowed: "
                f"{allowed}, or kinds of them that change no method"
            )
        module.__class__ = type(kind.__name__, (_UnderPlans, kind), {})
    elif hasattr(module, "conv1d") and hasattr(module, "A_log"):
        raise ValueError(
            f"{name} is a {kind.__name__}, a recurrent layer without a plan; allowed: {allowed}, "
            "or a layer of magi_attention.recurrent in its place"
        )
