# SPDX-License-Identifier: Apache-2.0
"""Shards of a sequence as functions of tensors. `meta` is a bound plan (Plan.bind), which knows its
group; `group` is the original's argument and must be that group or None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from magi_attention.bound_plan import BoundPlan


def along(seq_dim: int, x: torch.Tensor, rows_of: Callable) -> torch.Tensor:
    """rows_of(x) where rows are the axis seq_dim."""
    if seq_dim == 0:
        return rows_of(x)
    return rows_of(x.movedim(seq_dim, 0)).movedim(0, seq_dim)


class _DispatchFunc(torch.autograd.Function):
    """The same global tensor on every rank -> the rank's rows. The gradient is the whole one, on
    every rank.
    """

    @staticmethod
    def forward(ctx, x_global, group, meta, seq_dim, pad_value=0.0):
        ctx.meta, ctx.seq_dim = meta, seq_dim
        return along(seq_dim, x_global, lambda rows: meta.select_rows(rows, pad_value))

    @staticmethod
    def backward(ctx, grad_local):
        return along(ctx.seq_dim, grad_local, ctx.meta.gather_rows), None, None, None, None


class _UndispatchFunc(torch.autograd.Function):
    """The rank's rows -> the global tensor on every rank. The gradient is the own rows of the
    global one, which every rank holds whole.
    """

    @staticmethod
    def forward(ctx, x_local, group, meta, seq_dim):
        ctx.meta, ctx.seq_dim = meta, seq_dim
        return along(seq_dim, x_local, meta.gather_rows)

    @staticmethod
    def backward(ctx, grad_global):
        own = along(ctx.seq_dim, grad_global, lambda rows: ctx.meta.select_rows(rows, 0.0))
        return own, None, None, None


class _UndispatchPartialGradFunc(torch.autograd.Function):
    """As _UndispatchFunc where the global gradients of the ranks are parts of a sum."""

    @staticmethod
    def forward(ctx, x_local, group, meta, seq_dim):
        return _UndispatchFunc.forward(ctx, x_local, group, meta, seq_dim)

    @staticmethod
    def backward(ctx, grad_global):
        return along(ctx.seq_dim, grad_global, ctx.meta.reduce_rows), None, None, None


def dispatch_func(
    x_global: torch.Tensor,
    group: "dist.ProcessGroup | None",
    meta: "BoundPlan",
    seq_dim: int = 0,
) -> torch.Tensor:
    """x_global, the same tensor on every rank, of total_seqlen rows along seq_dim -> this rank's
    rows; padding rows hold 0. The gradient of x_global is whole on every rank. No communication in
    forward. ValueError for another number of rows and for a group that is not the plan's.
    """
    check_group(group, meta)
    return meta.dispatch(x_global, seq_dim=seq_dim)


def undispatch_func(
    x_local: torch.Tensor,
    meta: "BoundPlan",
    group: "dist.ProcessGroup | None",
    seq_dim: int = 0,
    is_partial_grad: bool = False,
) -> torch.Tensor:
    """This rank's rows along seq_dim -> the whole tensor of total_seqlen rows on every rank.
    Collective. is_partial_grad: gradients of ranks are parts of a sum, else each holds the whole.
    ValueError for another number of rows and for a group that is not the plan's.
    """
    check_group(group, meta)
    return meta.undispatch(x_local, is_partial_grad, seq_dim)


def check_group(group: "dist.ProcessGroup | None", meta: "BoundPlan") -> None:
    """TypeError unless meta is a bound plan, ValueError where another group than its own is given."""
    if not hasattr(meta, "roll_rows"):
        raise TypeError(f"meta is a {type(meta).__name__}; allowed: a bound plan, Plan.bind(group)")
    if group is not None and group is not meta.cp_group:
        raise ValueError("group is not that of meta; allowed: the group that the plan is bound to")


__all__ = ["dispatch_func", "undispatch_func"]
