# SPDX-License-Identifier: Apache-2.0
"""Keys: what they hold, when they are found again, older calls."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import os
import pickle
import subprocess
import sys
import warnings
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import dense
from magi_attention import api
from magi_attention.common import AttnMaskType, AttnRanges
from pipeline_cases import Case, check_attention, make_key, make_tensors
from ranks import over, refuses


@over(1, 2)
def test_key_cache(group):
    """Equal arguments give one key; the most recent one follows the calls; clearing forgets."""
    case, masks = Case(rows=60), dense.masks(60)
    first, second = (make_key(masks[name], case, group) for name in ("causal", "full"))
    assert first is make_key(masks["causal"], case, group) and first != second
    assert api.get_most_recent_key(group) is first
    assert set(api.dist_attn_runtime_dict_mgr.keys(group)) == {first, second}
    types = ["causal"]
    ranges = AttnRanges.from_ranges([(0, 60)])
    arguments = (60, 60, *case.heads, case.head_dim)
    make = api.magi_attn_flex_key
    a = make(ranges, ranges, types, *arguments, cp_group_or_mesh=group)
    types[0] = "full"
    b = make(ranges, ranges, types, *arguments, cp_group_or_mesh=group)
    ranges[0].end = 50
    c = make(ranges, ranges, types, *arguments, cp_group_or_mesh=group)
    assert len({a, b, c}) == 3
    assert a.attn_mask_type[0] is AttnMaskType.CAUSAL and a.q_ranges[0].end == 60
    assert a in api.dist_attn_runtime_dict_mgr
    rows = torch.zeros(60, 2)
    api.dispatch(rows, b)
    assert api.get_most_recent_key(group) is b  # the most recent use counts
    q = api.dispatch(torch.zeros(60, 10, 16), c)
    api.calc_attn(q[:, :8], q[:, 8:], q[:, 8:], a)
    assert api.get_most_recent_key(group) is a
    api.clear_cache(group)
    q = torch.zeros(1, 8, 16)
    for call in (lambda: api.dispatch(q, first), lambda: api.get_position_ids(first)):
        refuses(call, ValueError, "cache")
    rows = first._local_shape.rows
    q, kv = torch.zeros(rows, 8, 16), torch.zeros(rows, 2, 16)
    refuses(lambda: api.calc_attn(q, kv, kv, first), ValueError, "key is not in the cache")
    assert make_key(masks["causal"], case, group) == first
    assert api.calc_attn(q, kv, kv, first)[0].shape == q.shape  # an equal key is in the cache again


@over(1)
def test_evicted_keys(group):
    """A key that left a full cache is told from a forgotten one by the variable of its size."""
    api.clear_cache()
    os.environ["MAGI_ATTENTION_DIST_ATTN_RUNTIME_DICT_SIZE"] = "2"
    masks = dense.masks(60)
    names = ("causal", "full", "varlen_causal")
    first, *_ = (make_key(masks[name], Case(rows=60), group) for name in names)
    for call in (
        lambda: api.dispatch(torch.zeros(60), first),
        lambda: api.calc_attn(*(torch.zeros(60, heads, 16) for heads in (8, 2, 2)), first),
    ):
        refuses(call, ValueError, "key is not in the cache of its group; allowed: keys .* "
                "last 2 .MAGI_ATTENTION_DIST_ATTN_RUNTIME_DICT_SIZE.")  # fmt: skip


@over(1, 2)
def test_copies_of_keys(group):
    """A copy is the key; pickling says why not, and what to pickle."""
    case = Case(rows=60)
    key = make_key(dense.masks(60)["causal"], case, group)
    assert copy.copy(key) is key and copy.deepcopy([key])[0] is key
    for name in ("pickle", "torch"):
        save = pickle.dumps if name == "pickle" else lambda value: torch.save(value, io.BytesIO())
        refuses(lambda: save({"key": key}), TypeError, "^key cannot be pickled, .* process group "
                ".*allowed: its plan, dist_attn_runtime_dict_mgr.key..plan")  # fmt: skip
    plan = pickle.loads(pickle.dumps(api.dist_attn_runtime_dict_mgr[key].plan))
    tensors = make_tensors(case)[:3]
    given = [api.dispatch(tensor, key) for tensor in tensors]
    assert torch.equal(plan.bind(group).calc_attn(*given)[0], api.calc_attn(*given, key)[0])
    made = fields_of(key)  # as FSDP copies arguments
    assert made is not key and made == key
    for name in ("reach", "_number", "_local_shape"):
        assert getattr(made, name) == getattr(key, name)
    assert torch.equal(api.calc_attn(*given, made)[0], api.calc_attn(*given, key)[0])


@over(1, 2)
def test_names_of_equal_keys(group):
    """What a key tells calls of its plan outlives equal keys that told it too: a copy that is made
    field by field finds it, as compiled graphs need it.
    """
    case, mask = Case(rows=60), dense.masks(60)["causal"]
    given = make_tensors(case)[:3]
    old = make_key(mask, case, group)
    local = [api.dispatch(tensor, old) for tensor in given]
    api.clear_cache(group)
    kept = make_key(mask, case, group)
    assert old == kept and old is not kept
    wanted = api.calc_attn(*local, old)[0]  # finds the plan of the key in the cache
    compiled = torch.compile(api.calc_attn, fullgraph=True, backend="aot_eager")
    for dies in ("old", "copy", "old and copy"):
        made = fields_of(kept)
        if "copy" in dies:
            made.name_plan(api.dist_attn_runtime_dict_mgr[kept].bound)
        if "old" in dies:
            old = None
        del made
        made = fields_of(kept)
        for name in ("reach", "_number", "_local_shape"):
            assert getattr(made, name) == getattr(kept, name), (dies, name)
        assert made.reach == (59, 0) and torch.equal(compiled(*local, made)[0], wanted)
    del kept, made


def fields_of(value):
    """A dataclass made anew of what is made anew of its fields."""
    if not dataclasses.is_dataclass(value):
        return value
    parts = {f.name: fields_of(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return dataclasses.replace(dataclasses.replace(value), **parts)


@over(4)
def test_slices_of_a_mesh(group):
    """A slice is made anew in every call; the key of the one before is found without planning."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    case, mask = Case(rows=60), dense.masks(60)["causal"]
    assert mesh["cp"] is not mesh["cp"]
    key = make_key(mask, case, mesh["cp"])
    assert make_key(mask, case, mesh["cp"]) is key and key.cp_mesh == mesh["cp"]
    others = make_key(mask, case, mesh["dp"]), make_key(mask, case, mesh["cp"].get_group())
    assert all(other != key for other in others) and others[1].cp_mesh is None


@over(4)
def test_hierarchical_meshes(group):
    """The variable asks for a 2-D mesh, whose rows become the plan's nodes."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("inter", "intra"))
    case, mask = Case(rows=320), dense.masks(320)["full"]
    plain = make_key(mask, case, mesh)
    for native in ("0", "1"):  # the original refuses both together
        names = {"MAGI_ATTENTION_HIERARCHICAL_COMM": "1", "MAGI_ATTENTION_NATIVE_GRPCOLL": native}
        key, plan = checked_under(names, mask, case, mesh)
        assert key.is_hierarchical_comm_enable and key != plain and key.cp_mesh is mesh
        assert plan["config"]["devices_per_node"] == 2
        assert any(hop == 1 for *_, hop, _ in plan["exchanges"])
        os.environ.update(names)
        across = mesh.mesh.T.contiguous()  # nodes of ranks that are not neighbours
        for other_mesh, part in (
            (mesh["intra"], "is not a 2-D mesh"),
            (DeviceMesh("cpu", across, mesh_dim_names=("inter", "intra")), "run of the group"),
        ):
            refuses(lambda: make_key(mask, case, other_mesh), ValueError, part)


@over(4)
def test_heads_by_node(group):
    """Heads are shared out over the nodes of a 2-D mesh, with queries that move between groups,
    sinks and max_logits, all of which the original refuses together.
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("inter", "intra"))
    case, mask = Case(rows=512, heads=(8, 4), sinks=1), dense.masks(512)["causal"]
    names = {
        "MAGI_ATTENTION_HIERARCHICAL_COMM": "1",
        "MAGI_ATTENTION_FLATTEN_HEAD_GROUPS": "1",
        "MAGI_ATTENTION_QO_COMM": "1",
        "MAGI_ATTENTION_NATIVE_GRPCOLL": "1",
    }
    _, plan = checked_under(names, mask, case, mesh)
    assert plan["config"]["devices_per_node"] == 2
    assert plan["config"]["work"] == "heads" and plan["num_head_shares"] > 1


def checked_under(variables: dict[str, str], mask, case: Case, mesh):
    """The key that is made under environment variables, after its attention was compared with
    dense attention, and its plan as JSON.
    """
    with mock.patch.dict(os.environ, variables):
        key = make_key(mask, case, mesh)
        check_attention(", ".join(variables), key, mask, case, make_tensors(case))
        return key, json.loads(api.dist_attn_runtime_dict_mgr[key].plan.to_json())


@over(1, 3)
def test_padded_keys(group):
    """Keys hold the mask and the lengths with their padding; new masks on them get the same."""
    size = dist.get_world_size(group)
    bounds = torch.tensor([0, 20, 67], dtype=torch.int32)
    sizes = (8, 2, 16)
    for uneven in (False, True):
        config = api.DistAttnConfig(api.DispatchConfig(3, uneven, api.SequentialDispatchAlg()))
        key = api.magi_attn_varlen_key(
            bounds, bounds, *sizes, cp_group_or_mesh=group, causal=True, dist_attn_config=config
        )
        pad = 0 if uneven else -67 % (key.chunk_size * size)
        assert (key.pad_size, key.chunk_size, key.uneven_shard) == (pad, 3, uneven)
        assert key.total_seqlen_q == key.total_seqlen_k == 67 + pad
        q, k = [(0, 20), (20, 67)], [(0, 20), (20, 67)]
        types = [AttnMaskType.CAUSAL] * 2
        if pad:
            q, k, types = [*q, (67, 67 + pad)], [*k, (0, 0)], [*types, AttnMaskType.FULL]
        assert key.q_ranges.to_naive_ranges() == q and key.k_ranges.to_naive_ranges() == k
        assert list(key.attn_mask_type) == types
        other = api.make_varlen_key_for_new_mask_after_dispatch(bounds, bounds, key)
        assert other.q_ranges == key.q_ranges and other.total_seqlen_q == key.total_seqlen_q
        assert (other.pad_size, other.chunk_size) == (key.pad_size, key.chunk_size)
    refuses(lambda: api.magi_attn_varlen_key(
        bounds, bounds, *sizes, cp_group_or_mesh=group, dist_attn_config=config, chunk_size=8
    ), ValueError, "chunk_size is 8; allowed: 3")  # fmt: skip


@over(1, 3)
def test_chunk_sizes(group):
    """The chunk size is the smaller of the configured one and that of 8 chunks a rank."""
    size = dist.get_world_size(group)
    for rows in (1, 7, 64, 100, 1000):
        for wanted in (None, 1, 3, 10**9):
            ranges = AttnRanges.from_ranges([(0, rows)])
            config = api.DistAttnConfig(api.DispatchConfig(wanted, alg=api.MinHeapDispatchAlg()))
            key = api.magi_attn_flex_key(
                ranges, ranges, "causal", rows, rows, 2, 2, 8, 0, group, config
            )
            auto = -(-rows // (8 * size))
            chunk = auto if wanted is None else min(auto, wanted)
            assert key.chunk_size == chunk, (rows, wanted, key.chunk_size, chunk)
            assert key.pad_size == -rows % (chunk * size)


@over(1)
def test_forgotten_arguments(group):
    """The list of arguments seen stays short; a key whose arguments left it is found again."""
    seen = api.dist_attn_runtime_dict_mgr.seen
    with mock.patch.object(seen, "max_size", 3):
        masks = [dense.masks(rows)["causal"] for rows in range(40, 46)]
        keys = [make_key(mask, Case(rows=mask.rows_q), group) for mask in masks]
        assert len(seen) == 3
        assert make_key(masks[0], Case(rows=40), group) == keys[0]
        assert len(api.dist_attn_runtime_dict_mgr.keys(group)) == len(keys)


@over(2)
def test_deprecated_calls(group):
    """Older names work and warn."""
    bounds = torch.tensor([0, 20, 64], dtype=torch.int32)
    x = torch.arange(64 * 4.0).reshape(64, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        local, key = api.magi_attn_varlen_dispatch(
            x, bounds, bounds, 2, 2, 8, pad_size=3, cp_group=group, causal=True, max_seqlen_k=44,
            chunk_size=4,
        )  # fmt: skip
        ranges = AttnRanges.from_cu_seqlens([0, 20, 64], 64)
        again, flex = api.magi_attn_flex_dispatch(
            x, ranges, ranges, "causal", 64, 64, 2, 2, 8, 0, group, chunk_size=4
        )
    said = {str(w.message).split()[0] for w in caught if w.category is DeprecationWarning}
    assert {w.filename for w in caught} == {__file__}  # Python hides those of other files
    names = {"magi_attn_varlen_dispatch", "magi_attn_flex_dispatch", "pad_size", "cp_group"}
    assert names | {"max_seqlen_k", "chunk_size"} <= said, said
    assert flex == key and torch.equal(local, again) and key.chunk_size <= 4
    assert key.dist_attn_config == api.DistAttnConfig()  # as given
    assert torch.equal(api.undispatch(local, key), x)


@over(4)
def test_groups_of_the_same_ranks(group):
    """Groups are told apart by their ranks, not as objects."""
    size = dist.get_world_size(group)
    again = dist.new_group(range(size))
    managers = api.dist_attn_runtime_dict_mgr
    key = make_key(dense.masks(60)["causal"], Case(rows=60), group)
    assert api.get_most_recent_key(again) is key and managers.keys(again) == [key]
    other = make_key(dense.masks(60)["full"], Case(rows=60), again)
    assert api.get_most_recent_key(group) is other and len(managers.keys(group)) == 2
    assert managers[key] is managers.get(key)
    api.clear_cache(again)
    assert key not in managers and managers.keys(group) == [] == managers.keys()
    refuses(lambda: managers[key], KeyError, "")


@over(1)
def test_sizes_of_managers(group):
    """A manager of its own keeps as many keys as it is told."""
    managers = api.DistAttnRuntimeDictManager(max_size_per_group=2)
    for rows in (40, 50, 60):
        key = make_key(dense.masks(rows)["causal"], Case(rows=rows), group)
        managers[key] = api.dist_attn_runtime_dict_mgr[key]
    assert len(managers.keys(group)) == 2 and managers.get_most_recent_key(group) is key
    assert managers.max_size_per_group == 2


@over(1)
def test_missing_arguments(group):
    """A call names itself."""
    x, ranges = torch.zeros(64, 4), AttnRanges.from_ranges([(0, 64)])
    bounds = torch.tensor([0, 64], dtype=torch.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call, name in (
            (lambda: api.magi_attn_flex_key(ranges, ranges, "full", 64, 64, 2, 2, 8), "flex_key"),
            (lambda: api.magi_attn_varlen_key(bounds, bounds, 2, 2, 8), "varlen_key"),
            (lambda: api.magi_attn_varlen_dispatch(x, bounds, bounds, 2, 2, 8), "varlen_dispatch"),
            (lambda: api.magi_attn_flex_dispatch(x, ranges), "flex_dispatch"),
            (lambda: api.magi_attn_varlen_dispatch(x, bounds, bounds, 2, 2, 8, 0, group, rows=1),
             "varlen_dispatch"),
        ):  # fmt: skip
            refuses(call, TypeError, rf"^magi_attn_{name}\(\) ")


@over(1, 3)
def test_same_mask_again(group):
    """The mask of a key, asked for after dispatch, has that key."""
    case, masks = Case(rows=67), dense.masks(67)
    key = make_key(masks["causal"], case, group)
    whole = AttnRanges.from_ranges([(0, 67)])
    other = api.make_flex_key_for_new_mask_after_dispatch(whole, whole, "full", key)
    assert other != key
    for placed in (key, other):
        again = api.make_flex_key_for_new_mask_after_dispatch(whole, whole, "causal", placed)
        assert again is key and api.get_most_recent_key(group) is key
    config = api.DistAttnConfig(overlap_config=api.OverlapConfig(degree=0))
    blocking = api.make_flex_key_for_new_mask_after_dispatch(
        whole, whole, "causal", key, dist_attn_config=config
    )
    assert blocking != key and blocking.placed_by is key


@over(2)
def test_sizes_that_change_in_place(group):
    """A size may be a tensor: the key is that of its value, not of the object."""
    whole = AttnRanges.from_ranges([(0, 60)])
    rows, dim = torch.tensor(60), torch.tensor(8)
    make = partial(api.magi_attn_flex_key, whole, whole, "full", rows, rows, 2, 2, dim)
    first = make(cp_group_or_mesh=group)
    assert make(cp_group_or_mesh=group) is first and type(first.head_dim) is int
    rows += 4
    longer = make(cp_group_or_mesh=group)
    assert (longer.total_seqlen_q - longer.pad_size, longer.head_dim) == (64, 8)
    dim += 8
    assert make(cp_group_or_mesh=group).head_dim == 16
    assert make(cp_group_or_mesh=group).head_dim_v == 16
    assert (first.total_seqlen_q - first.pad_size, first.head_dim) == (60, 8)


@over(1, 4)
def test_positions_behind_the_mask(group):
    """Rows behind the last one with keys have its position."""
    make = api.magi_attn_flex_key
    q = AttnRanges.from_ranges([(0, 30), (30, 50), (50, 60)])
    k = AttnRanges.from_ranges([(0, 30), (0, 50), (0, 0)])
    key = make(q, k, "full", 67, 67, 2, 2, 8, cp_group_or_mesh=group)
    whole = api.dispatch(torch.arange(67), key, pad_value=66)
    assert torch.equal(api.get_position_ids(key), whole.clamp(max=49))
    all_rows = AttnRanges.from_ranges([(0, 67)])
    other = api.make_flex_key_for_new_mask_after_dispatch(all_rows, all_rows, "full", key)
    assert torch.equal(api.get_position_ids(other), api.get_position_ids(key))
    empty = AttnRanges.from_ranges([(0, 0)])
    hidden = make(all_rows, empty, "full", 67, 67, 2, 2, 8, cp_group_or_mesh=group)
    assert int(api.get_position_ids(hidden).max()) <= 66


AT_EXIT = """
import atexit, gc, os, tempfile
import torch.distributed as dist

def check():
    assert key.cp_group is None and bound.cp_group is None and bound.rows.cp_group is None
    assert not api.dist_attn_runtime_dict_mgr.keys()
    print("let go")

atexit.register(check)  # runs after those that are registered later
from magi_attention import api
from magi_attention.common import AttnRanges
from magi_attention.comm.primitive.grpcoll import group_cast
import torch

store = os.path.join(tempfile.mkdtemp(), "store")
dist.init_process_group("gloo", init_method="file://" + store, rank=0, world_size=1)
ranges = AttnRanges.from_ranges([(0, 64)])
key = api.magi_attn_flex_key(
    ranges, ranges, "causal", 64, 64, 2, 2, 8, cp_group_or_mesh=dist.group.WORLD
)
bound = api.dist_attn_runtime_dict_mgr[key].bound
x = torch.zeros(2, 3)
group_cast(x, None, [2], [2], [[0]], [0], dist.group.WORLD).wait_post_process()
"""


def test_groups_are_let_go_at_exit():
    run = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, "let go\n"), run.stderr
