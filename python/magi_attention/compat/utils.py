# SPDX-License-Identifier: Apache-2.0
"""The original's helpers that programs import: bounds of documents, dense masks of slices, seeds,
and processes of torchrun.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist

from magi_attention._environment import read_int
from magi_attention.common._arguments import check_int
from magi_attention.common.device import default_device
from magi_attention.common.ranges import AttnRanges
from magi_attention.compat import nvtx


def seqlens2cu_seqlens(seqlens: Sequence[int]) -> list[int]:
    """Lengths of documents -> their bounds, [n + 1], from 0 on."""
    return list(accumulate(seqlens, initial=0))


def cu_seqlens2seqlens(cu_seqlens: Sequence[int]) -> list[int]:
    """Bounds of documents, [n + 1] -> their lengths."""
    return [end - start for start, end in pairwise(cu_seqlens)]


def set_random_seed(seed: int) -> None:
    """Seeds Python's, NumPy's (where it is installed) and torch's generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    with contextlib.suppress(ImportError):
        import numpy.random

        numpy.random.seed(seed)


_CAUSAL, _INV_CAUSAL = 1, 2  # bits of a type's number


def make_ffa_causal_mask(
    seqlen_q: int,
    seqlen_k: int,
    attn_type_idx: int = 0,
    device: torch.device | str | int | None = None,
) -> torch.Tensor:
    """bool [seqlen_q, seqlen_k], True where a slice of this type (0 full, 1 causal, 2 inverse
    causal, 3 both) shows a key. device: the current GPU, or host memory where torch has no CUDA.
    """
    check_int("attn_type_idx", attn_type_idx, 0, 3)
    device = default_device(device)
    rows = torch.arange(seqlen_q, device=device)[:, None]
    keys = torch.arange(seqlen_k, device=device)[None, :]
    visible = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    if attn_type_idx & _CAUSAL:
        visible &= keys - rows <= seqlen_k - seqlen_q
    if attn_type_idx & _INV_CAUSAL:
        visible &= keys >= rows
    return visible


def make_attn_mask_from_ffa_args(
    q_ranges: AttnRanges,
    k_ranges: AttnRanges,
    attn_type_map: Sequence[int],
    total_seqlen_q: int,
    total_seqlen_k: int,
    device: torch.device | str | int | None = None,
) -> torch.Tensor:
    """bool [total_seqlen_q, total_seqlen_k], True where a slice shows a key: q_ranges[i] see
    k_ranges[i] under the type of number attn_type_map[i]. device: as in make_ffa_causal_mask.
    """
    device = default_device(device)
    visible = torch.zeros(total_seqlen_q, total_seqlen_k, dtype=torch.bool, device=device)
    for q, k, kind in zip(q_ranges, k_ranges, attn_type_map):
        part = make_ffa_causal_mask(q.seqlen, k.seqlen, kind, device)
        visible[q.start : q.end, k.start : k.end] |= part
    return visible


get_attn_mask_from_ffa_args = make_attn_mask_from_ffa_args


def setup_dist_env(
    backend: str = "nccl",
    base_seed: int | None = None,
    seed_bias: Callable[[int], int] = lambda rank: 0,
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


__all__ = [
    "clearup_dist_env", "cu_seqlens2seqlens", "get_attn_mask_from_ffa_args",
    "make_attn_mask_from_ffa_args", "make_ffa_causal_mask", "nvtx", "seqlens2cu_seqlens",
    "set_random_seed", "setup_dist_env",
]  # fmt: skip
