# SPDX-License-Identifier: Apache-2.0
"""torch.roll along a sequence whose rows live on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from magi_attention.functional.dispatch import along, check_group

if TYPE_CHECKING:
    from magi_attention.bound_plan import BoundPlan


class _RollP2P(torch.autograd.Function):
    """Rows moved along the sequence; the gradient moves back."""

    @staticmethod
    def forward(ctx, x_local, shift, meta, group, seq_dim):
        ctx.shift, ctx.meta, ctx.seq_dim = shift, meta, seq_dim
        return along(seq_dim, x_local, lambda rows: meta.roll_rows(rows, shift))

    @staticmethod
    def backward(ctx, grad_output):
        back = along(ctx.seq_dim, grad_output, lambda rows: ctx.meta.roll_rows(rows, -ctx.shift))
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
    meta: "BoundPlan",
    group: "dist.ProcessGroup | None",
    seq_dim: int = 0,
) -> torch.Tensor:
    """Rolls by `shift` rows in the order of the sequence, along seq_dim of x_local, of which every
    rank holds its rows; only rows that change rank are sent. Collective. ValueError for another
    number of rows and for a group that is not the plan's. Exported as
    magi_attention.functional.roll_func.
    """
    check_group(group, meta)
    return meta.roll(x_local, shift, seq_dim)


def roll_simple_p2p(
    x_local: torch.Tensor,
    shift: int,
    meta: "BoundPlan",
    group: "dist.ProcessGroup | None",
    seq_dim: int = 0,
) -> torch.Tensor:
    """roll_p2p under the original's other name. Exported as
    magi_attention.functional.roll_simple_func.
    """
    return roll_p2p(x_local, shift, meta, group, seq_dim)


__all__ = ["roll_p2p", "roll_simple_p2p"]
