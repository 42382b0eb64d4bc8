# SPDX-License-Identifier: Apache-2.0
"""Attention outside of compiled graphs: the library is called without an operator in between, which
saves most of a short call's time.
"""

from __future__ import annotations

import torch

from magi_attention.common.forward_meta import AttnForwardMeta

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_num_modes = torch._C._len_torch_dispatch_stack


def is_eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether nobody traces or intercepts operators: plain tensors, no compiler, no mode."""
    if torch.compiler.is_compiling():
        return False
    return type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN and not _num_modes()


def run(q, k, v, sink, call, bound) -> tuple[torch.Tensor, AttnForwardMeta]:
    """The result of a prepared call, with gradients. bound: the plan that reduces the gradient of a
    shared sink, or None.
    """
    if torch.is_grad_enabled():
        out, lse, max_logits = EagerAttention.apply(q, k, v, sink, call, bound)
    else:
        out, lse, max_logits = call.forward(q, k, v, sink)
    return out, AttnForwardMeta(lse, max_logits)


class EagerAttention(torch.autograd.Function):
    """out, lse and max_logits (or None); gradients come through out and lse."""

    @staticmethod
    def forward(ctx, q, k, v, sink, call, bound):
        out, lse, max_logits = call.forward(q, k, v, sink)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, sink)
        ctx.call, ctx.bound = call, bound
        if max_logits is not None:
            ctx.mark_non_differentiable(max_logits)
        return out, lse, max_logits

    @staticmethod
    def backward(ctx, dout, dlse, _dmax_logits):
        q, k, v, out, lse, sink = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph is True; attention has no second derivative")
        if dout is None:
            dout = torch.zeros_like(out)
        elif not dout.is_contiguous():
            dout = dout.contiguous()
        if dlse is not None:
            dlse = dlse.contiguous()
        dq, dk, dv, dsink = ctx.call.backward(dout, dlse, q, k, v, out, lse, sink)
        if dsink is not None and ctx.bound is not None:
            ctx.bound.reduce_dsink(dsink)
        return dq, dk, dv, dsink, None, None
