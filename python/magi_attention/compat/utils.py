# SPDX-License-Identifier: Apache-2.0
"""The original's helpers that programs import: lists, types and seeds, slices as dense matrices,
processes of torchrun, groups, and the units of OverlapConfig's cost factors.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from magi_attention._environment import read_int
from magi_attention.comm.group import rank_tuple
from magi_attention.common._arguments import as_bool, check_int, check_kind
from magi_attention.common.device import default_device
from magi_attention.common.ranges import AttnRanges
from magi_attention.compat import nvtx


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def seqlens2cu_seqlens(seqlens: Sequence[int]) -> list[int]:
    """Lengths of documents -> their bounds, [n + 1], from 0 on."""
    return list(accumulate(seqlens, initial=0))


def cu_seqlens2seqlens(cu_seqlens: Sequence[int]) -> list[int]:
    """Bounds of documents, [n + 1] -> their lengths."""
    return [end - start for start, end in pairwise(cu_seqlens)]


def flatten_nested_list(nested_list: Sequence) -> list:
    """Yields what lists and tuples in each other hold, in order."""
    flat: list = []
    for item in nested_list:
        if isinstance(item, (list, tuple)):
            flat += flatten_nested_list(item)
        else:
            flat.append(item)
    return flat


def perm_idxs2unperm_idxs(perm_idxs: Sequence[int]) -> list[int]:
    """The inverse of a permutation; IndexError for a number that is no position."""
    inverse = [0] * len(perm_idxs)
    for place, index in enumerate(perm_idxs):
        inverse[index] = place
    return inverse


def wrap_to_list(x: Any, broadcast_to_length: int = 1) -> list[Any]:
    """A list of what a list or a tuple holds; anything else, so many times."""
    return list(x) if isinstance(x, (list, tuple)) else [x] * broadcast_to_length


def is_list_value_all(
    _list: Sequence[Any], val: Any = None, just_same: bool = False, allow_empty: bool = False
) -> bool:
    """Whether every entry is val, or with just_same the first one; allow_empty for an empty list.
    AssertionError for both.
    """
    return _holds(all, _list, val, just_same, allow_empty)


def is_list_value_any(
    _list: Sequence[Any], val: Any = None, just_same: bool = False, allow_empty: bool = False
) -> bool:
    """Whether an entry is val, or with just_same the first one; allow_empty for an empty list.
    AssertionError for both.
    """
    return _holds(any, _list, val, just_same, allow_empty)


def _holds(quantifier: Callable, entries, val: Any, just_same: bool, allow_empty: bool) -> bool:
    if not entries:
        return allow_empty
    assert not just_same or val is None, f"val is {val!r} with just_same; allowed: None"
    wanted = entries[0] if just_same else val
    return quantifier(entry == wanted for entry in entries)


def is_list_type_all(
    _list: Sequence[Any], _type: Any = None, just_same: bool = False, allow_empty: bool = False
) -> bool:
    """Whether every entry is of _type, or with just_same of the first one's; allow_empty for an
    empty list. AssertionError for both.
    """
    if not _list:
        return allow_empty
    assert not just_same or _type is None, f"_type is {_type!r} with just_same; allowed: None"
    wanted = type(_list[0]) if just_same else _type
    return all(isinstance(entry, wanted) for entry in _list)


def transpose_matrix(matrix: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Columns of a matrix. ValueError for none and for rows of unequal lengths."""
    if not matrix:
        raise ValueError("matrix is empty; allowed: at least one row")
    lengths = {len(row) for row in matrix}
    if len(lengths) > 1:
        raise ValueError(f"matrix has rows of lengths {sorted(lengths)}; allowed: one length")
    return [list(column) for column in zip(*matrix)]


def _itself(x: Any) -> Any:
    return x


def argmin(iterable: Iterable[Any], key: Callable = _itself) -> int:
    """Position of the smallest entry, the first among equals."""
    entries = list(iterable)
    return min(range(len(entries)), key=lambda index: key(entries[index]))


def argmax(iterable: Iterable[Any], key: Callable = _itself) -> int:
    """Position of the largest entry, the first among equals."""
    entries = list(iterable)
    return max(range(len(entries)), key=lambda index: key(entries[index]))


def argsort(iterable: Iterable[Any], key: Callable = _itself) -> list[int]:
    """Positions in ascending order of the entries; equal ones keep their order."""
    entries = list(iterable)
    return sorted(range(len(entries)), key=lambda index: key(entries[index]))


_NUM_SEEDS = 1 << 32


def is_fp_dtype_at_least(tensor: torch.Tensor, lowest_precision: torch.dtype) -> bool:
    """Whether elements have as many bits as lowest_precision."""
    check_kind("tensor", tensor, torch.Tensor, "a torch.Tensor")
    return torch.finfo(tensor.dtype).bits >= torch.finfo(lowest_precision).bits


def to_higher_fp_dtype(tensor: torch.Tensor, lowest_precision: torch.dtype) -> torch.Tensor:
    """The tensor, or where its elements have fewer bits a copy in lowest_precision."""
    is_enough = is_fp_dtype_at_least(tensor, lowest_precision)
    return tensor if is_enough else tensor.to(lowest_precision)


def max_fp_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """The type of most bits, the first among equals."""
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).bits)


def str2seed(s: str) -> int:
    """A seed that depends on the text alone, 0 to 2^32 - 1."""
    check_kind("s", s, str, "a str")
    return int.from_bytes(hashlib.sha256(s.encode()).digest(), "big") % _NUM_SEEDS


def set_random_seed(seed: int) -> None:
    """Seeds Python's, NumPy's (where it is installed) and torch's generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = _numpy_random()
    if numpy is not None:
        numpy.seed(seed)


def _numpy_random():
    try:
        import numpy.random
    except ImportError:
        return None
    return numpy.random


@contextmanager
def sync_rng(seed: int) -> Iterator[None]:
    """All generators start at a seed inside, and go on afterwards as if nothing had been drawn."""
    numpy, state = _numpy_random(), random.getstate()
    numpy_state = None if numpy is None else numpy.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            set_random_seed(seed)
            yield
        finally:
            random.setstate(state)
            if numpy is not None:
                numpy.set_state(numpy_state)


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


__all__ = [
    "argmax", "argmin", "argsort", "ceil_div", "clearup_dist_env", "cu_seqlens2seqlens",
    "flatten_nested_list", "get_a2a_corr_factor", "get_attn_mask_from_ffa_args",
    "get_calc_cost_factor", "get_comm_cost_factor", "is_fp_dtype_at_least", "is_list_type_all",
    "is_list_value_all", "is_list_value_any", "is_same_device_mesh", "is_same_process_group",
    "make_attn_mask_from_ffa_args", "make_ffa_causal_mask", "max_fp_dtype", "nvtx",
    "perm_idxs2unperm_idxs", "rprint_rank", "seqlens2cu_seqlens", "set_random_seed",
    "setup_dist_env", "str2seed", "sync_rng", "to_higher_fp_dtype", "transpose_matrix",
    "wrap_to_list", "write_rank",
]  # fmt: skip
