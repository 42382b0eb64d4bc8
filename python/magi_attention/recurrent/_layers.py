# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and convolutions as functions of a bound plan and a rank's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from magi_attention.plan import BoundPlan
from magi_attention.recurrent._recurrence import recur
from magi_attention.recurrent._rows import fetch_rows, tied
from magi_attention.recurrent._scans import scan_delta, scan_elementwise, scan_scalar
from magi_attention.recurrent._table import table_of

_ACTIVATIONS = {None: None, "silu": F.silu, "swish": F.silu}


class _Scalar:
    """S = exp(log_decay) S + k v^T, one decay for each head."""

    def zero_state(self, inputs, runs):
        q, k, v, _ = inputs
        return q.new_zeros((runs, *k.shape[2:], v.shape[-1]))

    def scan(self, inputs, state):
        return scan_scalar(*inputs, state)

    def transfer(self, inputs):
        return inputs[3].sum(1).exp()

    def through(self, transfer, state):
        return transfer[..., None, None] * state


class _Elementwise:
    """h = exp(log_decay) h + x, and what is read of it: x itself, or its product with c."""

    def zero_state(self, inputs, runs):
        return inputs[1].new_zeros((runs, *inputs[1].shape[2:]))

    def scan(self, inputs, state):
        return scan_elementwise(*inputs, state)

    def transfer(self, inputs):
        return inputs[0].sum(1).exp()

    def through(self, transfer, state):
        return transfer * state


class _Delta:
    """The gated delta rule; a state's transfer through a run is a matrix for each head."""

    def zero_state(self, inputs, runs):
        _, k, v, *_ = inputs
        return k.new_zeros((runs, *k.shape[2:], v.shape[-1]))

    def scan(self, inputs, state):
        return scan_delta(*inputs, state)

    def transfer(self, inputs):
        q, k, _, log_decay, beta = inputs
        eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
        eye = eye.expand(k.shape[0], k.shape[2], -1, -1)
        return scan_delta(q, k, torch.zeros_like(k), log_decay, beta, eye)[1]

    def through(self, transfer, state):
        return transfer @ state


def _wide(plan: BoundPlan, **tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in the type in which states are kept, float32 or wider; ValueError by name for
    one that has not the rank's rows.
    """
    for name, x in tensors.items():
        if x.shape[0] != plan.local_rows:
            raise ValueError(
                f"{name} has shape {list(x.shape)}; allowed: [{plan.local_rows}, ...], the rows of "
                f"rank {plan.rank}"
            )
    wide = torch.float32
    for x in tensors.values():
        wide = torch.promote_types(wide, x.dtype)
    return [x.to(wide) for x in tensors.values()]


@torch.compiler.disable
def causal_conv1d(
    plan: BoundPlan,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """A convolution of each channel over a row and those before it in its document: x [rows,
    channels], weight [channels, width], bias [channels] -> like x. activation: None, "silu".
    Collective: rows before runs that other ranks hold are fetched, and no others.
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; allowed: None, 'silu', 'swish'")
    table, before = table_of(plan), weight.shape[1] - 1
    halos, others = _halos(plan, x, before)
    parts = [part for pair in zip(halos, x.split(table.lengths)) for part in pair]
    whole = torch.cat(parts).to(weight.dtype).T.unsqueeze(0)
    found = F.conv1d(whole, weight.unsqueeze(1), bias, groups=x.shape[1])[0].T
    lengths = [n for length in table.lengths for n in (length, before)][:-1]
    found = tied(torch.cat(found.split(lengths)[::2]), others)
    act = _ACTIVATIONS[activation]
    return (found if act is None else act(found)).to(x.dtype)


def _halos(plan: BoundPlan, x: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[own runs, width, ...]: the rows before each run, zeros before a document; what was fetched
    for them.
    """
    fetch, places = table_of(plan).halo(width)
    others = fetch_rows(fetch, x, (x,)) if plan.plan.cp_size > 1 else x[:0]
    known = torch.cat((x, others, x.new_zeros((1, x.shape[1]))))
    return known[places.to(x.device)], others


@torch.compiler.disable
def windows(
    plan: BoundPlan, x: torch.Tensor, width: int, layer: Callable[[torch.Tensor], Any]
) -> list[Any]:
    """The results of a layer whose rows depend on `width` rows before them, run by run: layer takes
    x of a run [rows, channels] with what there is before it, up to width rows, and gives tensors
    [1, rows, ...] of which those of the run are kept.
    """
    table = table_of(plan)
    halos, others = _halos(plan, x, width)
    found = []
    for rows, halo, known in zip(x.split(table.lengths), halos, table.rows_known(width)):
        parts = layer(torch.cat((halo[width - known :], rows)))
        found.append(tuple(tied(part[:, known:], others) for part in parts))
    return found


def gated_delta_rule(
    plan: BoundPlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    """The gated delta rule (GDN) over this rank's rows: q, k [rows, heads, dim_k], v [rows, heads,
    dim_v], g (log of the decay) and beta [rows, heads] -> like v. A head's state S [dim_k, dim_v]
    becomes exp(g) (I - beta k k^T) S + beta k v^T, and its result is scale S^T q; scale None:
    dim_k ** -0.5. q and k of fewer heads serve several of v. Source: Yang et al., "Gated delta
    networks", 2024.
    """
    return kda(plan, q, k, v, g.unsqueeze(-1), beta, scale)


def kda(
    plan: BoundPlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    """Kimi delta attention: gated_delta_rule with a decay for each channel of k, g [rows, heads,
    dim_k]. Source: Kimi Team, "Kimi linear", 2025.
    """
    given = v.dtype
    q, k, v, g, beta = _wide(plan, q=q, k=k, v=v, g=g, beta=beta)
    repeats = v.shape[1] // k.shape[1]
    q, k = (x.repeat_interleave(repeats, 1) for x in (q, k))
    q = q * (k.shape[2] ** -0.5 if scale is None else scale)
    return recur(plan, _Delta(), (q, k, v, g, beta)).to(given)


def lightning(
    plan: BoundPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor
) -> torch.Tensor:
    """Lightning attention: q, k [rows, heads, dim_k], v [rows, heads, dim_v], log_decay [heads] ->
    like v. S becomes exp(log_decay) S + k v^T, and the result is S^T q. Source: Qin et al.,
    "Lightning attention-2", 2024.
    """
    given = v.dtype
    q, k, v = _wide(plan, q=q, k=k, v=v)
    decays = log_decay.to(q.dtype).expand(q.shape[0], -1)
    return recur(plan, _Scalar(), (q, k, v, decays)).to(given)


def mamba2(
    plan: BoundPlan,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mamba-2's state space: x [rows, heads, dim], dt [rows, heads] as it is applied, A [heads], B
    and C [rows, groups, state], D [heads] or None -> like x. A head's state becomes exp(dt A) S +
    dt B x^T, and its result is S^T C + D x. Source: Dao and Gu, "Transformers are SSMs", 2024.
    """
    given = x.dtype
    x, dt, B, C = _wide(plan, x=x, dt=dt, B=B, C=C)
    repeats = x.shape[1] // B.shape[1]
    B, C = (y.repeat_interleave(repeats, 1) for y in (B, C))
    inputs = (C, B, x * dt.unsqueeze(-1), A.to(x.dtype) * dt)
    out = recur(plan, _Scalar(), inputs)
    return (out if D is None else out + D.unsqueeze(-1) * x).to(given)


def mamba1(
    plan: BoundPlan,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mamba's selective scan: x and dt, as it is applied, [rows, channels], A [channels, state], B
    and C [rows, state], D [channels] or None -> like x. A channel's state becomes exp(dt A) h + dt
    B x, and its result is h C + D x. Source: Gu and Dao, "Mamba", 2023.
    """
    given = x.dtype
    x, dt, B, C = _wide(plan, x=x, dt=dt, B=B, C=C)
    decays = dt.unsqueeze(-1) * A.to(x.dtype)
    states = recur(plan, _Elementwise(), (decays, (dt * x).unsqueeze(-1) * B.unsqueeze(1)))
    out = torch.einsum("rcn,rn->rc", states, C)
    return (out if D is None else out + D * x).to(given)


def rg_lru(plan: BoundPlan, x: torch.Tensor, log_a: torch.Tensor) -> torch.Tensor:
    """The recurrence of RG-LRU: x, gated and normalised, and log_a [rows, channels] -> like x. h
    becomes exp(log_a) h + x, which is the result. Source: De et al., "Griffin", 2024.
    """
    given = x.dtype
    x, log_a = _wide(plan, x=x, log_a=log_a)
    return recur(plan, _Elementwise(), (log_a, x)).to(given)
