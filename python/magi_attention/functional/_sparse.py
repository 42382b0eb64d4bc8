# SPDX-License-Identifier: Apache-2.0
"""Sparse attention with checked arguments, in three ways. Each query has a list of keys. Each kv
head has a mask of blocks, for GPU kernels that neither fold heads nor copy keys. Or kv heads are
folded into rows, so that one mask of ranges holds for all: row h * rows + i of folded tensors is
row i for kv head h. Folding copies K and V unless there is one kv head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from magi_attention._native.attention import Options, is_latent
from magi_attention._native.masked import BlockCall, BlockShape
from magi_attention._native.tensors import is_intercepted
from magi_attention.common._block_ranges import (
    Blocks,
    FoldedRanges,
    counts_of_lists,
    error_word_of_lists,
    folded_ranges,
    runs_of_lists,
)
from magi_attention.common._lru import LruCache
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.env.general import is_sanity_check_enable
from magi_attention.functional._calls import is_eager, run, signature
from magi_attention.functional._checks import check_params, check_qkv, check_sink, check_sm_margin
from magi_attention.functional._operators import (
    ListedAttention,
    check_lists,
    distinct,
    with_symbols,
)
from magi_attention.functional.kernel_backend import backend_of_environment


def fold_queries(x: torch.Tensor, heads_kv: int) -> torch.Tensor:
    """[rows, heads_q, ...] -> [heads_kv * rows, heads_q / heads_kv, ...]."""
    rows, heads = x.shape[:2]
    apart = x.unflatten(1, (heads_kv, heads // heads_kv)).transpose(0, 1)
    return apart.reshape(heads_kv * rows, heads // heads_kv, *x.shape[2:])


def unfold_queries(x: torch.Tensor, heads_kv: int) -> torch.Tensor:
    """The reverse of fold_queries."""
    return x.unflatten(0, (heads_kv, x.shape[0] // heads_kv)).transpose(0, 1).flatten(1, 2)


def fold_keys(x: torch.Tensor) -> torch.Tensor:
    """[rows, heads_kv, dim] -> [heads_kv * rows, 1, dim]."""
    return x.transpose(0, 1).reshape(-1, 1, x.shape[2])


def fold_sink(
    sink: torch.Tensor | None, sink_layout: str, rows: int, heads_kv: int
) -> tuple[torch.Tensor | None, str]:
    """A sink in either layout for folded queries. Several heads have one for each row, [heads_kv *
    rows, sinks, heads_q / heads_kv].
    """
    if sink is None:
        return sink, sink_layout
    if sink_layout == "sh":
        sink = sink.unsqueeze(0).expand(rows, -1, -1)
    return fold_queries(sink.transpose(1, 2), heads_kv).transpose(1, 2), "ssh"


_CALLS_KEPT = 256
_calls = LruCache(_CALLS_KEPT)


def find_block_call(q, k, v, sink, shape: BlockShape, options: Options) -> BlockCall | None:
    """Returns the call that computes these tensors under masks of this shape, or None if the
    kernels for blocks cannot: on a CPU, in compiled graphs, with another backend, softcap or
    max_logits, or with blocks or head dims that magi/block_mask.hpp does not allow.
    """
    is_plain = options.softcap == 0.0 and not options.with_max_logits
    if not (q.is_cuda and is_plain and is_eager(q, k, v)) or backend_of_environment() is not None:
        return None
    kind = (*signature(q, k, v), shape, options, None if sink is None else sink.shape)
    call, is_taken = _calls.get(kind) or (None, False)
    if call is None:
        call = BlockCall(q, k, v, sink, shape, options)
        is_taken = call.is_taken()
        _calls[kind] = call, is_taken
    return call if is_taken else None


def attend_by_blocks(
    call: BlockCall, tensors: tuple, visible: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, lse and the error word of the call for q, k, v and the sink or None, with gradients.
    visible: uint8 or bool [heads, q_blocks, k_blocks].
    """
    invocation = _BlockInvocation(call, visible)
    out, meta = run(*tensors, invocation, None)
    return out, meta.lse, invocation.error_word


class _BlockInvocation:
    """One call of attention under a mask of blocks."""

    with_max_logits = False

    def __init__(self, call: BlockCall, visible: torch.Tensor) -> None:
        self._call, self._visible = call, visible
        self.error_word: torch.Tensor | None = None

    def forward(self, q, k, v, sink):
        """Does what Call.forward does."""
        out, lse, word = self._call.forward_under(q, k, v, sink, self._visible)
        self.error_word = word
        return out, lse, None

    def backward(self, dout, dlse, q, k, v, out, lse, sink):
        """Does what Call.backward does."""
        return self._call.backward_under(dout, dlse, q, k, v, out, lse, sink, self._visible)


_MOST_TIMES = 254  # entries of one block in a list for the kernels for blocks


@dataclass
class SparseForwardMeta(AttnForwardMeta):
    """error_word: int64 [2] on the device of the lists or the mask. For lists: the number of
    entries that are no block of the keys, which count as none, and the place of the first in
    row-major order (-1: none). For a mask: the number of runs beyond max_runs; unless it is 0, all
    results are NaN. Over ranks entries of blocks that did not come count too; results of their
    queries are NaN.
    """

    error_word: torch.Tensor | None = None


def check_own_backend(backend: str | None) -> None:
    """NotImplementedError unless the backend is None, the library's own."""
    if backend is not None:
        raise NotImplementedError(
            f"backend {backend} takes no lists of single queries; allowed: the library's own"
        )


def attend_to_lists(qkv: tuple, indices, block: int, sink: tuple, numbers: tuple):
    """sink: the tensor or None, and its layout; numbers: softmax_scale, softcap, return_max_logits,
    sm_margin, deterministic.
    """
    q, k, v = check_qkv(*qkv, under_lists=True)
    if is_latent(q, v):
        check_latents(*qkv[1:])
    softmax_scale, softcap, with_max_logits, sm_margin, deterministic = numbers
    scale, softcap = check_params(softmax_scale, softcap, q.dtype)
    sink, layout = check_sink(*sink, q)
    indices = check_lists(indices, block, (q.shape[0], k.shape[1]), q.device)
    scale, softcap, symbols = with_symbols(scale, softcap)
    options = (scale, softcap, layout, with_max_logits, sm_margin, deterministic)
    out, lse, max_logits, word = ListedAttention.apply(
        *distinct(q, k, v, indices, sink), *symbols, block, options
    )
    check_word(word)
    return out, SparseForwardMeta(lse, max_logits if with_max_logits else None, word)


def check_latents(k: torch.Tensor, v: torch.Tensor) -> None:
    """ValueError unless gradients that reach k for v as well are those of one tensor."""
    if not _share_gradients(k, v):
        raise ValueError(
            "v is no view of k for autograd; allowed with head dims 576 and 512 on a GPU: "
            "k[..., :512], or both views of one tensor"
        )


def has_values_of(k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the first columns of k are v, in memory and for gradients."""
    return v.is_set_to(k[..., : v.shape[2]]) and _share_gradients(k, v)


def _share_gradients(k: torch.Tensor, v: torch.Tensor) -> bool:
    if not torch.is_grad_enabled() or not (k.requires_grad or v.requires_grad):
        return True
    # A compiler, which has no _base, takes the caller's word.
    is_view = torch.compiler.is_compiling() or v._base is (k if k._base is None else k._base)
    return is_view and k.requires_grad == v.requires_grad


def heads_in_rows(q, k, indices) -> int:
    """heads_kv if q [rows_q * heads_kv, group, dim] and k [rows_k * heads_kv, 1, dim] have the
    original's form for lists [rows_q, heads_kv, n] of several heads, else 0.
    """
    if not all(isinstance(x, torch.Tensor) and x.dim() == 3 for x in (q, k, indices)):
        return 0
    rows, heads, _ = indices.shape
    return heads if heads > 1 and k.shape[1] == 1 and q.shape[0] == rows * heads else 0


def attend_unfolded(attend: Callable, qkv: tuple, heads: int, options: tuple):
    """Calls attend(qkv, options) for tensors with heads in their rows. options: sink, its layout
    and others. Results have the form of q.
    """
    sink, layout, *others = options
    for name, x in zip(("k", "v"), qkv[1:]):
        if x.shape[0] % heads:
            raise ValueError(f"{name} has {x.shape[0]} rows; allowed: a multiple of {heads}")
    q = qkv[0]
    if sink is not None and layout == "sh":
        sink = sink.repeat(1, heads)
    elif sink is not None:
        sink = sink.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)
    whole = tuple(x.reshape(-1, heads * x.shape[1], x.shape[2]) for x in qkv)
    out, meta = attend(whole, (sink, layout, *others))
    meta.lse = meta.lse.reshape(q.shape[:2])
    if meta.max_logits is not None:
        meta.max_logits = meta.max_logits.view(heads, -1).amax(0)
    return out.reshape(*q.shape[:2], out.shape[2]), meta


class BlockLists(NamedTuple):
    """Lists of blocks of keys, int32 [q_blocks, heads_kv, n], and the queries and keys of a block.
    name: the argument that holds the lists.
    """

    indices: torch.Tensor
    q_size: int
    k_size: int
    is_causal: bool = False
    name: str = "index_sparse_indices"


def attend_to_block_lists(
    attend: partial, qkv: tuple, lists: BlockLists, sink: torch.Tensor | None, sink_layout: str
):
    """attend: flex_flash_attn_func with its options."""
    q, k, _ = qkv = check_qkv(*qkv, backend_of_environment())
    blocks = Blocks(q.shape[0], k.shape[0], lists.q_size, lists.k_size, lists.is_causal)
    shape = blocks.num_q, k.shape[1]
    indices = check_lists(lists.indices, lists.k_size, shape, q.device, lists.name)
    word = error_word_of_lists(indices, blocks.num_k)
    check_word(word, lists.name)

    num_entries = indices.shape[0] * indices.shape[2]  # per head
    if num_entries > 0 and indices.shape[2] <= _MOST_TIMES:
        shape = BlockShape(k.shape[1], *blocks[2:], max_blocks=num_entries)

        def visible_of() -> torch.Tensor:
            return counts_of_lists(indices.contiguous(), blocks.num_k)

        found = attend_to_visible(attend, qkv, (sink, sink_layout), shape, visible_of)
        if found is not None:
            return found[0], SparseForwardMeta(found[1], None, word)
    ranges = folded_ranges(runs_of_lists(indices.contiguous(), blocks.num_k), blocks, word)
    return attend_folded(attend, qkv, ranges, k.shape[1], (sink, sink_layout))


def attend_to_visible(
    attend: partial, qkv: tuple, sink: tuple, shape: BlockShape,
    visible_of: Callable[[], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:  # fmt: skip
    """out, lse and the error word by the kernels for blocks; None if they do not take the call.
    visible_of: returns the `visible` of attend_by_blocks, called only if needed.
    """
    q, k, v = qkv
    given = attend.keywords
    check_sm_margin(given["sm_margin"])
    scale, softcap = check_params(given["softmax_scale"], given["softcap"], q.dtype)
    tensor, layout = check_sink(*sink, q)
    options = Options(
        scale, softcap, layout, bool(given.get("return_max_logits")),
        given["sm_margin"], not given["deterministic"],
    )  # fmt: skip
    call = find_block_call(q, k, v, tensor, shape, options)
    if call is None:
        return None
    return attend_by_blocks(call, (q, k, v, tensor), visible_of())


def attend_folded(
    attend: partial, qkv: tuple, ranges: FoldedRanges, heads: int, sink: tuple
) -> tuple[torch.Tensor, SparseForwardMeta]:
    """Attention under ranges of `heads` heads folded into rows: the kv heads, or 1 if one mask
    holds for all. sink: the tensor or None, and its layout.
    """
    q, k, v = qkv
    mask = ranges.q_ranges, ranges.k_ranges, ranges.types
    if heads == 1:
        out, meta = attend(q, k, v, *mask, sink=sink[0], sink_layout=sink[1])
        return out, SparseForwardMeta(meta.lse, meta.max_logits, ranges.error_word)
    if attend.keywords.get("return_max_logits"):
        raise NotImplementedError(
            f"return_max_logits is True with {heads} kv heads; allowed under blocks of each: 1"
        )
    given, _ = check_sink(*sink, q)
    folded_sink, layout = fold_sink(given, sink[1], q.shape[0], heads)
    folded = fold_queries(q, heads), fold_keys(k), fold_keys(v)
    out, meta = attend(*folded, *mask, sink=folded_sink, sink_layout=layout)
    out, lse = unfold_queries(out, heads), unfold_queries(meta.lse, heads)
    return out, SparseForwardMeta(lse, None, ranges.error_word)


def check_word(word: torch.Tensor, name: str = "index_sparse_indices") -> None:
    """ValueError for entries that are no block, if MAGI_ATTENTION_SANITY_CHECK is 1."""
    if is_intercepted() or not is_sanity_check_enable():
        return
    count, first = word.tolist()
    if count:
        raise ValueError(
            f"{name} has {count} entries that are no block of the keys, the first at "
            f"{first} in row-major order; allowed: 0 to the number of blocks - 1, -1 for none"
        )
