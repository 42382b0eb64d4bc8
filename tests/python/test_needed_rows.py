# SPDX-License-Identifier: Apache-2.0
"""Rows that a plan's mask lets a rank see: which come, their gradients, and the mask over them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from magi_attention import masks
from magi_attention.config import DispatchConfig, DistAttnConfig
from magi_attention.plan import Plan
from ranks import over, refuses

ROWS = 150
CASES = ["causal", "window", "documents", "tree"]


def mask_of(name: str):
    if name == "causal":
        return masks.from_cu_seqlens([0, ROWS])
    if name == "window":
        return masks.from_window(ROWS, 30, 4)
    if name == "documents":
        return masks.from_cu_seqlens([0, 20, 21, 90, ROWS])
    return masks.from_tree([-1, 0, 0, 1, 1], [30, 40, 20, 35, 25])


def bound_of(group, name: str, **options):
    config = DistAttnConfig(dispatch_config=DispatchConfig(chunk_size=16))
    options = options or {"config": config}
    plan = Plan.from_mask(
        mask_of(name), cp_size=group.size(), num_heads_q=4, num_heads_kv=4, head_dim=8, **options
    )
    return plan.bind(group)


@over(1, 2, 4)
@pytest.mark.parametrize("name", CASES)
def test_rows_and_their_gradients(group, name: str):
    """A rank gets what its queries see, each row once; owners get the sums of all ranks."""
    bound = bound_of(group, name)
    needed, ids = bound.needed_keys, bound.needed_position_ids
    x = torch.randn(ROWS, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    local = bound.dispatch(x).requires_grad_()
    found = bound.gather_needed(local)
    valid = bound.rows.num_valid
    is_padding = (torch.arange(len(ids)) >= valid) & (torch.arange(len(ids)) < bound.local_rows)
    assert torch.equal(found[~is_padding], x[ids[~is_padding]])
    received = ids[bound.local_rows :].tolist()
    assert received == sorted(set(received) - set(needed.own_ids.tolist()))
    visible = masks.to_matrix(mask_of(name))
    seen = visible[needed.own_ids].any(0).nonzero().flatten().tolist()
    assert set(received) == set(seen) - set(needed.own_ids.tolist())
    matrix = masks.to_matrix(masks.Mask(needed.mask(bound.local_rows)))
    wanted = visible[needed.own_ids][:, ids] & ~is_padding
    assert torch.equal(matrix[:valid], wanted) and not matrix[valid:].any()

    weight = (bound.rank + 1.0) * torch.arange(1, ROWS + 1, dtype=torch.float64)
    (found.sum((1, 2)) * weight[ids] * ~is_padding).sum().backward()
    parts = [None] * group.size()
    dist.all_gather_object(parts, ids[~is_padding], group)
    total = torch.zeros(ROWS, dtype=torch.float64)
    for rank, of_rank in enumerate(parts):
        total[of_rank] += (rank + 1.0) * torch.arange(1, ROWS + 1, dtype=torch.float64)[of_rank]
    back = bound.undispatch(local.grad)
    assert torch.equal(back, total.view(-1, 1, 1).expand_as(x))


@over(2, 4)
def test_gradients_travel_in_their_type(group):
    """Half of the bytes of float32, for its sums, rounded once."""
    bound = bound_of(group, "causal")
    weight = torch.randn(len(bound.needed_position_ids), 8).bfloat16()
    sent, found = [], []
    for dtype in (torch.bfloat16, torch.float32):
        local = bound.dispatch(torch.ones(ROWS, 8, dtype=dtype)).requires_grad_()
        before = sum(bound.communicator.counters()["bytes_to_peer"])
        (bound.gather_needed(local) * weight.to(dtype)).sum().backward()
        sent.append(sum(bound.communicator.counters()["bytes_to_peer"]) - before)
        found.append(local.grad)
    assert 2 * sent[0] == sent[1] > 0 and torch.equal(found[0], found[1].bfloat16())


@over(2)
def test_plans_that_move_anything(group):
    """What comes is the mask's, whatever the plan itself moves, types that the library does not
    move, and rows without padding.
    """
    x = torch.arange(ROWS)
    for options in ({"work": "queries"}, {"work": "heads"}, {"overlap": 3}):
        bound = bound_of(group, "causal", **options)
        valid = bound.rows.num_valid
        for dtype in (torch.int32, torch.uint8, torch.bfloat16):
            found = bound.gather_needed(bound.dispatch(x.to(dtype))[:valid])
            assert torch.equal(found, x[bound.needed_keys.ids(valid)].to(dtype))
    bound.gather_needed(bound.dispatch(x.double()).requires_grad_()).add_(1)  # is no view
    wrong = torch.zeros(bound.local_rows + 1, 2)
    refuses(lambda: bound.gather_needed(wrong), ValueError, "this rank's rows")
