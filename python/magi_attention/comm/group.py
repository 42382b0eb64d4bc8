# SPDX-License-Identifier: Apache-2.0
"""Process groups: this process's place in one, and its communicator."""

from __future__ import annotations

import torch
import torch.distributed as dist

from magi_attention._at_exit import clear_at_exit
from magi_attention._native.vtable import Communicator
from magi_attention.comm.process_group import ProcessGroupTransport, rank_in
from magi_attention.common._lru import LruCache
from magi_attention.env.build import has_gpu_kernels
from magi_attention.env.comm import transport
from magi_attention.errors import CommError


def rank_of(cp_group: dist.ProcessGroup | None) -> int:
    """This process's rank in the group. ValueError unless it has one, TypeError for what is no
    group, RuntimeError for one that was destroyed.
    """
    return 0 if cp_group is None else rank_in("cp_group", cp_group)


def size_of(cp_group: dist.ProcessGroup | None) -> int:
    """Ranks of the group, 1 for None. Errors as rank_of."""
    rank_of(cp_group)
    return 1 if cp_group is None else dist.get_world_size(cp_group)


def rank_tuple(cp_group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """The ranks of a group in ascending order; () for None and for one that was destroyed."""
    if cp_group is None:
        return ()
    try:
        return tuple(sorted(dist.get_process_group_ranks(cp_group)))
    except (KeyError, ValueError, RuntimeError):
        return ()


# Groups whose communicator is kept for collectives outside of plans.
_GROUPS_KEPT = 16
_communicators = LruCache(_GROUPS_KEPT)
# Windows of GPU memory are shared by all plans of a group.
_nvlinks = LruCache(_GROUPS_KEPT)
clear_at_exit(_communicators.clear)
clear_at_exit(_nvlinks.clear)


def communicator_of(group: dist.ProcessGroup) -> Communicator:
    """The communicator of group_cast and group_reduce, kept for the next call."""
    found = _communicators.get(group)
    if found is None:
        found = _communicators[group] = Communicator.over(ProcessGroupTransport(group))
    return found


def make_communicator(cp_group: dist.ProcessGroup | None) -> Communicator:
    """A communicator over the group, or over this process alone for None and groups of one. Between
    the GPUs of one host rows go over nvlink, see MAGI_ATTENTION_TRANSPORT.
    """
    if cp_group is None or dist.get_world_size(cp_group) == 1:
        return Communicator.alone()
    supplied = ProcessGroupTransport(cp_group)
    choice = transport()
    wants_nvlink = choice == "nvlink" or (choice == "auto" and supplied.moves_device_memory)
    if not (wants_nvlink and torch.cuda.is_available() and has_gpu_kernels()):
        return Communicator.over(supplied)
    device = torch.cuda.current_device()
    found = _nvlinks.get((cp_group, device))
    if found is None:
        found = _nvlinks[cp_group, device] = _over_nvlink(
            Communicator.over(supplied), device, choice
        )
    return found


def _over_nvlink(base: Communicator, device: int, choice: str) -> Communicator:
    """`base` over nvlink, or itself where the ranks cannot and nvlink was not asked for."""
    try:
        return base.over_nvlink(device)
    except CommError:
        if choice == "nvlink":
            raise
        return base
