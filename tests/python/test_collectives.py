# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch
import torch.distributed as dist

from magi_attention.comm import WorkWithPostProcessFn
from magi_attention.comm.functional import all_gather_fwd_scatter_bwd, scatter_fwd_all_gather_bwd
from magi_attention.comm.primitive import all_gather_v, scatter_v
from ranks import over, refuses


@over(1, 3)
def test_parts(group):
    """Gathering and scattering are each other's inverse and gradient, along any axis."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    sizes = [3 + 2 * index for index in range(size)]
    for dim in (0, 1, -1):
        shape = [4, 5, 6]
        shape[dim] = sum(sizes)
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        own = whole.split(sizes, dim)[rank]
        assert torch.equal(scatter_v(whole, group, dim, sizes), own)
        assert torch.equal(all_gather_v(own, group, dim, sizes), whole)
        leaf = own.clone().requires_grad_()
        (all_gather_fwd_scatter_bwd(leaf, group, dim, sizes) * whole).sum().backward()
        assert torch.equal(leaf.grad, own)
        leaf = whole.clone().requires_grad_()
        (scatter_fwd_all_gather_bwd(leaf, group, dim, sizes) * own).sum().backward()
        assert torch.equal(leaf.grad, whole)
    rows = torch.arange(2 * size)
    assert torch.equal(all_gather_v(scatter_v(rows, group), group), rows)
    wrong = f"x_local has length 2 in axis 0; allowed: {sizes[rank]}"
    refuses(lambda: all_gather_v(rows[:2], group, 0, sizes), ValueError, wrong)
    refuses(lambda: scatter_v(rows, group, 0, [1] * size), ValueError, "split_sizes adds up to")
    refuses(lambda: scatter_v(rows, group, 0, [1] * (size + 1)), ValueError, "split_sizes has")
    if size > 1:
        refuses(lambda: scatter_v(rows[1:], group), ValueError, f"a multiple of {size} without")


@over(1, 3)
def test_works(group):
    """A call of torch.distributed under way, with what is to be done after it."""
    size = dist.get_world_size(group)
    for async_op in (False, True):
        x = torch.ones(3)
        started = WorkWithPostProcessFn(
            work=dist.all_reduce(x, group=group, async_op=True),
            post_process_fn=lambda y, factor=1: y * factor,
            async_op=async_op,
        )
        found = started.wait_post_process(x, factor=2)
        assert torch.equal(found, torch.full((3,), 2.0 * size))
        refuses(lambda: started.wait_post_process(x), RuntimeError, "called before")
    assert WorkWithPostProcessFn().wait_post_process() is None
    parts = [dist.all_reduce(torch.ones(1), group=group, async_op=True) for _ in range(2)]
    assert WorkWithPostProcessFn(parts).wait_post_process() is None
    for wrong in (3, [None, "work"]):
        refuses(lambda: WorkWithPostProcessFn(wrong), TypeError, "allowed: what has wait()")
