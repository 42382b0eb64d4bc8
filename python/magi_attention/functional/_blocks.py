# SPDX-License-Identifier: Apache-2.0
"""Attention under blocks that differ between kv heads, by the GPU's kernels for blocks: no head is
folded into rows, no key is copied, and lists are made on the device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from magi_attention._native.attention import Options
from magi_attention._native.blocks import BlockCall, BlockMask, BlockShape, block_backward
from magi_attention.common._block_ranges import FoldedRanges
from magi_attention.common._lru import LruCache
from magi_attention.functional._calls import signature
from magi_attention.functional._device_ranges import RangesInvocation
from magi_attention.functional._eager import is_eager, run
from magi_attention.functional._folded import (
    fold_keys,
    fold_queries,
    fold_sink,
    unfold_keys,
    unfold_queries,
)
from magi_attention.functional.kernel_backend import backend_of_environment

_CALLS_KEPT = 256
_LAYOUTS = ("sh", "ssh")
_calls = LruCache(_CALLS_KEPT)


def find_block_call(q, k, v, sink, shape: BlockShape, options: Options) -> BlockCall | None:
    """What computes these tensors under masks of this shape; None where the kernels for blocks do
    not: on a CPU, in compiled graphs, with another backend, softcap or max_logits, or other blocks
    and head dims than magi/block_mask.hpp tells.
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
    call: BlockCall,
    tensors: tuple,
    visible: torch.Tensor,
    ranges_of: Callable[[], FoldedRanges],
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, lse and the error word of the call for q, k, v and the sink or None, with gradients.
    visible: uint8 or bool [heads, q_blocks, k_blocks]; ranges_of: gives the ranges of these blocks,
    heads folded into rows unless there is one, for a deterministic backward.
    """
    invocation = _BlockInvocation(call, visible, ranges_of, options)
    out, meta = run(*tensors, invocation, None)
    return out, meta.lse, invocation.error_word


class _BlockInvocation:
    """One call of attention under a mask of blocks."""

    with_max_logits = False

    def __init__(self, call: BlockCall, visible, ranges_of, options: Options) -> None:
        self._call, self._visible, self._options = call, visible, options
        self._ranges_of, self._heads = ranges_of, visible.shape[0]
        self.error_word: torch.Tensor | None = None

    def forward(self, q, k, v, sink):
        """As Call.forward."""
        out, lse, word = self._call.forward_under(q, k, v, sink, self._visible)
        self.error_word = word
        return out, lse, None

    def backward(self, dout, dlse, q, k, v, out, lse, sink):
        """As Call.backward."""
        if not self._options.is_fast_backward:
            return self._backward_by_ranges(dout, dlse, q, k, v, out, lse, sink)
        mask = BlockMask(self._call.shape, self._visible)
        call = block_backward(mask, q, k, v, sink, self._options)
        return call.backward(dout, dlse, q, k, v, out, lse, sink)

    def _backward_by_ranges(self, dout, dlse, q, k, v, out, lse, sink):
        """With dq of the same bits in every call: ranges, whose list is made on the device too."""
        ranges = self._ranges_of()
        mask = ranges.q_ranges, ranges.k_ranges, ranges.types
        if self._heads == 1:
            call = RangesInvocation(q, k, v, sink, mask, self._options)
            return call.backward(dout, dlse, q, k, v, out, lse, sink)
        folded_sink, options = self._fold_sink(sink, q.shape[0])
        q, out, lse, dout = (fold_queries(x, self._heads) for x in (q, out, lse, dout))
        k, v = fold_keys(k), fold_keys(v)
        dlse = None if dlse is None else fold_queries(dlse, self._heads)
        given = None if folded_sink is None else folded_sink.detach()
        call = RangesInvocation(q, k, v, given, mask, options)
        dq, dk, dv, dsink = call.backward(dout, dlse, q, k, v, out, lse, given)
        if dsink is not None:
            (dsink,) = torch.autograd.grad(folded_sink, self._leaf, dsink)
        heads = self._heads
        return unfold_queries(dq, heads), unfold_keys(dk, heads), unfold_keys(dv, heads), dsink

    def _fold_sink(self, sink, rows: int):
        """The folded sink as a function of a leaf with the sink's values, and options for it."""
        if sink is None:
            return None, self._options
        with torch.enable_grad():
            self._leaf = sink.detach().requires_grad_()
            layout = _LAYOUTS[self._options.sink_layout]
            folded, layout = fold_sink(self._leaf, layout, rows, self._heads)
            folded = folded.contiguous()
        return folded, self._options._replace(sink_layout=_LAYOUTS.index(layout))
