# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of functions that work on a process group."""

from __future__ import annotations

import json
import os
import time
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import dense
from magi_attention import api, functional
from magi_attention.comm.first_call import timeout_of
from magi_attention.comm.primitive.grpcoll import group_cast
from magi_attention.comm.process_group import naming_ranks
from magi_attention.common import AttnRanges
from magi_attention.dist_attn_runtime_mgr import init_dist_attn_runtime_key
from magi_attention.errors import CommError
from magi_attention.integrations._dealing import group_of_neighbours
from pipeline_cases import Case, make_key, make_tensors
from ranks import over, own_group, refuses


def key_with(group, **changes):
    ranges = AttnRanges.from_ranges([(0, 64)])
    arguments = {
        "q_ranges": ranges, "k_ranges": ranges, "attn_mask_type": "causal",
        "total_seqlen_q": 64, "total_seqlen_k": 64, "num_heads_q": 4, "num_heads_kv": 2,
        "head_dim": 8, "cp_group_or_mesh": group, **changes,
    }  # fmt: skip
    return api.magi_attn_flex_key(**arguments)


@over(1, 2)
def test_bad_keys(group):
    key_with(group)
    outside = AttnRanges.from_ranges([(0, 65)])
    two = AttnRanges.from_ranges([(0, 9), (9, 64)])
    for changes, error, pattern in (
        ({"q_ranges": outside}, ValueError, r"q_ranges.*65"),
        ({"k_ranges": outside}, ValueError, r"k_ranges.*65"),
        ({"q_ranges": two}, ValueError, "k_ranges has 1 entries; allowed: 2"),
        ({"attn_mask_type": "casual"}, ValueError, "attn_mask_type is 'casual'"),
        ({"total_seqlen_k": 63}, ValueError, "total_seqlen_k is 63; allowed: 64"),
        ({"num_heads_q": 3}, ValueError, "heads"),
        ({"num_heads_kv": "2"}, TypeError, "num_heads_kv is '2'"),
        ({"total_seqlen_q": 0, "total_seqlen_k": 0}, ValueError, "total_seqlen_q is 0"),
        ({"total_seqlen_q": None, "total_seqlen_k": None}, TypeError, "total_seqlen_q is None"),
        ({"dist_attn_config": {}}, TypeError, "dist_attn_config is a dict"),
        ({"dist_attn_config": None}, TypeError, "dist_attn_config is a NoneType"),
        ({"chunk_size": 0}, ValueError, "chunk_size is 0"),
        ({"cp_group_or_mesh": "world"}, TypeError, "cp_group_or_mesh is a str"),
        ({"cp_group_or_mesh": None}, ValueError, "cp_group_or_mesh is None; allowed: a Pro"),
        ({"is_same_source": False}, NotImplementedError, "is_same_source=False"),
        ({"is_q_permutable": False}, NotImplementedError, "is_q_permutable=False"),
        ({"is_k_permutable": False}, NotImplementedError, "is_k_permutable=False"),
        ({"color": 1}, TypeError, "unexpected keyword argument 'color'"),
    ):
        refuses(lambda: key_with(group, **changes), error, pattern)
    refuses(lambda: api.magi_attn_varlen_key(
        torch.tensor([0, 9, 5]), torch.tensor([0, 9, 5]), 4, 2, 8, cp_group_or_mesh=group
    ), ValueError, "cu_seqlens")  # fmt: skip
    refuses(lambda: api.magi_attn_varlen_key(
        torch.tensor([0, 4]), torch.tensor([0, 8]), 4, 2, 8, cp_group_or_mesh=group
    ), ValueError, "cu_seqlens_k ends at 8; allowed: 4")  # fmt: skip
    bounds = torch.tensor([0, 63])
    refuses(lambda: api.make_varlen_key_for_new_mask_after_dispatch(
        bounds, bounds, key_with(group)
    ), ValueError, "cu_seqlens_q ends at 63; allowed: 64")  # fmt: skip


@over(1, 2)
def test_bad_tensors(group):
    """Refused before anything is sent: the group still works after."""
    case = Case(rows=64, heads=(4, 2), head_dim=8)
    key = make_key(dense.masks(64)["causal"], case, group)
    q, k, v, *_ = make_tensors(case)
    q, k, v = (api.dispatch(t, key) for t in (q, k, v))
    rows = q.shape[0]
    for tensors, error, pattern in (
        ((q[1:], k, v), ValueError, f"q has {rows - 1} rows; allowed: {rows}"),
        ((q, k[1:], v[1:]), ValueError, f"k has {rows - 1} rows; allowed: {rows}"),
        ((q, k[1:], v), ValueError, f"k has {rows - 1} rows; allowed: {rows}, the plan's rows"),
        ((q, k, v[1:]), ValueError, f"v has {rows - 1} rows; allowed: {rows}, the plan's rows"),
        ((q[:, :2], k, v), ValueError, r"q.shape is .*allowed"),
        ((q, k[:, :1], v[:, :1]), ValueError, r"k.shape is .*allowed"),
        ((q.float(), k, v), TypeError, "k.dtype is torch.float64; allowed: torch.float32"),
    ):
        refuses(lambda: api.calc_attn(*tensors, key), error, pattern)
    for options, error, pattern in (
        ({"sink": [0.0]}, TypeError, "sink is a list"),
        ({"softcap": None}, TypeError, "softcap is a NoneType"),
        ({"softmax_scale": "1"}, TypeError, "softmax_scale is a str"),
        ({"return_max_logits": "no"}, TypeError, "return_max_logits is 'no'; allowed: a bool"),
        ({"softmax_scale": 0.0}, ValueError, "softmax_scale is 0.0"),
    ):
        refuses(lambda: api.calc_attn(q, k, v, key, **options), error, pattern)
    refuses(lambda: api.calc_attn(q, k, v, "key"), TypeError, "key is a str")
    refuses(lambda: api.dispatch(q, "key"), TypeError, "key is a str")
    refuses(lambda: api.dispatch(torch.zeros(63), key), ValueError, r"x has shape \[63\]")
    refuses(lambda: api.undispatch(torch.zeros(rows + 1, 2), key), ValueError, "x has shape")
    refuses(lambda: api.roll(torch.zeros(rows + 1), 1, 0, key), ValueError, "x has shape")
    refuses(lambda: api.roll(torch.zeros(rows), 0.5, 0, key), TypeError, "shift is 0.5")
    assert api.calc_attn(q, k, v, key)[0].isfinite().all()


@over(4)
def test_bad_groups(group):
    """Runs on all four ranks: groups without this rank, of another plan, or destroyed."""
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    if rank > 1:
        refuses(lambda: key_with(pair), ValueError, "cp_group_or_mesh does not hold this process")
    else:
        refuses(lambda: api.get_most_recent_key(pair), ValueError, "cp_group has no key")
        key = key_with(pair)
        plan = api.dist_attn_runtime_dict_mgr.get(key).plan
        refuses(lambda: plan.bind(group), ValueError, "cp_group has 4 ranks; allowed: 2")
        q, kv = torch.zeros(key._local_shape.rows, 4, 8), torch.zeros(key._local_shape.rows, 2, 8)
        api.calc_attn(q, kv, kv, key)
        dist.barrier(pair)
        dist.destroy_process_group(pair)
        refuses(lambda: api.calc_attn(q, kv, kv, key), RuntimeError, "cp_group of rank . was des")
        refuses(lambda: key_with(pair, head_dim=16), RuntimeError, "cp_group is not usable")
    mesh = init_device_mesh("cpu", (1, 2, 2))
    refuses(lambda: key_with(mesh), ValueError, "has 3 dimensions; allowed: 1 or 2")


@over(4)
def test_keys_of_other_groups(group):
    """Runs on all four ranks: rows placed on one group under the key of another."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[dist.get_rank() // 2]
    four, two = key_with(group), key_with(pair)
    ours, theirs = four._local_shape.rows, two._local_shape.rows
    q, kv = torch.zeros(ours, 4, 8), torch.zeros(ours, 2, 8)
    refuses(lambda: api.calc_attn(q, kv, kv, two), ValueError,
            f"q has {ours} rows; allowed: {theirs}, the plan's rows of rank")  # fmt: skip
    refuses(lambda: api.undispatch(q, two), ValueError, f"x has shape .*allowed: .{theirs}, ")
    refuses(lambda: api.roll(q, 1, 0, two), ValueError, f"x has shape .*allowed: .{theirs}, ")
    runtime = api.dist_attn_runtime_dict_mgr.get(four)
    for call in (
        lambda: functional.dispatch_func(torch.zeros(64), pair, runtime.bound),
        lambda: functional.undispatch_func(q, runtime.bound, pair),
        lambda: functional.roll_func(q, 1, runtime.bound, pair),
    ):
        refuses(call, ValueError, "group is not that of meta")
    arguments = (
        four.q_ranges, four.k_ranges, "causal", 64, 64, 4, 2, 8, four.pad_size, four.chunk_size,
    )  # fmt: skip
    made = init_dist_attn_runtime_key(*arguments, pair, None, four.dist_attn_config)
    refuses(lambda: api.dispatch(torch.zeros(64), made), ValueError, "key is not in the cache")
    other = api.make_flex_key_for_new_mask_after_dispatch(four.q_ranges, four.k_ranges, "full", two)
    assert other.cp_group is pair


@over(4)
def test_errors_name_global_ranks(group):
    """Ranks of a group that is not all processes have other numbers there than in launchers."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = dist.get_rank()
    key = key_with(pairs[rank // 2])
    q, kv = (torch.zeros(key._local_shape.rows, heads, 8) for heads in (4, 2))
    others = r" \(ranks 0, 1 of cp_group are global ranks 2, 3\)" if rank > 1 else ""
    pattern = f"ranks differ in softmax_scale: rank 0 has [0-9.]+, rank 1 has [0-9.]+{others}$"
    refuses(lambda: api.calc_attn(q, kv, kv, key, softmax_scale=0.5 + rank), CommError, pattern)


@over(2)
def test_errors_of_collectives_of_torch(group):
    """Those that a collator calls fail as exchanges do; its groups have the program's timeout."""

    def fail() -> None:
        raise RuntimeError("Connection closed by peer")

    refuses(lambda: naming_ranks(group, fail), CommError, "cp_group of rank . failed: Connection")
    with mock.patch("torch.distributed.new_subgroups") as made:
        group_of_neighbours(dist.get_world_size())
    assert made.call_args.kwargs["timeout"] == timeout_of(dist.group.WORLD)


@over(2)
def test_destroyed_groups(group):
    """Whatever communicates says that the group is gone."""
    pair = own_group([0, 1])
    key = key_with(pair)
    x = torch.zeros(key._local_shape.rows, 4, 8)
    assert api.undispatch(x, key).shape[0] == 64
    dist.barrier(pair)
    dist.destroy_process_group(pair)
    sizes = ([64], [64], [[0]], [0])
    for call, name in (
        (lambda: api.calc_attn(x, x[:, :2], x[:, :2], key), "cp_group"),
        (lambda: api.undispatch(x, key), "cp_group"),
        (lambda: api.roll(x, 1, 0, key), "cp_group"),
        (lambda: group_cast(torch.zeros(64, 1), None, *sizes, pair), "group is not usable"),
        (lambda: key_with(pair, head_dim=16), "cp_group is not usable"),
    ):
        refuses(call, RuntimeError, name)
    assert api.dispatch(torch.zeros(64), key).shape[0] == x.shape[0]  # it moves nothing


@over(1, 2)
def test_bad_environment(group):
    for variables, error, pattern in (
        ({"QO_COMM": "2"}, ValueError, "MAGI_ATTENTION_QO_COMM"),
        ({"HIERARCHICAL_COMM": "1"}, ValueError, "MAGI_ATTENTION_HIERARCHICAL_COMM"),
        ({"PRECISION": "fp8"}, ValueError, "MAGI_ATTENTION_PRECISION is 'fp8'"),
    ):
        named = {"MAGI_ATTENTION_" + name: value for name, value in variables.items()}
        with mock.patch.dict(os.environ, named):
            refuses(lambda: key_with(group), error, pattern)
    key_with(group)


@over(4)
def test_late_ranks(group):
    """A rank that does not come is named, with the exchange that waits for it."""
    own = own_group([0, 1, 2, 3], seconds=1.5)
    key = key_with(own)
    x = torch.zeros(key._local_shape.rows, 4, 8)
    api.calc_attn(x, x[:, :2], x[:, :2], key)
    if dist.get_rank(own) != 2:
        refuses(
            lambda: api.calc_attn(x, x[:, :2], x[:, :2], key), CommError,
            "cp_group of rank . failed in stage . of .*, to which rank 2 did not come: .*[Tt]ime",
        )  # fmt: skip
    else:
        time.sleep(2.5)


def cost_file(**constants: float) -> str:
    """The text of a cost file; constants: those that are not the defaults."""
    values = {
        "flops_per_second": 600e12, "backward_flops_per_second": 520e12,
        "bytes_per_second": 275e9, "memory_bytes_per_second": 3.6e12,
        "seconds_per_transfer": 2e-6, "seconds_per_launch": 5e-6,
    }  # fmt: skip
    head = {"format": "magi cost", "version": 1, "machine": "a test"}
    return json.dumps({**head, **values, **constants})


@over(2)
def test_ranks_with_different_cost_files(group, tmp_path):
    """Ranks with constants of their own find out at the first call, and are named; with one file
    for all they go on, under another key than without.
    """
    rank, case = dist.get_rank(group), Case(rows=64, heads=(2, 2), head_dim=8)
    mask = dense.masks(64)["causal"]
    variable, plain = "MAGI_ATTENTION_COST_FILE", make_key(mask, case, group)
    (tmp_path / f"{rank}.json").write_text(cost_file(bytes_per_second=(275e9, 1e9)[rank]))
    dist.barrier(group)
    os.environ[variable] = f"{tmp_path}/{rank}.json"
    key = make_key(mask, case, group)
    local = [api.dispatch(tensor, key) for tensor in make_tensors(case)[:3]]
    refuses(lambda: api.calc_attn(*local, key), CommError, "rank 0.*rank 1|rank 1.*rank 0")
    api.clear_cache(group)
    os.environ[variable] = f"{tmp_path}/1.json"
    agreed = make_key(mask, case, group)
    assert agreed != plain and agreed.cost_file == f"{tmp_path}/1.json"
    api.calc_attn(*local, agreed)
