# SPDX-License-Identifier: Apache-2.0
"""Cases of wrong arguments that need a process group; every rank runs them."""

from __future__ import annotations

import os
import re

import torch
import torch.distributed as dist
from pipeline_cases import Case, make_key, make_tensors

import dense
from magi_attention import api
from magi_attention.common import AttnRanges


def refuses(call, error: type, pattern: str) -> None:
    """call raises exactly this kind of error, with a message that matches."""
    try:
        call()
    except error as raised:
        assert re.search(pattern, str(raised)), f"{raised!r} does not match {pattern!r}"
    else:
        raise AssertionError(f"nothing was raised; expected {error.__name__} {pattern!r}")


def key_with(group, **changes):
    ranges = AttnRanges.from_ranges([(0, 64)])
    arguments = {
        "q_ranges": ranges, "k_ranges": ranges, "attn_mask_type": "causal",
        "total_seqlen_q": 64, "total_seqlen_k": 64, "num_heads_q": 4, "num_heads_kv": 2,
        "head_dim": 8, "cp_group_or_mesh": group, **changes,
    }  # fmt: skip
    return api.magi_attn_flex_key(**arguments)


def bad_keys(group) -> None:
    key_with(group)
    outside = AttnRanges.from_ranges([(0, 65)])
    two = AttnRanges.from_ranges([(0, 9), (9, 64)])
    for changes, error, pattern in (
        ({"q_ranges": outside}, ValueError, r"q_ranges.*65"),
        ({"k_ranges": outside}, ValueError, r"k_ranges.*65"),
        ({"q_ranges": two}, ValueError, "k_ranges has 1 entries; allowed: 2"),
        ({"q_ranges": [(0, 64)]}, TypeError, "q_ranges is a list"),
        ({"attn_mask_type": "casual"}, ValueError, "attn_mask_type is 'casual'"),
        ({"attn_mask_type": ["full"] * 2}, ValueError, "attn_mask_type has 2"),
        ({"total_seqlen_k": 63}, ValueError, "total_seqlen_k is 63; allowed: 64"),
        ({"num_heads_q": 3}, ValueError, "heads"),
        ({"head_dim": 0}, ValueError, "head_dim"),
        ({"cp_group_or_mesh": "world"}, TypeError, "cp_group_or_mesh is a str"),
        ({"cp_group_or_mesh": None}, TypeError, "cp_group_or_mesh"),
        ({"is_same_source": False}, NotImplementedError, "is_same_source=False"),
        ({"is_q_permutable": False}, NotImplementedError, "is_q_permutable=False"),
        ({"is_k_permutable": False}, NotImplementedError, "is_k_permutable=False"),
        ({"color": 1}, TypeError, "unexpected keyword argument 'color'"),
    ):
        refuses(lambda: key_with(group, **changes), error, pattern)
    refuses(lambda: api.magi_attn_varlen_key(
        torch.tensor([0, 9, 5]), torch.tensor([0, 9, 5]), 4, 2, 8, cp_group_or_mesh=group
    ), ValueError, "cu_seqlens")  # fmt: skip
    bounds = torch.tensor([0, 63])
    refuses(lambda: api.make_varlen_key_for_new_mask_after_dispatch(
        bounds, bounds, key_with(group)
    ), ValueError, "cu_seqlens_q ends at 63; allowed: 64")  # fmt: skip
    api.clear_cache(group)


def bad_tensors(group) -> None:
    """Refused before anything is sent: the group still works after."""
    case = Case(rows=64, heads=(4, 2), head_dim=8)
    key = make_key(dense.masks(64)["causal"], case, group)
    q, k, v, *_ = make_tensors(case)
    q, k, v = (api.dispatch(t, key) for t in (q, k, v))
    rows = q.shape[0]
    for tensors, error, pattern in (
        ((q[1:], k, v), ValueError, f"q has {rows - 1} rows; allowed: {rows}"),
        ((q, k[1:], v[1:]), ValueError, f"k has {rows - 1} rows; allowed: {rows}"),
        ((q, k, v[1:]), ValueError, "v has"),
        ((q[:, :2], k, v), ValueError, r"q.shape is .*allowed"),
        ((q, k[:, :1], v[:, :1]), ValueError, r"k.shape is .*allowed"),
        ((q.float(), k, v), TypeError, "k.dtype is torch.float64; allowed: torch.float32"),
        ((q.int(), k.int(), v.int()), TypeError, "q.dtype is torch.int32"),
        ((q.flatten(1), k, v), ValueError, "q has 2 axes; allowed: 3"),
        ((q[..., ::2], k[..., ::2], v[..., ::2]), ValueError, "q has stride 2 in its last axis"),
        ((q.to("meta"), k, v), RuntimeError, "q is on meta"),
    ):
        refuses(lambda: api.calc_attn(*tensors, key), error, pattern)
    refuses(lambda: api.calc_attn(q, k, v, "key"), TypeError, "key is a str")
    refuses(lambda: api.dispatch(q, "key"), TypeError, "key is a str")
    refuses(lambda: api.dispatch(torch.zeros(63), key), ValueError, r"x has shape \[63\]")
    refuses(lambda: api.undispatch(torch.zeros(rows + 1, 2), key), ValueError, "x has shape")
    refuses(lambda: api.roll(torch.zeros(rows + 1), 1, 0, key), ValueError, "x has shape")
    refuses(lambda: api.calc_attn(q, k, v, key, softcap=float("nan")), ValueError, "softcap is nan")
    refuses(lambda: api.calc_attn(q, k, v, key, torch.zeros(1, 3)), ValueError, "sink has shape")
    assert api.calc_attn(q, k, v, key)[0].isfinite().all()
    api.clear_cache(group)


def bad_groups(group) -> None:
    """Runs on all four ranks: groups without this rank, of another plan, or destroyed."""
    from torch.distributed.device_mesh import init_device_mesh

    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    empty = dist.new_group([0, 1])
    if rank > 1:
        refuses(lambda: key_with(pair), TypeError, "cp_group_or_mesh")
    else:
        key = key_with(pair)
        refuses(lambda: api.get_most_recent_key(empty), ValueError, "cp_group has no key")
        plan = api.dist_attn_runtime_dict_mgr.get(key).plan
        refuses(lambda: plan.bind(group), ValueError, "cp_group has 4 ranks; allowed: 2")
        q, kv = torch.zeros(key._place[1], 4, 8), torch.zeros(key._place[1], 2, 8)
        api.calc_attn(q, kv, kv, key)
        dist.barrier(pair)
        dist.destroy_process_group(pair)
        refuses(lambda: api.calc_attn(q, kv, kv, key), RuntimeError, "cp_group of rank . was des")
        refuses(lambda: key_with(pair, head_dim=16), RuntimeError, "cp_group is not usable")
    mesh = init_device_mesh("cpu", (1, 2, 2))
    refuses(lambda: key_with(mesh), ValueError, "has 3 dimensions; allowed: 1 or 2")
    api.clear_cache()


def bad_environment(group) -> None:
    for variables, error, pattern in (
        ({"QO_COMM": "1"}, NotImplementedError, "MAGI_ATTENTION_QO_COMM"),
        ({"KERNEL_BACKEND": "fa4"}, NotImplementedError, "MAGI_ATTENTION_KERNEL_BACKEND=fa4"),
        ({"HIERARCHICAL_COMM": "1"}, ValueError, "MAGI_ATTENTION_HIERARCHICAL_COMM"),
        ({"HIERARCHICAL_COMM": "1", "NATIVE_GRPCOLL": "1"}, ValueError, "NATIVE_GRPCOLL"),
        ({"PRECISION": "fp8"}, ValueError, "MAGI_ATTENTION_PRECISION is 'fp8'"),
    ):
        named = {"MAGI_ATTENTION_" + name: value for name, value in variables.items()}
        os.environ.update(named)
        try:
            refuses(lambda: key_with(group), error, pattern)
        finally:
            for name in named:
                del os.environ[name]
    key_with(group)
    api.clear_cache(group)
