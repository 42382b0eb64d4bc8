# SPDX-License-Identifier: Apache-2.0
"""Masks of range tensors. Of those in host memory the last ones used are kept, with their prepared
calls; the host reads those in device memory for other backends alone.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import partial
from typing import NamedTuple

import torch

from magi_attention._native import attention as native
from magi_attention._native.attention import Call, Options
from magi_attention._native.backend import registration_of
from magi_attention._native.handles import MaskHandle
from magi_attention._native.masked import RangesCall
from magi_attention._native.tensors import dense_memory_of
from magi_attention.backends._registry import MMA
from magi_attention.common._arguments import naming, trying
from magi_attention.common._lru import LruCache
from magi_attention.env.general import is_sanity_check_enable
from magi_attention.functional._calls import CallCache, calls_of

# A step uses few masks, over and over: these are those of some dozens of steps. A mask holds about
# 50 bytes a slice here, and the schedules of its calls in the library.
_MASKS_KEPT = 64
_NAMES = ("q_ranges", "k_ranges", "attn_type_map")
_ROWS_FIRST = "x.transpose(0, 1) if tensors are [heads, rows, head_dim]"
_ALL_FULL = torch.zeros(1, dtype=torch.int32, device="cpu")


class KnownMask(NamedTuple):
    """A mask and the calls that were made with it."""

    handle: MaskHandle
    calls: CallCache


_masks = LruCache(_MASKS_KEPT)  # by the backend, the rows and the contents of the tensors


def runner_under(handle: MaskHandle, backend: str | None = None) -> native.Runner:
    """Attention on one device under this mask, by the library's own backend or another."""
    functions = native.flex_forward, native.flex_backward
    name = _c_string(backend)
    return native.Runner(*functions, handle.address, handle, native.flex_backward_bytes, name)


def _c_string(name: str | None) -> ctypes.Array | None:
    return None if name is None else ctypes.create_string_buffer(name.encode())


def _content(name: str, tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(dense_memory_of(name, tensor), tensor.nbytes)


def mask_of(
    rows_q: int,
    rows_k: int,
    q_ranges: torch.Tensor,
    k_ranges: torch.Tensor,
    types: torch.Tensor | None,
    backend: str | None = None,
) -> KnownMask:
    """The mask of these ranges for a backend, None: the library's own; found by their contents, so
    they may change in place.
    """
    if types is None:
        types = _ALL_FULL
    tensors = (q_ranges.contiguous(), k_ranges.contiguous(), types.contiguous())
    key = (backend, registration_of(backend), rows_q, rows_k, *map(_content, _NAMES, tensors))
    known = _masks.get(key)
    if known is None:
        addresses = ((tensor.data_ptr(), tensor.shape[0]) for tensor in tensors)
        with trying(_ROWS_FIRST, "the rows of"), naming(types="attn_type_map"):
            handle = MaskHandle.from_addresses(*addresses, rows_q, rows_k)
        known = _masks[key] = KnownMask(handle, calls_of(runner_under(handle, backend)))
    return known


_COPIES_KEPT = 64  # as many as masks are kept, which is what the copies are for
_calls = {name: CallCache(partial(RangesCall, backend=_c_string(name))) for name in (None, MMA)}
# Copies in host memory, which other backends need: by identity, valid while the tensors live
# unchanged.
_copies = LruCache(_COPIES_KEPT)


class RangesInvocation:
    """One call of attention under q_ranges, k_ranges and types in device memory, by the library's
    own kernels (backend None or MMA). Nothing waits unless MAGI_ATTENTION_SANITY_CHECK is 1: a
    graph may hold forward and backward, and follows the values that the tensors have when it is
    replayed.
    """

    def __init__(
        self, q, k, v, sink, mask: tuple, options: Options, backend: str | None = None
    ) -> None:
        self._mask = tuple(None if tensor is None else tensor.contiguous() for tensor in mask)
        self._given, self._versions = mask, _versions(mask)
        self.with_max_logits = options.with_max_logits
        self._call: RangesCall = _calls[backend].find(q, k, v, sink, options)

    def forward(self, q, k, v, sink):
        """Does what Call.forward does."""
        return self._call.forward_under(q, k, v, sink, self._mask, is_sanity_check_enable())

    def backward(self, dout, dlse, q, k, v, out, lse, sink):
        """Does what Call.backward does. RuntimeError where a range tensor changed since forward."""
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
        references = [(lambda: None) if t is None else weakref.ref(t) for t in mask]
        _copies[key] = references, known
    return known[1].calls.find(q, k, v, sink, options)


def _mask_of_copies(q, k, mask: tuple, backend: str) -> KnownMask:
    copies = [None if tensor is None else tensor.cpu() for tensor in mask]
    return mask_of(q.shape[0], k.shape[0], *copies, backend)


def _versions(mask: tuple) -> list[int]:
    """Returns how often each tensor was changed; those of inference mode do not count it."""
    return [0 if t is None or t.is_inference() else t._version for t in mask]
