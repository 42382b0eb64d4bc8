# SPDX-License-Identifier: Apache-2.0
"""Masks of range tensors in device memory."""

from __future__ import annotations

import weakref

import torch

from magi_attention._native.attention import Call, Options
from magi_attention._native.ranges import RangesCall
from magi_attention.common._lru import LruCache
from magi_attention.env.general import is_sanity_check_enable
from magi_attention.functional._calls import CallCache
from magi_attention.functional._masks import KnownMask, mask_of

_COPIES_KEPT = 64  # as many as masks are kept, which is what the copies are for
_calls = CallCache(RangesCall)
# Copies in host memory, which other backends need: by identity, valid while the tensors live
# unchanged.
_copies = LruCache(_COPIES_KEPT)


class RangesInvocation:
    """One call of attention under q_ranges, k_ranges and types in device memory. Nothing waits
    unless MAGI_ATTENTION_SANITY_CHECK is 1: a graph may hold forward and backward, and follows the
    values that the tensors have when it is replayed.
    """

    def __init__(self, q, k, v, sink, mask: tuple, options: Options) -> None:
        self._mask = tuple(None if tensor is None else tensor.contiguous() for tensor in mask)
        self._given, self._versions = mask, _versions(mask)
        self.with_max_logits = options.with_max_logits
        self._call: RangesCall = _calls.find(q, k, v, sink, options)

    def forward(self, q, k, v, sink):
        """As Call.forward."""
        return self._call.forward_under(q, k, v, sink, self._mask, is_sanity_check_enable())

    def backward(self, dout, dlse, q, k, v, out, lse, sink):
        """As Call.backward. RuntimeError where a range tensor changed since forward."""
        if _versions(self._given) != self._versions:
            raise RuntimeError(
                "q_ranges, k_ranges or attn_type_map was changed between forward and backward; "
                "allowed: unchanged tensors"
            )
        results = dout, dlse, q, k, v, out, lse, sink
        return self._call.backward_under(*results, self._mask, is_sanity_check_enable())


def host_call(q, k, v, sink, mask: tuple, options: Options, backend: str) -> Call:
    """The call of a backend by its name, whose list is made on the host: range tensors that were
    not seen before are copied there, which waits for them; those of inference mode, whose changes
    cannot be seen, in every call. RuntimeError while a graph is captured,
    as a replay would not follow their values.
    """
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "q_ranges is on the device while a graph is captured; allowed with backend "
            f"{backend}: ranges in host memory"
        )
    if any(tensor is not None and tensor.is_inference() for tensor in mask):
        return _mask_of_copies(q, k, mask, backend).calls.find(q, k, v, sink, options)
    key = (backend, q.shape[0], k.shape[0], *map(id, mask))
    references, known = _copies.get(key, ([], None))
    alive = [reference() for reference in references]
    if known is None or any(a is not b for a, b in zip(alive, mask)) or _versions(mask) != known[0]:
        known = None
    if known is None:
        known = (_versions(mask), _mask_of_copies(q, k, mask, backend))
        _copies[key] = [_reference(tensor) for tensor in mask], known
    return known[1].calls.find(q, k, v, sink, options)


def _mask_of_copies(q, k, mask: tuple, backend: str) -> KnownMask:
    copies = [None if tensor is None else tensor.cpu() for tensor in mask]
    return mask_of(q.shape[0], k.shape[0], *copies, backend)


def _reference(tensor: torch.Tensor | None):
    return (lambda: None) if tensor is None else weakref.ref(tensor)


def _versions(mask: tuple) -> list[int]:
    """How often each tensor was changed; those of inference mode do not count it."""
    return [0 if t is None or t.is_inference() else t._version for t in mask]
