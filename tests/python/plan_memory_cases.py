# SPDX-License-Identifier: Apache-2.0
"""What the executor has taken for itself in host memory, beside what a plan says of GPUs."""

from __future__ import annotations

import ctypes

import torch

from magi_attention import api
from magi_attention._native.allocator import AttentionHandle
from magi_attention._native.library import check, lib
from magi_attention.common import AttnRanges
from magi_attention.plan import Plan
from magi_attention.plan_memory import memory_over_nvlink

HEADS_Q, HEADS, DIM = 8, 2, 64


def taken(group, rows: int, degree: int) -> tuple[int, int]:
    """(bytes that a backward took, bytes of received keys and of the sums that the plan tells)."""
    whole = AttnRanges.from_ranges([(0, rows)])
    config = api.DistAttnConfig(overlap_config=api.OverlapConfig(degree=degree))
    plan = Plan.from_ranges(
        whole, whole, "causal", rows, cp_size=group.size(), num_heads_q=HEADS_Q,
        num_heads_kv=HEADS, head_dim=DIM, config=config,
    )  # fmt: skip
    bound = plan.bind(group)
    generator = torch.Generator().manual_seed(bound.rank)
    q, k, v = (
        torch.randn(bound.local_rows, heads, DIM, generator=generator).bfloat16().requires_grad_()
        for heads in (HEADS_Q, HEADS, HEADS)
    )
    out = bound.calc_attn(q, k, v)[0]
    torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    sizes = []
    for handle in AttentionHandle.alive:
        if handle.plan is plan.handle:
            size = ctypes.c_size_t()
            check(lib.magi_attention_workspace_bytes(handle.address, ctypes.addressof(size)))
            sizes.append(size.value)
    keys = plan.report.remote_rows[bound.rank] * 2 * HEADS * DIM * 2
    return max(sizes), keys + memory_over_nvlink(plan)[bound.rank].backward
