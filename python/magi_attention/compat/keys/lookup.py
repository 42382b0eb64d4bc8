# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a key function to its key, and from a key to its manager."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NamedTuple

from torch.distributed.device_mesh import DeviceMesh

from magi_attention._environment import key_snapshot
from magi_attention._group_holders import is_destroyed
from magi_attention.comm.group import rank_of, size_of
from magi_attention.common._arguments import MAX_ROWS, check_int, check_kind, naming
from magi_attention.common._slices import apply_padding, check_inside, to_mask_types
from magi_attention.common.ranges import AttnRanges
from magi_attention.compat.keys.flags import check_flag_comb, devices_per_node
from magi_attention.compat.keys.groups import dist_attn_runtime_dict_mgr, to_group
from magi_attention.compat.keys.key import DistAttnRuntimeKey, init_dist_attn_runtime_key
from magi_attention.compat.keys.manager import (
    DistAttnRuntimeMgr,
    manage,
    seen_rows,
    with_chunk_size,
)
from magi_attention.config import DistAttnConfig
from magi_attention.env import general
from magi_attention.plan import BoundPlan, Plan

_log = logging.getLogger(__name__)


class KeySpec(NamedTuple):
    """Arguments of a key function. chunk_size: the older argument, in place of the config's."""

    q_ranges: AttnRanges
    k_ranges: AttnRanges
    mask_type: Any
    total_seqlen: int
    heads: tuple[int, int, int]  # query heads, key-value heads, head dim
    group_or_mesh: Any
    config: DistAttnConfig
    placed_by: DistAttnRuntimeKey | None = None
    chunk_size: int | None = None


def find_or_make(spec: KeySpec) -> DistAttnRuntimeKey:
    """The key of these arguments, as the most recent one of its group."""
    q, k, mask_type = spec.q_ranges, spec.k_ranges, spec.mask_type
    for name, ranges in (("q_ranges", q), ("k_ranges", k)):
        if type(ranges) is not AttnRanges:
            raise TypeError(f"{name} is a {type(ranges).__name__}; allowed: AttnRanges")
    if not isinstance(spec.config, DistAttnConfig):
        check_kind("dist_attn_config", spec.config, DistAttnConfig, "DistAttnConfig")
    spec = _with_ints(spec)
    arguments = (
        _content("q_ranges", q), _content("k_ranges", k), spec.total_seqlen, spec.heads,
        _identity(spec.group_or_mesh), spec.config, spec.placed_by, spec.chunk_size, key_snapshot(),
    )  # fmt: skip
    try:
        candidates = dist_attn_runtime_dict_mgr.seen.get(arguments)
    except TypeError:  # something that cannot be hashed, which the plan refuses by name
        return _make(spec)
    if candidates is None:
        candidates = dist_attn_runtime_dict_mgr.seen[arguments] = []
    for seen_type, key in candidates:
        if seen_type == mask_type:
            managers = dist_attn_runtime_dict_mgr.of(key.cp_group)
            if key in managers:
                managers.touch(key)
                return key
    key = _make(spec)
    candidates[:] = [entry for entry in candidates if entry[0] != mask_type]
    candidates.append((list(mask_type) if isinstance(mask_type, list) else mask_type, key))
    return key


def _with_ints(spec: KeySpec) -> KeySpec:
    """Sizes as ints: a tensor that is one may change in place, but is the same object then."""
    if type(spec.total_seqlen) is int and all(type(size) is int for size in spec.heads):
        return spec
    total_seqlen = check_int("total_seqlen_q", spec.total_seqlen, 1, MAX_ROWS)
    named = zip(("num_heads_q", "num_heads_kv", "head_dim"), spec.heads)
    heads = tuple(check_int(name, size, 1) for name, size in named)
    return spec._replace(total_seqlen=total_seqlen, heads=heads)


def _identity(group_or_mesh: Any) -> tuple[bool, int]:
    """Equal for the same argument in the next call: a slice of a mesh, such as mesh["cp"], is
    another object each time, but its group is not.
    """
    is_slice = isinstance(group_or_mesh, DeviceMesh) and group_or_mesh.ndim == 1
    return is_slice, id(group_or_mesh.get_group() if is_slice else group_or_mesh)


def _content(name: str, ranges: AttnRanges) -> bytes:
    try:
        return ranges.content()
    except (TypeError, OverflowError):
        check_inside(name, ranges, MAX_ROWS)
        raise


def _make(spec: KeySpec) -> DistAttnRuntimeKey:
    check_flag_comb()
    group, mesh = to_group(spec.group_or_mesh)
    rank_of(group)
    heads_q, heads_kv, head_dim = spec.heads
    with naming(total_seqlen="total_seqlen_q"):
        plan = Plan.from_ranges(
            spec.q_ranges,
            spec.k_ranges,
            spec.mask_type,
            spec.total_seqlen,
            cp_size=size_of(group),
            num_heads_q=heads_q,
            num_heads_kv=heads_kv,
            head_dim=head_dim,
            config=with_chunk_size(spec.config, spec.chunk_size),
            on=None if spec.placed_by is None else runtime_of(spec.placed_by).plan,
            devices_per_node=devices_per_node(mesh, group),
        )
    if general.is_sanity_check_enable() and plan.defects():
        raise RuntimeError(f"the plan has defects: {plan.defects()}")
    types = list(to_mask_types(spec.mask_type, len(spec.q_ranges)))
    mask = (spec.q_ranges, spec.k_ranges, types)
    if plan.pad_size:
        mask = apply_padding(*mask, spec.total_seqlen, plan.pad_size)
    _log.info(
        "a plan of %d rows on %d ranks: chunks of %d rows, balance %.3f",
        plan.total_seqlen, plan.cp_size, plan.chunk_size, plan.report.balance,
    )  # fmt: skip
    key = init_dist_attn_runtime_key(
        *mask, plan.padded_seqlen, plan.padded_seqlen, *spec.heads, plan.pad_size, plan.chunk_size,
        group, mesh, spec.config, spec.placed_by,
    )  # fmt: skip
    managers = dist_attn_runtime_dict_mgr.of(group)
    placed_by = spec.placed_by
    if placed_by in managers and replace(key, placed_by=None) == placed_by:
        managers.touch(placed_by)  # the mask that it was made for
        return placed_by
    runtime = managers.get(key)
    if runtime is None:
        communicator = dist_attn_runtime_dict_mgr.communicator(group)
        bound = BoundPlan(plan, group, communicator)
        placed = spec.placed_by or key
        runtime = manage(
            plan, bound, spec.heads, spec.config, (key.q_ranges, key.k_ranges),
            seen_rows(placed.q_ranges, placed.k_ranges),
        )  # fmt: skip
        managers[key] = runtime
    managers.touch(key)
    key.name_plan(runtime.bound)
    return key


def runtime_of(key: DistAttnRuntimeKey, name: str = "key") -> DistAttnRuntimeMgr:
    """TypeError for anything but a key, ValueError for one that is not in the cache, RuntimeError
    for one of a destroyed group that the cache has let go of.
    """
    if not isinstance(key, DistAttnRuntimeKey):
        raise TypeError(f"{name} is a {type(key).__name__}; allowed: a DistAttnRuntimeKey")
    runtime = dist_attn_runtime_dict_mgr.get(key)
    if runtime is None:
        if is_destroyed(key.cp_group):
            raise RuntimeError(f"cp_group of {name} was destroyed; allowed: a live group")
        raise ValueError(
            f"{name} is not in the cache of its group; allowed: keys made or used since "
            f"clear_cache(), of a group the last {dist_attn_runtime_dict_mgr.max_size} "
            "(MAGI_ATTENTION_DIST_ATTN_RUNTIME_DICT_SIZE)"
        )
    return runtime
