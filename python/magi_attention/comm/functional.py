# SPDX-License-Identifier: Apache-2.0
"""Collectives with gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from magi_attention.comm.primitive._by_rank import all_gather_v, scatter_v
from magi_attention.common._derivatives import refuse_second_derivative


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, split_sizes):
        ctx.arguments = (group, dim, split_sizes)
        return all_gather_v(x, *ctx.arguments)

    @staticmethod
    def backward(ctx, gradient):
        refuse_second_derivative("all_gather_fwd_scatter_bwd")
        return scatter_v(gradient, *ctx.arguments), None, None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, split_sizes):
        ctx.arguments = (group, dim, split_sizes)
        return scatter_v(x, *ctx.arguments)

    @staticmethod
    def backward(ctx, gradient):
        refuse_second_derivative("scatter_fwd_all_gather_bwd")
        return all_gather_v(gradient, *ctx.arguments), None, None, None


def all_gather_fwd_scatter_bwd(
    input: torch.Tensor,
    group: dist.ProcessGroup,
    dim: int = 0,
    split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """comm.primitive.all_gather_v; its gradient is this rank's part of the whole one, which every
    rank holds. Collective in forward.
    """
    return _Gather.apply(input, group, dim, split_sizes)


def scatter_fwd_all_gather_bwd(
    input: torch.Tensor,
    group: dist.ProcessGroup,
    dim: int = 0,
    split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """comm.primitive.scatter_v; its gradient is put together of every rank's part. Collective in
    backward.
    """
    return _Scatter.apply(input, group, dim, split_sizes)


__all__ = ["all_gather_fwd_scatter_bwd", "scatter_fwd_all_gather_bwd"]
