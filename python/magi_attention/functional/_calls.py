# SPDX-License-Identifier: Apache-2.0
"""Prepared calls of attention, kept by kinds of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from magi_attention._native.attention import Call, Options, Runner
from magi_attention._native.profile import named_range
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


class NamedCall:
    """A call whose forward and backward are ranges of their names for profilers."""

    def __init__(self, call: Call, name: str) -> None:
        self._call, self._name = call, name
        self.with_max_logits = call.with_max_logits

    def forward(self, *tensors):
        """As Call.forward."""
        with named_range(f"{self._name}.forward"):
            return self._call.forward(*tensors)

    def backward(self, *tensors):
        """As Call.backward."""
        with named_range(f"{self._name}.backward"):
            return self._call.backward(*tensors)


def calls_of(runner: Runner, name: str | None = None) -> CallCache:
    """Calls of these functions; name: of their ranges for profilers, None: without ranges."""
    if name is None:
        return CallCache(partial(Call, runner))
    return CallCache(lambda *kind: NamedCall(Call(runner, *kind), name))
