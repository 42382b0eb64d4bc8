# SPDX-License-Identifier: Apache-2.0
"""Attention of DTensors: results and gradients are those of their parts."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import dense
from magi_attention import Plan, api, masks
from magi_attention.compat.keys.lookup import runtime_of
from magi_attention.functional import dist_attn_func
from pipeline_cases import Case, make_key, make_tensors
from ranks import over, own_group, refuses

ROWS = [Shard(0)]
HEADS = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 8}


def case_of(group):
    """A key, and q, k, v of this rank, some of whose rows are padding."""
    case = Case(rows=75, heads=(4, 2), head_dim=8)
    key = make_key(dense.masks(75)["causal"], case, group)
    return key, [api.dispatch(tensor, key) for tensor in make_tensors(case)[:3]]


def results(attend, tensors) -> list[torch.Tensor]:
    """out, lse, max_logits and gradients of q, k and v."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out, meta = attend(*leaves)
    (out.square().sum() + meta.lse.sin().sum()).backward()
    return [out, meta.lse, meta.max_logits, *(leaf.grad for leaf in leaves)]


def check(attend, tensors, mesh, placements, wanted) -> None:
    """attend of DTensors gives what it gives of their parts, placed as they are."""
    sharded = [DTensor.from_local(tensor, mesh, placements) for tensor in tensors]
    found = results(attend, sharded)
    for i in (0, 1, 3, 4, 5):
        assert found[i].placements == tuple(placements)
    assert [len(found[i]) for i in (0, 1, 3)] == [len(sharded[0])] * 3
    heads = [Shard(0) if place == Shard(1) else Replicate() for place in placements]
    assert found[2].placements == tuple(heads)
    assert all(torch.equal(a.to_local(), b) for a, b in zip(found, wanted))


@over(2)
def test_rows(group):
    """By a key, by a bound plan, compiled, with and without the rows of padding."""
    key, tensors = case_of(group)
    bound, mesh = runtime_of(key).bound, DeviceMesh.from_group(group, "cpu")
    by_key = partial(api.calc_attn, key=key, return_max_logits=True)
    wanted = results(by_key, tensors)
    by_plan = partial(bound.calc_attn, return_max_logits=True)
    by_function = partial(dist_attn_func, dist_attn_runtime=bound, return_max_logits=True)
    compiled = torch.compile(by_plan, fullgraph=True, backend="aot_eager")
    for attend in (by_key, by_plan, by_function, compiled):
        check(attend, tensors, mesh, ROWS, wanted)
    short = [tensor[: bound.rows.num_valid] for tensor in tensors]
    check(by_key, short, mesh, ROWS, results(by_key, short))


@over(4)
def test_rows_and_heads(group):
    """Heads are shared out over tensor parallel ranks, or all there; the plan is for one part."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "cp"))
    key, tensors = case_of(mesh["cp"].get_group())
    attend = partial(api.calc_attn, key=key, return_max_logits=True)
    wanted = results(attend, tensors)
    for place in (Shard(1), Replicate()):
        check(attend, tensors, mesh, [place, *ROWS], wanted)
    places = [Shard(1), *ROWS], [Replicate(), *ROWS], [Shard(1), *ROWS]
    given = [DTensor.from_local(t, mesh, p) for t, p in zip(tensors, places)]
    refuses(lambda: attend(*given), ValueError, r"k has placements .*Replicate.* as q")


@over(1)
def test_one_rank(group):
    key, tensors = case_of(group)
    attend = partial(api.calc_attn, key=key, return_max_logits=True)
    mesh = DeviceMesh.from_group(group, "cpu")
    for place in (Shard(0), Shard(1), Replicate()):
        check(attend, tensors, mesh, [place], results(attend, tensors))


@over(2)
def test_other_placements(group):
    key, tensors = case_of(group)
    mesh, wanted = DeviceMesh.from_group(group, "cpu"), api.calc_attn(*tensors, key)[0]
    for i, name in enumerate("qkv"):
        for place in (Replicate(), Shard(1), Shard(2), Partial()):
            places = [[place] if i == at else ROWS for at in range(3)]
            given = [DTensor.from_local(t, mesh, p) for t, p in zip(tensors, places)]
            text = f"^{name} has placements {re.escape(str((place,)))} on .*; allowed: Shard"
            refuses(lambda: api.calc_attn(*given, key), ValueError, text)
        given = [DTensor.from_local(t, mesh, ROWS) for t in tensors]
        given[i] = tensors[i]
        text = f"^{name} is a Tensor beside a DTensor; allowed"
        refuses(lambda: api.calc_attn(*given, key), TypeError, text)
    given = [DTensor.from_local(t, mesh, ROWS) for t in tensors]
    alone = Plan.from_mask(masks.from_cu_seqlens([0, 75]), cp_size=1, **HEADS).bind()
    refuses(lambda: alone.calc_attn(*given), ValueError, "q has placements .* ranks, .[01].,")
    given = [DTensor.from_local(t.flatten(1), mesh, ROWS) for t in tensors]
    refuses(lambda: api.calc_attn(*given, key), ValueError, "q.rank is 2; allowed: 3")
    assert torch.equal(api.calc_attn(*tensors, key)[0], wanted)


@over(2)
def test_one_rank_refuses(group):
    """The other rank, which waits for its rows, learns why."""
    group = own_group([0, 1])
    key, tensors = case_of(group)
    mesh = DeviceMesh.from_group(group, "cpu")
    place = [Shard(dist.get_rank(group))]
    given = [DTensor.from_local(tensor, mesh, place) for tensor in tensors]
    with pytest.raises((ValueError, RuntimeError), match="q has placements"):
        api.calc_attn(*given, key)
