# SPDX-License-Identifier: Apache-2.0
"""The keys of every process group, with their managers and its communicator."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from magi_attention._native.vtable import Communicator
from magi_attention.comm.group import make_communicator
from magi_attention.common._arguments import check_kind
from magi_attention.common._lru import LruCache
from magi_attention.env import general
from magi_attention.keys.key import DistAttnRuntimeKey
from magi_attention.keys.manager_dict import DistAttnRuntimeDict

# One entry for each way in which a key was asked for: those of four groups that are full, by
# default of 1000 keys. An entry holds the bytes of its ranges.
_SEEN_KEPT = 4096


class DistAttnRuntimeDictManager:
    """Keys and communicators per process group, and keys by the arguments they were made of."""

    def __init__(self) -> None:
        self._dicts: dict[Any, DistAttnRuntimeDict] = {}
        self._communicators: dict[Any, Communicator] = {}
        # From the arguments as given to [(mask type, key)], so that a mask seen before costs no
        # conversion. Lists of types may change after the call, so a copy is kept and compared.
        self.seen = LruCache(_SEEN_KEPT)

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
        self.seen.clear()


dist_attn_runtime_dict_mgr = DistAttnRuntimeDictManager()
dist_attn_runtime_dict_mgr = DistAttnRuntimeDictManager()


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
