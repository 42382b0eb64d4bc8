# SPDX-License-Identifier: Apache-2.0
"""Cases about what is sent, on torch's default device."""

from __future__ import annotations

import torch
import torch.distributed as dist

from magi_attention import api
from magi_attention.common import AttnRanges


def causal_plan(group, rows: int) -> api.Plan:
    ranges = AttnRanges.from_ranges([(0, rows)])
    return api.Plan.from_ranges(
        ranges, ranges, "causal", rows, cp_size=dist.get_world_size(group), num_heads_q=4,
        num_heads_kv=2, head_dim=64,
    )  # fmt: skip


def leaves(bound) -> list[torch.Tensor]:
    """q, k, v of one rank."""
    shapes = ((bound.local_rows, heads, 64) for heads in (4, 2, 2))
    return [torch.randn(shape, dtype=torch.bfloat16).requires_grad_() for shape in shapes]


def bytes_are_the_plans(group, rows: int) -> None:
    """Forward moves what the plan says, all ranks together; backward that and float32 partials."""
    plan = causal_plan(group, rows)
    bound = plan.bind(group)

    def sent(name: str = "bytes_to_peer") -> int:
        """Of the communicator, which may have served other plans."""
        total = torch.tensor(bound.communicator.counters()[name]).sum()
        dist.all_reduce(total, group=group)
        return total.item()

    bytes_before, size = sent(), dist.get_world_size(group)
    casts, reduces = sent("casts"), sent("reduces")
    out, _ = bound.calc_attn(*leaves(bound))
    assert sent() - bytes_before == plan.report.total_bytes > 0
    assert sent("casts") - casts == size * (plan.report.num_waves - 1)
    out.sum().backward()
    assert sent() - bytes_before == 4 * plan.report.total_bytes
    assert sent("reduces") - reduces == size * (plan.report.num_waves - 1)


def memory_is_torchs(group, rows: int) -> None:
    """The rows that a call receives lie in memory of torch's caching allocator, all of which is
    given back; attention that leaves other multiprocessors to exchanges gives the same bits.
    """
    plan, rank = causal_plan(group, rows), dist.get_rank(group)
    bound = plan.bind(group)
    qkv = leaves(bound)
    received = plan.report.remote_rows[rank] * 2 * (64 + 64) * 2  # heads, k and v, bytes
    allocate, sizes = torch.cuda.caching_allocator_alloc, []

    def recorded(size, device=None, stream=None):
        sizes.append(size)
        return allocate(size, device, stream)

    torch.cuda.caching_allocator_alloc = recorded
    try:
        out, _ = bound.calc_attn(*qkv)
        torch.autograd.grad(out.sum(), qkv)  # what is kept for later calls is there from now on
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        sizes.clear()
        out, _ = bound.calc_attn(*qkv)
        assert sum(sizes) >= received > 0
        assert torch.cuda.max_memory_allocated() - before >= received
        torch.autograd.grad(out.sum(), qkv)
        del out
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() <= before
    finally:
        torch.cuda.caching_allocator_alloc = allocate
    other = plan.bind(group, exchange_sms=0)
    assert torch.equal(other.calc_attn(*qkv)[0], bound.calc_attn(*qkv)[0])
