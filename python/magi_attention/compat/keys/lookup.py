# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a key function to its key, and from a key to its manager."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from magi_attention._environment import key_snapshot
from magi_attention._group_holders import is_destroyed
from magi_attention.comm.group import rank_of
from magi_attention.common._arguments import MAX_ROWS, check_int, check_kind, naming
from magi_attention.common._slices import apply_padding, check_inside, to_mask_types
from magi_attention.common.ranges import AttnRanges
from magi_attention.compat.keys.groups import dist_attn_runtime_dict_mgr, to_group
from magi_attention.compat.keys.key import DistAttnRuntimeKey, init_dist_attn_runtime_key
from magi_attention.compat.keys.manager import (
    DistAttnRuntimeMgr,
    check_flag_comb,
    make_plan,
    manage,
    seen_rows,
    with_chunk_size,
)
from magi_attention.config import DistAttnConfig
from magi_attention.plan import BoundPlan

_log = logging.getLogger(__name__)


def find_or_make(
    mask: tuple[AttnRanges, AttnRanges, Any, int],
    heads: tuple[int, int, int, int | None],
    group_or_mesh: Any,
    config: DistAttnConfig,
    placed_by: DistAttnRuntimeKey | None = None,
    chunk_size: int | None = None,
) -> DistAttnRuntimeKey:
    """The key of these arguments of a key function, as the most recent one of its group. mask:
    q_ranges, k_ranges, types and rows; heads: query heads, key-value heads, head dim and that
    of v, None: the same; chunk_size: the older argument, in place of the config's.
    """
    q, k, mask_type, rows = mask
    for name, ranges in (("q_ranges", q), ("k_ranges", k)):
        if type(ranges) is not AttnRanges:
            raise TypeError(f"{name} is a {type(ranges).__name__}; allowed: AttnRanges")
    if not isinstance(config, DistAttnConfig):
        check_kind("dist_attn_config", config, DistAttnConfig, "DistAttnConfig")
    if heads[3] is None:
        heads = *heads[:3], heads[2]
    if type(rows) is not int or any(type(size) is not int for size in heads):
        # A tensor that is one may change in place, but is the same object then.
        rows = check_int("total_seqlen_q", rows, 1, MAX_ROWS)
        named = zip(("num_heads_q", "num_heads_kv", "head_dim", "head_dim_v"), heads)
        heads = tuple(check_int(name, size, 1) for name, size in named)
    mask = q, k, mask_type, rows
    arguments = (
        _content("q_ranges", q), _content("k_ranges", k), rows, heads, _identity(group_or_mesh),
        config, placed_by, chunk_size, key_snapshot(),
    )  # fmt: skip
    try:
        candidates = dist_attn_runtime_dict_mgr.seen.get(arguments)
    except TypeError:  # something that cannot be hashed, which the plan refuses by name
        return _make(mask, heads, group_or_mesh, config, placed_by, chunk_size)
    if candidates is None:
        candidates = dist_attn_runtime_dict_mgr.seen[arguments] = []
    for seen_type, key in candidates:
        if seen_type == mask_type:
            managers = dist_attn_runtime_dict_mgr.of(key.cp_group)
            if key in managers:
                managers.touch(key)
                return key
    key = _make(mask, heads, group_or_mesh, config, placed_by, chunk_size)
    candidates[:] = [entry for entry in candidates if entry[0] != mask_type]
    candidates.append((list(mask_type) if isinstance(mask_type, list) else mask_type, key))
    return key


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


def _make(mask, heads, group_or_mesh, config, placed_by, chunk_size) -> DistAttnRuntimeKey:
    """Does what find_or_make does, for arguments that were not seen."""
    check_flag_comb()
    group, mesh = to_group(group_or_mesh)
    rank_of(group)
    q, k, mask_type, rows = mask
    on = None if placed_by is None else runtime_of(placed_by).plan
    with naming(total_seqlen="total_seqlen_q"):
        plan = make_plan(mask, heads, (group, mesh), with_chunk_size(config, chunk_size), on)
    mask = q, k, list(to_mask_types(mask_type, len(q)))
    if plan.pad_size:
        mask = apply_padding(*mask, rows, plan.pad_size)
    _log.info(
        "a plan of %d rows on %d ranks: chunks of %d rows, balance %.3f",
        plan.total_seqlen, plan.cp_size, plan.chunk_size, plan.report.balance,
    )  # fmt: skip
    key = init_dist_attn_runtime_key(
        *mask, plan.padded_seqlen, plan.padded_seqlen, *heads[:3], plan.pad_size, plan.chunk_size,
        group, mesh, config, placed_by, heads[3],
    )  # fmt: skip
    managers = dist_attn_runtime_dict_mgr.of(group)
    if placed_by in managers and replace(key, placed_by=None) == placed_by:
        managers.touch(placed_by)  # the mask that it was made for
        return placed_by
    runtime = managers.get(key)
    if runtime is None:
        bound = BoundPlan(plan, group, dist_attn_runtime_dict_mgr.communicator(group))
        placed = placed_by or key
        positions = seen_rows(placed.q_ranges, placed.k_ranges)
        runtime = manage(plan, bound, heads[:3], config, (key.q_ranges, key.k_ranges), positions)
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
