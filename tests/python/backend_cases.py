# SPDX-License-Identifier: Apache-2.0
"""A backend made of plain torch operations, and a case that every rank runs on it."""

from __future__ import annotations

import contextlib
import math

import torch

import dense
from magi_attention import Plan, backends
from pipeline_cases import TOLERANCE, Case, check_close, expected, make_tensors, visible_lse

NAME = "plain torch"
calls: list[str] = []  # what the library asked of it in this process


def prepare(problem: backends.Problem) -> torch.Tensor:
    """How many slices show each pair, [rows_q, rows_k]."""
    calls.append("backward plan" if problem.is_backward else "forward plan")
    rows_q, rows_k = problem.q_shape[0], problem.k_shape[0]
    counts = torch.zeros(rows_q, rows_k, dtype=torch.float64, device=problem.device)
    i = torch.arange(rows_q, device=problem.device)[:, None]
    j = torch.arange(rows_k, device=problem.device)[None, :]
    for q0, q1, k0, k1, low, high in problem.slices.tolist():
        inside = (q0 <= i) & (i < q1) & (k0 <= j) & (j < k1)
        counts += inside & (low <= j - i) & (j - i <= high)
    return counts


def _wide(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """In float64, each head as often as query heads read it."""
    return tensor.double().repeat_interleave(heads // tensor.shape[1], 1)


def _logits(counts, inputs: backends.Inputs) -> torch.Tensor:
    """[heads_q, rows_q, rows_k]."""
    k = _wide(inputs.k, inputs.q.shape[1])
    return torch.einsum("qhd,khd->hqk", inputs.q.double(), k) * inputs.softmax_scale + counts.log()


def forward(counts, inputs: backends.Inputs, result: backends.Result) -> None:
    calls.append("forward")
    logits = _logits(counts, inputs)
    lse = (
        torch.logsumexp(logits, -1)
        if logits.shape[2]
        else logits.new_full(logits.shape[:2], -math.inf)
    )
    weights = torch.exp(logits - lse.masked_fill(lse.isneginf(), 0.0).unsqueeze(-1))
    out = torch.einsum("hqk,khd->qhd", weights, _wide(inputs.v, inputs.q.shape[1]))
    result.out.copy_(out)
    result.lse.copy_(lse.T)


def backward(counts, inputs: backends.Inputs, result: backends.Result, gradients) -> None:
    calls.append("backward")
    heads = inputs.q.shape[1]
    lse = result.lse.double().T.masked_fill(result.lse.T.isneginf(), 0.0)
    weights = torch.exp(_logits(counts, inputs) - lse.unsqueeze(-1))
    dout = gradients.dout.double()
    drop = (dout * result.out.double()).sum(-1).T  # what normalisation takes from each weight
    if gradients.dlse is not None:
        drop = drop - gradients.dlse.double().T
    dweights = torch.einsum("qhd,khd->hqk", dout, _wide(inputs.v, heads))
    dlogits = weights * (dweights - drop.unsqueeze(-1)) * inputs.softmax_scale
    dq = torch.einsum("hqk,khd->qhd", dlogits, _wide(inputs.k, heads))
    dk = torch.einsum("hqk,qhd->khd", dlogits, inputs.q.double())
    dv = torch.einsum("hqk,qhd->khd", weights, dout)

    def per_kv_head(tensor, like):
        return tensor.view(tensor.shape[0], like.shape[1], -1, tensor.shape[2]).sum(2)

    gradients.dq.copy_(dq)
    gradients.dk.copy_(per_kv_head(dk, inputs.k))
    gradients.dv.copy_(per_kv_head(dv, inputs.v))


@contextlib.contextmanager
def registered(limits: backends.Limits | None = None, **functions):
    """Inside, the backend is there, with other functions where they are given."""
    given = {"forward": forward, "backward": backward, "prepare": prepare, **functions}
    backends.register(NAME, limits=limits or backends.Limits(has_dlse=True), **given)
    try:
        yield
    finally:
        backends.unregister(NAME)


def make_plan(mask: dense.Mask, case: Case, size: int) -> Plan:
    return Plan.from_ranges(
        *mask.ranges(), mask.rows_q, cp_size=size, num_heads_q=case.heads[0],
        num_heads_kv=case.heads[1], head_dim=case.head_dim, config=case.config(),
    )  # fmt: skip


def attend(bound, case: Case, tensors, device: str = "cpu"):
    """out, lse and the gradients of q, k, v of the whole sequence."""
    q, k, v, _, dout, dlse = (
        None if t is None else t.to(device, getattr(torch, case.dtype)) for t in tensors
    )
    whole = [t.clone().requires_grad_() for t in (q, k, v)]
    out, meta = bound.calc_attn(*(bound.dispatch(t) for t in whole))
    full = bound.undispatch(out)
    loss = (full * dout).sum()
    if case.with_lse_gradient:
        lse = bound.undispatch(meta.lse)
        loss = loss + (lse * dlse.to(lse.dtype))[lse.isfinite()].sum()
    loss.backward()
    return full.detach(), bound.undispatch(meta.lse).detach(), [t.grad for t in whole]


def runs_a_plan(group, case: Case, tolerance: float = TOLERANCE, device: str = "cpu") -> None:
    """Forward and backward over the group on the backend, against dense float64 attention."""
    mask = dense.masks(case.rows)[case.mask]
    tensors = make_tensors(case)
    with registered():
        calls.clear()
        size = 1 if group is None else group.size()
        bound = make_plan(mask, case, size).bind(group, backend=NAME)
        out, lse, gradients = attend(bound, case, tensors, device)
    assert {"forward plan", "forward", "backward plan", "backward"} <= set(calls)
    out, lse, gradients = out.cpu(), lse.cpu(), [gradient.cpu() for gradient in gradients]
    wanted_out, wanted_lse, _, wanted = expected(mask, case, tensors)
    check_close("out", out, wanted_out, tolerance)
    check_close("lse", visible_lse(lse), visible_lse(wanted_lse), tolerance)
    for name, found, gradient in zip(("dq", "dk", "dv"), gradients, wanted):
        check_close(name, found, gradient, tolerance)
