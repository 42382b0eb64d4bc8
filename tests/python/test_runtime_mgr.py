# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

import dense
from magi_attention import api
from magi_attention.common import AttnMaskType, AttnRanges
from magi_attention.config import DispatchConfig, DistAttnConfig
from magi_attention.dist_attn_runtime_mgr import (
    DistAttnRuntimeMgr,
    init_dist_attn_runtime_key,
    init_dist_attn_runtime_mgr,
    init_grpcoll_buffer_mgr,
)
from magi_attention.functional import dist_attn_func, flex_flash_attn_func
from pipeline_cases import Case, make_key, make_tensors
from ranks import over, refuses


def make_manager(group, rows: int, chunk_size: int | None = None, **options) -> DistAttnRuntimeMgr:
    ranges = AttnRanges.from_ranges([(0, rows)])
    return init_dist_attn_runtime_mgr(
        ranges, ranges, "causal", rows, rows, 4, 2, 8, chunk_size, group, **options
    )


@over(1, 3)
def test_managers(group, rows: int = 70):
    """A manager made by hand gives what the key functions give."""
    case = Case(rows=rows, heads=(4, 2), head_dim=8)
    key = make_key(dense.masks(rows)["causal"], case, group)
    manager = make_manager(group, rows, dist_attn_config=case.config())
    assert manager == api.dist_attn_runtime_dict_mgr.get(key)
    q, k, v, *_ = make_tensors(case)
    local = [manager.dispatch_qo(q), manager.dispatch_kv(k), manager.dispatch_kv(v)]
    wanted, _ = api.calc_attn(*local, key)
    for out, meta in (manager.calc_attn(*local), dist_attn_func(*local, manager.bound)):
        assert torch.equal(out, wanted) and meta.lse.shape == wanted.shape[:2]
    sink = torch.zeros(local[0].shape[0], 1, 4, dtype=torch.float64)
    assert manager.calc_attn(*local, sink=sink)[0].shape == wanted.shape
    assert torch.equal(manager.undispatch_kv(local[1]), k)
    assert torch.equal(manager.undispatch_qo(manager.roll(local[0], 3, 0)), torch.roll(q, 3, 0))
    assert torch.equal(manager.roll_simple(local[0], 3, 0), manager.roll(local[0], 3, 0))
    assert torch.equal(manager.get_position_ids(), api.get_position_ids(key))
    refuses(lambda: manager.get_position_ids("query"), TypeError, "attn_role is a str")
    assert manager.dispatch_meta_q is manager.dispatch_meta_k is manager.attn_solver
    assert manager.dist_attn_runtime.plan is manager.plan and manager.is_same_source
    small = make_manager(group, rows, chunk_size=3)
    assert small.plan.chunk_size == 3 and small != manager
    other = make_manager(
        group, rows, ref_dispatch_meta_q=small.plan, ref_dispatch_meta_k=small.plan
    )
    assert other.plan.chunk_ranks == small.plan.chunk_ranks
    refuses(lambda: make_manager(group, rows, is_same_source=False), NotImplementedError, "is_same")
    refuses(lambda: make_manager(group, rows, ref_dispatch_meta_q=small.plan), ValueError,
            "ref_dispatch_meta_k")  # fmt: skip
    refuses(
        lambda: DistAttnRuntimeMgr(
            small.plan, manager.plan, DistAttnConfig(), manager.plan, manager.bound, 4, 2, 8, group,
            ref_q_ranges=AttnRanges(), ref_k_ranges=AttnRanges(),
        ), ValueError, "different plans",
    )  # fmt: skip
    assert init_grpcoll_buffer_mgr(None, None, None, api.GrpCollConfig(), group) is None


@over(1, 3)
def test_keys_by_hand(group):
    """A key made from its parts equals that of the key function."""
    case = Case(rows=64)
    key = make_key(dense.masks(64)["full"], case, group)
    arguments = (
        key.q_ranges, key.k_ranges, "full", key.total_seqlen_q, key.total_seqlen_k, *case.heads,
        case.head_dim, key.pad_size, key.chunk_size, group, None, case.config(),
    )  # fmt: skip
    made = init_dist_attn_runtime_key(*arguments)
    assert made == key and hash(made) == hash(key) and made is not key
    q = torch.zeros(64, 8, 16)
    assert torch.equal(api.dispatch(q, made), api.dispatch(q, key))
    local, kv = api.dispatch(q, made), api.dispatch(q[:, :2], made)
    assert api.calc_attn(local, kv, kv, made)[0].shape == local.shape


@over(1, 2, 4)
@pytest.mark.parametrize("rows", [70, 383])
def test_managers_of_fields(group, rows: int):
    """A manager made of a key's fields is that of the key, padded or not."""
    for name in ("causal", "varlen_causal"):
        for alg in ("AutoDispatchAlg", "MinHeapDispatchAlg"):
            case = Case(rows=rows, alg=alg)
            key = make_key(dense.masks(rows)[name], case, group)
            made = init_dist_attn_runtime_mgr(
                q_ranges=key.q_ranges, k_ranges=key.k_ranges, attn_mask_type=key.attn_mask_type,
                total_seqlen_q=key.total_seqlen_q, total_seqlen_k=key.total_seqlen_k,
                num_heads_q=key.num_heads_q, num_heads_kv=key.num_heads_kv, head_dim=key.head_dim,
                chunk_size=key.chunk_size, cp_group=key.cp_group, cp_mesh=key.cp_mesh,
                dist_attn_config=key.dist_attn_config,
            )  # fmt: skip
            assert made == api.dist_attn_runtime_dict_mgr[key]
            other = make_key(dense.masks(rows)["full"], case, group)
            assert made != api.dist_attn_runtime_dict_mgr[other]


@over(1, 2, 4)
def test_as_the_original_is_called(group):
    """A program for the original: every argument by its name there, all imports from there."""
    from magi_attention.api import (
        calc_attn,
        dispatch,
        get_most_recent_key,
        get_position_ids,
        roll,
        undispatch,
    )
    from magi_attention.api import magi_attn_varlen_key as varlen_key
    from magi_attention.api import make_flex_key_for_new_mask_after_dispatch as flex_after
    from magi_attention.api import make_varlen_key_for_new_mask_after_dispatch as varlen_after
    from magi_attention.common.enum import AttnOverlapMode
    from magi_attention.config import MinHeapDispatchAlg, OverlapConfig, UniformOverlapAlg

    rows, heads_q, heads_kv, dim = 256, 4, 2, 16
    bounds = torch.tensor([0, 100, rows], dtype=torch.int32)
    key = varlen_key(
        cu_seqlens_q=bounds, cu_seqlens_k=bounds, num_heads_q=heads_q, num_heads_kv=heads_kv,
        head_dim=dim, pad_size=0, cp_group_or_mesh=group, causal=False, window_size=(-1, -1),
        dist_attn_config=DistAttnConfig(
            dispatch_config=DispatchConfig(chunk_size=16, alg=MinHeapDispatchAlg()),
            overlap_config=OverlapConfig(
                mode=AttnOverlapMode.STATIC, degree=2, min_chunk_size=16, max_num_chunks=64,
                alg=UniformOverlapAlg(),
            ),
        ),
    )  # fmt: skip
    whole = torch.randn(rows, 8, dim, generator=torch.Generator().manual_seed(0)).double()
    local = dispatch(whole, key)
    assert torch.equal(undispatch(local, key), whole)
    valid = get_position_ids(key)[: local.shape[0]]
    assert torch.equal(local, whole[valid])
    assert torch.equal(undispatch(roll(local, shift=-1, dim=0, key=key), key), whole.roll(-1, 0))
    q, k, v = local[:, :4], local[:, 4:6], local[:, 6:]
    documents = [(0, 100), (100, rows)]
    everything = whole[:, :4], whole[:, 4:6], whole[:, 6:]
    window = 30
    slid = [[0, window + 1], [window + 1, rows]], [[0, window + 1], [1, rows]]
    for new_key, ranges, types in (
        (key, (documents, documents), [0, 0]),
        (varlen_after(cu_seqlens_q=torch.tensor([0, rows]), cu_seqlens_k=torch.tensor([0, rows]),
                      causal=False, window_size=(window, 0), key_for_dispatch=key), slid, [1, 3]),
        (flex_after(q_ranges=AttnRanges.from_ranges(slid[0]), key_for_dispatch=key,
                    k_ranges=AttnRanges.from_ranges(slid[1]),
                    attn_mask_type=["causal", "bi_causal"]), slid, [1, 3]),
    ):  # fmt: skip
        out, meta = calc_attn(q, k, v, new_key)
        assert get_most_recent_key(group) is new_key
        wanted, lse, _ = dense.attention(*everything, dense.Mask(*ranges, types, rows, rows))
        assert torch.allclose(undispatch(out, new_key), wanted)
        assert torch.allclose(undispatch(meta.lse, new_key), lse)


@over(1, 3)
def test_cross_attention(group, rows: int = 47):
    """Placed queries over keys that every rank holds, against dense attention."""
    config = DistAttnConfig(dispatch_config=DispatchConfig(chunk_size=5))
    manager = make_manager(group, rows, dist_attn_config=config)
    keys = 30
    q_ranges = AttnRanges.from_ranges([(0, rows // 2), (rows // 3, rows)])
    k_ranges = AttnRanges.from_ranges([(0, 20), (20, keys)])
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(rows, 4, 8, generator=generator).double()
    kv = torch.randn(keys, 2, 8, generator=generator).double()
    mask = dense.Mask(q_ranges.to_naive_ranges(), k_ranges.to_naive_ranges(), [0, 0], rows, keys)
    wanted, _, _ = dense.attention(q, kv, kv, mask)
    own = manager.get_xattn_args(q_ranges, k_ranges, AttnMaskType.FULL, return_host_only=True)
    local = manager.dispatch_qo(q)
    out, _ = flex_flash_attn_func(local, kv, kv, **own.to_ffa_args())
    assert torch.allclose(manager.undispatch_qo(out), wanted)
    everyone = manager.get_xattn_args(q_ranges, k_ranges, "full")
    whole, _ = flex_flash_attn_func(q, kv, kv, **everyone.to_ffa_args())
    assert torch.allclose(whole, wanted)
    placed = [manager.plan.ranges_of(rank) for rank in range(manager.plan.cp_size)]
    first = everyone.q_ranges[0]  # ranges come one rank after the other
    assert any(first.is_subrange_of(own) for own in placed[0])
    for arguments, error, pattern in (
        ((q_ranges, k_ranges, "causal"), NotImplementedError, "attn_mask_type=causal"),
        ((q_ranges, k_ranges[:1], "full"), ValueError, "ref_xattn_k_ranges has 1 entries"),
        ((AttnRanges.from_ranges([(0, rows + 1)]), k_ranges[:1], "full"), ValueError,
         "ref_xattn_q_ranges holds"),
    ):  # fmt: skip
        refuses(lambda: manager.get_xattn_args(*arguments), error, pattern)
