# SPDX-License-Identifier: Apache-2.0
"""Process groups: this process's place in one, and its communicator."""

from __future__ import annotations

import torch.distributed as dist

from magi_attention._native.vtable import Communicator
from magi_attention.comm.process_group import ProcessGroupTransport, rank_in
from magi_attention.common._lru import LruCache


def rank_of(cp_group: dist.ProcessGroup | None) -> int:
    """This process's rank in the group. ValueError unless it has one, TypeError for what is no
    group, RuntimeError for one that was destroyed.
    """
    return 0 if cp_group is None else rank_in("cp_group", cp_group)


def size_of(cp_group: dist.ProcessGroup | None) -> int:
    """Ranks of the group, 1 for None. Errors as rank_of."""
    rank_of(cp_group)
    return 1 if cp_group is None else dist.get_world_size(cp_group)


# Groups whose communicator is kept for collectives outside of plans.
_GROUPS_KEPT = 16
_communicators = LruCache(_GROUPS_KEPT)


def communicator_of(group: dist.ProcessGroup) -> Communicator:
    """The communicator of group_cast and group_reduce, kept for the next call."""
    found = _communicators.get(group)
    if found is None:
        found = _communicators[group] = Communicator.over(ProcessGroupTransport(group))
    return found


def make_communicator(cp_group: dist.ProcessGroup | None) -> Communicator:
    """A communicator over the group, or over this process alone for None and groups of one."""
    if cp_group is None or dist.get_world_size(cp_group) == 1:
        return Communicator.alone()
    return Communicator.over(ProcessGroupTransport(cp_group))
