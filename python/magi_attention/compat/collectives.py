# SPDX-License-Identifier: Apache-2.0
"""Collectives in which every rank holds one part, of torch.distributed's memory and types, with
gradients where their names tell those.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from magi_attention._native.tensors import refuse_tangent
from magi_attention.comm.process_group import rank_in
from magi_attention.common._arguments import check_int, check_kind
from magi_attention.common._derivatives import refuse_second_derivative
from magi_attention.compat import group_collectives as grpcoll
from magi_attention.compat.group_collectives import group_cast, group_reduce


@torch.no_grad()
def all_gather_v(
    x_local: torch.Tensor,
    group: dist.ProcessGroup,
    dim: int = 0,
    split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Every rank's part along axis dim, in the order of ranks. split_sizes: the length of every
    rank's part; None: all are as long as this one. Collective. ValueError for another length than
    split_sizes tell.
    """
    rank = rank_in("group", group)
    _check_axis("x_local", x_local, dim)
    length = x_local.shape[dim]
    sizes = [length] * dist.get_world_size(group) if split_sizes is None else list(split_sizes)
    _check_count("split_sizes", sizes, group)
    if sizes[rank] != length:
        raise ValueError(
            f"x_local has length {length} in axis {dim}; allowed: {sizes[rank]}, that of "
            f"split_sizes[{rank}]"
        )
    rows = x_local.movedim(dim, 0).contiguous()
    longest = max(sizes)
    padded = rows.new_zeros((longest, *rows.shape[1:]))
    padded[:length] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes)])
    return whole.movedim(0, dim).contiguous()


@torch.no_grad()
def scatter_v(
    x_global: torch.Tensor,
    group: dist.ProcessGroup,
    dim: int = 0,
    split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """This rank's part of a tensor that every rank holds, cut along axis dim into as many parts as
    ranks, of lengths split_sizes or equal ones. No communication. ValueError for lengths that do
    not add up or do not divide.
    """
    rank = rank_in("group", group)
    _check_axis("x_global", x_global, dim)
    size, length = dist.get_world_size(group), x_global.shape[dim]
    if split_sizes is None:
        if length % size:
            raise ValueError(
                f"x_global has length {length} in axis {dim}; allowed: a multiple of {size} "
                "without split_sizes"
            )
        split_sizes = [length // size] * size
    _check_count("split_sizes", split_sizes, group)
    if sum(split_sizes) != length:
        raise ValueError(f"split_sizes adds up to {sum(split_sizes)}; allowed: {length}")
    begin = sum(split_sizes[:rank])
    return x_global.narrow(dim, begin, split_sizes[rank]).contiguous()


def _check_axis(name: str, x: torch.Tensor, dim: int) -> None:
    check_kind(name, x, torch.Tensor, "a torch.Tensor")
    check_int("dim", dim, -x.dim(), x.dim() - 1)


def _check_count(name: str, sizes: Sequence[int], group: dist.ProcessGroup) -> None:
    if len(sizes) != dist.get_world_size(group):
        raise ValueError(
            f"{name} has {len(sizes)} entries; allowed: {dist.get_world_size(group)}, one per rank"
        )
    for index, size in enumerate(sizes):
        check_int(f"{name}[{index}]", size, 0)


class _Moved(torch.autograd.Function):
    """A collective, and the one of its gradient; name: of the function that errors tell."""

    @staticmethod
    def forward(ctx, x, name, collective, back, *arguments):
        ctx.name, ctx.back, ctx.arguments = name, back, arguments
        return collective(x, *arguments)

    @staticmethod
    def backward(ctx, gradient):
        refuse_second_derivative(ctx.name)
        refuse_tangent("the gradient", gradient)
        return ctx.back(gradient, *ctx.arguments), None, None, None, None, None, None


def all_gather_fwd_scatter_bwd(
    input: torch.Tensor,
    group: dist.ProcessGroup,
    dim: int = 0,
    split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """all_gather_v; its gradient is this rank's part of the whole one, which every
    rank holds. Collective in forward.
    """
    refuse_tangent("input", input)
    name = "all_gather_fwd_scatter_bwd"
    return _Moved.apply(input, name, all_gather_v, scatter_v, group, dim, split_sizes)


def scatter_fwd_all_gather_bwd(
    input: torch.Tensor,
    group: dist.ProcessGroup,
    dim: int = 0,
    split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """scatter_v; its gradient is put together of every rank's part. Collective in
    backward.
    """
    refuse_tangent("input", input)
    name = "scatter_fwd_all_gather_bwd"
    return _Moved.apply(input, name, scatter_v, all_gather_v, group, dim, split_sizes)


__all__ = [
    "all_gather_fwd_scatter_bwd", "all_gather_v", "group_cast", "group_reduce", "grpcoll",
    "scatter_fwd_all_gather_bwd", "scatter_v",
]  # fmt: skip
