# SPDX-License-Identifier: Apache-2.0
"""Masks of range tensors in host memory; the last ones used are kept, with their prepared calls."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from magi_attention._native import attention as native
from magi_attention._native.backend import registration_of
from magi_attention._native.handles import MaskHandle
from magi_attention._native.tensors import dense_memory_of
from magi_attention.common._arguments import naming
from magi_attention.common._lru import LruCache
from magi_attention.functional._calls import CallCache, calls_of

# A step uses few masks, over and over: these are those of some dozens of steps. A mask holds about
# 50 bytes a slice here, and the schedules of its calls in the library.
_MASKS_KEPT = 64
_NAMES = ("q_ranges", "k_ranges", "attn_type_map")
_ALL_FULL = torch.zeros(1, dtype=torch.int32, device="cpu")


class KnownMask(NamedTuple):
    """A mask and the calls that were made with it."""

    handle: MaskHandle
    calls: CallCache


_masks = LruCache(_MASKS_KEPT)  # by the backend, the rows and the contents of the tensors


def runner_under(handle: MaskHandle, backend: str | None = None) -> native.Runner:
    """Attention on one device under this mask, by the library's own backend or another."""
    functions = native.flex_forward, native.flex_backward
    name = None if backend is None else ctypes.create_string_buffer(backend.encode())
    return native.Runner(*functions, handle.address, handle, native.flex_backward_bytes, name)


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
        with naming(types="attn_type_map"):
            handle = MaskHandle.from_addresses(*addresses, rows_q, rows_k)
        known = _masks[key] = KnownMask(handle, calls_of(runner_under(handle, backend)))
    return known
