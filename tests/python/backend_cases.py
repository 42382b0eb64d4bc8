# SPDX-License-Identifier: Apache-2.0
"""A backend made of plain torch operations, and a case that every rank runs on it."""

from __future__ import annotations

import json
import math

import torch

import dense
from magi_attention import Plan, backends
from magi_attention.common import AttnMaskType, AttnRanges
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


def register(limits: backends.Limits | None = None) -> None:
    if limits is None:
        limits = backends.Limits(has_dlse=True)
    backends.register(NAME, forward, backward, limits, prepare)


def make_plan(mask: dense.Mask, case: Case, size: int) -> Plan:
    return Plan.from_ranges(
        AttnRanges.from_ranges(mask.q_ranges),
        AttnRanges.from_ranges(mask.k_ranges),
        [AttnMaskType.from_int_type(kind) for kind in mask.types],
        mask.rows_q,
        cp_size=size,
        num_heads_q=case.heads[0],
        num_heads_kv=case.heads[1],
        head_dim=case.head_dim,
        config=case.config(),
    )


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
    register()
    try:
        calls.clear()
        size = 1 if group is None else group.size()
        bound = make_plan(mask, case, size).bind(group, backend=NAME)
        out, lse, gradients = attend(bound, case, tensors, device)
    finally:
        backends.unregister(NAME)
    assert {"forward plan", "forward", "backward plan", "backward"} <= set(calls)
    out, lse, gradients = out.cpu(), lse.cpu(), [gradient.cpu() for gradient in gradients]
    wanted_out, wanted_lse, _, wanted = expected(mask, case, tensors)
    check_close("out", out, wanted_out, tolerance)
    check_close("lse", visible_lse(lse), visible_lse(wanted_lse), tolerance)
    for name, found, gradient in zip(("dq", "dk", "dv"), gradients, wanted):
        check_close(name, found, gradient, tolerance)


def rows_are_aligned(group, case: Case) -> None:
    """Rows of every tensor that attention is given begin at multiples of 16 bytes, as loads of a
    GPU ask for; out and lse of received queries travel side by side only where that holds.
    """

    def check(*tensors: torch.Tensor) -> None:
        for tensor in tensors:
            assert tensor.stride(0) * tensor.element_size() % 16 == 0, tensor.stride()
            assert tensor.stride(1) * tensor.element_size() % 16 == 0, tensor.stride()
        calls.append("checked")

    def forward_checked(counts, inputs, result) -> None:
        check(inputs.q, inputs.k, inputs.v, result.out)
        forward(counts, inputs, result)

    def backward_checked(counts, inputs, result, gradients) -> None:
        check(inputs.q, inputs.k, inputs.v, result.out)
        backward(counts, inputs, result, gradients)

    mask = dense.masks(case.rows)[case.mask]
    limits = backends.Limits(has_dlse=True)
    calls.clear()
    backends.register(NAME, forward_checked, backward_checked, limits, prepare)
    try:
        bound = make_plan(mask, case, group.size()).bind(group, backend=NAME)
        assert any(len(rank["q"]) > 1 for rank in json.loads(bound.plan.to_json())["ranks"])
        attend(bound, case, make_tensors(case))
    finally:
        backends.unregister(NAME)
    assert calls.count("checked") > 2


def is_as_good_as_the_library(group, case: Case) -> None:
    """In 16 bits its error against float64 is that of the library's own backend."""
    mask = dense.masks(case.rows)[case.mask]
    tensors = make_tensors(case)
    rounded = tuple(
        None if t is None else t.to(getattr(torch, case.dtype)).double() for t in tensors
    )
    wanted = expected(mask, case, rounded)
    plan = make_plan(mask, case, group.size())
    register()
    try:
        supplied = attend(plan.bind(group, backend=NAME), case, tensors)
    finally:
        backends.unregister(NAME)
    own = attend(plan.bind(group), case, tensors)

    def errors(found):
        pairs = zip((found[0], *found[2]), (wanted[0], *wanted[3]))
        return [(a.double() - b).abs().max().item() for a, b in pairs]

    for mine, other in zip(errors(supplied), errors(own)):
        assert mine <= 2 * other + 1e-3


def refuses(group, limits: backends.Limits, message: str) -> None:
    """The limits hold on every rank, before rows move."""
    case = Case(head_dim=16)
    mask = dense.masks(case.rows)[case.mask]
    q, k, v, *_ = make_tensors(case)
    register(limits)
    try:
        bound = make_plan(mask, case, group.size()).bind(group, backend=NAME)
        try:
            bound.calc_attn(*(bound.dispatch(t) for t in (q, k, v)))
        except ValueError as error:
            assert message in str(error), error
            return
        raise AssertionError("what is beyond the limits was taken")
    finally:
        backends.unregister(NAME)
