# SPDX-License-Identifier: Apache-2.0
"""Groups that torch.distributed has destroyed are let go of, with their threads and descriptors."""

from __future__ import annotations

import gc
import os
import resource
import weakref

import pytest
import torch
import torch.distributed as dist

from magi_attention import api
from magi_attention.comm.primitive.grpcoll import group_cast
from magi_attention.errors import CommError
from magi_attention.integrations import packed
from ranks import over, own_group, refuses
from test_errors import key_with

GROUPS = 60  # of 5 descriptors and 4 threads each and more, where nothing lets go of them
DESCRIPTORS = 256


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def use(group):
    """Attention with a key of the group, and a collective without one: the key, and attention."""
    key = key_with(group)
    q = torch.zeros(key._local_shape.rows, 4, 8)
    api.calc_attn(q, q[:, :2], q[:, 2:], key)
    rank = dist.get_rank(group)
    sizes = ([64], [64], [[rank]], [rank])
    group_cast(torch.zeros(64, 1), None, *sizes, group).wait_post_process()
    return key, lambda: api.calc_attn(q, q[:, :2], q[:, 2:], key)


def end(group) -> None:
    dist.barrier(group)
    dist.destroy_process_group(group)


@over(2)
@pytest.mark.parametrize("keeps", [False, True], ids=["keys_dropped", "keys_kept"])
def test_many_groups(group, keeps: bool):
    """More groups than the descriptors of a process allow at once; keeps: with their keys kept."""
    kept, counts = [], []
    api.clear_cache()
    gc.collect()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, before[1]))
    try:
        for _ in range(GROUPS):
            pair = own_group([0, 1])
            kept.append((*use(pair), api.dist_attn_runtime_dict_mgr.communicator(pair)))
            if not keeps:
                kept.clear()
            end(pair)
            del pair
            counts.append(descriptors())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    # One may be open for a moment, of a connection that is being made.
    assert min(counts[-3:]) <= max(counts[:3]), counts
    assert len(api.dist_attn_runtime_dict_mgr.keys()) == 1
    for _, attend, *_ in kept[:-1]:
        refuses(attend, RuntimeError, "cp_group of .* was destroyed; allowed: a live")


@over(2)
def test_held_in_other_ways(group):
    """A bound plan, an autograd graph and a communicator do not keep a destroyed group alive, and
    what is left of them says that it is gone instead of taking the default group.
    """
    pair = own_group([0, 1])
    key, attend = use(pair)
    plan = api.dist_attn_runtime_dict_mgr[key].plan
    bound = plan.bind(pair)
    q = torch.zeros(bound.local_rows, 4, 8, requires_grad=True)
    out, _ = bound.calc_attn(q, q[:, :2], q[:, 2:])
    lists = torch.zeros(bound.local_rows, 2, 1, dtype=torch.int32)
    chosen, _ = bound.calc_sparse_attn(q, q[:, :2], q[:, 2:], lists)
    packed.set_active_cp_group(pair)
    end(pair)
    gone = weakref.ref(pair)
    del pair
    other = own_group([0, 1])
    use(other)
    assert gone() is None
    refuses(attend, RuntimeError, "cp_group of .* was destroyed; allowed: a live")
    refuses(lambda: api.dispatch(torch.zeros(64), key), RuntimeError, "cp_group of key was destr")
    for call in (
        lambda: bound.calc_attn(q, q[:, :2], q[:, 2:]),
        lambda: bound.undispatch(q),
        lambda: bound.roll(q, 1),
        lambda: out.sum().backward(),
    ):
        refuses(call, CommError, "cp_group of rank . was destroyed; allowed: a live group")
    for call in (
        lambda: bound.calc_sparse_attn(q, q[:, :2], q[:, 2:], lists),
        lambda: chosen.sum().backward(),
    ):
        refuses(call, RuntimeError, "cp_group of the plan was destroyed; allowed: a live group")
    active = packed.make_magi_attn_func()
    refuses(lambda: active(q, q[:, :2], q[:, 2:]), RuntimeError, "cp_group was destroyed; allowed")
    packed.set_active_cp_group(None)
    assert bound.position_ids.shape == (bound.local_rows,)
    assert repr(key) and key != key_with(other)
    end(other)


@over(2)
def test_keys_of_living_groups_stay(group):
    """Also where groups of the same ranks share their keys."""
    first, second = own_group([0, 1]), own_group([0, 1])
    (kept, attend), (lost, _) = use(first), use(second)
    end(second)
    del second
    third = own_group([0, 1])
    key, _ = use(third)
    assert set(api.dist_attn_runtime_dict_mgr.keys()) == {kept, key}
    assert api.dist_attn_runtime_dict_mgr.get(lost) is None
    attend()
    assert api.get_most_recent_key(first) is kept
    assert key_with(first) is kept
    end(first)
    end(third)
