# SPDX-License-Identifier: Apache-2.0
"""Prepared calls of attention, kept by kinds of tensors. Outside of compiled graphs they run
without operators, which saves most of a short call's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from torch.autograd import forward_ad

from magi_attention._native.attention import Call, Options, Runner
from magi_attention._native.profile import named_range
from magi_attention._native.tensors import (
    PLAIN_TYPES,
    as_plain,
    is_intercepted,
    refuse_tangent,
    refuse_transforms,
)
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.common._lru import LruCache
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.functional._kept import kept

# A call holds about 2 KB. A model has a few kinds (layers, types, forward and recomputation) times
# the lengths of its batches, for each mask or plan; the library keeps as many schedules of a mask.
_CALLS_KEPT = 256


def signature(q, k, v):
    """The values that a Call depends on besides sink and options."""
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

    def refuse(self, error: Exception) -> None:
        """Does what Call.refuse does."""
        self._call.refuse(error)

    def forward(self, *tensors):
        """Does what Call.forward does."""
        with named_range(f"{self._name}.forward"):
            return self._call.forward(*tensors)

    def backward(self, *tensors):
        """Does what Call.backward does."""
        with named_range(f"{self._name}.backward"):
            return self._call.backward(*tensors)


_refusal: ContextVar[Callable[[Exception], None] | None] = ContextVar("refusal", default=None)


@contextmanager
def telling(refuse: Callable[[Exception], None]) -> Iterator[None]:
    """Other ranks learn, by refuse(error), of errors of attention that is called within, and of
    those of its backward.
    """
    token = _refusal.set(refuse)
    try:
        yield
    except Exception as error:
        refuse(error)
        raise
    finally:
        _refusal.reset(token)


def refusal() -> Callable[[Exception], None] | None:
    """The function of `telling` around this call, which graphs do not have."""
    return None if torch.compiler.is_compiling() else _refusal.get()


class _ReportingCall:
    """A call of attention of which other ranks wait for the backward."""

    def __init__(self, call, refuse: Callable[[Exception], None]) -> None:
        self._call, self.refuse = call, refuse
        self.forward, self.with_max_logits = call.forward, call.with_max_logits

    def backward(self, *tensors):
        """Does what Call.backward does."""
        try:
            return self._call.backward(*tensors)
        except Exception as error:
            self.refuse(error)
            raise


def calls_of(runner: Runner, name: str | None = None) -> CallCache:
    """Calls of these functions; name: of their ranges for profilers, None: without ranges."""
    if name is None:
        return CallCache(partial(Call, runner))
    return CallCache(lambda *kind: NamedCall(Call(runner, *kind), name))


_is_grad_enabled = torch.is_grad_enabled


def is_eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether nobody traces or intercepts operators: plain tensors, no compiler, no modes.
    NotImplementedError as refuse_transforms and refuse_tangent.
    """
    if is_intercepted():
        refuse_transforms()
        return False
    if forward_ad._current_level >= 0:
        for name, tensor in zip("qkv", (q, k, v)):
            refuse_tangent(name, tensor)
    is_plain = type(q) in PLAIN_TYPES and type(k) in PLAIN_TYPES and type(v) in PLAIN_TYPES
    return is_plain and not (q.is_neg() or k.is_neg() or v.is_neg())


def run(q, k, v, sink, call, sink_reducer) -> tuple[torch.Tensor, AttnForwardMeta]:
    """The result of a prepared call, with gradients. sink_reducer: the RankAttention that reduces
    the gradient of a shared sink over ranks, or None.
    """
    if (refuse := _refusal.get()) is not None:
        call = _ReportingCall(call, refuse)
    if not torch.is_grad_enabled():
        out, lse, max_logits = kept(call.forward, q, k, v, sink)
    elif sink is None and not call.with_max_logits:
        out, lse = _attend(q, k, v, call)
        max_logits = None
    else:
        out, lse, max_logits = _attend_with_options(q, k, v, sink, call, sink_reducer)
    return out, AttnForwardMeta(lse, max_logits)


class EagerAttention(torch.autograd.Function):
    """out and lse without sinks; gradients come through both."""

    @staticmethod
    def forward(ctx, q, k, v, call):
        out, lse, _ = kept(call.forward, q, k, v, None)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.call = call
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        try:
            q, k, v, out, lse = ctx.saved_tensors  # once: a checkpoint unpacks them once
            if dlse is not None or not _is_usual(dout):
                dout, dlse = _row_major(out, dout, dlse)
        except Exception as error:
            _report(ctx.call, error)
            raise
        return ctx.call.backward(dout, dlse, q, k, v, out, lse, None)  # the last one is no gradient


class EagerSinkAttention(torch.autograd.Function):
    """out, lse and max_logits (or None) with a sink or None."""

    @staticmethod
    def forward(ctx, q, k, v, sink, call, sink_reducer):
        out, lse, max_logits = kept(call.forward, q, k, v, sink)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, sink)
        ctx.call, ctx.sink_reducer = call, sink_reducer
        if max_logits is not None:
            ctx.mark_non_differentiable(max_logits)
        return out, lse, max_logits

    @staticmethod
    def backward(ctx, dout, dlse, _dmax_logits):
        try:
            saved = ctx.saved_tensors  # once: a checkpoint unpacks them once
            if dlse is not None or not _is_usual(dout):
                dout, dlse = _row_major(saved[3], dout, dlse)
        except Exception as error:
            _report(ctx.call, error)
            raise
        dq, dk, dv, dsink = ctx.call.backward(dout, dlse, *saved)
        if dsink is not None and ctx.sink_reducer is not None:
            ctx.sink_reducer.reduce_dsink(dsink)
        return dq, dk, dv, dsink, None, None


def _report(call, error: Exception) -> None:
    """Reports an error of the backward to other ranks; calls with device masks have none."""
    if isinstance(call, (Call, NamedCall, _ReportingCall)):
        call.refuse(error)


def _is_usual(dout: torch.Tensor | None) -> bool:
    """Whether the gradient of out goes to the library as it is."""
    is_plain = type(dout) is torch.Tensor and not dout.is_neg() and dout.is_contiguous()
    return is_plain and not _is_grad_enabled() and forward_ad._current_level < 0


def _row_major(out, dout, dlse):
    """The gradients of out and lse as the library takes them; RuntimeError where they are to have
    gradients themselves.
    """
    refuse_second_derivative("attention")
    if dout is None:
        dout = torch.zeros_like(out)
    else:
        dout = as_plain("the gradient of out", dout).contiguous()
    if dlse is not None:
        dlse = as_plain("the gradient of lse", dlse).contiguous()
    return dout, dlse


# Function.apply looks for functorch's transforms, of which is_eager knows, and takes 1 to 2 us.
_attend = super(torch.autograd.Function, EagerAttention).apply
_attend_with_options = super(torch.autograd.Function, EagerSinkAttention).apply
