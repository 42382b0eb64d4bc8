# SPDX-License-Identifier: Apache-2.0
"""Sequences cut into shards and put together again, with gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from magi_attention.bound_plan import BoundPlan


class Dispatch(torch.autograd.Function):
    """The same global tensor on every rank -> the rank's rows. The gradient is the whole one, on
    every rank.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, bound: "BoundPlan", pad_value: float) -> torch.Tensor:
        ctx.bound = bound
        return bound.select_rows(x, pad_value)

    @staticmethod
    def backward(ctx, grad: torch.Tensor):
        return ctx.bound.gather_rows(grad), None, None


class Undispatch(torch.autograd.Function):
    """The rank's rows -> the global tensor on every rank. The gradient is the own rows of the
    global one, or with is_partial_grad of the sum over ranks.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, bound: "BoundPlan", is_partial_grad: bool) -> torch.Tensor:
        ctx.bound = bound
        ctx.is_partial_grad = is_partial_grad
        return bound.gather_rows(x)

    @staticmethod
    def backward(ctx, grad: torch.Tensor):
        if ctx.is_partial_grad:
            return ctx.bound.reduce_rows(grad), None, None
        return ctx.bound.select_rows(grad, 0.0), None, None


class Roll(torch.autograd.Function):
    """Rows moved along the sequence; the gradient moves back."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, bound: "BoundPlan", shift: int) -> torch.Tensor:
        ctx.bound = bound
        ctx.shift = shift
        return bound.roll_rows(x, shift)

    @staticmethod
    def backward(ctx, grad: torch.Tensor):
        return ctx.bound.roll_rows(grad, -ctx.shift), None, None
