# SPDX-License-Identifier: Apache-2.0
"""The original's helpers around block-sparse and index-sparse attention: random patterns, ranges
from block masks and from lists of blocks.

Functions that make ranges fold heads into rows: kv head h has rows [h * rows, (h + 1) * rows), so
q has the form [heads_kv * rows_q, heads_q / heads_kv, dim] and k [heads_kv * rows_k, 1, dim].
All functions are operators of torch on the tensors' device. Those whose result is as long as the
pattern has blocks read its length back to the host; others read nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from magi_attention.common._arguments import check_int, check_kind

_MODES = ("per_q_head", "per_kv_head", "shared")


def _check_heads(num_q_heads: int, num_kv_heads: int) -> None:
    _check_sizes(num_q_heads=num_q_heads, num_kv_heads=num_kv_heads)
    if num_q_heads % num_kv_heads != 0:
        raise ValueError(f"num_q_heads is {num_q_heads}; allowed: a multiple of {num_kv_heads}")


def _check_sizes(**sizes: int) -> None:
    """TypeError or ValueError unless all are numbers of rows, blocks or heads from 1 on."""
    for name, size in sizes.items():
        check_int(name, size, 1)


def _check_axes(name: str, tensor: torch.Tensor, axes: int) -> None:
    check_kind(name, tensor, torch.Tensor, "a torch.Tensor")
    if tensor.dim() != axes:
        raise ValueError(f"{name} has {tensor.dim()} axes; allowed: {axes}")


def _check_batch(name: str, mask: torch.Tensor) -> None:
    _check_axes(name, mask, 4)
    if mask.shape[0] != 1:
        raise ValueError(f"{name}.shape[0] is {mask.shape[0]}; allowed: 1, the batch")


def _mask_heads(mode: str, num_q_heads: int, num_kv_heads: int) -> int:
    _check_heads(num_q_heads, num_kv_heads)
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}; allowed: {', '.join(_MODES)}")
    return {"per_q_head": num_q_heads, "per_kv_head": num_kv_heads, "shared": 1}[mode]


def _as_ranges(begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    return torch.stack((begin, end), dim=-1).reshape(-1, 2).to(torch.int32)


def generate_block_sparse_pattern(
    num_q_heads: int,
    num_kv_heads: int,
    num_q_blocks: int,
    num_kv_blocks: int,
    sparsity: float,
    mode: str = "per_kv_head",
    sparse_format: str = "block_mask",
    device: str | torch.device = "cuda",
    scores: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A pattern in which every q block keeps its sparsity * num_kv_blocks best blocks of keys by
    scores [heads, num_q_blocks, num_kv_blocks], random ones unless given; and the scores.

    mode: heads are those of q ("per_q_head"), of k ("per_kv_head") or one ("shared").
    sparse_format "block_mask": bool [1, heads, num_q_blocks, num_kv_blocks]; "topk": int32 [heads,
    num_q_blocks, kept]. ValueError for other modes, formats and shapes, and for no blocks.
    """
    _check_sizes(num_q_blocks=num_q_blocks, num_kv_blocks=num_kv_blocks)
    heads = _mask_heads(mode, num_q_heads, num_kv_heads)
    shape = (heads, num_q_blocks, num_kv_blocks)
    if scores is None:
        scores = torch.rand(shape, device=device)
    elif tuple(scores.shape) != shape:
        raise ValueError(f"scores has shape {list(scores.shape)}; allowed: {list(shape)}")
    num_kept = min(max(1, int(sparsity * num_kv_blocks)), num_kv_blocks)
    best = scores.topk(num_kept, dim=-1).indices
    if sparse_format == "topk":
        return best.to(torch.int32), scores
    if sparse_format != "block_mask":
        raise ValueError(f'sparse_format is {sparse_format!r}; allowed: "block_mask", "topk"')
    mask = torch.zeros(shape, dtype=torch.bool, device=scores.device).scatter_(2, best, True)
    return mask.unsqueeze(0), scores


def flatten_block_mask_to_kv_shape(mask_kv_4d: torch.Tensor) -> torch.Tensor:
    """bool [1, heads_kv, q_blocks, k_blocks] with heads folded into rows on both sides:
    [heads_kv * q_blocks, heads_kv * k_blocks], False between heads.
    """
    _check_axes("mask_kv_4d", mask_kv_4d, 4)
    return flatten_block_mask(mask_kv_4d, mask_kv_4d.shape[1], mask_kv_4d.shape[1])


def flatten_block_mask(mask_4d: torch.Tensor, num_q_heads: int, num_kv_heads: int) -> torch.Tensor:
    """bool [1, num_q_heads, q_blocks, k_blocks] with heads folded into rows: [num_q_heads *
    q_blocks, num_kv_heads * k_blocks], where a head sees blocks of its kv head alone.
    """
    _check_batch("mask_4d", mask_4d)
    _check_heads(num_q_heads, num_kv_heads)
    _, heads, num_q, num_k = mask_4d.shape
    if heads != num_q_heads:
        raise ValueError(f"mask_4d has {heads} heads; allowed: {num_q_heads}")
    head = torch.arange(heads, device=mask_4d.device)
    flat = mask_4d.new_zeros((heads, num_q, num_kv_heads, num_k))
    flat[head, :, head // (num_q_heads // num_kv_heads)] = mask_4d[0]
    return flat.view(heads * num_q, num_kv_heads * num_k)


def generate_ranges_from_topk_indices(
    topk_indices: torch.Tensor, block_m: int, block_n: int, num_k_blocks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """q_ranges and k_ranges int32 [heads_kv * q_blocks * topk, 2] of lists of blocks of keys, int
    [heads_kv, q_blocks, topk], heads folded into rows. block_m: queries, block_n: keys of a block;
    num_k_blocks: blocks of keys per head. An entry that is no block has an empty range.
    """
    _check_sizes(block_m=block_m, block_n=block_n, num_k_blocks=num_k_blocks)
    _check_axes("topk_indices", topk_indices, 3)
    heads, num_q, _ = topk_indices.shape
    device = topk_indices.device
    is_block = (topk_indices >= 0) & (topk_indices < num_k_blocks)
    head = torch.arange(heads, device=device).view(-1, 1, 1)
    q_block = torch.arange(heads * num_q, device=device).view(heads, num_q, 1)
    q_block = q_block.expand_as(topk_indices)
    k_block = (head * num_k_blocks + topk_indices).masked_fill(~is_block, 0)
    length = is_block.to(torch.int64)
    return (
        _as_ranges(q_block * block_m, (q_block + 1) * block_m),
        _as_ranges(k_block * block_n, (k_block + length) * block_n),
    )


def generate_ranges_from_block_mask(
    block_mask: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """q_ranges and k_ranges int32 [True blocks, 2] of a mask bool [q_blocks, k_blocks] (of several
    heads: flatten_block_mask), in row-major order of the blocks. Waits for a GPU, which alone knows
    their number.
    """
    _check_sizes(block_m=block_m, block_n=block_n)
    _check_axes("block_mask", block_mask, 2)
    q_block, k_block = block_mask.nonzero(as_tuple=True)
    return (
        _as_ranges(q_block * block_m, (q_block + 1) * block_m),
        _as_ranges(k_block * block_n, (k_block + 1) * block_n),
    )


def generate_ranges_from_block_mask_triton(
    block_mask: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """q_ranges and k_ranges int32 [heads_kv * q_blocks * k_blocks, 2] of a mask bool [1, heads_kv,
    q_blocks, k_blocks], heads folded into rows; those of False blocks are empty, [0, 0). Nothing
    is read back to the host. Under the name of the original's Triton kernel.
    """
    _check_sizes(block_m=block_m, block_n=block_n)
    _check_batch("block_mask", block_mask)
    _, heads, num_q, num_k = block_mask.shape
    device = block_mask.device
    q_block = torch.arange(heads * num_q, device=device).view(heads, num_q, 1)
    k_block = torch.arange(heads * num_k, device=device).view(heads, 1, num_k)
    seen = block_mask[0].to(torch.int64)
    return (
        _as_ranges(q_block * block_m * seen, (q_block + 1) * block_m * seen),
        _as_ranges(k_block * block_n * seen, (k_block + 1) * block_n * seen),
    )


def _random_sizes(total: int, parts: int, least: int, rows: int, device) -> torch.Tensor:
    """int32 [rows, parts] of sizes of at least `least` that sum up to total."""
    if total < parts * least:
        raise ValueError(f"{total} rows have {parts} blocks of {least} or more; allowed: fewer")
    spare = total - parts * least
    cuts = torch.randint(0, spare + 1, (rows, parts - 1), device=device).sort(dim=-1).values
    ends = torch.nn.functional.pad(cuts, (1, 0)), torch.nn.functional.pad(cuts, (0, 1), value=spare)
    return (ends[1] - ends[0] + least).to(torch.int32)


def generate_variable_block_sparse_pattern(
    num_q_heads: int,
    num_kv_heads: int,
    seqlen_q: int,
    seqlen_k: int,
    num_q_blocks: int,
    num_kv_blocks: int,
    sparsity: float,
    mode: str = "per_kv_head",
    min_q_block_size: int = 64,
    min_kv_block_size: int = 64,
    device: str | torch.device = "cuda",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A random pattern of blocks of random sizes: a mask as that of generate_block_sparse_pattern,
    the queries of each block int32 [heads of the mask, num_q_blocks], and the keys int32
    [num_kv_heads, num_kv_blocks].
    """
    check_int("min_q_block_size", min_q_block_size, 0)
    check_int("min_kv_block_size", min_kv_block_size, 0)
    heads = _mask_heads(mode, num_q_heads, num_kv_heads)
    mask, _ = generate_block_sparse_pattern(
        num_q_heads, num_kv_heads, num_q_blocks, num_kv_blocks, sparsity, mode, device=device
    )
    rows = _random_sizes(seqlen_q, num_q_blocks, min_q_block_size, heads, device)
    cols = _random_sizes(seqlen_k, num_kv_blocks, min_kv_block_size, num_kv_heads, device)
    return mask, rows, cols


def _bounds(sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns where blocks of sizes [heads, blocks] begin and end when all lie one after the
    other.
    """
    ends = sizes.to(torch.int64).flatten().cumsum(0).view(sizes.shape)
    return ends - sizes, ends


def generate_ranges_from_var_block_mask(
    block_mask: torch.Tensor,
    block_row_sz: torch.Tensor,
    block_col_sz: torch.Tensor,
    num_q_heads: int,
    num_kv_heads: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q_ranges and k_ranges int32 [True blocks, 2] of a flattened mask bool [heads * q_blocks,
    num_kv_heads * k_blocks] with blocks of block_row_sz [heads, q_blocks] queries and block_col_sz
    [num_kv_heads, k_blocks] keys. heads: num_kv_heads, or num_q_heads for a mask of each query
    head. Blocks between heads that do not belong together count as False. Waits for a GPU.
    """
    _check_axes("block_mask", block_mask, 2)
    _check_heads(num_q_heads, num_kv_heads)
    heads, num_q = block_row_sz.shape
    if block_col_sz.shape[0] != num_kv_heads or heads not in (num_kv_heads, num_q_heads):
        raise ValueError(
            f"block_row_sz has {heads} and block_col_sz {block_col_sz.shape[0]} heads; allowed: "
            f"{num_kv_heads} or {num_q_heads}, and {num_kv_heads}"
        )
    num_k = block_col_sz.shape[1]
    q_block, k_block = block_mask.nonzero(as_tuple=True)
    is_own = q_block // num_q // (heads // num_kv_heads) == k_block // num_k
    q_block, k_block = q_block[is_own], k_block[is_own]
    (q_begin, q_end), (k_begin, k_end) = _bounds(block_row_sz), _bounds(block_col_sz)
    return (
        _as_ranges(q_begin.flatten()[q_block], q_end.flatten()[q_block]),
        _as_ranges(k_begin.flatten()[k_block], k_end.flatten()[k_block]),
    )


def choose_ref_block(block_size: tuple[int, int], qhead_per_khead: int) -> dict[str, Any]:
    """ref_block_size, swap_ab, pack_gqa and sparse_load for flex_flash_attn_func, as the original
    takes them for blocks of (queries, keys). They change no result here: tiles are chosen from the
    mask. qhead_per_khead: query heads per kv head.
    """
    q_size, k_size = block_size
    _check_sizes(q_size=q_size, k_size=k_size, qhead_per_khead=qhead_per_khead)
    rows = min(q_size * qhead_per_khead, 128)
    loads_sparsely = k_size <= 64
    swaps = q_size < 128 and rows <= 16 and not loads_sparsely
    if q_size < 128 and rows <= 16:
        ref_q = 8 if rows <= 8 else 16
    else:
        ref_q = min(128, -(-(rows if q_size < 128 else q_size) // 64) * 64)
    ref_k = 64 if swaps else 128 if loads_sparsely else min(128, -(-k_size // 16) * 16)
    return {
        "ref_block_size": (ref_q, ref_k),
        "swap_ab": swaps,
        "pack_gqa": q_size < 128 and qhead_per_khead > 1,
        "sparse_load": loads_sparsely,
    }


def build_index_sparse_indices(
    B: int,
    NHK: int,
    S_q: int,
    S_kv: int,
    topk: int,
    max_topk: int,
    device: str | torch.device = "cuda",
    sparse_k_block_size: int = 1,
) -> torch.Tensor:
    """Random index_sparse_indices int32 [B * S_q, NHK, max_topk] of B sequences one after the
    other, of S_q queries and S_kv keys, for NHK kv heads: topk different blocks of
    sparse_k_block_size keys of the query's own sequence in rising order, then -1. S_kv is a
    multiple of the block size.
    """
    _check_sizes(B=B, NHK=NHK, sparse_k_block_size=sparse_k_block_size)
    if S_kv % sparse_k_block_size != 0:
        raise ValueError(f"S_kv is {S_kv}; allowed: a multiple of {sparse_k_block_size}")
    num_blocks = S_kv // sparse_k_block_size
    if not 0 <= topk <= min(max_topk, num_blocks):
        raise ValueError(f"topk is {topk}; allowed: 0 to {min(max_topk, num_blocks)}")
    scores = torch.rand(B, S_q, NHK, num_blocks, device=device)
    chosen = scores.topk(topk, dim=-1).indices.sort(dim=-1).values
    chosen += torch.arange(B, device=device).view(-1, 1, 1, 1) * num_blocks
    indices = chosen.reshape(B * S_q, NHK, topk).to(torch.int32)
    return torch.nn.functional.pad(indices, (0, max_topk - topk), value=-1)
