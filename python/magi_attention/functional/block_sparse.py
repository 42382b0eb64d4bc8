# SPDX-License-Identifier: Apache-2.0
"""Attention in which blocks of queries see blocks of keys, by a mask or by lists of blocks."""

from __future__ import annotations

from functools import partial

import torch

from magi_attention._native.masked import BlockShape
from magi_attention._native.tensors import as_plain, is_intercepted
from magi_attention.common._arguments import as_bool, check_int
from magi_attention.common._block_ranges import Blocks, folded_ranges, runs_of_mask
from magi_attention.functional._checks import check_place, check_qkv, check_type
from magi_attention.functional._sparse import (
    BlockLists,
    SparseForwardMeta,
    attend_folded,
    attend_to_block_lists,
    attend_to_visible,
)
from magi_attention.functional.flex_flash_attn import flex_flash_attn_func
from magi_attention.functional.kernel_backend import backend_of_environment

MAX_BLOCK_SIZE = 256
_MAX_RUNS = (1 << 30) - 1


def block_sparse_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_mask: torch.Tensor | None = None,
    *,
    block_lists: torch.Tensor | None = None,
    q_block_size: int,
    k_block_size: int,
    is_causal: bool = False,
    max_runs: int | None = None,
    sink: torch.Tensor | None = None,
    sink_layout: str = "sh",
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> tuple[torch.Tensor, SparseForwardMeta]:
    """Attention of q [rows_q, heads_q, dim] over k, v [rows_k, heads_kv, dim], where block i of
    q_block_size queries sees blocks of k_block_size keys (1 to 256 rows each; the last block of a
    side may be shorter).

    Give either block_mask, bool [heads_kv or 1, q_blocks, k_blocks], or block_lists, int32
    [q_blocks, heads_kv, n] of blocks of keys (-1: none; in any order; a block that occurs n times
    counts n times). Both may be made on the GPU anew in every call. is_causal: query i sees no key
    after i + rows_k - rows_q, inside blocks too.

    max_runs: bounds the runs of neighbouring blocks of the mask over all heads, for masks that the
    host does not read: on GPUs and in compiled graphs. None: the most that any mask can have. For a
    mask with more the host raises ValueError if it reads the mask; else all results are NaN.

    sink, sink_layout, softmax_scale, softcap, deterministic, sm_margin and the result are those of
    flex_flash_attn_func; meta.error_word as in SparseForwardMeta. K and V are copied if blocks of
    several kv heads differ, but not by the GPU's kernels for blocks (docs/kernels/blocks.md).
    ValueError or TypeError names a wrong argument.
    """
    attend = partial(
        flex_flash_attn_func, softmax_scale=softmax_scale, softcap=softcap,
        deterministic=as_bool("deterministic", deterministic), sm_margin=sm_margin,
    )  # fmt: skip
    is_causal = as_bool("is_causal", is_causal)
    for name, size in (("q_block_size", q_block_size), ("k_block_size", k_block_size)):
        check_int(name, size, 1, MAX_BLOCK_SIZE)
    if (block_mask is None) == (block_lists is None):
        what = "neither of them is" if block_mask is None else "both are"
        raise ValueError(f"block_mask, block_lists: {what} given; allowed: one of them")
    if block_lists is not None:
        if max_runs is not None:
            raise ValueError(f"max_runs is {max_runs} beside block_lists; allowed: None")
        lists = BlockLists(block_lists, q_block_size, k_block_size, is_causal, "block_lists")
        return attend_to_block_lists(attend, (q, k, v), lists, sink, sink_layout)
    q, k, v = check_qkv(q, k, v, backend_of_environment())
    blocks = Blocks(q.shape[0], k.shape[0], q_block_size, k_block_size, is_causal)
    mask = check_mask(block_mask, blocks, k.shape[1], q.device)
    found = _attend_by_blocks(attend, (q, k, v), (sink, sink_layout), mask, blocks, max_runs)
    if found is not None:
        return found
    room = None  # for all runs that the mask has
    if not _is_read(mask):
        room = mask[..., 0].numel() * -(-mask.shape[2] // 2) if max_runs is None else max_runs
    runs, missing = runs_of_mask(mask, room)
    if max_runs is not None and _is_read(mask) and runs.head.shape[0] > max_runs:
        raise ValueError(f"block_mask has {runs.head.shape[0]} runs; allowed: {max_runs}, max_runs")
    ranges = folded_ranges(runs, blocks, torch.stack((missing, torch.full_like(missing, -1))))
    out, meta = attend_folded(attend, (q, k, v), ranges, mask.shape[0], (sink, sink_layout))
    if _is_read(mask):
        return out, meta
    is_short = missing > 0
    return out.masked_fill(is_short, float("nan")), SparseForwardMeta(
        meta.lse.masked_fill(is_short, float("nan")), None, meta.error_word
    )


def _attend_by_blocks(
    attend: partial, qkv: tuple, sink: tuple, mask: torch.Tensor, blocks: Blocks,
    max_runs: int | None,
) -> tuple[torch.Tensor, SparseForwardMeta] | None:  # fmt: skip
    """Computes the call by the kernels for blocks; None if they do not take it."""
    if max_runs is not None:
        check_int("max_runs", max_runs, 1, _MAX_RUNS)
    shape = BlockShape(mask.shape[0], *blocks[2:], max_runs=max_runs or 0)

    def visible_of() -> torch.Tensor:
        # The caller may write the next layer's mask into the same memory before the backward.
        if torch.is_grad_enabled():
            return mask.clone(memory_format=torch.contiguous_format)
        return mask.contiguous()

    found = attend_to_visible(attend, qkv, sink, shape, visible_of)
    return None if found is None else (found[0], SparseForwardMeta(found[1], None, found[2]))


def _is_read(mask: torch.Tensor) -> bool:
    """Whether the host reads the mask: it does in host memory outside of graphs, at no cost."""
    return mask.device.type == "cpu" and not is_intercepted()


def check_mask(
    mask: torch.Tensor, blocks: Blocks, heads_kv: int, device: torch.device
) -> torch.Tensor:
    """block_mask as a plain tensor [heads_kv or 1, q_blocks, k_blocks] on the device."""
    check_type("block_mask", mask, torch.bool, "a bool tensor")
    shape = (heads_kv, blocks.num_q, blocks.num_k)
    if mask.dim() != 3 or tuple(mask.shape) not in (shape, (1, *shape[1:])):
        raise ValueError(
            f"block_mask has shape {list(mask.shape)}; allowed: {list(shape)}, or 1 in front"
        )
    check_place("block_mask", mask, device)
    return as_plain("block_mask", mask)
