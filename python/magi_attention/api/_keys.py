# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a key function to its key: the caches."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from magi_attention._native.vtable import Communicator
from magi_attention.api.functools import apply_padding
from magi_attention.bound_plan import BoundPlan, make_communicator, rank_of, size_of
from magi_attention.common._arguments import MAX_ROWS, check_kind, naming
from magi_attention.common.ranges import AttnRanges
from magi_attention.config import DistAttnConfig
from magi_attention.dist_attn_runtime_mgr import (
    DistAttnRuntimeDict,
    DistAttnRuntimeKey,
    DistAttnRuntimeMgr,
    check_flag_comb,
    check_mesh,
    init_dist_attn_runtime_key,
    manage,
)
from magi_attention.env import general
from magi_attention.env._environment import key_snapshot
from magi_attention.plan import Plan, check_inside, to_mask_types


class KeySpec(NamedTuple):
    """Arguments of a key function."""

    q_ranges: AttnRanges
    k_ranges: AttnRanges
    mask_type: Any
    total_seqlen: int
    heads: tuple[int, int, int]  # query heads, key-value heads, head dim
    group_or_mesh: Any
    config: DistAttnConfig
    placed_by: DistAttnRuntimeKey | None = None


class DistAttnRuntimeDictManager:
    """Keys and communicators per process group."""

    def __init__(self) -> None:
        self._dicts: dict[Any, DistAttnRuntimeDict] = {}
        self._communicators: dict[Any, Communicator] = {}

    def of(self, cp_group: Any) -> DistAttnRuntimeDict:
        """Keys of one group and their managers, in the order of use."""
        found = self._dicts.get(cp_group)
        if found is None:
            found = DistAttnRuntimeDict(general.dist_attn_runtime_dict_size())
            self._dicts[cp_group] = found
        return found

    def communicator(self, cp_group: Any) -> Communicator:
        """One per group, whatever the number of plans."""
        found = self._communicators.get(cp_group)
        if found is None:
            found = self._communicators[cp_group] = make_communicator(cp_group)
        return found

    def get(self, key: DistAttnRuntimeKey, default: Any = None) -> Any:
        """The manager of a key, or default where it is not in the cache of its group."""
        found = self._dicts.get(key.cp_group)
        return default if found is None else found.get(key, default)

    def __contains__(self, key: DistAttnRuntimeKey) -> bool:
        return key in self._dicts.get(key.cp_group, ())

    def keys(self, cp_group: Any = None) -> list[DistAttnRuntimeKey]:
        """The keys of one group, or of all."""
        dicts = self._dicts.values() if cp_group is None else [self.of(cp_group)]
        return [key for found in dicts for key in found]

    def get_most_recent_key(self, cp_group: Any) -> DistAttnRuntimeKey | None:
        """The key that was made or used last in this group, or None."""
        found = self._dicts.get(cp_group)
        return None if found is None else found.get_most_recent_key()

    def note_use(self, key: DistAttnRuntimeKey) -> None:
        """Makes a key the most recent one of its group, without a search for its manager."""
        found = self._dicts.get(key.cp_group)
        if found is not None:
            found.recent = key

    def clear(self, cp_group: Any = None) -> None:
        """Forgets one group, or all."""
        groups = list(self._dicts) if cp_group is None else [to_group(cp_group, "cp_group")[0]]
        for group in groups:
            self._dicts.pop(group, None)
            self._communicators.pop(group, None)
        _seen.clear()


dist_attn_runtime_dict_mgr = DistAttnRuntimeDictManager()

# Keys by the arguments as given, so that a mask seen before costs no conversion. Lists of types may
# change after the call, so a copy is kept and compared. Every step of a training may bring a new
# mask, so the oldest are forgotten.
_SEEN_KEPT = 4096
_seen: dict[tuple, list[tuple[Any, DistAttnRuntimeKey]]] = {}


def to_group(
    group_or_mesh: Any, name: str = "cp_group_or_mesh"
) -> tuple[dist.ProcessGroup, DeviceMesh | None]:
    """The group of a mesh; TypeError or ValueError for anything else."""
    if isinstance(group_or_mesh, DeviceMesh):
        return _group_of_mesh(group_or_mesh), group_or_mesh
    if group_or_mesh is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{name} does not hold this process; allowed: a group that does")
    if not isinstance(group_or_mesh, dist.ProcessGroup):
        check_kind(name, group_or_mesh, DeviceMesh, "a ProcessGroup or a DeviceMesh")
    return group_or_mesh, None


def _group_of_mesh(mesh: DeviceMesh) -> dist.ProcessGroup:
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.ndim != 2:
        raise ValueError(f"cp_group_or_mesh has {mesh.ndim} dimensions; allowed: 1 or 2")
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    if mesh.mesh_dim_names is None:
        raise ValueError("cp_group_or_mesh has no mesh_dim_names; allowed: a 2-D mesh with names")
    return mesh._flatten().get_group()  # the root mesh keeps it


def find_or_make(spec: KeySpec) -> DistAttnRuntimeKey:
    """The key of these arguments, as the most recent one of its group."""
    q, k, mask_type = spec.q_ranges, spec.k_ranges, spec.mask_type
    for name, ranges in (("q_ranges", q), ("k_ranges", k)):
        if type(ranges) is not AttnRanges:
            raise TypeError(f"{name} is a {type(ranges).__name__}; allowed: AttnRanges")
    if not isinstance(spec.config, DistAttnConfig):
        check_kind("dist_attn_config", spec.config, DistAttnConfig, "DistAttnConfig")
    arguments = (
        _content("q_ranges", q), _content("k_ranges", k), spec.total_seqlen, spec.heads,
        id(spec.group_or_mesh), spec.config, spec.placed_by, key_snapshot(),
    )  # fmt: skip
    try:
        candidates = _seen.get(arguments)
    except TypeError:  # something that cannot be hashed, which the plan refuses by name
        return _make(spec)
    if candidates is None:
        while len(_seen) >= _SEEN_KEPT:
            del _seen[next(iter(_seen))]
        candidates = _seen[arguments] = []
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


def _content(name: str, ranges: AttnRanges) -> bytes:
    try:
        return ranges.content()
    except (TypeError, OverflowError):
        check_inside(name, ranges, MAX_ROWS)
        raise


def _make(spec: KeySpec) -> DistAttnRuntimeKey:
    check_flag_comb()
    group, mesh = to_group(spec.group_or_mesh)
    check_mesh(mesh)
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
            config=spec.config,
            on=None if spec.placed_by is None else runtime_of(spec.placed_by).plan,
        )
    if general.is_sanity_check_enable() and plan.defects():
        raise RuntimeError(f"the plan has defects: {plan.defects()}")
    types = list(to_mask_types(spec.mask_type, len(spec.q_ranges)))
    mask = (spec.q_ranges, spec.k_ranges, types)
    if plan.pad_size:
        mask = apply_padding(*mask, spec.total_seqlen, plan.pad_size)
    key = init_dist_attn_runtime_key(
        *mask, plan.padded_seqlen, plan.padded_seqlen, *spec.heads, plan.pad_size, plan.chunk_size,
        group, mesh, spec.config, spec.placed_by,
    )  # fmt: skip
    managers = dist_attn_runtime_dict_mgr.of(group)
    runtime = managers.get(key)
    if runtime is None:
        bound = BoundPlan(plan, group, dist_attn_runtime_dict_mgr.communicator(group))
        runtime = manage(plan, bound, spec.heads, spec.config, (key.q_ranges, key.k_ranges))
        managers[key] = runtime
    managers.touch(key)
    key.name_plan(runtime.bound)
    return key


def runtime_of(key: DistAttnRuntimeKey, name: str = "key") -> DistAttnRuntimeMgr:
    """TypeError for anything but a key, ValueError for one that is not in the cache."""
    if not isinstance(key, DistAttnRuntimeKey):
        raise TypeError(f"{name} is a {type(key).__name__}; allowed: a DistAttnRuntimeKey")
    runtime = dist_attn_runtime_dict_mgr.get(key)
    if runtime is None:
        raise ValueError(
            f"{name} is not in the cache of its group; allowed: keys since clear_cache()"
        )
    return runtime
