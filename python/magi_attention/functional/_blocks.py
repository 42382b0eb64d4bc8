# SPDX-License-Identifier: Apache-2.0
"""Attention under blocks that differ between kv heads, by the GPU's kernels for blocks: no head is
folded into rows, no key is copied, and lists are made on the device.
"""

from __future__ import annotations

import torch

from magi_attention._native.attention import Options
from magi_attention._native.blocks import BlockCall, BlockShape
from magi_attention.common._lru import LruCache
from magi_attention.functional._calls import signature
from magi_attention.functional._eager import is_eager, run
from magi_attention.functional.kernel_backend import backend_of_environment

_CALLS_KEPT = 256
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
        """As Call.forward."""
        out, lse, word = self._call.forward_under(q, k, v, sink, self._visible)
        self.error_word = word
        return out, lse, None

    def backward(self, dout, dlse, q, k, v, out, lse, sink):
        """As Call.backward."""
        return self._call.backward_under(dout, dlse, q, k, v, out, lse, sink, self._visible)
