# SPDX-License-Identifier: Apache-2.0
"""Rows that change place: dispatch to ranks and back, and roll, as functions of a bound plan."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from magi_attention._native.tensors import as_plain, refuse_transforms
from magi_attention.common._arguments import as_bool, check_int, check_number
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.rows import HasRows, Rows


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
        ctx.rows, ctx.seq_dim = meta.rows, seq_dim
        return along(seq_dim, x_global, lambda whole: meta.rows.select(whole, pad_value))

    @staticmethod
    def backward(ctx, grad_local):
        with ctx.rows.refusals():
            refuse_second_derivative("dispatch")
            grad_local = as_plain("the gradient of local rows", grad_local)
        return along(ctx.seq_dim, grad_local, ctx.rows.gather), None, None, None, None


class _UndispatchFunc(torch.autograd.Function):
    """The rank's rows -> the global tensor on every rank. The gradient is the own rows of the
    global one, which every rank holds whole.
    """

    @staticmethod
    def forward(ctx, x_local, group, meta, seq_dim):
        ctx.rows, ctx.seq_dim = meta.rows, seq_dim
        return along(seq_dim, x_local, meta.rows.gather)

    @staticmethod
    def backward(ctx, grad_global):
        grad_global = as_plain("the gradient of global rows", grad_global)
        own = along(ctx.seq_dim, grad_global, lambda whole: ctx.rows.select(whole, 0.0))
        return own, None, None, None


class _UndispatchPartialGradFunc(_UndispatchFunc):
    """For global gradients of ranks that are parts of a sum."""

    @staticmethod
    def backward(ctx, grad_global):
        with ctx.rows.refusals():
            refuse_second_derivative("undispatch with is_partial_grad")
            grad_global = as_plain("the gradient of global rows", grad_global)
        return along(ctx.seq_dim, grad_global, ctx.rows.reduce), None, None, None


def dispatch_func(
    x_global: torch.Tensor, group: dist.ProcessGroup | None, meta: HasRows, seq_dim: int = 0
) -> torch.Tensor:
    """x_global, the same tensor on every rank, of total_seqlen rows along seq_dim -> this rank's
    rows; padding rows hold 0. The gradient of x_global is whole on every rank. No communication in
    forward. ValueError for another number of rows and for a group that is not the plan's.
    """
    check_group(group, meta)
    return dispatch_padded(x_global, meta, 0.0, seq_dim)


def dispatch_padded(
    x_global: torch.Tensor, meta: HasRows, pad_value: float, seq_dim: int
) -> torch.Tensor:
    """dispatch_func with another value in padding rows."""
    check_number("pad_value", pad_value)  # on ranks without padding, too
    x_global = with_rows(x_global, meta.rows.total_seqlen, seq_dim)
    return _DispatchFunc.apply(x_global, meta.rows.cp_group, meta, seq_dim, pad_value)


def undispatch_func(
    x_local: torch.Tensor,
    meta: HasRows,
    group: dist.ProcessGroup | None,
    seq_dim: int = 0,
    is_partial_grad: bool = False,
) -> torch.Tensor:
    """This rank's rows along seq_dim, with or without their padding -> the whole tensor of
    total_seqlen rows on every rank. Collective. is_partial_grad: gradients of ranks are parts of a
    sum, else each holds the whole. ValueError for another number of rows and for a group that is
    not the plan's.
    """
    check_group(group, meta)
    with meta.rows.refusals():
        x_local = with_local_rows(x_local, meta.rows, seq_dim)
        is_partial = as_bool("is_partial_grad", is_partial_grad)
    function = _UndispatchPartialGradFunc if is_partial else _UndispatchFunc
    return function.apply(x_local, meta.rows.cp_group, meta, seq_dim)


def check_group(group: dist.ProcessGroup | None, meta: HasRows) -> None:
    """TypeError unless meta is a bound plan, ValueError for another group than its own."""
    if not isinstance(getattr(meta, "rows", None), Rows):
        raise TypeError(f"meta is a {type(meta).__name__}; allowed: a bound plan, Plan.bind(group)")
    if group is not None and group is not meta.rows.cp_group:
        raise ValueError("group is not that of meta; allowed: the group that the plan is bound to")


def with_rows(x: torch.Tensor, rows: int, seq_dim: int) -> torch.Tensor:
    """x as a plain tensor; TypeError or ValueError unless it has `rows` rows along seq_dim."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x is a {type(x).__name__}; allowed: a torch.Tensor")
    refuse_transforms()
    x = as_plain("x", x)
    if not -x.dim() <= seq_dim < x.dim():
        raise ValueError(f"x has {x.dim()} axes; allowed: those with axis {seq_dim}")
    if x.shape[seq_dim] != rows:
        place = "" if seq_dim == 0 else f" in axis {seq_dim}"
        wanted = f"[{rows}, ...]" if seq_dim == 0 else str(rows)
        raise ValueError(
            f"x has shape {list(x.shape)}; allowed: {wanted}{place}; try: seq_dim, the axis of rows"
        )
    return x


def with_local_rows(x: torch.Tensor, rows: Rows, seq_dim: int) -> torch.Tensor:
    """x as a plain tensor with padding, 0 where it is added; TypeError or ValueError unless it has
    the rank's rows along seq_dim, all of them or those before the padding.
    """
    is_short = (
        isinstance(x, torch.Tensor)
        and -x.dim() <= seq_dim < x.dim()
        and (x.shape[seq_dim] == rows.num_valid != rows.count)
    )
    if not is_short:
        return with_rows(x, rows.count, seq_dim)
    refuse_transforms()
    x = as_plain("x", x)
    shape = list(x.shape)
    shape[seq_dim] = rows.count - rows.num_valid
    return torch.cat((x, x.new_zeros(shape)), seq_dim)


_INT64 = 1 << 63


class _RollP2P(torch.autograd.Function):
    """Rows moved along the sequence; the gradient moves back."""

    @staticmethod
    def forward(ctx, x_local, shift, meta, group, seq_dim):
        ctx.shift, ctx.rows, ctx.seq_dim = shift, meta.rows, seq_dim
        return along(seq_dim, x_local, lambda own: meta.rows.roll(own, shift))

    @staticmethod
    def backward(ctx, grad_output):
        with ctx.rows.refusals():
            refuse_second_derivative("roll")
            grad_output = as_plain("the gradient of rolled rows", grad_output)
        back = along(ctx.seq_dim, grad_output, lambda own: ctx.rows.roll(own, -ctx.shift))
        return back, None, None, None, None


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
    Exported as magi_attention.functional.roll_func and roll_simple_func.
    """
    check_group(group, meta)
    with meta.rows.refusals():
        check_int("dim", seq_dim, -_INT64)
        whole = with_local_rows(x_local, meta.rows, seq_dim)
        shift = check_int("shift", shift, -_INT64) % meta.rows.total_seqlen
    rolled = _RollP2P.apply(whole, shift, meta, meta.rows.cp_group, seq_dim)
    rows = x_local.shape[seq_dim]
    return rolled if rows == whole.shape[seq_dim] else rolled.narrow(seq_dim, 0, rows)


# The original's other names; there is one transport.
_RollSimpleP2P = _RollP2P
roll_simple_p2p = roll_p2p

__all__ = ["dispatch_func", "roll_p2p", "roll_simple_p2p", "undispatch_func"]
