# SPDX-License-Identifier: Apache-2.0
"""Attention under lists of keys."""

from __future__ import annotations

import ctypes
import struct

import torch

from magi_attention._native.attention import Call, Options, Runner, TensorStruct
from magi_attention._native.library import address_of

# struct_size, indices, block_keys, report
_LISTS = struct.Struct("@NPi0PP")
_FORWARD = address_of("magi_listed_attention_forward")
_BACKWARD = address_of("magi_listed_attention_backward")


class KeyLists:
    """A magi_key_lists. It borrows indices int32 [rows_q, heads_kv, entries], and owns the report
    int64 [2] on their device that a forward writes: the number of entries that are no block of the
    keys, and the place of the first in row-major order (-1: none).
    """

    def __init__(self, indices: torch.Tensor, block_keys: int) -> None:
        self.report = indices.new_empty(2, dtype=torch.int64)
        self._tensors = TensorStruct(indices, "index_sparse_indices"), TensorStruct(self.report)
        self._buffer = ctypes.create_string_buffer(_LISTS.size)
        addresses = [tensor.address for tensor in self._tensors]
        _LISTS.pack_into(self._buffer, 0, _LISTS.size, addresses[0], block_keys, addresses[1])
        self.address = ctypes.addressof(self._buffer)


def listed_call(q, k, v, sink, lists: KeyLists, options: Options) -> Call:
    """Returns the call that runs forward and backward of tensors under these lists."""
    return Call(Runner(_FORWARD, _BACKWARD, lists.address, lists), q, k, v, sink, options)
