# SPDX-License-Identifier: Apache-2.0
"""torch.roll along a sequence whose rows live on several ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from magi_attention._native.tensors import as_plain
from magi_attention.common._arguments import check_int
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.functional.dispatch import along, check_group, with_local_rows
from magi_attention.rows import HasRows

_INT64 = 1 << 63


class _RollP2P(torch.autograd.Function):
    """Rows moved along the sequence; the gradient moves back."""

    @staticmethod
    def forward(ctx, x_local, shift, meta, group, seq_dim):
        ctx.shift, ctx.rows, ctx.seq_dim = shift, meta.rows, seq_dim
        return along(seq_dim, x_local, lambda own: meta.rows.roll(own, shift))

    @staticmethod
    def backward(ctx, grad_output):
        refuse_second_derivative("roll")
        grad_output = as_plain("the gradient of rolled rows", grad_output)
        back = along(ctx.seq_dim, grad_output, lambda own: ctx.rows.roll(own, -ctx.shift))
        return back, None, None, None, None


class _RollSimpleP2P(torch.autograd.Function):
    """The same under the original's other name; there is one transport."""

    @staticmethod
    def forward(ctx, x_local, shift, meta, group, seq_dim):
        return _RollP2P.forward(ctx, x_local, shift, meta, group, seq_dim)

    @staticmethod
    def backward(ctx, grad_output):
        return _RollP2P.backward(ctx, grad_output)


def roll_p2p(
    x_local: torch.Tensor,
    shift: int,
    meta: HasRows,
    group: dist.ProcessGroup | None,
    seq_dim: int = 0,
) -> torch.Tensor:
    """Rolls by `shift` rows in the order of the sequence, along seq_dim of x_local, of which every
    rank holds its rows, with or without their padding; only rows that change rank are sent.
    Collective. ValueError for another number of rows and for a group that is not the plan's.
    Exported as magi_attention.functional.roll_func.
    """
    check_group(group, meta)
    check_int("dim", seq_dim, -_INT64)
    whole = with_local_rows(x_local, meta.rows, seq_dim)
    shift = check_int("shift", shift, -_INT64) % meta.rows.total_seqlen
    rolled = _RollP2P.apply(whole, shift, meta, meta.rows.cp_group, seq_dim)
    rows = x_local.shape[seq_dim]
    return rolled if rows == whole.shape[seq_dim] else rolled.narrow(seq_dim, 0, rows)


def roll_simple_p2p(
    x_local: torch.Tensor,
    shift: int,
    meta: HasRows,
    group: dist.ProcessGroup | None,
    seq_dim: int = 0,
) -> torch.Tensor:
    """roll_p2p under the original's other name. Exported as
    magi_attention.functional.roll_simple_func.
    """
    return roll_p2p(x_local, shift, meta, group, seq_dim)


__all__ = ["roll_p2p", "roll_simple_p2p"]
