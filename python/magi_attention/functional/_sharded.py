# SPDX-License-Identifier: Apache-2.0
"""Attention of DTensors, whose parts are the rows of ranks, as torchtitan hands them over."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from magi_attention.comm.group import rank_tuple
from magi_attention.common.forward_meta import AttnForwardMeta
from magi_attention.functional._rank_attention import find_attention


def are_sharded(*tensors: torch.Tensor) -> bool:
    """Whether a DTensor is among them, whose class takes long to import."""
    return any(isinstance(getattr(tensor, "placements", None), tuple) for tensor in tensors)


def attend_to_parts(
    qkv: tuple[torch.Tensor, ...],
    number: int,
    ranks: tuple[int, ...],
    attend: Callable[..., tuple[torch.Tensor, AttnForwardMeta]],
) -> tuple[torch.Tensor, AttnForwardMeta]:
    """attend(q, k, v) of this rank's parts of DTensors; the results are DTensors of q's placements.
    These are Shard(0), the rows, over `ranks` (of the plan of this number; (): this one alone), and
    over others Replicate() or Shard(1), the heads, of which the plan is for those of one part.
    ValueError or TypeError for others, and where k or v are placed differently than q.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    try:
        _check_placements(qkv, ranks or (dist.get_rank(),))
    except Exception as error:
        if not torch.compiler.is_compiling():
            find_attention(number).refuse(error)
        raise
    mesh, placements = qkv[0].device_mesh, qkv[0].placements

    def whole(part: torch.Tensor, placements, *shape: int) -> torch.Tensor:
        like = part.new_empty(shape, device="meta")
        sizes = {"shape": like.shape, "stride": like.stride()}
        return DTensor.from_local(part, mesh, placements, run_check=False, **sizes)

    out, meta = attend(*(tensor.to_local() for tensor in qkv))
    rows, heads, _ = qkv[0].shape
    largest = meta.max_logits
    if largest is not None:  # its only axis are the heads
        of_heads = [Shard(0) if place == Shard(1) else Replicate() for place in placements]
        largest = whole(largest, of_heads, heads)
    lse = whole(meta.lse, placements, rows, heads)
    out = whole(out, placements, rows, heads, out.shape[2])
    return out, AttnForwardMeta(lse=lse, max_logits=largest)


def _check_placements(qkv: tuple[torch.Tensor, ...], ranks: tuple[int, ...]) -> None:
    """ValueError or TypeError unless rows lie over these ranks and heads at most over others."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    for name, tensor in zip("qkv", qkv):
        if not isinstance(tensor, DTensor):
            kind = type(tensor).__name__
            raise TypeError(
                f"{name} is a {kind} beside a DTensor; allowed: three DTensors, or none"
            )
        mesh, places = tensor.device_mesh, tensor.placements
        is_of_rows = [rank_tuple(mesh.get_group(axis)) == ranks for axis in range(mesh.ndim)]
        fits = any(is_of_rows) or len(ranks) == 1
        for axis, place in enumerate(places):
            allowed = (Shard(0),) if is_of_rows[axis] else (Replicate(), Shard(1))
            fits &= place in (allowed if mesh.size(axis) > 1 else (Shard(0), Replicate(), Shard(1)))
        if not fits or (mesh, places) != (qkv[0].device_mesh, qkv[0].placements):
            raise ValueError(
                f"{name} has placements {places} on {mesh}; allowed: Shard(dim=0) over the plan's "
                f"ranks, {list(ranks)}, and over others Replicate() or Shard(dim=1), as q"
            )
