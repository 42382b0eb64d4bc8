# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and convolutions as functions of a bound plan and a rank's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from magi_attention.common._arguments import check_int
from magi_attention.plan import BoundPlan
from magi_attention.recurrent import _fla
from magi_attention.recurrent._kinds import Delta, Elementwise, Scalar
from magi_attention.recurrent._recurrence import check, recur, widened
from magi_attention.recurrent._rows import fetch_rows, tied
from magi_attention.recurrent._table import Halo, table_of

_ACTIVATIONS = {None: None, "silu": F.silu, "swish": F.silu}


def _check_groups(plan: BoundPlan, names: str, groups: int, heads: int) -> None:
    """ValueError for heads that cannot serve as many others each; other ranks are told."""
    with plan.rows.refusals():
        if groups == 0 or heads % groups:
            raise ValueError(f"{names} have {groups} heads for {heads}; allowed: a divisor of them")


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
    check(plan, x=(x, "rows channels"), weight=(weight, "channels width"), bias=(bias, "channels"))
    with plan.rows.refusals():
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}; allowed: None, 'silu', 'swish'")
        before = check_int("the width of weight", weight.shape[1], 1) - 1
    table = table_of(plan)
    if _fla.serves(x):
        halo = table.halo(before, x.device) if before and table.moves_states else None
        layer = _fla.Convolution(activation, table.own_runs, halo)
        return layer(x, weight.to(x.dtype).contiguous(), bias)
    halo, others = _fetched(plan, x, before)
    if len(table.own_runs) == 0:  # no rows: others wait for this rank's part of the backward, and
        found = x * weight[:, 0]  # all have gradients of the parameters
        return tied((found if bias is None else found + bias).to(x.dtype), others)
    halos = _halos(x, halo, others)
    parts = [part for pair in zip(halos, x.split(table.own_runs.lengths)) for part in pair]
    whole = torch.cat(parts).to(weight.dtype).T.unsqueeze(0)
    found = F.conv1d(whole, weight.unsqueeze(1), bias, groups=x.shape[1])[0].T
    lengths = [n for length in table.own_runs.lengths for n in (length, before)][:-1]
    found = tied(torch.cat(found.split(lengths)[::2]), others)
    act = _ACTIVATIONS[activation]
    return (found if act is None else act(found)).to(x.dtype)


def _fetched(plan: BoundPlan, x: torch.Tensor, width: int) -> tuple[Halo, torch.Tensor]:
    """The halo of the own runs, and the rows of other ranks in it."""
    table = table_of(plan)
    halo = table.halo(width, x.device)
    return halo, fetch_rows(halo.fetch, x[halo.sent]) if table.moves_states else x[:0]


def _halos(x: torch.Tensor, halo: Halo, others: torch.Tensor) -> torch.Tensor:
    """[own runs, width, ...]: the rows before each run, zeros before a document."""
    return torch.cat((x, others, x.new_zeros((1, x.shape[1]))))[halo.places]


@torch.compiler.disable
def windows(
    plan: BoundPlan, x: torch.Tensor, width: int, layer: Callable[[torch.Tensor], Any]
) -> list[Any]:
    """The results of a layer whose rows depend on `width` rows before them, run by run: layer takes
    x of a run [rows, channels] with what there is before it, up to width rows, and gives tensors
    [1, rows, ...] of which those of the run are kept.
    """
    check(plan, x=(x, "rows channels"))
    with plan.rows.refusals():
        check_int("width", width, 0)
    table = table_of(plan)
    given, others = _fetched(plan, x, width)
    if len(table.own_runs) == 0:
        return [tuple(tied(part, others) for part in layer(x))]
    halos = _halos(x, given, others)
    found = []
    for rows, halo, known in zip(x.split(table.own_runs.lengths), halos, given.known):
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
    return _delta(plan, q, k, v, (g, "rows heads"), beta, scale)


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
    return _delta(plan, q, k, v, (g, "rows heads dim_k"), beta, scale)


def _delta(plan, q, k, v, gate: tuple[torch.Tensor, str], beta, scale):
    """gate: g and its shape in words."""
    keys = "rows key_heads dim_k"
    check(
        plan, v=(v, "rows heads dim_v"), k=(k, keys), q=(q, keys), g=gate, beta=(beta, "rows heads")
    )
    _check_groups(plan, "q and k", k.shape[1], v.shape[1])
    g = gate[0] if gate[0].dim() == 3 else gate[0].unsqueeze(-1)
    scale = k.shape[2] ** -0.5 if scale is None else scale
    if _fla.serves(v) and _fla.serves_keys(k):
        kernels = _fla.DeltaKernels(scale)
        return recur(plan, kernels, (q.to(v.dtype), k.to(v.dtype), v, g, beta))
    return recur(plan, Delta(scale), (q, k, v, g, beta)).to(v.dtype)


def lightning(
    plan: BoundPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor
) -> torch.Tensor:
    """Lightning attention: q, k [rows, heads, dim_k], v [rows, heads, dim_v], log_decay [heads] ->
    like v. S becomes exp(log_decay) S + k v^T, and the result is S^T q. Source: Qin et al.,
    "Lightning attention-2", 2024.
    """
    keys = "rows heads dim_k"
    check(plan, v=(v, "rows heads dim_v"), k=(k, keys), q=(q, keys), log_decay=(log_decay, "heads"))
    decays = widened(log_decay)[0].expand(q.shape[0], -1)
    return _with_scalar_decay(plan, q, k, v, decays)


def _with_scalar_decay(plan, q, k, v, log_decay):
    if _fla.serves(v):
        return recur(plan, _fla.ScalarKernels(), (q.to(v.dtype), k.to(v.dtype), v, log_decay))
    return recur(plan, Scalar(), (q, k, v, log_decay)).to(v.dtype)


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
    check(
        plan, x=(x, "rows heads dim"), dt=(dt, "rows heads"), A=(A, "heads"),
        B=(B, "rows groups state"), C=(C, "rows groups state"), D=(D, "heads"),
    )  # fmt: skip
    _check_groups(plan, "B and C", B.shape[1], x.shape[1])
    repeats = x.shape[1] // B.shape[1]
    B, C = (y.repeat_interleave(repeats, 1) for y in (B, C))
    wide, dt, A = widened(x, dt, A)
    added = (wide * dt.unsqueeze(-1)).to(x.dtype) if _fla.serves(x) else wide * dt.unsqueeze(-1)
    out = _with_scalar_decay(plan, C, B, added, A * dt)
    return (out if D is None else out + D.unsqueeze(-1) * wide).to(x.dtype)


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
    given, of_rows = x.dtype, "rows channels"
    check(
        plan, x=(x, of_rows), dt=(dt, of_rows), A=(A, "channels state"), B=(B, "rows state"),
        C=(C, "rows state"), D=(D, "channels"),
    )  # fmt: skip
    x, dt, A, B, C = widened(x, dt, A, B, C)
    decays = dt.unsqueeze(-1) * A
    found = recur(plan, Elementwise(), (decays, (dt * x).unsqueeze(-1) * B.unsqueeze(1)))
    out = (found * C.unsqueeze(1)).sum(-1)  # no product of matrices, which autocast would narrow
    return (out if D is None else out + D * x).to(given)


def rg_lru(plan: BoundPlan, x: torch.Tensor, log_a: torch.Tensor) -> torch.Tensor:
    """The recurrence of RG-LRU: x, gated and normalised, and log_a [rows, channels] -> like x. h
    becomes exp(log_a) h + x, which is the result. Source: De et al., "Griffin", 2024.
    """
    check(plan, x=(x, "rows channels"), log_a=(log_a, "rows channels"))
    return recur(plan, Elementwise(), (log_a, x)).to(x.dtype)
