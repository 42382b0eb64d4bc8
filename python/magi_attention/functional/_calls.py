# SPDX-License-Identifier: Apache-2.0
"""Prepared calls of attention, kept by kinds of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from magi_attention._native.attention import Call, Options, Runner
from magi_attention.common._lru import LruCache

# A call holds about 2 KB. A model has a few kinds (layers, types, forward and recomputation) times
# the lengths of its batches, for each mask or plan; the library keeps as many schedules of a mask.
_CALLS_KEPT = 256


def signature(q, k, v):
    """What a Call depends on besides sink and options."""
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.device, k.device, v.device,
    )  # fmt: skip


class CallCache(LruCache):
    """Calls of one mask or plan by kinds of tensors; make(q, k, v, sink, options) gives one."""

    def __init__(self, make: Callable[..., Call]) -> None:
        super().__init__(_CALLS_KEPT)
        self._make = make

    def find(self, q, k, v, sink, options: Options) -> Call:
        """The call for these tensors, made at the first use."""
        kind = (*signature(q, k, v), options, None if sink is None else sink.shape)
        call = self.get(kind)
        if call is None:
            call = self[kind] = self._make(q, k, v, sink, options)
        return call


def calls_of(runner: Runner) -> CallCache:
    """Calls of these functions."""
    return CallCache(partial(Call, runner))
