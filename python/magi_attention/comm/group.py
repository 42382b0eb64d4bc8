# SPDX-License-Identifier: Apache-2.0
"""Process groups: this process's place in one, and its communicator."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable
from typing import NoReturn

import torch
import torch.distributed as dist

from magi_attention._group_holders import caches_groups, note_group
from magi_attention._native.nccl import nccl_communicator
from magi_attention._native.vtable import Communicator
from magi_attention.comm.allgather import StoreAllgather
from magi_attention.comm.first_call import first_calls_of
from magi_attention.comm.process_group import ProcessGroupTransport, rank_in
from magi_attention.common._lru import LruCache
from magi_attention.env.build import has_gpu_kernels
from magi_attention.env.comm import TRANSPORTS
from magi_attention.env.comm import transport as transport_of_environment
from magi_attention.errors import CommError

_log = logging.getLogger(__name__)
# The library's words for ranks that nvlink cannot join, which is no news for a program that runs on
# several hosts.
_OTHER_HOST = "is on another host"


def rank_of(cp_group: dist.ProcessGroup | None) -> int:
    """This process's rank in the group. ValueError unless it has one, TypeError for what is no
    group, RuntimeError for one that was destroyed.
    """
    return 0 if cp_group is None else rank_in("cp_group", cp_group)


def size_of(cp_group: dist.ProcessGroup | None) -> int:
    """Ranks of the group, 1 for None. Errors as rank_of."""
    rank_of(cp_group)
    return 1 if cp_group is None else dist.get_world_size(cp_group)


def num_processes() -> int:
    """Processes of the program: of torch.distributed, else as a launcher told this one, or 1."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    told = os.environ.get("WORLD_SIZE", "1")
    return int(told) if told.isdecimal() else 1


def refuse_lone_process(cp_group: dist.ProcessGroup | None) -> None:
    """ValueError for None in one of several processes, each of which would attend to its own rows
    alone: dist.group.WORLD is None before torch.distributed is up.
    """
    if cp_group is None and num_processes() > 1:
        raise ValueError(
            f"cp_group is None in one of {num_processes()} processes; allowed: a group, made after "
            "init_process_group, such as dist.new_group([rank], use_local_synchronization=True) "
            "for one that shares nothing"
        )


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
# Windows of GPU memory and communicators of NCCL are shared by all plans of a group.
_shared = LruCache(_GROUPS_KEPT)
_logged = LruCache(_GROUPS_KEPT)  # groups whose transport is logged, and why it is no faster one
_START_TIMEOUT = datetime.timedelta(seconds=100)


def _clear() -> None:
    _communicators.clear()
    _shared.clear()
    _logged.clear()


def _forget(group: dist.ProcessGroup) -> None:
    _communicators.pop(group, None)
    _logged.pop(group, None)
    for key in [key for key in _shared if key[1] is group]:
        del _shared[key]


caches_groups(_clear, _forget)


def communicator_of(group: dist.ProcessGroup) -> Communicator:
    """The communicator of group_cast and group_reduce, kept for the next call."""
    if transport_of_environment() == "nccl":
        return _over_nccl(group)
    found = _communicators.get(group)
    if found is None:
        note_group(group)
        found = _communicators[group] = Communicator.over(ProcessGroupTransport(group))
    return found


def make_communicator(
    cp_group: dist.ProcessGroup | None, transport: str | None = None
) -> Communicator:
    """A communicator over the group, or over this process alone for None and groups of one. Between
    the GPUs of one host rows go over nvlink, see MAGI_ATTENTION_TRANSPORT, which `transport` goes
    before. ValueError for another one, and for one of GPUs where there are none.
    """
    if transport is not None and transport not in TRANSPORTS:
        allowed = ", ".join(TRANSPORTS)
        raise ValueError(f"transport is {transport!r}; allowed: {allowed}, or None")
    choice = transport_of_environment() if transport is None else transport
    if cp_group is not None:
        note_group(cp_group)
    missing = _missing_for_gpus()
    if missing and transport in ("nccl", "nvlink"):
        _refuse_transport(transport, missing)
    if cp_group is None or dist.get_world_size(cp_group) == 1:
        return Communicator.alone()
    first_calls_of(cp_group)  # tells where this process is, so that its end is noticed from here on
    if missing and choice in ("nccl", "nvlink"):
        _refuse_transport(choice, missing)
    if choice == "nccl":
        return _over_nccl(cp_group)
    supplied = ProcessGroupTransport(cp_group)
    wants_nvlink = choice == "nvlink" or (choice == "auto" and supplied.moves_device_memory)
    if missing or not wants_nvlink:
        asked = f"transport is {choice!r}" if choice != "auto" else ""
        _log_group(cp_group, asked or missing or "its group has no nccl")
        return Communicator.over(supplied)
    return _shared_one(
        "nvlink",
        cp_group,
        lambda device: _over_nvlink(Communicator.over(supplied), device, choice, cp_group),
    )


def _refuse_transport(choice: str, missing: str) -> NoReturn:
    raise ValueError(
        f"transport is {choice!r}, but {missing}; allowed: auto, process_group; try: python -m "
        "magi_attention doctor"
    )


def _missing_for_gpus() -> str:
    """Why no rows can go between GPUs here by means of the library, or ""."""
    if not torch.cuda.is_available():
        return "this process sees no GPU"
    return "" if has_gpu_kernels() else "this library holds no kernels for GPUs"


def _shared_one(
    transport: str, group: dist.ProcessGroup, make: Callable[[int], Communicator]
) -> Communicator:
    """The group's communicator on torch's current GPU; a new one where it has failed."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else 0
    key = (transport, group, device)
    found = _shared.get(key)
    if found is None or _has_failed(found):
        found = _shared[key] = make(device)
    return found


def _has_failed(communicator: Communicator) -> bool:
    try:
        communicator.check()
    except CommError:
        return True
    return False


def _over_nccl(group: dist.ProcessGroup) -> Communicator:
    """NCCL as the library calls it; of the group only its store is used."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)

    def make(device: int) -> Communicator:
        calls = first_calls_of(group)
        allgather = StoreAllgather(calls.lives, _START_TIMEOUT) if calls else lambda data: [data]
        return nccl_communicator(rank, num_ranks, device, allgather)

    return _shared_one("nccl", group, make)


def _over_nvlink(
    base: Communicator, device: int, choice: str, group: dist.ProcessGroup
) -> Communicator:
    """`base` over nvlink, or itself where the ranks cannot and nvlink was not asked for."""
    try:
        return base.over_nvlink(device)
    except CommError as error:
        if choice == "nvlink":
            raise
        level = logging.INFO if _OTHER_HOST in str(error) else logging.WARNING
        _log_group(group, str(error), level)
        return base


def _log_group(group: dist.ProcessGroup, reason: str, level: int = logging.INFO) -> None:
    """Logs once that torch's collectives carry a group's rows, and why nothing faster does. A
    warning comes from rank 0 alone, as all ranks have the same reason.
    """
    if _logged.get(group) == reason:
        return
    _logged[group] = reason
    rank = dist.get_rank(group)
    _log.log(
        level if rank == 0 else logging.INFO,
        "rank %d of %d: torch's %s carries rows between ranks, as %s",
        rank, dist.get_world_size(group), dist.get_backend_config(group), reason,
    )  # fmt: skip
