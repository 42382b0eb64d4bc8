# SPDX-License-Identifier: Apache-2.0
"""Masks of range tensors in host memory; the last ones used are kept, with their prepared calls."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import NamedTuple

import torch

from magi_attention._native import attention as native
from magi_attention._native.handles import MaskHandle
from magi_attention.common._arguments import naming

_MASKS_KEPT = 64
_ALL_FULL = torch.zeros(1, dtype=torch.int32, device="cpu")


class KnownMask(NamedTuple):
    """A mask and the calls that were made with it."""

    handle: MaskHandle
    calls: native.CallCache


_masks: OrderedDict[tuple, KnownMask] = OrderedDict()


def calls_under(handle: MaskHandle) -> native.CallCache:
    """Calls of attention on one device under this mask."""
    functions = native.flex_forward, native.flex_backward
    runner = native.Runner(*functions, handle.address, handle, native.flex_backward_bytes)
    return native.calls_of(runner)


def _content(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def mask_of(
    rows_q: int,
    rows_k: int,
    q_ranges: torch.Tensor,
    k_ranges: torch.Tensor,
    types: torch.Tensor | None,
) -> KnownMask:
    """The mask of these ranges; found by their contents, so they may change in place."""
    if types is None:
        types = _ALL_FULL
    tensors = (q_ranges.contiguous(), k_ranges.contiguous(), types.contiguous())
    key = (rows_q, rows_k, *map(_content, tensors))
    known = _masks.pop(key, None)
    if known is None:
        addresses = ((tensor.data_ptr(), tensor.shape[0]) for tensor in tensors)
        with naming(types="attn_type_map"):
            handle = MaskHandle.from_addresses(*addresses, rows_q, rows_k)
        known = KnownMask(handle, calls_under(handle))
        while len(_masks) >= _MASKS_KEPT:
            _masks.popitem(last=False)
    _masks[key] = known
    return known
