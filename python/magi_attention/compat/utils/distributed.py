# SPDX-License-Identifier: Apache-2.0
"""Processes of torchrun, groups, and the units of OverlapConfig's cost factors."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from magi_attention._environment import read_int
from magi_attention.comm.group import rank_tuple
from magi_attention.common._arguments import as_bool
from magi_attention.compat.utils.numbers import set_random_seed

_BACKWARD_OVER_FORWARD = 2.5  # five products for two


def _no_bias(rank: int) -> int:
    return 0


def setup_dist_env(
    backend: str = "nccl", base_seed: int | None = None, seed_bias: Callable[[int], int] = _no_bias
) -> tuple[int, int, int, int, int, dist.ProcessGroup, int | torch.device, int | None]:
    """Starts torch.distributed in a process of torchrun (or alone, as the one rank) on the GPU of
    its local rank; where torch has no CUDA in host memory, over gloo in place of nccl. base_seed:
    seeds all generators with base_seed + seed_bias(rank).

    Returns (rank, local rank, world size, nodes, ranks of a node, the group of all, device, seed);
    device is the GPU's index or that of host memory, seed None without base_seed.
    """
    rank, local_rank = read_int("RANK", 0, 0), read_int("LOCAL_RANK", 0, 0)
    world_size = read_int("WORLD_SIZE", 1, 1)
    num_nodes = read_int("NNODES", 1, 1)
    num_local_ranks = read_int("LOCAL_WORLD_SIZE", read_int("NPROC_PER_NODE", 1, 1), 1)
    device: int | torch.device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        device = torch.cuda.current_device()
    elif backend == "nccl":
        backend = "gloo"
    place = {} if world_size > 1 else {"store": dist.HashStore()}
    dist.init_process_group(backend, rank=rank, world_size=world_size, **place)
    seed = None
    if base_seed is not None:
        seed = base_seed + seed_bias(rank)
        set_random_seed(seed)
    return (
        rank, local_rank, world_size, num_nodes, num_local_ranks, dist.group.WORLD, device, seed,
    )  # fmt: skip


def clearup_dist_env() -> None:
    """Ends torch.distributed."""
    dist.destroy_process_group()


def rprint_rank(msg: str, rank: int | None = None, width: int = 50) -> None:
    """Prints msg under a line that names this rank; rank: on that one alone."""
    _write(sys.stdout, msg, rank, width)


def write_rank(msg: str, path: str, rank: int | None = None, width: int = 50) -> None:
    """Appends msg to a file under a line that names this rank; rank: on that one alone."""
    if rank is None or rank == dist.get_rank():
        with open(path, "a", encoding="utf-8") as file:
            _write(file, msg, rank, width)


def _write(file, msg: str, rank: int | None, width: int) -> None:
    own = dist.get_rank()
    if rank is None or rank == own:
        title = f" rank={own} ".center(2 * width, "-")
        print(f"\n{title}\n\n{msg}", file=file, flush=True)


def is_same_process_group(
    group1: dist.ProcessGroup | None, group2: dist.ProcessGroup | None
) -> bool:
    """Whether both hold the same ranks, or both are None."""
    if not isinstance(group1, dist.ProcessGroup) or not isinstance(group2, dist.ProcessGroup):
        return group1 is None and group2 is None
    return rank_tuple(group1) == rank_tuple(group2)


def is_same_device_mesh(mesh1: DeviceMesh | None, mesh2: DeviceMesh | None) -> bool:
    """Whether both are of one device type and hold the same ranks in one shape; so are two None."""
    if not isinstance(mesh1, DeviceMesh) or not isinstance(mesh2, DeviceMesh):
        return mesh1 is None and mesh2 is None
    return mesh1.device_type == mesh2.device_type and torch.equal(mesh1.mesh, mesh2.mesh)


def get_calc_cost_factor(
    num_heads_q: int,
    head_dim: int,
    tflops: float,
    mfu: float,
    sec_ratio: float = 1e6,
    is_fwd: bool = True,
) -> float:
    """Time of one visible pair in attention: of 4 * num_heads_q * head_dim operations, 2.5 times as
    many in backward, at mfu * tflops operations a second; sec_ratio units a second.
    """
    operations = (
        4 * num_heads_q * head_dim * (1.0 if as_bool("is_fwd", is_fwd) else _BACKWARD_OVER_FORWARD)
    )
    return operations / (tflops * mfu) * sec_ratio


def get_comm_cost_factor(
    num_heads_kv: int,
    head_dim: int,
    bandwidth: float,
    bwu: float,
    corr_factor: float,
    sec_ratio: float = 1e6,
) -> float:
    """Time of sending one row of keys and values, 2 * num_heads_kv * head_dim elements, at
    bandwidth * bwu * corr_factor elements a second; sec_ratio units a second.
    """
    return 2 * num_heads_kv * head_dim / (bandwidth * bwu * corr_factor) * sec_ratio


def get_a2a_corr_factor(world_size: int) -> float:
    """The share of an all-to-all that leaves its rank; 1 for one rank."""
    return (world_size - 1) / world_size if world_size > 1 else 1.0
