# SPDX-License-Identifier: Apache-2.0
"""The keys of every process group, with their managers and its communicator."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from magi_attention._group_holders import caches_groups
from magi_attention._native.vtable import Communicator
from magi_attention.comm.group import make_communicator, rank_tuple
from magi_attention.common._arguments import check_int, check_kind
from magi_attention.common._lru import LruCache
from magi_attention.compat.keys.key import DistAttnRuntimeKey
from magi_attention.compat.keys.manager import DistAttnRuntimeMgr
from magi_attention.env import general


class DistAttnRuntimeDict(LruCache):
    """Managers by key; the key that was asked for longest ago leaves when max_size is passed."""

    def __init__(self, max_size: int, *args: Any, **kwargs: Any) -> None:
        self.recent: DistAttnRuntimeKey | None = None
        super().__init__(max_size, *args, **kwargs)

    def __setitem__(self, key: DistAttnRuntimeKey, value: DistAttnRuntimeMgr) -> None:
        super().__setitem__(key, value)
        self.recent = key

    def __delitem__(self, key: DistAttnRuntimeKey) -> None:
        super().__delitem__(key)
        if self.recent is key:
            self.recent = None

    def get(self, key: DistAttnRuntimeKey, default: Any = None) -> Any:
        """The manager of a key, which counts as asked for, or default."""
        if key not in self:
            return default
        self.recent = key
        return super().get(key, default)

    def touch(self, key: DistAttnRuntimeKey) -> None:
        """Makes a stored key the most recent one."""
        self.move_to_end(key)
        self.recent = key

    def get_most_recent_key(self) -> DistAttnRuntimeKey | None:
        """The key made or asked for last, or None."""
        return self.recent if self.recent in self else next(reversed(self), None)


# One entry for each way in which a key was asked for: those of four groups that are full, by
# default of 1000 keys. An entry holds the bytes of its ranges.
_SEEN_KEPT = 4096


class DistAttnRuntimeDictManager:
    """Keys and communicators per process group, and keys by the arguments they were made of. Groups
    of the same ranks share their keys. max_size_per_group: keys kept for a group, None: those of
    MAGI_ATTENTION_DIST_ATTN_RUNTIME_DICT_SIZE.
    """

    def __init__(self, max_size_per_group: int | None = None) -> None:
        if max_size_per_group is not None:
            check_int("max_size_per_group", max_size_per_group, 1)
        self.max_size_per_group = max_size_per_group
        self._of_ranks: dict[tuple[int, ...], DistAttnRuntimeDict] = {}
        self._dicts: dict[Any, DistAttnRuntimeDict] = {}  # the same by group
        self._communicators: dict[Any, Communicator] = {}
        # From the arguments as given to [(mask type, key)], so that a mask seen before costs no
        # conversion. Lists of types may change after the call, so a copy is kept and compared.
        self.seen = LruCache(_SEEN_KEPT)

    @property
    def max_size(self) -> int:
        """Keys that are kept for a group that is new."""
        return self.max_size_per_group or general.dist_attn_runtime_dict_size()

    def _find(self, cp_group: Any) -> DistAttnRuntimeDict | None:
        found = self._dicts.get(cp_group)
        return self._of_ranks.get(rank_tuple(cp_group)) if found is None else found

    def of(self, cp_group: Any) -> DistAttnRuntimeDict:
        """Keys of one group that is alive and their managers, in the order of use."""
        found = self._dicts.get(cp_group)
        if found is None:
            ranks = rank_tuple(cp_group)
            found = self._of_ranks.setdefault(ranks, DistAttnRuntimeDict(self.max_size))
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

    def __getitem__(self, key: DistAttnRuntimeKey) -> DistAttnRuntimeMgr:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: DistAttnRuntimeKey, value: DistAttnRuntimeMgr) -> None:
        self.of(key.cp_group)[key] = value

    def __contains__(self, key: DistAttnRuntimeKey) -> bool:
        return key in self._dicts.get(key.cp_group, ())

    def keys(self, cp_group: Any = None) -> list[DistAttnRuntimeKey]:
        """The keys of one group, or of all."""
        dicts = self._of_ranks.values() if cp_group is None else [self._find(cp_group) or ()]
        return [key for found in dicts for key in found]

    def get_most_recent_key(self, cp_group: Any) -> DistAttnRuntimeKey | None:
        """The key that was made or used last in this group, or None."""
        found = self._find(cp_group)
        return None if found is None else found.get_most_recent_key()

    def note_use(self, key: DistAttnRuntimeKey) -> None:
        """Makes a key the most recent one of its group, without a search for its manager."""
        found = self._dicts.get(key.cp_group)
        if found is not None:
            found.recent = key

    def forget(self, cp_group: Any) -> None:
        """Forgets a destroyed group with its keys; those of other groups of its ranks stay."""
        if self._dicts.pop(cp_group, None) is None and cp_group not in self._communicators:
            return
        self._communicators.pop(cp_group, None)
        for arguments, candidates in list(self.seen.items()):
            living = [entry for entry in candidates if entry[1].cp_group is not cp_group]
            if len(living) < len(candidates):  # the group's id, which stands in them, is free now
                del self.seen[arguments]
        alive = list(self._dicts.values())
        for ranks, found in list(self._of_ranks.items()):
            for key in [key for key in found if key.cp_group is cp_group]:
                del found[key]
            if not any(found is other for other in alive):
                del self._of_ranks[ranks]

    def clear(self, cp_group: Any = None) -> None:
        """Forgets the keys and communicators of one group, and of others of its ranks, or all."""
        self.seen.clear()
        if cp_group is None:
            for kept in (self._of_ranks, self._dicts, self._communicators):
                kept.clear()
            return
        group, _ = to_group(cp_group, "cp_group")
        cleared = self._find(group)
        for other in [other for other, found in self._dicts.items() if found is cleared]:
            del self._dicts[other]
            self._communicators.pop(other, None)
        for ranks in [ranks for ranks, found in self._of_ranks.items() if found is cleared]:
            del self._of_ranks[ranks]


dist_attn_runtime_dict_mgr = DistAttnRuntimeDictManager()
caches_groups(dist_attn_runtime_dict_mgr.clear, dist_attn_runtime_dict_mgr.forget)


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
